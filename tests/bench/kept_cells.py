"""What a bench has measured already, by the name of the cell, in a file: the same call goes on with the rest.

A file has its cells, the *places* in which they were made (`place.py`), each once, and which cell is of which place. A
cell from before places were kept has none: nothing knows where it was made. A cell that is measured again in another
place stands beside the first as a *repeat*, so that a table can say how far places are apart.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.bench.place import id_of, machine, place, words

UNKNOWN: Final = "unknown"
"""The place of a cell that says none."""


class KeptCells(dict[str, dict[str, Any]]):
    """The cells in a file, which need not be there yet; without a path they are kept nowhere. `starts_hosts` says that
    runs of hosts measure them, and not this process alone."""

    def __init__(self, path: Path | None, *, starts_hosts: bool = False) -> None:
        self._path, self._starts_hosts = path, starts_hosts
        file = json.loads(path.read_text()) if path is not None and path.exists() else {}
        if "cells" not in file:  # As it was before places were kept.
            file = {"cells": file}
        super().__init__(file["cells"])
        self.places: dict[str, dict[str, Any]] = file.get("places", {})
        self.made: dict[str, str] = file.get("made", {})
        """The place of a cell."""
        self.repeats: dict[str, dict[str, dict[str, Any]]] = file.get("repeats", {})
        """Of a cell by other places, what each measured."""

    def keep(self, name: str, cell: dict[str, Any]) -> None:
        """Add a cell, and bring the file up to date."""
        self[name], self.made[name] = cell, self._here
        self.repeats.pop(name, None)
        self._write()

    def repeat(self, name: str, cell: dict[str, Any]) -> None:
        """Add what this place measures of a cell that is there from another; in its own place it replaces it."""
        if name not in self or self.made.get(name) == self._here:
            self.keep(name, cell)
            return
        self.repeats.setdefault(name, {})[self._here] = cell
        self._write()

    @cached_property
    def _here(self) -> str:
        """This place, noted. The modules are those at the first cell: then all that measures is loaded."""
        here = place(starts_hosts=self._starts_hosts)
        self.places[id_of(here)] = here
        return id_of(here)

    def _write(self) -> None:
        if self._path is None:
            return
        used = {*self.made.values(), *(of for repeats in self.repeats.values() for of in repeats)}
        file = {"cells": self, "made": self.made, "repeats": self.repeats}
        file["places"] = {name: of for name, of in self.places.items() if name in used}
        whole = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        whole.write_text(json.dumps(file, indent=1) + "\n")
        whole.replace(self._path)  # Whoever is killed leaves all cells, or all but one.

    def place_of(self, name: str) -> str:
        """The place in which a cell was made."""
        return self.made.get(name, UNKNOWN)

    def told(self, figure: str = "loss") -> str:
        """The sentences beneath a table: how many cells each place made, and how far repeated ones are apart."""
        return " ".join(_told(self, figure))


def _told(cells: KeptCells, figure: str) -> Iterator[str]:
    measured = [name for name, cell in cells.items() if figure in cell] or list(cells)
    told = {of: words(place) for of, place in cells.places.items()}  # Modules apart, several may be one.
    by = Counter(told.get(cells.place_of(name), UNKNOWN) for name in measured)
    for where, count in by.most_common():
        yield f"{count} cells: {'a place that was not noted' if where == UNKNOWN else where}."
    if UNKNOWN in by or len({machine(cells.places[of]) for of in set(map(cells.place_of, measured))}) > 1:
        apart = spreads(cells, cells.repeats, figure)
        if not apart:
            yield "No cell was repeated in another place, so differences between places are not known."
        else:
            widest = max(apart, key=apart.__getitem__)
            yield f"Of {len(apart)} cells that were repeated in another place, {figure} differs by {apart[widest]:.4f}"
            yield f"at most ({widest})."


def spreads(
    cells: Mapping[str, Mapping[str, Any]], repeats: Mapping[str, Mapping[str, Mapping[str, Any]]], figure: str
) -> dict[str, float]:
    """By cell that was repeated, how far its places are apart in one figure, where all have it as a number."""
    found = {}
    for name, others in repeats.items():
        values = [of.get(figure) for of in (cells[name], *others.values())]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) == len(values):
            found[name] = max(numbers) - min(numbers)
    return found
