"""Figures that are kept from one command to the next: the same program, options and compiler have the same figures.

A file for each, under the digest of all that they depend on. One that cannot be read, or was written by another version
of this module, is treated as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import msgspec

from isthmus.programs.ahead.figures import Compiled, Refused
from isthmus.programs.ahead.targets import Target
from isthmus.runtime.system.files import write_bytes

_FORM: Final = 1
"""Counts up when figures mean something else."""


def digest(program: str, target: Target, versions: Mapping[str, str]) -> str:
    """The digest of a program as StableHLO, and of all other inputs of its figures."""
    told = [_FORM, target.name, target.host_bounds, sorted(target.options.items()), sorted(versions.items()), program]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class _Entry(msgspec.Struct):
    compiled: Compiled | None = None
    refused: Refused | None = None


@final
class Kept:
    """Figures in a folder, which need not be there yet; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, key: str) -> Compiled | Refused | None:
        """The figures kept under this digest; None if there are none."""
        if self._folder is None:
            return None
        with suppress(OSError, msgspec.DecodeError):
            entry = msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=_Entry)
            return entry.compiled or entry.refused
        return None

    def keep(self, key: str, figures: Compiled | Refused) -> None:
        """Keep them; a disk that takes nothing costs a later command its time, and nothing else."""
        if self._folder is None:
            return
        entry = _Entry(compiled=figures) if isinstance(figures, Compiled) else _Entry(refused=figures)
        with suppress(OSError):
            os.makedirs(self._folder, exist_ok=True)
            write_bytes(self._folder / f"{key}.json", msgspec.json.encode(entry))
