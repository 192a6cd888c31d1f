"""Snapshots of a model on the disk of the run's home: the newest published version of every fragment, and whole states
of learners.

Decides the form of a snapshot, when one is good, and which one is read; not when one is taken (`keeping`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

from isthmus.ops.exchange.messages import ShardState, UpdateKind, Vector, WholeState
from isthmus.ops.recovery.hold import flat, form_of, formed
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import encoded, write_bytes


class StateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One state: the fields of its `WholeState`, with the tensors in `file`.

    `leaves` has (type, shape) of each, `streams` (slot, position) of those whose states are in the file; `bytes` and
    `digest` (xxh3-128, hexadecimal) are the file's; `standings` are of a learner that gives a part of a cut.
    """

    index: int
    tokens: int
    steps: int
    totals: list[tuple[int, int, int]]
    positions: list[tuple[int, int]]
    streams: list[tuple[int, int]]
    leaves: list[tuple[str, list[int]]]
    file: str
    bytes: int
    digest: str
    standings: list[tuple[int, int, int | None, list[list[int]]]] = []


def is_of(entry: StateEntry, state: WholeState) -> bool:
    """Whether an entry of this life is of a state that it was given: one has more tokens than the one before."""
    return (entry.tokens, entry.steps) == (state["tokens"], state["steps"])


def encoded_state(index: int, state: WholeState, life: int) -> tuple[StateEntry, bytes]:
    """The entry of a state, and its file; `life` is the recorder's.

    A safetensors file with the bytes of each leaf, whose types and shapes are in the manifest, so that types which
    safetensors does not know (those of keys, and of small floats) are as good as others.
    """
    leaves = [np.asarray(leaf) for leaf in state["leaves"]]
    tensors = {f"leaf-{i}": flat(leaf) for i, leaf in enumerate(leaves)}
    tensors |= {f"stream-{slot}": flat(np.asarray(stream)) for slot, _, stream in state["streams"]}
    data = save(tensors)
    entry = StateEntry(
        index=index,
        tokens=state["tokens"],
        steps=state["steps"],
        totals=[(slot, incarnation, tokens) for slot, incarnation, tokens in state["totals"]],
        positions=[(slot, position) for slot, position in state["positions"]],
        streams=[(slot, position) for slot, position, _ in state["streams"]],
        leaves=[form_of(leaf) for leaf in leaves],
        file=f"state-{index}-{life}-{state['tokens']}.safetensors",
        bytes=len(data),
        digest=xxhash.xxh3_128_hexdigest(data),
        standings=[(epoch, count, due, former) for epoch, count, due, former in state.get("standings", ())],
    )
    return entry, data


def decoded(entry: StateEntry, data: bytes) -> WholeState:
    """The state of an entry, from its file; ValueError if the file is not valid."""
    try:
        tensors = load(data)
        leaves = [formed(tensors[f"leaf-{i}"], *form) for i, form in enumerate(entry.leaves)]
        streams = [[slot, position, tensors[f"stream-{slot}"]] for slot, position in entry.streams]
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{entry.file} is no file of a state: {error}") from None
    return WholeState(
        tokens=entry.tokens,
        steps=entry.steps,
        totals=[list(row) for row in entry.totals],
        positions=[list(row) for row in entry.positions],
        streams=streams,
        leaves=leaves,
        standings=[list(row) for row in entry.standings],
    )


FOLDER: Final = "snapshots"
MANIFEST: Final = "manifest.json"
BEFORE: Final = "manifest-before.json"
FORMAT: Final = 2
VALUES: Final = "values"
_NONE: Final[Mapping[int, WholeState]] = {}


class FragmentEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fragment of a snapshot: the fields of its `ShardState`, and the `file` that has its `values` and `tensors` by
    name, float32: how many `bytes` it has, and their `digest` (xxh3-128, hexadecimal)."""

    fragment: int
    version: tuple[int, int]
    kind: UpdateKind
    clock: list[tuple[int, int, int]]
    positions: list[tuple[int, int]]
    totals: list[tuple[int, int, int]]
    file: str
    bytes: int
    digest: str
    lengths: list[float] = []


class _Format(msgspec.Struct, frozen=True):
    """What a manifest of any version says."""

    format: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot: one entry for each fragment of the model, in order, and those of whole `states` of learners, in
    programs that have any; `writer` is the recorder's life that took it."""

    format: int
    number: int
    fragments: list[FragmentEntry]
    writer: int = 0
    states: list[StateEntry] = []

    @property
    def entries(self) -> list[FragmentEntry | StateEntry]:
        """All entries, each of which has a file."""
        return [*self.fragments, *self.states]


class Found(NamedTuple):
    """The newest good snapshot, None if there is none, with items by fragment and whole states by index.

    `faults`: those of newer snapshots.
    """

    manifest: Manifest | None
    held: dict[int, ShardState]
    faults: list[str]
    states: dict[int, WholeState]


class Examined(NamedTuple):
    """The newest good snapshot and the `name` of its file, None and '' if there is none; `faults`: those of newer
    ones."""

    name: str
    manifest: Manifest | None
    faults: list[str]


class Snapshots:
    """The snapshots in `folder` of a model with fragments of `sizes` values, taken by one life of the recorder.

    A reader that does not know the sizes gives None. Errors of the disk are raised as OSError, and leave the newest
    good snapshot as it was.

    A fragment's published item contains everything that belongs to its values: the version, up to which token each
    life's work is in it (`clock`), and below which batch of each stream (`positions`). So any set of published
    versions, one of each fragment, is a consistent cut: no token is in it twice, and tokens in none of them were either
    undone or are reported lost. No host has to stop for it.

    Each version is a file of its own, written whole before the manifest that names it. A snapshot is good once its
    manifest is there; the one before it stays until then, and its files as long as it. Files are checked against the
    manifest when they are read, byte for byte; where anything differs, the snapshot before is read.
    """

    def __init__(self, folder: Path, sizes: Sequence[int] | None, disk: Disk, life: int = 1) -> None:
        self._folder, self._sizes, self._disk, self._life = folder, sizes, disk, life
        self._newest: Manifest | None = None
        self._before: Manifest | None = None
        self._is_in_place = False
        """Whether the newest has the name MANIFEST; it is renamed before the next takes that name."""
        self._old: set[str] = set()
        """Files that only manifests before the newest name."""
        self._pinned: Manifest | None = None

    def read(self) -> Found:
        """The newest complete snapshot, made durable; the next `write` follows it. OSError if the disk cannot be read.

        (Its writer may have died before the snapshot's name was durable.)
        """
        faults: list[str] = []
        for name in (MANIFEST, BEFORE):
            try:
                manifest, held, states = self._read(name)
            except FileNotFoundError:
                continue
            except ValueError as error:
                faults.append(f"{FOLDER}/{name}: {error}")
                continue
            self._disk.sync_folder(self._folder)
            self._newest, self._is_in_place = manifest, name == MANIFEST
            return Found(manifest, held, faults, states)
        return Found(None, {}, faults, {})

    def examine(self) -> Examined:
        """Look for the newest one that is whole; one entry at a time is in memory."""
        faults: list[str] = []
        for name in (MANIFEST, BEFORE):
            try:
                manifest = self._manifest(name)
                for _ in chain(self._items(manifest), self._states(manifest)):
                    pass
            except FileNotFoundError:
                continue
            except ValueError as error:
                faults.append(f"{FOLDER}/{name}: {error}")
                continue
            return Examined(name, manifest, faults)
        return Examined("", None, faults)

    @property
    def newest(self) -> Manifest | None:
        """The newest good snapshot; None if there is none, or it is unknown."""
        return self._newest

    def pin(self, manifest: Manifest | None) -> None:
        """Keep the files of this snapshot, too, in place of the one that was pinned before."""
        self._pinned = manifest

    def versions(self) -> list[list[int]]:
        """[fragment, epoch, count] of all versions that a later `read` may find, and of the snapshot that is pinned."""
        kept = [manifest for manifest in (self._newest, self._before, self._pinned) if manifest is not None]
        return sorted([entry.fragment, *entry.version] for manifest in kept for entry in manifest.fragments)

    def write(self, held: Mapping[int, ShardState], states: Mapping[int, WholeState] = _NONE) -> Manifest:
        """Take a snapshot of these items, one of each fragment, and of whole states; returns the newest if none is new.

        OSError also for a life that was replaced without knowing it: its items are older.
        """
        if self._is_replaced():
            raise OSError(errno.ESTALE, "a later life of the recorder takes the snapshots")
        before = self._newest
        former = {entry.fragment: entry for entry in before.fragments} if before is not None else {}
        entries = []
        for p, item in sorted(held.items()):
            is_unchanged = p in former and former[p].version == tuple(item["version"])
            entries.append(former[p] if is_unchanged else self._write_values(item))
        whole = self._write_states(states)
        if before is not None and (entries, whole) == (before.fragments, before.states):
            return before
        manifest = Manifest(FORMAT, before.number + 1 if before is not None else 1, entries, self._life, whole)
        if self._is_in_place:
            self._disk.rename(self._folder / MANIFEST, self._folder / BEFORE)
            self._is_in_place = False
        write_bytes(self._folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n", self._disk)
        self._newest, self._before, self._is_in_place = manifest, before, True
        self._forget(before, manifest)
        return manifest

    def _is_replaced(self) -> bool:
        try:
            manifest = msgspec.json.decode(self._disk.read(self._folder / MANIFEST), type=Manifest)
        except (FileNotFoundError, ValueError):
            return False
        return manifest.writer > self._life

    def _write_values(self, item: ShardState) -> FragmentEntry:
        p, (epoch, count) = item["fragment"], item["version"]
        name, data = f"fragment-{p}-{epoch}-{count}.safetensors", encoded({**item["tensors"], VALUES: item["values"]})
        write_bytes(self._folder / name, data, self._disk)
        return FragmentEntry(
            fragment=p,
            version=(epoch, count),
            kind=item["kind"],
            clock=[(slot, incarnation, position) for slot, incarnation, position in item["clock"]],
            positions=[(slot, position) for slot, position in item["positions"]],
            totals=[(slot, incarnation, tokens) for slot, incarnation, tokens in item["totals"]],
            file=name,
            bytes=len(data),
            digest=xxhash.xxh3_128_hexdigest(data),
            lengths=item["lengths"],
        )

    def _write_states(self, states: Mapping[int, WholeState]) -> list[StateEntry]:
        former = {entry.index: entry for entry in self._newest.states} if self._newest is not None else {}
        entries = []
        for index, state in sorted(states.items()):
            if index in former and is_of(former[index], state):
                entries.append(former[index])
                continue
            entry, data = encoded_state(index, state, self._life)
            write_bytes(self._folder / entry.file, data, self._disk)
            entries.append(entry)
        return entries

    def _forget(self, before: Manifest | None, newest: Manifest) -> None:
        """Remove files that are in none of the newest manifest, the one before it, and the pinned one."""
        needed = [manifest for manifest in (before, newest, self._pinned) if manifest is not None]
        kept = {entry.file for manifest in needed for entry in manifest.entries}
        for name in sorted(self._old - kept):
            with suppress(OSError):
                self._disk.remove(self._folder / name)
                self._old.discard(name)
        self._old |= kept

    def _read(self, name: str) -> tuple[Manifest, dict[int, ShardState], dict[int, WholeState]]:
        manifest = self._manifest(name)
        return manifest, dict(self._items(manifest)), dict(self._states(manifest))

    def _manifest(self, name: str) -> Manifest:
        data = self._disk.read(self._folder / name)
        header = msgspec.json.decode(data, type=_Format)
        if header.format != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {header.format}: another version of isthmus wrote it")
        manifest = msgspec.json.decode(data, type=Manifest)
        count = len(manifest.fragments if self._sizes is None else self._sizes)
        if [entry.fragment for entry in manifest.fragments] != list(range(count)):
            raise ValueError(f"expected {count} fragments, found {len(manifest.fragments)}")
        return manifest

    def _items(self, manifest: Manifest) -> Iterator[tuple[int, ShardState]]:
        for entry in manifest.fragments:
            size = None if self._sizes is None else self._sizes[entry.fragment]
            yield entry.fragment, _item(entry, self._data(entry), size)

    def _states(self, manifest: Manifest) -> Iterator[tuple[int, WholeState]]:
        for entry in manifest.states:
            yield entry.index, decoded(entry, self._data(entry))

    def _data(self, entry: FragmentEntry | StateEntry) -> bytes:
        """The contents of an entry's file; ValueError if they differ from those written."""
        try:
            data = self._disk.read(self._folder / entry.file)
        except FileNotFoundError:
            raise ValueError(f"{entry.file} is missing") from None
        if len(data) != entry.bytes or xxhash.xxh3_128_hexdigest(data) != entry.digest:
            raise ValueError(f"{entry.file} is not what was written: {len(data)} of {entry.bytes} bytes")
        return data


def _item(entry: FragmentEntry, data: bytes, size: int | None) -> ShardState:
    try:
        tensors: dict[str, Vector] = dict(sorted(load(data).items()))  # safetensors gives them in any order.
    except SafetensorError as error:
        raise ValueError(f"{entry.file} is no file of a fragment: {error}") from None
    if VALUES not in tensors:
        raise ValueError(f"{entry.file}: expected a tensor {VALUES!r}, found {sorted(tensors)}")
    size = tensors[VALUES].size if size is None else size
    for name, tensor in tensors.items():
        if tensor.dtype != np.float32 or tensor.shape != (size,):
            expected = f"{size} values of float32"
            raise ValueError(f"{entry.file}, {name}: expected {expected}, found {tensor.dtype}{tensor.shape}")
    return ShardState(
        fragment=entry.fragment,
        version=list(entry.version),
        kind=entry.kind,
        values=tensors.pop(VALUES),
        clock=[list(each) for each in entry.clock],
        positions=[list(each) for each in entry.positions],
        totals=[list(each) for each in entry.totals],
        refused=[],
        tensors=tensors,
        lengths=entry.lengths,
    )
