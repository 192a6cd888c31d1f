"""The evaluator's hold node, fed by hand: when it gives copies of what was taken for evaluations, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.exchange.messages import ToldVersion, is_withdrawn
from isthmus.ops.recovery.hold import digest_of, held_by
from isthmus.ops.recovery.second_hold import LOOKS, SecondHold
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, update

PARTS = fragments_of(SmallTask(), 2)


def taken(p: int, count: int, *, epoch: int = 1) -> dict[str, Any]:
    return {**update(PARTS[p], count, 10.0 * epoch + count), "version": [epoch, count]}


def told(p: int, count: int, *, epoch: int = 1, life: int = 1) -> ToldVersion:
    return ToldVersion(shard=0, incarnation=life, fragment=p, version=[epoch, count], kind="merge", totals=[])


class Holder:
    def __init__(self) -> None:
        self.hold = SecondHold(role="syncer", shards=1)
        self.context = Context("evaluator")
        self.hold.open(self.context)
        self.report: Any = None

    def live(self, life: int) -> None:
        self.context.live = {Member(Replica("syncer", 0), life)} if life else set()

    def fire(self, *, taken: Any = (), told: Any = (), saved: Any = None, **home: Any) -> dict[int, Any]:
        """The copies by fragment."""
        items: dict[str, Any] = {
            name: {(Replica("syncer", 0), item["fragment"]): item for item in each}
            for name, each in (("taken", taken), ("told", told))
        }
        if saved is not None:
            items["elsewhere"] = {(Replica("recorder", 0), "recorder"): held_by("recorder", saved=saved, **home)}
        emitted = self.hold(**items) or []
        for port, item in emitted:
            if port == "held":
                self.report = item
        return {item["fragment"]: item for port, item in emitted if port == "copy"}

    def look(self, times: int = LOOKS + 2) -> dict[int, Any]:
        """All copies of so many looks."""
        copies: dict[int, Any] = {}
        for _ in range(times):
            copies |= self.fire()
        return copies


@pytest.fixture
def holder() -> Holder:
    """One that has the versions of the first cut, and has been told of later ones."""
    holder = Holder()
    holder.live(1)
    assert not holder.fire(taken=[taken(0, 0), taken(1, 0)], told=[told(0, 4), told(1, 0)])
    return holder


def test_it_reports_what_it_has_and_which_merges_it_knows(holder: Holder) -> None:
    assert (holder.report["fragments"], holder.report["merged"]) == ([0, 1], [0])
    assert holder.report["lives"] == [[0, 1]]


def test_a_life_that_has_what_it_published_is_given_nothing(holder: Holder) -> None:
    assert holder.look() == {}
    holder.live(0)
    assert holder.look() == {}


def test_a_later_life_gets_copies_after_some_looks_where_the_home_has_none(holder: Holder) -> None:
    holder.live(2)
    assert holder.look(LOOKS) == {}
    copies = holder.fire()
    assert {p: (item["version"], item["kind"]) for p, item in copies.items()} == {
        0: ([1, 0], "copy"),
        1: ([1, 0], "copy"),
    }
    item = taken(0, 0)
    assert [0, 1, 0, digest_of(item["values"], item["clock"], item["positions"]), []] in holder.report["given"]
    assert holder.look() == {}


def test_once_the_home_has_looked_for_that_life_nothing_is_waited_for(holder: Holder) -> None:
    holder.fire(saved=[[0, 1, 3]], lives=[[0, 1]])
    holder.live(2)
    assert holder.look(LOOKS - 1) == {}
    assert list(holder.fire(saved=[[0, 1, 3]], lives=[[0, 2]])) == [1]


def test_a_home_whose_disk_fails_may_find_more(holder: Holder) -> None:
    holder.live(2)
    assert holder.fire(saved=[], lives=[[0, 2]], error="full") == {}
    assert holder.look(LOOKS - 1) == {}
    assert set(holder.look(1)) == {0, 1}


@pytest.mark.parametrize(("count", "is_given"), [(0, False), (3, False)])
def test_what_the_home_has_as_new_is_given_by_the_home(holder: Holder, count: int, *, is_given: bool) -> None:
    holder.fire(saved=[[0, 1, count]])
    holder.live(2)
    copies = holder.look()
    assert (0 in copies) == is_given
    assert 1 in copies


def test_what_the_home_lacks_after_all_is_given(holder: Holder) -> None:
    holder.fire(saved=[[0, 1, 3], [1, 1, 3]])
    holder.live(2)
    assert holder.look() == {}
    holder.fire(saved=[[1, 1, 3]])
    assert list(holder.look()) == [0]


def test_copies_are_withdrawn_once_the_later_life_has_published(holder: Holder) -> None:
    holder.live(2)
    assert set(holder.look()) == {0, 1}
    copies = holder.fire(told=[told(0, 0, life=2)])
    assert [p for p, item in copies.items() if is_withdrawn(item)] == [0]
    assert [row[0] for row in holder.report["given"]] == [1]
    assert holder.look() == {}


def test_what_a_later_life_has_published_before_needs_no_copy(holder: Holder) -> None:
    holder.live(2)
    holder.fire(told=[told(0, 0, life=2), told(1, 0, life=2)])
    assert holder.look() == {}


def test_books_of_a_former_life_that_come_late_change_nothing(holder: Holder) -> None:
    holder.live(2)
    holder.fire(told=[told(0, 4, life=2), told(1, 0, life=2)])
    holder.fire(told=[told(0, 9, life=1)])
    assert holder.look() == {}


def test_a_life_after_that_is_given_them_again(holder: Holder) -> None:
    holder.live(2)
    assert set(holder.look()) == {0, 1}
    holder.live(3)
    assert set(holder.look()) == {0, 1}
