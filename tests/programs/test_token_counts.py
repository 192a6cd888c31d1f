"""Tokens that a task counts in each batch: what a learner weighs, what a run trains, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest

from isthmus import At, Program, Tokens
from isthmus.programs.engine.request.batch_checks import tokens_mean
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.errors import ConfigError
from isthmus.testing import Kill
from tests.effort import soaked
from tests.programs.family import _batch, task

MOST = 16
LEARNERS = 3


def counted(at: At) -> Any:
    """A batch whose mask has 0 to 16 ones: none at every fourth position, and one alone in slot 0."""
    tokens = 0 if at.position % 4 == 3 else 1 if at.slot == 0 else 1 + (7 * at.position + 3 * at.slot) % MOST
    return {**_batch(at), "mask": np.arange(MOST) < tokens}


def ones(batch: Any) -> int:
    return int(batch["mask"].sum())


COUNTED = replace(task(optax.sgd(0.05)), batch=counted, tokens_per_batch=Tokens(ones, at_most=MOST))
SETTINGS: dict[str, dict[str, Any]] = {
    "decoupled-diloco": {"fragments": 2, "interval": 6},
    "streaming-diloco": {"fragments": 3, "interval": 6, "overlap": 1},
    "diloco": {"interval": 6},
    "data-parallel": {},
    "elastic-data-parallel": {},
}


def trained_by_hand(slot: int, steps: int) -> int:
    """The tokens of the first `steps` batches of a slot that have any."""
    counts = (ones(counted(At(0, slot, position))) for position in range(2 * steps))
    return sum([count for count in counts if count][:steps])


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "diloco",
        "data-parallel",
        soaked("decoupled-diloco"),
        soaked("streaming-diloco"),
        soaked("elastic-data-parallel"),
    ],
)
def test_every_program_ends_by_the_count_and_leaves_empty_batches_out(world: Worlds, name: str) -> None:
    result = world.run(Program(name, **SETTINGS[name]), task=COUNTED, learners=LEARNERS, steps=40)
    summary, budget = result.summary, 40 * LEARNERS * MOST
    assert summary["outcome"] == "done"
    assert budget <= summary["tokens_total"] < budget + 12 * LEARNERS * MOST
    for row in summary["per_learner"]:
        assert row["tokens"] == trained_by_hand(row["learner"], row["steps"])
    assert [each for each in summary["books"]["differences"] if each["kind"] != "merges"] == []
    for life in summary["books"]["lives"]:
        assert life["tokens_by_steps"] in (None, life["tokens_reported"])
    metrics = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["tokens"] == trained_by_hand(line["learner"], line["step"]) for line in metrics)
    assert metrics


@pytest.mark.soak
def test_a_learner_with_one_token_of_sixteen_weighs_accordingly(world: Worlds) -> None:
    def batch(at: At) -> Any:
        return {**_batch(at), "mask": np.arange(MOST) < (1 if at.slot == 0 else MOST)}

    folder = world.run("diloco", task=replace(COUNTED, batch=batch), learners=2, steps=60).folder
    merges = [json.loads(line) for line in (folder / "merges.jsonl").read_text().splitlines()]
    weights = [merge["weights"] for merge in merges if merge["kind"] == "merge" and merge["voters"] == [0, 1]]
    assert weights
    assert all(pair == pytest.approx([1 / 257, 256 / 257]) for pair in weights)  # Tokens, times tokens a step.


@pytest.mark.long
@pytest.mark.slow
def test_a_life_that_comes_back_begins_after_the_merged_batches_and_those_left_out(world: Worlds) -> None:
    faults = [Kill("learner/1", at=0.8)]
    result = world.run(
        Program("decoupled-diloco", fragments=2, interval=6), task=COUNTED, learners=LEARNERS, steps=80, faults=faults
    )
    assert result.slots[1].restarts == 1
    assert [each for each in result.summary["books"]["differences"] if each["kind"] != "merges"] == []
    assert result.summary["tokens_total"] >= 80 * LEARNERS * MOST


@pytest.mark.parametrize(
    ("count", "found"), [(lambda batch: 17, "17"), (lambda batch: -1, "-1"), (lambda batch: 1.0, "1.0"), (max, "y")]
)
def test_a_count_that_is_none_is_a_fault_of_the_task_before_the_start(count: Any, found: str) -> None:
    with pytest.raises(ConfigError, match="ount") as caught:
        tokens_mean(replace(COUNTED, tokens_per_batch=Tokens(count, at_most=MOST)), LEARNERS, 0)
    assert found in str(caught.value)


def test_a_task_all_of_whose_batches_are_empty_is_refused() -> None:
    with pytest.raises(ConfigError, match="a batch with tokens"):
        tokens_mean(replace(COUNTED, tokens_per_batch=Tokens(lambda batch: 0, at_most=MOST)), LEARNERS, 0)
