"""A made device: an accelerator on a virtual clock, for tests of what a learner waits for, and for benches.

Theory of operation. A *lane* is a queue of the device: what is put on it begins after what was put on it before. Hosts
(threads) put work on lanes and go on; the clock of a host moves by what it does itself, and to the end of what it waits
for. An *engine* copies between host and device, one copy at a time, the first that is ready first; there is one for
each direction, or one for both. So a copy on the lane that computes waits for everything that was put there before, and
whoever waits for the copy waits for that.

What may read and write what is checked as it is put on a lane: each lane, and each host, knows up to where it is
ordered behind the others (vector clocks, passed on by marks). What is not ordered behind the last write of the memory
that it uses is a fault, also where values happen to be right. So is memory that is given back to its lane while
another one may use it still. `faults` has them in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Table(NamedTuple):
    """The times of a device, in seconds and bytes a second."""

    step: float = 0.088
    """Of all that a step computes."""
    launch: float = 5e-6
    """Of the host, for each piece of work that it puts on a lane."""
    bytes_second: float = 25e9
    """Of an engine that copies between host and device."""
    is_duplex: bool = True
    """Whether each direction has an engine of its own, as on all GPUs of data centers."""
    pageable_bytes_second: float = 6e9
    """Of the same where the host's memory is not pinned, because a driver copies it through memory that is: assumed."""
    memory_bytes_second: float = 3e12
    host_bytes_second: float = 8e9
    """Of a copy by a core, from one place of the host's memory to another."""
    boundary: float = 0.8e-3
    """What the runtime takes of a core in a step (`bench_learner` on a CPU)."""


H200_LIKE: Final = Table()
"""An H200's 88 ms a step of gpt-124m in PyTorch; its links as they are sold."""

Known = dict[str, int]
"""Lane -> the number of its work up to which something is ordered behind it."""


class Mark(NamedTuple):
    """A place on a lane: the instant at which all before it is done, and behind what that is ordered."""

    at: float
    known: Known


@dataclass(slots=True)
class Lane:
    name: str
    ends: float = 0.0
    number: int = 0
    known: Known = field(default_factory=dict)
    computed: float = 0.0
    """The end of what it computed last."""
    idle: float = 0.0
    """Seconds between what it computed, since the first, in which it computed nothing."""


@dataclass(slots=True)
class Host:
    """A thread."""

    name: str
    now: float = 0.0
    known: Known = field(default_factory=dict)


class Wait(NamedTuple):
    """A host that waited: the lane's newest work among what it waited for, and for how long (0 where that was done)."""

    host: str
    is_for_newest: bool
    seconds: float
    is_copy: bool
    """Whether it waited inside of a copy, or of the reading of a value."""


@dataclass(slots=True)
class Memory:
    """What is known of a piece of the device's memory, or of the host's that is pinned."""

    lane: str
    written: tuple[str, int] | None = None
    read: Known = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)


class Engine:
    """The one that copies: a list of when it is busy, in order."""

    def __init__(self) -> None:
        self._busy: list[tuple[float, float]] = []

    def copy(self, ready: float, seconds: float) -> float:
        """The end of a copy that is ready at an instant: in the first gap that it fits into."""
        begin = ready
        place = 0
        for place, (busy_from, until) in enumerate(self._busy):  # noqa: B007
            if begin + seconds <= busy_from:
                break
            begin = max(begin, until)
        else:
            place = len(self._busy)
        self._busy.insert(place, (begin, begin + seconds))
        self._busy.sort()
        del self._busy[:-256]
        return begin + seconds


def _merge(one: Known, other: Known) -> None:
    for lane, number in other.items():
        one[lane] = max(number, one.get(lane, 0))


class MadeDevice:
    """One device, its hosts and its lanes. `computing` is the lane on which a host puts what it computes."""

    def __init__(self, table: Table = H200_LIKE) -> None:
        self.table = table
        self.host = Host("learner")
        self._hosts = {"learner": self.host}
        self.lanes: dict[str, Lane] = {}
        self.computing = self.lane("compute")
        self.current = self.computing
        to_host = Engine()
        self._engines = {True: to_host, False: Engine() if table.is_duplex else to_host}
        self.waits: list[Wait] = []
        self.faults: list[str] = []
        self.copied: dict[str, int] = {"to host": 0, "to device": 0}

    def lane(self, name: str) -> Lane:
        """A new lane."""
        name = name if name not in self.lanes else f"{name} {len(self.lanes)}"
        self.lanes[name] = Lane(name)
        return self.lanes[name]

    @contextmanager
    def on(self, lane: Lane) -> Iterator[None]:
        """Put what is put meanwhile on a lane."""
        before, self.current = self.current, lane
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def as_host(self, name: str) -> Iterator[Host]:
        """Be another thread, which begins no sooner than this one is now."""
        before = self.host
        self.host = self._hosts.setdefault(name, Host(name))
        self.host.now = max(self.host.now, before.now)
        _merge(self.host.known, before.known)
        try:
            yield self.host
        finally:
            self.host = before

    # -- what hosts do -------------------------------------------------------------------------------------------------

    def works(self, seconds: float) -> None:
        """This thread computes."""
        self.host.now += seconds

    def launch(self, seconds: float, reads: Iterable[Memory] = (), writes: Iterable[Memory] = ()) -> None:
        """Put something to compute on the current lane."""
        lane = self._put(reads, writes)
        begin = max(lane.ends, self.host.now)
        lane.idle += begin - lane.computed if lane.computed else 0.0
        lane.ends = lane.computed = begin + seconds

    def copy(
        self,
        size_bytes: float,
        *,
        to_host: bool,
        reads: Iterable[Memory] = (),
        writes: Iterable[Memory] = (),
        blocks: bool = False,
    ) -> None:
        """Put a copy between host and device on the current lane; one of memory that is not pinned `blocks`."""
        lane = self._put(reads, writes)
        rate = self.table.pageable_bytes_second if blocks else self.table.bytes_second
        lane.ends = self._engines[to_host].copy(max(lane.ends, self.host.now), size_bytes / rate)
        self.copied["to host" if to_host else "to device"] += round(size_bytes)
        if blocks:
            self.wait_for(self.mark(lane), is_copy=True)

    def mark(self, lane: Lane) -> Mark:
        """Mark what was put on a lane so far."""
        return Mark(lane.ends, dict(lane.known))

    def order(self, lane: Lane, mark: Mark) -> None:
        """Let what is put on a lane from now on begin after a mark."""
        lane.ends = max(lane.ends, mark.at)
        _merge(lane.known, mark.known)

    def is_done(self, mark: Mark) -> bool:
        """Whether a host that asks now finds that a mark is reached; then it is ordered behind it."""
        if mark.at > self.host.now:
            return False
        _merge(self.host.known, mark.known)
        return True

    def wait_for(self, mark: Mark, *, is_copy: bool = False) -> None:
        """Let this thread wait until a mark is reached."""
        computing = self.computing
        is_for_newest = mark.known.get(computing.name, 0) >= computing.number and mark.at > self.host.now
        self.waits.append(Wait(self.host.name, is_for_newest, max(0.0, mark.at - self.host.now), is_copy))
        self.host.now = max(self.host.now, mark.at)
        _merge(self.host.known, mark.known)

    # -- what is checked -----------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """New memory of the current lane."""
        return Memory(self.current.name)

    def given_back(self, memory: Memory) -> None:
        """Nothing refers to this memory any more: what its lane is given next may be there."""
        lane = self.lanes[memory.lane]
        uses = dict(memory.read)
        if memory.written is not None:
            _merge(uses, dict([memory.written]))
        for other, number in uses.items():
            is_after = max(lane.known.get(other, 0), self.host.known.get(other, 0)) >= number
            if other != lane.name and other not in memory.kept and not is_after:
                self.faults.append(f"memory of {lane.name} given back while {other} may use it")

    def _put(self, reads: Iterable[Memory], writes: Iterable[Memory]) -> Lane:
        self.works(self.table.launch)
        lane = self.current
        _merge(lane.known, self.host.known)
        lane.number += 1
        lane.known[lane.name] = lane.number
        for memory in reads:
            self._check(lane, memory, memory.written, "read")
            memory.read[lane.name] = lane.number
        for memory in writes:
            self._check(lane, memory, memory.written, "written")
            for use in memory.read.items():
                self._check(lane, memory, use, "written")
            memory.written, memory.read = (lane.name, lane.number), {}
        return lane

    def _check(self, lane: Lane, memory: Memory, use: tuple[str, int] | None, what: str) -> None:
        if use is not None and lane.known.get(use[0], 0) < use[1]:
            self.faults.append(f"memory of {memory.lane} {what} on {lane.name}, not after its use on {use[0]}")


class Steps(NamedTuple):
    """What a stretch of steps has come to."""

    seconds: float
    """Of a step, in the mean."""
    idle: float
    """Of a step, of the lane that computes."""
    waits: list[list[Wait]]
    """Of the learner's thread, by step."""


def measured(made: MadeDevice, steps: int, make: Callable[[int], None]) -> Steps:
    """Make steps by a call for each; the first quarter warms up. A step's seconds are those of the device."""
    warm, waits = steps // 4, list[list[Wait]]()
    begun, idle = 0.0, 0.0
    for number in range(steps):
        if number == warm:
            begun, idle = made.computing.ends, made.computing.idle
        before = len(made.waits)
        make(number)
        waits.append([each for each in made.waits[before:] if each.host == "learner"])
    count = steps - warm
    return Steps((made.computing.ends - begun) / count, (made.computing.idle - idle) / count, waits[warm:])
