"""A shard that comes back, and what its learners make of it: whom it waits for, what is adopted, and what is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.recovery.hold import NEIGHBOUR, ShardMemory
from isthmus.ops.syncer.pacer import COPY_WAIT
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context, SmallTask, pull, update
from tests.ops.learner.test_inner_step import KEY, batch, drive, opened, reports, watch
from tests.ops.learner.test_inner_step import stepping as learner
from tests.ops.syncer.pacer_shard import ALL, SECOND, Shard, control, holding, numbers, ready, stepping, told

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


# -- what a neighbour holds --------------------------------------------------------------------------------------------


def near(*fragments, life=2, count=7):
    """What the neighbour of shard 0 says that it holds of it, and gives its life."""
    given = [[p, 1, count, "", []] for p in fragments]
    held = holding((NEIGHBOUR, fragments), life=life, given=given)[Replica(NEIGHBOUR, 0), NEIGHBOUR]
    return {(Replica("syncer", 1), NEIGHBOUR): {**held, "owner": 0}}


class Neighboured(Shard):
    """Shard 0 of two, beside which the other lives, or not."""

    def __init__(self, **settings):
        self.has_neighbour = True
        super().__init__(shards=2, incarnation=2, **(ALL | settings))

    def members(self):
        return frozenset([Member(Replica("syncer", 1), 1)] if self.has_neighbour else [])

    def hear(self, *reports, held=None):
        inputs = {"progress": {(Replica("learner", each["slot"]), i): each for i, each in enumerate(reports)}}
        inputs |= {"control": {(Replica("recorder", 0), None): control([0, 1, 7], [2, 1, 7])}}
        emitted = self.pacer(**inputs, **({} if held is None else {"held": held}))
        return [item for port, item in emitted or [] if port == "round"]


def test_what_only_the_neighbour_holds_is_begun_with_without_learners() -> None:
    shard = Neighboured()
    assert shard.hear(ready(0, 3)) == []
    opened = shard.hear(ready(0, 3), held=near(0, 2))
    assert [(each["fragment"], each["kind"], each["members"], each["given"]) for each in opened] == [
        (0, "recover", [], [1, 7]),
        (2, "recover", [], [1, 7]),
    ]


def test_its_neighbour_is_waited_for_before_learners_are_asked_and_for_a_second() -> None:
    asked = [(0, "recover", 1, [[0, 1]]), (2, "recover", 1, [[0, 1]])]
    shard, alone = Neighboured(), Neighboured()
    holder = stepping(0, 9, epochs=[1] * 4)
    assert shard.hear(holder) == alone.hear(holder) == []
    assert numbers(shard.hear(holder, held=near(0, 2))) == asked
    alone.now += SECOND
    silent = alone.hear(holder)
    assert numbers(silent) == asked
    assert not any("given" in each for each in silent)
    dead = Neighboured()
    dead.has_neighbour = False
    assert numbers(dead.hear(holder)) == asked


def test_what_it_said_for_a_former_life_or_before_it_died_is_not_waited_for() -> None:
    holder = stepping(0, 9, epochs=[1] * 4)
    early, gone = Neighboured(), Neighboured()
    early.hear(holder, held=near(0, 2, life=1))
    early.now += SECOND
    assert not any("given" in each for each in early.hear(holder))
    gone.has_neighbour = False
    assert not any("given" in each for each in gone.hear(holder, held=near(0, 2)))


def test_a_copy_that_never_comes_is_given_up() -> None:
    shard, holder = Neighboured(), stepping(0, 9, epochs=[1] * 4)
    opened = shard.hear(holder, held=near(0, 2))
    assert all("given" in each for each in opened)

    def failed(rounds):
        merged = {("syncer/0", each["fragment"]): {**told(each, shard.now), "version": None} for each in rounds}
        return [item for port, item in shard.pacer(merged=merged) or [] if port == "round"]

    assert failed(opened) == [], "learners need not send it again and again"
    shard.now += SECOND
    again = shard.hear(holder)
    assert [(each["fragment"], each["given"]) for each in again] == [(0, [1, 7]), (2, [1, 7])]
    shard.now += COPY_WAIT
    last = failed(again)
    assert [each["fragment"] for each in last] == [0, 2]
    assert not any("given" in each for each in last)


def test_first_versions_at_the_neighbour_are_kept() -> None:
    shard = Neighboured()
    memory, context = ShardMemory(neighbours=2), shard.pacer._context
    assert not memory.is_kept([0, 2], context)
    memory.add_holders(near(0, 2))
    assert memory.is_kept([0, 2], context)
