"""Snapshots of a model on the disk of the run's home: the newest published version of every fragment, and whole states
of learners.

Decides the form of a snapshot, when one is good, and which one is read; not when one is taken (`keeping`).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load

from isthmus.ops.exchange.messages import ShardState, UpdateKind, Vector, WholeState, passed_on
from isthmus.ops.recovery.hold import flat, form_of, formed
from isthmus.programs.engine.snapshots.moments import MomentsEntry
from isthmus.programs.engine.snapshots.snapshot_files import BEFORE, FOLDER, MANIFEST
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import encoded, write_bytes


class StateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One state: the fields of its `WholeState`, with the tensors in a file."""

    index: int
    tokens: int
    steps: int
    totals: list[tuple[int, int, int]]
    positions: list[tuple[int, int]]
    streams: list[tuple[int, int]]
    """(slot, position) of those whose states are in the file."""
    leaves: list[tuple[str, list[int]]]
    """(type, shape) of each."""
    file: str
    """That with the tensors."""
    bytes: int
    """The file's."""
    digest: str
    """The file's, xxh3-128, hexadecimal."""
    standings: list[tuple[int, int, int | None, list[list[int]]]] = []
    """Of a learner that gives a part of a cut."""

    @property
    def key(self) -> tuple[int, ...]:
        """What tells it from other states of a life of the recorder: one has more tokens than the one before."""
        return self.index, self.tokens, self.steps


FORMAT: Final = 3
READABLE: Final = (2, FORMAT)
"""This, and the one before, which had no `moments`: kept for a release (docs/contributing.md)."""
VALUES: Final = "values"
_OF_FRAGMENT: Final = re.compile(r"\.?fragment-\d+-\d+-\d+(?:-(\d+)-\d+)?\.safetensors")
"""With the life of the recorder that took it from a shard."""
_NONE: Final[Mapping[int, WholeState]] = {}
PART_BYTES: Final = 8 << 20
"""Of a file that is read a part at a time."""
_Contents: TypeAlias = tuple[dict[int, ShardState], dict[int, WholeState]]
"""Items by fragment, and whole states by index."""


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
    values_digest: str = ""
    """That of the version (`ops.recovery.hold.digest_of`); '' where it was not taken from its shard."""

    @property
    def key(self) -> tuple[int, ...]:
        """What tells it from all other versions."""
        return self.fragment, *self.version


Entry: TypeAlias = FragmentEntry | StateEntry | MomentsEntry
_Entry = TypeVar("_Entry", FragmentEntry, StateEntry)


class Versioned(msgspec.Struct, frozen=True):
    """What a manifest, or the head of a stored snapshot, of any version says."""

    format: int


class OtherFormatError(ConfigError):
    """A snapshot of another version of isthmus. It is not damaged: whoever went on from an older one instead would
    undo the work of that version."""

    @classmethod
    def at(cls, where: object, expected: int, found: int) -> Self:
        """The error for the file or object at a place."""
        do = f"Read it with a{' later' if found > expected else 'n earlier'} version of isthmus, as it was written."
        return cls(f"Reading {where}", f"a snapshot of format {expected}", f"one of format {found}", do)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot: one entry for each fragment of the model, in order, and those of whole `states` of learners, in
    programs that have any; `writer` is the recorder's life that took it."""

    format: int
    number: int
    fragments: list[FragmentEntry]
    writer: int = 0
    states: list[StateEntry] = []
    moments: list[MomentsEntry] = []
    """Of learners whose states are not in it."""

    @property
    def entries(self) -> list[Entry]:
        """All entries, each of which has a file."""
        return [*self.fragments, *self.states, *self.moments]


class Found(NamedTuple):
    """The newest good snapshot, None if there is none, with items by fragment and whole states by index.

    `faults`: those of newer snapshots; `name`: that of its manifest's file, '' if there is none.
    """

    manifest: Manifest | None
    held: dict[int, ShardState]
    faults: list[str]
    states: dict[int, WholeState]
    name: str = ""


class Snapshots:
    """The snapshots in `folder` of a model with fragments of `sizes` values, taken by one life of the recorder.

    A reader that does not know the sizes gives None. Errors of the disk are raised as OSError, and leave the newest
    good snapshot as it was. OtherFormatError for snapshots of another version, beside which nothing is written.

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
        self.newest: Manifest | None = None
        """The newest good snapshot; None if there is none, or it is unknown."""
        self._before: Manifest | None = None
        self._is_in_place = False
        """Whether the newest has the name MANIFEST; it is renamed before the next takes that name."""
        self._old: set[str] = set()
        """Files that only manifests before the newest name."""
        self._pinned: Manifest | None = None
        self._has_looked = False
        """Whether it has looked for files that former lives have left."""

    def read(self) -> Found:
        """The newest complete snapshot, made durable; the next `write` follows it. OSError if the disk cannot be read.

        (Its writer may have died before the snapshot's name was durable.)
        """
        return self._followed(lambda manifest: (dict(self._items(manifest)), dict(self._states(manifest))))

    def recall(self) -> Found:
        """The same without contents, of which a part at a time is in memory."""
        return self._followed(self._checked)

    def _followed(self, contents: Callable[[Manifest], _Contents]) -> Found:
        found = self._found(contents)
        if found.manifest is not None:
            self._disk.sync_folder(self._folder)
            self.newest, self._is_in_place = found.manifest, found.name == MANIFEST
        return found

    def _checked(self, manifest: Manifest) -> _Contents:
        """Nothing; ValueError for a file that is not what was written."""
        for entry in manifest.entries:
            digest, at = xxhash.xxh3_128(), 0
            try:
                while data := self._disk.read_part(self._folder / entry.file, at, PART_BYTES):
                    digest.update(data)
                    at += len(data)
            except FileNotFoundError:
                raise ValueError(f"{entry.file} is missing") from None
            if at != entry.bytes or digest.hexdigest() != entry.digest:
                raise ValueError(f"{entry.file} is not what was written: {at} of {entry.bytes} bytes")
        return {}, {}

    def item(self, entry: FragmentEntry) -> ShardState:
        """The state of an entry; ValueError where its file is not what was written, OSError of the disk."""
        return _item(entry, self._tensors(entry), None if self._sizes is None else self._sizes[entry.fragment])

    def examine(self) -> Found:
        """Look for the newest one that is whole, without its contents; one entry at a time is in memory."""

        def contents(manifest: Manifest) -> _Contents:
            for _ in chain(self._items(manifest), self._states(manifest)):
                pass
            for entry in manifest.moments:
                self._data(entry)
            return {}, {}

        return self._found(contents)

    def numbers(self) -> list[int]:
        """The numbers of the snapshots that are there, whole or not, newest first."""
        found: list[int] = []
        for name in (MANIFEST, BEFORE):
            with suppress(FileNotFoundError, ValueError):
                found.append(self._manifest(name).number)
        return found

    def held(self, number: int | None = None) -> Found:
        """The items of the newest complete snapshot, or of that with this number; its writer may live, and go on.

        Whole states of learners are not read.
        """

        def contents(manifest: Manifest) -> _Contents:
            if number is not None and manifest.number != number:
                raise ValueError(f"snapshot {manifest.number}, not {number}")
            return dict(self._items(manifest)), {}

        return self._found(contents)

    def _found(self, contents: Callable[[Manifest], _Contents]) -> Found:
        """The newest one whose `contents` can be read, which raise ValueError where they are damaged."""
        faults: list[str] = []
        for name in (MANIFEST, BEFORE):
            with suppress(FileNotFoundError):
                try:
                    manifest = self._manifest(name)
                    held, states = contents(manifest)
                except ValueError as error:
                    faults.append(f"{FOLDER}/{name}: {error}")
                    continue
                return Found(manifest, held, faults, states, name)
        return Found(None, {}, faults, {})

    def pin(self, manifest: Manifest | None) -> None:
        """Keep the files of this snapshot, too, in place of the one that was pinned before."""
        self._pinned = manifest

    def versions(self) -> list[list[int]]:
        """[fragment, epoch, count] of all versions that a later `read` may find, and of the snapshot that is pinned."""
        kept = [manifest for manifest in (self.newest, self._before, self._pinned) if manifest is not None]
        return sorted([entry.fragment, *entry.version] for manifest in kept for entry in manifest.fragments)

    def write(
        self,
        held: Mapping[int, ShardState],
        states: Mapping[int, WholeState] = _NONE,
    ) -> Manifest:
        """Take a snapshot of these items, one of each fragment, and of whole states; returns the newest if none is new.

        OSError also for a life that was replaced without knowing it: its items are older.
        """
        self.check_life()
        before = self.newest
        fragments = {} if before is None else {entry.key: entry for entry in before.fragments}
        wholes = {} if before is None else {entry.key: entry for entry in before.states}
        entries = [
            fragments.get((p, *item["version"])) or self._write_fragment(item) for p, item in sorted(held.items())
        ]
        whole = [
            wholes.get((index, state["tokens"], state["steps"])) or self._write_state(index, state)
            for index, state in sorted(states.items())
        ]
        return self._name(entries, whole, [])

    def name(self, entries: Sequence[FragmentEntry], moments: Sequence[MomentsEntry] = ()) -> Manifest:
        """Take a snapshot of states, one of each fragment, and of moments, whose files are there; as `write`."""
        self.check_life()
        return self._name(list(entries), [], list(moments))

    def note(self, entry: FragmentEntry) -> None:
        """A file is there that no snapshot need ever name: it is removed with the next one that does not."""
        self._old.add(entry.file)

    def check_life(self) -> None:
        """OSError if a later life of the recorder has taken a snapshot, or the disk cannot be read."""
        if self._is_replaced():
            raise OSError(errno.ESTALE, "a later life of the recorder takes the snapshots")

    def _name(self, entries: list[FragmentEntry], whole: list[StateEntry], copies: list[MomentsEntry]) -> Manifest:
        """Write the manifest of a snapshot whose files are there, unless it is the newest."""
        before = self.newest
        if before is not None and (entries, whole, copies) == (before.fragments, before.states, before.moments):
            return before
        number = before.number + 1 if before is not None else 1
        manifest = Manifest(FORMAT, number, entries, self._life, whole, copies)
        if self._is_in_place:
            self._disk.rename(self._folder / MANIFEST, self._folder / BEFORE)
            self._is_in_place = False
        self._write_manifest(MANIFEST, manifest)
        self.newest, self._before, self._is_in_place = manifest, before, True
        self._forget(before, manifest)
        return manifest

    def go_on(self) -> None:
        """Have versions that were merged at the end be such as others: a learner that took one over would end, too."""
        for name in (MANIFEST, BEFORE):
            with suppress(FileNotFoundError, ValueError):
                former = self._manifest(name)
                fragments = [
                    msgspec.structs.replace(entry, kind="merge") if entry.kind == "final" else entry
                    for entry in former.fragments
                ]
                if fragments != former.fragments:
                    self._write_manifest(name, msgspec.structs.replace(former, fragments=fragments))

    def _write_manifest(self, name: str, manifest: Manifest) -> None:
        write_bytes(self._folder / name, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n", self._disk)

    def _is_replaced(self) -> bool:
        try:
            data = self._disk.read(self._folder / MANIFEST)
            if msgspec.json.decode(data, type=Versioned).format not in READABLE:
                return True
            return msgspec.json.decode(data, type=Manifest).writer > self._life
        except (FileNotFoundError, ValueError):
            return False

    def _write_fragment(self, item: ShardState) -> FragmentEntry:
        p, (epoch, count) = item["fragment"], item["version"]
        name = f"fragment-{p}-{epoch}-{count}.safetensors"
        return self._write(FragmentEntry, {**item}, name, {**item["tensors"], VALUES: item["values"]})

    def _write_state(self, index: int, state: WholeState) -> StateEntry:
        """Write a safetensors file with the bytes of each leaf.

        Types and shapes are in the manifest, so that types which safetensors does not know (those of keys, and of small
        floats) are as good as others.
        """
        leaves = [np.asarray(leaf) for leaf in state["leaves"]]
        tensors = {f"leaf-{i}": flat(leaf) for i, leaf in enumerate(leaves)}
        tensors |= {f"stream-{slot}": flat(np.asarray(stream)) for slot, _, stream in state["streams"]}
        streams = [(slot, position) for slot, position, _ in state["streams"]]
        fields = {**state, "index": index, "leaves": [form_of(leaf) for leaf in leaves], "streams": streams}
        return self._write(StateEntry, fields, f"state-{index}-{self._life}-{state['tokens']}.safetensors", tensors)

    def _write(
        self, kind: type[_Entry], fields: dict[str, Any], name: str, tensors: Mapping[str, np.ndarray[Any, Any]]
    ) -> _Entry:
        """Write a file; returns its entry, with the `fields` that such a one has."""
        data = encoded(tensors)
        fields |= {"file": name, "bytes": len(data), "digest": xxhash.xxh3_128_hexdigest(data)}
        entry = msgspec.convert({key: fields[key] for key in kind.__struct_fields__ if key in fields}, kind)
        write_bytes(self._folder / name, data, self._disk)
        return entry

    def _forget(self, before: Manifest | None, newest: Manifest) -> None:
        """Remove files that are in none of the newest manifest, the one before it, and the pinned one."""
        needed = [manifest for manifest in (before, newest, self._pinned) if manifest is not None]
        kept = {entry.file for manifest in needed for entry in manifest.entries}
        if not self._has_looked:
            with suppress(OSError):
                self._old |= {name for name in self._disk.sizes(self._folder) if self._is_left(name)}
                self._has_looked = True
        for name in sorted(self._old - kept):
            with suppress(OSError):
                self._disk.remove(self._folder / name)
                self._old.discard(name)
        self._old |= kept

    def _is_left(self, name: str) -> bool:
        """Whether a file is of a former life: nobody names it any more, if it is in no manifest. Now that this life has
        named one, a former life that goes on does not either."""
        found = _OF_FRAGMENT.match(name)
        return found is not None and int(found[1] or 0) < self._life

    def _manifest(self, name: str) -> Manifest:
        data = self._disk.read(self._folder / name)
        header = msgspec.json.decode(data, type=Versioned)
        if header.format not in READABLE:
            raise OtherFormatError.at(self._folder / name, FORMAT, header.format)
        manifest = msgspec.json.decode(data, type=Manifest)
        count = len(manifest.fragments if self._sizes is None else self._sizes)
        if [entry.fragment for entry in manifest.fragments] != list(range(count)):
            raise ValueError(f"expected {count} fragments, found {len(manifest.fragments)}")
        return manifest

    def _items(self, manifest: Manifest) -> Iterator[tuple[int, ShardState]]:
        for entry in manifest.fragments:
            size = None if self._sizes is None else self._sizes[entry.fragment]
            yield entry.fragment, _item(entry, self._tensors(entry), size)

    def _states(self, manifest: Manifest) -> Iterator[tuple[int, WholeState]]:
        for entry in manifest.states:
            yield entry.index, _state(entry, self._tensors(entry))

    def _data(self, entry: Entry) -> bytes:
        """What an entry's file has; ValueError if it differs from what was written."""
        try:
            data = self._disk.read(self._folder / entry.file)
        except FileNotFoundError:
            raise ValueError(f"{entry.file} is missing") from None
        check_data(entry, data, entry.file)
        return data

    def _tensors(self, entry: Entry) -> dict[str, Any]:
        """The tensors in an entry's file; ValueError if it differs from the one written."""
        data = self._data(entry)
        try:
            return dict(sorted(load(data).items()))  # safetensors gives them in any order.
        except SafetensorError as error:
            raise ValueError(f"{entry.file} is no file of tensors: {error}") from None


def check_data(entry: Entry, data: bytes, name: str) -> None:
    """ValueError unless `data`, found by this name, are those of the entry."""
    if len(data) != entry.bytes or xxhash.xxh3_128_hexdigest(data) != entry.digest:
        raise ValueError(f"{name} is not what was written: {len(data)} of {entry.bytes} bytes")


def _fields(entry: Entry) -> dict[str, Any]:
    """The fields of an entry as those of an item, with lists for tuples."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(entry))
    return fields


def _item(entry: FragmentEntry, tensors: dict[str, Vector], size: int | None) -> ShardState:
    if VALUES not in tensors:
        raise ValueError(f"{entry.file}: expected a tensor {VALUES!r}, found {sorted(tensors)}")
    size = tensors[VALUES].size if size is None else size
    for name, tensor in tensors.items():
        if tensor.dtype != np.float32 or tensor.shape != (size,):
            expected = f"{size} values of float32"
            raise ValueError(f"{entry.file}, {name}: expected {expected}, found {tensor.dtype}{tensor.shape}")
    values = tensors.pop(VALUES)
    item: ShardState = passed_on(ShardState, _fields(entry), values=values, refused=[], tensors=tensors)
    return item


def _state(entry: StateEntry, tensors: dict[str, Any]) -> WholeState:
    try:
        leaves = [formed(tensors[f"leaf-{i}"], *form) for i, form in enumerate(entry.leaves)]
        streams = [[slot, position, tensors[f"stream-{slot}"]] for slot, position in entry.streams]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{entry.file} is no file of a state: {error}") from None
    state: WholeState = passed_on(WholeState, _fields(entry), leaves=leaves, streams=streams)
    return state
