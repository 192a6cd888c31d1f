"""The messages that hosts exchange, as bytes: what each one holds, and what is accepted of it.

Decides the form of every message. Does not decide when one is sent or what follows from it: that is `session`.

Theory of operation. The first frame of every message is *sealed*: magic, protocol version, connection number and an
xxh3 digest of the rest, in a form that no version will change, so that bytes from elsewhere and from other versions are
known at once, before anything is decoded. The rest is one msgpack list, its first element the kind. HELLO and WELCOME
say everything that holds for a whole connection (run, fingerprint, both members with their incarnations); the other
messages carry the connection's number instead. The digest is against accidents, not against forgers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import xxhash

from isthmus.runtime.assembly import Assembly, decode
from isthmus.runtime.channel import Parcel
from isthmus.runtime.credit import EDGES_MAX
from isthmus.runtime.encoding import Encoder
from isthmus.runtime.frames import SPEC_BYTES_MAX, Bytes
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.refusal import RefusalError

MAGIC: Final = b"is"
VERSION: Final = 2
PREFIX_BYTES: Final = 16
HEADER_BYTES_MAX: Final = SPEC_BYTES_MAX + (256 << 10)
"""Of a sealed frame: one item without its large arrays, its fields, and the digests of a message."""
CONTROL_BYTES_MAX: Final = 256 << 10
"""Of a control message: HELLO with EDGES_MAX edges, twice."""
EDGE_LAST: Final = (1 << 16) - 1
FRAMES_MAX: Final = 256
"""Raw frames of one message."""
RECORD_BYTES: Final = 10
"""Of a record beside its envelope and spec, at most."""
RECORDS_MAX: Final = 1024
"""Items that begin in one message."""
AGES_MAX: Final = 256
"""Items of whose arrival one STATE tells."""
AGE_LAST: Final = (1 << 32) - 1
"""Microseconds; an item that arrived longer ago than an hour is said to have arrived then."""
TOKEN_BYTES: Final = 16
NAME_LENGTH_MAX: Final = 256

HELLO, WELCOME, STATE, REFUSAL, RELAY, UNREACHABLE, ATTACH, BATCH, RELAYED = range(1, 10)

_PREFIX: Final = struct.Struct("<2sHIQ")
_COUNT_LAST: Final = (1 << 63) - 1
_INTEGER: Final = frozenset({int})
_TEXT: Final = frozenset({str})
_SCALARS: Final[frozenset[type]] = frozenset({int, str, type(None)})
_pack = msgpack.Packer(strict_types=True).pack


class Hello(NamedTuple):
    """The first message of a connection, by the side that dials (HELLO) and then by the other (WELCOME).

    `token` pairs the control with the data socket; `window` is how many bytes the sender takes beyond those that it has
    said to have taken, and `held` how many it has not taken of earlier connections; `delivered` is the last sequence
    number per edge that arrived from the other side, `granted` the item credit per edge given so far.
    """

    run: str
    fingerprint: str
    source: Member
    target: Member
    token: bytes
    window: int
    held: int
    delivered: dict[int, int]
    granted: dict[int, int]


class State(NamedTuple):
    """Where the sender of this message is: totals of the connection, so that a later one says all that an earlier one
    did. `heard` counts control messages, `taken` bytes, `acknowledged` items that the receiver was given; `granted` has
    the edges whose total has changed. `ages` says of each newly acknowledged item how many microseconds ago that was;
    of more than AGES_MAX, the last age stands for the rest. It is the heartbeat, too.
    """

    heard: int
    taken: int
    acknowledged: int
    ages: list[int]
    granted: dict[int, int]


class Record(NamedTuple):
    """The header of an item that begins in a batch. `replaces` on Latest edges; `size_bytes` as its sender counts."""

    edge: int
    sequence: int
    snapshot: int
    replaces: bool
    key: int | str | None
    fields: dict[str, Any] | None
    digest: int
    size_bytes: int
    assembly: Assembly

    def parcel(self) -> Parcel:
        """The parcel, once it is complete."""
        return Parcel(self.edge, self.key, self.assembly.item, self.fields, self.digest, self.size_bytes)


class Batch(NamedTuple):
    """Items and pieces of items. `transfer` numbers the first item that the message touches, counting every item of the
    connection from 0; `piece` says which of that item's pieces comes first; `digests` are those of the raw frames."""

    transfer: int
    piece: int
    digests: list[int]
    records: list[Record]


# -- the seal ----------------------------------------------------------------------------------------------------------


def seal(connection: int, body: bytes) -> bytes:
    """A first frame."""
    digest = xxhash.xxh3_64_intdigest(body, connection)
    return _PREFIX.pack(MAGIC, VERSION, connection, digest) + body


def unseal(frame: Bytes, size_bytes_max: int) -> tuple[int, Any]:
    """(connection, decoded list) of a first frame; RefusalError if it is not one."""
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
    fields = decode(body)
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise RefusalError("message", "a message is a list that begins with its kind")
    return connection, fields


def connection_of(frame: Bytes) -> int:
    """The connection number that a first frame claims, 0 if it is too short to have one."""
    return int(_PREFIX.unpack_from(frame)[2]) if len(frame) > PREFIX_BYTES else 0


# -- control -----------------------------------------------------------------------------------------------------------


def pack_hello(kind: int, hello: Hello) -> bytes:
    """The body of a HELLO or a WELCOME."""
    rest = (hello.token, hello.window, hello.held, hello.delivered, hello.granted)
    return _body([kind, hello.run, hello.fingerprint, _plain(hello.source), _plain(hello.target), *rest])


def hello_of(fields: list[Any]) -> Hello:
    """A HELLO or WELCOME; RefusalError if it is not well formed."""
    _, run, fingerprint, source, target, token, window, held, delivered, granted = _exactly(fields, 10)
    if type(token) is not bytes or len(token) != TOKEN_BYTES:
        raise _malformed("a token", token)
    return Hello(
        _name(run),
        _name(fingerprint),
        _member(source),
        _member(target),
        token,
        _count(window),
        _count(held),
        _totals(delivered),
        _totals(granted),
    )


def pack_state(state: State) -> bytes:
    """The body of a STATE."""
    return _body([STATE, *state])


def state_of(fields: list[Any]) -> State:
    """A STATE; RefusalError if it is not well formed."""
    _, heard, taken, acknowledged, ages, granted = _exactly(fields, 6)
    if type(ages) is not list or len(ages) > AGES_MAX or not _INTEGER.issuperset(map(type, ages)):
        raise _malformed("ages", ages)
    if ages and not 0 <= min(ages) <= max(ages) <= AGE_LAST:
        raise _malformed(f"ages of 0 to {AGE_LAST} us", ages)
    return State(_count(heard), _count(taken), _count(acknowledged), ages, _totals(granted))


def pack_refusal(reason: str, story: str) -> bytes:
    """The body of a REFUSAL, which ends a connection and says why."""
    return _body([REFUSAL, reason[:NAME_LENGTH_MAX], story[:NAME_LENGTH_MAX]])


def refusal_of(fields: list[Any]) -> tuple[str, str]:
    """(reason, story) of a REFUSAL."""
    _, reason, story = _exactly(fields, 3)
    return _name(reason), _name(story)


def pack_relay(kind: int, source: Member, target: Member, inner: bytes = b"") -> bytes:
    """The body of a RELAY, RELAYED or UNREACHABLE: from whom, to whom, and for RELAY the sealed message inside."""
    return _body([kind, _plain(source), _plain(target), inner])


def relay_of(fields: list[Any]) -> tuple[Member, Member, bytes]:
    """(source, target, sealed message inside) of what `pack_relay` made."""
    _, source, target, inner = _exactly(fields, 4)
    if type(inner) is not bytes:
        raise _malformed("a message inside", inner)
    return _member(source), _member(target), inner


# -- data --------------------------------------------------------------------------------------------------------------


def pack_attach(token: bytes) -> bytes:
    """The body of an ATTACH, the first message on a data socket."""
    return _body([ATTACH, token])


def token_of(fields: list[Any]) -> bytes:
    """The token of an ATTACH."""
    _, token = _exactly(fields, 2)
    if type(token) is not bytes or len(token) != TOKEN_BYTES:
        raise _malformed("a token", token)
    return token


def pack_envelope(encoder: Encoder, parcel: Parcel, snapshot: int, replaces: bool) -> bytes:
    """What is said of an item beside its sequence number, which it gets when its transfer begins."""
    edge, key, _, fields, digest, size_bytes = parcel
    if key is not None and type(key) is not str:
        key = int(key)
    return encoder.small([edge, snapshot, replaces, key, fields, digest, size_bytes])


def pack_record(sequence: int, envelope: bytes, spec: bytes) -> bytes:
    """The record of an item."""
    number: bytes = _pack(sequence)
    return b"".join((b"\x93", number, envelope, spec))


def pack_batch(transfer: int, piece: int, digests: list[int], records: Sequence[bytes]) -> bytes:
    """The body of a BATCH."""
    head = b"\x95" + _body([BATCH, transfer, piece, digests])[1:] + b"\xdc" + len(records).to_bytes(2, "big")
    return b"".join((head, *records))


def batch_of(fields: list[Any]) -> Batch:
    """A BATCH; RefusalError if it is not well formed."""
    _, transfer, piece, digests, records = _exactly(fields, 5)
    if type(digests) is not list or len(digests) > FRAMES_MAX or not _INTEGER.issuperset(map(type, digests)):
        raise _malformed("digests", digests)
    if type(records) is not list or len(records) > RECORDS_MAX:
        raise _malformed("records", records)
    return Batch(_count(transfer), _count(piece), digests, list(map(_record, records)))


def _record(fields: Any) -> Record:
    sequence, said, tree = _exactly(fields, 3)
    edge, snapshot, replaces, key, shown, digest, size_bytes = _exactly(said, 7)
    numbers = (edge, sequence, snapshot, size_bytes, digest)
    if type(replaces) is not bool or type(key) not in _SCALARS or not _INTEGER.issuperset(map(type, numbers)):
        raise _malformed("an item's header", (replaces, key, *numbers))
    if min(numbers) < 0 or edge > EDGE_LAST or max(numbers[:-1]) > _COUNT_LAST or digest >= 1 << 64:
        raise _malformed("numbers in their ranges", numbers)
    if shown is not None:
        if type(shown) is not dict or not _TEXT.issuperset(map(type, shown)):
            raise _malformed("fields", shown)
        if not _SCALARS.issuperset(map(type, shown.values())):
            shown = _small(shown)
    return Record(edge, sequence, snapshot, replaces, key, shown, digest, size_bytes, Assembly(tree))


def _small(tree: Any) -> Any:
    """A value that has no frames of its own; RefusalError if it has, or if it is not well formed."""
    assembly = Assembly(tree)
    if assembly.wanted:
        raise _malformed("a small value", "a large array")
    return assembly.item


# -- parts -------------------------------------------------------------------------------------------------------------


def _body(fields: list[Any]) -> bytes:
    body: bytes = _pack(fields)
    return body


def _plain(member: Member) -> list[Any]:
    return [member.replica.role, member.replica.slot, member.incarnation]


def _malformed(what: str, found: Any) -> RefusalError:
    return RefusalError("message", f"{what} was expected, found {repr(found)[:80]}")


def _exactly(fields: Any, count: int) -> list[Any]:
    if type(fields) is not list or len(fields) != count:
        raise _malformed(f"a list of {count}", fields)
    return fields


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _COUNT_LAST:
        raise _malformed("a count", value)
    return value


def _edge(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= EDGE_LAST:
        raise _malformed("an edge", value)
    return value


def _name(value: Any) -> str:
    if type(value) is not str or len(value) > NAME_LENGTH_MAX:
        raise _malformed("a name", value)
    return value


def _member(value: Any) -> Member:
    role, slot, incarnation = _exactly(value, 3)
    return Member(Replica(_name(role), _count(slot)), _count(incarnation))


def _totals(value: Any) -> dict[int, int]:
    if type(value) is not dict or len(value) > EDGES_MAX:
        raise _malformed("totals per edge", value)
    return {_edge(edge): _count(total) for edge, total in value.items()}
