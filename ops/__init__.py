"""The operators: numerics and node bodies.

Names are imported when they are first used; no module that declares a body imports jax before a host opens it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from isthmus.ops.batches import Batches
    from isthmus.ops.evaluate import Evaluate, EvaluateMean
    from isthmus.ops.fragment import partition
    from isthmus.ops.fragment_send import FragmentSend
    from isthmus.ops.inner_step import InnerStep
    from isthmus.ops.merge import Merge
    from isthmus.ops.outer_step import OuterStep
    from isthmus.ops.pacer import Pacer
    from isthmus.ops.tree import tree_mean

__all__ = [
    "Batches",
    "Evaluate",
    "EvaluateMean",
    "FragmentSend",
    "InnerStep",
    "Merge",
    "OuterStep",
    "Pacer",
    "partition",
    "tree_mean",
]

_MODULES: Final = {
    "Batches": "batches",
    "Evaluate": "evaluate",
    "EvaluateMean": "evaluate",
    "FragmentSend": "fragment_send",
    "InnerStep": "inner_step",
    "Merge": "merge",
    "OuterStep": "outer_step",
    "Pacer": "pacer",
    "partition": "fragment",
    "tree_mean": "tree",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
