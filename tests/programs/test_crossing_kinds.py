"""What may cross between hosts in the shipped programs: each edge has a kind, and no schema carries batches or token
ids."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import ml_dtypes
import numpy as np
import pytest

from isthmus.ops.exchange.formats import FORMATS
from isthmus.programs import SHIPPED
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.results.crossing_kinds import MESSAGES, kind_of, message_of
from isthmus.runtime.graph.body import schemas_of
from isthmus.runtime.graph.template import Edge, Template
from isthmus.runtime.supervision.messages import hints_of
from tests.shipped import SETS

SETTINGS = {
    "decoupled-diloco": ["program.push=int2", "program.update=int4"],
    "streaming-diloco": ["program.push=int4"],
}
"""Settings with nodes and edges of their own."""
PARAMETERS = {np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), *(each.dtype for each in FORMATS.values())}
"""Types of parameters, gradients and their codes. Token ids are integers of 16 bits or more."""
ANYTHING = {"leaves", "tree", "tensors", "streams", "state"}
"""Fields without a type: parameters and moments as a framework keeps them, and the state of a stream of data, which is
its author's: a position, of those that are shipped."""
FORBIDDEN = {"batch", "batches", "text", "ids", "inputs", "targets", "labels", "examples", "x", "y"}


@cache
def graph_of(program: str, *settings: str) -> Template:
    return Options(program=program, sets=[*SETS.get(program, ()), *settings]).request().graph


def crossing(graph: Template) -> Iterator[tuple[Edge, Any]]:
    """The edges between hosts, and the schemas at their ends."""
    for edge in graph.edges:
        if edge.route is not None:
            node = edge.target.node
            yield edge, schemas_of(node.body, node.arguments, node.keywords).get(edge.target.name)


def leaves(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(names of the fields that lead there, type) of everything in an item that is no container."""
    origin = get_origin(schema)
    if origin is Annotated:
        inner, *rules = get_args(schema)
        replaced = {name: each for rule in rules if isinstance(rule, dict) for name, each in rule.items()}
        forms = [rule for rule in rules if not isinstance(rule, str | dict) and not _is_rule(rule)]
        for name, each in replaced.items():
            yield from leaves(each, (*path, name))
        for found, kind in leaves(forms[0] if forms else inner, path):
            if not (len(found) > len(path) and found[len(path)] in replaced):
                yield found, kind
    elif origin in (Union, UnionType, list, tuple, dict):
        for each in get_args(schema):
            if each not in (type(None), ...):
                yield from leaves(each, path)
    elif origin is not None and getattr(origin, "__name__", "") in ("NotRequired", "Required"):
        yield from leaves(get_args(schema)[0], path)
    elif hasattr(schema, "__total__"):
        for name, each in hints_of(schema).items():
            yield from leaves(each, (*path, name))
    elif origin is not Literal:
        yield path, schema


def _is_rule(rule: Any) -> bool:
    return isinstance(rule, tuple) and bool(rule) and isinstance(rule[0], str)


def dtype_of(kind: Any) -> np.dtype[Any] | None:
    """The dtype of an array; None for another type."""
    if get_origin(kind) is not np.ndarray:
        return None
    (scalar,) = get_args(get_args(kind)[1])
    return None if scalar is Any else np.dtype(scalar)


@pytest.mark.parametrize("program", SHIPPED)
@pytest.mark.parametrize("has_settings", [False, True])
def test_every_edge_between_hosts_has_a_schema_of_a_known_kind(program: str, has_settings: bool) -> None:
    settings = SETTINGS.get(program, []) if has_settings else []
    kinds = [(str(edge), kind_of(edge), schema) for edge, schema in crossing(graph_of(program, *settings))]
    assert kinds
    assert [edge for edge, kind, schema in kinds if schema is None or kind not in MESSAGES] == []


@pytest.mark.parametrize("program", SHIPPED)
@pytest.mark.parametrize("has_settings", [False, True])
def test_no_schema_carries_batches_or_token_ids(program: str, has_settings: bool) -> None:
    settings = SETTINGS.get(program, []) if has_settings else []
    arrays = 0
    for edge, schema in crossing(graph_of(program, *settings)):
        for path, kind in leaves(schema):
            where = f"{edge}: {'.'.join(path)}: {kind}"
            assert not FORBIDDEN & set(path), where
            if kind is Any:
                assert ANYTHING & set(path) or path[-1] in ("gradient", "values"), where
            if (dtype := dtype_of(kind)) is not None:
                arrays += 1
                assert dtype in PARAMETERS, where
    assert arrays


def test_batches_stay_within_a_host() -> None:
    for program in SHIPPED:
        ends = {(str(edge.source.name), edge.route is None) for edge in graph_of(program).edges}
        assert ("batch", True) in ends
        assert ("batch", False) not in ends


def test_a_schema_with_token_ids_would_be_found() -> None:
    """The check itself: an array of integers, however deep, is found."""
    wrong = Annotated[dict[str, list[np.ndarray[Any, np.dtype[np.int32]]]], {"more": Annotated[int, ("range", 0)]}]
    assert np.dtype(np.int32) in [dtype_of(kind) for _, kind in leaves(wrong)]


def test_a_users_own_edge_has_no_kind_and_is_called_by_its_name() -> None:
    graph = Options(program="docs/examples/gossip.py:build", task=["docs/examples/mine.py:task"]).request().graph
    kinds = {str(edge): kind_of(edge) for edge in graph.edges if edge.route is not None}
    assert None in kinds.values()
    assert message_of(Annotated[int, ("range", 0)]) is int
