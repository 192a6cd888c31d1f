"""The order in which the gradients of a merge are added: by slot, so that what is there can be added early.

Decides which sums of float32 a merge consists of, and in which steps a sweep makes them. It touches no values.

Theory of operation. Sums of floats depend on their order, which therefore follows from the slots alone. Slots form
groups of eight, [0, 8), [8, 16) and so on. The sum of a group is that of a binary tree over its eight slots, those that
do not contribute left out: of slots 0 to 3 (g0 + g1) + (g2 + g3). The sums of groups are added one to the other, the
lowest first. A sum of float32 is the same for either order of its two parts, so any part of the tree may be computed at
any time, and the rest later: the bits are the same. A *range* is the slots of one part, [begin, end): a part of the
tree, or whole groups from the first on.

A sweep adds block by block in *rooms* of the first-level cache. Room 0 is the block of the result itself, which may
*hold* the sum of a range from before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from isthmus.ops.kernels.stripes import Int64

GROUP_SIZE: Final = 8
ROOMS_COUNT: Final = 4
"""The rooms that a group needs at most: one for each level of the tree, and room 0, where that holds a sum."""
ONE, PAIR, FOUR, ADD, COPY = range(5)
"""What a step does, (step, number, room): to the room go the values of input `number`, the sum of two inputs from it
on, or that of two such sums; or the values of room `number` are added to those of the room, or replace them."""

SlotRange: TypeAlias = tuple[int, int]


class GroupSweep(NamedTuple):
    """One sweep: the inputs [first, last) of those that are still to be added, and its steps, int64[steps, 3]."""

    first: int
    last: int
    steps: Int64


def sweeps_of(slots: Sequence[int], held: SlotRange | None = None) -> list[GroupSweep]:
    """The sweeps that add inputs of these slots, ascending, to what is `held`: a range of the lowest group of all, or
    whole groups from that on, without any of these slots."""
    groups: dict[int, list[int]] = {}
    for number, slot in enumerate(slots):
        groups.setdefault(slot // GROUP_SIZE, []).append(number)
    sweeps, is_first = [], held is None
    for group, numbers in groups.items():
        begin, places = group * GROUP_SIZE, [slots[number] % GROUP_SIZE for number in numbers]
        own = None
        if held is not None and begin <= held[0] < begin + GROUP_SIZE:
            own, is_first = (held[0] - begin, held[1] - begin), True
        steps = _Steps(places, own, adds=not is_first).array()
        sweeps.append(GroupSweep(numbers[0], numbers[-1] + 1, steps))
        is_first = False
    return sweeps


def largest_complete(slots: Sequence[int]) -> SlotRange | None:
    """The largest range whose slots are all among these, ascending; None where there is none of two or more.

    It is in the lowest of their groups or, where that is complete, all complete groups from there on.
    """
    present = set(slots)
    if not present:
        return None
    begin = end = min(present) // GROUP_SIZE * GROUP_SIZE
    while present.issuperset(range(end, end + GROUP_SIZE)):
        end += GROUP_SIZE
    if end > begin:
        return begin, end
    size = GROUP_SIZE // 2
    while size > 1:
        for start in range(begin, begin + GROUP_SIZE, size):
            if present.issuperset(range(start, start + size)):
                return start, start + size
        size //= 2
    return None


class _Steps:
    """Writes the steps of one group; `held` is a range of places in it, `adds`: room 0 has the groups before it."""

    def __init__(self, places: Sequence[int], held: SlotRange | None, *, adds: bool) -> None:
        self._places, self._held = places, held
        self._steps: list[tuple[int, int, int]] = []
        begin = 0 if held is None and not adds else 1
        room = self._sum(0, GROUP_SIZE, begin)
        assert room is not None
        if adds:
            self._steps.append((ADD, room, 0))
        elif room and self._steps[-1] == (ADD, 0, room):  # The last sum may as well be made in its place.
            self._steps[-1] = (ADD, room, 0)
        elif room:
            self._steps.append((COPY, room, 0))

    def array(self) -> Int64:
        return np.array(self._steps, np.int64).reshape(-1, 3)

    def _sum(self, begin: int, end: int, room: int) -> int | None:
        """Write the sum of a range to a room, or to one that has it; returns which, None without a summand."""
        if self._held == (begin, end):
            return 0
        inside = [number for number, place in enumerate(self._places) if begin <= place < end]
        has_held = self._held is not None and begin <= self._held[0] and self._held[1] <= end
        middle = (begin + end) // 2
        if not has_held and len(inside) in (0, 1, 2):
            if not inside:
                return None
            self._steps.append((ONE if len(inside) == 1 else PAIR, inside[0], room))
            return room
        if not has_held and len(inside) == 4 and sum(self._places[number] < middle for number in inside) == 2:
            self._steps.append((FOUR, inside[0], room))
            return room
        left = self._sum(begin, middle, room)
        right = self._sum(middle, end, room if left is None or left != room else room + 1)
        if left is None or right is None:
            return right if left is None else left
        # The held one stays in its room.
        to, source = (right, left) if left == 0 and self._held is not None else (left, right)
        self._steps.append((ADD, source, to))
        return to
