"""The books of a whole run in virtual time, beside counts of its own: those of the tapes, and of what crossed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from isthmus import Program, Task
from isthmus.ops.exchange.token_accounts import FATES
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.programs.wings.simulation.taped_tokens import contradictions, of_lives, taped_of
from isthmus.runtime.sim.faults import Blackout, Cut, Kill
from tests.programs.wings.simulation.test_world import LINEAR

PROGRAM = Program("decoupled-diloco", fragments=2, interval=8)


@pytest.fixture(scope="module")
def linear() -> Task:
    names: dict[str, Task] = {}
    exec(LINEAR, names)
    return names["task"]


@pytest.mark.long
@pytest.mark.slow
def test_the_books_are_what_the_tapes_say_whatever_dies(world: Worlds, linear: Task) -> None:
    faults = [
        Kill("learner/1", at_step=40),
        Kill("recorder/0", at=1.9),
        Cut("learner-2", at=2.0, seconds=1.5),
        Kill("syncer/0", at=2.6),
        Kill("recorder/0", at=3.1),
        Blackout("learner-0", at=3.4, seconds=1.0),
        Kill("recorder/0", at_phase="final"),
    ]
    result = world.run(PROGRAM, task=linear, learners=4, steps=300, faults=faults)
    assert result.faults == {"kill": 5, "cut": 1, "blackout": 1}
    assert_sound(result, linear)


@pytest.mark.slow
def test_the_books_of_a_calm_run_are_what_the_tape_says_to_the_token(world: Worlds, linear: Task) -> None:
    result = world.run(PROGRAM, task=linear, learners=2, steps=60)
    assert_sound(result, linear)
    assert result.summary["tokens_pending"] == 0


@pytest.mark.slow
def test_of_merges_that_follow_faster_than_the_recorder_looks_every_one_has_a_line(world: Worlds, linear: Task) -> None:
    """With steps of a millisecond a fragment is merged every 8 ms, and the recorder looks every 100 ms."""
    result = world.run(PROGRAM, task=linear, learners=2, steps=400, step_ms=1.0, delay_ms=0.1)
    assert result.summary["books"]["differences"] == []
    merges = [line for line in lines_of(result) if line["kind"] == "merge" and line["version"] is not None]
    assert len(merges) == result.summary["outer_steps"] > 20
    for fragment in range(2):
        counts = [line["version"][1] for line in merges if line["fragment"] == fragment]
        assert counts == list(range(1, len(counts) + 1))


@pytest.mark.slow
def test_what_the_books_lack_is_told(world: Worlds, linear: Task) -> None:
    result = world.run(PROGRAM, task=linear, learners=2, steps=40)
    summary, lines = result.summary, lines_of(result)
    assert said_otherwise(result, linear, lines) == []
    summary["books"]["lives"][1]["steps"] += 1
    [entry] = [each for each in summary["books"]["fragments"] if each["fragment"] and each["learner"]]
    entry["shard_merged"] -= 64
    summary["outer_steps"] += 1
    lines[-1]["merged_tokens"][0][2] += 64
    told = said_otherwise(result, linear, lines)
    assert [each.partition(":")[0] for each in told] == [
        "learner 1#1",
        f"fragment {lines[-1]['fragment']}, epoch 1, round {lines[-1]['round']}",
        "fragment 1 of learner 1#1",
        f"{summary['outer_steps']} merges in the books, {summary['outer_steps'] - 1} on the tapes of the shards",
    ]


def said_otherwise(result: WorldResult, task: Task, merges: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tapes and books contradict each other in."""
    return contradictions(taped_of(prepare(PROGRAM, task).plans, of_lives(result.tapes)), result.summary, merges)


def lines_of(result: WorldResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.folder / "merges.jsonl").read_text().splitlines()]


def assert_sound(result: WorldResult, task: Task) -> None:
    """Nothing contradicts anything, tapes included; of a life that ended no more is known than its tape has; and all
    that is known is in the accounts, to the token."""
    summary, books = result.summary, result.summary["books"]
    assert books["differences"] == []
    assert said_otherwise(result, task, lines_of(result)) == []
    steps = taped_of(prepare(PROGRAM, task).plans, of_lives(result.tapes)).steps
    lives = {(life["learner"], life["incarnation"]): life for life in books["lives"]}
    assert sum(not life["has_ended"] for life in lives.values()) == summary["learners"]
    for name, life in lives.items():
        missing = steps[name] - life["tokens_known"] / task.tokens_mean(1)
        assert missing >= 0 if life["has_ended"] else missing == 0, (name, life)
    for account in summary["fragment_accounts"]:
        assert min(account.values()) >= 0
        assert sum(account[part] for part in FATES) == account["trained"] == summary["tokens_total"]
    assert summary["tokens_total"] == sum(life["tokens_known"] for life in lives.values())
