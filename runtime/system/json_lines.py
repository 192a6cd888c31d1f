"""Files of a run to which several processes append facts, a line of JSON each.

A line is written by one call, so that lines of several processes do not mix. One that the disk does not take is
missing, and nothing depends on it; one that is not whole is left out by readers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import read_text

Row = TypeVar("Row")


def append(path: Path, row: tuple[Any, ...]) -> None:
    """Append a row."""
    append_all(path, [row])


def append_all(path: Path, new: Sequence[tuple[Any, ...]]) -> None:
    """Append rows, which stay together."""
    lines = "".join(json.dumps(row) + "\n" for row in new).encode()
    with suppress(OSError), opened_at_end(path) as file:
        os.write(file.fileno(), lines)


def rows(path: Path, kind: Callable[..., Row]) -> Iterator[Row]:
    """The rows of a file as `kind(*row)`, in their order; none without a file."""
    with suppress(OSError):
        for line in read_text(path, "replace").splitlines():
            with suppress(ValueError, TypeError):
                yield kind(*json.loads(line))
