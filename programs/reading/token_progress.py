"""How far the ids of some files are, told while they are made to the process that waits for them.

Who waits is not known here: a process that prepares a request for another one says so by `told_by`. At most two a
second are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias, final

PAUSE_NS: Final = 500_000_000


@final
class MakingProgress(NamedTuple):
    """The tokens made so far, and of how many of the `files` all are; or, where another process makes them, the bytes
    that it has written."""

    tokens: int = 0
    files_done: int = 0
    files: int = 0
    elsewhere_bytes: int | None = None


Tell: TypeAlias = Callable[[MakingProgress], object]

_tell: Tell | None = None
_told_ns = 0


@contextmanager
def told_by(tell: Tell) -> Iterator[None]:
    """Tell the progress of this process by `tell`, in this block."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


def tell(progress: MakingProgress) -> None:
    """Tell it, if somebody waits, and was told nothing for a while."""
    global _told_ns
    if _tell is not None and (now := time.monotonic_ns()) - _told_ns >= PAUSE_NS:
        _told_ns = now
        _tell(progress)
