"""The host processes of a run as its daemon knows them, and when the next one of a replica is to be started.

A life is one process in its replica's place. A restart is at once the first time; lives that end one after another
before they came to anything make it wait longer, and in the end say that the program is at fault.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.runtime.clock import Duration
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.presence import PHASES, HeartbeatArrived, Phase

BACKOFF_SECONDS: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before the n-th start in a row that did not come to anything; the first restart is at once."""
FAILURES_MAX: Final = 5
"""So many lives in a row that end before they served: the program is at fault, and the run has failed."""
HEALTHY_SECONDS: Final = 10.0
"""A life this long after it began to serve wipes out the failures before it."""
SERVING: Final = frozenset({"stepping", "serving", "final"})


@dataclass(slots=True)
class Life:
    """One host process, and whether it `is_child` of this one. `watch` is its pidfd, None for one that is on another
    machine, which says whether the process `is_stopped`; `peer` the address of its control socket once it has said
    hello, `error` what it said of its failure, `beats` how often it was heard."""

    member: Member
    pid: int
    watch: int | None
    is_child: bool
    is_stopped: bool = False
    peer: bytes = b""
    error: str = ""
    beats: int = 0
    endpoints: list[str] = field(default_factory=list)
    phase: Phase = "starting"
    served_at: float | None = None
    published: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def take(self, told: Mapping[str, Any], now: float) -> None:
        """Note what it says of itself; KeyError, TypeError or ValueError for what no host of ours says."""
        phase = next((known for known in PHASES if known == told["phase"]), None)
        if phase is None:
            raise ValueError(f"no phase: {told['phase']!r}")
        endpoints = list(map(str, told["endpoints"]))
        published, figures = dict(told["published"]), dict(told["figures"])
        self.endpoints, self.phase, self.published, self.figures = endpoints, phase, published, figures
        self.beats += 1
        if phase in SERVING and self.served_at is None:
            self.served_at = now

    def heartbeat(self) -> HeartbeatArrived:
        """What it said last; TypeError or ValueError for figures that are no numbers."""
        steps, busy, firing = (max(0, int(self.figures.get(name, 0))) for name in ("steps", "busy_ns", "firing_ns"))
        node = str(self.figures.get("firing_node", ""))
        return HeartbeatArrived(self.member, self.phase, steps, Duration(busy), Duration(firing), node)

    def shown(self) -> dict[str, Any]:
        """What a status shows of it; what a recorder publishes is the run's and not its own."""
        published = self.published if self.member.replica.role != "recorder" else {}
        return {"pid": self.pid, "phase": self.phase, **self.figures, "published": published}


class Restarts:
    """Counts, for each replica, the lives in a row that came to nothing."""

    def __init__(self) -> None:
        self._failures: dict[Replica, int] = {}

    def delay(self, life: Life, now: float) -> float | None:
        """Seconds to wait before the life after this one, which has ended; None if there is no point in another."""
        replica = life.member.replica
        is_healthy = life.served_at is not None and now - life.served_at >= HEALTHY_SECONDS
        failures = self._failures[replica] = 1 if is_healthy else self._failures.get(replica, 0) + 1
        if failures > FAILURES_MAX:
            return None
        return BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1]


def ending(code: int | None) -> str:
    """How a process ended, in words; None where its exit status is not ours to know."""
    if code is None:
        return "ended"
    if code < 0:
        return f"killed by signal {signal.Signals(-code).name}"
    return f"exited with status {code}" if code else "exited"
