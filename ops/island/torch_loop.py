"""The device side of inner-step for a loop of the user's own in PyTorch, which makes the steps itself.

The module, the optimizer and the random numbers are the user's; what is exchanged is what they have made of the
parameters between two boundaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.life import LearnerLife, lower_priority
from isthmus.ops.island.torch_model import Model, OptimizerState
from isthmus.ops.island.torch_state import PendingScalar, TorchState


@final
class LoopLearner(TorchState):
    """The state of a loop's module and optimizer (`SoleLearning`, `LoopLearning`).

    `progress` is that of the step that may be made now.
    """

    def __init__(
        self, model: Model, moments: OptimizerState, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float
    ) -> None:
        lower_priority()  # As of every learner: messages of this process go before its steps.
        super().__init__(model, moments, fragments, life=life, alpha=alpha)
        self._may_step = False
        self._tokens, self._scalars = 0, dict[str, Any]()
        self.progress = 0.0

    def begin(self) -> None:
        """No-op: the first values are those that the module has had since before the first boundary."""

    def restart(self) -> None:
        """Forget the moments, but for those that the user's optimizer has begun with, and the module's local leaves."""
        if self._may_step:
            self._restart_module()
            self._moments.begin()

    # -- the user's step -----------------------------------------------------------------------------------------------

    def open_step(self, progress: float) -> None:
        """Let the user's code make a step, at this share of the budget."""
        self._may_step, self.progress = True, progress
        self._tokens, self._scalars = 0, {}

    def record(self, tokens: int, scalars: Mapping[str, Any]) -> None:
        """Take the tokens and the scalars, 'loss' among them, of the step that was made; tensors may be on a device."""
        self._tokens = tokens
        self._scalars = {name: _read_later(value) for name, value in scalars.items()}

    def made_tokens(self) -> int:
        """The tokens of the step that was made; 0 where none was."""
        return self._tokens

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        """The scalars of the step that was made."""
        self._step_number += 1
        return self._scalars


def _read_later(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return float(value)
    detached = value.detach()
    return float(detached) if detached.device.type == "cpu" else PendingScalar(detached)
