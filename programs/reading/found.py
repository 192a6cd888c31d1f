"""Which files are read as training data, in which order, and which are left out.

A folder is read whole, sorted, its files before its folders. Left out are files that nobody means as data: hidden
ones, empty ones, caches of `datasets`, and images, archives, weights and the like, by their suffixes; for texts also
what has NUL bytes. A .json file that is one object is text among texts, as package.json is in a repository of code;
beside rows it says something of these, and is left out, as is the card of a dataset. Whatever is left out is returned
with its reason, so that it can be counted and named. A path that the user names is read or refused, never left out.

Links to files and folders are followed, each target once, by its real path. Folders below the named ones come first,
so that a link into them changes nothing; a link from below a folder to it, or above it, is refused.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, final

from isthmus.ops.data.corpus import READING, CorpusFile, DataError
from isthmus.programs.reading.forms import ARROW, LIST, PACKED, PARQUET, TOKENS, FileForm, form_of

_NAME_OTHERS: Final = "Name other files or folders with --data."
_NAMED_MAX: Final = 5
_LOOK_BYTES: Final = 1 << 16
SHOWN: Final = 3
"""Of the paths that are left out for one reason, so many are named."""

_TEST_FOLDERS: Final = frozenset({"test", "tests", "idle_test"})
_FOREIGN_FOLDERS: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})

HIDDEN: Final = "hidden"
EMPTY: Final = "empty"
CACHE: Final = "a cache of datasets"
TWICE: Final = "read already, under another name"
NOWHERE: Final = "a link to nothing"
NO_FILE: Final = "neither file nor folder"
NUL_BYTES: Final = "NUL bytes, which no text has"
ONE_OBJECT: Final = "one JSON object, beside rows"
CARD: Final = "a card of a dataset, beside rows"

_NO_DATA: Final = MappingProxyType(
    {
        suffix: reason
        for reason, suffixes in {
            "an image": "png jpg jpeg gif bmp tif tiff webp ico heic psd",
            "sound or video": "mp3 wav flac ogg m4a mp4 mkv avi mov webm",
            "an archive": "zip tar tgz tbz2 txz bz2 xz 7z rar jar whl egg",
            "an executable": "exe dll so dylib o pyc pyo class wasm",
            "a pickle": "pkl pickle pt pth ckpt joblib",
            "weights": "safetensors gguf onnx h5 hdf5 msgpack npz",
            "a document in a binary format": "pdf doc docx xls xlsx ppt pptx odt epub sqlite sqlite3 ttf otf woff",
        }.items()
        for suffix in suffixes.split()
    }
)
_BESIDE_ARROW: Final = frozenset({"dataset_info.json", "state.json"})
_ABOVE_ARROW: Final = "dataset_dict.json"
_FIELDS: Final = b"---\n"


@final
class LeftOut(NamedTuple):
    """A file or folder that is not read, and why: one of the reasons of this module."""

    path: str
    reason: str


@final
@dataclass(frozen=True, slots=True)
class LeftOutFiles:
    """What is left out for one reason: how many files or folders, and the first of them, by path."""

    reason: str
    files: int
    first: tuple[str, ...] = ()


def by_reason(left_out: Iterable[LeftOut]) -> tuple[LeftOutFiles, ...]:
    """What is left out, a reason each, in the order in which these came."""
    paths: dict[str, list[str]] = {}
    for path, reason in left_out:
        paths.setdefault(reason, []).append(path)
    return tuple(LeftOutFiles(reason, len(each), tuple(each[:SHOWN])) for reason, each in paths.items())


@final
@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files to read, in their order, and what is left out below the named paths."""

    files: tuple[CorpusFile, ...]
    left_out: tuple[LeftOut, ...] = ()


_remembered: ContextVar[dict[tuple[object, ...], FoundFiles] | None] = ContextVar("found", default=None)


@contextmanager
def finding_once() -> Iterator[None]:
    """Within it what `find` has found under some paths is what it finds there again: a task and the table of its data
    are of one look at them."""
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def find(paths: Sequence[str] = (), *, are_texts: bool = False, are_rows: bool = False) -> FoundFiles:
    """The files under `paths`; without paths, those of the standard library.

    `are_texts`: whether each file without a suffix of tokens must be text, which has no NUL bytes. `are_rows`: whether
    rows are read as such, so that a .json file that is named has to have some.

    DataError if a path does not exist or cannot be listed, if a named file is not data, if links lead in a circle, or
    if nothing is left.

    Python's own library is on every machine that can run this, so that a first run needs no download.
    """
    remembered = _remembered.get()
    if remembered is None:
        return _find(paths, are_texts, are_rows)
    asked = (*paths, are_texts, are_rows)
    if asked not in remembered:
        remembered[asked] = _find(paths, are_texts, are_rows)
    return remembered[asked]


def _find(paths: Sequence[str], are_texts: bool, are_rows: bool) -> FoundFiles:
    search = _Search(are_texts, are_rows)
    try:
        for path in paths:
            search.add(Path(path))
        found = search.found() if paths else FoundFiles(tuple(described(file) for file in _standard_library()))
    except OSError as error:
        raise DataError(
            READING, "files that can be listed", str(error), "Correct --data, or the permissions."
        ) from error
    if not found.files:
        where = ", ".join(paths) if paths else f"Python's standard library, {sysconfig.get_path('stdlib')}"
        named = "; ".join(f"{path} ({reason})" for path, reason in found.left_out[:_NAMED_MAX])
        more = f"; {len(found.left_out) - _NAMED_MAX} more" if len(found.left_out) > _NAMED_MAX else ""
        actual = f"only what is left out: {named}{more}" if named else "no file"
        raise DataError(READING, f"text or tokens in {where}", actual, _NAME_OTHERS)
    return found


def find_set(path: str, *, has_documents: bool = False) -> FoundFiles:
    """The files of a held-out set. DataError as `find`, with what to do about the setting that names it."""
    try:
        return find([path], are_texts=has_documents, are_rows=has_documents)
    except DataError as error:
        do = "Correct its path, or leave it out."
        raise DataError(error.action, error.expected, error.found, do) from error


def contents(path: Path) -> Iterator[Path]:
    """Every file of a folder, or the file itself, that is neither hidden nor empty, in a fixed order."""
    files = (path,) if path.is_file() else _walk(path, lambda name: not name.startswith("."))
    return (file for file in files if file.stat().st_size)


def described(file: Path) -> CorpusFile:
    """A file as it is now."""
    status = file.stat()
    return CorpusFile(str(file), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _standard_library() -> Iterator[Path]:
    """Its Python files, without tests, installed packages, and files generated for one machine."""

    def keep(name: str) -> bool:
        return name not in _TEST_FOLDERS | _FOREIGN_FOLDERS and not name.startswith(("config-", "_sysconfigdata"))

    real_folder = cache(os.path.realpath)

    def real(file: Path) -> str:
        """Its real path, with one look at each folder for all of its files: a run begins with this."""
        folder, name = os.path.split(file)
        return os.path.realpath(file) if os.path.islink(file) else os.path.join(real_folder(folder), name)

    files = (file for file in _walk(Path(sysconfig.get_path("stdlib")), keep) if file.suffix == ".py")
    return iter({real(file): file for file in files if file.stat().st_size}.values())


def _walk(root: Path, keep: Callable[[str], bool]) -> Iterator[Path]:
    """Every regular file under `root`, without following links; `keep` selects the name of each file and folder."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(filter(keep, folders))
        yield from (file for name in sorted(filter(keep, names)) if (file := Path(folder, name)).is_file())


@final
class _Search:
    """The paths that were named, in their order, with links to folders in their places until all else is read."""

    def __init__(self, are_texts: bool, are_rows: bool) -> None:
        self._are_texts, self._are_rows = are_texts, are_rows
        self._entries: list[Path | _FolderLink] = []
        self._walked: set[str] = set()
        """Real paths of folders."""
        self._left_out: list[LeftOut] = []
        self._about: dict[Path, str] = {}
        """Files below folders that say something of rows, where there are any, and what they then are."""

    def add(self, path: Path) -> None:
        """Add what the user named."""
        if path.is_file():
            if reason := self._reason(path) or (ONE_OBJECT if self._is_one_object(path) else ""):
                do = "Name another; where its bytes are meant, give it a name without that suffix."
                if reason == EMPTY:
                    do = "Name another with --data."
                if reason == ONE_OBJECT:
                    reason = "one JSON object"
                    do = "Write a list of objects, [{...}, {...}], or one object a line in a file named .jsonl."
                if reason == NUL_BYTES:
                    do = "Convert it to UTF-8 (iconv -f UTF-16 -t UTF-8), or name another."
                raise DataError(READING, f"text or tokens in {path}", reason, do)
            self._entries.append(path)
        elif path.is_dir():
            self._entries += self._folder(path, ())
        else:
            found = "a pipe, a socket or a device" if path.exists() else "nothing there"
            raise DataError(READING, f"a file or a folder at {path}", found, _NAME_OTHERS)

    def found(self) -> FoundFiles:
        """All of it, each real file once: in its first place, by the last of its names."""
        files: dict[str, Path] = {}
        for path in self._linked(self._entries):
            real = os.path.realpath(path)
            if real in files:
                self._left_out.append(LeftOut(str(files[real]), TWICE))
            files[real] = path
        if self._about and any(form_of(path).has_rows for path in files.values() if path not in self._about):
            self._left_out += [LeftOut(str(path), self._about[path]) for path in files.values() if path in self._about]
            files = {real: path for real, path in files.items() if path not in self._about}
        return FoundFiles(tuple(map(described, files.values())), tuple(self._left_out))

    def _linked(self, entries: Sequence[Path | _FolderLink]) -> Iterator[Path]:
        """The files of all entries, with those of a link to a folder in its place."""
        for entry in entries:
            if isinstance(entry, Path):
                yield entry
            elif os.path.realpath(entry.path) in self._walked:
                self._left_out.append(LeftOut(str(entry.path), TWICE))
            else:
                yield from self._linked(self._folder(entry.path, entry.above))

    def _folder(self, folder: Path, above: tuple[str, ...]) -> list[Path | _FolderLink]:
        """What is below a folder, without following links to folders. `above`: the real folders by which it was
        reached."""
        real = os.path.realpath(folder)
        if real in self._walked:
            self._left_out.append(LeftOut(str(folder), TWICE))
            return []
        self._walked.add(real)
        above = (*above, real)
        names = sorted(os.listdir(folder))
        entries: list[Path | _FolderLink] = []
        folders: list[Path] = []
        is_saved = any(name.lower().endswith(".arrow") for name in names)
        for name in names:
            path = folder / name
            if name.startswith("."):
                self._left_out.append(LeftOut(str(path), HIDDEN))
            elif path.is_dir():
                folders.append(path)
            elif reason := (CACHE if _is_cache(path, is_saved) else self._reason(path)):
                self._left_out.append(LeftOut(str(path), reason))
            else:
                entries.append(path)
                if self._is_one_object(path):
                    self._about[path] = ONE_OBJECT
                elif self._are_rows and _is_card(path):
                    self._about[path] = CARD
        for path in folders:
            if path.is_symlink():
                target = os.path.realpath(path)
                if any(os.path.commonpath([target, each]) == target for each in above):
                    do = "Remove the link, or name the folders that are meant."
                    raise DataError(READING, f"links without a circle below {folder}", f"{path} -> {target}", do)
                entries.append(_FolderLink(path, above))
            else:
                entries += self._folder(path, above)
        return entries

    def _reason(self, path: Path) -> str:
        """Why a file is left out; empty for one that is read."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return NOWHERE
        except OSError as error:
            if not path.is_symlink():
                raise
            do = "Remove the link."
            raise DataError(READING, "links without a circle", f"{path}: {error.strerror}", do) from None
        if not stat.S_ISREG(status.st_mode):
            return NO_FILE
        if not status.st_size:
            return EMPTY
        if reason := _NO_DATA.get(path.suffix.lower()[1:]):
            return reason
        if path.suffix.lower() in PACKED and (reason := _NO_DATA.get(Path(path.stem).suffix.lower()[1:])):
            return reason
        form = form_of(path)
        is_plain = not form.packed and form.kind not in (TOKENS, PARQUET, ARROW)
        if self._are_texts and is_plain and _has_nul(path):
            return NUL_BYTES
        return ""

    def _is_one_object(self, path: Path) -> bool:
        """Whether a file is one JSON object, where rows are read as such."""
        if not self._are_rows or form_of(path) != FileForm(LIST, ""):
            return False
        from isthmus.programs.reading.rows import is_one_object  # Of rows alone: who trains on bytes needs no parser.

        return is_one_object(path)


@final
class _FolderLink(NamedTuple):
    """A link to a folder, and the real folders by which it was reached."""

    path: Path
    above: tuple[str, ...]


def _is_cache(path: Path, is_saved: bool) -> bool:
    """Whether `datasets` has written a file beside its data. `is_saved`: whether there is an .arrow file in its
    folder."""
    name = path.name
    if is_saved and (name in _BESIDE_ARROW or name.endswith(".lock")):
        return True
    if name.startswith("cache-") and name.endswith(".arrow"):
        return True
    return name == _ABOVE_ARROW and any(path.parent.glob("*/*.arrow"))


def _is_card(path: Path) -> bool:
    """Whether a file is a README with fields at its head, as hubs of datasets have it."""
    if path.name.lower() != "readme.md":
        return False
    with path.open("rb") as file:
        return file.read(len(_FIELDS)) == _FIELDS


def _has_nul(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(_LOOK_BYTES)
