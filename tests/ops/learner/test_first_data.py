"""What of a batch tells that two islands have the same data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from isthmus.ops.learner.answers import FIRST_LOSSES
from isthmus.ops.learner.first_data import FirstData, batch_digest

IMAGES = np.arange(24, dtype=np.float32).reshape(2, 12)
TOKENS = np.arange(24).reshape(2, 12)

DATA = {
    "an array": IMAGES,
    "tokens": TOKENS,
    "a row of numbers": np.linspace(0, 1, 5),
    "bfloat16": IMAGES.astype(ml_dtypes.bfloat16),
    "a pair": (IMAGES, np.arange(2)),
    "a dict in a list": [{"ids": TOKENS, "mask": None}],
    "texts": {"text": ["one", "two"]},
    "numbered": (3, TOKENS),
}
NO_DATA: dict[str, Any] = {
    "a number": 3,
    "a step's number as an array": np.asarray(3),
    "places in a part of the data": np.arange(64),
    "the same in a list": list(range(64)),
    "nothing": (),
    "something of its own": object(),
    "what cannot be read": SimpleNamespace(shape=(2, 2), dtype="key", __array__=None),
}


def other(batch: Any) -> Any:
    """The same form with other data."""
    if isinstance(batch, dict):
        return {name: other(each) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(other(each) for each in batch)
    if isinstance(batch, np.ndarray):
        return batch + np.ones((), batch.dtype)
    return batch + "s" if isinstance(batch, str) else batch


@pytest.mark.parametrize("name", DATA)
def test_equal_batches_have_one_digest_and_others_another(name: str) -> None:
    digest = batch_digest(DATA[name])
    assert 0 < digest < 1 << 60
    assert digest == batch_digest(DATA[name])
    assert digest != batch_digest(other(DATA[name]))


@pytest.mark.parametrize("name", NO_DATA)
def test_what_all_islands_may_have_alike_has_none(name: str) -> None:
    assert not batch_digest(NO_DATA[name])


def test_a_shape_is_a_part_of_it() -> None:
    assert batch_digest(IMAGES) != batch_digest(IMAGES.reshape(4, 6))


def test_the_first_batch_is_told_before_there_are_losses_and_they_in_its_place() -> None:
    boundary: Any = SimpleNamespace(metrics=SimpleNamespace(first_losses=list[float]()))
    assert FirstData(boundary, lambda: 7).published() == {"data_digest": 7}
    assert not FirstData(boundary).published()
    boundary.metrics.first_losses += [1.0] * FIRST_LOSSES
    assert FirstData(boundary).published()["data_digest"]
    assert FirstData(boundary, lambda: 7).published() == {"data_digest": 7}
