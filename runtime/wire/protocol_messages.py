"""The messages that hosts exchange, as bytes: the fields of each kind, and the limits within which it is accepted.

Decides the form of every message. `protocol_session` decides when one is sent and what follows from it.

Theory of operation. The first frame of every message is *sealed*: magic, protocol version, connection number and an
xxh3 digest of the rest, in a form that no version will change, so that foreign bytes and other versions are recognized
at once, before anything is decoded. The rest is one msgpack list, its first element the kind. HELLO and WELCOME carry
everything that holds for a whole connection (run, fingerprint, both members with their incarnations); the other
messages carry the connection's number instead. The digest protects against accidents, not against forgers.

The kind is read first, because the session checks whether a message may come before its content is decoded. The fields
of each kind are declared as a `WireForm`, which C code reads.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
import xxhash

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.decoding import Assembly, reader
from isthmus.runtime.items.layout import CHUNK_BYTES, SPEC_BYTES_MAX, TEXT_BYTES_MAX, Bytes, RefusalError
from isthmus.runtime.wire.protocol_credit import EDGES_MAX

MAGIC: Final = b"is"
VERSION: Final = 4
PREFIX_BYTES: Final = 16
HEADER_BYTES_MAX: Final = SPEC_BYTES_MAX + (256 << 10)
"""Size of a sealed frame: one item without its large arrays, its fields, and the digests of a message."""
CONTROL_BYTES_MAX: Final = 256 << 10
"""Size of a control message: HELLO with EDGES_MAX edges, twice."""
EDGE_LAST: Final = (1 << 16) - 1
FRAMES_MAX: Final = 256
"""Raw frames of one message."""
RECORD_BYTES: Final = 10
"""The most that a record adds to its envelope and spec."""
RECORDS_MAX: Final = 1024
"""Items that begin in one message."""
AGES_MAX: Final = 256
"""Items whose ages one STATE reports."""
AGE_LAST: Final = (1 << 32) - 1
"""Microseconds; an item that arrived longer ago than an hour is reported with this age."""
TOKEN_BYTES: Final = 16
NAME_LENGTH_MAX: Final = 256

HELLO, WELCOME, STATE, REFUSAL, RELAY, UNREACHABLE, ATTACH, BATCH, RELAYED = range(1, 10)

_PREFIX: Final = struct.Struct("<2sHIQ")
_SCALARS: Final[frozenset[type]] = frozenset({int, str, type(None)})
_SHORT_LISTS: Final = range(0x91, 0xA0)
_SMALL_LAST: Final = 0x7F
"""First bytes of msgpack's lists of 1 to 15, and the last of its integers that are one byte."""
_pack: Final = msgspec.msgpack.Encoder().encode

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Edge: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=EDGE_LAST)]
Age: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=AGE_LAST)]
Digest: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""64 bits, the range of msgpack's integers."""
Totals: TypeAlias = Annotated[dict[Edge, Count], msgspec.Meta(max_length=EDGES_MAX)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
Token: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class Hello(NamedTuple):
    """The first message of a connection, by the side that dials (HELLO) and then by the other (WELCOME)."""

    run: str
    fingerprint: str
    source: Member
    target: Member
    token: bytes
    """Pairs the control with the data socket."""
    window: int
    """How many bytes the sender accepts beyond those that it has reported as taken."""
    held: int
    """How many of these it has not taken of earlier connections."""
    delivered: dict[int, int]
    """The last sequence number per edge that arrived from the other side."""
    granted: dict[int, int]
    """The item credit per edge given so far."""
    desk: str = ""
    """Where hosts of the same machine get descriptors of segments, "" if there are none."""


class WireForm(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of messages that C code decodes by their declared number of fields, types and ranges."""


class NamedMember(WireForm, frozen=True):
    """A member, as messages name it."""

    role: Name
    slot: Count
    incarnation: Count

    def member(self) -> Member:
        """The Member it stands for."""
        return Member(Replica(self.role, self.slot), self.incarnation)


class Greeting(WireForm, frozen=True):
    """A `Hello` of either side."""

    kind: int
    run: Name
    fingerprint: Name
    source: NamedMember
    target: NamedMember
    token: Token
    window: Count
    held: Count
    delivered: Totals
    granted: Totals
    desk: Name


class Refusal(WireForm, frozen=True, tag=REFUSAL):
    """Why the other side ends a connection."""

    reason: Name
    story: Name


class Relayed(WireForm, frozen=True):
    """Source and target of a relayed message; a RELAY contains the sealed message itself."""

    kind: int
    source: NamedMember
    target: NamedMember
    inner: bytes


class Attach(WireForm, frozen=True, tag=ATTACH):
    """The first message on a data socket: the token of its connection."""

    token: Token


class State(WireForm, frozen=True, tag=STATE):
    """Progress of the sender of this message: totals of the connection, so that a later one supersedes an earlier one.
    It is the heartbeat, too.
    """

    heard: Count
    """Control messages."""
    taken: Count
    """Bytes."""
    acknowledged: Count
    """Items that the receiver was given."""
    ages: Annotated[list[Age], msgspec.Meta(max_length=AGES_MAX)]
    """For each newly acknowledged item the microseconds since then; of more than AGES_MAX, the last stands for the
    rest."""
    granted: Totals
    """The edges whose total has changed."""
    pace: Count
    """The sender's (`protocol_credit`)."""


class Envelope(WireForm, frozen=True):
    """Metadata of an item, except its sequence number.

    `replaces` on Latest edges; `size_bytes` as its sender counts.
    """

    edge: Edge
    snapshot: Count
    replaces: bool
    key: int | str | None
    fields: dict[str, Any] | None
    digest: Digest
    size_bytes: Count


class ItemRecord(WireForm, frozen=True):
    """An item that begins in a batch: its number on its edge, its envelope, and its tree, which `Assembly` checks."""

    sequence: Count
    envelope: Envelope
    tree: Any


class PiecePlace(WireForm, frozen=True):
    """Where a piece lies that has no frame: the `index` of its digest, its segment, and the bytes in it."""

    index: Count
    segment: Count
    offset: Count
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=CHUNK_BYTES)]


class Batch(WireForm, frozen=True, tag=BATCH):
    """Items and pieces of items.

    `transfer` numbers the first item that the message touches, counting every item of the connection from 0; `piece` is
    the number of its first piece here; `digests` are those of the pieces. The pieces are the raw frames in their order,
    with those between them that have `places`.
    """

    transfer: Count
    piece: Count
    digests: Annotated[list[int], msgspec.Meta(max_length=FRAMES_MAX)]
    places: Annotated[list[PiecePlace], msgspec.Meta(max_length=FRAMES_MAX)]
    records: Annotated[list[ItemRecord], msgspec.Meta(max_length=RECORDS_MAX)]


state_of: Final = reader(State)
_greeting_of: Final = reader(Greeting)
_refusal_of: Final = reader(Refusal)
_relayed_of: Final = reader(Relayed)
_attach_of: Final = reader(Attach)
_batch_of: Final = reader(Batch)


# -- the seal ----------------------------------------------------------------------------------------------------------


def seal(connection: int, body: bytes) -> bytes:
    """A first frame."""
    digest = xxhash.xxh3_64_intdigest(body, connection)
    return _PREFIX.pack(MAGIC, VERSION, connection, digest) + body


def unseal(frame: Bytes, size_bytes_max: int) -> tuple[int, int, Bytes]:
    """(connection, kind, body) of a first frame; RefusalError if it is not one."""
    size = len(frame)
    if not PREFIX_BYTES < size <= size_bytes_max:
        reason = "truncated" if size <= PREFIX_BYTES else "oversized"
        raise RefusalError(
            reason, f"a first frame of {size} bytes, {PREFIX_BYTES + 1} to {size_bytes_max} are accepted"
        )
    magic, version, connection, digest = _PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise RefusalError("magic", f"a message begins with {magic!r}, ours with {MAGIC!r}")
    if version != VERSION:
        raise RefusalError(
            "version", f"protocol version {version}; this host speaks {VERSION}. Install the same isthmus"
        )
    body = frame[PREFIX_BYTES:]
    if xxhash.xxh3_64_intdigest(body, connection) != digest:
        raise RefusalError("digest", f"a first frame of {size} bytes is damaged")
    if body[0] not in _SHORT_LISTS or len(body) == 1 or body[1] > _SMALL_LAST:
        raise RefusalError("message", "a message is a short list that begins with its kind")
    return connection, body[1], body


def connection_of(frame: Bytes) -> int:
    """The connection number that a first frame claims, 0 if it is too short to have one."""
    return int(_PREFIX.unpack_from(frame)[2]) if len(frame) > PREFIX_BYTES else 0


# -- control -----------------------------------------------------------------------------------------------------------


def pack_hello(kind: int, hello: Hello) -> bytes:
    """The body of a HELLO or a WELCOME."""
    rest = (hello.token, hello.window, hello.held, hello.delivered, hello.granted, hello.desk)
    return _pack([kind, hello.run, hello.fingerprint, _plain(hello.source), _plain(hello.target), *rest])


def hello_of(body: Bytes) -> Hello:
    """A HELLO or WELCOME; RefusalError if it is not well formed."""
    greeting = _greeting_of(body)
    rest = greeting.token, greeting.window, greeting.held, greeting.delivered, greeting.granted, greeting.desk
    return Hello(greeting.run, greeting.fingerprint, greeting.source.member(), greeting.target.member(), *rest)


def pack_state(state: State) -> bytes:
    """The body of a STATE."""
    return _pack(state)


def pack_refusal(reason: str, story: str) -> bytes:
    """The body of a REFUSAL, which ends a connection and gives the reason."""
    return _pack([REFUSAL, reason[:NAME_LENGTH_MAX], story[:NAME_LENGTH_MAX]])


def refusal_of(body: Bytes) -> tuple[str, str]:
    """(reason, story) of a REFUSAL; RefusalError if it is not well formed."""
    refusal = _refusal_of(body)
    return refusal.reason, refusal.story


def pack_relay(kind: int, source: Member, target: Member, inner: bytes = b"") -> bytes:
    """The body of a RELAY, RELAYED or UNREACHABLE: source, target, and for RELAY the sealed message inside."""
    return _pack([kind, _plain(source), _plain(target), inner])


def relay_of(body: Bytes) -> tuple[Member, Member, bytes]:
    """(source, target, sealed message inside) of a `pack_relay` body; RefusalError if it is not well formed."""
    relayed = _relayed_of(body)
    return relayed.source.member(), relayed.target.member(), relayed.inner


# -- data --------------------------------------------------------------------------------------------------------------


def pack_attach(token: bytes) -> bytes:
    """The body of an ATTACH, the first message on a data socket."""
    return _pack([ATTACH, token])


def token_of(body: Bytes) -> bytes:
    """The token of an ATTACH; RefusalError if it is not well formed."""
    return _attach_of(body).token


def pack_envelope(parcel: Parcel, snapshot: int, replaces: bool) -> bytes:
    """The packed metadata of an item; its sequence number is assigned when its transfer begins.

    LocalProtocolError for fields that fit into no header.
    """
    fields = (parcel.edge, snapshot, replaces, parcel.key, parcel.fields, parcel.digest, parcel.size_bytes)
    envelope = _pack(fields)
    if len(envelope) > TEXT_BYTES_MAX:
        size = f"{len(envelope)} bytes of fields that cores read"
        raise LocalProtocolError(f"an item: expected at most {TEXT_BYTES_MAX} bytes, found {size}. Name fewer fields.")
    return envelope


def pack_batch(
    transfer: int, piece: int, digests: list[int], records: Sequence[Any], places: Sequence[PiecePlace] = ()
) -> bytes:
    """The body of a BATCH. Each record is a sequence number and, as `msgspec.Raw`, an envelope and a spec."""
    return _pack((BATCH, transfer, piece, digests, places, records))


def batch_of(body: Bytes) -> Batch:
    """A BATCH; RefusalError if it is not well formed."""
    batch = _batch_of(body)
    for record in batch.records:
        shown = record.envelope.fields
        if shown is not None and not _SCALARS.issuperset(map(type, shown.values())):
            shown.update(_small(shown))
    return batch


def _small(tree: Any) -> Any:
    """A value without frames of its own; RefusalError if it has any, or is not well formed."""
    assembly = Assembly(tree)
    if assembly.wanted:
        raise RefusalError("message", "a small value was expected, found a large array")
    return assembly.item


def _plain(member: Member) -> list[Any]:
    return [member.replica.role, member.replica.slot, member.incarnation]
