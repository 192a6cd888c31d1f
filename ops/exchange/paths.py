"""Models made of modules: which path has which fragments (DiPaCo, arXiv 2403.10616).

The layers of a model are cut into levels, each level has a number of modules of the same shapes, and a path is a choice
of one module a level. A tensor of no level is shared by all paths. A path is a model like any other: its learner knows
it by the plain names of its tensors and by the numbers of its own fragments. Between hosts and on disk is the *whole*:
each fragment once for each module of its level. Decides which fragments these are, and whose.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, Protocol, TypeVar, final

from isthmus.ops.exchange.fragments import Cut, Fragment, Tensor, count_default, partition, rows_max, units_max

Value = TypeVar("Value")


class LevelTensor(Tensor, Protocol):
    """A tensor of a model that is made of modules."""

    @property
    def level(self) -> int | None:
        """Its level; None where all paths share it."""


class FragmentHolders(Protocol):
    """Who answers for a fragment, where not all do that answer."""

    @property
    def gives_copies(self) -> bool:
        """Whether a fragment may be nobody's for ever, so that a shard is given copies itself."""

    def has(self, slot: int, fragment: int) -> bool:
        """Whether a slot has a fragment."""


@final
@dataclass(frozen=True, slots=True)
class PathParts:
    """The fragments of a model made of modules, whose levels have `modules` each.

    `own`: those of one path, in which all paths are alike; `levels`: the level of each, None where all share it;
    `whole`: those of the model, in the order of `own`, each once for each module of its level.
    """

    modules: tuple[int, ...]
    own: tuple[Fragment, ...]
    levels: tuple[int | None, ...]
    whole: tuple[Fragment, ...] = field(init=False)
    own_of: tuple[int, ...] = field(init=False)
    """The own fragment that each one of the whole is a module's."""
    holders: tuple[tuple[int, ...], ...] = field(init=False)
    """The paths that have each fragment of the whole, ascending."""

    def __post_init__(self) -> None:
        whole, own_of, holders = list[Fragment](), list[int](), list[tuple[int, ...]]()
        chosen = choices(self.modules)
        for fragment, level in zip(self.own, self.levels, strict=True):
            for module in range(1 if level is None else self.modules[level]):
                units = fragment.units
                if level is not None:
                    units = tuple(replace(unit, tensor=module_name(level, module, unit.tensor)) for unit in units)
                whole.append(Fragment(len(whole), units))
                own_of.append(fragment.index)
                having = [path for path, each in enumerate(chosen) if level is None or each[level] == module]
                holders.append(tuple(having))
        object.__setattr__(self, "whole", tuple(whole))
        object.__setattr__(self, "own_of", tuple(own_of))
        object.__setattr__(self, "holders", tuple(holders))

    @property
    def gives_copies(self) -> bool:
        """As `FragmentHolders` says: no learner that ever comes back may have a module."""
        return True

    @property
    def count(self) -> int:
        """The number of paths."""
        return math.prod(self.modules)

    def path_of(self, slot: int) -> int:
        """The path that a slot trains, in all its lives."""
        return slot % self.count

    def has(self, slot: int, fragment: int) -> bool:
        """Whether a slot's path has a fragment of the whole."""
        return self.path_of(slot) in self.holders[fragment]

    def numbers(self, path: int) -> tuple[int, ...]:
        """The fragments of the whole that a path has, in the order of its own."""
        return tuple(number for number, having in enumerate(self.holders) if path in having)


def choices(modules: Iterable[int]) -> list[tuple[int, ...]]:
    """The module of each level that each path has, the last level's fastest; levels of one module change nothing."""
    return list(product(*map(range, modules)))


def module_name(level: int, module: int, tensor: str) -> str:
    """The name of a module's tensor in the whole."""
    return f"level{level}.module{module}/{tensor}"


_MODULE: Final = re.compile(r"level(\d+)\.module(\d+)/(.*)", re.DOTALL)


def modules_among(names: Iterable[str]) -> dict[int, int]:
    """How many modules each level has that has several, by the names of the whole; empty for those of another model."""
    counts: dict[int, int] = {}
    for found in filter(None, map(_MODULE.fullmatch, names)):
        level, module = int(found[1]), int(found[2])
        counts[level] = max(counts.get(level, 0), module + 1)
    return dict(sorted(counts.items()))


def of_path(tensors: Mapping[str, Value], path: int) -> dict[str, Value]:
    """What a path has of tensors with names of the whole, by its plain ones; IndexError if there is no such path."""
    counts = modules_among(tensors)
    chosen = dict(zip(counts, choices(counts.values())[path], strict=True))
    own: dict[str, Value] = {}
    for name, tensor in tensors.items():
        found = _MODULE.fullmatch(name)
        if found is None:
            own[name] = tensor
        elif chosen[int(found[1])] == int(found[2]):
            own[found[3]] = tensor
    return own


def path_parts(layout: Sequence[LevelTensor], modules: Sequence[int], cut: Cut | None) -> PathParts:
    """The fragments of a model with this layout; ValueError as of `partition`, and for fewer than `groups_of` it.

    A fragment is of one level, so that all of it has the same holders; levels of one module are shared by all. Where
    that is all of the model, its fragments are those of `partition`.
    """
    groups = groups_of(layout, modules)
    if cut is None:
        cut = max(count_default(layout), len(groups))
    counts: list[Cut] = [cut] * len(groups) if isinstance(cut, str) else list(_shares(list(groups.values()), cut))
    own, levels = list[Fragment](), list[int | None]()
    for (level, tensors), count in zip(groups.items(), counts, strict=True):
        for fragment in partition(tensors, count):
            own.append(Fragment(len(own), fragment.units))
            levels.append(level)
    return PathParts(tuple(modules), tuple(own), tuple(levels))


def groups_of(layout: Sequence[LevelTensor], modules: Sequence[int]) -> dict[int | None, list[LevelTensor]]:
    """The tensors that have the same holders, by their level: first those that all share, if there are any."""
    groups: dict[int | None, list[LevelTensor]] = {}
    for tensor in layout:
        is_shared = tensor.level is None or modules[tensor.level] == 1
        groups.setdefault(None if is_shared else tensor.level, []).append(tensor)
    return dict(sorted(groups.items(), key=lambda item: -1 if item[0] is None else item[0]))


def _shares(groups: Sequence[Sequence[LevelTensor]], count: int) -> list[int]:
    """How many of `count` fragments each group gets: in turn the one whose fragments are the largest."""
    if count < len(groups):
        raise ValueError(f"cutting {len(groups)} groups of tensors into fragments: expected as many, found {count}.")
    sizes = [sum(math.prod(tensor.shape) for tensor in group) for group in groups]
    most, shares = [units_max(group) for group in groups], [1] * len(groups)
    rows = [rows_max(group) for group in groups]
    for _ in range(count - len(groups)):
        # Of tensors that are cut into parts only where there are more fragments than units in all.
        open_ = [at for at in range(len(groups)) if shares[at] < (most[at] if count <= sum(most) else rows[at])]
        if not open_:
            raise ValueError(f"cutting {sum(rows)} rows into fragments: expected at most as many, found {count}.")
        shares[max(open_, key=lambda at: sizes[at] / shares[at])] += 1
    return shares
