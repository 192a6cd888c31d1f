"""The fingerprint of a graph, which tells hosts apart that must not run together.

It covers the job (settings, layout, budget), roles, nodes, ports, edges and policies as the builder made them, and the
sources of the program and of every body; not the paths of files, which differ between machines, nor anything of the
process: addresses, hash seeds, the order of sets. Everything becomes *canonical*: nested lists of text and numbers,
whose JSON is hashed (SHA-256, of which 128 bits are kept). An object that is no plain data is its class and its
attributes; a function is its name, and its source is among the sources.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from isthmus import ops
from isthmus.programs import wing_table
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.slot_tasks import portable
from isthmus.programs.job import Job
from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.template import Edge, Node, Reference, Template
from isthmus.runtime.system.files import read_bytes

_DIGITS: Final = 32


def fingerprint(graph: Template, job: Job, builder: Callable[..., Any]) -> str:
    """32 hexadecimal digits; equal for equal graph, job and sources, in any process, at any time.

    GraphError if the arguments of a body are no data, because they contain themselves.
    """
    content = {
        "job": {field.name: _canonical(getattr(job, field.name)) for field in fields(job) if field.name != "program"},
        "graph": graph.name,
        "roles": [[role.name, role.replicas_min, role.replicas_max] for role in graph.roles],
        "nodes": [_node(node) for node in graph.nodes],
        "edges": [_edge(edge) for edge in graph.edges],
        "program": reference.portable(job.program),
        "sources": sources([builder, *(node.body for node in graph.nodes)]),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def sources(functions: Iterable[Callable[..., Any]]) -> dict[str, str]:
    """SHA-256 of each file that a function is defined in, by module; of all operators, if one is among them, and of all
    of a wing, if one of it is."""
    files: dict[str, Path] = {}
    for function in functions:
        function = inspect.unwrap(function)
        path = _source(function)
        if path is not None:
            files[function.__module__] = path
    folders, wings = {Path(ops.__path__[0]): ops.__name__}, Path(wing_table.__file__).parent / "wings"
    folders |= {Path(wings, wing.name): f"{wing_table.ROOM}.{wing.name}" for wing in wing_table.WINGS}
    names = [str(path) for path in files.values()]
    for folder, package in folders.items():
        if any(name.startswith(f"{folder}{os.sep}") for name in names):
            for path in folder.rglob("*.py"):
                parts = path.relative_to(folder).with_suffix("").parts
                files[".".join((package, *parts))] = path
    return {name: _digest(path, *_state(path)) for name, path in sorted(files.items())}


def _state(path: Path) -> tuple[int, int]:
    """What changes with a file."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@cache
def _digest(path: Path, changed_ns: int, size: int) -> str:
    """SHA-256 of a file in this state: what prepares a run hashes the same files for its request and its hosts."""
    del changed_ns, size
    return hashlib.sha256(read_bytes(path)).hexdigest()


def _source(function: Any) -> Path | None:
    """The file of a class or function; None for one from a notebook or a shell."""
    try:
        path = Path(inspect.getfile(function))
    except (TypeError, OSError):
        return None
    return path if path.is_file() else None


def _node(node: Node) -> list[Any]:
    try:
        arguments = _canonical([node.arguments, dict(node.keywords)])
    except RecursionError:
        do = "Give the body plain data, and let it make the rest when it is opened."
        raise GraphError(f"node {node.name!r}", "arguments that are data", "some that hold themselves", do) from None
    return [
        node.role,
        node.name,
        node.body_name,
        arguments,
        [[port.name, port.has_default, port.collects] for port in node.inputs],
        list(node.outputs),
        _canonical(node.fires),
        [node.never_waits, node.body_may_wait],
    ]


def _edge(edge: Edge) -> list[Any]:
    ends = [[end.node.name, end.name] for end in (edge.source, edge.target)]
    return [ends, _canonical(edge.policy), _canonical(edge.route)]


def _canonical(value: Any) -> Any:
    """`value` as data that JSON writes in one way only."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, Reference):
        return ["reference", *portable(value.text)]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return ["array", str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_canonical, value)]
    if isinstance(value, Mapping):
        return ["mapping", *sorted((_sortable(key), _canonical(item)) for key, item in value.items())]
    if isinstance(value, Set):
        return ["set", *sorted(map(_sortable, value))]
    return _object(value)


def _sortable(value: Any) -> str:
    return json.dumps(_canonical(value))


def _object(value: Any) -> list[Any]:
    """A function or class by name; any other object by its class and its attributes."""
    if isinstance(value, Enum):
        return ["member", f"{type(value).__module__}:{type(value).__qualname__}", value.name]
    if isinstance(value, partial):
        return ["partial", _canonical(value.func), _canonical(value.args), _canonical(value.keywords)]
    if isinstance(value, type) or inspect.isroutine(value):
        return ["name", f"{value.__module__}:{value.__qualname__}"]
    if is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, msgspec.Struct):
        attributes = msgspec.structs.asdict(value)
    else:
        attributes = dict(getattr(value, "__dict__", {}))
    return ["object", f"{type(value).__module__}:{type(value).__qualname__}", _canonical(attributes)]
