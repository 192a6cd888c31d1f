"""Payloads that are kept, so that their consequences can be recomputed: a file for each firing of some nodes.

Kept are the firings of nodes whose body names output ports as `determined`: an item there is a function of the inputs
and of earlier firings. A file has the inputs of the firing, except those that such a node of the same host has made
itself, with the decision that closed its round; and of each item on those ports the digest, and the item where it
leaves the host. Reading trusts nothing: every part has its digest, and items are decoded like those of an unknown peer.

A file is FOLDER/NODE.FIRING.item: a frame (`frames`) with a head, and after it the encoded items. It is written in the
node's own thread. A file that the disk does not accept is missing, counted in `lost`, and so are all after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import msgspec
import xxhash

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.decoding import Assembly, reader
from isthmus.runtime.items.encoding import Encoded, encode
from isthmus.runtime.items.layout import RefusalError
from isthmus.runtime.system.disk import DISK, Disk
from isthmus.runtime.tape.writing import HEAD_SIZE, framed, frames

FOLDER: Final = "payloads"
MARK: Final = "isthmus payloads"
VERSION: Final = 1


class Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One item of a firing: its port, producer, mailbox key, digest, and the sizes and digests of its parts.

    Producer and key only where the port has several items. No parts where only the digest is kept, or for the empty
    dict of such a port.
    """

    port: str
    source: Replica | None
    key: int | str | None
    digest: int
    sizes: list[int]
    digests: list[int]


class PayloadsHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The head of a file."""

    mark: str
    version: int
    node: str
    firing: int
    decision: dict[str, Any] | None
    inputs: list[Item]
    outputs: list[Item]


class StoredFiring(NamedTuple):
    """A stored firing: its inputs by port, as its body gets them, and its outputs as (port, digest, item or None)."""

    inputs: dict[str, Any]
    outputs: list[tuple[str, int, Any]]


class EmittedItem(NamedTuple):
    """An item that a firing has emitted; `encoded` where it leaves the host."""

    port: str
    item: Any
    encoded: Encoded | None


def folder_of(run: Path, member: Member) -> Path:
    """The folder of the payloads of a life of a host."""
    return run / FOLDER / f"{member.replica.role}-{member.replica.slot}-{member.incarnation}"


@final
class Keeper:
    """Stores the firings of one life of a host in `folder`."""

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self.lost = 0
        self._folder, self._disk = folder, disk

    def keep(
        self,
        node: str,
        firing: int,
        inputs: Mapping[str, Any],
        emitted: Sequence[EmittedItem],
        *,
        several: Collection[str],
        made_here: Collection[str],
    ) -> None:
        """Store a firing.

        On the ports `several` its input is a dict (replica, key) -> item, on others one item. Items on the ports
        `made_here` are not stored, because they can be recomputed.
        """
        if self.lost:
            self.lost += 1
            return
        stored_inputs: list[Item] = []
        parts: list[Any] = []
        for port, value in inputs.items():
            if port in made_here or port == "decision" or value is None:
                continue
            if port not in several:
                stored_inputs.append(_item(port, None, None, encode(value), parts))
                continue
            if not value:
                stored_inputs.append(Item(port, None, None, 0, [], []))
            for (source, key), item in value.items():
                stored_inputs.append(_item(port, source, key, encode(item), parts))
        stored_outputs = [
            _item(each.port, None, None, encode(each.item), None)
            if each.encoded is None
            else _item(each.port, None, None, each.encoded, parts)
            for each in emitted
        ]
        head = PayloadsHead(MARK, VERSION, node, firing, inputs.get("decision"), stored_inputs, stored_outputs)
        try:
            self._write(self._folder / f"{node}.{firing}.item", [framed(msgspec.msgpack.encode(head)), *parts])
        except OSError:
            self.lost += 1

    def _write(self, path: Path, parts: Sequence[Any]) -> None:
        file = self._disk.create(path)
        try:
            for part in parts:
                left: Any = memoryview(part).cast("B")
                while left:
                    left = left[file.write(left) :]
        finally:
            file.close()


def read(data: bytes, node: str, firing: int) -> StoredFiring:
    """The stored firing in a file. ValueError where it is incomplete, damaged, foreign, or of another firing."""
    stored = frames(data)
    if not stored.bodies:
        raise ValueError(f"it is not whole: {stored.rest or 'it is empty'}")
    plain = msgspec.msgpack.decode(stored.bodies[0])
    if not isinstance(plain, list) or plain[:1] != [MARK] or plain[1:2] != [VERSION]:
        raise ValueError(f"it begins with {str(plain)[:60]}, expected {[MARK, VERSION]}")
    head = msgspec.convert(plain, PayloadsHead)
    if (head.node, head.firing) != (node, firing):
        raise ValueError(f"it is of firing {head.firing} of {head.node!r}")
    at = HEAD_SIZE + len(stored.bodies[0])
    inputs: dict[str, Any] = {} if head.decision is None else {"decision": head.decision}
    for each in head.inputs:
        if not each.sizes:
            inputs[each.port] = {}
            continue
        item, at = _decoded(data, at, each)
        if each.source is None:
            inputs[each.port] = item
        else:
            inputs.setdefault(each.port, {})[each.source, each.key] = item
    outputs = []
    for each in head.outputs:
        item, at = _decoded(data, at, each) if each.sizes else (None, at)
        outputs.append((each.port, each.digest, item))
    return StoredFiring(inputs, outputs)


def _item(port: str, source: Replica | None, key: int | str | None, encoded: Encoded, parts: list[Any] | None) -> Item:
    """The head's entry of an item, whose bytes are added to `parts`, if they are stored."""
    if parts is None:
        return Item(port, source, key, encoded.digest, [], [])
    parts += [encoded.spec, *encoded.pieces]
    digests = [xxhash.xxh3_64_intdigest(encoded.spec), *encoded.digests]
    return Item(port, source, key, encoded.digest, [len(encoded.spec), *encoded.sizes], digests)


def _decoded(data: bytes, at: int, entry: Item) -> tuple[Any, int]:
    """The item that begins at byte `at`, and where it ends."""
    if at + sum(entry.sizes) > len(data) or len(entry.sizes) != len(entry.digests) or min(entry.sizes, default=0) < 0:
        raise ValueError(f"it is not whole: an item on {entry.port!r} of {sum(entry.sizes)} bytes at byte {at}")
    view = memoryview(data)
    spec = view[at : at + entry.sizes[0]]
    if xxhash.xxh3_64_intdigest(spec) != entry.digests[0]:
        raise ValueError(f"an item on {entry.port!r} at byte {at} is damaged")
    at += len(spec)
    try:
        assembly = Assembly(_TREE(spec))
        for size, digest in zip(entry.sizes[1:], entry.digests[1:], strict=True):
            assembly.add(view[at : at + size], digest)
            at += size
    except (RefusalError, msgspec.DecodeError) as error:
        raise ValueError(f"an item on {entry.port!r}: {error}") from None
    if assembly.wanted:
        raise ValueError(f"an item on {entry.port!r} is not whole")
    return assembly.item, at


_TREE: Final = reader(Any)
