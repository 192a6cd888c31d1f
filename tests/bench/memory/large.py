"""gpt-124m with short contexts and one batch of evaluation: its memory is that of its parameters."""

from __future__ import annotations

from isthmus.programs import Task
from isthmus.programs.language_model import task

_SHIPPED = task(
    layers=12, width=768, heads=12, context=128, batch=1, lr=0.0006, tied=True, dtype="bfloat16", vocabulary=50304
)
GPT_124M = Task(
    init=_SHIPPED.init,
    loss=_SHIPPED.loss,
    batch=_SHIPPED.batch,
    optimizer=_SHIPPED.optimizer,
    merge=_SHIPPED.merge,
    tokens_per_batch=_SHIPPED.tokens_per_batch,
    evaluation=1,
)
