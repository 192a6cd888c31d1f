"""Parameter trees: the names of their leaves, and their mean.

Path patterns: the language in which a task selects leaves of its state.

A leaf has a path: keys, indices and attributes joined by '/', as `parameter_trees` names it. A pattern is a path in
which `*` stands for any run of letters within one segment ("Dense_*/kernel"), and the segment `**` for any number of
segments, none included ("params/**" is the leaf or folder `params` and everything below it). Case matters. Rules are
pairs of a pattern and a value, in order; for a leaf the first rule whose pattern matches its path holds.

A rule that holds for no leaf is a mistake: a misspelt name, or a rule after one that takes all its leaves. Only a last
`**` may be left over: "and everything else" is also written where nothing else is.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np


def named_leaves(tree: Any, root: str = "parameters") -> list[tuple[str, Any]]:
    """(name, leaf) of every leaf, in the order of `jax.tree.leaves`.

    A name is the path of keys, indices and attributes, joined by '/'; a tree that is one array is called `root`.
    """
    if "jax" not in sys.modules:  # Then no class can be registered with it: a tree is dicts, lists and tuples.
        return [("/".join(path) or root, leaf) for path, leaf in _plain_leaves(tree, ())]
    import jax  # Waits for a thread that imports it now.

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/") or root, leaf) for path, leaf in leaves]


def structure_of(tree: Any) -> str:
    """The structure of a tree in words, the same for trees that differ in their leaves alone."""
    if "jax" in sys.modules:
        import jax

        return str(jax.tree.structure(tree))
    if tree is None:
        return "None"
    branches = _branches(tree)
    if branches is None:
        return "*"
    return f"{type(tree).__name__}({', '.join(f'{name}: {structure_of(branch)}' for name, branch in branches)})"


def _plain_leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a tree as jax walks it, where jax is not imported."""
    branches = () if tree is None else _branches(tree)
    if branches is None:
        yield path, tree
        return
    for name, branch in branches:
        yield from _plain_leaves(branch, (*path, name))


def _branches(tree: Any) -> list[tuple[str, Any]] | None:
    """The branches of a node in order, by name; None for a leaf. Keys of dicts are sorted, but for OrderedDict."""
    if type(tree) is OrderedDict:
        return [(str(key), value) for key, value in tree.items()]
    if type(tree) in (dict, defaultdict):
        return [(str(key), tree[key]) for key in sorted(tree)]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if type(tree) in (list, tuple):
        return [(str(index), each) for index, each in enumerate(tree)]
    return None


def tree_mean(*trees: Any, weights: list[float] | None = None) -> Any:
    """The mean of trees of arrays, leaf by leaf, in the order given; `weights` are normalised, equal if absent.

    Works on dicts, lists and tuples of arrays; the sum is taken in float32 and the leaves keep their dtype.
    """
    shares = weights if weights is not None else [1.0] * len(trees)
    total = sum(shares)
    if len(shares) != len(trees) or not trees or total <= 0:
        raise ValueError(f"a mean of {len(trees)} trees: expected as many weights, of a positive sum, found {shares}")
    return _mean(trees, [weight / total for weight in shares])


def _mean(trees: tuple[Any, ...], weights: list[float]) -> Any:
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: _mean(tuple(tree[key] for tree in trees), weights) for key in first}
    if isinstance(first, list | tuple):
        parts = [_mean(parts, weights) for parts in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if hasattr(first, "shape"):
        mean = np.zeros(np.shape(first), np.float32)
        for leaf, weight in zip(trees, weights, strict=True):
            mean += np.float32(weight) * np.asarray(leaf, np.float32)
        return mean.astype(np.asarray(first).dtype, copy=False)
    import jax

    leaves, treedef = zip(*(jax.tree.flatten(tree) for tree in trees), strict=True)
    return jax.tree.unflatten(treedef[0], [_mean(parts, weights) for parts in zip(*leaves, strict=True)])


Value = TypeVar("Value")
Rules: TypeAlias = tuple[tuple[str, Value], ...]

EVERYTHING: Final = "**"


class IdleRule(NamedTuple):
    """A rule that holds for no leaf; `before` is the pattern that takes its matches, None if it has none."""

    pattern: str
    before: str | None


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path."""
    return _expression(pattern).fullmatch(f"/{path}") is not None


def first_match(rules: Rules[Value], path: str) -> Value | None:
    """The value of the first rule whose pattern matches a path; None if none does."""
    return next((value for pattern, value in rules if matches(pattern, path)), None)


def idle_rules(rules: Rules[Value], paths: Sequence[str]) -> list[IdleRule]:
    """The rules that hold for no path."""
    idle = []
    for place, (pattern, _) in enumerate(rules):
        matched = [path for path in paths if matches(pattern, path)]
        before = [next((p for p, _ in rules[:place] if matches(p, path)), None) for path in matched]
        if None not in before and not (pattern == EVERYTHING and place == len(rules) - 1):
            idle.append(IdleRule(pattern, before[0] if before else None))
    return idle


@lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern: every segment with the slash before it, the first one's, too.

    What stands between two stars, or two `**`, is taken where it comes first, for good: a later place could match no
    more. So no pattern takes exponential time, also not one that another machine has sent.
    """
    first, *more = ("".join(map(_segment, part)) for part in _split(pattern.split("/"), EVERYTHING))
    middle = "".join(rf"(?>(?:/[^/]*)*?{part}(?=/|\Z))" for part in more[:-1])
    return re.compile(first + middle + "".join(rf"(?:/[^/]*)*{part}" for part in more[-1:]))


def _split(segments: Sequence[str], mark: str) -> list[list[str]]:
    """The runs of segments between those that are a mark."""
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == mark:
            runs.append([])
        else:
            runs[-1].append(segment)
    return runs


def _segment(segment: str) -> str:
    """The expression of one segment, and of the slash before it."""
    first, *more = map(re.escape, segment.split("*"))
    middle = "".join(f"(?>[^/]*?{part})" for part in more[:-1])
    return f"/{first}{middle}" + "".join(rf"[^/]*{part}(?=/|\Z)" for part in more[-1:])
