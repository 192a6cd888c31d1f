"""Data messages: a load of items and pieces made into frames, and frames put together again.

Decides nothing but the form: which items go is decided by `lanes`, what is legal when by `session`.

Theory of operation. A batch is a header and raw frames. The header has the records of the items that begin in it; the
raw frames are pieces, first of the item that was begun before, then of the new ones in turn. Both sides count the items
of a connection and the pieces of the present item, so a header only has to say where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.runtime import messages
from isthmus.runtime.channel import Parcel
from isthmus.runtime.clock import Instant
from isthmus.runtime.credit import charge, claim
from isthmus.runtime.encoding import Encoded, Encoder
from isthmus.runtime.frames import Bytes
from isthmus.runtime.lanes import Inbound, Load, Shipment
from isthmus.runtime.messages import Record
from isthmus.runtime.refusal import RefusalError


def shipment(encoder: Encoder, encoded: Encoded, parcel: Parcel, snapshot: int, replaces: bool) -> Shipment:
    """A parcel made ready for one peer; `encoded` may be shared among peers."""
    envelope = messages.pack_envelope(encoder, parcel, snapshot, replaces)
    head_bytes = len(envelope) + len(encoded.spec) + messages.RECORD_BYTES
    return Shipment(parcel, replaces, head_bytes, encoded.sizes, (envelope, encoded))


def frames_of(load: Load, connection: int, now: Instant) -> tuple[list[Any], int]:
    """(frames, cost) of a load; its new items have begun at `now`."""
    records, claims = [], 0
    for each in load.begun:
        each.begun = now
        envelope, encoded = each.cargo
        records.append(messages.pack_record(each.sequence, envelope, encoded.spec))
        claims += claim(each.parcel.size_bytes, sum(each.sizes))
    raw: list[Any] = []
    digests = []
    for each, piece in load.pieces:
        _, encoded = each.cargo
        raw.append(encoded.pieces[piece])
        digests.append(encoded.digest(piece))
    header = messages.seal(connection, messages.pack_batch(load.transfer, load.piece, digests, records))
    raw_bytes = sum(map(len, raw))
    return [header, *raw], charge(len(header) + raw_bytes, raw_bytes + claims)


class Incoming:
    """The batches of one connection, put together."""

    def __init__(self, inbound: Inbound) -> None:
        self.arrived = 0
        """Items of this connection that are complete."""
        self._inbound = inbound
        self._pieces = 0
        self._partial: Record | None = None

    def read(self, fields: list[Any], frames: Sequence[Bytes]) -> tuple[messages.Batch, int]:
        """(batch, cost) of a message; RefusalError if it is not the next one."""
        batch = messages.batch_of(fields)
        raw = frames[1:]
        if len(raw) != len(batch.digests) or not (raw or batch.records):
            raise RefusalError("message", f"{len(raw)} frames, {len(batch.digests)} digests")
        if (batch.transfer, batch.piece) != (self.arrived, self._pieces):
            found = f"item {batch.transfer}, piece {batch.piece}"
            raise RefusalError("sequence", f"{found} came, item {self.arrived}, piece {self._pieces} was due")
        raw_bytes = sum(map(len, raw))
        claims = sum(claim(record.size_bytes, record.assembly.size_bytes) for record in batch.records)
        return batch, charge(len(frames[0]) + raw_bytes, raw_bytes + claims)

    def assemble(self, batch: messages.Batch, raw: Sequence[Bytes]) -> list[tuple[int, Parcel]]:
        """Give the pieces to the items that want them; (snapshot number, parcel) of each that is now complete."""
        complete = []
        used = 0
        partial, self._partial = self._partial, None
        for record in [*([partial] if partial else []), *batch.records]:
            if self._partial is not None:
                raise RefusalError("message", "an item begins before the one before it is complete")
            while record.assembly.wanted and used < len(raw):
                record.assembly.add(raw[used], batch.digests[used])
                used += 1
                self._pieces += 1
            if record.assembly.wanted:
                self._partial = record
                continue
            complete.append(record)
            self._pieces = 0
        if used < len(raw):
            raise RefusalError("message", f"{len(raw) - used} frames belong to no item")
        self._inbound.arrive([(record.edge, record.sequence, record.replaces) for record in complete])
        self.arrived += len(complete)
        return [(record.snapshot, record.parcel()) for record in complete]
