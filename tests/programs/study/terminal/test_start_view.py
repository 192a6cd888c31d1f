"""`--verbose`: the phases of a start by time, of first lives alone; what nobody has written is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.programs.engine.islands.kept_programs import CompiledProgram, KeptPrograms
from isthmus.programs.engine.run.seats import Seat
from isthmus.programs.study.terminal.start_view import StartView, compiled_lines, lines, seat_lines
from isthmus.runtime.system.phases import PhaseReached, note

S = 1_000_000_000
STATUS = {"hosts": [{"name": "learner/0"}, {"name": "learner/1"}, {"name": "syncer/0"}]}


class Seen:
    """A view that remembers what it got."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def update(self, status: dict[str, Any]) -> None:
        self.got.append(status)

    def close(self, summary: dict[str, Any]) -> None:
        self.got.append(summary)


def test_rows_are_by_time_and_count_from_the_command() -> None:
    reached = [
        PhaseReached("learner/0", 1, "step", 13 * S),
        PhaseReached("command", 0, "begun", 10 * S),
        PhaseReached("learner/0", 2, "begun", 11 * S),
        PhaseReached("daemon", 0, "begun", 10 * S + S // 2),
    ]
    _, *rows = lines(reached, ["learner/0", "learner/1"])
    assert [row.split()[:3] for row in rows] == [
        ["0.00", "s", "command"],
        ["0.50", "s", "daemon"],
        ["3.00", "s", "learner/0"],
        ["not", "known", "learner/1"],
    ]


def test_without_the_begin_of_the_command_no_figure_is_told() -> None:
    (line,) = lines([PhaseReached("daemon", 0, "begun", 5)], [])
    assert "not known" in line


def test_it_is_printed_once_when_all_learners_step(tmp_path: Path) -> None:
    printed: list[str] = []
    inner = Seen()
    view = StartView(inner, tmp_path, printed.append)
    note(tmp_path, "command", "begun", at_ns=S)
    note(tmp_path, "learner/0", "step", life=1, at_ns=3 * S)
    view.update(STATUS)
    assert not printed
    note(tmp_path, "learner/1", "step", life=1, at_ns=4 * S)
    view.update(STATUS)
    view.update(STATUS)
    view.close({})
    (table,) = printed
    assert "not known" not in table
    assert inner.got == [STATUS, STATUS, STATUS, {}]


def test_a_run_that_ends_before_they_step_says_what_is_known(tmp_path: Path) -> None:
    printed: list[str] = []
    view = StartView(Seen(), tmp_path, printed.append)
    note(tmp_path, "command", "begun", at_ns=S)
    view.update(STATUS)
    view.close({})
    (table,) = printed
    assert table.count("not known") == 2


def test_what_was_compiled_is_listed_with_seconds_and_what_is_kept_of_others() -> None:
    made = CompiledProgram("learner/0", 1, "step", "compiled", 13.2, "", 0.0, "1.0", "1 x made")
    small = [made._replace(function=f"adopt/{number}", seconds=0.1) for number in range(8)]
    read = made._replace(process="learner/1", way="read", seconds=0.4, by="learner/0", awaited_seconds=12.5)
    again = made._replace(life=2, seconds=99.0)
    kept = KeptPrograms(Path("xla"), 1_000_000, 10, ((("0.9", "1 x made"), 7),))
    rows = compiled_lines([made, *small, read, again], kept)[1:]
    words = [row.split() for row in rows]
    assert [each[0] for each in words[:8]] == ["13.20", "0.10", "0.10", "0.10", "0.10", "0.40", "0.40", "12.50"]
    assert {"0.9", "7"} <= set(rows[-1].split())
    assert compiled_lines([again], kept) == []


def test_devices_and_cores_are_those_of_first_lives_with_what_jax_finds_there() -> None:
    program = CompiledProgram("learner/0", 1, "step", "read", 0.1, "", 0.0, "0.12", "2 x cpu")
    seats = [Seat("syncer/0", 1, [], [6, 7]), Seat("learner/0", 1, ["cpu-2", "cpu-3"], [0, 1])]
    _, *rows = seat_lines([*seats, Seat("learner/0", 2, ["cpu-0"], [5])], [program])
    assert [row.split() for row in rows] == [
        ["learner/0", "cpu-2,", "cpu-3", "2", "x", "cpu", "0-1"],
        ["syncer/0", "-", "-", "6-7"],
    ]
    assert seat_lines([], [program]) == []
