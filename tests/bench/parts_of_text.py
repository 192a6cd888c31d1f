"""Text that has parts, from what a machine has: `python -m tests.bench.parts_of_text FOLDER [--megabytes N]`.

A folder for each part, of files of 512 to 2,048 bytes, which begin and end at ends of lines:

- python: Python's library
- headers: C headers of /usr/include
- pages: manual pages and documentation of /usr/share
- data: JSON, CSV and XML of /usr/share and of Python's packages, an equal share of each as far as there is

No document occurs twice, and no file gives more than 16 kB (of data, 64 kB) to a part, so that none is about one file.
With --scripts the four parts are one text, the python part, in four scripts: as it is, and with its letters put in
another order, the same one in all of a part, three times. A text that the machine lacks is named, with exit status 2.
"""

from __future__ import annotations

import argparse
import gzip
import os
import string
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

import numpy as np

MEGABYTES: Final = 2.0
DOCUMENT_BYTES: Final = (512, 2048)
FILE_BYTES_MAX: Final = 4 << 20
"""Larger files are not read: they are tables of one kind."""
_LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
_SHARE: Final = Path("/usr/share")


@dataclass(frozen=True)
class TextPart:
    """Where the texts of a part are, and which: endings in turn, each of the same share."""

    folders: tuple[Path, ...]
    endings: tuple[tuple[str, ...], ...]
    given_bytes_max: int
    remedy: str
    left_out: frozenset[str] = frozenset()
    """Folders, beside those of tests."""


_DEBIAN: Final = "with apt: {}; or make less with --megabytes"
PARTS: Final[Mapping[str, TextPart]] = {
    "python": TextPart(
        (_LIBRARY,), ((".py",),), 16 << 10, "a Python with its library", frozenset({"site-packages", "dist-packages"})
    ),
    "headers": TextPart((Path("/usr/include"),), ((".h", ".hpp"),), 16 << 10, _DEBIAN.format("libc6-dev, python3-dev")),
    "pages": TextPart(
        (_SHARE / "man", _SHARE / "doc"),
        (tuple(f".{section}{packed}" for section in range(1, 9) for packed in ("", ".gz")), (".txt", ".rst", ".md")),
        16 << 10,
        _DEBIAN.format("man-db, manpages, manpages-dev"),
    ),
    "data": TextPart(
        (_SHARE, _LIBRARY, Path(sys.prefix)),
        ((".json",), (".csv",), (".xml",)),
        64 << 10,
        _DEBIAN.format("iso-codes, shared-mime-info"),
    ),
}
_OTHERS: Final = frozenset({"test", "tests", "idle_test", "__pycache__", "node_modules"})
"""Folders whose texts are made for tests, or are not text."""


class MissingTextError(Exception):
    """A part that this machine does not have."""


def in_script(document: bytes, number: int) -> bytes:
    """A document with its ASCII letters in the order of a script; number 0 leaves it as it is."""
    lower, upper = string.ascii_lowercase.encode(), string.ascii_uppercase.encode()
    order = np.random.default_rng(number).permutation(len(lower)) if number else np.arange(len(lower))
    others = bytes(bytearray(letters[index] for letters in (lower, upper) for index in order))
    return document.translate(bytes.maketrans(lower + upper, others))


def make_scripts(folder: Path, megabytes: float = MEGABYTES, seed: int = 0) -> dict[str, int]:
    """Write one language in four scripts, each document in one; how many documents each has."""
    rng, counts = np.random.default_rng((seed, 0)), {}
    documents = _documents(PARTS["python"], rng)
    for number in range(len(PARTS)):
        name = f"script{number}"
        found = [in_script(each, number) for each in _until(int(megabytes * 1e6), documents)]
        if sum(map(len, found)) < megabytes * 1e6:
            expected = f"expected {len(PARTS)} x {megabytes:g} MB of python"
            raise MissingTextError(f"Making scripts: {expected}, found less. Make less with --megabytes.")
        counts[name] = _write(folder / name, found)
    return counts


def _write(folder: Path, documents: list[bytes]) -> int:
    folder.mkdir(parents=True)
    for index, document in enumerate(documents):
        (folder / f"{index:05}.txt").write_bytes(document)
    return len(documents)


def make_parts(folder: Path, megabytes: float = MEGABYTES, seed: int = 0) -> dict[str, int]:
    """Write the parts; how many documents each has. MissingTextError for one that there is too little of."""
    counts = {}
    for number, (name, part) in enumerate(PARTS.items()):
        rng = np.random.default_rng((seed, number))
        documents = list(_until(int(megabytes * 1e6), _documents(part, rng)))
        size = sum(map(len, documents))
        if size < megabytes * 1e6:
            where = ", ".join(map(str, part.folders))
            message = f"expected {megabytes:g} MB of {name} in {where}, found {size / 1e6:.2f} MB."
            raise MissingTextError(f"Making parts of text: {message}\n  Install {part.remedy}.")
        counts[name] = _write(folder / name, documents)
    return counts


def _until(size: int, documents: Iterable[bytes]) -> Iterator[bytes]:
    for document in documents:
        yield document
        size -= len(document)
        if size <= 0:
            return


def _documents(part: TextPart, rng: np.random.Generator) -> Iterator[bytes]:
    """Documents of a part, of kinds in turn, as long as there are any."""
    known: set[bytes] = set()
    kinds = [_of_kind(part, endings, np.random.default_rng(rng.integers(1 << 62))) for endings in part.endings]
    for document in chain.from_iterable(zip_longest(*kinds)):
        if document is not None and document not in known:
            known.add(document)
            yield document


def _of_kind(part: TextPart, endings: tuple[str, ...], rng: np.random.Generator) -> Iterator[bytes]:
    paths = sorted({path for folder in part.folders for path in _files(folder, endings, part.left_out)})
    for index in rng.permutation(len(paths)):
        yield from _cut(_read(paths[index]), part.given_bytes_max, rng)


def _files(folder: Path, endings: tuple[str, ...], left_out: frozenset[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _OTHERS | left_out]
        yield from (path for name in names if name.endswith(endings) and not (path := Path(place, name)).is_symlink())


def _read(path: Path) -> bytes:
    """A text; nothing where it is none."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return b""
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text.decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return b""
    return text


def _cut(text: bytes, given_bytes_max: int, rng: np.random.Generator) -> Iterator[bytes]:
    """Documents from a place in a text on, one after the other."""
    least, most = DOCUMENT_BYTES
    begin = 0
    if len(text) > given_bytes_max:
        begin = text.find(b"\n", int(rng.integers(len(text) - given_bytes_max))) + 1
        text = text[: begin + given_bytes_max]
    while len(text) - begin >= least:
        end = text.rfind(b"\n", begin + least - 1, begin + int(rng.integers(least, most + 1))) + 1
        if not end:  # A line that is too long for a document.
            begin = text.find(b"\n", begin) + 1
            if not begin:
                return
            continue
        yield text[begin:end]
        begin = end


def main() -> None:
    """Write the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help="of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scripts", action="store_true", help="one language in four scripts")
    options = parser.parse_args()
    try:
        counts = (make_scripts if options.scripts else make_parts)(options.folder, options.megabytes, options.seed)
    except (MissingTextError, OSError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    print(", ".join(f"{name} {count:,} documents" for name, count in counts.items()))


if __name__ == "__main__":
    main()
