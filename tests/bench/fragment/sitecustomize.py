"""Tells what each host of a run does with fragments: on PYTHONPATH, every process of a run imports this by itself.

Each call of the runtime's own functions is a line of FRAGMENT_FOLDER/HOST-PID.jsonl: which stage, when it ended (as a
wall clock has it) and how many seconds it took, of which version, and a digest of the values; what it takes to make the
digest is in no stage. Beside it the most memory that the host has had.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _tell(stage: str, seconds: float, **more: Any) -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    host = threading.current_thread().name.split(":")[0].replace("/", "-")
    line = {"stage": stage, "at": time.time(), "seconds": seconds, "peak": peak, "host": host, **more}
    with Path(os.environ["FRAGMENT_FOLDER"], f"{host}-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _digest(values: Any) -> str:
    import numpy as np
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(np.ascontiguousarray(np.asarray(values)).view(np.uint8).data))


def _told(stage: str, more: Callable[..., dict[str, Any]]) -> Callable[[Any], Any]:
    def around(function: Any) -> Any:
        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            result = function(*given, **named)
            _tell(stage, time.perf_counter() - begun, **more(result, *given, **named))
            return result

        return timed

    return around


def _adopted(result: Any, learner: Any, fragment: int, values: Any) -> dict[str, Any]:
    from isthmus.ops.learner.outer_gradient import as_held

    expected = as_held(values, learner._functions.fragments[fragment].fragment)
    held = learner.extract.__wrapped__(learner, fragment)
    return {"fragment": fragment, "given": _digest(values), "expected": _digest(expected), "held": _digest(held)}


def _published(result: Any, outer: Any, gradient: Any, *_: Any, **__: Any) -> dict[str, Any]:
    p = gradient["fragment"]
    version = gradient["version"] if "update" in result else None
    digest = None if version is None else _digest(outer._published(p))
    return {"fragment": p, "version": version, "kind": gradient["kind"], "digest": digest}


def _merged(result: Any, merge: Any, round: Any, answer: Any, *_: Any, **__: Any) -> dict[str, Any]:
    sizes = [vote["gradient"].nbytes + getattr(vote.get("scales"), "nbytes", 0) for vote in answer.values()]
    return {"kind": round["kind"], "fragment": round["fragment"], "answers": len(sizes), "bytes": sum(sizes)}


def _answered(result: Any, *_: Any) -> dict[str, Any]:
    size = result["gradient"].nbytes + getattr(result.get("scales"), "nbytes", 0)
    return {"kind": result["kind"], "fragment": result["fragment"], "bytes": size}


_PATCHES: dict[str, list[tuple[str, str, str, Callable[..., dict[str, Any]]]]] = {
    "isthmus.ops.island.jax_learner": [
        ("Learner", "extract", "extract", lambda result, learner, p: {"fragment": p}),
        ("Learner", "adopt", "adopt", _adopted),
        ("Learner", "replace", "adopt", _adopted),
        ("Learner", "step", "step", lambda *_: {}),
    ],
    "isthmus.ops.learner.fragment_send": [("FragmentSend", "_answer", "answer", _answered)],
    "isthmus.ops.learner.receive": [("Receive", "_follow", "decode", lambda result, body, p: {"did": bool(result)})],
    "isthmus.ops.syncer.merge": [("Merge", "__call__", "merge", _merged)],
    "isthmus.ops.syncer.outer_step": [("OuterStep", "__call__", "outer step", _published)],
}


class _Patcher(importlib.abc.MetaPathFinder):
    """Wraps functions of modules when they are first imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The spec of a module that is to be changed."""
        if name not in _PATCHES:
            return None
        patches = _PATCHES.pop(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for owner, function, stage, more in patches:
                held = getattr(module, owner)
                setattr(held, function, _told(stage, more)(getattr(held, function)))

        loader.exec_module = exec_module
        return spec


if "FRAGMENT_FOLDER" in os.environ:
    sys.meta_path.insert(0, _Patcher())
