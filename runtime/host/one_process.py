"""A whole run in this process, in real time: one event loop, every host on it, a thread for each node's body.

The loop has a thread of its own, so that the calling thread may show progress and handle signals. A run is over when
every node named `ends_with` has finished, or when a body failed: failures are not survived here, because all hosts
share one process.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import uvloop

from isthmus.runtime.channels.in_process import Network
from isthmus.runtime.clock import Instant
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import IslandDevices, Span, Trace
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.threads import ThreadExecutor
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.system.shared_loop import SharedLoop
from isthmus.runtime.tape.reading import TapeFiles, segment_bytes
from isthmus.runtime.tape.writing import TAPE_BYTES, Tape

FLUSH_SECONDS: Final = 0.5
"""Interval at which tapes are written; a crash of the whole process loses at most this much of them."""
_ALL_DEVICES: Final[Mapping[Replica, IslandDevices]] = MappingProxyType({})


class LocalRun:
    """A run: `start`, then `wait` until it is over, then `close`. `counts` gives the number of replicas of each role.

    `islands` are the devices of this process that a replica may use, all of them where it has no entry. Tapes are
    written to `folder`, those of each host in at most `tape_bytes`; without `folder` there are none.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        counts: Mapping[str, int],
        *,
        ends_with: str,
        seed: int,
        resolve: Callable[[Reference], Any],
        folder: Path | None = None,
        tape_bytes: int = TAPE_BYTES,
        trace: Trace | None = None,
        islands: Mapping[Replica, IslandDevices] = _ALL_DEVICES,
    ) -> None:
        self.error: str | None = None
        """The full text of the error."""
        self.failed: Host | None = None
        """The host whose body raised, if that is what it is."""
        loop = uvloop.new_event_loop()
        loop.set_exception_handler(lambda loop, context: self._broken(context))
        self.loop = SharedLoop(loop)
        self.clock = LoopClock(self.loop)
        self.trace = trace
        self._edges = {index: edge for plan in plans.values() for index, edge in plan.edges.items()}
        network = Network(self.clock, watch=self._watch)
        members = [Member(Replica(role, slot), 1) for role in plans for slot in range(counts[role])]
        self._executors: list[ThreadExecutor] = []
        self.hosts: dict[Replica, Host] = {}
        self._tapes: list[tuple[Tape, TapeFiles]] = []
        self._open_ends = {
            (m.replica, n.index) for m in members for n in plans[m.replica.role].nodes if n.name == ends_with
        }
        self._over = threading.Event()
        for member in members:
            executor = ThreadExecutor(self.loop, str(member.replica))
            self._executors.append(executor)
            tape = None if folder is None else Tape(segment_bytes(tape_bytes))
            if folder is not None and tape is not None:
                self._tapes.append((tape, TapeFiles.of_host(folder, member, bytes_max=tape_bytes)))
            self.hosts[member.replica] = Host(
                plans[member.replica.role],
                member,
                clock=self.clock,
                channel=network.join(member),
                executor=executor,
                seed=seed,
                resolve=resolve,
                tape=tape,
                trace=trace,
                island=islands.get(member.replica),
                on_ended=self._ended,
                on_failed=self._failed,
            )
        self._members = members
        self._thread = threading.Thread(target=self._serve, name="loop", daemon=True)
        self._flusher = threading.Thread(target=self._flush_for_ever, name="tapes", daemon=True)
        self._is_closing = threading.Event()

    def start(self) -> None:
        """Start the loop, and open every body."""
        self._thread.start()
        self.clock.post(self._start_hosts)
        if self._tapes:
            self._flusher.start()

    def wait(self, seconds_max: float) -> bool:
        """Wait until the run is over, at most `seconds_max`; returns whether it is. The caller raises RunError."""
        return self._over.wait(seconds_max)

    def request_stop(self) -> None:
        """Ask every host to stop; from any thread."""
        for host in self.hosts.values():
            self.clock.post(partial(host.follow_stop, is_stopping=True))

    def status(self) -> dict[str, dict[str, Any]]:
        """The published status of bodies, by replica and node."""
        return {
            f"{replica}/{node}": dict(values)
            for replica, host in self.hosts.items()
            for node, values in host.published.items()
        }

    def close(self, seconds_max: float = 10.0) -> bool:
        """End at once, and close the bodies; returns whether every thread ended in time."""
        self._is_closing.set()
        stopped = threading.Event()

        def stop() -> None:
            for host in self.hosts.values():
                host.close()
            self.loop.stop()
            stopped.set()

        self.clock.post(stop)
        stopped.wait(seconds_max)
        self._thread.join(seconds_max)
        ended = not [executor for executor in self._executors if not executor.join(seconds_max)]
        if self._tapes:
            self._flusher.join(seconds_max)
            self._flush()
            for _, files in self._tapes:
                files.close()
        if ended:
            for host in self.hosts.values():
                host.bodies.close()
        if self._thread.is_alive():
            return False
        self.loop.close()
        return ended

    def _serve(self) -> None:
        self.loop.run_forever()

    def _start_hosts(self) -> None:
        for host in self.hosts.values():
            host.start(self._members)

    def _ended(self, host: Host, node: str) -> None:
        self._open_ends.discard((host.member.replica, host.plan.node_named(node).index))
        if not self._open_ends:
            self._over.set()

    def _failed(self, host: Host, node: str, error: str) -> None:
        if self.error is None:
            self.error, self.failed = error, host
        self._over.set()

    def _broken(self, context: dict[str, Any]) -> None:
        """A callback of the loop raised: a bug of ours, and the end of the run."""
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)).strip() if error is not None else str(context.get("message"))
        if self.error is None:
            self.error = f"the runtime itself failed: {story}"
        self._over.set()

    def _watch(
        self, edge: int, source: Member, target: Member, size_bytes: int, begun: Instant, arrived: Instant
    ) -> None:
        self.hosts[source.replica].carried(edge, target, size_bytes, begun, arrived)
        if self.trace is not None:
            name = self._edges[edge].name
            self.trace.add(Span(str(source.replica), name, begun, arrived, str(target.replica), size_bytes))

    def _flush_for_ever(self) -> None:
        while not self._is_closing.wait(FLUSH_SECONDS):
            self._flush()

    def _flush(self) -> None:
        for tape, files in self._tapes:
            files.write(tape)
