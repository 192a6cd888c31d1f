"""The links between the daemons of a universe: messages arrive in order, late, twice or not at all.

Weather and faults decide: a message that cannot get through is lost, as on a link that is re-dialled; a repeated one
arrives once more, later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.sim.network.conditions import Weather

REPEATED_AFTER: Final = seconds(0.3)


class ControlLinks:
    """The links of one universe. `losses` and `repeats` are shares of messages, by machine and number of a fault."""

    def __init__(self, clock: VirtualClock, weather: Weather, addresses: Mapping[str, str], seed: int) -> None:
        self.losses: dict[str, dict[int, float]] = {}
        self.repeats: dict[str, dict[int, float]] = {}
        self._clock, self._weather, self._addresses = clock, weather, addresses
        self._rng = random.Random(f"{seed} control links")
        self._last: dict[tuple[str, str], Instant] = {}

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Call `arrive` when a message from one machine reaches another."""
        here, there = self._addresses[source], self._addresses[target]
        if self._weather.is_cut(here, there) or self._happens(self.losses, source, target):
            return
        at = Instant(self._clock.now() + self._weather.latency(here, there))
        at = self._last[source, target] = max(at, self._last.get((source, target), at))
        self._clock.call_at(at, arrive)
        if self._happens(self.repeats, source, target):
            self._clock.call_at(Instant(at + REPEATED_AFTER), arrive)

    def _happens(self, shares: Mapping[str, Mapping[int, float]], *machines: str) -> bool:
        share = max((each for name in machines for each in shares.get(name, {}).values()), default=0.0)
        return bool(share) and self._rng.random() < share
