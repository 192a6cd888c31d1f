"""Universes whose snapshots are stored, too, on a disk that fails and loses power, by recorders that die: whatever
happens, the newest in the store is whole, and none that was said to be there is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from isthmus.programs.engine.snapshots.keeping import LINES
from isthmus.programs.engine.snapshots.stored import heads, newest
from isthmus.programs.wings.simulation.seeds import shape_of
from isthmus.programs.wings.simulation.universe import FOLDER, STORE, outcome_of
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.machine import SimulatedDisk
from isthmus.runtime.sim.universe import HOME, Universe
from tests.effort import soaked

ASKED_EVERY = 10


class Files:
    """What is in the store, without asking the disk, which may refuse."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._files = {path.name: data for path, data in disk.files().items() if path.parent == STORE}

    def put(self, name: str, data: bytes) -> None:
        raise AssertionError(name)

    def remove(self, name: str) -> None:
        raise AssertionError(name)

    def get(self, name: str, bytes_max: int) -> bytes:
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def names(self) -> list[str]:
        return sorted(name for name in self._files if not name.startswith("."))


class StoreChecker(Checker):
    """`stored` counts the snapshots up to the newest that is there, `refused` those that the store did not take, `later
    lives` the universes in which a later life of the recorder has stored one."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def polled(self, universe: Universe) -> None:
        self.counts["polled"] += 1
        if self.counts["polled"] % ASKED_EVERY == 0:
            self._number(universe.disks[HOME])

    def ended(self, universe: Universe) -> None:
        """Look once more, and after a power failure."""
        disk, recorder = universe.disks[HOME], universe.last(Replica("recorder", 0))
        told: dict[str, Any] = {} if recorder is None else recorder.host.published.get("hold-recorder", {})
        said = (told.get("store") or {"number": 0})["number"]
        number = self._number(disk)
        disk.troubles.clear()
        disk.lose_power()
        kept = self._number(disk)
        if min(number, kept) < said:
            found = f"there is {number}, after a power failure {kept}"
            raise ViolationError(f"snapshot {said} was said to be stored: {found}")
        self.counts["stored"] += kept
        lines = disk.files().get(FOLDER / LINES, b"")
        self.counts["refused"] += lines.count(b'"refused"')
        self.counts["later lives"] += any("-000000000001-" not in name for name in heads(Files(disk).names()))

    def _number(self, disk: SimulatedDisk) -> int:
        """That of the newest, which has to be whole."""
        try:
            found = newest(Files(disk), lambda *_: None)
        except ValueError as error:
            raise ViolationError(f"no snapshot in the store is whole: {error}") from None
        if found is not None and found.faults:
            raise ViolationError(f"a snapshot in the store is not whole: {found.faults}")
        return 0 if found is None else found.head.manifest.number


@pytest.mark.long
@pytest.mark.parametrize("chosen", [(10, 25, 30), soaked(tuple(range(60)))], ids=["some", "many"])
def test_what_is_stored_is_whole_in_every_universe(chosen: tuple[int, ...]) -> None:
    checker = StoreChecker()
    for seed in chosen:
        outcome = outcome_of(replace(shape_of(seed), stores=True), checker)
        assert outcome.violation is None, (seed, outcome.violation)
    assert checker.counts["stored"] > len(chosen)
    assert checker.counts["refused"]
    assert checker.counts["later lives"]
