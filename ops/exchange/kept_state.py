"""Snapshots of programs whose learners all hold the same state: parameters, moments, and how far they are.

Decides when a learner emits one. The recorder keeps the newest, on disk, too, and gives it to those who come back
(`programs.snapshots.kept_state`): so one of these programs goes on after the deaths of all its hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NotRequired, TypedDict

SECONDS: Final = 15.0
"""Between two snapshots, as for those of fragments."""


class State(TypedDict):
    """A state that every learner had: `leaves` of parameters and moments in an order that learners know, none at the
    beginning; after so many `tokens` of all learners, of which `totals` are those of lives that are known, [slot,
    incarnation, tokens], and `steps` of each learner, where they all take part in each; where not, `positions` are
    [slot, position], below which batch of each slot's work is in it, and `streams` [slot, position, state] of those
    that have a state."""

    tokens: int
    steps: int
    totals: list[list[int]]
    positions: list[list[int]]
    streams: list[list[Any]]
    leaves: list[Any]
    standings: NotRequired[list[list[Any]]]


BEGINNING: Final = State(tokens=0, steps=0, totals=[], positions=[], streams=[], leaves=[])


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


class Wanted(TypedDict):
    """hold -> outer-step, inner-step: the cut that is made after the turn about `fragment` (`turns`): of the model,
    whose versions have these `counts` then, by fragment, and, for each learner, of what only that one has."""

    fragment: int
    counts: list[int]


class Own(TypedDict):
    """inner-step -> hold, and back to a later life: what a learner had that no other has, when its answer to the last
    turn before a cut was captured, before its next step.

    `standings` say by fragment where it stood, [epoch, count, due, former]: the version that it had adopted, or, where
    that was made of what it had answered, will have after `due` more steps; None for one that it had. Work since then
    that is in no version is `former`: [incarnation, begin, end, steps] by life. `leaves` are [type, shape, bytes], the
    first of which says whose random keys come next; then local ones, and merged ones where anything of them lasts.
    `totals` are the progress of the run, as this learner knew it.
    """

    slot: int
    incarnation: int
    standings: list[list[Any]]
    totals: list[list[int]]
    leaves: list[list[Any]]


class Restored(TypedDict):
    """hold -> inner-step: what a life goes on with; None where nothing is kept of its slot."""

    slot: int
    incarnation: int
    own: Own | None
