"""Makes faults happen, and counts those that really did.

Decides when each fault of a list begins and ends. One that cannot happen yet (its host is dead at the moment, for
example) waits until it can; one that still waits at the end has not happened, and is reported. A lurking fault, such as
a disk's trouble, is in place from its moment on; it has happened, and begins to last, when it strikes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.acts import Acts, Disturbed
from isthmus.runtime.sim.faults import (
    BreakDisk,
    DieAll,
    Fault,
    FillDisk,
    Forge,
    HostFault,
    LurkingFault,
    RefuseStarts,
    SlowStarts,
)

LURKING_SECONDS: Final = 1.0
"""The time after the first refused process at which a machine has room again."""


class Injector:
    """Injects the faults of one universe; `acts` has their effects.

    `counts` has how often each kind happened, `phases` the same by (kind, phase of the run); `story` lists when each
    happened, `happened` each fault with the phase of the run; `waiting` are faults that are due and could not happen
    yet, `calm_since` is when the last one began or ended.
    """

    def __init__(self, universe: Disturbed, faults: Iterable[Fault]) -> None:
        self.counts: Counter[str] = Counter()
        self.phases: Counter[tuple[str, str]] = Counter()
        self.story: list[tuple[Instant, str]] = []
        self.happened: list[tuple[Fault, str]] = []
        self.waiting: list[Fault] = []
        self.calm_since = Instant(0)
        self._universe = universe
        self._acts = Acts(universe, self._last, self._struck)
        self._numbers = 0
        self._coming: list[Fault] = []
        self._late: list[Fault] = []
        self._never: list[Fault] = []
        self._ends: dict[int, Callable[[], object]] = {}
        self._lurking: dict[int, LurkingFault] = {}
        for fault in faults:
            if fault.at is None:
                self.waiting.append(fault)
            else:
                self._expect(fault, Instant(seconds(fault.at)))

    @property
    def touched(self) -> set[Replica]:
        """The replicas whose hosts a fault concerned."""
        return self._acts.touched

    @property
    def forgeries(self) -> dict[Replica, list[Forge]]:
        """The changes to the items that hosts send, by replica."""
        return self._acts.forgeries

    @property
    def is_calm(self) -> bool:
        """Whether no fault lasts."""
        return not self._ends

    @property
    def missed(self) -> list[str]:
        """The faults that have not happened."""
        return [str(fault) for fault in (*self._never, *self.waiting, *self._coming, *self._lurking.values())]

    def look(self) -> None:
        """Start the waiting faults that can happen now."""
        phase = self._universe.phase if any(fault.at_phase is not None for fault in self.waiting) else ""
        for fault in list(self.waiting):
            if fault in self._late or self._is_time(fault, phase):
                self.waiting.remove(fault)
                self._come(fault)

    def heal(self) -> None:
        """End every fault that lasts, and prevent all others."""
        self._never += [*self.waiting, *self._coming, *self._lurking.values()]
        self.waiting.clear()
        self._coming.clear()
        for number, fault in self._lurking.items():
            self._acts.clear(fault, number)
        self._lurking.clear()
        for number in list(self._ends):
            self._end(number)

    def _come(self, fault: Fault) -> None:
        """Start a fault whose moment has come, now or with its delay."""
        if fault.later and fault not in self._late:
            self._late.append(fault)
            self._expect(fault, Instant(self._universe.clock.now() + seconds(fault.later)))
        elif not self._begin(fault):
            self._late.append(fault)
            self.waiting.append(fault)

    def _expect(self, fault: Fault, at: Instant) -> None:
        self._coming.append(fault)
        self._universe.clock.call_at(at, partial(self._due, fault))

    def _due(self, fault: Fault) -> None:
        if fault in self._coming:
            self._coming.remove(fault)
            self._late.append(fault)
            self._come(fault)

    def _is_time(self, fault: Fault, phase: str) -> bool:
        if fault.at_phase is not None:
            return fault.at_phase == phase
        if fault.at_step is None:
            return True
        named = self._universe.life(Replica.parse(fault.host)) if isinstance(fault, HostFault) else None
        lives = [named] if named is not None and named.step else self._universe.living()
        return max((life.step for life in lives), default=0) >= fault.at_step

    def _begin(self, fault: Fault) -> bool:
        """Start a fault, or let it lurk; returns whether it does."""
        if isinstance(fault, RefuseStarts | SlowStarts | FillDisk | BreakDisk | DieAll):
            self._lurking[self._acts.lurk(fault)] = fault
            return True
        phase = self._universe.phase
        happened = self._acts.begin(fault)
        if happened:
            self._count(fault, phase)
        return happened

    def _count(self, fault: Fault, phase: str) -> None:
        self.counts[fault.kind] += 1
        self.phases[fault.kind, phase] += 1
        self.happened.append((fault, phase))
        self.calm_since = self._universe.clock.now()
        self.story.append((self._universe.clock.now(), str(fault)))

    def _struck(self, number: int) -> None:
        """A lurking fault struck: the first time, it has happened."""
        fault = self._lurking.pop(number, None)
        if fault is not None:
            self._count(fault, self._universe.phase)
            lasts = LURKING_SECONDS if isinstance(fault, RefuseStarts) else fault.seconds
            self._last(lasts, partial(self._acts.clear, fault, number))

    def _last(self, duration: float, end: Callable[[], object]) -> None:
        """End a fault after `duration` seconds."""
        self._numbers += 1
        self._ends[self._numbers] = end
        at = Instant(self._universe.clock.now() + seconds(duration))
        self._universe.clock.call_at(at, partial(self._end, self._numbers))

    def _end(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            self.calm_since = self._universe.clock.now()
            end()
