"""A shard that comes back, and what its learners make of it: whom it waits for, what is adopted, and what is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.bodies import Context, SmallTask, pull, update
from tests.ops.learner.test_inner_step import KEY, batch, drive, opened, reports, watch
from tests.ops.learner.test_inner_step import stepping as learner
from tests.ops.syncer.pacer_shard import ALL, SECOND, Shard, control, numbers, ready, stepping

HELD = [1] * 4
TRAINED = [[0, 1, 90], [1, 2, 80]]


def test_a_shard_that_comes_back_waits_for_everybody_who_has_trained() -> None:
    """Whoever is heard of first need not hold the newest version."""
    shard = Shard(**ALL)
    assert shard.fire(stepping(0, 90, epochs=HELD, totals=TRAINED)) == []
    both = shard.fire(stepping(1, 80, incarnation=2, epochs=HELD))
    assert numbers(both) == [(p, "recover", 1, [[0, 1], [1, 2]]) for p in range(4)]


def test_it_does_not_wait_for_long_for_somebody_who_may_be_dead() -> None:
    shard = Shard(**ALL)
    assert shard.fire(stepping(0, 90, epochs=HELD, totals=TRAINED)) == []
    shard.now += SECOND - 1
    assert shard.fire(control=control()) == []
    shard.now += 1
    found = shard.fire(control=control())
    assert numbers(found) == [(p, "recover", 1, [[0, 1]]) for p in range(4)]


def test_a_new_life_that_holds_nothing_is_not_waited_for_any_more() -> None:
    shard = Shard()
    assert shard.fire(stepping(0, 90, epochs=HELD, totals=TRAINED)) == []
    assert numbers(shard.fire(ready(1, 3)))[0] == (0, "recover", 1, [[0, 1]])


@pytest.mark.parametrize(("slot", "shards"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_a_shard_opens_rounds_of_its_own_fragments_only(slot: int, shards: int) -> None:
    shard = Shard(slot, shards=shards, **ALL)
    found = shard.fire(stepping(0, 90, epochs=HELD))
    assert [item["fragment"] for item in found] == list(range(slot, 4, shards))


def trained() -> tuple[Any, Any, Context]:
    """A learner that has made two steps on fragments that it holds as version (1, 0)."""
    task = SmallTask()
    body, parts, context = learner(task)
    for position in range(2):
        drive(body, batch=batch(task, position))
    return body, parts, context


def test_the_version_that_a_shard_goes_on_from_is_left_aside_by_whoever_holds_it() -> None:
    body, parts, _ = trained()
    drive(body, update={KEY: update(parts[0], 0, 0.5, kind="recover")})
    yielded, _ = drive(body, pull={KEY: pull(0, 9)})
    answer = yielded[0][1]
    assert (answer["begin"], answer["end"], answer["steps"]) == (0, 16, 2)
    assert not np.array_equal(answer["values"], answer["anchor"])


def test_it_is_adopted_by_whoever_holds_an_older_one_or_none() -> None:
    body, parts, context = trained()
    watch(context)
    drive(body, pull={KEY: pull(0, 9)})
    drive(body, update={KEY: update(parts[0], 7, 3.0, kind="recover")}, batch=batch(SmallTask(), 2))
    _, emitted = drive(body, batch=batch(SmallTask(), 3))  # A report is due every two steps.
    assert reports(emitted)[-1]["versions"][0] == [1, 7]
    assert reports(emitted)[-1]["delay_steps"] == 0  # How long the shard was away says nothing of a round trip.
    body, parts, _ = opened(SmallTask())
    drive(body, update={("syncer/0", part.index): update(part, 7, 3.0, kind="recover") for part in parts})
    assert not body.is_idle


def test_a_learner_that_comes_when_a_fragment_is_final_steps_no_more() -> None:
    body, parts, _ = opened(SmallTask())
    drive(body, update={KEY: update(parts[0], 9, 1.0, kind="final")})
    _, emitted = drive(body, update={("syncer/1", 1): update(parts[1], 8, 1.0)})
    assert body.is_idle
    assert (reports(emitted)[-1]["phase"], reports(emitted)[-1]["step"]) == ("final", 0)


def test_a_learner_that_was_left_out_of_the_end_steps_no_more() -> None:
    body, parts, _ = trained()
    _, emitted = drive(body, update={KEY: update(parts[0], 9, 1.0, kind="final")}, batch=batch(SmallTask(), 2))
    assert body.is_idle
    assert (reports(emitted)[-1]["phase"], reports(emitted)[-1]["step"]) == ("final", 2)
