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
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

PART_SIZE: Final = 1 << 22
"""Values that a digest reads at a time."""


def _tell(stage: str, seconds: float, **more: Any) -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    host = threading.current_thread().name.split(":")[0].replace("/", "-")
    line = {"stage": stage, "at": time.time(), "seconds": seconds, "peak": peak, "host": host, **more}
    with Path(os.environ["FRAGMENT_FOLDER"], f"{host}-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _digest(parts: Iterable[Any]) -> str:
    """The digest of float32 values that come in parts."""
    import numpy as np
    import xxhash

    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(np.ascontiguousarray(part).view(np.uint8).data)
    return str(hasher.hexdigest())


def _rounded(values: Any, fragment: Any) -> Iterator[Any]:
    """A payload in parts, each rounded to the dtype in which its leaf is trained."""
    import ml_dtypes
    import numpy as np

    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        dtype = np.dtype(getattr(ml_dtypes, unit.dtype, unit.dtype))
        for at in range(begin, end, PART_SIZE):
            yield values[at : min(at + PART_SIZE, end)].astype(dtype, copy=False).astype(np.float32, copy=False)


def _held(learner: Any, fragment: Any) -> Iterator[Any]:
    """What a learner holds of a fragment, in parts of some rows: a copy of it whole would be memory of this bench."""
    import jax
    import numpy as np

    for unit in fragment.units:
        leaf = learner._leaves[learner._functions.names.index(unit.tensor)]
        rows = max(PART_SIZE // math.prod(leaf.shape[1:]), 1)
        for at in range(unit.start, unit.stop, rows):
            some = jax.lax.dynamic_slice_in_dim(leaf, at, min(rows, unit.stop - at))
            yield np.asarray(some).astype(np.float32, copy=False)


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


def _adopted(result: Any, learner: Any, p: int, values: Any) -> dict[str, Any]:
    fragment = learner._functions.fragments[p].fragment
    expected, held = _digest(_rounded(values, fragment)), _digest(_held(learner, fragment))
    return {"fragment": p, "given": _digest([values]), "expected": expected, "held": held}


def _published(result: Any, outer: Any, gradient: Any, *_: Any, **__: Any) -> dict[str, Any]:
    p = gradient["fragment"]
    version = gradient["version"] if "update" in result else None
    digest = None if version is None else _digest([outer._published(p)])
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
