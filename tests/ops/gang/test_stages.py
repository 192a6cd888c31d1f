"""What stages of a mesh decide without a device: micro-batches, and how stacked layers are cut."""

from __future__ import annotations

import pytest

from isthmus.ops.gang.mesh_sharding import MeshShape, ShardingError
from isthmus.ops.gang.mesh_stages import microbatches_of

STAGED = MeshShape.of((("data", -1), ("stage", 4)), 8)


@pytest.mark.parametrize(
    ("rows", "devices", "stages", "wanted", "count"),
    [
        (8, 1, 1, None, 1),
        (8, 1, 1, 4, 4),
        (32, 1, 2, None, 8),
        (8, 1, 4, None, 8),
        (24, 1, 4, None, 12),
        (8, 2, 4, 4, 4),
    ],
)
def test_micro_batches_are_as_many_as_fit_or_as_said(
    rows: int, devices: int, stages: int, wanted: int | None, count: int
) -> None:
    assert microbatches_of(rows, devices, stages, wanted) == count


@pytest.mark.parametrize(
    ("rows", "devices", "stages", "wanted"),
    [(6, 1, 4, None), (8, 4, 4, None), (8, 1, 4, 6), (8, 1, 1, 3), (8, 4, 4, 4)],
)
def test_rows_that_do_not_divide_into_micro_batches_are_refused(
    rows: int, devices: int, stages: int, wanted: int | None
) -> None:
    with pytest.raises(ShardingError, match="micro-batch") as refused:
        microbatches_of(rows, devices, stages, wanted)
    assert refused.value.found == (f"{rows} rows" if wanted is None else f"{wanted} micro-batches")


def test_layers_are_cut_by_stages_and_within_by_data() -> None:
    assert STAGED.of_leaf("layers/up", (8, 64, 128), (), is_stacked=True) == ("stage", None, "data")
    assert STAGED.of_leaf("layers/norm", (8, 64), (), is_stacked=True) == ("stage",)
    assert STAGED.of_leaf("layers/up", (8, 64, 128), (("layers/**", ("stage",)),), is_stacked=True) == ("stage",)


def test_layers_that_stages_do_not_divide_are_refused() -> None:
    with pytest.raises(ShardingError) as refused:
        STAGED.of_leaf("layers/up", (6, 64, 128), (), is_stacked=True)
    assert (refused.value.action, refused.value.found) == ("Cutting 'layers/up'", "6 layers")


def test_all_else_is_cut_by_data_and_by_stages() -> None:
    assert STAGED.of_leaf("embedding", (256, 64), ()) == ("data", "stage")
    assert MeshShape.of((("data", -1), ("stage", 4)), 4).of_leaf("embedding", (256, 64), ()) == ("stage",)
