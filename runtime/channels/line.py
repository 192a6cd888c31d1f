"""The line of items for a peer: a newer item takes the place of the older one of its key, so no key starves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class Line(Generic[Entry]):
    """Waiting entries in order. An entry with a place takes over the position of the one that has the place.

    Only this class writes `entries`.
    """

    __slots__ = ("_tickets", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[object, Entry] = OrderedDict()
        self._tickets = 0

    def put(self, entry: Entry, place: tuple[object, ...] | None) -> Entry | None:
        """Add an entry at the end, or at its place; returns the one that it supersedes."""
        if place is None:
            self._tickets += 1
            self.entries[self._tickets] = entry
            return None
        superseded = self.entries.get(place)
        self.entries[place] = entry
        return superseded

    def put_back(self, entry: Entry, place: tuple[object, ...] | None) -> bool:
        """Add an entry at the front; False, and nothing is added, if a newer one has its place."""
        key: object = place
        if place is None:
            self._tickets += 1
            key = self._tickets
        if key in self.entries:
            return False
        self.entries[key] = entry
        self.entries.move_to_end(key, last=False)
        return True

    def first(self) -> Entry | None:
        """The first entry; None if there is none."""
        for entry in self.entries.values():
            return entry
        return None

    def take(self) -> Entry:
        """Remove and return the first; KeyError if there is none."""
        return self.entries.popitem(last=False)[1]

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())
