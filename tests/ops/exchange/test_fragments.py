"""Fragments: sizes on the nano model, the 4/3 bound against brute force, and what is refused."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.fragments import (
    Fragment,
    Unit,
    count_default,
    fragments_count,
    partition,
    rows_max,
    tensors_cut,
    units,
    units_max,
)
from isthmus.ops.exchange.merge_rules import RULES


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    merge: str = "rda"
    dtype: str = "float32"
    is_stacked: bool = False


def nano() -> list[Tensor]:
    layout = [Tensor("embedding", (256, 64), merge="average"), Tensor("head", (64, 256), merge="average")]
    layout.append(Tensor("norm", (64,)))
    for layer in range(2):
        for part, shape in [
            *(("attention/" + name, (64, 64)) for name in ("query", "key", "value", "output")),
            *(("feedforward/" + name, (64, 172)) for name in ("gate", "up")),
            ("feedforward/down", (172, 64)),
            ("attention/norm", (64,)),
            ("feedforward/norm", (64,)),
        ]:
            layout.append(Tensor(f"layers/{layer}/{part}", shape))
    return layout


def sizes(fragments: tuple[Fragment, ...]) -> list[int]:
    return [fragment.size for fragment in fragments]


def own_fragments(fragments: tuple[Fragment, ...]) -> bool:
    """Whether no averaged tensor shares a fragment with another tensor."""
    return all(
        not any(unit.merge == "average" for unit in fragment.units)
        or len({unit.tensor for unit in fragment.units}) == 1
        for fragment in fragments
    )


def optimum(unit_sizes: list[int], count: int) -> int:
    """The smallest possible peak, by trying everything."""
    loads = {(0,) * count}
    for size in unit_sizes:
        loads = {tuple(sorted((*load[:i], load[i] + size, *load[i + 1 :]))) for load in loads for i in range(len(load))}
    return min(max(load) for load in loads)


shapes = st.lists(st.integers(1, 12), max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, tensors_max: int = 7) -> list[Tensor]:
    count = draw(st.integers(1, tensors_max))
    return [Tensor(f"t{i}", draw(shapes), draw(st.sampled_from(tuple(RULES)))) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [131904]),
        (2, [65984, 65920]),
        (4, [31680, 31616, 34304, 34304]),
        (8, [16384, 16384, 19200, 15232, 19200, 15168, 15168, 15168]),
    ],
)
def test_nano_sizes(count: int, expected: list[int]) -> None:
    assert sizes(partition(nano(), count)) == expected


def test_nano_at_eight_is_this_partition() -> None:
    names = [[unit.name for unit in fragment.units] for fragment in partition(nano(), 8)]
    assert names[:3] == [
        ["embedding"],
        ["head"],
        ["layers/0/attention/key", "layers/0/feedforward/down", "layers/1/attention/query"],
    ]
    assert names[7] == ["layers/1/attention/output", "layers/1/feedforward/norm", "layers/1/feedforward/up"]


def test_nano_by_layer_and_by_tensor() -> None:
    layers = partition(nano(), "layer")
    firsts = [part.units[0].tensor for part in layers]
    assert firsts == ["embedding", "head", "layers/0/attention/key", "layers/1/attention/key", "norm"]
    assert sizes(layers) == [16384, 16384, 49536, 49536, 64]
    assert [len(part.units) for part in layers] == [1, 1, 9, 9, 1]
    tensors = partition(nano(), "tensor")
    assert [unit.name for part in tensors for unit in part.units] == sorted(tensor.name for tensor in nano())
    assert fragments_count(nano(), "tensor") == len(tensors) == 21
    assert (fragments_count(nano(), "layer"), fragments_count(nano(), 3)) == (5, 3)


def test_embedding_and_head_have_fragments_of_their_own_where_that_is_balanced() -> None:
    allowed = range(1, units_max(nano()) + 1)
    assert [count for count in allowed if not own_fragments(partition(nano(), count))] == [1, 2, 3, 4]


def test_packed_units_keep_their_rule_and_embedding_and_head_stay_apart() -> None:
    fragments = partition(nano(), 4)
    place = {unit.tensor: (fragment.index, unit.merge) for fragment in fragments for unit in fragment.units}
    assert [place[name][1] for name in ("embedding", "head", "norm")] == ["average", "average", "rda"]
    assert place["embedding"][0] != place["head"][0]


def test_large_embeddings_are_cut_into_equal_row_ranges() -> None:
    # 16384 > 4/3 * 131904 / 12: ceil(16384 * 12 / 131904) = 2 pieces.
    pieces = [unit for unit in units(nano(), 12) if unit.merge == "average"]
    assert [unit.name for unit in pieces] == ["embedding[0:128]", "embedding[128:256]", "head[0:32]", "head[32:64]"]
    assert [unit.values_shape for unit in pieces] == [(128, 64), (128, 64), (32, 256), (32, 256)]
    assert all(not unit.is_split for unit in units(nano(), 10))
    # 256 rows in three pieces differ by one row.
    assert [unit.stop - unit.start for unit in units(nano(), 17) if unit.tensor == "embedding"] == [85, 85, 86]


def test_only_averaged_tensors_are_split() -> None:
    layout = [Tensor("large", (100, 10)), Tensor("small", (10,)), Tensor("other", (10,))]
    assert sizes(partition(layout, 3)) == [1000, 10, 10]


def test_scalars_are_units_of_one_value() -> None:
    (fragment,) = partition([Tensor("a", ()), Tensor("b", (), merge="average")], 1)
    assert fragment.size == 2
    assert [(unit.size, unit.values_shape, unit.name) for unit in fragment.units] == [(1, (), "a"), (1, (), "b")]


@given(layouts(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_partition_is_exact_balanced_and_independent_of_order(
    layout: list[Tensor], count: int, shuffler: random.Random
) -> None:
    count = min(count, units_max(layout))
    fragments = partition(layout, count)
    assert [fragment.index for fragment in fragments] == list(range(count))
    assert all(fragment.units for fragment in fragments)

    rows = sorted((unit.tensor, row) for fragment in fragments for unit in fragment.units for row in _rows(unit))
    assert rows == sorted((tensor.name, row) for tensor in layout for row in range((*tensor.shape, 1)[0]))
    found = sorted((unit for fragment in fragments for unit in fragment.units), key=lambda unit: unit.name)
    assert found == sorted(units(layout, count), key=lambda unit: unit.name)

    if len(found) <= 10:
        assert 3 * max(sizes(fragments)) <= 4 * optimum([unit.size for unit in found], count)

    shuffled = list(layout)
    shuffler.shuffle(shuffled)
    assert partition(shuffled, count) == fragments


def _rows(unit: Unit) -> range:
    return range(unit.start, unit.stop)


@given(layouts(tensors_max=40), st.integers(1, 40))
def test_the_peak_of_large_layouts_is_near_a_lower_bound(layout: list[Tensor], count: int) -> None:
    count = min(count, units_max(layout))
    found = sizes(partition(layout, count))
    pieces = sorted((unit.size for unit in units(layout, count)), reverse=True)
    # Whatever the packing: 4/3 of the optimum, which is at most the mean and one unit.
    assert 3 * max(found) <= 4 * (sum(found) / count + pieces[0])
    # Units of one size are packed perfectly.
    if len(set(pieces)) == 1 and not any(tensor.merge == "average" for tensor in layout):
        assert max(found) == -(-len(pieces) // count) * pieces[0]


@given(layouts(), st.integers(1, 400))
def test_every_count_up_to_the_rows_is_allowed_and_none_above(layout: list[Tensor], count: int) -> None:
    largest = rows_max(layout)
    assert units_max(layout) <= largest == sum((*tensor.shape, 1)[0] for tensor in layout)
    assert count_default(layout) == min(8, units_max(layout))
    count = min(count, largest)
    fragments = partition(layout, count)
    assert len(fragments) == count
    assert all(fragment.units for fragment in fragments)
    is_finer = any(unit.is_split and unit.merge != "average" for fragment in fragments for unit in fragment.units)
    assert is_finer <= (count > units_max(layout))
    assert bool(tensors_cut(layout, count)) == is_finer
    with pytest.raises(ValueError, match=f"expected 1 to {largest} fragments, found {largest + 1}"):
        partition(layout, largest + 1)


def test_more_fragments_than_units_cut_the_largest_tensors_and_stay_near_the_mean() -> None:
    for count in (28, 50, 200, 500):
        fragments = partition(nano(), count)
        assert len(fragments) == count
        # A row of the widest tensor is 256 values.
        assert max(sizes(fragments)) <= 2 * sum(sizes(fragments)) / count + 256
    assert tensors_cut(nano(), 27) == ()
    assert "layers/0/feedforward/up" in tensors_cut(nano(), 28)
    assert "norm" not in tensors_cut(nano(), 200)


def test_the_default_keeps_fragments_of_large_models_within_an_item() -> None:
    # 37 stacked layers of a model of 12 billion values: eight fragments would have 1.5 billion values each.
    layout = [
        Tensor(f"layers/{name}", (37, 5120, width), is_stacked=True) for name, width in (("a", 20480), ("b", 40960))
    ]
    sizes = [fragment.size for fragment in partition(layout, count_default(layout))]
    assert len(sizes) == -(-sum(sizes) // 2**29)
    assert 4 * 2 * max(sizes) <= 1.25 * 2**32


def test_nano_allows_27() -> None:
    assert units_max(nano()) == 27
    assert count_default(nano()) == 8


@pytest.mark.parametrize(
    ("layout", "count", "message"),
    [
        ([], 1, "expected at least one tensor, found none"),
        ([Tensor("a", (2,)), Tensor("a", (3,))], 1, "found 'a' twice"),
        ([Tensor("a", (2, 0))], 1, r"expected values in every tensor, found 'a' of shape \(2, 0\)"),
        ([Tensor("a", (2,))], 0, "expected at least 1 fragment, found 0"),
        ([Tensor("a", (2,))], -3, "expected at least 1 fragment, found -3"),
        ([Tensor("a", (200,)), Tensor("b", (2,))], 203, "expected 1 to 202 fragments, found 203"),
        ([Tensor("a", (4, 5), is_stacked=True), Tensor("b", ())], 6, "expected 1 to 5 fragments, found 6"),
    ],
)
def test_what_cannot_be_cut_is_refused(layout: list[Tensor], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(layout, count)


@given(layouts(), st.integers(1, 6))
def test_payloads_hold_every_value_once(layout: list[Tensor], count: int) -> None:
    count = min(count, units_max(layout))
    rng = np.random.default_rng(0)
    tensors = {tensor.name: rng.normal(size=tensor.shape).astype(np.float32) for tensor in layout}
    rebuilt = {name: np.zeros_like(values) for name, values in tensors.items()}
    for fragment in partition(layout, count):
        rows = [np.atleast_1d(tensors[unit.tensor])[unit.start : unit.stop] for unit in fragment.units]
        payload = np.concatenate([each.ravel() for each in rows])
        assert payload.size == fragment.size == fragment.offsets[-1]
        for u, unit in enumerate(fragment.units):
            values = payload[fragment.offsets[u] : fragment.offsets[u + 1]].reshape(unit.values_shape)
            np.atleast_1d(rebuilt[unit.tensor])[unit.start : unit.stop] = values
    assert all(np.array_equal(rebuilt[name], tensors[name]) for name in tensors)
