"""The operators: numerics and node bodies.

Names are imported when they are first used; no module that declares a body imports jax before a host opens it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from isthmus.ops.data.batches_node import Batches
    from isthmus.ops.exchange.fragments import partition
    from isthmus.ops.exchange.parameter_trees import tree_mean
    from isthmus.ops.island.evaluate import Evaluate, EvaluateMean
    from isthmus.ops.learner.fragment_send import FragmentSend
    from isthmus.ops.learner.inner_step import InnerStep
    from isthmus.ops.syncer.merge import Merge
    from isthmus.ops.syncer.outer_step import OuterStep
    from isthmus.ops.syncer.pacer import Pacer

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
    "Batches": "data.batches_node",
    "Evaluate": "island.evaluate",
    "EvaluateMean": "island.evaluate",
    "FragmentSend": "learner.fragment_send",
    "InnerStep": "learner.inner_step",
    "Merge": "syncer.merge",
    "OuterStep": "syncer.outer_step",
    "Pacer": "syncer.pacer",
    "partition": "exchange.fragments",
    "tree_mean": "exchange.parameter_trees",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
