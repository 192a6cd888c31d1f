"""Files: lines that are appended, tensors and JSON that appear whole or not at all.

Everything here may block, and is called from threads that may.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save

LINES_BYTES_MAX: Final = 256 << 20
"""A file of lines is rotated once, to NAME.1, so that it takes at most twice this much of the disk."""


class Lines:
    """A JSON-lines file that can be read while it grows: every append is one whole line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line; NaN and infinities are not JSON, and raise ValueError."""
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        if self._file.tell() > LINES_BYTES_MAX:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole, or as it was before, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file, whole or not at all."""
    write_bytes(path, save({name: np.asarray(array, order="C") for name, array in tensors.items()}))


def read_tensors(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The tensors of a safetensors file."""
    return dict(load_file(path))


def append_bytes(path: Path, data: bytes) -> None:
    """Add to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
