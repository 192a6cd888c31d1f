"""One host in a process of its own: the loop, the channel, the link to its daemon, and the files that it writes.

The main thread is the loop; bodies have threads of their own. The daemon sends rosters of live members and their
endpoints; this host dials some of its peers, expects others to dial it, and feeds joins and leaves to its core. It
reports four times a second. Without a message from a daemon it looks for the one that has taken over, and ends after a
minute without any; a daemon that is silent but alive (suspended, for example) is no reason to end.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import uvloop

from isthmus.runtime.channels.contract import DiallingChannel
from isthmus.runtime.clock import Clock, Instant
from isthmus.runtime.control.client import ControlClient
from isthmus.runtime.control.messages import Message
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import Island
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.raised import untold
from isthmus.runtime.host.roster import Meeting, Meetings, Row, phase, steps
from isthmus.runtime.host.supply import Supply
from isthmus.runtime.host.threads import LoopClock, ThreadExecutor
from isthmus.runtime.host.trace import Span, Trace, spans_file
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.security.keys import Keyring
from isthmus.runtime.supervision.lost_daemon import ORPHAN_SECONDS, Silence, is_orphan, is_searching
from isthmus.runtime.supervision.messages import HEARTBEAT_SECONDS, MISSING_MAX, Form, Formed
from isthmus.runtime.system import own_group
from isthmus.runtime.system.files import write_bytes
from isthmus.runtime.system.one_thread import ONE_THREAD
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.system.shared_loop import SharedLoop
from isthmus.runtime.tape.files import TAPE_BYTES, TapeFiles, segment_bytes
from isthmus.runtime.tape.payloads import Keeper, folder_of
from isthmus.runtime.tape.writing import Tape

FLUSH_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 3.0
"""The time that bodies have to end a firing when the host ends."""

OpenChannel = Callable[[Clock, Any, Callable[[int, Member, Member, int, Instant, Instant], None]], DiallingChannel]
"""(clock, loop, watch) -> the channel of this host."""


class ElasticIsland(Protocol):
    """A host's view of its island, where that goes on without some of its processes."""

    @property
    def said(self) -> Formed: ...

    @property
    def is_forming(self) -> bool: ...

    def cpu_seconds(self) -> float: ...


class HostProcess:
    """Runs one plan as one member of the run named `run`, until the daemon orders it to exit.

    `listens` is the address at which others dial it, None if none do; rosters keep `machines` (the machine of each
    member) and `keys` (the admitted ones) up to date. `island` are the devices that this host may use; the tapes of all
    lives of its replica have at most `tape_bytes`; where it `keeps_payloads`, those of firings that can be recomputed
    are stored. `endpoints` are what it reports if no host dials it; `on_roster` is called with every roster, `elastic`
    is queried for the state of an elastic island.
    """

    def __init__(
        self,
        plan: Plan,
        member: Member,
        *,
        folder: Path,
        run: str,
        daemon: str,
        zero_ns: int,
        seed: int,
        listens: str | None,
        machines: dict[Replica, str],
        keys: Keyring | None,
        meets: Callable[[Replica], Meeting],
        resolve: Callable[[Reference], Any],
        open_channel: OpenChannel,
        island: Island | None = None,
        endpoints: Sequence[str] = (),
        on_roster: Callable[[Sequence[Row], Sequence[Form]], None] | None = None,
        elastic: ElasticIsland | None = None,
        tape_bytes: int = TAPE_BYTES,
        keeps_payloads: bool = False,
    ) -> None:
        self._member, self._plan, self._folder = member, plan, folder
        self._listens, self._run = listens, run
        self._machines, self._keys = machines, keys
        loop = uvloop.new_event_loop()
        loop.set_exception_handler(lambda loop, context: self._broken(context))
        self._loop = SharedLoop(loop)
        self._clock = LoopClock(self._loop, zero_ns)
        self._trace, self._tape = Trace(), Tape(segment_bytes(tape_bytes))
        self._tape_files = TapeFiles.of_host(folder, member, bytes_max=tape_bytes)
        self._executor = ThreadExecutor(self._loop, str(member.replica))
        self._channel = open_channel(self._clock, self._loop, self._watch)
        self._host = Host(
            plan,
            member,
            clock=self._clock,
            channel=self._channel,
            executor=self._executor,
            seed=seed,
            resolve=resolve,
            tape=self._tape,
            trace=self._trace,
            island=island,
            keeper=Keeper(folder_of(folder, member)) if keeps_payloads else None,
            folder=folder,
            on_ended=self._node_ended,
            on_failed=self._failed,
        )
        self._meetings = Meetings(plan, member, channel=self._channel, meets=meets, tell=self._host.handle)
        self._endpoints = list(endpoints)
        self._on_roster, self._elastic = on_roster, elastic
        self._supply = Supply(plan)
        self._silence = Silence(time.monotonic(), HEARTBEAT_SECONDS)
        self._error: str | None = None
        self._is_over = self._gives_way = False
        self._daemon = ControlClient(self._loop, daemon, self._hear)

    def run(self) -> int:
        """Serve; returns the exit status, 0 if the daemon ended this host, 1 if it failed."""
        if self._listens is not None:
            self._endpoints = list(self._channel.bind(f"tcp://{self._listens}:0")[:2])
        self._loop.call_soon(self._begin)
        self._loop.run_forever()
        self._close()
        return 0 if self._error is None else 1

    def _begin(self) -> None:
        self._host.start([self._member])
        self._say("hello")
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)
        self._loop.call_later(FLUSH_SECONDS, self._flush)

    # -- the daemon ----------------------------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        self._silence.heard(time.monotonic())
        match message["type"]:
            case "roster":
                self._take_roster(message["members"], message["keys"], message["forms"])
            case "stop":
                if not self._host.stop_requested:
                    self._host.request_stop()
            case "exit":
                self._loop.stop()

    def _take_roster(self, rows: list[list[Any]], keys: Mapping[str, str], forms: list[Any]) -> None:
        """Apply a roster: meet new members, forget those that are gone. `keys` gives the public keys of machines."""
        self._machines.update((Replica.parse(name), machine) for name, _, _, machine in rows)
        if self._keys is not None:
            self._keys.replace({key: machine for machine, key in keys.items()})
        self._meetings.take(rows, keys)
        if self._on_roster is not None:
            self._on_roster(rows, msgspec.convert(forms, list[Form]))

    def _say(self, kind: str, **more: Any) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        traffic, published = self._host.traffic, self._host.published
        firings, standing = self._host.busy.firings(self._clock.now()), self._channel.standing()
        starved = self._supply.look(traffic, self._clock.now())
        elastic = self._elastic
        figures = {
            "formed": msgspec.to_builtins(Formed() if elastic is None else elastic.said),
            "cpu_seconds": used.ru_utime + used.ru_stime + (elastic.cpu_seconds() if elastic is not None else 0.0),
            "memory_bytes": used.ru_maxrss * 1024,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "refused": sum(self._host.refused.values()) + sum(each.count for each in self._host.refusals.values()),
            "steps": steps(published),
            "busy_ns": firings.busy,
            "firing_ns": firings.oldest,
            "firing_node": firings.node,
            "starved": None if starved is None else msgspec.to_builtins(starved),
            "peers": standing.peers,
            "unreached": len(standing.missing),
            "missing": [
                [str(member.replica), member.incarnation, silence] for member, silence in standing.missing[:MISSING_MAX]
            ],
            "refusals": [msgspec.to_builtins(each) for each in self._host.refusals.values()],
        }
        self._daemon.send(
            {
                "type": kind,
                "run": self._run,
                "replica": str(self._member.replica),
                "incarnation": self._member.incarnation,
                "pid": os.getpid(),
                "endpoints": self._endpoints,
                "phase": self._phase(published),
                "published": published,
                "figures": figures,
                **more,
            }
        )

    def _phase(self, published: Mapping[str, Mapping[str, Any]]) -> str:
        """The phase that this host reports; one whose island is forming again is not stuck in a step."""
        found = phase(self._member.replica, published, is_open=self._host.is_open)
        return "recovering" if found == "stepping" and self._elastic is not None and self._elastic.is_forming else found

    def _beat(self) -> None:
        self._loop.hear()  # While the loop does not listen, a firing may last longer than those before it.
        self._host.links.look(self._channel.under_way, self._clock.now())
        silence = self._silence.beat(time.monotonic())
        if is_searching(silence) and is_orphan(silence, has_daemon=self._find_daemon()):
            self._error = f"no daemon for {ORPHAN_SECONDS:.0f} s"
            self._loop.stop()
            return
        self._give_way()
        # Repeated: the daemon that received it first may be dead, and a run that is over has to end.
        self._say("over" if self._is_over else "heartbeat")
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)

    def _give_way(self) -> None:
        """Lower this session's weight once the learner steps: a host that begins leaves a slot empty meanwhile."""
        if not self._gives_way and self._phase(self._host.published) == "stepping":
            self._gives_way = True
            own_group.give_way()

    def _find_daemon(self) -> bool:
        """Switch to the daemon that the run folder names; returns whether its process is alive."""
        try:
            told = json.loads((self._folder / "daemon.json").read_text())
            endpoint, is_living = str(told["endpoint"]), started_at(told["pid"]) == int(told["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if endpoint != self._daemon.endpoint:
            self._daemon.dial(endpoint)
            self._say("hello")
        return is_living

    # -- the host ------------------------------------------------------------------------------------------------------

    def _node_ended(self, host: Host, node: str) -> None:
        if self._member.replica.role == "recorder":
            self._is_over = True
            self._say("over")

    def _failed(self, host: Host, node: str, error: str) -> None:
        sys.stderr.write(f"{self._member}, node {node!r}: {error}\n")
        self._error = error
        self._say("failed", error=msgspec.to_builtins(host.raised or untold(node, error)))
        self._loop.call_later(0.1, self._loop.stop)

    def _broken(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        story = "".join(traceback.format_exception(error)) if error is not None else str(context.get("message"))
        with self._loop.turn:  # A loop reports an exception after the callback's own turn.
            self._failed(self._host, "", story)

    def _watch(
        self, edge: int, source: Member, target: Member, size_bytes: int, begun: Instant, arrived: Instant
    ) -> None:
        self._host.links.carried(target, size_bytes, begun, arrived)
        name = self._plan.edges[edge].name if edge in self._plan.edges else str(edge)
        self._trace.add(Span(str(source.replica), name, begun, arrived, str(target.replica), size_bytes))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the tape; appending half a second of it takes some tens of microseconds."""
        self._tape_files.write(self._tape)
        self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _close(self) -> None:
        """Close the bodies, and write the spans to the run folder, for the timeline."""
        with self._loop.turn:
            self._host.close()
        if self._executor.join(CLOSE_SECONDS):
            self._host.bodies.close()
        self._flush()
        spans = msgspec.json.encode(list(self._trace.spans))
        with suppress(OSError):  # The timeline then lacks this host; the run does not depend on it.
            write_bytes(spans_file(self._folder, self._member), spans)
        self._tape_files.close()
        self._daemon.close()
        self._loop.close()


def environment(*, computes: bool) -> dict[str, str]:
    """The environment of a host process: those that compute share the cores of a machine, so each has one.

    NPROC=1 sizes XLA's pool of threads; it alone keeps no operation from splitting.
    """
    return {**ONE_THREAD, "NUMBA_NUM_THREADS": "1", **({"NPROC": "1"} if computes else {}), **os.environ}
