"""The clock of a run stands still while nothing of it lives: from its last sign of life until something goes on."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.recorder.books import BooksMemory
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results.reading import read_absences
from isthmus.programs.engine.run.standstill import FOR_EVER, stand_still
from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Ended, Exited, Happened, WentOn, as_line
from isthmus.runtime.system.processes import boot_id
from tests.programs.engine.results import whole_files
from tests.programs.engine.results.event_lines import incidents_in

SECOND: Final = 1_000_000_000
HOUR: Final = 3600 * SECOND
ZERO: Final = 5 * SECOND
"""The first step, after the submission."""
NEAR: Final = 10 * SECOND
"""What a busy machine may take between two lines of a test."""


class Folder:
    """The folder of a run that was submitted so many nanoseconds ago, and has stepped."""

    def __init__(self, path: Path, age_ns: int, *, boot: str = "", zero: int | None = ZERO) -> None:
        self.path, self.submitted_ns = path, time.monotonic_ns() - age_ns
        here = {"boot": boot or boot_id().decode(), "wall_ns": time.time_ns() - age_ns}
        (path / "spec.json").write_text(json.dumps({"zero_ns": self.submitted_ns, "here": here}))
        memory = BooksMemory(zero=zero, stepping_until=20 * SECOND, reports={0: {"reported_at": 21 * SECOND}})
        (path / books.FILE).write_bytes(msgspec.msgpack.encode(memory))

    def write(self, name: str, *rows: dict[str, Any]) -> None:
        (self.path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def end(self, wall_seconds: float) -> None:
        """Its daemon recorded its end."""
        summary = whole_files.summary(start_seconds=ZERO / 1e9, wall_seconds=wall_seconds)
        (self.path / "summary.json").write_text(json.dumps(summary))

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads((self.path / spec.SPEC).read_text())
        return fields

    @property
    def age(self) -> int:
        """What its clock shows."""
        return time.monotonic_ns() - int(self.fields["zero_ns"])


def pass_time(folder: Path, duration: int) -> None:
    """Let time pass: everything in a folder is so much longer ago, on the clock of the machine."""
    fields = json.loads((folder / spec.SPEC).read_text())
    here = {**fields["here"], "wall_ns": fields["here"]["wall_ns"] - duration}
    (folder / spec.SPEC).write_text(json.dumps({**fields, "zero_ns": fields["zero_ns"] - duration, "here": here}))
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    moved = [
        {key: value - duration if key in ("at", "was_ns", "zero_ns") else value for key, value in row.items()}
        for row in rows
    ]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in moved))


def test_of_a_run_that_was_killed_the_last_line_is_the_last_sign_of_life(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 2 * HOUR)
    assert 2 * HOUR - 21 * SECOND <= stand_still(tmp_path) < 2 * HOUR
    assert 21 * SECOND <= folder.age < 21 * SECOND + NEAR

    other = tmp_path / "with lines"
    other.mkdir()
    folder = Folder(other, 2 * HOUR)
    folder.write("metrics", {"time": 24.5, "learner": 0, "tokens": 7}, {"time": 25.0, "learner": 1, "tokens": 7})
    folder.write("merges", {"time": 24.9, "fragment": 0, "round": 1, "kind": "merge"})
    paused = stand_still(other)
    assert 30 * SECOND <= folder.age < 30 * SECOND + NEAR
    assert folder.fields["paused_ns"] == paused
    assert incidents_in(other) == [WentOn(paused, folder.submitted_ns, folder.fields["zero_ns"])]


def test_the_recorded_end_counts_where_there_is_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HOUR)
    folder.write("metrics", {"time": 24.5, "learner": 0, "tokens": 7})
    folder.end(wall_seconds=40.0)
    stand_still(tmp_path)
    assert ZERO + 40 * SECOND <= folder.age < ZERO + 40 * SECOND + NEAR


def test_all_pauses_are_left_out_and_what_goes_on_at_once_is_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HOUR)
    first = stand_still(tmp_path)
    assert stand_still(tmp_path) == 0  # Nothing of it lived meanwhile, but it has only just gone on.
    pass_time(tmp_path, HOUR)
    second = stand_still(tmp_path)
    assert second >= HOUR - NEAR
    assert folder.fields["paused_ns"] == first + second
    assert folder.age < 21 * SECOND + 2 * NEAR


def test_a_run_that_has_never_stepped_has_no_time_that_could_stand_still(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HOUR, zero=None)
    assert stand_still(tmp_path) == 0
    assert folder.age >= HOUR
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize(
    ("elsewhere_ns", "stands"), [(0, True), (HOUR // 2, True), (2 * HOUR, False), (FOR_EVER, False)]
)
def test_where_learners_elsewhere_may_have_lived_their_time_is_the_runs(
    tmp_path: Path, elsewhere_ns: int, stands: bool
) -> None:
    folder = Folder(tmp_path, HOUR)
    assert (stand_still(tmp_path, elsewhere_ns=elsewhere_ns) > 0) == stands
    assert (folder.age < HOUR // 2) == stands
    assert folder.fields.get("paused_ns", 0) == (
        json.loads((tmp_path / "events.jsonl").read_text())["paused_ns"] if stands else 0
    )


def test_after_a_reboot_the_time_of_day_tells_how_long_it_was(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 3 * HOUR, boot="another")
    folder.write("events", as_line(Happened(Instant(7), Member(Replica("learner", 0), 1), Ended(Exited(3)))))
    assert 3 * HOUR - 21 * SECOND - NEAR < stand_still(tmp_path) < 3 * HOUR
    assert folder.fields["here"]["boot"] == boot_id().decode()
    assert 21 * SECOND <= folder.age < 21 * SECOND + NEAR
    # Where learners elsewhere have gone on its clock does, too, and is one of this boot.
    other = tmp_path / "of a cluster"
    other.mkdir()
    folder = Folder(other, 3 * HOUR, boot="another")
    assert stand_still(other, elsewhere_ns=FOR_EVER) == 0
    assert folder.fields["here"]["boot"] == boot_id().decode()
    assert 3 * HOUR - NEAR <= folder.age < 3 * HOUR + NEAR


@pytest.mark.parametrize("line", ["[]", "3", "{}", "not JSON"])
def test_a_last_line_that_is_no_incident_tells_nothing(tmp_path: Path, line: str) -> None:
    folder = Folder(tmp_path, HOUR)
    (tmp_path / "events.jsonl").write_text(f"{line}\n")
    stand_still(tmp_path)
    assert 21 * SECOND <= folder.age < 21 * SECOND + NEAR


def test_a_time_of_the_future_puts_no_clock_forward(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HOUR)
    folder.write("metrics", {"time": 1e9, "learner": 0, "tokens": 7})
    assert stand_still(tmp_path) == 0
    assert HOUR <= folder.age < HOUR + NEAR


def test_it_never_goes_on_from_before_its_snapshot(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 2 * HOUR)
    stand_still(tmp_path, least_ns=HOUR)
    assert HOUR <= folder.age < HOUR + NEAR


def test_incidents_of_before_stay_where_they_were(tmp_path: Path) -> None:
    """A learner that crashed ten seconds after the first step did so then, also after two pauses."""
    folder = Folder(tmp_path, HOUR)
    crash = Happened(
        Instant(folder.submitted_ns + ZERO + 10 * SECOND), Member(Replica("learner", 0), 1), Ended(Exited(3))
    )
    folder.write("events", as_line(crash))
    folder.end(wall_seconds=16.0)
    stand_still(tmp_path)
    fields = folder.fields
    (tmp_path / spec.SPEC).write_text(json.dumps({**fields, "zero_ns": fields["zero_ns"] - 7 * SECOND}))
    with (tmp_path / "events.jsonl").open("a") as file:
        moved = WentOn(7 * SECOND, fields["zero_ns"], fields["zero_ns"] - 7 * SECOND)
        at = Instant(fields["zero_ns"] + ZERO + 30 * SECOND)
        file.write(json.dumps(as_line(Happened(at, Member(Replica("daemon", 0), 1), moved))) + "\n")
        late = Instant(fields["zero_ns"] - 7 * SECOND + ZERO + 50 * SECOND)
        file.write(json.dumps(as_line(Happened(late, Member(Replica("learner", 1), 1), Ended(Exited(3))))) + "\n")
    begun = {absence.host: absence.begun for absence in read_absences(tmp_path)}
    assert begun == {"learner/0": pytest.approx(10.0), "learner/1": pytest.approx(50.0)}


def test_a_disk_that_takes_no_line_moves_no_clock(tmp_path: Path) -> None:
    folder = Folder(tmp_path, HOUR)
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(OSError, match=r"events.jsonl cannot be written"):
        stand_still(tmp_path)
    assert folder.age >= HOUR


def test_a_try_that_failed_half_way_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path, HOUR)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spec, "write", refuse)
        with pytest.raises(OSError, match="No space left"):
            stand_still(tmp_path)
    assert len(incidents_in(tmp_path)) == 1
    assert stand_still(tmp_path) > HOUR - 21 * SECOND - NEAR
    assert folder.age < 21 * SECOND + NEAR
