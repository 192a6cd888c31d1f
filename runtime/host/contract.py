"""The contract between a host and what it runs: bodies, the context they are opened with, and executors.

A body is a function, or an instance that is called with its inputs by name. It returns None (nothing is emitted); a
function otherwise returns the item for port `result`, an instance a dict port -> item, or a list of (port, item) pairs
where one port emits several items. A call that is a generator yields such lists: yielded items leave at once, while the
firing continues, and returned ones at its end. Where it yields None, its host may leave its thread to other code before
the firing goes on: only the host of a loop of the user's does.

What else a body may declare, and what holds where it does not, is in `graph.body`.

An exception of a body travels as a record, `Raised`, in place of a traceback; the whole text goes to the host's log.
Firings and transfers may be kept as spans (`Trace`), in memory and bounded, for a timeline.
"""

from __future__ import annotations

import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from isthmus.runtime.channels.goodput import Rate
from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.errors import LocalProtocolError, shortened
from isthmus.runtime.graph.body import has
from isthmus.runtime.ids import HostMachine, Member
from isthmus.runtime.supervision.incidents import Raised
from isthmus.runtime.supervision.messages import Form, Formed
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.user_files import is_users

STORY_SIZE_MAX: Final = 1 << 16
"""Characters of a body's error in its host's log; a longer one contains an array."""


@dataclass(slots=True)
class EdgeTraffic:
    """Items that have passed on an edge from this host, their bytes between hosts, and waits of its nodes for it."""

    items: int = 0
    size_bytes: int = 0
    waited: int = 0


@dataclass(slots=True)
class NodeTraffic:
    """The firings of a node, their time, the items that they emitted, and how long a missing item or credit kept the
    node from firing, in waits longer than 1 ms; times in nanoseconds."""

    fired: int = 0
    spent: int = 0
    emitted: int = 0
    waited: int = 0


@dataclass(slots=True)
class Traffic:
    """Transfers and waits of a host so far; bytes are those of items that have crossed between hosts.

    `nodes` are by name, `edges` by index in the graph: zeros before anything was counted. `goodput` and `round_trips`
    are those of the links to others, as learned, by (role, slot).
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    nodes: defaultdict[str, NodeTraffic] = field(default_factory=lambda: defaultdict(NodeTraffic))
    edges: defaultdict[int, EdgeTraffic] = field(default_factory=lambda: defaultdict(EdgeTraffic))
    goodput: dict[tuple[str, int], Rate] = field(default_factory=dict)
    round_trips: dict[tuple[str, int], Duration] = field(default_factory=dict)


class IslandProcesses:
    """The processes of an island, as one of its hosts has them: here of an island of one, of which there is nothing to
    know. Kinds of islands of several are classes of this one."""

    size: int = 1
    """The number of processes whose devices belong to one island for those that compute in a host."""

    def kind(self, island: IslandDevices) -> Any:
        """The kind of that island, for its bodies; None for one of one process."""
        return None

    def begin(self, island: IslandDevices, body: Callable[[], Any], seed: int, slot: int) -> None:
        """Do what must be done before this process has threads; `body` makes the one that computes on the island."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where this host awaits the others, for their daemons to tell them; empty where it awaits none."""
        return ()

    def on_roster(self, rows: Sequence[Sequence[Any]], forms: Sequence[Form]) -> None:
        """Take in a roster: rows of (replica, incarnation, endpoints, machine), and the forms of islands."""

    @property
    def form_result(self) -> Formed:
        """What this host reports of the newest form."""
        return Formed()

    @property
    def is_forming(self) -> bool:
        """Whether computation pauses, because processes form the island."""
        return False

    def cpu_seconds(self) -> float:
        """CPU seconds of processes that compute for this host."""
        return 0.0


ONE_PROCESS: Final = IslandProcesses()


@dataclass(frozen=True, slots=True)
class IslandDevices:
    """The devices that a host may use.

    `kinds` are the names that they may have, none for any; `devices` is their number, None for all that its process
    sees, and `begin` the index of the first among those; `refusal` is the reason if it cannot have them; `processes`
    are those of the island, and `devices` those of each.
    """

    kinds: tuple[str, ...] = ()
    devices: int | None = None
    begin: int = 0
    refusal: str = ""
    processes: IslandProcesses = ONE_PROCESS

    @property
    def size(self) -> int:
        """The number of processes whose devices belong to one island for those that compute in a host."""
        return self.processes.size

    def kind(self) -> Any:
        """The kind of the island, for its bodies; None for one of one process."""
        return self.processes.kind(self)


class Whereabouts(Protocol):
    """On which machines hosts are, as one of them knows it."""

    def machine_of(self, role: str, slot: int) -> HostMachine:
        """The machine of a live host, and whose that is."""

    def was_on(self, member: Member) -> str:
        """The name of the machine of a member that was ever live; '' where it is not known."""


class Nowhere:
    """The whereabouts of a host that knows of no machines."""

    def machine_of(self, role: str, slot: int) -> HostMachine:
        return HostMachine()

    def was_on(self, member: Member) -> str:
        return ""


NOWHERE: Final = Nowhere()


@dataclass(frozen=True, slots=True)
class Context:
    """The argument of a body's `open(context)`, which its host calls in the body's own thread.

    `connected` names the ports that have an edge; `now` may be called at any time; `members` returns the live members
    of every role, as far as this host knows; `machine_of` the machine of a live (role, slot), and whose it is: without
    an owner its own, of its name, and '' where this host knows none, as where there is one machine only; `was_on` the
    name of the machine of a member that was ever live, '' where that is not known;
    `stop_requested` whether a stop of the run was ever requested, `is_stopping` whether the home says so now, which it
    does not where it has lost its ledger, `leave_requested` whether this host is to leave it; `leave` has this host
    leave for good, once no body is engaged; `publish` sets a small dict that the host shows in its status, in which the
    reason of that is (`spent`);
    `refuse` reports an item on a port, from a (slot, incarnation), that is wrong in a way that only the body can detect
    (field, expected, found): it is treated as a violation of the port's schema; `disk` is the machine's, for bodies
    that write files; `island` is None for a host that may use every device of its process; `folder` is the run's on
    this machine, where a host may leave files for its next life, None where its next life would not find them; `away`
    returns how long this host was away in all, in the user's own code (`busy.Busy`), `queued` for how long the thread
    that calls it has waited for a core.
    """

    member: Member
    node: str
    seed: int
    connected: frozenset[str]
    now: Callable[[], Instant]
    members: Callable[[], frozenset[Member]]
    machine_of: Callable[[str, int], HostMachine]
    was_on: Callable[[Member], str]
    stop_requested: Callable[[], bool]
    is_stopping: Callable[[], bool]
    leave_requested: Callable[[], bool]
    leave: Callable[[], None]
    publish: Callable[[dict[str, Any]], None]
    refuse: Callable[[str, tuple[int, int], tuple[str, str, str]], None]
    traffic: Traffic
    disk: Disk
    island: IslandDevices | None = None
    folder: Path | None = None
    away: Callable[[], Duration] = lambda: Duration(0)
    queued: Callable[[], Duration] = lambda: Duration(0)


class Executor(Protocol):
    """Runs the firings of one host; the scheduler never submits two of one node at a time.

    `has_threads`: work runs, and `done` is called, in other threads than the host's loop.
    """

    @property
    def has_threads(self) -> bool:
        """Whether `work` and `done` are called in threads of their own, or on the loop."""

    @property
    def turn(self) -> AbstractContextManager[None]:
        """The lock that a thread must hold while it calls the host; it must not be entered twice."""

    def poll(self) -> None:
        """Process the input that has arrived for this host; call it in a turn."""

    def listen(self, is_listening: bool) -> None:
        """Process input as it arrives, or only by `poll`; call it in a turn."""

    def lends(self, node: int) -> bool:
        """Whether the thread of a node is lent by other code, to which its works give it back when they yield."""

    def submit(self, node: int, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` for a node, then call `done(result, error)` in the same thread.

        In a thread that is lent, the result of `work` may be a generator, whose return value is the result.
        """

    def close(self) -> None:
        """Accept no more work. Work that has begun ends by itself; its `done` is not called."""


def pairs(body: Callable[..., Any], result: Any) -> Iterable[tuple[str, Any]]:
    """(port, item) pairs of a body's result or yield; LocalProtocolError for a result of another form."""
    if result is None:
        return ()
    kind: object = type(body)
    if not has(kind, "outputs"):
        return (("result", result),)
    if isinstance(result, list):
        for pair in result:
            if not isinstance(pair, tuple) or len(pair) != 2:
                break
        else:
            return result
    elif isinstance(result, Mapping):
        return [(name, item) for name, item in result.items() if item is not None]
    name, form = type(body).__qualname__, type(result).__name__
    raise LocalProtocolError(
        f"{name} returned a {form}: expected a dict port -> item, a list of (port, item) pairs, or None"
    )


def story(error: BaseException | None) -> str:
    """The full text of a body's error, with its traceback; of a long one, both ends."""
    text = "".join(traceback.format_exception(error)).strip() if error is not None else "unknown"
    text = text.encode(errors="backslashreplace").decode()
    half = STORY_SIZE_MAX // 2
    return text if len(text) <= STORY_SIZE_MAX else f"{text[:half]} ... {text[-half:]}"


LENGTH_MAX: Final = 500
"""Characters of a message: a longer one contains an array."""


def line_of(error: BaseException) -> tuple[str, int]:
    """The file and line to look at; '' and 0 for an exception that was never raised.

    The traceback of an error in a body is mostly ours and that of libraries. The last line that is neither is the one
    to correct; if there is none, the last line of all.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if is_users(frame.filename)]
    if not frames:
        return "", 0
    frame = (foreign or list(frames))[-1]
    return frame.filename, frame.lineno or 0


def raised(node: str, error: BaseException | None) -> Raised:
    """The record of an exception in a node."""
    if error is None:
        return Raised(node, "", "unknown", "", 0)
    file, line = line_of(error)
    return Raised(node, type(error).__qualname__, _text(_message(error)), _text(file), line)


def _message(error: BaseException) -> str:
    """The message of an exception; a KeyError shows its key as a literal, in which lines would be escaped."""
    key = error.args[0] if isinstance(error, KeyError) and len(error.args) == 1 else None
    return repr(" ".join(key.split())) if isinstance(key, str) else str(error)


def untold(node: str, story: str) -> Raised:
    """The record of a failure without an exception of a body: the last line of its story."""
    return Raised(node, "", _text((story.strip().splitlines() or ["unknown"])[-1]), "", 0)


def _text(text: str) -> str:
    """The text as one line that can be encoded."""
    line = " ".join(text.split()).encode(errors="backslashreplace").decode()
    return shortened(line, LENGTH_MAX, "the log of this host has all of it")


SPANS_MAX: Final = 400_000
"""About 100 MB of memory and 60 MB of JSON; a run of 4.1M tokens with four learners has about 100,000."""


AWAY: Final = "away"
"""The name of the spans in which a host was away; no node has it."""


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
    """Trace events, times in microseconds since `zero`.

    Perfetto and chrome://tracing open the result: a process per host, a thread per node, and the transfers as slices of
    a thread per edge of the sending host.
    """
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
