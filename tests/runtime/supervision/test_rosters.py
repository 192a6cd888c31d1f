"""Lists that are sent as changes: whoever applies them holds what their sender has, or knows that it does not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.rosters import ASK_AGAIN, MARKS_MAX, Met, RosterCopy, RosterDifference, Row, Table
from tests.effort import examples
from tests.runtime.supervision.supervision_stories import rows

NAMES = [f"{role}/{slot}" for role in ("learner", "syncer") for slot in range(5)]
LISTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=8)


def listed(lives: dict[str, int]) -> tuple[Row, ...]:
    return rows(" ".join(f"{name}#{number}" for name, number in lives.items()))


@given(st.lists(st.tuples(LISTS, st.booleans(), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=examples(400))
def test_a_receiver_of_changes_has_what_the_sender_has_whatever_is_lost(
    steps: list[tuple[dict[str, int], bool, bool]],
) -> None:
    """A sender that is told the mark of its receiver, which may have begun anew, or be another one's."""
    sender, receiver = Table(), Table()
    for lives, is_lost, begins_anew in steps:
        sender.follow(listed(lives))
        receiver = Table() if begins_anew else receiver
        lacking = sender.after(receiver.mark)
        if not is_lost and lacking is not None:
            receiver.take(RosterDifference(sender.mark, *lacking))
            assert sorted(receiver.rows()) == sorted(listed(lives))
            assert receiver.mark == sender.mark
    lacking = sender.after(receiver.mark)
    assert (lacking is None) == (sorted(receiver.rows()) == sorted(sender.rows()))


@given(
    st.lists(st.tuples(LISTS, st.booleans()), min_size=1, max_size=12),
    st.sampled_from([None, (Met("learner", 1, 2), Met("syncer", 3, 0))]),
)
@settings(max_examples=examples(400))
def test_a_host_has_the_rows_of_those_that_it_meets_or_asks(
    steps: list[tuple[dict[str, int], bool]], meets: tuple[Met, ...] | None
) -> None:
    """A station that counts versions, and a host which misses some of its messages."""
    table, host, told, asks = Table(), RosterCopy(), None, 0
    for lives, is_lost in [*steps, ({}, False), *[(steps[-1][0], False)] * (ASK_AGAIN + 2)]:
        table.follow(listed(lives))
        if host.asks > asks:
            told, asks = None, host.asks
        change = RosterDifference(table.version, told, *table.since(told or 0, meets))
        told = table.version
        if not is_lost:
            host.take(change)
    met = [row for row in table.rows() if meets is None or any(each.holds(Replica.parse(row[0])) for each in meets)]
    assert sorted(host.rows()) == sorted(met)


def test_changes_are_as_many_as_what_has_changed() -> None:
    table = Table()
    table.follow(rows(" ".join(f"learner/{slot}" for slot in range(1000))))
    mark, version = table.mark, table.version
    table.follow(rows(" ".join(f"learner/{slot}" for slot in range(999)) + " learner/1000 syncer/0"))
    assert table.after(mark) == (mark, rows("learner/1000 syncer/0"), ("learner/999",))
    assert table.since(version, (Met("syncer"),)) == (rows("syncer/0"), ())
    assert table.since(version, (Met("learner", 999, 0), Met("learner", 7, 0))) == ((), ("learner/999",))
    assert table.after(table.mark) is None


def test_the_same_rows_have_the_same_mark_whichever_way_they_came() -> None:
    first, second = Table(), Table()
    first.follow(rows("learner/0 syncer/0"))
    for text in ("syncer/0#2 learner/1", "syncer/0", "syncer/0 learner/0"):
        second.follow(rows(text))
    assert first.mark == second.mark != 0
    first.follow(())
    assert first.mark == 0


def test_a_receiver_that_missed_too_many_changes_gets_the_whole() -> None:
    table = Table()
    table.follow(rows("learner/0"))
    mark = table.mark
    for number in range(2, MARKS_MAX + 3):
        table.follow(rows(f"learner/0#{number}"))
    assert table.after(mark) == (None, table.rows(), ())
