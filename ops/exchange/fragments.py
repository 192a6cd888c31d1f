"""Which tensors travel together: the partition of a model into balanced fragments.

Decides the units (whole tensors, row ranges of embedding-like ones, rows of stacked ones; where more fragments are
asked for than these are, row ranges of any), which fragment holds which unit, and the order of values in a fragment's
payload: one flat float32 vector, its units' values in C order, one unit after the other. Does not touch an array: it
sees names and shapes only, and every host computes the same answer from them, whatever the order of the layout.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from isthmus.ops.exchange.merge_rules import DEFAULT, RULES

COUNT_DEFAULT: Final = 8
SIZE_DEFAULT_MAX: Final = 1 << 29
"""Values of a fragment where no count is asked for, about: of float32, with its momentum, that fills an item."""

Cut: TypeAlias = int | Literal["layer", "tensor"]
"""The division of a layout: into this number of balanced fragments, or one for each layer, or for each tensor."""
_NUMBERED: Final = re.compile(r"\d$")
"""A step of a path that numbers a layer: `3`, `Dense_3`."""

ROWS: Final = re.compile(r"(?P<name>.*)\[(?P<start>\d+):(?P<stop>\d+)\]", re.DOTALL)
"""The name of some rows of a tensor in the files of a model."""


class Tensor(Protocol):
    """One entry of a layout."""

    @property
    def name(self) -> str:
        """Unique in its layout."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Global (unsharded) shape; () is one value."""

    @property
    def dtype(self) -> str:
        """The dtype in which the learner computes; payloads are float32 regardless."""

    @property
    def merge(self) -> str:
        """The name of the rule of its merge (`merge_rules`); empty for the default."""

    @property
    def is_stacked(self) -> bool:
        """Whether each of its rows is a unit: the layers of a stack, along its first axis."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A whole tensor, or the rows [start, stop) of one: one tensor to a merge rule.

    `shape` is the shape of the whole tensor; a scalar counts as one row. `dtype` is that of the tensor where it is
    trained.
    """

    tensor: str
    start: int
    stop: int
    shape: tuple[int, ...]
    merge: str = DEFAULT
    dtype: str = "float32"

    @property
    def is_split(self) -> bool:
        """Whether the unit is less than its tensor."""
        return self.stop - self.start < _rows(self.shape)

    @property
    def name(self) -> str:
        """The tensor's name, with the row range where the tensor is split: `embedding[0:64]`."""
        return f"{self.tensor}[{self.start}:{self.stop}]" if self.is_split else self.tensor

    @property
    def values_shape(self) -> tuple[int, ...]:
        """The shape of the unit's own values: (stop - start, ...) where the tensor is split."""
        return (self.stop - self.start, *self.shape[1:]) if self.shape else ()

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.values_shape)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Units that travel and are merged together, with their places in the flat payload."""

    index: int
    units: tuple[Unit, ...]
    offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Unit u holds payload[offsets[u]:offsets[u + 1]]; one more entry than there are units."""

    def __post_init__(self) -> None:
        offsets = [0]
        for unit in self.units:
            offsets.append(offsets[-1] + unit.size)
        object.__setattr__(self, "offsets", tuple(offsets))

    @property
    def size(self) -> int:
        """Number of float32 values in the payload."""
        return self.offsets[-1]


def partition(layout: Sequence[Tensor], count: Cut) -> tuple[Fragment, ...]:
    """The fragments of a layout, none empty, ordered by the name of their first unit.

    There are `count` of them, or one for each layer or tensor. Raises ValueError where a `count` is not within
    1..rows_max(layout), and for a layout that is empty, names a tensor twice or holds a tensor without values.

    A fragment is the unit of an outer step and of a transfer, so the largest one sets the peak bandwidth. Units go by
    falling size into the currently smallest fragment (longest processing time first), whose peak is at most 4/3 of the
    optimum (Graham 1969). Embedding-like tensors (whose rule is "average") have fragments of their own. One larger than
    4/3 of the mean fragment would itself be the peak: it is cut into ceil(size * count / total) row ranges, as equal as
    rows allow. A tensor that stacks the layers of a model is cut into its rows, so that a merge rule handles each layer
    separately. Where `count` is too small for fragments of their own, all units are packed together: own fragments stay
    only while a lower bound on bin packing proves that they are within 4/3 of the best packing of all units.

    Above `units_max` any tensor is cut so, beginning with the largest, until there are as many units: then a merge rule
    that looks at lengths takes parts of a tensor each by itself. A layer of a stack stays whole.
    """
    if isinstance(count, str):
        return _ordered(_by(layout, count))
    _check(layout)
    if count > rows_max(layout):
        raise ValueError(
            f"cutting {len(layout)} tensors into fragments: expected 1 to {rows_max(layout)} fragments, "
            f"found {count}. Ask for fewer: there are no more rows."
        )
    pieces = units(layout, count)
    groups = _own_fragments(pieces, count) or _balanced(pieces, count)
    return _ordered(groups)


def fragments_count(layout: Sequence[Tensor], count: Cut) -> int:
    """The number of fragments that `partition` makes of a layout, if it succeeds."""
    return len(_by(layout, count)) if isinstance(count, str) else count


def units(layout: Sequence[Tensor], count: int) -> tuple[Unit, ...]:
    """The units of `count` fragments, ordered by name and row; the same errors as `partition`."""
    _check(layout)
    if count < 1:
        raise ValueError(f"cutting {len(layout)} tensors into fragments: expected at least 1 fragment, found {count}.")
    total = sum(math.prod(tensor.shape) for tensor in layout)
    finely = _fine_count(layout, count, total) if count > units_max(layout) else 0
    result = []
    for tensor in sorted(layout, key=lambda tensor: tensor.name):
        rows, shape = _rows(tensor.shape), tuple(tensor.shape)
        pieces = _rows_cut(tensor, finely, total) if finely else _piece_count(tensor, count, total)
        for i in range(pieces):
            start, stop = i * rows // pieces, (i + 1) * rows // pieces
            result.append(Unit(tensor.name, start, stop, shape, tensor.merge or DEFAULT, tensor.dtype))
    return tuple(result)


def units_max(layout: Sequence[Tensor]) -> int:
    """The largest count such that it, and every smaller one, leaves no fragment without a unit, with only
    embedding-like and stacked tensors cut.

    More fragments cut embedding-like tensors into more units, in jumps: above this limit a count here and there would
    fit again. There any tensor is cut, so that it means one thing on which side of it a count is.
    """
    _check(layout)
    bound = sum(_rows(tensor.shape) if _is_cut(tensor) else 1 for tensor in layout)
    return next((n - 1 for n, unit_count in _unit_counts(layout, bound) if unit_count < n), bound)


def rows_max(layout: Sequence[Tensor]) -> int:
    """The largest count of fragments: the rows of all tensors, a layer of a stack being one."""
    _check(layout)
    return sum(_rows(tensor.shape) for tensor in layout)


def tensors_cut(layout: Sequence[Tensor], count: Cut) -> tuple[str, ...]:
    """The tensors of which a merge takes parts each by itself, because more fragments are asked for than there are
    units otherwise; by name."""
    if isinstance(count, str) or count <= units_max(layout):
        return ()
    apart = {tensor.name for tensor in layout if not _is_cut(tensor)}
    return tuple(dict.fromkeys(unit.tensor for unit in units(layout, count) if unit.is_split and unit.tensor in apart))


def count_default(layout: Sequence[Tensor]) -> int:
    """The default number of fragments: 8, or as many as keep one to about SIZE_DEFAULT_MAX; the maximum if smaller."""
    size = sum(math.prod(tensor.shape) for tensor in layout)
    return min(max(COUNT_DEFAULT, -(-size // SIZE_DEFAULT_MAX)), units_max(layout))


def _ordered(groups: Iterable[Sequence[Unit]]) -> tuple[Fragment, ...]:
    ordered = sorted((sorted(group, key=_place) for group in groups), key=lambda group: _place(group[0]))
    return tuple(Fragment(index, tuple(group)) for index, group in enumerate(ordered))


def _by(layout: Sequence[Tensor], whole: Literal["layer", "tensor"]) -> list[list[Unit]]:
    """The units of each layer, or of each tensor.

    A layer is everything below the first number of a path, or a row of a tensor that is stacked there; a tensor without
    a number is a layer of its own.
    """
    groups: dict[tuple[str, ...], list[Unit]] = {}
    stacked = {tensor.name for tensor in layout if tensor.is_stacked}
    for unit in units(layout, 1):
        steps = unit.tensor.split("/")
        depth = next((at + 1 for at, step in enumerate(steps) if _NUMBERED.search(step)), len(steps))
        key: tuple[str, ...] = (unit.tensor,)
        if whole == "layer":
            key = (steps[0], str(unit.start)) if unit.tensor in stacked else tuple(steps[:depth])
        groups.setdefault(key, []).append(unit)
    return list(groups.values())


def _check(layout: Sequence[Tensor]) -> None:
    if not layout:
        raise ValueError("cutting a layout into fragments: expected at least one tensor, found none.")
    seen: set[str] = set()
    for tensor in layout:
        if tensor.name in seen:
            raise ValueError(f"cutting a layout into fragments: expected unique names, found {tensor.name!r} twice.")
        seen.add(tensor.name)
        if math.prod(tensor.shape) < 1:
            raise ValueError(
                f"cutting a layout into fragments: expected values in every tensor, found {tensor.name!r} "
                f"of shape {tuple(tensor.shape)}."
            )


def _rows(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def _place(unit: Unit) -> tuple[str, int]:
    return unit.tensor, unit.start


def _is_cut(tensor: Tensor) -> bool:
    """Whether its rows may be units of their own."""
    return RULES[tensor.merge or DEFAULT].cuts_rows or tensor.is_stacked


def _piece_count(tensor: Tensor, count: int, total: int) -> int:
    size = math.prod(tensor.shape)
    if tensor.is_stacked:
        return _rows(tensor.shape)
    if not RULES[tensor.merge or DEFAULT].cuts_rows or 3 * size * count <= 4 * total:
        return 1
    return min(_rows(tensor.shape), -(-size * count // total))


def _rows_cut(tensor: Tensor, finely: int, total: int) -> int:
    """The pieces of any tensor, where all are cut as if there were so many fragments."""
    if tensor.is_stacked:
        return _rows(tensor.shape)
    return min(_rows(tensor.shape), -(-math.prod(tensor.shape) * finely // total))


def _fine_count(layout: Sequence[Tensor], count: int, total: int) -> int:
    """The smallest number of fragments for which `_rows_cut` makes `count` units, or more: the more pieces, the finer
    they are, so it is found by bisection."""

    def makes(finely: int) -> int:
        return sum(_rows_cut(tensor, finely, total) for tensor in layout)

    low, high = 1, total
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if makes(middle) >= count else (middle + 1, high)
    return low


def _unit_counts(layout: Sequence[Tensor], bound: int) -> Iterator[tuple[int, int]]:
    """Pairs (count, number of units) for counts 1..bound."""
    cut = [tensor for tensor in layout if _is_cut(tensor)]
    total, whole = sum(math.prod(tensor.shape) for tensor in layout), len(layout) - len(cut)
    for n in range(1, bound + 1):
        yield n, whole + sum(_piece_count(tensor, n, total) for tensor in cut)


def _balanced(pieces: Sequence[Unit], count: int) -> list[list[Unit]]:
    """Longest processing time first: at most 4/3 - 1/(3 count) of the optimal peak (Graham 1969)."""
    groups: list[list[Unit]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for unit in sorted(pieces, key=lambda unit: (-unit.size, *_place(unit))):
        size, index = heap[0]
        groups[index].append(unit)
        heapq.heapreplace(heap, (size + unit.size, index))
    return groups


def _own_fragments(pieces: Sequence[Unit], count: int) -> list[list[Unit]] | None:
    """A fragment for each averaged unit and the rest balanced; None where that is not within 4/3 of the optimum."""
    averaged = [unit for unit in pieces if RULES[unit.merge].cuts_rows]
    others = [unit for unit in pieces if not RULES[unit.merge].cuts_rows]
    room = count - len(averaged)
    if not averaged or (room < 1 if others else room != 0):
        return None
    groups = [[unit] for unit in averaged] + (_balanced(others, room) if others else [])
    peak = max(sum(unit.size for unit in group) for group in groups)
    # The largest peak below 3/4 of ours: where it cannot hold all units, ours is within 4/3 of the optimum.
    capacity = (3 * peak - 1) // 4
    return groups if _bins_min([unit.size for unit in pieces], capacity) > count else None


def _bins_min(sizes: Sequence[int], capacity: int) -> int:
    """A lower bound on the bins of `capacity` that hold `sizes`: L2 of Martello and Toth (1990).

    For each k, sizes above capacity - k share a bin with no size of k or more, those above half of the capacity not
    with each other, and the sizes between k and half of the capacity fill what the latter leave free.
    """
    if max(sizes) > capacity:
        return len(sizes) + 1
    large = [size for size in sizes if 2 * size > capacity]
    small = [size for size in sizes if 2 * size <= capacity]
    best = len(large)
    for k in sorted({0, *small}):
        free = sum(capacity - size for size in large if size <= capacity - k)
        rest = sum(size for size in small if size >= k) - free
        best = max(best, len(large) + max(0, -(-rest // capacity)))
    return best
