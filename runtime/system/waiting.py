"""To wait until descriptors can be read, in a process that may have any number of them (poll(2)).

select(2) cannot watch a descriptor above 1,023, which a process has where its user's code has a thousand files open.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    """A file or a socket."""

    def fileno(self) -> int:
        """Its descriptor."""


Watched = TypeVar("Watched", bound="int | HasDescriptor")


def readable(watched: Iterable[Watched], seconds_max: float | None) -> list[Watched]:
    """Those that can be read now, or are at their end, in their order; waits at most so long for the first one, None
    for as long as it takes. OSError (EBADF) where one of them is closed."""
    numbers = [(each if isinstance(each, int) else each.fileno(), each) for each in watched]
    poll = select.poll()
    for number, _ in numbers:
        if number < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        poll.register(number, select.POLLIN)
    events = dict(poll.poll(None if seconds_max is None else 1000 * seconds_max))
    if any(event & select.POLLNVAL for event in events.values()):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return [each for number, each in numbers if events.get(number)]
