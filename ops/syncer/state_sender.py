"""Tells the run's home which version of each fragment a shard has, and gives it the state of one when it asks, part by
part.

Decides nothing but what a part is: which state is sent, when and how fast, the home asks. The outer step does not wait
for what is hashed and sent here. The arrays are those that the outer step goes on from; a state that is being sent
stays until it has gone, whatever has replaced it since: one fragment's at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

import numpy as np

from isthmus.ops.exchange.messages import NewVersion, ShardState, StateBooks, StatePart, WantedState
from isthmus.ops.kernels.buffers import Loose
from isthmus.ops.recovery.hold import digest_of

PART_BYTES: Final = 8 << 20
VALUES: Final = "values"
"""The name of the values among the arrays of a state."""


@final
class StateSender:
    """States in; `published`, their books, out, and the parts that are asked for."""

    outputs: ClassVar[tuple[str, ...]] = ("published", "part")
    collects: ClassVar[tuple[str, ...]] = ("state", "wanted")
    schemas: ClassVar[dict[str, Any]] = {"wanted": WantedState}

    def __init__(self) -> None:
        self._newest: dict[int, _LooseState] = {}
        self._digests: dict[int, str] = {}
        self._number = 0
        self._sent: ShardState | None = None
        """The state of transfer `_number`."""
        self._awaited: WantedState | None = None
        """What is asked for of a state that is gone: of its fragment the next one is on its way here."""

    def open(self, context: Any) -> None:
        """Keep the names of this life."""
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation

    def __call__(
        self, state: Mapping[Any, ShardState] | None = None, wanted: Mapping[Any, WantedState] | None = None
    ) -> list[tuple[str, Any]] | None:
        """Tell of new versions; send the part that is asked for."""
        emitted: list[tuple[str, Any]] = [("published", self._told(item)) for item in (state or {}).values()]
        if wanted:
            self._awaited = max(wanted.values(), key=lambda each: (each["number"], each["at"]))
        if self._awaited is not None:
            asked, self._awaited = self._awaited, None
            emitted += [("part", part) for part in self._parts(asked)]
        return emitted or None

    def _told(self, item: ShardState) -> NewVersion:
        p = item["fragment"]
        self._newest[p] = _LooseState(item)
        self._digests[p] = digest_of(item["values"], item["clock"], item["positions"])
        return NewVersion(
            shard=self._slot,
            incarnation=self._incarnation,
            fragment=p,
            version=item["version"],
            kind=item["kind"],
            digest=self._digests[p],
            lengths=item["lengths"],
        )

    def _parts(self, asked: WantedState) -> list[StatePart]:
        p, number = asked["fragment"], asked["number"]
        if number == 0 or p not in self._newest:
            had, self._sent, self._number = self._sent is not None, None, 0
            # In place of the last one, which Latest keeps.
            return [self._part(asked, 0, np.empty(0, np.uint8))] if had else []
        if number != self._number or self._sent is None:
            self._number, self._sent = number, self._newest[p].whole()
        if self._sent is None:
            self._awaited = asked
            return []
        arrays = _arrays(self._sent)
        size = sum(array.nbytes for array in arrays.values())
        part = self._part(asked, size, _slice(list(arrays.values()), asked["at"], PART_BYTES))
        if asked["at"] == 0:
            part["books"] = self._books(self._sent, list(arrays))
        return [part]

    def _part(self, asked: WantedState, size: int, data: Any) -> StatePart:
        return StatePart(
            shard=self._slot,
            incarnation=self._incarnation,
            fragment=asked["fragment"],
            number=asked["number"],
            at=asked["at"],
            size=size,
            data=data,
        )

    def _books(self, item: ShardState, names: list[str]) -> StateBooks:
        return StateBooks(
            version=item["version"],
            kind=item["kind"],
            clock=item["clock"],
            positions=item["positions"],
            totals=item["totals"],
            lengths=item["lengths"],
            digest=self._digests[item["fragment"]],
            tensors=names,
        )


class _LooseState:
    """A state, of which the outer step may write into the tensors."""

    def __init__(self, item: ShardState) -> None:
        self._item: ShardState = {**item, "tensors": {}}
        self._tensors = {name: Loose(array) for name, array in item["tensors"].items()}

    def whole(self) -> ShardState | None:
        """The state, to be kept as it is; None where it is gone."""
        tensors = {name: array for name, loose in self._tensors.items() if (array := loose.get()) is not None}
        return {**self._item, "tensors": tensors} if len(tensors) == len(self._tensors) else None


def _arrays(item: ShardState) -> dict[str, Any]:
    """The arrays of a state, in the order of their names. Of a first version only the values: its momentum is zeros,
    and Theta is what is published, as a shard has them that is given nothing else."""
    others = {} if item["kind"] == "initial" else item["tensors"]
    return dict(sorted({**others, VALUES: item["values"]}.items()))


def _slice(arrays: list[Any], begin: int, size: int) -> Any:
    """The bytes from `begin` on, at most `size`, of arrays that lie one after the other."""
    pieces, at = [], 0
    for array in arrays:
        data = array.reshape(-1).view(np.uint8)
        low, high = max(begin - at, 0), min(begin + size - at, data.size)
        if low < high:
            pieces.append(data[low:high])
        at += data.size
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.uint8), *pieces])
