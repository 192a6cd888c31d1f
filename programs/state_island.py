"""The model of a loop in jax: the state, a tree of arrays that the loop passes on.

with isthmus.island(state, merge={"params/**": "rda", "**": "local"}) as island:
    state = island.state
    for batch in island(batches):
        state, loss = train_step(state, batch)
        state = island.step(state, loss=loss, tokens=n)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.island.announced import FrozenLeaves
from isthmus.ops.island.contract import Evaluating, SoleRank
from isthmus.ops.island.jax_loop import LoopState, StateEvaluation, StateLearner, read_later
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError, shortened

_MAKING: Final = "Making an island"


@final
class StateModel:
    """A tree of arrays (`LoopModel`)."""

    step_call = "island.step(state, loss=, tokens=)"

    def __init__(self, tree: Any, merge: tuple[tuple[str, str], ...]) -> None:
        """ConfigError unless it is a tree of arrays, with a rule for each."""
        self.merge, self.ranks = merge, SoleRank()
        try:
            self._state = LoopState(tree, merge)
        except TypeError as error:
            do = "Pass arrays alone: functions and settings stay outside, as by eqx.partition(model, eqx.is_array)."
            raise ConfigError(_MAKING, "a torch.nn.Module, or a tree of arrays", str(error), do) from error
        if not self._state.names:
            raise ConfigError(_MAKING, "a tree of arrays", "no array", "Pass the state that the loop's step takes.")
        self._frozen = FrozenLeaves(self._state.digests)

    def host(self, make: Callable[[], Any], *, make_learner: Callable[..., Any], judge: Evaluating | None) -> Any:
        return make()

    def leaves(self) -> list[ModelLeaf]:
        state = self._state
        return [
            ModelLeaf(name, tuple(leaf.shape), str(leaf.dtype), kind)
            for name, leaf, kind in zip(state.names, state.leaves, state.kinds, strict=True)
        ]

    def learner_bytes(self) -> int:
        state = self._state
        return state.size_bytes(range(len(state.leaves))) + state.size_bytes(state.merged)

    def frozen(self) -> Digests:
        return self._frozen.announced

    @property
    def state(self) -> Any:
        return self._state.tree

    def watch(self) -> None:
        """No-op: what a step changes is in the state that the loop passes."""

    def unwatch(self) -> None:
        """No-op."""

    def after(self, stepped: Any, loss: Any) -> Any:
        """`stepped` is the state. ConfigError if it has another form, if frozen leaves have changed, or if the loss is
        not one number."""
        doing = f"Calling {self.step_call}"
        try:
            self._state.take(stepped)
        except TypeError as error:
            do = "Pass the whole state that the step has returned."
            raise ConfigError(doing, "a state of the form with which the with began", str(error), do) from error
        if (change := self._frozen.after_step()) is not None:
            raise ConfigError(doing, change.expected, change.found, change.do)
        is_number = isinstance(loss, int | float) and not isinstance(loss, bool)
        if not is_number and (getattr(loss, "size", 0) != 1 or np.iscomplexobj(loss)):
            do = "Pass the loss of this step, by name: a scalar array, or a number."
            raise ConfigError(doing, "a loss that is one number", shortened(repr(loss), 60), do)
        return loss

    def stepped(self) -> Any:
        return self._state.tree

    def check_last(self) -> None:
        if (change := self._frozen.change()) is not None:
            raise ConfigError(f"Calling {self.step_call}", change.expected, change.found, change.do)

    def check_end(self) -> None:
        if (name := self._state.taken_away) is not None:
            do = "Call island.step with the state of every step that the loop makes, and end the loop behind it."
            doing = "Leaving the with of an island"
            raise ConfigError(doing, "the state that island.step has returned", f"{name!r} donated since", do)

    def fault_of_kept(self, kept: Sequence[Any]) -> str:
        return "a state: all of its leaves are kept"

    def read_later(self, scalar: Any) -> Any:
        return read_later(scalar)

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> StateLearner:
        return StateLearner(self._state, fragments, life=life, alpha=alpha)

    def evaluator(self, evaluate: Callable[[Any], Any], *, is_beside: bool) -> Evaluating:
        return StateEvaluation(self._state, evaluate, is_beside=is_beside)
