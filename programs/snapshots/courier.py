"""The transfer of a snapshot to a store: in the background, one at a time.

Decides nothing about snapshots. The work is an iterator that is exhausted once it is done, and raises OSError if it
cannot be. On the real clock a thread of its own does it, so that a store that is slow, or hangs, holds up only itself;
under the virtual clock a firing does one piece of it, so that everything may die between any two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, final


class Delivery(NamedTuple):
    """The result of some work: how many bytes were put, and the error that ended it, if any."""

    bytes: int
    error: OSError | None


class Courier(Protocol):
    """Does one piece of work at a time."""

    def begin(self, work: Callable[[], Iterator[int]]) -> None:
        """Begin with some; nothing else is under way."""

    def poll(self) -> Delivery | None:
        """The result, once; None while the work goes on, and if none was begun."""


@final
class PiecewiseCourier:
    """Does a piece at each `poll`."""

    def __init__(self) -> None:
        self._work: Iterator[int] | None = None
        self._bytes = 0

    def begin(self, work: Callable[[], Iterator[int]]) -> None:
        self._work, self._bytes = work(), 0

    def poll(self) -> Delivery | None:
        if self._work is None:
            return None
        try:
            self._bytes += next(self._work)
        except StopIteration:
            error = None
        except OSError as raised:
            error = raised
        else:
            return None
        self._work = None
        return Delivery(self._bytes, error)


@final
class ThreadCourier:
    """Does it in a thread, which ends with the process."""

    def __init__(self) -> None:
        self._came: list[Delivery] = []

    def begin(self, work: Callable[[], Iterator[int]]) -> None:
        threading.Thread(target=self._do, args=(work,), name="snapshots", daemon=True).start()

    def poll(self) -> Delivery | None:
        return self._came.pop() if self._came else None

    def _do(self, work: Callable[[], Iterator[int]]) -> None:
        count = 0
        try:
            for size in work():
                count += size
        except OSError as error:
            self._came.append(Delivery(count, error))
        except Exception as error:  # A third party's filesystem: any error is reported, and tried again.
            self._came.append(Delivery(count, OSError(f"{type(error).__name__}: {error}")))
        else:
            self._came.append(Delivery(count, None))
