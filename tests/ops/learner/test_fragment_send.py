"""The learner's side of a merge: the outer gradient, and its norms."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.learner.fragment_send import FragmentSend, norms, outer_gradient
from tests.ops.kernels.test_averaging import fragment_of, random_gradients, vector


@pytest.mark.slow
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.integers(0, 1000), st.sampled_from([-30, 0, 15]))
def test_norms_agree_with_float64(sizes: list[int], seed: int, exponent: int) -> None:
    fragment = fragment_of(*sizes)
    values = np.float32(10.0**exponent) * random_gradients(1, fragment, seed)[0]
    parts = np.split(values.astype(np.float64), fragment.offsets[1:-1])
    expected = np.array([math.sqrt(math.fsum(part * part)) for part in parts])
    found = norms(values, fragment)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-7)


def test_norms_accumulate_in_float64() -> None:
    # 2^24 + 1 and small: in float32 the ones would vanish beside the large square.
    values = np.ones(2**20 + 1, np.float32)
    values[0] = 4096.0
    assert norms(values, fragment_of(values.size))[0] == np.float32(math.sqrt(4096.0**2 + 2**20))


def test_an_outer_gradient_has_memory_of_its_own() -> None:
    anchor, values = vector(1, 2, 3), vector(1, 4, 1)
    found = outer_gradient(anchor, values, fragment_of(3))
    assert found.tolist() == [0, -2, 2]
    assert found.dtype == np.float32
    assert not np.shares_memory(found, anchor)
    assert not np.shares_memory(found, values)
    assert anchor.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_leaf_of_lower_precision_does_not_hold_is_not_trained(dtype: str) -> None:
    # The second unit is larger than a part, and the others are float32: their anchors count as they are.
    sizes, held = (3, 70_001, 5), np.dtype(getattr(ml_dtypes, dtype, dtype))
    fragment = Fragment(
        0, tuple(Unit(f"t{u}", 0, n, (n,), dtype=dtype if u == 1 else "float32") for u, n in enumerate(sizes))
    )
    anchor, values = random_gradients(2, fragment, 0)
    expected = anchor - values
    expected[3:-5] = anchor[3:-5].astype(held).astype(np.float32) - values[3:-5]
    assert outer_gradient(anchor, values, fragment).tobytes() == expected.tobytes()


def test_a_unit_of_nothing_but_zeros_has_no_length() -> None:
    assert norms(np.zeros(7, np.float32), fragment_of(3, 4)).tolist() == [0.0, 0.0]


@pytest.mark.process
def test_a_learner_that_answers_loads_no_numba() -> None:
    code = "import sys; import isthmus.ops.learner.fragment_send; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_capture_is_let_go_with_its_answer() -> None:
    """At the end of a run all fragments are captured at once: a learner then holds no gradient beside each of them."""
    fragments = [fragment_of(5), fragment_of(5), fragment_of(5)]
    captures = {p: capture(p, np.full(5, 1.0 + p, np.float32)) for p in (2, 0, 1)}
    held = [weakref.ref(captures[p]["values"]) for p in range(3)]
    answers = FragmentSend(fragments)(captures)
    del captures
    for p in range(3):
        ((port, answer),) = next(answers)
        assert (port, answer["fragment"], answer["gradient"].tolist()) == ("answer", p, [1.0 - p] * 5)
        assert [each() is None for each in held] == [each <= p for each in range(3)]
    assert list(answers) == []


def capture(p: int, values: np.ndarray) -> Any:
    numbers = {"kind": "merge", "slot": 0, "incarnation": 1, "base": [1, 0], "begin": 0, "end": 8, "steps": 1}
    told = {"clock": [], "positions": [], "state": None, "anchor": np.full(5, 2.0, np.float32)}
    return {"fragment": p, "round": 4 + p, "values": values, **numbers, **told}


@pytest.mark.parametrize("numbers", [{"end": 8, "steps": 0}, {"begin": 9}, {"steps": -1}])
def test_an_answer_is_not_made_that_the_merge_would_call_inconsistent(numbers: dict[str, int]) -> None:
    sending = FragmentSend([fragment_of(5)])
    with pytest.raises(AssertionError):
        list(sending({0: {**capture(0, np.ones(5, np.float32)), **numbers}}))
    assert len(list(sending({0: {**capture(0, np.ones(5, np.float32)), "begin": 8, "steps": 0}}))) == 1
