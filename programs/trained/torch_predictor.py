"""A model of transformers as a predictor: losses, and text by its own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from isthmus.programs.model_folders import modules
from isthmus.programs.model_folders.tokens import Ids


@final
class TorchPredictor:
    """A module in float32, which evaluates; `ends` are the tokens that end a text (`Predictor`).

    `context`: the most tokens that it sees, None where nothing bounds them.
    """

    def __init__(self, module: Any, context: int | None, ends: tuple[int, ...]) -> None:
        self._module, self._context, self._ends = module, context, ends

    def token_losses(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        with torch.no_grad():
            losses = modules.token_losses(self._module, torch.from_numpy(tokens.astype(np.int64)), "float32")
        return losses.double().numpy()  # type: ignore[no-any-return]

    def continued(self, ids: Ids, count: int, temperature: float, seed: int) -> Iterator[Ids]:
        torch.manual_seed(seed)
        while count > 0:
            context = self._context or len(ids) + count
            recent = ids if len(ids) < context else ids[-max(context // 2, 1) :]
            now = min(count, context - len(recent))
            more = self._written(recent, now, temperature)
            ends = np.flatnonzero(np.isin(more, self._ends))
            if len(ends):
                yield more[: ends[0]]
                return
            yield more
            ids, count = np.concatenate([ids, more]), count - len(more)

    def _written(self, ids: Ids, count: int, temperature: float) -> Ids:
        """The next `count` tokens, or fewer with one that ends the text; what the folder says of sampling does not
        count."""
        written = modules.generated(
            self._module, torch.from_numpy(ids.astype(np.int64))[None], count, temperature, self._ends
        )
        return written[0, len(ids) :].numpy().astype(np.int32)  # type: ignore[no-any-return]
