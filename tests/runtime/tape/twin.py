"""A core with a twin that was restored from its state, and has to say the same from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from isthmus.runtime.clock import Instant
from isthmus.runtime.tape.state import Kind

EVENTS: Final = 61
"""After so many events there is a new twin: a prime, so that it meets every kind of event; fewer cost more than they
find."""
Core = TypeVar("Core")


def restored(kind: Kind, core: Any, fresh: Core) -> Core:
    """`fresh`, which has the state of `core`."""
    state = kind.frozen(core)
    kind.thaw(fresh, state)
    assert kind.frozen(fresh) == state
    return fresh


class Twin:
    """A core of which `make` makes another. It is handled like one."""

    def __init__(self, kind: Kind, core: Any, make: Callable[[], Any]) -> None:
        self._kind, self._core, self._make = kind, core, make
        self._twin = make()
        self._count = 0

    def handle(self, event: Any, now: Instant) -> list[Any]:
        """What the core says, and its twin."""
        said = self._core.handle(event, now)
        assert self._twin.handle(event, now) == said
        self._count += 1
        if self._count % EVENTS == 0:
            self._twin = restored(self._kind, self._core, self._make())
        return list(said)

    def check(self) -> None:
        """That of the core."""
        self._core.check()

    def saved(self) -> bytes:
        """That of the core."""
        return self._kind.frozen(self._core)
