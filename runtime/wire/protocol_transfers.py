"""Items from one host to one other: those that wait, those under way, and those that arrived, over all connections.

It decides the order of items and of their pieces, what a newer item supersedes, how many bytes may be under way, what
is sent again on a new connection, and the form of data messages. It does not know sockets or time; `protocol_session`
decides which message is legal when.

Theory of operation. A *line* holds what waits, in the order in which places were taken; a newer item of a Latest edge
takes the place of the older one of its key, so no key starves. A *shipment* is an item on its way: it waits in the
line, begins (only then does it get a sequence number), is sent piece by piece without a break, and is kept until the
other side acknowledges it. On a new connection the other side reports what it had, per edge; those shipments are done,
the rest go back to the front of the line, except those superseded meanwhile. Sequence numbers of a Queue edge have no
gaps; those of a Latest edge only grow.

A batch is a header and raw frames. The header has the records of the items that begin in it; the raw frames are pieces,
first of the item that was begun before, then of the new ones in turn. Both sides count the items of a connection and
the pieces of the present item, so a header only states where it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.channels.in_process import Line
from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.ids import Member
from isthmus.runtime.items.decoding import Assembly, Lately
from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.items.layout import Bytes, RefusalError
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.protocol_credit import (
    CHARGE_MIN,
    EDGES_MAX,
    PACE_BYTES_MIN,
    WINDOW_BYTES_MAX,
    Intake,
    Window,
    charge,
    claim,
)
from isthmus.runtime.wire.protocol_messages import ItemRecord, PiecePlace

HEAD_BYTES_MAX: Final = 64 << 10
"""Bytes of the records of one message, beyond the first: libzmq copies them while the loop waits."""
OVERHEAD_BYTES: Final = 64
"""Bytes of a message beside its records, pieces, and digests; an upper bound."""
PIECE_OVERHEAD_BYTES: Final = 40
"""A digest and a place; an upper bound."""
WAITING_MAX: Final = 1 << 18
"""Items for one peer that wait or are kept: four times the largest capacity of a Queue."""

_NEVER: Final = Instant(0)


class Lodging(Protocol):
    """The places in segments that have, or get, the large pieces of one item."""

    def has_piece(self, piece: int) -> bool:
        """Whether a piece can be sent now."""

    def place_of(self, piece: int) -> tuple[int, int] | None:
        """Where a piece lies that can be sent, as (segment, offset); None for one that has a frame."""


class SharedMemory(Protocol):
    """Memory that two hosts of one machine lend each other, as long as their session lasts."""

    @property
    def has_ended_leases(self) -> bool:
        """Whether there is something to give back."""

    def lodge(self, encoded: Encoded) -> Lodging | None:
        """Places for one transfer of an item to this peer; None where it goes in frames."""

    def lease_of(self, segment: int) -> Bytes:
        """A segment that the peer has lent, for one item; RefusalError if it has not."""

    def settle(self) -> None:
        """Hear what the peer lends and gives back, and give back what is not used here any more. Never waits.

        RefusalError for a descriptor or message that is none of ours.
        """

    def close(self) -> None:
        """End it: nothing that is in use is written again."""


class Shipment(msgspec.Struct, eq=False, gc=False):
    """An item on its way to one peer."""

    parcel: Parcel
    replaces: bool
    head_bytes: int
    """Of its record, or its `claim`, if that is more."""
    sizes: Sequence[int]
    """Those of its pieces."""
    cargo: Any
    """For the packer."""
    claim: int = 0
    """Beyond its pieces."""
    place: tuple[int, int | str | None] | None = None
    """Its position in the line, shared with the others of its mailbox; None: behind everything."""
    sequence: int = 0
    sent: int = 0
    """How many pieces were sent on the present connection."""
    begun: Instant = _NEVER
    """When the first of them was."""
    lodging: Lodging | None = None
    """What has its large pieces there."""

    def __post_init__(self) -> None:
        if self.replaces:
            self.place = self.parcel.edge, self.parcel.key
        self.claim = claimed = claim(self.parcel.size_bytes, sum(self.sizes) if self.sizes else 0)
        if claimed > self.head_bytes:
            self.head_bytes = claimed


class Load(msgspec.Struct, frozen=True, gc=False):
    """The content of the next message. `transfer` and `piece` number the first item and its first piece in it."""

    transfer: int
    piece: int
    begun: list[Shipment]
    pieces: list[tuple[Shipment, int]]


class Outbound:
    """All shipments to one peer. `acknowledged` counts the items of this connection that the peer was given.

    `pace` bounds what is under way (`protocol_credit`).
    """

    def __init__(self) -> None:
        self.line: Line[Shipment] = Line()
        self.kept: deque[Shipment] = deque()
        self.window: Window | None = None
        self.pace = WINDOW_BYTES_MAX
        self.items_begun = self.bytes_begun = 0
        self.acknowledged = 0
        self._sequences: dict[int, int] = {}
        self._begun = 0
        self._current: Shipment | None = None

    def put(self, shipment: Shipment) -> Shipment | None:
        """Queue a shipment; returns the one that it supersedes. LocalProtocolError if far too many wait."""
        if len(self.line.entries) + len(self.kept) >= WAITING_MAX:
            raise LocalProtocolError(
                f"{WAITING_MAX} items wait for one peer (edge {shipment.parcel.edge}, key {shipment.parcel.key!r}):"
                f" more than Queue capacities and mailbox keys allow"
            )
        return self.line.put(shipment, shipment.place)

    def keep(self, pace: int) -> None:
        """Keep at most `pace` bytes and the newest message under way from now on."""
        self.pace = min(max(pace, PACE_BYTES_MIN), WINDOW_BYTES_MAX)

    def open(self, window: Window, delivered: Mapping[int, int]) -> tuple[list[Shipment], list[Shipment]]:
        """Start a new connection, on which the other side had `delivered`; returns (done, superseded) shipments."""
        done, superseded = [], []
        for shipment in reversed(self.kept):
            if shipment.sequence <= delivered.get(shipment.parcel.edge, 0):
                done.append(shipment)
                continue
            shipment.sent = 0
            if shipment.replaces:
                shipment.sequence = 0
            if not self.line.put_back(shipment, shipment.place):
                superseded.append(shipment)
        self.kept.clear()
        self.window = window
        self._begun = self.acknowledged = 0
        self._current = None
        return done[::-1], superseded

    def suspend(self) -> None:
        """The connection has ended: nothing is sent before the next one opens, and no item keeps its place in segments.

        The peer may never come again, and what was not acknowledged waits for it.
        """
        self.window = None
        for shipment in self.kept:
            shipment.lodging = None

    def has_more(self) -> bool:
        """Whether anything waits, or is partly sent."""
        return self._current is not None or bool(self.line.entries)

    def load(
        self, raw_bytes_max: int, pieces_max: int, records_max: int, lending: SharedMemory | None = None
    ) -> Load | None:
        """The next load, within these limits: at least one piece or item; None if nothing waits or credit is short.

        The load counts as under way from now on. Items that begin get a place in `lending`, where there is one; an item
        then begins before its first piece is there.
        """
        window, current = self.window, self._current
        if window is None or (current is None and not self.line.entries):
            return None
        room = min(window.size_bytes, self.pace) - window.under_way
        begun: list[Shipment] = []
        pieces: list[tuple[Shipment, int]] = []
        load = Load(self._begun - (current is not None), current.sent if current else 0, begun, pieces)
        head_bytes, raw_bytes = OVERHEAD_BYTES, 0

        def fits(head: int, raw: int) -> bool:
            """Whether a record with its first piece, or another piece, may go, too."""
            count = len(pieces) + (raw > 0)
            if begun or pieces:
                if head_bytes + head > HEAD_BYTES_MAX or (head and len(begun) == records_max):
                    return False
                if raw_bytes + raw > raw_bytes_max or count > pieces_max:
                    return False
            cost = head_bytes + head + raw_bytes + raw + count * PIECE_OVERHEAD_BYTES
            if not (begun or pieces):
                return window.may_go(max(cost, CHARGE_MIN), self.pace)
            return cost <= room and room >= CHARGE_MIN

        while (shipment := self._current or self.line.first()) is not None:
            sizes, count = shipment.sizes, len(shipment.sizes)
            if not count and begun and raw_bytes <= raw_bytes_max and len(pieces) <= pieces_max:
                taken = head_bytes + raw_bytes + len(pieces) * PIECE_OVERHEAD_BYTES
                left_bytes = min(HEAD_BYTES_MAX - head_bytes, room - taken) if room >= CHARGE_MIN else 0
                small = self._begin_small(left_bytes, records_max - len(begun))
                if not small:
                    break
                begun += small
                head_bytes += sum([each.head_bytes for each in small])
                continue
            is_new = shipment is not self._current
            if is_new and not fits(shipment.head_bytes, sizes[0] if count else 0):
                break
            if is_new:
                self._begin(self.line.pop())
                begun.append(shipment)
                head_bytes += shipment.head_bytes
                if lending is not None and count:
                    shipment.lodging = lending.lodge(shipment.cargo[1])
            lodging = shipment.lodging
            # The check of its record included the first piece.
            while shipment.sent < count and (is_new or fits(0, sizes[shipment.sent])):
                if lodging is not None and not lodging.has_piece(shipment.sent):
                    break
                is_new = False
                pieces.append((shipment, shipment.sent))
                raw_bytes += sizes[shipment.sent]
                shipment.sent += 1
            if shipment.sent < count:
                break
            self._current = None
        return load if begun or pieces else None

    def acknowledge(self, total: int) -> list[Shipment]:
        """The other side has `total` items of this connection; returns the new ones. RefusalError for a wrong total."""
        complete = self._begun - (self._current is not None)
        if not self.acknowledged <= total <= complete:
            raise RefusalError(
                "credit", f"{total} items acknowledged, {self.acknowledged} before, {complete} were sent"
            )
        done = [self.kept.popleft() for _ in range(total - self.acknowledged)]
        self.acknowledged = total
        return done

    def close(self) -> int:
        """The peer has left: drop everything; returns how many items that were."""
        count = len(self.line) + len(self.kept)
        self.line.clear()
        self.kept.clear()
        self._current = self.window = None
        return count

    def _begin_small(self, left_bytes: int, count_max: int) -> list[Shipment]:
        """Begin, and so complete, the items at the front of the line that have no pieces, as far as they fit."""
        begun: list[Shipment] = []
        for shipment in self.line:
            left_bytes -= shipment.head_bytes
            if shipment.sizes or left_bytes < 0 or len(begun) == count_max:
                break
            begun.append(shipment)
        size_bytes = 0
        for shipment in begun:
            self.line.pop()
            parcel = shipment.parcel
            edge = parcel.edge
            size_bytes += parcel.size_bytes
            if not shipment.sequence:
                shipment.sequence = self._sequences[edge] = self._sequences.get(edge, 0) + 1
        self._begun += len(begun)
        self.items_begun += len(begun)
        self.bytes_begun += size_bytes
        self.kept += begun
        return begun

    def _begin(self, shipment: Shipment) -> None:
        edge = shipment.parcel.edge
        if not shipment.sequence:
            shipment.sequence = self._sequences[edge] = self._sequences.get(edge, 0) + 1
        self._current = shipment
        self._begun += 1
        self.items_begun += 1
        self.bytes_begun += shipment.parcel.size_bytes
        self.kept.append(shipment)


class Inbound:
    """The last sequence number of each edge that has arrived from one peer."""

    def __init__(self) -> None:
        self.delivered: dict[int, int] = {}

    def arrive(self, places: Iterable[tuple[int, int, bool]]) -> None:
        """Count (edge, sequence, replaces) of items that came together.

        RefusalError, and none counts, if one is out of order.
        """
        last: dict[int, int] = {}
        is_known = True
        for edge, sequence, replaces in places:
            before = last[edge] if edge in last else self.delivered.get(edge, 0)
            if sequence <= before or (not replaces and sequence != before + 1):
                raise RefusalError("sequence", f"item {sequence} of edge {edge} came after item {before}")
            last[edge] = sequence
            is_known = is_known and before > 0
        if not is_known and len(self.delivered.keys() | last.keys()) > EDGES_MAX:
            raise RefusalError("crowd", f"items of more than {EDGES_MAX} edges")
        self.delivered.update(last)


class PeerUp(NamedTuple):
    """Items can be sent from now on."""


class CreditHeard(msgspec.Struct, frozen=True, gc=False):
    """The peer took `more` items of a Queue edge."""

    edge: int
    more: int


class ShipmentsEnded(msgspec.Struct, frozen=True, gc=False):
    """These have arrived, `ages` ago (0 where unknown); or, where `is_superseded`, they never will."""

    shipments: list[Shipment]
    ages: list[Duration]
    is_superseded: bool = False


class ParcelsArrived(msgspec.Struct, frozen=True, gc=False):
    """Items (each with the sender's snapshot number) that came with one message; none of them will be sent again.

    The channel removes each item that it gives to the receiver, calls `Session.acknowledge` for each, and
    `Session.consume` with `cost` after all.
    """

    parcels: deque[tuple[int, Parcel]]
    cost: int


class RelayHeard(NamedTuple):
    """A control message from `source` to `target`, one of which is the peer or this host."""

    source: Member
    target: Member
    inner: bytes


class FramesHeard(NamedTuple):
    """A data message from `source` to `target`, one of which is the peer or this host."""

    source: Member
    target: Member
    frames: Sequence[Bytes]


class UnreachableHeard(NamedTuple):
    """Messages of `source` do not reach `target`."""

    source: Member
    target: Member


class PeerRefused(NamedTuple):
    """The peer ended the connection and gave the reason."""

    reason: str
    story: str


Event: TypeAlias = (
    PeerUp | CreditHeard | ShipmentsEnded | ParcelsArrived | RelayHeard | FramesHeard | UnreachableHeard | PeerRefused
)


def shipment(parcel: Parcel, snapshot: int, replaces: bool) -> Shipment:
    """A parcel prepared for one peer; its encoding may be shared among peers."""
    encoded = parcel.encoded
    assert encoded is not None
    envelope = protocol_messages.pack_envelope(parcel, snapshot, replaces)
    head_bytes = len(envelope) + len(encoded.spec) + protocol_messages.RECORD_BYTES
    return Shipment(parcel, replaces, head_bytes, encoded.sizes, (envelope, encoded))


def frames_of(load: Load, connection: int, now: Instant) -> tuple[list[Any], int, int]:
    """(frames, cost, bytes that have no frame) of a load; its new items have begun at `now`."""
    records: list[tuple[int, Raw, Raw]] = []
    claims = 0
    for each in load.begun:
        each.begun = now
        envelope, encoded = each.cargo
        records.append((each.sequence, Raw(envelope), Raw(encoded.spec)))
        claims += each.claim
    frames: list[Any] = [b""]
    digests: list[int] = []
    places: list[PiecePlace] = []
    raw_bytes = lent_bytes = 0
    for each, piece in load.pieces:
        encoded = each.cargo[1]
        size = each.sizes[piece]
        place = None if each.lodging is None else each.lodging.place_of(piece)
        if place is None:
            frames.append(encoded.pieces[piece])
            raw_bytes += size
        else:
            places.append(PiecePlace(len(digests), *place, size))
            lent_bytes += size
        digests.append(encoded.digests[piece])
    body = protocol_messages.pack_batch(load.transfer, load.piece, digests, records, places)
    frames[0] = protocol_messages.seal(connection, body)
    raw_bytes += lent_bytes
    return frames, charge(len(frames[0]) + raw_bytes, raw_bytes + claims), lent_bytes


class Incoming:
    """Reassembles the batches of one connection; `intake` is charged with them.

    `lease_of` gives the memory of segments, where there is any.
    """

    def __init__(self, inbound: Inbound, intake: Intake) -> None:
        self.arrived = 0
        """Items of this connection that are complete."""
        self.lease_of: Callable[[int], Bytes] = _nothing_lent
        self._lent_bytes = 0
        self._inbound, self._intake = inbound, intake
        self._pieces = 0
        self._lately = Lately()
        self._partial: tuple[ItemRecord, Assembly] | None = None

    def read(self, body: Bytes, frames: Sequence[Bytes]) -> list[Event]:
        """Items that a message completes, in one event; RefusalError if it is not the next one, or has no credit."""
        batch = protocol_messages.batch_of(body)
        pieces: Sequence[Bytes | PiecePlace] = frames[1:]
        raw_bytes = sum(map(len, frames[1:])) if pieces else 0
        if batch.places:
            pieces, lent_bytes = _merged(frames[1:], batch.places), sum(place.size_bytes for place in batch.places)
            raw_bytes += lent_bytes
            self._lent_bytes += lent_bytes
        if len(pieces) != len(batch.digests) or not (pieces or batch.records):
            raise RefusalError("message", f"{len(pieces)} pieces, {len(batch.digests)} digests")
        if batch.transfer != self.arrived or batch.piece != self._pieces:
            position = f"item {batch.transfer}, piece {batch.piece}"
            raise RefusalError("sequence", f"{position} came, item {self.arrived}, piece {self._pieces} was due")
        items = [] if self._partial is None else [self._partial]
        claims = 0
        for record in batch.records:
            assembly = Assembly(record.tree, self._lately)
            claims += claim(record.envelope.size_bytes, assembly.size_bytes)
            items.append((record, assembly))
        cost = charge(len(frames[0]) + raw_bytes, raw_bytes + claims)
        self._intake.receive(cost)
        return [ParcelsArrived(self._assemble(items, pieces, batch.digests), cost)]

    def pop_lent_bytes(self) -> int:
        """How much lay in segments since the last call."""
        lent_bytes, self._lent_bytes = self._lent_bytes, 0
        return lent_bytes

    def _assemble(
        self, items: list[tuple[ItemRecord, Assembly]], pieces: Sequence[Bytes | PiecePlace], digests: list[int]
    ) -> deque[tuple[int, Parcel]]:
        """Distribute the pieces over the items that want them; (snapshot number, parcel) of each that is complete."""
        parcels: deque[tuple[int, Parcel]] = deque()
        places = []
        used = 0
        self._partial = None
        count = len(pieces)
        for record, assembly in items:
            if self._partial is not None:
                raise RefusalError("message", "an item begins before the one before it is complete")
            while assembly.wanted and used < count:
                piece = pieces[used]
                if isinstance(piece, PiecePlace):
                    where = piece.segment, piece.offset, piece.size_bytes
                    assembly.add_lent(*where, digests[used], self.lease_of)
                else:
                    assembly.add(piece, digests[used])
                used += 1
                self._pieces += 1
            if assembly.wanted:
                self._partial = record, assembly
                continue
            envelope = record.envelope
            places.append((envelope.edge, record.sequence, envelope.replaces))
            parcel = Parcel(
                envelope.edge, envelope.key, assembly.item, envelope.fields, envelope.digest, envelope.size_bytes
            )
            parcels.append((envelope.snapshot, parcel))
            self._pieces = 0
        if used < count:
            raise RefusalError("message", f"{count - used} pieces belong to no item")
        self._inbound.arrive(places)
        self.arrived += len(places)
        return parcels


def _merged(raw: Sequence[Bytes], places: Sequence[PiecePlace]) -> list[Bytes | PiecePlace]:
    """The pieces of a message in their order; RefusalError for places that are not in order, or beyond the end."""
    pieces: list[Bytes | PiecePlace] = list(raw)
    last = -1
    for place in places:
        if not last < place.index <= len(pieces):
            raise RefusalError("message", f"piece {place.index} of {len(pieces)} comes after piece {last}")
        last = place.index
        pieces.insert(last, place)
    return pieces


def _nothing_lent(segment: int) -> Bytes:
    raise RefusalError("segment", f"segment {segment} of a peer that has lent none")
