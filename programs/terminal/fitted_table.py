"""Tables that fit a terminal: where it is narrow whole columns are left out, and never a part of a figure.

`1234…` may be read as a number, so no cell is ever cut. The choice of columns does not depend on the length of the
figures at the moment, as long as they keep to the usual width: columns must not come and go before the reader's eyes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAPS: Final = (2, 1)
"""Spaces between columns: as many as there is room for."""


class Column(NamedTuple):
    """A column with its cells; `usual` is the width in letters that it keeps free, `is_text` sets it to the left."""

    name: str
    cells: Sequence[str | Text]
    usual: int = 0
    is_text: bool = False

    @property
    def width(self) -> int:
        """Its width in characters."""
        cells = (cell.plain if isinstance(cell, Text) else cell for cell in self.cells)
        return max(self.usual, cell_len(self.name), *map(cell_len, cells), 0)


def fitted(columns: Iterable[Column], width: int, dispensable: Iterable[str] = ()) -> Table:
    """A table at most `width` letters wide: of `dispensable` the first are left out first, until the others fit."""
    shown, spare = list(columns), list(dispensable)
    while not _fits(shown, width, _GAPS[-1]) and spare:
        name = spare.pop(0)
        shown = [column for column in shown if column.name != name]
    gap = next((gap for gap in _GAPS if _fits(shown, width, gap)), _GAPS[-1])
    return _drawn(shown, gap)


def in_lines(columns: Iterable[Column], width: int, gap: int) -> Iterator[Table]:
    """All columns, in tables below one another, each at most `width` characters wide."""
    line: list[Column] = []
    for column in columns:
        if line and not _fits([*line, column], width, gap):
            yield _drawn(line, gap)
            line = []
        line.append(column)
    if line:
        yield _drawn(line, gap)


def _fits(columns: Sequence[Column], width: int, gap: int) -> bool:
    return sum(column.width for column in columns) + gap * (len(columns) - 1) <= width


def _drawn(columns: Sequence[Column], gap: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for column in columns:
        least = column.usual if column.is_text else None
        table.add_column(column.name, justify="left" if column.is_text else "right", no_wrap=True, min_width=least)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table
