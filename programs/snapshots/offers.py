"""The times at which a snapshot on the disk is brought to the store, and the reports about that.

Decides it as a core: events in, and at most one snapshot to bring. One transfer is in progress at a time; its files
stay on the disk meanwhile, and once it is there, or was refused, the newest is next. So a slow store gets fewer
snapshots and no older ones, the disk keeps at most one more than it would, and no queue grows. After a refusal there is
a pause, which doubles up to a minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from isthmus.programs.snapshots.snapshots import Manifest

PAUSE_NS: Final = 1_000_000_000
PAUSE_NS_MAX: Final = 60_000_000_000
SLOW_NS: Final = 120_000_000_000
"""Time without an answer after which a status reports it: an object of a large model takes minutes, and a store that
hangs for ever looks the same."""


@final
@dataclass(slots=True)
class Offers:
    """The state of a store.

    `under_way`: the snapshot that is being brought; `stored`: the number of the newest in the store, 0 if none is
    known; `stored_at`: since when; `error`: why the last one was refused, None if it was not.
    """

    under_way: Manifest | None = field(default=None, init=False)
    stored: int = field(default=0, init=False)
    stored_at: int | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    _begun_at: int = field(default=0, init=False)
    _next_at: int = field(default=0, init=False)
    _pause: int = field(default=PAUSE_NS, init=False)

    def offered(self, newest: Manifest | None, now: int) -> Manifest | None:
        """The snapshot to bring now, if any."""
        if newest is None or self.under_way is not None or now < self._next_at or newest.number == self.stored:
            return None
        self.under_way, self._begun_at = newest, now
        return newest

    def ended(self, error: str | None, now: int) -> None:
        """The snapshot under way was stored, or refused with `error`."""
        assert self.under_way is not None
        if error is None:
            self.stored, self.stored_at, self._pause = self.under_way.number, now, PAUSE_NS
        else:
            self._next_at, self._pause = now + self._pause, min(2 * self._pause, PAUSE_NS_MAX)
        self.under_way, self.error = None, error

    def looked(self, now: int) -> None:
        """Note an error if the snapshot under way has taken SLOW_NS."""
        if self.under_way is not None and now - self._begun_at >= SLOW_NS:
            self.error = self.error or f"no answer for {SLOW_NS // 1_000_000_000} s"
