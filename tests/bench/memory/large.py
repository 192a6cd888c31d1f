"""gpt-124m, and a smaller one, with short contexts and one batch of evaluation: memory is that of the parameters."""

from __future__ import annotations

from typing import Any

from isthmus import Task
from isthmus.programs.language_model import task


def _short(**settings: Any) -> Task:
    shipped = task(context=128, batch=1, lr=0.0006, tied=True, dtype="bfloat16", optimizer="adamw", **settings)
    return Task(
        init=shipped.init,
        loss=shipped.loss,
        batch=shipped.batch,
        optimizer=shipped.optimizer,
        merge=shipped.merge,
        tokens_per_batch=shipped.tokens_per_batch,
        evaluation=1,
    )


GPT_124M = _short(layers=12, width=768, heads=12, vocabulary=50304)
GPT_20M = _short(layers=8, width=384, heads=6, vocabulary=16384)
GPT_34M = _short(layers=8, width=512, heads=8, vocabulary=16384)
"""Of the same shape, for trials."""
IDLE = _short(layers=1, width=32, heads=2, vocabulary=256)
"""So small that a host takes what it takes without a model."""
