"""Codes that a device makes, against those of the host's kernels: the same bits, and norms to seven digits."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.wanted_settings import coarser
from isthmus.ops.gang.mesh_devices import DeviceCodes, coded, levels_of
from isthmus.ops.island.functions import Functions
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.kernels import coding
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.fragment_send import FragmentSend, norms, outer_gradient
from isthmus.ops.learner.inner_step import InnerStep
from tests.effort import examples
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update
from tests.ops.learner.test_inner_step import drive

SIZES = ((1,), (256,), (255, 3), (257,), (512, 1000, 2), (64 * 256,), (2, 300, 256, 129))
"""Of units; few, because each is compiled."""


def fragment_of(sizes: tuple[int, ...], dtype: str = "float32") -> Fragment:
    return Fragment(0, tuple(Unit(f"u{i}", 0, size, (size,), dtype=dtype) for i, size in enumerate(sizes)))


def normal(values: np.ndarray) -> np.ndarray:
    """Values of which those that are no normal float32 are zeros, for which a device may take them."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0.0), values)


@lru_cache
def compiled(fragment: Fragment, push: str) -> Any:
    return jax.jit(partial(coded, fragment, push))


def cut(vector: np.ndarray, fragment: Fragment) -> list[np.ndarray]:
    return [vector[begin:end] for begin, end in pairwise(fragment.offsets)]


def made(values: np.ndarray, anchor: np.ndarray, fragment: Fragment, push: str) -> Any:
    """(codes, scales, norms) as they leave a device."""
    arrays = compiled(fragment, push)(cut(values, fragment), cut(anchor, fragment), levels_of(fragment, push))
    return DeviceCodes(fragment, push, arrays).fetch()


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(SIZES),
    st.sampled_from(CODED),
    st.integers(0, 2**32 - 1),
    st.floats(0, 5),
    st.sampled_from([-40, -36, -34, -20, 0, 20]),
    st.sampled_from([0.02, 1.0]),
)
def test_codes_and_scales_have_the_bits_of_the_kernels(
    sizes: tuple[int, ...], push: Any, seed: int, spread: float, exponent: int, share: float
) -> None:
    fragment, rng = fragment_of(sizes), np.random.default_rng(seed)

    def vector() -> np.ndarray:
        values = rng.standard_normal(fragment.size) * np.exp(spread * rng.standard_normal(fragment.size))
        return normal((values * 10.0**exponent * (rng.random(fragment.size) < share)).astype(np.float32))

    values, anchor = vector(), vector()
    gradient = normal(anchor - values)
    found, expected = made(values, anchor, fragment, push), coding.encode(gradient, fragment, push)
    np.testing.assert_array_equal(found.codes, expected.codes)
    assert found.scales.tobytes() == expected.scales.tobytes()
    if exponent > -34:
        np.testing.assert_allclose(found.norms, norms(gradient, fragment), rtol=1e-6)
    assert coding.is_whole(coding.Coded(found.codes, found.scales, found.form), fragment)


@pytest.mark.parametrize("push", CODED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_says_so(push: Any, bad: float) -> None:
    fragment = fragment_of((512, 1000, 2))
    anchor = np.random.default_rng(0).standard_normal(fragment.size).astype(np.float32)
    anchor[700] = bad
    found = made(np.zeros(fragment.size, np.float32), anchor, fragment, push)
    sent, expected = coding.Coded(found.codes, found.scales, found.form), coding.encode(anchor, fragment, push)
    assert not coding.is_finite(sent)
    assert not np.isfinite(found.norms[1])
    assert np.isfinite(found.norms[[0, 2]]).all()
    if push != "bf16":
        np.testing.assert_array_equal(found.codes, expected.codes)
        np.testing.assert_array_equal(found.scales, expected.scales)


def test_what_adoption_rounds_away_of_a_leaf_of_lower_precision_is_not_coded() -> None:
    fragment = fragment_of((300,), "bfloat16")
    anchor = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    held = anchor.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert not outer_gradient(anchor, held, fragment).any()
    assert made(held, anchor, fragment, "int8").norms.tolist() == [0.0]
    found = made(held + np.float32(0.25), anchor, fragment, "int8")
    np.testing.assert_array_equal(found.codes, coding.encode(held - (held + np.float32(0.25)), fragment, "int8").codes)


def answers_of(pushes: tuple[str, ...], push: str, asked: str | None) -> list[Any]:
    """What a learner and its fragment-send answer to a pull of each fragment, after three steps."""
    task = SmallTask()
    parts = fragments_of(task, 2)
    body, context, send = (
        InnerStep(task, fragments=parts, exchange=FragmentExchange(push=push)),
        Context(),
        FragmentSend(parts, push=push),
    )  # type: ignore[arg-type]
    body.open(context)
    send.open(context)
    body._learner.codes = pushes  # type: ignore[attr-defined]
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    for position in range(3):
        drive(body, batch=task.batch(At(0, 0, position)))
    more = {} if asked is None else {"asked": {"push": [[0, asked]], "update": "float32", "interval": 24, "overlap": 2}}
    captures, _ = drive(body, pull={("syncer/0", p): {**pull(p, p + 1), **more} for p in range(2)})
    assert ["coded" in capture for _, capture in captures] == [bool(pushes)] * 2
    return [answer for ((_, answer),) in send({p: capture for p, (_, capture) in enumerate(captures)})]


@pytest.mark.parametrize(("push", "asked"), [*((push, None) for push in CODED), ("auto", "int4")])
def test_answers_are_the_same_whoever_makes_the_codes(push: str, asked: str | None) -> None:
    here, there = answers_of((asked or push,), push, asked), answers_of((), push, asked)
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(one.pop("norms"), other.pop("norms"), rtol=1e-6)
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_what_a_round_asks_for_whole_is_not_coded() -> None:
    assert {answer["gradient"].dtype for answer in answers_of((), "auto", "float32")} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_a_learner_on_cpus_codes_nothing_itself_and_one_elsewhere_what_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SmallTask()
    assert Learner(task, fragments_of(task, 2), life=LearnerLife(0, 0, 1), pushes=coarser("auto")).codes == ()
    monkeypatch.setattr(Functions, "codes_on", lambda self, *, is_apart: True)
    for push, formats in {"auto": ("bf16", "int4", "int2", "int1"), "int8": ("int8",), "float32": ()}.items():
        learner = Learner(task, fragments_of(task, 2), life=LearnerLife(0, 0, 1), pushes=coarser(push))
        assert learner.codes == formats
        learner.compile(task.batch(At(0, 0, 0)))
