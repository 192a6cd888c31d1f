"""Which path has which fragments, of a model made of modules."""

from __future__ import annotations

import math
from itertools import product

import pytest

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.paths import PathParts, path_parts
from isthmus.programs.job import TensorSpec

LAYOUT = (
    TensorSpec("embedding", (256, 8), "float32", merge="average"),
    *(TensorSpec(f"layers/{i}/{name}", (8, 8), "float32", level=i // 2) for i in range(4) for name in ("up", "down")),
    TensorSpec("norm", (8,), "float32"),
)
SHARED = 256 * 8 + 8


@pytest.mark.parametrize("cut", [None, 3, 7, "layer", "tensor"])
@pytest.mark.parametrize("modules", [(2, 2), (1, 4), (3, 2), (2, 1)])
def test_every_path_is_a_whole_model_and_the_whole_has_each_module_once(modules: tuple[int, int], cut: object) -> None:
    parts = path_parts(LAYOUT, modules, cut)  # type: ignore[arg-type]
    assert parts.count == math.prod(modules)
    assert sum(part.size for part in parts.own) == SHARED + 4 * 128
    assert sum(part.size for part in parts.whole) == SHARED + 256 * sum(modules)
    for path, chosen in enumerate(product(*map(range, modules))):
        own = [parts.whole[number] for number in parts.numbers(path)]
        assert [part.size for part in own] == [part.size for part in parts.own]
        names = {unit.tensor for part in own for unit in part.units}
        for level, module in enumerate(chosen):
            prefix = f"level{level}.module{module}/" if modules[level] > 1 else ""
            assert {
                f"{prefix}layers/{i}/{name}" for i in (2 * level, 2 * level + 1) for name in ("up", "down")
            } <= names
        assert {"embedding", "norm"} <= {name for name in names if "/" not in name}
        assert len(names) == 10


def test_a_fragment_has_one_level_and_those_of_a_module_have_its_holders() -> None:
    parts = path_parts(LAYOUT, (2, 2), 5)
    holders = {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (0, 2), (1, 1): (1, 3)}
    for part, having in zip(parts.whole, parts.holders, strict=True):
        [prefix] = {unit.tensor.partition("/")[0] if "level" in unit.tensor else "" for unit in part.units}
        expected = holders[int(prefix[5]), int(prefix[-1])] if prefix else (0, 1, 2, 3)
        assert having == expected
        assert [parts.has(slot, part.index) for slot in range(8)] == [slot % 4 in expected for slot in range(8)]


@pytest.mark.parametrize("cut", [1, 3, "layer"])
def test_one_module_a_level_is_the_partition_of_the_model(cut: object) -> None:
    parts = path_parts(LAYOUT, (1, 1), cut)  # type: ignore[arg-type]
    assert parts.whole == parts.own == partition(LAYOUT, cut)  # type: ignore[arg-type]
    assert set(parts.holders) == {(0,)}


def test_fragments_are_cut_where_they_are_largest() -> None:
    parts = path_parts(LAYOUT, (1, 4), 4)
    assert [sum(level is None for level in parts.levels), parts.levels.count(1)] == [3, 1]


@pytest.mark.parametrize("cut", [0, 1, 2, 4000])
def test_too_few_or_too_many_fragments_are_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="cutting"):
        path_parts(LAYOUT, (2, 2), cut)


def test_equal_arguments_make_equal_parts() -> None:
    parts = path_parts(LAYOUT, (2, 2), 4)
    assert parts == PathParts(parts.modules, parts.own, parts.levels)
    assert hash(parts) == hash(path_parts(tuple(reversed(LAYOUT)), (2, 2), 4))
