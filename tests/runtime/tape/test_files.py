"""The files of tapes: within their bound, whole up to somewhere, on disks that fill up, fail and lose power."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import HostRecord, ItemArrived, NodesNudged
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from isthmus.runtime.system import files
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.tape import reading
from isthmus.runtime.tape.reading import FOLDER, SEGMENTS, Reading, TapeFiles, named, segment_bytes
from isthmus.runtime.tape.writing import Tape
from tests.effort import examples

RUN = Path("/run")
LEARNER = Replica("learner", 0)


class Counting:
    """A core whose state is how many events it has seen, and its tape, on a disk."""

    def __init__(self, disk: Any, *, bytes_max: int, life: int = 1, run: Path = RUN) -> None:
        self.count = 0
        self.tape = Tape(segment_bytes(bytes_max))
        self.tape.begin(lambda: b"%d" % self.count)
        self.files = TapeFiles.of_host(run, Member(LEARNER, life), disk=disk, bytes_max=bytes_max)

    def go_on(self, records: int, size: int = 40) -> None:
        for _ in range(records):
            self.count += 1
            event = ItemArrived(0, Member(LEARNER, 1), 1, {"pad": "x" * size})  # type: ignore[arg-type]
            self.tape.append(Instant(self.count), event, [])
        self.files.write(self.tape)


def sizes(disk: SimulatedDisk) -> dict[str, int]:
    return {path.name: len(data) for path, data in disk.files().items()}


def there(disk: SimulatedDisk, life: str = "learner-0-1") -> Reading:
    """What the disk has of the tape of a life."""
    known = [(named(path.name), data) for path, data in disk.files().items()]
    files = sorted((name[1], data) for name, data in known if name is not None and name[0] == life)
    return reading.joined([reading.read(data, HostRecord) for _, data in files])


def assert_right(found: Reading) -> None:
    """Each record is the one that its place says, and each segment begins with the state before it."""
    for segment in found.segments:
        assert segment.opening.state == b"%d" % segment.opening.before
        instants = [record.at for record in segment.records]
        assert instants == list(range(segment.opening.before + 1, segment.end + 1))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 300)), min_size=20, max_size=60))
@settings(max_examples=examples(50))
def test_all_tapes_of_a_host_keep_within_their_bound(written: list[tuple[int, int]]) -> None:
    disk, bound = SimulatedDisk("seed"), 8000
    for life in (1, 2):
        core = Counting(Mount(disk), bytes_max=bound, life=life)
        for records, size in written:
            core.go_on(records, size)
            assert sum(sizes(disk).values()) <= bound + 1000, "one record more, at most"
        core.files.close()
    assert_right(there(disk, "learner-0-2"))


def test_the_oldest_are_deleted_first_and_others_hosts_tapes_stay() -> None:
    disk = SimulatedDisk("seed")
    for name in ("learner-00-1.1.tape", "learner-1-1.1.tape", "learner-0-1-1.1.tape", "learner-0-1.tape", "x"):
        Mount(disk).append(RUN / FOLDER / name).write(bytes(20_000))
    core = Counting(Mount(disk), bytes_max=8000)
    for _ in range(60):
        core.go_on(5)
    found = sizes(disk)
    own = [number for name in found if (known := named(name)) and known[0] == "learner-0-1" for number in known[1:]]
    assert len(found) == 5 + len(own)
    assert own == list(range(min(own), max(own) + 1))
    assert min(own) > 1
    assert SEGMENTS - 2 <= len(own) <= SEGMENTS


def test_the_number_of_a_later_life_is_higher() -> None:
    disk = SimulatedDisk("seed")
    for life in (1, 2):
        Counting(Mount(disk), bytes_max=8000, life=life).go_on(50)
    numbers = {name: number for each in sizes(disk) for name, number in [named(each) or ("", 0)]}
    assert 1 < numbers["learner-0-1"] < numbers["learner-0-2"]


@given(st.data())
@settings(max_examples=examples(100))
def test_after_a_power_failure_the_tape_is_whole_up_to_its_last_record(data: st.DataObject) -> None:
    disk = SimulatedDisk(f"seed {data.draw(st.integers(0, 1000))}")
    core = Counting(Mount(disk), bytes_max=8000)
    for records in data.draw(st.lists(st.integers(0, 12), max_size=20)):
        core.go_on(records)
    if data.draw(st.booleans()):
        Mount(disk).sync_folder(RUN / FOLDER)
    before = disk.files()
    disk.lose_power()
    for path, left in disk.files().items():
        is_ = reading.read(left, HostRecord)
        if path not in before:  # The disk had not its removal.
            assert_right(is_)
            continue
        was = reading.read(before[path], HostRecord)
        assert [each.opening for each in is_.segments] == [each.opening for each in was.segments][: len(is_.segments)]
        assert is_.records == was.records[: len(is_.records)]
        assert is_.rest == "" or is_.is_unfinished
        assert_right(is_)


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "broken"])
def test_what_a_disk_does_not_take_is_missing_in_whole_records_and_said(
    is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WAITING_BYTES_MAX", 3000)
    disk = SimulatedDisk("seed")
    core = Counting(Mount(disk), bytes_max=80_000)
    core.go_on(20)
    disk.troubles[1] = Trouble(lambda: None, room=0) if is_full else Trouble(lambda: None, share=1.0)
    for _ in range(40):
        core.go_on(10)
    assert there(disk).records == there(disk).records[:20]
    disk.troubles.clear()
    for _ in range(3):
        core.go_on(10)
    core.files.close()
    found = there(disk)
    assert_right(found)
    assert found.segments[-1].opening.is_after_loss
    assert 100 < found.missing < 400
    assert found.segments[-1].end == core.count


def test_a_disk_that_is_full_for_long_costs_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAITING_BYTES_MAX", 3000)
    disk = SimulatedDisk("seed")
    disk.troubles[1] = Trouble(lambda: None, room=0)
    core = Counting(Mount(disk), bytes_max=8000)
    for _ in range(100):
        core.go_on(10)
        assert len(core.tape.drain()) == 0
    disk.troubles.clear()
    for _ in range(3):
        core.go_on(10)
    found = there(disk)
    assert_right(found)
    assert found.segments[-1].end == core.count


def test_a_real_disk_is_no_different(tmp_path: Path) -> None:
    core = Counting(DISK, bytes_max=8000, run=tmp_path)
    for _ in range(30):
        core.go_on(10)
    core.files.close()
    paths = sorted((tmp_path / FOLDER).iterdir(), key=lambda path: named(path.name) or ("", 0))
    assert sum(path.stat().st_size for path in paths) <= 9000
    found = reading.joined([reading.read(path.read_bytes(), HostRecord) for path in paths])
    assert_right(found)
    assert (found.begins > 0, found.segments[-1].end) == (True, 300)
    assert not any(isinstance(record.event, NodesNudged) for record in found.records)
