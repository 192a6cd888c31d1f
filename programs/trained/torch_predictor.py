"""A model of transformers as a predictor: losses, and text by its own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
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
            prompt = torch.from_numpy(recent.astype(np.int64))[None]
            with closing(modules.generated(self._module, prompt, now, temperature, self._ends)) as written:
                for token in written:
                    if token in self._ends:
                        return
                    more = np.array([token], np.int32)
                    yield more
                    ids, count = np.concatenate([ids, more]), count - 1
