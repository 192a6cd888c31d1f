"""What shards say that they have merged: of whichever merges a recorder has missed, it knows that they are missing."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from isthmus.programs.engine.recorder.books import Books, ShardBooks
from isthmus.programs.engine.results.lines import MergeRecord


def merging(epoch: int, count: int, merged: int, origin: list[int] | None = None) -> MergeRecord:
    """A merge of fragment 0, of `merged` tokens of one learner since its epoch began."""
    return MergeRecord(
        fragment=0,
        epoch=epoch,
        round=(epoch << 32) + count,
        kind="merge",
        version=[epoch, count],
        origin=origin or [epoch, 0],
        merged_tokens=[[0, 1, merged]] if merged else [],
    )


def books(*mergings: MergeRecord) -> ShardBooks:
    made = ShardBooks()
    for each in mergings:
        made.add(each)
    return made


def test_merges_beyond_the_version_that_an_epoch_begins_with_are_undone() -> None:
    made = books(merging(1, 0, 0), merging(1, 1, 48), merging(1, 2, 88), merging(2, 2, 30, [1, 1]))
    assert made.in_model(0) == (Counter({(0, 1): 78}), True)
    assert made.ever(0) == (Counter({(0, 1): 118}), True)


def test_a_version_on_disk_is_known_of_some_merges_later() -> None:
    """A snapshot is told of once it is written; and a shard begins with it again after many more merges."""
    made = books(merging(1, 0, 0), *(merging(1, count, 10 * count) for count in range(1, 41)))
    made.saved([[0, 1, 12]])
    for each in (*(merging(1, count, 10 * count) for count in range(41, 100)), merging(2, 13, 0, [1, 12])):
        made.add(each)
    assert made.in_model(0) == (Counter({(0, 1): 120}), True)
    for epoch in range(2, 9):  # And again, each time from the same version of the epoch before.
        made.add(merging(epoch, 14, 5))
        made.add(merging(epoch + 1, 15, 0, [epoch, 14]))
    assert made.in_model(0) == (Counter({(0, 1): 120 + 5 * 7}), True)
    assert sum(map(len, made._kept.values())) < 40


def test_a_version_that_an_epoch_begins_with_and_that_nobody_told_of_is_missing_in_the_model() -> None:
    made = books(merging(1, 0, 0), merging(1, 2, 88), merging(2, 4, 272, [1, 3]))
    assert made.in_model(0)[1] is False
    assert made.ever(0)[1] is False


def test_where_the_epoch_that_began_with_it_is_undone_it_is_missing_in_what_is_undone_alone() -> None:
    """So it is after a resume from a version before all that."""
    lost = merging(1, 0, 0), merging(1, 1, 48), merging(1, 2, 88), merging(2, 4, 272, [1, 3])
    told = *lost, merging(4, 1, 0, [1, 1])
    made = books(*told)
    recalled = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=ShardBooks)
    for each in (made, recalled):
        assert each.in_model(0) == (Counter({(0, 1): 48}), True)
        assert each.ever(0) == (Counter({(0, 1): 360}), False)


def test_a_newer_version_that_a_learner_holds_is_missing_in_both() -> None:
    made = books(merging(1, 0, 0), merging(1, 1, 48))
    made.claimed([(0, [1, 2])])
    assert (made.in_model(0)[1], made.ever(0)[1]) == (False, False)


@pytest.mark.parametrize("version", [[1, 2], [2, 1]])
def test_a_last_version_whose_merge_nobody_told_of_is_missing_in_both(version: list[int]) -> None:
    """So it is where a shard and the recorder died at once, and the version came from a host that held it."""
    known = Books(sizes=[100], has_regions=True, shards=books(merging(1, 0, 0), merging(1, 1, 48)))
    known.note_final(0, [1, 1], digest=7, now=0)
    assert known.figures(1)["model_whole"] == {0: True}
    known.note_final(0, version, digest=8, now=0)
    assert (known.figures(1)["model_whole"], known.figures(1)["merges_whole"]) == ({0: False}, {0: False})
