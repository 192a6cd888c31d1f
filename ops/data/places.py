"""The position at which a life of a learner begins in its slot's batches, and its progress.

Decides when a new life knows its beginning: once every shard has sent it a Place. Does not decide the contents of a
Place (`syncer.placing`), nor make batches. Positions count the batches of a slot from 0, over all its lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

State: TypeAlias = npt.NDArray[np.uint8]
"""The state of a stream, as it travels (`streams`)."""

STATE_SIZE_BYTES_MAX: Final = 4096
"""Size of a stream's state that travels with every answer: a hundredth of a small fragment, and Grain's have some 100
bytes. A stream with a larger state is wound forward instead."""


class Place(TypedDict):
    """pacer -> data: this shard merges no more work of former lives of `slot`; their merged batches are below
    `position`.

    `state` is of the slot's stream before batch `state_position`, None if unknown.
    """

    slot: int
    incarnation: int
    shard: int
    shards: int
    position: int
    state_position: int
    state: State | None


_COUNT: Final = ("integer", 0)
PLACE: Final = {
    "slot": _COUNT,
    "incarnation": ("integer", 1),
    "shard": _COUNT,
    "shards": ("integer", 1),
    "position": _COUNT,
    "state_position": _COUNT,
    "state": ("optional", ("array", "uint8", (None,))),
}
"""The schema of a Place."""


class Cursor(TypedDict):
    """data -> inner-step: where this life begins, and, for a stream, its state before batch `position`."""

    begin: int
    position: int
    state: State | None


class Step(NamedTuple):
    """The position of a step's batch in its slot, and the newest known state of a stream, as [position, state], at or
    before that."""

    position: int
    known: Sequence[Any] | None = None


def by_slot(positions: Iterable[Sequence[int]]) -> dict[int, int]:
    """[slot, position] rows, as they travel, by slot."""
    return {row[0]: row[1] for row in positions}


def position_of(positions: Iterable[Sequence[int]], slot: int) -> int:
    """The position of a slot among such rows; 0 where there is none."""
    return by_slot(positions).get(slot, 0)


class Beginning(NamedTuple):
    """The position at which a life begins, and the newest known state of its stream at or before that."""

    position: int
    state_position: int
    state: Any


def beginning(places: Iterable[Place], slot: int, incarnation: int) -> Beginning | None:
    """The beginning of a life: after all that any shard has merged of its slot; None until all have sent a Place.

    Of the places that one shard has sent in two lives of its own the higher counts.
    """
    told: dict[int, Place] = {}
    for place in places:
        if (place["slot"], place["incarnation"]) == (slot, incarnation):
            known = told.get(place["shard"])
            if known is None or place["position"] > known["position"]:
                told[place["shard"]] = place
    if not told or len(told) < max(place["shards"] for place in told.values()):
        return None
    position = max(place["position"] for place in told.values())
    usable = [place for place in told.values() if place["state"] is not None and place["state_position"] <= position]
    if not usable:
        return Beginning(position, 0, None)
    newest = max(usable, key=lambda place: (place["state_position"], -place["shard"]))
    return Beginning(position, newest["state_position"], newest["state"])
