"""Token ids that were made of files, in the user's cache: made once on a machine, and mapped by all that read them.

A token file has the ids of all files, one after the other, in the narrowest dtype that holds them; behind them, as
JSON, where each file ends, what was counted meanwhile, and digests. Its name is a digest of all that the ids follow
from: of the files their paths, sizes, and times of change (mtime, and ctime, which no program sets back), not their
contents, since to read these costs what a cache saves; the documents and options that say how text becomes ids; and the
code that does it.

A file is written as NAME.making, under an exclusive lock on itself, and renamed once it is whole and on the disk: a
maker that is killed leaves the lock to the next process, which begins anew, and no half-written file has the name of a
whole one. Whoever finds it locked waits. Whoever maps a file shares a lock on it for as long as the mapping lives, so
that what a live process reads is known: beyond BYTES_MAX the files that were opened longest ago are removed, and none
that is shared. On a disk without locks nobody can know that, and nothing is removed there but by `clear`.

A file that is shorter or longer than it says, or that differs in one of the places that its digest is of, is made
again. Where the cache cannot be used the ids go into a file without a name, of this process alone, which is logged, and
`reason` says why; a disk without room is an error.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt
import xxhash

from isthmus.ops.data.corpus import KEY_TOKENS, READING, Corpus, CorpusFile, DataError, TokenIds, key_by, split_of_one
from isthmus.ops.island.heap import give_back
from isthmus.programs.reading.found import described
from isthmus.programs.reading.token_progress import MakingProgress, tell
from isthmus.runtime.system.files import cache_path
from isthmus.runtime.system.locks import FileLock, alone, holder_of, share
from isthmus.runtime.system.refusals import NO_ROOM, is_absent, reason, remedy

_log: Final = logging.getLogger(__name__)
CACHE: Final = "tokens"
"""The folder in isthmus' cache."""
BYTES_MAX: Final = 32 << 30
"""What the token files take of the disk at most, but for those in use: two corpora of 32 GB of text each, of four bytes
a token and two bytes an id."""
FOUND: Final = "found"
MADE: Final = "made"
NOT_KEPT: Final = "not kept"

STUCK_SECONDS: Final = 600.0
"""After which without a byte more of a file that another process makes this process makes its own: no block of
documents takes as long, unless its process was stopped."""
_PAUSE_SECONDS: Final = 0.05
_SETTLED_NS: Final = 50_000_000
"""Times of change count in ticks of the kernel, of 10 ms at most: what is written within the tick of a time that was
read has the same time."""
_SUFFIX: Final = ".tokens"
_MAKING: Final = ".making"
_MAGIC: Final = b"isthmus1"
_FOOTER: Final = struct.Struct("<8sQ16s")
"""At the end: _MAGIC, the size of the JSON before it, and its digest."""
_PLACES: Final = 64
_PLACE_BYTES: Final = 1 << 16
"""A digest is of so many places, evenly spaced from the first byte to the last: 4 MiB, which take some milliseconds."""
_HELD_MAX: Final = 2
"""Token files that a process keeps mapped for whoever asks next: those of its training and of an evaluation."""
_HASHED: Final = np.dtype(np.int32)
"""What digests and keys are of, whatever ids are stored as."""

Ids: TypeAlias = npt.NDArray[Any]


class DamagedError(ValueError):
    """A token file is not as it was written."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenFile:
    """The ids of some files, mapped.

    `sizes` and `keys`: the tokens of each file, and its `corpus.key_of`. `is_marked`: whether there are complements of
    ids. `facts`: what was counted when they were made.
    `origin`: FOUND, MADE or NOT_KEPT, and for the last the `reason`; of MADE the reason is why another was not used.
    """

    ids: Ids
    sizes: tuple[int, ...]
    keys: tuple[str, ...]
    is_marked: bool
    facts: Mapping[str, Any]
    origin: str
    reason: str = ""

    def corpus(self, vocabulary: int) -> Corpus:
        """The files with their split; the digest is that of ids of four bytes."""
        return split_of_one(self.ids, self.sizes, self.keys, vocabulary, _HASHED)

    def whole(self) -> TokenIds:
        """All ids, nothing held out."""
        return TokenIds((self.ids,), are_mapped=True, are_marked=self.is_marked)


@final
class TokenWriter:
    """Writes ids of one file after the other; complements of ids, of tokens that are not predicted, may be among them.

    `make_room` is called where the disk is full, and says how many bytes it has freed.
    """

    def __init__(self, file: int, vocabulary: int, where: str, make_room: Callable[[], int]) -> None:
        self._file, self._vocabulary, self._where, self._make_room = file, vocabulary, where, make_room
        self._kinds = [np.dtype(kind) for kind in (np.uint16, np.int16, np.int32)]
        self._kind = self._kinds[0] if vocabulary - 1 <= np.iinfo(np.uint16).max else self._kinds[-1]
        self._sizes: list[int] = []
        self._keys: list[str] = []
        self._beginning: list[Ids] = []
        self._begun = self._written = 0
        self._is_marked = False
        self.files = 0
        """How many there are in all."""

    def add(self, ids: npt.NDArray[np.int32]) -> None:
        """Write the next ids of the file at hand."""
        if self._begun < KEY_TOKENS:
            self._beginning.append(ids[: KEY_TOKENS - self._begun].copy())
        self._begun += len(ids)
        if not self._is_marked and len(ids) and ids.min() < 0:
            self._is_marked = True
            if self._kind.kind == "u":
                narrow = self._vocabulary - 1 <= np.iinfo(np.int16).max
                self._widen(self._kinds[1] if narrow else self._kinds[2])
        self._write(ids.astype(self._kind, copy=False).tobytes(), self._written * self._kind.itemsize)
        self._written += len(ids)
        tell(MakingProgress(self._written, len(self._sizes), self.files))

    def end_file(self) -> None:
        """What follows is of the next file."""
        beginning = np.concatenate([*self._beginning, np.empty(0, _HASHED)]).astype(_HASHED, copy=False)
        self._keys.append(key_by(beginning, self._begun))
        self._sizes.append(self._begun)
        self._beginning, self._begun = [], 0

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write what is behind the ids."""
        size = self._written * self._kind.itemsize
        behind = {
            "kind": self._kind.str,
            "tokens": self._written,
            "sizes": self._sizes,
            "keys": self._keys,
            "marked": self._is_marked,
            "digest": _sampled(self._file, size),
            "facts": facts,
        }
        text = json.dumps(behind).encode()
        footer = _FOOTER.pack(_MAGIC, len(text), xxhash.xxh3_128_digest(text))
        self._write(text + footer, size)
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._refusal(error) from None

    def _widen(self, kind: np.dtype[Any]) -> None:
        """Have what is written already, from its end on, in a dtype that has complements, too."""
        former, self._kind = self._kind, kind
        block = 1 << 20
        for begin in range((self._written - 1) // block * block if self._written else -1, -1, -block):
            count = min(block, self._written - begin)
            ids = np.frombuffer(_read(self._file, count * former.itemsize, begin * former.itemsize), former)
            self._write(ids.astype(kind).tobytes(), begin * kind.itemsize)

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(self._file, view, at)
            except OSError as error:
                if error.errno in NO_ROOM and self._make_room():
                    continue
                raise self._refusal(error) from None
            view, at = view[count:], at + count

    def _refusal(self, error: OSError) -> DataError:
        do = remedy(error, "Look at that disk.")
        do += " isthmus data --clear empties the cache, and XDG_CACHE_HOME names another folder for it."
        return DataError(READING, f"room for its tokens in {self._where}", reason(error), do)


Make: TypeAlias = Callable[[TokenWriter], Mapping[str, Any]]
"""Writes the ids of all files, and returns what was counted, as JSON has it."""


def name_of(files: Sequence[CorpusFile], documents: Mapping[str, bytes], options: Mapping[str, Any]) -> str:
    """The name of the ids of some files: 32 hex digits. `documents`: the contents of what says how text becomes ids;
    `options`: as JSON has them."""
    hasher = xxhash.xxh3_128(_code())
    for file in files:
        hasher.update(f"{file.path}\0{file.size_bytes} {file.changed_ns} {file.renewed_ns}\0".encode(errors="replace"))
    for name, document in sorted(documents.items()):
        hasher.update(f"{name} {len(document)}\0".encode() + document)
    hasher.update(json.dumps(options, sort_keys=True).encode())
    return hasher.hexdigest()


@cache
def _code() -> bytes:
    """The code that reads files and makes ids: of a former version none are taken."""
    here = Path(__file__).parent
    sources = sorted(path for room in (here, here.parent / "model_folders") for path in room.glob("*.py"))
    versions = []
    for package in ("tokenizers", "pyarrow"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return b"\0".join([*(path.read_bytes() for path in sources), " ".join(versions).encode()])


_held: dict[str, TokenFile] = {}


def token_file(name: str, files: Sequence[CorpusFile], vocabulary: int, make: Make) -> TokenFile:
    """The ids of that name, which `name_of` gives: found, or made. They are made by one process at a time.

    DataError where a disk has no room, or a file has changed while it was read; what `make` raises.
    """
    file = _held.pop(name, None)
    if file is None:
        file = _found_or_made(name, _checked(make, files), vocabulary)
        if file.origin != FOUND:
            give_back()  # Hosts may be forked from here: what a tokenizer has freed would be in each of them.
    _held[name] = file
    while len(_held) > _HELD_MAX:
        del _held[next(iter(_held))]
    return file


def _checked(make: Make, files: Sequence[CorpusFile]) -> Make:
    """The same, of files that nobody has written to since they were found."""

    def made(writer: TokenWriter) -> Mapping[str, Any]:
        newest = max((max(file.changed_ns, file.renewed_ns) for file in files), default=0)
        if (settled := newest + _SETTLED_NS - time.time_ns()) > 0:
            time.sleep(min(settled, _SETTLED_NS) / 1e9)
        writer.files = len(files)
        facts = make(writer)
        for file in files:
            if (now := _status(file.path)) != file:
                actual = f"{file.path}, which was written to meanwhile" if now else f"{file.path} gone"
                do = "Start again once nothing writes to it, or name a copy."
                raise DataError(READING, "files that stay as they are while they are read", actual, do)
        return facts

    return made


def _status(path: str) -> CorpusFile | None:
    try:
        return described(Path(path))
    except OSError:
        return None


def _found_or_made(name: str, make: Make, vocabulary: int) -> TokenFile:
    folder = cache_path(CACHE)
    if folder is None:
        return _apart(make, vocabulary, "this user has no home, and XDG_CACHE_HOME is not set")
    path = folder / f"{name}{_SUFFIX}"
    progress, since, damage = -1, time.monotonic(), ""
    try:
        while True:
            try:
                if (there := _opened(path)) is not None:
                    return there
            except DamagedError as error:
                damage = f"the one that was kept is damaged: {error}"
                path.unlink(missing_ok=True)
            if (file := _made(path, make, vocabulary, damage)) is not None:
                return file
            if (size := _size(_partial(path))) != progress:
                progress, since = size, time.monotonic()
            tell(MakingProgress(elsewhere_bytes=size))
            if time.monotonic() - since > STUCK_SECONDS:
                why = f"another process makes them in {path.parent}, and has written nothing for {STUCK_SECONDS:.0f} s"
                return _apart(make, vocabulary, why)
            holder = holder_of(_partial(path))
            if holder is not None and not holder.is_here:
                return _apart(make, vocabulary, f"{path.parent} has no locks, and {holder.host} makes them there")
            time.sleep(_PAUSE_SECONDS)
    except OSError as error:
        return _apart(make, vocabulary, reason(error))


def _partial(path: Path) -> Path:
    return path.with_suffix(_MAKING)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _opened(path: Path) -> TokenFile | None:
    """A file that is whole; None where there is none, or one that is being removed. DamagedError, OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if is_absent(error):
            return None
        raise
    try:
        if share(file) is False:
            return None
        with suppress(OSError):  # Of a disk that takes no writes.
            os.utime(file)
        return _mapped(file, FOUND, "")
    finally:
        os.close(file)  # The mapping has a descriptor of the same opening, and thereby the lock.


def _made(path: Path, make: Make, vocabulary: int, damage: str) -> TokenFile | None:
    """The file of that path; None where another process makes it, or has made it meanwhile.

    OSError where nothing can be written there; what `make` raises.
    """
    partial = _partial(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    lock = FileLock(file, partial)
    try:
        if not lock.take() or not _is_at(file, partial):
            return None
        try:
            if path.exists():
                partial.unlink()
                return None
            os.ftruncate(file, 0)
            writer = TokenWriter(file, vocabulary, str(path.parent), lambda: _free(path.parent, 1))
            try:
                writer.finish(make(writer))
            except OSError as error:  # Of the data, and not of the cache.
                do = remedy(error, "Look there.")
                raise DataError(READING, "files that can be read", reason(error), do) from error
            share(file)
            partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        made = _mapped(file, MADE, damage)
        _keep_below(path.parent)
        return made
    finally:
        lock.release()
        os.close(file)


def _apart(make: Make, vocabulary: int, why: str) -> TokenFile:
    """The ids in a file without a name, which ends with the process."""
    where = tempfile.gettempdir()
    _log.warning("isthmus: the tokens of the data are not kept, and made by each process: %s", why)
    try:
        unnamed = tempfile.TemporaryFile()  # noqa: SIM115
    except OSError as error:
        do = "Set XDG_CACHE_HOME or TMPDIR to a folder that can be written to."
        raise DataError(READING, f"room for its tokens in {where}", reason(error), do) from None
    with unnamed:
        writer = TokenWriter(unnamed.fileno(), vocabulary, where, lambda: 0)
        writer.finish(make(writer))
        return _mapped(unnamed.fileno(), NOT_KEPT, why)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file has this name: the former of that name may have been renamed, or removed."""
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _mapped(file: int, origin: str, why: str) -> TokenFile:
    size = os.fstat(file).st_size
    footer = _read(file, _FOOTER.size, max(size - _FOOTER.size, 0))
    if len(footer) < _FOOTER.size:
        raise DamagedError(f"{size} bytes")
    magic, length, digest = _FOOTER.unpack(footer)
    text = _read(file, length, size - _FOOTER.size - length) if length <= size - _FOOTER.size else b""
    if magic != _MAGIC or xxhash.xxh3_128_digest(text) != digest:
        raise DamagedError("its end is not that of a token file")
    behind = json.loads(text)
    kind, tokens = np.dtype(behind["kind"]), behind["tokens"]
    if tokens * kind.itemsize != size - _FOOTER.size - length:
        raise DamagedError(f"{size} bytes, with {tokens} tokens")
    if _sampled(file, tokens * kind.itemsize) != behind["digest"]:
        raise DamagedError("its ids are not those that were written")
    ids = np.frombuffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ), kind, tokens)
    sizes, keys = tuple(behind["sizes"]), tuple(behind["keys"])
    return TokenFile(ids, sizes, keys, behind["marked"], behind["facts"], origin, why)


def _sampled(file: int, size: int) -> str:
    """A digest of the first `size` bytes of a file, in some places, and of how many they are."""
    hasher = xxhash.xxh3_128(str(size).encode())
    last = max(size - _PLACE_BYTES, 0)
    for at in sorted({last * place // (_PLACES - 1) for place in range(_PLACES)}):
        hasher.update(_read(file, min(_PLACE_BYTES, size - at), at))
    return hasher.hexdigest()


def _read(file: int, count: int, at: int) -> bytes:
    """So many bytes from a place; fewer at the end."""
    pieces = []
    while count and (piece := os.pread(file, count, at)):
        pieces.append(piece)
        count, at = count - len(piece), at + len(piece)
    return b"".join(pieces)


# -- what the cache takes of the disk ----------------------------------------------------------------------------------


@final
class Cleared(NamedTuple):
    """How many token files were removed, and their bytes; how many are in use, and stay."""

    files: int
    bytes: int
    in_use: int
    in_use_bytes: int


def clear() -> Cleared:
    """Remove all token files that no live process reads; of a disk without locks all.

    OSError where the folder cannot be read, or a file not be removed.
    """
    folder = cache_path(CACHE)
    files = freed = kept = kept_bytes = 0
    for path in () if folder is None else _entries(folder):
        size = _disk_bytes(path)
        if _removed(path, is_asked=True):
            files, freed = files + 1, freed + size
        elif path.exists():
            kept, kept_bytes = kept + 1, kept_bytes + size
    return Cleared(files, freed, kept, kept_bytes)


def _entries(folder: Path) -> Iterator[Path]:
    """The token files, those first that were opened longest ago, behind those that nobody completes."""
    ends = (_MAKING, _SUFFIX)
    places = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in ends:
            with suppress(FileNotFoundError):
                places.append((ends.index(path.suffix), path.stat(follow_symlinks=False).st_mtime_ns, path))
    return (path for *_, path in sorted(places))


def _keep_below(folder: Path) -> None:
    """Remove what is beyond BYTES_MAX; a folder that cannot be looked through stays as it is."""
    with suppress(OSError):
        _free(folder, sum(map(_disk_bytes, _entries(folder))) - BYTES_MAX)


def _disk_bytes(path: Path) -> int:
    try:
        return 512 * path.stat(follow_symlinks=False).st_blocks
    except FileNotFoundError:
        return 0


def _free(folder: Path, needed: int) -> int:
    """Remove files that no live process reads until so many bytes are freed, if there are as many; how many were."""
    freed = 0
    with suppress(OSError):  # What cannot be removed stays; what that means, the next to write there is told.
        for path in _entries(folder):
            if freed >= needed:
                break
            size = _disk_bytes(path)
            freed += size if _removed(path) else 0
    return freed


def _removed(path: Path, *, is_asked: bool = False) -> bool:
    """Remove a file that no other process has; whether it was. `is_asked`: also where nobody can know that."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        is_alone = alone(file)
        if is_alone is False or (is_alone is None and not is_asked) or not _is_at(file, path):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(file)
