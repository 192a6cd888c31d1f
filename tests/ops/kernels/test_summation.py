"""The order of sums: a tree over slots, whatever is summed before, and whoever else is there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels.averaging import CANCELLED_SHARE, Contribution, EarlySum, Merged, merge, unit_norms
from isthmus.ops.kernels.coding import encode
from isthmus.ops.kernels.summation import (
    ADD,
    COPY,
    FOUR,
    GROUP_SIZE,
    PAIR,
    ROOMS_COUNT,
    SlotRange,
    largest_complete,
    sweeps_of,
)
from isthmus.ops.learner.fragment_send import norms
from tests.effort import examples
from tests.ops.kernels.test_averaging import fragment_of, random_gradients

TOTAL = 0


def tree_of(slots: list[int]) -> str | None:
    """The sum of a group of 8 as it is defined, with brackets; or of groups, one after the other."""

    def node(begin: int, end: int) -> str | None:
        if end - begin == 1:
            return str(begin) if begin in slots else None
        middle = (begin + end) // 2
        return both(node(begin, middle), node(middle, end))

    total: str | None = None
    for group in range(max(slots, default=0) // GROUP_SIZE + 1):
        total = both(total, node(group * GROUP_SIZE, (group + 1) * GROUP_SIZE))
    return total


def both(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return other if one is None else one
    return "(" + "+".join(sorted([one, other])) + ")"  # A sum of two is the same in either order.


def made_by(slots: list[int], held: SlotRange | None) -> str:
    """The sum that the sweeps make of symbols."""
    result = None if held is None else tree_of([slot for slot in slots if held[0] <= slot < held[1]])
    rest = [slot for slot in slots if held is None or not held[0] <= slot < held[1]]
    for sweep in sweeps_of(rest, held):
        inputs = [str(slot) for slot in rest[sweep.first : sweep.last]]
        rooms: dict[int, str | None] = {TOTAL: result}
        for step, number, room in sweep.steps.tolist():
            assert 0 <= room < ROOMS_COUNT
            if step == ADD:
                rooms[room] = both(rooms[room], rooms[number])
            elif step == COPY:
                rooms[room] = rooms[number]
            elif step == FOUR:
                halves = both(inputs[number], inputs[number + 1]), both(inputs[number + 2], inputs[number + 3])
                rooms[room] = both(*halves)
            else:
                rooms[room] = both(inputs[number], inputs[number + 1]) if step == PAIR else inputs[number]
        result = rooms[TOTAL]
    assert result is not None
    return result


some_slots = st.sets(st.integers(0, 26), min_size=1).map(sorted)


@given(some_slots)
def test_sweeps_make_the_tree(slots: list[int]) -> None:
    assert made_by(slots, None) == tree_of(slots)


@given(some_slots, st.data())
def test_sweeps_go_on_from_the_sum_of_any_range(slots: list[int], data: st.DataObject) -> None:
    lowest = slots[0] // GROUP_SIZE * GROUP_SIZE
    size = data.draw(st.sampled_from([2, 4, 8, 16]))
    begin = lowest if size > GROUP_SIZE else lowest + size * data.draw(st.integers(0, GROUP_SIZE // size - 1))
    slots = sorted({*slots, *range(begin, begin + size)})
    assert made_by(slots, (begin, begin + size)) == tree_of(slots)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ([], None),
        ([3], None),
        ([0, 2, 5], None),
        ([1, 2], None),
        ([2, 3, 4], (2, 4)),
        ([0, 1, 2, 3], (0, 4)),
        ([0, 1, 4, 5, 6, 7], (4, 8)),
        (list(range(8)), (0, 8)),
        ([0, *range(8, 16)], None),
        (list(range(8, 16)), (8, 16)),
        (list(range(20)), (0, 16)),
    ],
)
def test_the_largest_complete_range(slots: list[int], expected: SlotRange | None) -> None:
    assert largest_complete(slots) == expected


def test_four_learners_in_any_order_leave_three_reads_to_the_last() -> None:
    for last in range(4):
        complete = largest_complete([slot for slot in range(4) if slot != last])
        assert complete is not None
        rest = [slot for slot in range(4) if not complete[0] <= slot < complete[1]]
        [sweep] = sweeps_of(rest, complete)
        assert sweep.steps.tolist() == [[PAIR, 0, 1], [ADD, 1, TOTAL]]


# The values


def contributions_of(slots: list[int], fragment: Fragment, seed: int, formats: list[str]) -> dict[int, Contribution]:
    whole = random_gradients(len(slots), fragment, seed)
    if seed % 3 == 0:  # The first unit cancels.
        for m, gradient in enumerate(whole):
            gradient[: fragment.offsets[1]] = (-1) ** m * whole[0][: fragment.offsets[1]]
    if seed % 4 == 0 and len(whole) > 1:  # Beyond float32, relative to others.
        whole[1][: fragment.offsets[1]] *= np.float32(1e-42)
    return {
        slot: Contribution(encode(each, fragment, form), float(1 + slot % 3), norms(each, fragment))
        for slot, each, form in zip(slots, whole, formats, strict=False)
    }


def merged(there: dict[int, Contribution], fragment: Fragment, early: EarlySum | None = None) -> Merged:
    slots = sorted(there)
    gradients, weights, lengths = zip(*[there[slot] for slot in slots], strict=True)
    return merge(gradients, weights, lengths, fragment, slots=slots, early=early)


def bits(result: Merged) -> tuple[bytes, bytes]:
    return result.direction.tobytes(), result.scale.tobytes()


@settings(max_examples=examples(150))
@given(
    some_slots,
    st.integers(0, 10**6),
    st.lists(st.sampled_from(["float32", "float32", "int4", "bf16"]), min_size=27, max_size=27),
    st.data(),
)
def test_what_was_summed_before_changes_no_bit(
    slots: list[int], seed: int, formats: list[str], data: st.DataObject
) -> None:
    """Any order of arrival; some are late, come again with other values, are left out, or count less in the end."""
    fragment = fragment_of(2050, 3, 300, averaged=[2])
    there = contributions_of(slots, fragment, seed, formats)
    former = contributions_of(slots, fragment, seed + 1, formats)
    early = EarlySum(fragment)
    arrivals = data.draw(st.permutations(slots))
    for slot in arrivals[: data.draw(st.integers(0, len(arrivals)))]:
        if data.draw(st.integers(0, 9)) == 0:
            early.add(slot, former[slot])
            if data.draw(st.booleans()):
                continue
        early.add(slot, there[slot])
    gone = data.draw(st.sets(st.sampled_from(slots), max_size=2)) if data.draw(st.booleans()) else set()
    counted = {slot: each for slot, each in there.items() if slot not in gone} or there
    if data.draw(st.integers(0, 4)) == 0:
        slot = data.draw(st.sampled_from(sorted(counted)))
        counted[slot] = counted[slot]._replace(weight=0.25)
    if data.draw(st.booleans()):
        closing = data.draw(st.sampled_from([counted, there, {slots[-1]: there[slots[-1]]}]))
        last = [slot for slot in closing if data.draw(st.booleans())]
        lengths = early.close(closing, last)
        assert list(lengths) == last
        for slot, found in lengths.items():
            assert found.tobytes() == unit_norms(closing[slot].gradient, fragment).tobytes()
    assert bits(merged(counted, fragment, early)) == bits(merged(dict(counted), fragment))


def test_the_sum_is_used_where_it_fits_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fragment = fragment_of(500)
    there = contributions_of([0, 1, 2, 3], fragment, 1, ["float32"] * 4)
    early = EarlySum(fragment)
    for slot in (3, 0, 2):
        early.add(slot, there[slot])
    direction, summed, squares = early.take(there, fragment, "rda")
    assert (summed, squares) == ((2, 4), None)
    assert direction.shape == (500,)
    for change in ({"weight": 9.0}, {"gradient": there[2].gradient.copy()}, {"norms": there[2].norms * 2}):
        early = EarlySum(fragment)
        for slot in (2, 3):
            early.add(slot, there[slot])
        assert early.take({**there, 2: there[2]._replace(**change)}, fragment, "rda")[1] is None
    early = EarlySum(fragment)
    for slot in (2, 3):
        early.add(slot, there[slot])
    assert early.take({slot: there[slot] for slot in (0, 1, 2)}, fragment, "rda")[1] is None


def test_the_buffer_of_the_early_sum_is_that_of_the_merge() -> None:
    fragment = fragment_of(500)
    there = contributions_of([0, 1, 2, 3], fragment, 1, ["float32"] * 4)
    early = EarlySum(fragment)
    for slot in range(3):
        early.add(slot, there[slot])
    own = early._direction
    assert own is not None
    assert merged(there, fragment, early).direction is own


def test_units_beyond_float32_have_the_bits_of_their_kind() -> None:
    """Lengths that differ by more than float32 holds; the other unit is summed as ever."""
    fragment = Fragment(0, (Unit("a", 0, 2, (2,)), Unit("b", 0, 2, (2,))))
    one, other = np.array([1e-42, 0, 1, 2], np.float32), np.array([0, 1e3, 2, 1], np.float32)
    result = merge([one, other], [1e15, 1e15], [norms(one, fragment), norms(other, fragment)], fragment)
    gradient = result.gradient(fragment)
    np.testing.assert_allclose(gradient[:2], [0, 500], atol=1e-30)
    np.testing.assert_allclose(gradient[2:], np.sqrt(5 / 2) * np.ones(2), rtol=1e-6)
    assert 0 < CANCELLED_SHARE < 1


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1e30, 1e30], [1e17, 1.0]])
@pytest.mark.parametrize("size", [1e-35, 1e-10, 1.0, 1e10, 1e37])
@pytest.mark.parametrize("method", ["rda", "average"])
def test_neither_weights_nor_sizes_leave_float32(weights: list[float], size: float, method: str) -> None:
    fragment = fragment_of(2)
    gradients = [np.array([size, 0], np.float32), np.array([0, size], np.float32)]
    found = merge(gradients, weights, [norms(each, fragment) for each in gradients], fragment, method)
    w = np.array(weights) / sum(weights)
    expected = size * w / (np.linalg.norm(w) if method == "rda" else 1.0)
    np.testing.assert_allclose(found.gradient(fragment), expected, rtol=1e-5, atol=1e-44)


def test_what_closes_is_summed_and_measured_in_one_sweep() -> None:
    fragment = fragment_of(500, 3)
    there = contributions_of([0, 1, 2, 9], fragment, 1, ["float32"] * 4)
    early = EarlySum(fragment)
    for slot in (0, 1, 5):
        early.add(slot, there.get(slot, there[0]))
    assert list(early.close(there, [2, 9])) == [2, 9]
    _, summed, squares = early.take(there, fragment, "rda")
    assert summed == (0, 16)
    assert squares is not None


def test_a_gradient_that_is_not_finite_is_found_and_leaves_no_trace() -> None:
    fragment = fragment_of(500, 3)
    there = contributions_of([0, 1, 2], fragment, 1, ["float32"] * 3)
    wrong = there[2].gradient.copy()  # type: ignore[union-attr]
    wrong[501] = np.inf
    early = EarlySum(fragment)
    for slot in (0, 1):
        early.add(slot, there[slot])
    assert np.isfinite(early.close({**there, 2: there[2]._replace(gradient=wrong)}, [2])[2]).tolist() == [True, False]
    del there[2]
    assert bits(merged(there, fragment, early)) == bits(merged(there, fragment))


def test_slots_ascend() -> None:
    g = np.ones(2, np.float32)
    for slots in ([1, 0], [0, 0], [0]):
        with pytest.raises(ValueError, match="expected a slot for each, ascending"):
            merge([g, g], [1, 1], [np.ones(1, np.float32)] * 2, fragment_of(2), slots=slots)
