"""The last model in the leaves of a user's loop: digests like the recorder's, and leaves that do not take it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from isthmus.ops.exchange import last_digests
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.learner.answers import HeldFragment
from isthmus.ops.learner.last_model import LastModel, unlike

FRAGMENTS = (
    Fragment(0, (Unit("a", 0, 2, (2, 3)), Unit("b", 0, 2, (2,), dtype="bfloat16"))),
    Fragment(1, (Unit("c", 0, 4, (4,)),)),
)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float64": np.float64}


class Leaves:
    """A learner whose leaves are numbers; of the tensor `stuck` nothing can be written."""

    def __init__(self, stuck: str = "") -> None:
        self.values = [np.zeros(fragment.size, np.float32) for fragment in FRAGMENTS]
        self._stuck = stuck

    def replace(self, number: int, values: Any) -> None:
        fragment = FRAGMENTS[number]
        for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
            if unit.tensor != self._stuck:
                rounded = np.asarray(values[begin:end], np.float32).astype(DTYPES[unit.dtype])
                self.values[number][begin:end] = rounded.astype(np.float32)

    def extract(self, number: int) -> Any:
        return self.values[number].copy()


def held(number: int, count: int = 3) -> HeldFragment:
    anchor = np.random.default_rng(number + 10 * count).normal(size=FRAGMENTS[number].size).astype(np.float32)
    return HeldFragment(cast(Any, SimpleNamespace(base=(1, count))), anchor, [], [])


def adopted(stuck: str = "") -> tuple[LastModel, Leaves, list[Any]]:
    """A learner that has adopted the last versions."""
    leaves, versions = Leaves(stuck), [held(0), held(1)]
    model = LastModel(cast(Any, leaves), FRAGMENTS, versions)
    for number, each in enumerate(versions):
        leaves.replace(number, each.anchor)
        model.adopted(number, is_last=True)
    return model, leaves, versions


def test_digests_are_there_once_the_last_version_of_every_fragment_is() -> None:
    model = LastModel(cast(Any, Leaves()), FRAGMENTS, [held(0), held(1)])
    assert model.leaves() == {"digests": [], "leaf": ""}
    model.adopted(0, is_last=True)
    assert not model.is_there
    assert model.write() == ""
    model.adopted(1, is_last=True)
    assert len(model.leaves()["digests"]) == 2
    model.adopted(1, is_last=False)  # Its shard has died, and goes on from a version before.
    assert not model.is_there


def test_leaves_of_any_dtype_that_hold_the_published_values_have_the_recorders_digests() -> None:
    model, _, versions = adopted()
    found = model.leaves()
    assert found["leaf"] == ""
    for fragment, each, digest in zip(FRAGMENTS, versions, found["digests"], strict=True):
        cuts = zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False)
        parts = [each.anchor[begin:end].reshape(unit.values_shape) for unit, begin, end in cuts]  # As it writes them.
        assert digest == last_digests.digest_of(parts)
        assert 0 <= digest < 1 << 60


def test_a_leaf_that_does_not_hold_them_is_named_and_its_digest_is_another_one() -> None:
    (right, _, _), (wrong, _, _) = adopted(), adopted("b")
    assert wrong.leaves()["leaf"] == "b"
    pairs = zip(right.leaves()["digests"], wrong.leaves()["digests"], strict=True)
    assert [one == other for one, other in pairs] == [False, True]
    assert wrong.write() == "b"


def test_a_later_last_version_is_looked_at_anew() -> None:
    model, leaves, versions = adopted()
    before = model.leaves()
    versions[1] = held(1, 4)
    leaves.replace(1, versions[1].anchor)
    model.adopted(1, is_last=True)
    after = model.leaves()
    assert [one == other for one, other in zip(before["digests"], after["digests"], strict=True)] == [True, False]


def test_what_a_script_trains_behind_the_last_step_is_written_over() -> None:
    model, leaves, _ = adopted()
    kept = [values.copy() for values in leaves.values]
    for values in leaves.values:
        values += 1.0
    assert model.write() == ""
    for one, other in zip(kept, leaves.values, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_compared_as_their_dtype_holds_them(dtype: str) -> None:
    fragment = Fragment(0, (Unit("a", 0, 3, (3,), dtype=dtype),))
    published = np.array([1.0000001, np.inf, np.nan], np.float32)
    own = published.astype(DTYPES[dtype]).astype(np.float32)
    assert unlike(fragment, own, published) == ""
    own[0] = 1.5
    assert unlike(fragment, own, published) == "a"


def test_a_report_without_digests_is_awaited_from_a_users_loop_only() -> None:
    assert not last_digests.is_awaited({})
    assert last_digests.is_awaited({"last": {"digests": [], "leaf": ""}})
    assert not last_digests.is_awaited({"last": {"digests": [1], "leaf": ""}})
