"""The shipped AdamW in PyTorch: what `ops.island.optimizer.adamw` computes, as an optimizer of torch."""

from __future__ import annotations

from typing import Any, final

import torch

from isthmus.ops.island.schedule import BETA_1, BETA_2, EPSILON


@final
class ClippedAdamW(torch.optim.AdamW):  # type: ignore[misc]  # Without torch it is Any.
    """AdamW with betas (0.9, 0.95) and eps 1e-8, with decay on matrices only, of a module's parameters that train.

    The gradient's global norm is clipped at `clip` in each step. The learning rate stays `peak`: who calls it lets the
    groups follow a schedule.
    """

    def __init__(self, module: Any, *, peak: float, weight_decay: float, clip: float) -> None:
        trained = [each for each in module.parameters() if each.requires_grad]
        groups = [
            {"params": [each for each in trained if each.dim() >= 2], "weight_decay": weight_decay},
            {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
        ]
        super().__init__([group for group in groups if group["params"]], peak, (BETA_1, BETA_2), EPSILON)
        self._clip = clip

    def step(self, closure: Any = None) -> Any:
        """Clip the gradients, where they lie, and make a step."""
        gradients = [each.grad for group in self.param_groups for each in group["params"] if each.grad is not None]
        if gradients:
            norm = torch.nn.utils.get_total_norm(gradients)
            torch._foreach_mul_(gradients, torch.clamp(self._clip / norm, max=1.0))
        return super().step(closure)
