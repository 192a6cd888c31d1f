"""Snapshots of programs whose learners all hold the same state: parameters, moments, and progress.

Decides when a learner emits one. The recorder keeps the newest, on disk, too, and sends it to learners that come back
(`programs.snapshots.kept_state`): so one of these programs survives the deaths of all its hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

SECONDS: Final = 15.0
"""Interval of snapshots, as for those of fragments."""


class State(TypedDict):
    """A state that every learner had.

    `leaves` of parameters and moments in an order that learners know, none at the beginning. `tokens` counts those of
    all learners, of which `totals` are those of known lives, [slot, incarnation, tokens]. `steps` are those of each
    learner, where all take part in each; where not, `positions` are [slot, position], below which batch of each slot's
    work is in it, and `streams` [slot, position, state] of those that have a state.
    """

    tokens: int
    steps: int
    totals: list[list[int]]
    positions: list[list[int]]
    streams: list[list[Any]]
    leaves: list[Any]
    standings: NotRequired[list[list[Any]]]


BEGINNING: Final = State(tokens=0, steps=0, totals=[], positions=[], streams=[], leaves=[])


def newest(states: Mapping[Any, State] | None) -> State | None:
    """The state that is furthest; None without any."""
    return max((states or {}).values(), key=lambda state: state["tokens"], default=None)


class Due:
    """Whether a snapshot is due, by the clock of a host."""

    def __init__(self, seconds: float) -> None:
        self._every = round(seconds * 1e9)
        self._taken_at: int | None = None

    def __call__(self, now: int) -> bool:
        """True once every `seconds`, and not at the first step."""
        if self._taken_at is None:
            self._taken_at = now
        if now - self._taken_at < self._every:
            return False
        self._taken_at = now
        return True


class Wanted(TypedDict):
    """hold -> outer-step, inner-step: the cut to make after the turn about `fragment` (`turns`).

    It covers the model, whose versions then have these `counts`, by fragment, and each learner's own state.
    """

    fragment: int
    counts: list[int]


Taken: TypeAlias = Literal["local", "lent", "own", "whole"]
"""Which leaves of another life a learner goes on with: all that are local; those of them that others are lent; the
local ones after the numbers of the random keys that come next, as in a cut; or these, and the merged ones."""


class Own(TypedDict):
    """inner-step -> hold, and back to a later life: the state that only this learner has.

    It is captured with its answer to the last turn before a cut, before its next step. `standings` are its position by
    fragment, [epoch, count, due, former]: the version that it had adopted, or, where that was made from its answers,
    will have after `due` more steps; None for one that it had. Work since then that is in no version is `former`:
    [incarnation, begin, end, steps] by life. `leaves` are [type, shape, bytes], the first of which names the life whose
    random keys come next; then local ones, and merged ones where anything of them lasts. `totals` are the progress of
    the run, as this learner knew it.
    """

    slot: int
    incarnation: int
    standings: list[list[Any]]
    totals: list[list[int]]
    leaves: list[list[Any]]


class Restored(TypedDict):
    """hold -> inner-step: the state that a life continues with; None where nothing is kept of its slot."""

    slot: int
    incarnation: int
    own: Own | None
