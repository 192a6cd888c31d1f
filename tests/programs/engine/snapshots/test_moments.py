"""Moments come into snapshots one learner at a time, whole or not at all, and a resume lays them out where none is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from isthmus.ops.exchange.messages import CopyPart, WantedPart
from isthmus.ops.recovery.local_files import copy_path
from isthmus.programs.engine.snapshots.moments import PATIENCE_NS, MomentsEntry, MomentsFetch, lay_out
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.snapshots import Snapshots
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from isthmus.runtime.system.disk import DISK

EVERY = 10_000_000_000
LIVING = ((0, 1), (1, 3))
PART = 4


def parts_of(wanted: WantedPart, copies: dict[int, bytes]) -> CopyPart:
    """What a learner answers."""
    data, at = copies[wanted["slot"]], wanted["at"]
    return CopyPart(**wanted, size=len(data), data=np.frombuffer(data[at : at + PART], np.uint8))


def fetched(
    fetch: MomentsFetch, copies: dict[int, bytes], now: int, living: Sequence[tuple[int, int]] = LIVING
) -> Iterator[WantedPart]:
    """What is asked until nothing is due, with an answer to each."""
    wanted = fetch.step([], living, now)
    while wanted is not None:
        yield wanted
        wanted = fetch.step([parts_of(wanted, copies)], living, now)


@pytest.fixture
def fetch(tmp_path: Path) -> MomentsFetch:
    fetch = MomentsFetch(tmp_path, DISK, EVERY, life=5)
    assert fetch.step([], LIVING, 0) is None  # Nothing is due when a life begins.
    return fetch


def test_each_learner_is_asked_once_in_an_interval_and_one_at_a_time(tmp_path: Path, fetch: MomentsFetch) -> None:
    assert not list(fetched(fetch, {}, EVERY - 1))
    copies = {0: b"0123456789", 1: b"abcd"}
    asked = [(each["slot"], each["incarnation"], each["at"]) for each in fetched(fetch, copies, EVERY)]
    assert asked == [(0, 1, 0), (0, 1, 4), (0, 1, 8), (1, 3, 0)]
    assert not list(fetched(fetch, copies, 2 * EVERY - 1))
    assert [(each.slot, each.incarnation, each.bytes) for each in fetch.entries] == [(0, 1, 10), (1, 3, 4)]
    for each in fetch.entries:
        data = (tmp_path / FOLDER / each.file).read_bytes()
        assert (data, each.digest) == (copies[each.slot], xxhash.xxh3_128_hexdigest(data))
    first = fetch.entries
    list(fetched(fetch, copies | {0: b"newer"}, 2 * EVERY))
    assert fetch.entries[0].bytes == 5
    assert fetch.entries[0].file != first[0].file  # What a snapshot names is never written over.


def test_a_learner_without_a_copy_or_that_dies_or_is_silent_leaves_the_copy_before(
    tmp_path: Path, fetch: MomentsFetch
) -> None:
    list(fetched(fetch, {0: b"first", 1: b"other"}, EVERY))
    before = fetch.entries
    list(fetched(fetch, {0: b"", 1: b""}, 2 * EVERY))  # It has none now.
    assert fetch.entries == before
    asking = fetched(fetch, {0: b"0123456789", 1: b""}, 3 * EVERY)
    assert next(asking)["slot"] == 0
    now = 3 * EVERY + PATIENCE_NS - 1
    assert fetch.step([], LIVING, now) is None
    wanted = fetch.step([], LIVING, now + 1)  # Silent for too long: the next one.
    assert wanted is not None
    assert wanted["slot"] == 1
    late = CopyPart(slot=0, incarnation=1, number=wanted["number"] - 1, at=0, size=4, data=np.zeros(4, np.uint8))
    assert fetch.step([late], LIVING, now + 1) is None  # Nobody waits for it any more.
    again = fetch.step([], [(0, 2), (1, 4)], now + 2)  # It has died, too.
    assert fetch.entries == before
    assert again is None or (again["slot"], again["incarnation"]) == (0, 2)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == sorted(each.file for each in before)


def test_what_the_disk_refuses_does_not_count() -> None:
    disk = SimulatedDisk("seed")
    fetch = MomentsFetch(Path("/run"), Mount(disk), EVERY, life=1)
    fetch.step([], LIVING, 0)
    disk.troubles[1] = Trouble(lambda: None, room=6)
    asked = [(each["slot"], each["at"]) for each in fetched(fetch, {0: b"0123456789", 1: b"abcdefgh"}, EVERY)]
    assert (0, 8) not in asked
    assert not [each for each in fetch.entries if each.slot == 0]
    disk.troubles.clear()
    list(fetched(fetch, {0: b"0123456789", 1: b"abcdefgh"}, 2 * EVERY))
    assert [each.bytes for each in fetch.entries] == [10, 8]


def test_a_snapshot_has_them_and_a_recorder_goes_on_with_those_of_the_last_one(
    tmp_path: Path, fetch: MomentsFetch
) -> None:
    list(fetched(fetch, {0: b"first", 1: b"other"}, EVERY))
    snapshots = Snapshots(tmp_path / FOLDER, (), DISK)
    snapshots.read()
    snapshots.name([], fetch.entries)
    list(fetched(fetch, {0: b"later", 1: b""}, 2 * EVERY))  # In no snapshot: its recorder dies.
    found = Snapshots(tmp_path / FOLDER, (), DISK).examine()
    assert found.manifest is not None
    later = MomentsFetch(tmp_path, DISK, EVERY, life=6)
    later.recall(found.manifest.moments)
    assert [each.bytes for each in later.entries] == [5, 5]
    assert len(list((tmp_path / FOLDER).glob("*.local"))) == 2
    (tmp_path / FOLDER / found.manifest.moments[0].file).write_bytes(b"spoil")
    assert Snapshots(tmp_path / FOLDER, (), DISK).examine().manifest is None


def test_a_resume_lays_them_out_where_no_copy_is(tmp_path: Path) -> None:
    def entry(slot: int, data: bytes) -> Any:
        name = f"moments-{slot}-1-1-1.local"
        (tmp_path / FOLDER).mkdir(exist_ok=True)
        (tmp_path / FOLDER / name).write_bytes(data)
        return MomentsEntry(slot, 1, name, len(data), xxhash.xxh3_128_hexdigest(data))

    copy_path(tmp_path, 0).parent.mkdir()
    copy_path(tmp_path, 0).write_bytes(b"newer")
    lay_out(tmp_path, [entry(0, b"older"), entry(3, b"kept")], DISK)
    assert copy_path(tmp_path, 0).read_bytes() == b"newer"
    assert copy_path(tmp_path, 3).read_bytes() == b"kept"
