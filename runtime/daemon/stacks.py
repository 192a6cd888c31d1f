"""Where the threads of a user's script are, as it prints that before it is killed (faulthandler).

Decides which processes of it are asked, and which line of each thread is the user's. A thread that holds the
interpreter, or waits in a library for ever, does not keep it from printing: the handler is one of the kernel's signals.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.runtime.supervision.incidents import PLACES_MAX, TEXT_LENGTH_MAX, CodePlace
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.system.idleness import family
from isthmus.runtime.system.printed_stacks import ask_for_stack, threads_in, users_depth
from isthmus.runtime.system.processes import RANKS_HANG

PRINTED_MAX: Final = 1 << 20
"""Bytes of a log that are read for it: some hundred threads."""
TOLD_MAX: Final = 1 << 13
"""Bytes at the end of a log that say where ranks hang: a line each."""


class StacksRead(NamedTuple):
    """What a script prints into its log from byte `begin` on."""

    log: Path
    begin: int

    def places(self) -> tuple[CodePlace, ...]:
        """The place of each thread that is in the user's code, the innermost line of that."""
        try:
            with open_regular(self.log) as file:
                file.seek(self.begin)
                text = file.read(PRINTED_MAX).decode(errors="replace")
        except OSError:
            return ()
        return places_in(text)


def stacks_told(log: Path) -> StacksRead:
    """What the end of a log says, into which the ranks of an island were printed before these were ended."""
    size = 0
    with suppress(OSError):
        size = log.stat().st_size
    return StacksRead(log, max(size - TOLD_MAX, 0))


def ask_for_stacks(pid: int, log: Path) -> StacksRead:
    """Have a script's process, and those that it has started, print where their threads are."""
    size = 0
    with suppress(OSError):
        size = log.stat().st_size
    asked = [pid]
    with suppress(OSError):
        asked = family(pid)
    for each in asked:
        with suppress(OSError):
            ask_for_stack(each)
    return StacksRead(log, size)


def places_in(text: str) -> tuple[CodePlace, ...]:
    """The places in a text that faulthandler has printed: of each thread the innermost line that is the user's. Where
    `RANKS_HANG` begins a line, those behind it alone."""
    threads = threads_in(text[max(text.rfind(RANKS_HANG), 0) :])
    frames = [thread[depth] for thread in threads if (depth := users_depth(thread)) is not None]
    places = [CodePlace(each.file[-TEXT_LENGTH_MAX:], each.line, each.function[:TEXT_LENGTH_MAX]) for each in frames]
    return tuple(dict.fromkeys(places))[:PLACES_MAX]
