"""The islands that processes of a script have, by slot."""

from __future__ import annotations

from pathlib import Path

from isthmus.programs.engine.islands.island_numbers import NOTE, IslandNumbers
from isthmus.runtime.ids import LEARNER, Replica


def numbers(folder: Path, count: int, *slots: int) -> list[int]:
    given = IslandNumbers(folder, count)
    return [given.of(Replica(LEARNER, slot)) for slot in slots]


def test_slots_in_a_row_have_the_islands_of_their_numbers(tmp_path: Path) -> None:
    assert numbers(tmp_path, 4, 2, 0, 3, 1) == [2, 0, 3, 1]
    assert not (tmp_path / NOTE).exists()


def test_slots_of_machines_that_take_turns_have_islands_of_their_own_also_under_the_next_daemon(tmp_path: Path) -> None:
    assert numbers(tmp_path, 2, 0, 2) == [0, 1]
    assert numbers(tmp_path, 2, 2, 0, 2) == [1, 0, 1]
    assert numbers(tmp_path, 2, 4) == [0], "more learners than islands share"


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text("{")
    assert numbers(tmp_path, 2, 1, 3) == [1, 0]
