"""Phases of a start: what is noted is read again, a torn line is left out, and a disk that refuses costs the line."""

from __future__ import annotations

from pathlib import Path

from isthmus.runtime.system.phases import FILE, PhaseReached, note, read


def test_phases_are_read_in_the_order_in_which_they_were_noted(tmp_path: Path) -> None:
    note(tmp_path, "learner/0", "step", life=1, at_ns=7)
    note(tmp_path, "daemon", "begun", at_ns=3)
    note(tmp_path, "daemon", "serving")
    first, second, third = read(tmp_path)
    assert (first, second) == (PhaseReached("learner/0", 1, "step", 7), PhaseReached("daemon", 0, "begun", 3))
    assert third.phase == "serving"
    assert third.at_ns > 7


def test_a_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    note(tmp_path, "daemon", "begun", at_ns=3)
    with (tmp_path / FILE).open("a") as file:
        file.write('["learner/0", 1, "st')
    assert [each.process for each in read(tmp_path)] == ["daemon"]


def test_without_a_folder_nothing_is_noted_and_nothing_is_read(tmp_path: Path) -> None:
    note(tmp_path / "gone", "daemon", "begun")
    assert list(read(tmp_path / "gone")) == []
