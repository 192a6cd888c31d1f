"""Ctrl-C and SIGTERM: counted instead of raised for as long as a run lasts, and otherwise the same as one another."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn


class Interrupts:
    """How many there were."""

    def __init__(self) -> None:
        self.count = 0
        self._last = int(signal.SIGINT)

    def take(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        self.count, self._last = self.count + 1, number

    def error(self) -> KeyboardInterrupt:
        """What the last one would have raised."""
        return KeyboardInterrupt(*_names(self._last))


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that makes a signal what Ctrl-C is: a KeyboardInterrupt, with the name of the signal."""
    raise KeyboardInterrupt(*_names(number))


def _names(number: int) -> list[str]:
    """The name of a signal; nothing for that of Ctrl-C, as Python has it."""
    return [] if number == signal.SIGINT else [signal.Signals(number).name]


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Count, where this is the main thread; elsewhere the caller keeps its own handlers."""
    counted = Interrupts()
    before: dict[int, Any] = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            before[number] = signal.signal(number, counted.take)
    except ValueError:
        pass  # Only the main thread may set handlers.
    try:
        yield counted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
