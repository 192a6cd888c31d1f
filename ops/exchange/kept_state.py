"""Snapshots of programs whose learners all hold the same state: parameters, moments, and how far they are.

Decides when a learner emits one, and what a host that holds the newest gives to those who come back. Held in memory, on
a host that is no learner: one of these programs goes on after the deaths of all its learners, and not after those of
all its hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

SECONDS: Final = 15.0
"""Between two snapshots, as for those of fragments."""


class State(TypedDict):
    """A state that every learner had: `leaves` of parameters and moments in an order that learners know, none at the
    beginning; after so many `tokens` of all learners, and `steps` of each."""

    tokens: int
    steps: int
    leaves: list[Any]


BEGINNING: Final = State(tokens=0, steps=0, leaves=[])


def newest(states: Mapping[Any, State] | None) -> State | None:
    """Of states that came, the one that is furthest; None without any."""
    return max((states or {}).values(), key=lambda state: state["tokens"], default=None)


class Due:
    """Whether a snapshot is due, by the clock of a host."""

    def __init__(self, seconds: float) -> None:
        self._every = round(seconds * 1e9)
        self._taken_at: int | None = None

    def __call__(self, now: int) -> bool:
        """True once every so many seconds, and not at the first step."""
        if self._taken_at is None:
            self._taken_at = now
        if now - self._taken_at < self._every:
            return False
        self._taken_at = now
        return True


class Keep:
    """States in; the newest out, for those who begin again: the beginning, as long as there is none."""

    outputs = ("kept",)

    def __init__(self) -> None:
        self._newest = BEGINNING
        self.is_idle = True

    def __call__(self, state: Mapping[Any, State] | None = None) -> dict[str, Any]:
        """The newest state that came."""
        self.is_idle = False
        self._newest = newest(state) or self._newest
        return {"kept": self._newest}
