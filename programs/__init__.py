"""The programs: one short file per graph that can be trained.

Names are imported when they are first used, so that importing this package imports no jax.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from isthmus.programs.program import Program, decoupled_diloco
    from isthmus.programs.task import At, Task
    from isthmus.programs.training import Result, train

__all__ = ["At", "Program", "Result", "Task", "decoupled_diloco", "train"]

_MODULES: Final = {
    "At": "task",
    "Program": "program",
    "Result": "training",
    "Task": "task",
    "decoupled_diloco": "program",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
