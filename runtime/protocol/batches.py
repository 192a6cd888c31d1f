"""Data messages: frames made of a load of items and pieces, and items reassembled from frames.

Decides nothing but the form: `transfers` decides which items go, `session` which message is legal when.

Theory of operation. A batch is a header and raw frames. The header has the records of the items that begin in it; the
raw frames are pieces, first of the item that was begun before, then of the new ones in turn. Both sides count the items
of a connection and the pieces of the present item, so a header only has to state where it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.clock import Instant
from isthmus.runtime.items.decoding import Assembly
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.items.refusal import RefusalError
from isthmus.runtime.protocol import messages
from isthmus.runtime.protocol.credit import Intake, charge, claim
from isthmus.runtime.protocol.messages import Record
from isthmus.runtime.protocol.session_events import Event, ParcelsArrived
from isthmus.runtime.protocol.transfers import Inbound, Load, Shipment


def shipment(parcel: Parcel, snapshot: int, replaces: bool) -> Shipment:
    """A parcel prepared for one peer; its encoding may be shared among peers."""
    encoded = parcel.encoded
    assert encoded is not None
    envelope = messages.pack_envelope(parcel, snapshot, replaces)
    head_bytes = len(envelope) + len(encoded.spec) + messages.RECORD_BYTES
    return Shipment(parcel, replaces, head_bytes, encoded.sizes, (envelope, encoded))


def frames_of(load: Load, connection: int, now: Instant) -> tuple[list[Any], int]:
    """(frames, cost) of a load; its new items have begun at `now`."""
    records: list[tuple[int, Raw, Raw]] = []
    claims = 0
    for each in load.begun:
        each.begun = now
        envelope, encoded = each.cargo
        records.append((each.sequence, Raw(envelope), Raw(encoded.spec)))
        claims += each.claim
    frames: list[Any] = [b""]
    digests: list[int] = []
    raw_bytes = 0
    for each, piece in load.pieces:
        encoded = each.cargo[1]
        frames.append(encoded.pieces[piece])
        digests.append(encoded.digests[piece])
        raw_bytes += each.sizes[piece]
    header = messages.seal(connection, messages.pack_batch(load.transfer, load.piece, digests, records))
    frames[0] = header
    return frames, charge(len(header) + raw_bytes, raw_bytes + claims)


class Incoming:
    """Reassembles the batches of one connection; `intake` is charged with them."""

    def __init__(self, inbound: Inbound, intake: Intake) -> None:
        self.arrived = 0
        """Items of this connection that are complete."""
        self._inbound, self._intake = inbound, intake
        self._pieces = 0
        self._partial: tuple[Record, Assembly] | None = None

    def read(self, body: Bytes, frames: Sequence[Bytes]) -> list[Event]:
        """Items that a message completes, in one event; RefusalError if it is not the next one, or has no credit."""
        batch = messages.batch_of(body)
        raw = frames[1:]
        if len(raw) != len(batch.digests) or not (raw or batch.records):
            raise RefusalError("message", f"{len(raw)} frames, {len(batch.digests)} digests")
        if batch.transfer != self.arrived or batch.piece != self._pieces:
            found = f"item {batch.transfer}, piece {batch.piece}"
            raise RefusalError("sequence", f"{found} came, item {self.arrived}, piece {self._pieces} was due")
        items = [] if self._partial is None else [self._partial]
        claims = 0
        for record in batch.records:
            assembly = Assembly(record.tree)
            claims += claim(record.said.size_bytes, assembly.size_bytes)
            items.append((record, assembly))
        raw_bytes = sum(map(len, raw)) if raw else 0
        cost = charge(len(frames[0]) + raw_bytes, raw_bytes + claims)
        self._intake.receive(cost)
        return [ParcelsArrived(self._assemble(items, raw, batch.digests), cost)]

    def _assemble(
        self, items: list[tuple[Record, Assembly]], raw: Sequence[Bytes], digests: list[int]
    ) -> deque[tuple[int, Parcel]]:
        """Distribute the pieces over the items that want them; (snapshot number, parcel) of each that is complete."""
        parcels: deque[tuple[int, Parcel]] = deque()
        places = []
        used = 0
        self._partial = None
        count = len(raw)
        for record, assembly in items:
            if self._partial is not None:
                raise RefusalError("message", "an item begins before the one before it is complete")
            while assembly.wanted and used < count:
                assembly.add(raw[used], digests[used])
                used += 1
                self._pieces += 1
            if assembly.wanted:
                self._partial = record, assembly
                continue
            said = record.said
            places.append((said.edge, record.sequence, said.replaces))
            parcel = Parcel(said.edge, said.key, assembly.item, said.fields, said.digest, said.size_bytes)
            parcels.append((said.snapshot, parcel))
            self._pieces = 0
        if used < count:
            raise RefusalError("message", f"{count - used} frames belong to no item")
        self._inbound.arrive(places)
        self.arrived += len(places)
        return parcels
