"""A table on a narrow terminal leaves out whole columns and cuts no figure."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from isthmus.programs.study.terminal.figures import fitted, in_lines
from isthmus.programs.study.terminal.sheet import Column

COLUMNS = (
    Column("host", ["learner/0", "syncer/0"], is_text=True),
    Column("tokens", ["1,234 567", ""]),
    Column("sent", ["76.7 MB", "5 B"], usual=8),
)


def drawn(*tables: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(*tables)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (30, ["host", "tokens", "sent"]),
        (28, ["host", "tokens", "sent"]),
        (27, ["host", "tokens"]),
        (19, ["host", "tokens"]),
        (18, ["host"]),
    ],
)
def test_the_least_important_column_goes_first_and_none_is_cut(width: int, names: list[str]) -> None:
    lines = drawn(fitted(COLUMNS, width, ["sent", "tokens"]), width=width)
    values = {"host": "learner/0", "tokens": "1,234 567", "sent": "76.7 MB"}
    assert lines == [" ".join(names), " ".join(values[name] for name in names), lines[2]]
    assert not any("\u2026" in line for line in lines)


def test_what_is_left_out_does_not_depend_on_the_figures_of_the_moment() -> None:
    short = [column._replace(cells=["x", "x"]) if column.name == "sent" else column for column in COLUMNS]
    assert drawn(fitted(short, 27, ["sent"]), width=27)[0] == "host tokens"
    assert drawn(fitted(short, 28, ["sent"]), width=28)[0] == "host tokens sent"


def test_names_and_cells_of_others_move_no_cursor_and_are_no_markup() -> None:
    column = Column("loss\x1b[2J[red]", ["\x1b]0;x\x07[bold]1.0"], is_text=True)
    assert drawn(fitted([column], 80), width=80) == ["loss\\x1b[2J[red]", "\\x1b]0;x\\x07[bold]1.0"]


def test_columns_that_do_not_fit_stand_below_the_others() -> None:
    tables = [drawn(table, width=22) for table in in_lines(COLUMNS, 22, gap=2)]
    assert [lines[0] for lines in tables] == ["host tokens", "sent"]


def test_a_text_that_is_too_long_is_folded_and_figures_stay_whole() -> None:
    words = Column("proof", ["bytes held up, 0 passed"], is_text=True)
    lines = drawn(fitted([words, Column("tokens", ["1,234,567"])], 24), width=24)
    assert "".join(line.replace("1,234,567", "") for line in lines[1:]).replace(" ", "") == "bytesheldup,0passed"
    assert sum("1,234,567" in line for line in lines) == 1
