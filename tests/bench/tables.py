"""The kept cells behind the tables of the pages: where they were made, and which of them the code has left behind.

    make tables                                         # the list
    python -m tests.bench.tables [--only carry] [--json]

Of each file in `tests/bench` that `TABLES` names: its cells by place; those whose place nobody noted; those of code
that has changed since, with the files that have; and those that were repeated in another place, with how far the places
are apart. A table is printed by its own command, which the list has. Nothing is measured, and nothing is an error: it
says what a figure rests on, and what would be measured anew first."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bench.kept_cells import UNKNOWN, KeptCells, spreads
from tests.bench.place import changed_since, words

HERE: Final = Path(__file__).parent
FILES_SHOWN: Final = 6


class Table(NamedTuple):
    """The bench that keeps a file's cells, the option that names the file, what else the call has that prints what is
    there, the figure that places are compared by, and the page that has the table."""

    bench: str
    option: str
    more: str
    figure: str
    page: str

    def words(self, file: str) -> list[str]:
        """The options of the call that prints the table, and measures nothing that it shows."""
        return [self.option, f"tests/bench/{file}.json", *self.more.split()]

    def command(self, file: str) -> str:
        """That call."""
        return " ".join(["python -m", f"tests.bench.long.{self.bench}", *self.words(file)])


TABLES: Final[Mapping[str, Table]] = {
    "carry": Table("bench_carry", "--kept", "--seeds 3 --minutes 0", "loss", "docs/explanation/outer-loop-options.md"),
    "equal_1020k": Table("bench_equal_time", "--cells", "", "loss", "docs/explanation/ablations.md"),
    "equal_4100k": Table("bench_equal_time", "--cells", "--tokens 4100000", "loss", "docs/explanation/ablations.md"),
    "factors": Table("bench_factors", "--kept", "--minutes 0", "loss", "docs/explanation/ablations.md"),
    "factors_4100k": Table(
        "bench_factors", "--kept", "--tokens 4100000 --seeds 1 --minutes 0", "loss", "docs/explanation/ablations.md"
    ),
    "generations": Table("bench_generations", "--kept", "", "loss", "docs/explanation/outer-loop-options.md"),
    "outer": Table("bench_outer", "--kept", "--minutes 0", "loss", "docs/explanation/outer-loop-options.md"),
    "sites": Table("bench_sites", "--kept", "--minutes 0", "merged", "docs/explanation/sites.md"),
    "table4": Table("bench_table4", "--kept", "--minutes 0", "loss", "docs/explanation/ablations.md"),
    "utilisation": Table(
        "bench_utilisation", "--kept", "--minutes 0", "utilisation", "docs/explanation/utilisation.md"
    ),
}
"""By file. `kept.json` has shares of limits and no cells."""


def standing(cells: KeptCells, figure: str) -> dict[str, Any]:
    """What there is to say of a file's cells."""
    stale = {of: changed for of, place in cells.places.items() if (changed := changed_since(place["code"]))}
    return {
        "cells": len(cells),
        "places": dict(Counter(map(cells.place_of, cells))),
        "without_place": [name for name in cells if cells.place_of(name) == UNKNOWN],
        "changed": {name: stale[of] for name in cells if (of := cells.place_of(name)) in stale},
        "apart": spreads(cells, cells.repeats, figure),
    }


def shown(file: str, cells: KeptCells, found: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a file."""
    table = TABLES[file]
    yield f"{file}.json: {found['cells']} cells of {table.page}"
    yield f"  {table.command(file)}"
    for of, count in found["places"].items():
        where = words(cells.places[of]) if of in cells.places else "no place was noted, so nor was the code"
        yield f"  {count} cells: {where}"
    changed: Mapping[str, list[str]] = found["changed"]
    for files in dict.fromkeys(map(tuple, changed.values())):
        count = sum(tuple(each) == files for each in changed.values())
        more = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
        yield f"  {count} cells by code that has changed since: {', '.join(files[:FILES_SHOWN])}{more}"
    if found["apart"]:
        widest = max(found["apart"].values())
        yield f"  {len(found['apart'])} cells repeated in another place: {table.figure} differs by {widest:.4f} at most"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, help="this file alone")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    files = {file: KeptCells(HERE / f"{file}.json") for file in TABLES if asked.only in (None, file)}
    all_found = {file: standing(cells, TABLES[file].figure) for file, cells in files.items()}
    if asked.json:
        print(json.dumps(all_found, indent=1))
        return 0
    for file, cells in files.items():
        print("\n".join(shown(file, cells, all_found[file])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
