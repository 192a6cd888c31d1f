"""Parameter trees: the names of their leaves, and their mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def named_leaves(tree: Any, root: str = "parameters") -> list[tuple[str, Any]]:
    """(name, leaf) of every leaf, in the order of `jax.tree.leaves`.

    A name is the path of keys, indices and attributes, joined by '/'; a tree that is one array is called `root`.
    """
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/") or root, leaf) for path, leaf in leaves]


def tree_mean(*trees: Any, weights: list[float] | None = None) -> Any:
    """The mean of trees of arrays, leaf by leaf, in the order given; `weights` are normalised, equal if absent.

    Works on dicts, lists and tuples of arrays; the sum is taken in float32 and the leaves keep their dtype.
    """
    given = weights if weights is not None else [1.0] * len(trees)
    total = sum(given)
    if len(given) != len(trees) or not trees or total <= 0:
        raise ValueError(f"a mean of {len(trees)} trees: expected as many weights, of a positive sum, found {given}")
    return _mean(trees, [weight / total for weight in given])


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
