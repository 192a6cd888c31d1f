"""A whole run in virtual time: one thread, every host in it, one seed one universe.

Hosts, cores and bodies are those of a real run; only clock, executor and network are modelled. The test gives the
durations of firings and transfers, with jitter from the seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from isthmus.runtime.channels.in_process import Network
from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.errors import RunError
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import Span, Trace
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.virtual_time import InlineExecutor, Spread, VirtualClock, evenly, jittered
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.tape.writing import Tape, joined

SEGMENT_BYTES: Final = 1 << 14
"""Size of a tape's segment: small enough that most runs have several, and large enough that saving states takes no
time."""

DurationOf = Callable[[Replica, str], Duration]
"""(replica, node name) -> how long a firing of that node takes, before jitter."""

DelayOf = Callable[[str, int], Duration]
"""(edge as 'a.b -> c.d', size in bytes) -> how long a transfer takes."""


def a_millisecond(replica: Replica, node: str) -> Duration:
    """Every firing takes a millisecond."""
    return milliseconds(1)


def at_once(edge: str, size_bytes: int) -> Duration:
    """Every transfer arrives at the instant at which it was sent."""
    return Duration(0)


class World:
    """Hosts of one run under one virtual clock."""

    def __init__(
        self,
        plans: Mapping[str, Plan],
        counts: Mapping[str, int],
        *,
        seed: int,
        resolve: Callable[[Reference], Any],
        duration: DurationOf = a_millisecond,
        delay: DelayOf = at_once,
        jitter: float = 0.0,
        trace: Trace | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.trace = trace
        edges = {index: edge.name for plan in plans.values() for index, edge in plan.edges.items()}

        def watch(edge: int, source: Member, target: Member, size: int, begun: Instant, arrived: Instant) -> None:
            self.hosts[source.replica].carried(edge, target, size, begun, arrived)
            if trace is not None:
                trace.add(Span(str(source.replica), edges[edge], begun, arrived, str(target.replica), size))

        network = Network(self.clock, delay=lambda edge, source, target, size: delay(edges[edge], size), watch=watch)
        self.members = [Member(Replica(role, slot), 1) for role in plans for slot in range(counts[role])]
        self.tapes: dict[Member, Tape] = {member: Tape(SEGMENT_BYTES) for member in self.members}
        self.ended: set[tuple[str, str]] = set()
        self.error: str | None = None
        self.hosts: dict[Replica, Host] = {}
        for member in self.members:
            plan = plans[member.replica.role]
            self.hosts[member.replica] = Host(
                plan,
                member,
                clock=self.clock,
                channel=network.join(member),
                executor=InlineExecutor(self.clock, durations(plan, member.replica, duration, jitter, seed)),
                seed=seed,
                resolve=resolve,
                tape=self.tapes[member],
                trace=trace,
                on_ended=lambda host, node: self.ended.add((str(host.member.replica), node)),
                on_failed=self._failed,
            )

    def run(self, until: Callable[[], bool], *, seconds_max: float) -> None:
        """Start every host and let time pass until `until()` holds, at most `seconds_max` virtual seconds.

        Raises RunError if a body failed, TimeoutError if `until` did not come to hold.
        """
        for host in self.hosts.values():
            host.start(self.members)
        self.clock.run(lambda: self.error is not None or until(), Instant(seconds(seconds_max)))
        if self.error is not None:
            raise RunError(self.error)
        for host in self.hosts.values():
            host.check()

    def close(self) -> None:
        """End every host, and close its bodies."""
        for host in self.hosts.values():
            host.close()
        for host in self.hosts.values():
            host.bodies.close()

    def tape(self) -> dict[str, bytes]:
        """The encoded tape of every replica since the last call."""
        return {str(member.replica): joined(tape.drain()) for member, tape in self.tapes.items()}

    def _failed(self, host: Host, node: str, error: str) -> None:
        if self.error is None:
            self.error = f"{host.member.replica}, node {node!r}: {error}"


def durations(
    plan: Plan, replica: Replica, duration: DurationOf, jitter: float, seed: int, spread: Spread = evenly
) -> Callable[[int], Duration]:
    """Each node draws from a stream of its own, so that one node's firings do not move another's."""
    streams = {}
    for node in plan.nodes:
        own = zlib.crc32(f"{seed} {replica} {node.name}".encode())
        streams[node.index] = jittered(duration(replica, node.name), jitter, own, spread)
    return lambda node: streams[node]()
