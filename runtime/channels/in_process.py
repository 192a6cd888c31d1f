"""The in-process channel: hosts in one process, on one clock.

A transfer takes the edge's delay, which is a function of edge, ends and size given to the network (zero by default).
Under the virtual clock this is the modelled network of a test; on the real clock it is a hop of the event loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Generic, TypeVar

from isthmus.runtime.channels.contract import OnTransfer, Parcel, Receiver
from isthmus.runtime.clock import Clock, Duration, Instant
from isthmus.runtime.ids import Member

Entry = TypeVar("Entry")


class Line(Generic[Entry]):
    """Waiting entries in order. An entry with a place takes over the position of the one that has the place.

    Only this class writes `entries`.
    """

    __slots__ = ("_tickets", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[object, Entry] = OrderedDict()
        self._tickets = 0

    def put(self, entry: Entry, place: tuple[object, ...] | None) -> Entry | None:
        """Add an entry at the end, or at its place; returns the one that it supersedes."""
        if place is None:
            self._tickets += 1
            self.entries[self._tickets] = entry
            return None
        superseded = self.entries.get(place)
        self.entries[place] = entry
        return superseded

    def put_back(self, entry: Entry, place: tuple[object, ...] | None) -> bool:
        """Add an entry at the front; False, and nothing is added, if a newer one has its place."""
        key: object = place
        if place is None:
            self._tickets += 1
            key = self._tickets
        if key in self.entries:
            return False
        self.entries[key] = entry
        self.entries.move_to_end(key, last=False)
        return True

    def first(self) -> Entry | None:
        """The first entry; None if there is none."""
        for entry in self.entries.values():
            return entry
        return None

    def pop(self) -> Entry:
        """Remove and return the first; KeyError if there is none."""
        return self.entries.popitem(last=False)[1]

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


Delay = Callable[[int, Member, Member, int], Duration]
"""(edge, source, target, size in bytes) -> how long a transfer takes."""

WINDOW_BYTES: Final = 64 << 20


def no_delay(edge: int, source: Member, target: Member, size_bytes: int) -> Duration:
    """Every transfer arrives on the next turn of the loop."""
    return Duration(0)


class _Lane:
    """Everything from one host to one other.

    The line, what is under way (and since when), and what the receiver holds while it is paused. All but the line count
    in the window. `pace` bounds what is under way.
    """

    __slots__ = ("arrives_last", "held", "line", "pace", "under_way", "window_used")

    def __init__(self) -> None:
        self.line: Line[Parcel] = Line()
        self.under_way: deque[tuple[Parcel, Instant]] = deque()
        self.arrives_last = Instant(0)
        self.held: deque[Parcel] = deque()
        self.window_used = 0
        self.pace: int | None = None

    def clear(self) -> int:
        """Drop everything; returns how many items that were."""
        lost = len(self.line) + len(self.under_way) + len(self.held)
        for part in (self.line, self.under_way, self.held):
            part.clear()
        return lost


class Network:
    """The hosts of one process; creates the channel of each."""

    def __init__(
        self,
        clock: Clock,
        *,
        delay: Delay = no_delay,
        window_bytes: int = WINDOW_BYTES,
        watch: OnTransfer | None = None,
    ) -> None:
        self.clock = clock
        self.delay = delay
        self.window_bytes = window_bytes
        self.watch = watch
        self.ends: dict[Member, InprocChannel] = {}

    def join(self, member: Member) -> InprocChannel:
        """Create the channel of a new member."""
        if member in self.ends:
            raise ValueError(f"{member} has joined already")
        end = InprocChannel(self, member)
        self.ends[member] = end
        return end


class InprocChannel:
    """One host's end of the network."""

    def __init__(self, network: Network, member: Member) -> None:
        self.member = member
        self._network = network
        self._receiver: Receiver | None = None
        self._lanes: dict[Member, _Lane] = {}
        self._is_paused = False
        self._counts: Counter[str] = Counter()

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.resume()

    def send(self, target: Member, parcel: Parcel, *, replaces: bool) -> None:
        if target not in self._network.ends or self._network.ends.get(self.member) is not self:
            self._counts["dropped"] += 1
            return
        lane = self._lanes.setdefault(target, _Lane())
        superseded = lane.line.put(parcel, (parcel.edge, parcel.key) if replaces else None)
        self._counts["superseded"] += superseded is not None
        self._advance(target, lane)

    def grant(self, source: Member, edge: int, count: int) -> None:
        at = Instant(self._network.clock.now() + self._network.delay(edge, self.member, source, 0))

        def arrive() -> None:
            peer = self._network.ends.get(source)
            if peer is not None and peer._receiver is not None and self._network.ends.get(self.member) is self:
                peer._receiver.credit_granted(self.member, edge, count)

        self._network.clock.call_at(at, arrive)

    def pace(self, target: Member, size_bytes: int) -> None:
        if target in self._network.ends:
            lane = self._lanes.setdefault(target, _Lane())
            lane.pace = size_bytes
            self._advance(target, lane)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        for source in list(self._network.ends.values()):
            lane = source._lanes.get(self.member)
            while lane is not None and lane.held and self._is_taking():
                source._deliver(self, lane, lane.held.popleft())

    def close(self) -> None:
        if self._network.ends.get(self.member) is self:
            del self._network.ends[self.member]
        self._receiver = None
        self._counts["dropped"] += sum(lane.clear() for lane in self._lanes.values())
        self._lanes.clear()
        for peer in self._network.ends.values():
            lane = peer._lanes.pop(self.member, None)
            if lane is not None:
                peer._counts["dropped"] += lane.clear()

    def statistics(self) -> dict[str, int]:
        """Items and bytes sent and received, items superseded and dropped.

        Every item handed to `send` is in the end received by a peer, superseded or dropped; `items_sent` counts the
        transfers that began.
        """
        names = ("items_sent", "items_received", "bytes_sent", "bytes_received", "superseded", "dropped")
        return {name: self._counts[name] for name in names}

    def _is_taking(self) -> bool:
        return self._receiver is not None and not self._is_paused

    def _advance(self, target: Member, lane: _Lane) -> None:
        """Begin the transfers that the window allows."""
        network = self._network
        while (parcel := lane.line.first()) is not None:
            is_granted = lane.window_used + parcel.size_bytes <= network.window_bytes
            is_paced = lane.pace is None or lane.window_used <= lane.pace
            if lane.window_used and not (is_granted and is_paced):
                return
            lane.line.pop()
            lane.window_used += max(parcel.size_bytes, 1)
            now = network.clock.now()
            delay = network.delay(parcel.edge, self.member, target, parcel.size_bytes)
            lane.arrives_last = Instant(max(now + delay, lane.arrives_last))
            lane.under_way.append((parcel, now))
            self._counts["items_sent"] += 1
            self._counts["bytes_sent"] += parcel.size_bytes
            network.clock.call_at(lane.arrives_last, partial(self._arrive, target, lane))

    def _arrive(self, target: Member, lane: _Lane) -> None:
        """End the transfer that began first: this keeps the order, whichever timer fires."""
        if not lane.under_way:
            return  # One of the two ends has left.
        parcel, begun = lane.under_way.popleft()
        network = self._network
        if network.watch is not None:
            network.watch(parcel.edge, self.member, target, parcel.size_bytes, begun, network.clock.now())
        peer = network.ends[target]
        if lane.held or not peer._is_taking():
            lane.held.append(parcel)
        else:
            self._deliver(peer, lane, parcel)

    def _deliver(self, peer: InprocChannel, lane: _Lane, parcel: Parcel) -> None:
        assert peer._receiver is not None
        lane.window_used -= max(parcel.size_bytes, 1)
        peer._counts["items_received"] += 1
        peer._counts["bytes_received"] += parcel.size_bytes
        peer._receiver.item_arrived(self.member, parcel)
        self._advance(peer.member, lane)
