"""How leaves and batches lie on a mesh, by paths and shapes."""

from __future__ import annotations

import pytest

from isthmus.ops.gang.mesh_sharding import AXES_DEFAULT, MeshShape, ShardingError, alike

EIGHT = MeshShape.of(AXES_DEFAULT, 8)
TWO_BY_FOUR = MeshShape.of((("data", -1), ("model", 4)), 8)


def test_the_largest_axis_that_the_devices_divide_is_cut() -> None:
    assert EIGHT.automatic((64, 256)) == (None, "data")
    assert EIGHT.automatic((256, 64)) == ("data",)
    assert EIGHT.automatic((64, 172)) == ("data",)
    assert EIGHT.automatic((172, 172)) == ()


def test_small_leaves_lie_whole_everywhere() -> None:
    assert EIGHT.automatic((2047,)) == EIGHT.automatic((8, 255)) == EIGHT.automatic(()) == ()
    assert EIGHT.automatic((2048,)) == ("data",)


def test_rows_are_left_whole_where_another_axis_can_be_cut() -> None:
    assert EIGHT.automatic((50304, 768), has_rows=True) == (None, "data")
    assert EIGHT.automatic((50304, 767), has_rows=True) == ("data",)
    assert EIGHT.of_rows((None, "data"), (7, 768)) == (None, "data")
    assert EIGHT.of_rows(("data",), (7, 4096)) == (None, "data")


def test_a_mesh_takes_every_device_once() -> None:
    assert TWO_BY_FOUR.axes == (("data", 2), ("model", 4))
    with pytest.raises(ShardingError, match=r"expected a multiple of 4 devices for mesh=.*, found 6\. Change mesh="):
        MeshShape.of((("data", -1), ("model", 4)), 6)
    with pytest.raises(ShardingError, match=r"expected 4 devices for mesh=\{'data': 4\}, found 8"):
        MeshShape.of((("data", 4),), 8)


def test_what_a_task_says_holds() -> None:
    rules = (("head", (None, "model")), ("norm", "replicated"), ("**", "automatic"))
    assert TWO_BY_FOUR.of_leaf("head", (64, 256), rules) == (None, "model")
    assert TWO_BY_FOUR.of_leaf("norm", (4096,), rules) == ()
    assert TWO_BY_FOUR.of_leaf("other", (4096,), rules) == ("data",)
    with pytest.raises(ShardingError, match=r"\(data of 2, model of 4\) that divides axis 1, of 250, found 'model'"):
        TWO_BY_FOUR.of_leaf("head", (64, 250), rules)
    with pytest.raises(ShardingError, match="at most 1 axes in shard="):
        TWO_BY_FOUR.of_leaf("head", (64,), rules)


def test_a_batch_is_cut_along_its_leading_axis_or_refused() -> None:
    assert TWO_BY_FOUR.of_batch("tokens", (6, 65)) == ("data",)
    assert TWO_BY_FOUR.of_batch("scale", ()) == ()
    with pytest.raises(ShardingError, match=r"a batch that divides by 8, the devices along 'data' .* found 12 rows"):
        EIGHT.of_batch("tokens", (12, 65))


def test_moments_lie_like_what_they_are_moments_of() -> None:
    model = {"a/w": ((8, 8), ("data",)), "b/w": ((8, 8), ("model",)), "v": ((4,), ())}
    assert alike("optimizer/0/mu/b/w", (8, 8), model) == ("model",)
    assert alike("optimizer/0/nu/a/w", (8, 8), model) == ("data",)
    assert alike("optimizer/0/other", (8, 8), model) is None
    assert alike("optimizer/0/other", (4,), model) == ()
    assert alike("optimizer/0/mu/a/w", (8,), model) is None
