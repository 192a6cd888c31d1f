"""Where in the data each slot is: the position at which a new life begins, once every shard has sent it a Place, and
which states of streams travel.

Positions count the batches of a slot from 0, over all its lives. Syncers and the recorder keep them; what a batch at
one is, `batches` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt


def of_slot(numbers: int | Sequence[int], slot: int) -> int:
    """The number of a slot, where all slots have the same or each its own; slots beyond the last have the last."""
    return numbers if isinstance(numbers, int) else numbers[min(slot, len(numbers) - 1)]


_Count: TypeAlias = Annotated[int, ("range", 0)]

_Ordinal: TypeAlias = Annotated[int, ("range", 1)]

State: TypeAlias = Annotated[npt.NDArray[np.uint8], ("sizes", None)]
"""The state of a stream, as it travels (`streams`)."""

STATE_SIZE_BYTES_MAX: Final = 4096
"""Size of a stream's state that travels with every answer: a hundredth of a small fragment, and Grain's have some 100
bytes. A stream with a larger state is wound forward instead."""


class Place(TypedDict):
    """pacer -> data: this shard merges no more work of former lives of `slot`; their merged batches are below
    `position`.

    `state` is of the slot's stream before batch `state_position`, None if unknown.
    """

    slot: _Count
    incarnation: _Ordinal
    shard: _Count
    shards: _Ordinal
    position: _Count
    state_position: _Count
    state: State | None


class Cursor(TypedDict):
    """data -> inner-step: where this life begins, and, for a stream, its state before batch `position`.

    `left_out` are the positions of empty batches, as [begin, end) in ascending order: at least all that follow a batch
    which was not taken yet.
    """

    begin: int
    position: int
    state: State | None
    left_out: list[list[int]]


class Step(NamedTuple):
    """The position of a step's batch in its slot, and the newest known state of a stream, as [position, state], at or
    before that."""

    position: int
    stream_state: Sequence[Any] | None = None


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
    last_places: dict[int, Place] = {}
    for place in places:
        if (place["slot"], place["incarnation"]) == (slot, incarnation):
            last = last_places.get(place["shard"])
            if last is None or place["position"] > last["position"]:
                last_places[place["shard"]] = place
    if not last_places or len(last_places) < max(place["shards"] for place in last_places.values()):
        return None
    position = max(place["position"] for place in last_places.values())
    usable = [
        place for place in last_places.values() if place["state"] is not None and place["state_position"] <= position
    ]
    if not usable:
        return Beginning(position, 0, None)
    newest = max(usable, key=lambda place: (place["state_position"], -place["shard"]))
    return Beginning(position, newest["state_position"], newest["state"])
