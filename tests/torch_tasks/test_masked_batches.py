"""Batches with masked labels: what they count for, as docs/how-to/pytorch.md says it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isthmus import At
from isthmus.ops.data.batches import tokens_in
from isthmus.programs.engine.request.request import prepare
from isthmus.torch import Task

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pytorch.md"
SEQUENCES, CONTEXT = 4, 8


def batch(at: At) -> dict[str, Any]:
    """Sequences that are padded behind 1 to 8 tokens, of which the first half is a prompt."""
    rng = at.rng()
    lengths = rng.integers(1, CONTEXT + 1, size=(SEQUENCES, 1))
    ids, places = rng.integers(16, size=(SEQUENCES, CONTEXT)), np.arange(CONTEXT)
    labels = np.where((places < lengths) & (places >= lengths // 2), ids, -100)
    return {"input_ids": ids, "attention_mask": (places < lengths).astype(np.int64), "labels": labels}


def loss(module: torch.nn.Module, given: dict[str, Any]) -> torch.Tensor:
    scores, labels = module(given["input_ids"])[:, :-1], given["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def test_a_batch_counts_for_the_labels_that_are_predicted(tmp_path: Path) -> None:
    section = PAGE.read_text().split("## Masked and padded data")[1]
    names: dict[str, Any] = {"SEQUENCES": SEQUENCES, "CONTEXT": CONTEXT}
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], names)
    task = Task(
        lambda: torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)),
        loss,
        batch,
        tokens_per_batch=names["tokens_per_batch"],
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    )
    counts = [tokens_in(batch(At(0, 0, position)), task.tokens_per_batch, 0) for position in range(8)]
    terms = [sum(each >= 0 for row in batch(At(0, 0, i))["labels"] for each in row[1:]) for i in range(8)]
    assert counts == terms
    assert len(set(counts)) > 1
    prepared = prepare("decoupled-diloco", task, run={"tokens": 10_000, "learners": 2}, run_dir=tmp_path / "run")
    assert prepared.job.tokens_at_most == SEQUENCES * (CONTEXT - 1)
    assert min(counts) <= prepared.job.tokens_per_batch <= max(counts)  # About the mean, for what defaults follow.
