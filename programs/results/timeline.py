"""The timeline of a run in the form that the report needs: firings by host and node, transfers, in seconds.

Reads the Trace Event Format that `isthmus.runtime.host.contract` writes (complete events, process and thread names)
once, with typed decoding: 200,000 events take about a second and no dictionaries. Nothing is drawn here."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

MICROSECOND: Final = 1e-6


class Firing(NamedTuple):
    """One firing, in seconds since the first inner step."""

    begun: float
    ended: float


class Transfer(NamedTuple):
    """One item on its way between hosts: edge 'node.port -> node.port', in seconds and bytes."""

    begun: float
    ended: float
    source: str
    target: str
    edge: str
    size_bytes: float

    @property
    def source_node(self) -> str:
        """The node that sent it."""
        return self.edge.partition(" -> ")[0].partition(".")[0]

    @property
    def target_node(self) -> str:
        """The node that it is for."""
        return self.edge.partition(" -> ")[2].partition(".")[0]

    @property
    def target_port(self) -> str:
        """The port at which it arrives."""
        return self.edge.partition(" -> ")[2].partition(".")[2]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Firings by (host, node) and all transfers, both in the order in which they began."""

    firings: dict[tuple[str, str], list[Firing]]
    transfers: list[Transfer]

    @property
    def hosts(self) -> list[str]:
        """Every host that fired, by role and number."""
        return sorted({host for host, _ in self.firings}, key=host_order)

    def between(self, host: str, node: str, begin: float, end: float) -> list[Firing]:
        """The firings of a node that touch [begin, end]."""
        spans = self.firings.get((host, node), [])
        # Firings of one node never overlap, so their ends are sorted as well.
        first = bisect_left(spans, begin, key=lambda span: span.ended)
        last = bisect_right(spans, end, key=lambda span: span.begun)
        return spans[first:last]

    def steps_between(self, begin: float, end: float) -> list[Firing]:
        """The inner steps of all hosts that touch [begin, end]."""
        return [step for host in self.hosts for step in self.between(host, "inner-step", begin, end)]

    def transfers_between(self, begin: float, end: float) -> list[Transfer]:
        """The transfers that touch [begin, end]."""
        last = bisect_right(self.transfers, end, key=lambda transfer: transfer.begun)
        return [transfer for transfer in self.transfers[:last] if transfer.ended >= begin]


def host_order(host: str) -> tuple[str, int, str]:
    """Sorts learner/2 before learner/10."""
    role, _, number = host.partition("/")
    return (role, int(number) if number.isdecimal() else 0, host)


def slot_of(host: str) -> int | None:
    """The number of a learner's host, None for any other."""
    role, _, number = host.partition("/")
    return int(number) if role == "learner" and number.isdecimal() else None


class _Arguments(msgspec.Struct, gc=False):
    name: str = ""
    to: str = ""
    bytes: float = 0.0


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 (the format's own name)


def read_timeline(data: bytes) -> Timeline:
    """The timeline in a trace file; ValueError if it is none."""
    try:
        events = msgspec.json.decode(data, type=_File).traceEvents
    except ValueError as error:
        raise ValueError(str(error)) from None
    hosts = {event.pid: event.args.name for event in events if event.name == "process_name" and event.args}
    firings: dict[tuple[str, str], list[Firing]] = {}
    transfers: list[Transfer] = []
    for event in events:
        if event.ph != "X":
            continue
        host = hosts.get(event.pid, f"process {event.pid}")
        begun = event.ts * MICROSECOND
        ended = begun + event.dur * MICROSECOND
        if event.args is not None and event.args.to:
            transfers.append(Transfer(begun, ended, host, event.args.to, event.name, event.args.bytes))
        else:
            firings.setdefault((host, event.name), []).append(Firing(begun, ended))
    for spans in firings.values():
        spans.sort()
    transfers.sort()
    return Timeline(firings, transfers)
