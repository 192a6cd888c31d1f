"""The programs: one short file per graph that can be trained.

Names are imported when they are first used, so that importing this package imports no jax.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from isthmus.ops.data.batches import LoaderStream, Stream
    from isthmus.programs.engine.request.request import Program, decoupled_diloco
    from isthmus.programs.task import At, Task
    from isthmus.programs.trained import load
    from isthmus.programs.training import Result, train

__all__ = ["At", "LoaderStream", "Program", "Result", "Stream", "Task", "decoupled_diloco", "load", "train"]

_MODULES: Final = {
    "At": "programs.task",
    "LoaderStream": "ops.data.batches",
    "Program": "programs.engine.request.request",
    "Result": "programs.training",
    "Stream": "ops.data.batches",
    "Task": "programs.task",
    "decoupled_diloco": "programs.engine.request.request",
    "load": "programs.trained",
    "train": "programs.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"isthmus.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
