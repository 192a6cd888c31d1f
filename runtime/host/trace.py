"""A timeline for people: every firing and every transfer of a process, in memory and bounded.

`as_perfetto` makes the Trace Event Format that Perfetto and chrome://tracing open: a process per host, a thread per
node, and the transfers as slices of a thread per edge of the sending host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member

SPANS_MAX: Final = 400_000
"""About 100 MB of memory and 60 MB of JSON; a run of 4.1M tokens with four learners has about 100,000."""


class Span(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A firing of node `name` (`peer` is empty) or a transfer on edge `name` to `peer`."""

    host: str
    name: str
    begun: Instant
    ended: Instant
    peer: str = ""
    size_bytes: int = 0


def spans_file(run: Path, member: Member) -> Path:
    """Where a host of the run in this folder leaves its spans when it ends in good order."""
    replica = member.replica
    return run / "spans" / f"{replica.role}-{replica.slot}-{member.incarnation}.json"


class Trace:
    """Collects spans; the oldest are dropped beyond SPANS_MAX."""

    def __init__(self, spans_max: int = SPANS_MAX) -> None:
        self.spans: deque[Span] = deque(maxlen=spans_max)
        self.add = self.spans.append
        """Add one span; from any thread."""


def as_perfetto(spans: list[Span], zero: int = 0) -> Iterator[dict[str, Any]]:
    """Trace events, times in microseconds since `zero`."""
    hosts = sorted({span.host for span in spans})
    tracks = sorted({(span.host, bool(span.peer), span.name) for span in spans})
    process = {host: number for number, host in enumerate(hosts, 1)}
    thread = {track: number for number, track in enumerate(tracks, 1)}
    for host in hosts:
        yield {"ph": "M", "name": "process_name", "pid": process[host], "args": {"name": host}}
    for track in tracks:
        meta = {"ph": "M", "name": "thread_name", "pid": process[track[0]], "tid": thread[track]}
        yield meta | {"args": {"name": ("transfer " if track[1] else "") + track[2]}}
    for span in spans:
        event: dict[str, Any] = {
            "ph": "X",
            "name": span.name,
            "pid": process[span.host],
            "tid": thread[(span.host, bool(span.peer), span.name)],
            "ts": (span.begun - zero) / 1e3,
            "dur": (span.ended - span.begun) / 1e3,
        }
        if span.peer:
            event["args"] = {"to": span.peer, "bytes": span.size_bytes}
        yield event
