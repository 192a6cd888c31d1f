"""Snapshots of one life of a recorder: recalled once, taken when they are due, brought to a store, and reported.

Decides when: a snapshot is taken at intervals in which something is new, and only once the existing ones are known. The
hold nodes decide its contents. No node waits for it, and a disk that refuses costs only that snapshot: the one before
stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from isthmus.ops.exchange.messages import ShardState, WholeState
from isthmus.programs.snapshots.snapshots import FOLDER, Found, Snapshots
from isthmus.programs.snapshots.store import words
from isthmus.programs.snapshots.storing import Storing
from isthmus.programs.snapshots.urls import Place


@final
class Keeping:
    """Keeps snapshots in the run folder `folder`, one every `seconds`, and at a `place`, if given.

    `sizes` are those of the fragments, in values.
    """

    def __init__(self, folder: Path, seconds: float, place: Place | None, sizes: Sequence[int], context: Any) -> None:
        self._context, self._every = context, round(seconds * 1e9)
        life = context.member.incarnation
        self._snapshots = Snapshots(folder / FOLDER, sizes, context.disk, life)
        self._storing = None if place is None else Storing(place, folder, context.disk, life)
        self._taken_at: int | None = None
        self._has_recalled = False
        self._told_of: dict[str, Any] = {"number": 0, "taken_at": None, "faults": [], "error": None, "store": None}

    def recall(self) -> Found | None:
        """The last snapshot, on the first successful read; None before and after."""
        if self._has_recalled:
            return None
        try:
            found = self._snapshots.read()
        except OSError as error:
            self._tell(error=words(error))
            return None
        self._has_recalled = True
        number = found.manifest.number if found.manifest is not None else 0
        self._tell(number=number, faults=found.faults, error=None)
        return found

    @property
    def has_recalled(self) -> bool:
        """Whether the last snapshot has been read."""
        return self._has_recalled

    def is_due(self, now: int) -> bool:
        """Whether a snapshot is due."""
        return self._has_recalled and (self._taken_at is None or now - self._taken_at >= self._every)

    def take(self, held: Mapping[int, ShardState], states: Mapping[int, WholeState], now: int) -> None:
        """Take a snapshot of these items, if the last one has been read."""
        if not self._has_recalled:
            return
        self._taken_at = now
        try:
            self._tell(number=self._snapshots.write(held, states).number, error=None, taken_at=now)
        except OSError as error:
            self._tell(error=words(error))

    def store(self, now: int) -> None:
        """Have the newest snapshot brought to the store, if there is one."""
        storing = self._storing
        if storing is None or not self._has_recalled:
            return
        storing.see({(each.replica.role, each.replica.slot): each.incarnation for each in self._context.members()})
        storing.step(self._snapshots.newest, now)
        self._snapshots.pin(storing.offers.under_way)
        if (told := storing.told()) != self._told_of["store"]:
            self._tell(store=told)

    def of_disk(self) -> dict[str, Any]:
        """The fields of `Held` about disk and store, except `totals`."""
        told = {name: self._told_of[name] for name in ("faults", "error", "store")}
        return {"saved": self._snapshots.versions(), **told}

    def close(self) -> None:
        """Close the store."""
        if self._storing is not None:
            self._storing.close()

    def _tell(self, **news: Any) -> None:
        self._told_of = {**self._told_of, **news}
        self._context.publish(self._told_of)
