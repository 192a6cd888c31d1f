"""Digests of everything that a run's machines must have alike and that does not travel: isthmus, sources, data.

The sources are the files of program and task. They are compared by contents, not by names or times. Nothing is
imported: files are found by their references.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import xxhash

from isthmus.ops.data.corpus import DataError, find
from isthmus.programs.request import reference
from isthmus.programs.request.request import SHIPPED_TASK
from isthmus.runtime.errors import ConfigError

_BLOCK_BYTES: Final = 4 << 20


def digest(program: str, task: str) -> str:
    """32 hexadecimal digits over the files of two references and the data of the shipped task; it reads all of them.

    ConfigError if something cannot be read.
    """
    found = xxhash.xxh3_128()
    for folder in reference.OWN_FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            _add(found, path)
    for text in (program, task):
        target = reference.parse(text, "Reading a reference") if ":" in text else None
        if target is not None and target.is_file:
            _add(found, Path(target.where))
        if target is not None and text.partition("(")[0] == SHIPPED_TASK:
            try:
                for source in find((target.keywords or {}).get("data", ())):
                    _add(found, Path(source.path))
            except DataError as error:
                raise ConfigError(error.doing, error.expected, error.found, error.do) from error
    return found.hexdigest()


def _add(found: xxhash.xxh3_128, path: Path) -> None:
    """Add a file to the digest: name, size and contents."""
    try:
        with path.open("rb") as file:
            found.update(f"{path.name}/{path.stat().st_size}".encode())
            while block := file.read(_BLOCK_BYTES):
                found.update(block)
    except OSError as error:
        do = "Put the file at the same path on every machine that trains."
        raise ConfigError(f"Reading {path}", "a file that can be read", str(error), do) from None
