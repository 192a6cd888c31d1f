"""The weather of a universe: conditions of the network paths between machines, from the seed and the present faults.

Decides latencies, bandwidth and which paths are cut. A caller that changes it must call `Ether.changed`, so that
waiting messages may go on. Within one machine the weather is always fine.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Final

from isthmus.runtime.clock import Duration, milliseconds, seconds

LOOPBACK: Final = milliseconds(0.05)
RESENT: Final = milliseconds(200)
"""The shortest time after which Linux retransmits a lost segment."""
LOSSES_MAX: Final = 5
"""Losses in a row of one message."""


@dataclass(frozen=True, slots=True)
class Climate:
    """Network conditions without faults: a message takes `latency` plus up to `jitter` seconds, at `gbits` a second."""

    latency: float = 0.001
    jitter: float = 0.0005
    gbits: float = 2.0


class Weather:
    """The state of all paths between machines.

    `clogs`, `losses`, `paces` (in Gbit/s) are by machine, `cuts` and `mutes` (which let only messages between daemons
    through) by ordered pair of machines; each with the number of the fault that made it, so that it ends with the last
    one.
    """

    def __init__(self, climate: Climate, seed: int) -> None:
        self.climate = climate
        self.clogs: dict[str, dict[int, Duration]] = {}
        self.losses: dict[str, dict[int, float]] = {}
        self.paces: dict[str, dict[int, float]] = {}
        self.cuts: dict[tuple[str, str], set[int]] = {}
        self.mutes: dict[tuple[str, str], set[int]] = {}
        self._seed = seed
        self._rngs: dict[tuple[str, str], random.Random] = {}

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one machine to another."""
        return bool(self.cuts.get((source, target)))

    def is_mute(self, source: str, target: str) -> bool:
        """Whether nothing gets from the hosts of one machine to those of another."""
        return self.is_cut(source, target) or bool(self.mutes.get((source, target)))

    def latency(self, source: str, target: str) -> Duration:
        if source == target:
            return LOOPBACK
        rng = self._rng(source, target)
        took = seconds(self.climate.latency + self.climate.jitter * rng.random())
        for machine in (source, target):
            took = Duration(took + max(self.clogs.get(machine, {}).values(), default=0))
            share = max(self.losses.get(machine, {}).values(), default=0.0)
            lost = 0
            while share and lost < LOSSES_MAX and rng.random() < share:
                lost += 1
            took = Duration(took + lost * RESENT)
        return took

    def pace(self, source: str, target: str, size_bytes: int) -> Duration:
        if source == target:
            return Duration(0)
        slow = [pace for machine in (source, target) for pace in self.paces.get(machine, {}).values()]
        return Duration(round(8 * size_bytes / min([self.climate.gbits, *slow])))

    def clear(self) -> None:
        """End all faults."""
        self.clogs.clear()
        self.losses.clear()
        self.paces.clear()
        self.cuts.clear()
        self.mutes.clear()

    def _rng(self, source: str, target: str) -> random.Random:
        """Each path draws from a stream of its own, so that one path's messages do not change another's."""
        rng = self._rngs.get((source, target))
        if rng is None:
            rng = random.Random(zlib.crc32(f"{self._seed} {source} {target}".encode()))
            self._rngs[source, target] = rng
        return rng
