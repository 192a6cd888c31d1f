"""The hold node, fed by hand: what it keeps, what it says of it, when it gives copies and when it takes them back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.messages import copied, is_withdrawn, withdrawn
from isthmus.ops.learner.lock_step import StepGate
from isthmus.ops.recovery.hold import Hold, digest_of
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update
from tests.ops.learner.test_inner_step import KEY, batch, drive, opened, stepping
from tests.ops.learner.test_lock_step import turn

PARTS = fragments_of(SmallTask(), 2)


def published(fragment: int, epoch: int, count: int, *, kind: str = "merge") -> dict[str, Any]:
    return {**update(PARTS[fragment], count, 10.0 * epoch + count, kind=kind), "version": [epoch, count]}


class Holder:
    """A hold node in the recorder's host; fragment p is of shard p mod `shards`."""

    def __init__(self, shards: int = 1) -> None:
        self.hold = Hold(role="syncer", shards=shards)
        self.context = Context("recorder")
        self.hold.open(self.context)

    def lives(self, *lives: int) -> None:
        """Which lives of the shards are there, 0 for none; a learner is, too."""
        shards = {Member(Replica("syncer", slot), life) for slot, life in enumerate(lives) if life}
        self.context.live = {*shards, Member(Replica("learner", 0), 9)}

    def fire(self, *updates: dict[str, Any]) -> tuple[dict[int, Any], Any]:
        """The copies by fragment, and what is said to be held, if that is news."""
        arrived = {(Replica("syncer", 0), item["fragment"]): item for item in updates}
        emitted = self.hold(update=arrived) if arrived else self.hold()
        assert emitted is None or emitted
        copies = {item["fragment"]: item for port, item in emitted or [] if port == "copy"}
        told = [item for port, item in emitted or [] if port == "held"]
        assert len(told) <= 1
        assert len(copies) + len(told) == len(emitted or [])
        return copies, told[0] if told else None


# -- what is held ------------------------------------------------------------------------------------------------------


def test_it_says_at_once_that_it_holds_nothing_and_then_only_what_is_news() -> None:
    holder = Holder()
    nothing = {
        "holder": "recorder",
        "fragments": [],
        "merged": [],
        "saved": [],
        "lives": [],
        "given": [],
        "totals": [],
        "faults": [],
        "error": None,
        "store": None,
    }
    assert holder.fire() == ({}, nothing)
    assert holder.fire() == ({}, None)
    assert holder.fire(published(1, 1, 0, kind="initial"))[1] == {**nothing, "fragments": [1]}
    assert holder.fire(published(1, 1, 1))[1] == {**nothing, "fragments": [1], "merged": [1]}
    assert holder.fire(published(1, 1, 2)) == ({}, None)
    assert holder.fire(published(0, 1, 1))[1] == {**nothing, "fragments": [0, 1], "merged": [0, 1]}


def test_a_new_life_of_a_shard_is_told_the_digests_of_what_its_former_life_published() -> None:
    holder = Holder()
    holder.lives(1)
    item = published(0, 1, 3)
    assert holder.fire(item)[1]["given"] == []
    holder.lives(2)
    told = holder.fire()[1]
    assert told["lives"] == [[0, 2]]
    assert told["given"] == [[0, 1, 3, digest_of(item["values"], item["clock"], item["positions"]), []]]
    assert holder.fire(published(0, 2, 4))[1]["given"] == []


def test_no_copies_are_given_in_the_life_that_published() -> None:
    holder = Holder()
    holder.lives(1)
    assert holder.fire(published(0, 1, 3), published(1, 1, 2))[0] == {}
    holder.lives(0)
    assert holder.fire()[0] == {}, "nobody could ask the learners for it"


# -- copies ------------------------------------------------------------------------------------------------------------


def test_copies_are_given_once_when_the_next_life_is_there_and_withdrawn_when_it_has_published() -> None:
    holder = Holder()
    holder.lives(1)
    holder.fire(published(0, 1, 3), published(1, 1, 2))
    holder.lives(2)
    copies, _ = holder.fire()
    assert {p: (copy["kind"], copy["version"]) for p, copy in copies.items()} == {
        0: ("copy", [1, 3]),
        1: ("copy", [1, 2]),
    }
    np.testing.assert_array_equal(copies[0]["values"], published(0, 1, 3)["values"])
    assert holder.fire() == ({}, None)
    recovered = published(0, 1, 3, kind="recover")
    assert holder.fire(recovered)[0] == {}, "it is of the former life still"
    copies, _ = holder.fire(published(0, 2, 4))
    assert copies.keys() == {0}
    assert is_withdrawn(copies[0])
    assert holder.fire(published(0, 2, 5)) == ({}, None)


def test_copies_are_given_again_to_another_life_that_finds_nothing() -> None:
    holder = Holder()
    holder.fire(published(0, 1, 3))
    for life in (2, 3, 7):
        holder.lives(life)
        assert holder.fire()[0][0]["version"] == [1, 3]
        assert holder.fire()[0] == {}
    assert is_withdrawn(holder.fire(published(0, 7, 4))[0][0])


def test_a_first_version_is_copied_too() -> None:
    """Beside it there may be fragments that were merged."""
    holder = Holder()
    holder.fire(published(0, 1, 0, kind="initial"))
    holder.lives(2)
    assert holder.fire()[0][0]["version"] == [1, 0]


def test_a_copy_of_what_is_final_is_final() -> None:
    holder = Holder()
    holder.fire(published(0, 1, 8, kind="final"))
    holder.lives(2)
    assert holder.fire()[0][0]["kind"] == "final"


@pytest.mark.parametrize("life", [0, 1])
def test_each_shard_is_a_matter_of_its_own(life: int) -> None:
    holder = Holder(shards=2)
    holder.lives(1, 1)
    holder.fire(published(0, 1, 3), published(1, 1, 3))
    holder.lives(life, 2)
    assert holder.fire()[0].keys() == {1}


def test_a_holder_that_begins_when_the_shard_has_come_back_gives_what_it_hears_of_the_former_life() -> None:
    holder = Holder()
    holder.lives(3)
    assert holder.fire(published(0, 2, 9))[0][0]["version"] == [2, 9]


def test_what_is_older_does_not_take_the_place_of_what_is_newer() -> None:
    holder = Holder()
    holder.fire(published(0, 1, 5))
    holder.fire(published(0, 1, 4))
    holder.lives(2)
    assert holder.fire(published(0, 1, 3, kind="recover"))[0][0]["version"] == [1, 5]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("life"), st.integers(1, 4)),
        st.tuples(st.just("update"), st.tuples(st.integers(1, 4), st.integers(0, 5))),
    ),
    max_size=30,
)


@given(EVENTS)
def test_a_copy_stands_exactly_as_long_as_the_shards_life_is_newer_than_what_is_held(events: list[Any]) -> None:
    holder, newest, life, standing = Holder(), [0, 0], 0, False
    for kind, what in events:
        if kind == "life":
            life = max(life, what)
            holder.lives(life)
            copies, _ = holder.fire()
        elif what[0] <= max(life, 1):  # Nobody publishes in a life that has not begun.
            newest = max(newest, [*what])
            copies, _ = holder.fire(published(0, *what))
        else:
            continue
        if copies:
            standing = not is_withdrawn(copies[0])
            assert not standing or copies[0]["version"] == newest
        assert standing == (newest > [0, 0] and 0 < newest[0] < life)


# -- what a learner makes of a copy ------------------------------------------------------------------------------------


def copy_of(fragment: int, count: int, values: float = 3.0, *, kind: str = "merge") -> Any:
    return copied(update(PARTS[fragment], count, values, kind=kind))


def test_a_learner_without_a_model_adopts_copies_and_steps() -> None:
    task = SmallTask()
    body, parts, _ = opened(task)
    drive(body, update={KEY: copied(update(parts[0], 4, 1.0))})
    assert body.is_idle
    drive(body, update={KEY: copied(update(parts[1], 4, 1.0))})
    assert not body.is_idle
    drive(body, batch=batch(task, 0))
    yielded, _ = drive(body, pull={KEY: pull(0, 9)})
    assert (yielded[0][1]["base"], yielded[0][1]["steps"]) == ([1, 4], 1)


@pytest.mark.parametrize(("count", "steps"), [(0, 2), (4, 1)])
def test_a_learner_that_holds_a_version_adopts_only_what_is_newer(count: int, steps: int) -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    drive(body, batch=batch(task, 0))
    drive(body, update={KEY: copied(update(parts[0], count, 3.0))}, batch=batch(task, 1))
    yielded, _ = drive(body, pull={KEY: pull(0, 9)})
    answer = yielded[0][1]
    assert (answer["base"], answer["steps"]) == ([1, count], steps), "the work on what it holds is kept"


def test_a_withdrawn_copy_is_nothing_to_anybody() -> None:
    task = SmallTask()
    for body, _, _ in (opened(task), stepping(task)):
        is_idle = body.is_idle
        for p in range(2):
            drive(body, update={KEY: withdrawn(p)})
        assert body.is_idle == is_idle
    body, parts, _ = opened(task)
    drive(body, update={("recorder/0", 0): withdrawn(0), ("syncer/0", 0): update(parts[0], 0, 1.0)})
    drive(body, update={("recorder/0", 1): withdrawn(1), ("syncer/0", 1): update(parts[1], 0, 1.0)})
    assert not body.is_idle


def test_a_copy_of_what_is_final_ends_a_learner() -> None:
    body, parts, _ = opened(SmallTask())
    drive(body, update={KEY: copied(update(parts[0], 9, 1.0, kind="final"))})
    drive(body, update={KEY: copied(update(parts[1], 8, 1.0))})
    assert (body.phase, body.is_idle) == ("final", True)


# -- what a gate makes of a copy ---------------------------------------------------------------------------------------


def gate_of(fragments: int = 2) -> StepGate:
    gate = StepGate(fragments=fragments, overlap=0, free=0)
    gate.open(Context())
    return gate


def test_a_gate_passes_copies_on_as_long_as_its_learner_holds_no_model() -> None:
    gate = gate_of()
    assert [port for port, _ in gate(update={KEY: copy_of(0, 4)})] == ["update"]
    assert [port for port, _ in gate(update={KEY: withdrawn(1)})] == []
    assert gate(pull={KEY: turn(0, 1, 2, kind="recover")})[0][0] == "pull", "it holds one of two"
    assert [port for port, _ in gate(update={KEY: copy_of(1, 4)})] == ["update"]
    permits = gate(pull={KEY: turn(0, 2, 2)})
    assert [port for port, _ in permits] == ["permit", "permit"]


def test_a_gate_leaves_copies_aside_while_its_learner_steps() -> None:
    gate = gate_of(1)
    gate(update={KEY: update(PARTS[0], 0, 1.0)})
    gate(pull={KEY: turn(0, 1, 1)})
    for left_aside in (copy_of(0, 9), withdrawn(0)):
        assert gate(update={KEY: left_aside}, pull={KEY: turn(0, 2, 1)}) == [], "the update is waited for still"
    (port, permit), *_ = gate(update={KEY: update(PARTS[0], 1, 1.0)})
    assert (port, [each["kind"] for each in permit["updates"]]) == ("permit", ["merge"])


def test_a_final_version_that_is_said_again_is_still_final_and_says_whose_answers_did_not_count() -> None:
    """Learners end by it, wherever they have it from; of any other version a copy is no news."""
    final = {**published(0, 1, 4, kind="final"), "refused": [[1, 1]]}
    for again in (copied(final), copied(copied(final))):
        assert (again["kind"], again["refused"]) == ("final", [[1, 1]])
    merged = copied({**published(0, 1, 3), "refused": [[1, 1]]})
    assert (merged["kind"], merged["refused"]) == ("copy", [])
    holder = Holder()
    holder.lives(1)
    holder.fire(final)
    holder.lives(2)
    copies, _ = holder.fire()
    assert copies[0]["kind"] == "final"
