"""What every learner does, whatever computes its steps: the suite for learners of jax, of PyTorch and of the simulator.

Derive from `LearnerConformance`, and give it a fixture `specimen`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island.life import LearnerLife

FIRST = LearnerLife(7, 0, 1)
STEPS = 3


@dataclass(frozen=True)
class Specimen:
    """The learners of one task: `make(fragments, life, alpha)`; `shapes` are those of its merged leaves, in float32.

    `batch(at)` is one of its batches, `spoilt` one that makes its parameters not finite.
    """

    make: Callable[[Sequence[Fragment], LearnerLife, float], Any]
    shapes: Mapping[str, tuple[int, ...]]
    batch: Callable[[At], Any]
    spoilt: Any
    evaluator: Callable[[int], Any]

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """Two fragments, each with half of the rows of every tensor that has some, in the order of their names."""
        parts: tuple[list[Unit], list[Unit]] = ([], [])
        for name, shape in sorted(self.shapes.items()):
            if not shape or shape[0] < 2:
                parts[0].append(Unit(name, 0, shape[0] if shape else 1, shape))
                continue
            half = shape[0] // 2
            parts[0].append(Unit(name, 0, half, shape))
            parts[1].append(Unit(name, half, shape[0], shape))
        return tuple(Fragment(index, tuple(units)) for index, units in enumerate(parts))

    def learner(self, life: LearnerLife = FIRST, alpha: float = 0.0, *, steps: int = -1) -> Any:
        """One that has begun and made so many steps; not begun if -1."""
        learner = self.make(self.fragments, life, alpha)
        learner.compile(self.batch(At(0, 0, 0)))
        if steps >= 0:
            learner.begin()
            self.train(learner, steps)
        return learner

    def train(self, learner: Any, steps: int, begin: int = 0) -> list[float]:
        """Make steps; the losses."""
        made = [
            learner.step(self.batch(At(0, 0, position)), position / 100)["loss"]
            for position in range(begin, begin + steps)
        ]
        return [float(np.asarray(loss)) for loss in made]

    def values(self, learner: Any) -> list[Any]:
        """Its fragments, copied."""
        return [np.array(learner.extract(p), np.float32) for p in range(len(self.fragments))]


def assert_equal(ones: Sequence[Any], others: Sequence[Any]) -> None:
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def forms(leaves: Any) -> list[Any]:
    return [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]


class LearnerConformance:
    """Derive from it, and define the fixture `specimen`."""

    def test_merged_leaves_are_zeros_before_it_begins(self, specimen: Specimen) -> None:
        for values in specimen.values(specimen.learner()):
            assert not values.any()

    def test_all_slots_begin_with_the_same_leaves_and_another_seed_with_others(self, specimen: Specimen) -> None:
        first = specimen.values(specimen.learner(steps=0))
        assert_equal(first, specimen.values(specimen.learner(LearnerLife(7, 3, 2), steps=0)))
        others = specimen.values(specimen.learner(LearnerLife(8, 0, 1), steps=0))
        assert any((one != other).any() for one, other in zip(first, others, strict=True))

    def test_what_was_extracted_is_not_changed_by_a_step(self, specimen: Specimen) -> None:
        learner = specimen.learner(steps=0)
        extracted = [learner.extract(p) for p in range(2)]
        before = [np.array(values) for values in map(np.asarray, extracted)]
        specimen.train(learner, 1)
        assert {values.dtype.name for values in before} == {"float32"}
        assert [values.shape for values in before] == [(fragment.size,) for fragment in specimen.fragments]
        assert_equal(extracted, before)
        assert any((one != other).any() for one, other in zip(before, specimen.values(learner), strict=True))

    @pytest.mark.parametrize("alpha", [0.0, 0.25])
    def test_an_adoption_keeps_its_share_and_replaces_one_fragment_alone(
        self, specimen: Specimen, alpha: float
    ) -> None:
        learner = specimen.learner(alpha=alpha, steps=1)
        before = specimen.values(learner)
        given = np.arange(specimen.fragments[0].size, dtype=np.float32)
        given.setflags(write=False)
        learner.adopt(0, given)
        mixed, untouched = specimen.values(learner)
        np.testing.assert_allclose(mixed, alpha * before[0] + (1 - alpha) * given, rtol=1e-6)
        np.testing.assert_array_equal(untouched, before[1])
        learner.replace(0, given)
        np.testing.assert_array_equal(specimen.values(learner)[0], given)

    def test_what_was_adopted_is_not_changed_by_a_step(self, specimen: Specimen) -> None:
        learner = specimen.learner(steps=0)
        given = [np.full(fragment.size, 0.5, np.float32) for fragment in specimen.fragments]
        for p, values in enumerate(given):
            learner.adopt(p, values)
        specimen.train(learner, 2)
        for values in given:
            np.testing.assert_array_equal(values, np.full_like(values, 0.5))

    def test_rows_of_a_tensor_are_adopted_where_they_belong(self, specimen: Specimen) -> None:
        learner = specimen.learner(steps=0)
        for p, fragment in enumerate(specimen.fragments):
            learner.replace(p, np.full(fragment.size, p + 1, np.float32))
        tree = learner.tree(learner.copy())
        split = {unit.tensor for unit in specimen.fragments[1].units}
        assert split
        for name in split:
            leaf = np.asarray(dict(named(tree))[name])
            half = leaf.shape[0] // 2
            assert (leaf[:half] == 1).all()
            assert (leaf[half:] == 2).all()

    def test_a_tree_is_a_copy_and_can_be_adopted(self, specimen: Specimen) -> None:
        learner, other = specimen.learner(steps=1), specimen.learner()
        copied = learner.copy()
        before = specimen.values(learner)
        specimen.train(learner, 1)
        tree = learner.tree(copied)
        assert sorted(name for name, _ in named(tree)) == sorted(specimen.shapes)
        other.adopt_tree(tree)
        assert_equal(specimen.values(other), before)

    def test_a_restart_is_a_new_life_at_the_present_leaves(self, specimen: Specimen) -> None:
        learner, fresh = specimen.learner(steps=STEPS), specimen.learner()
        for p, values in enumerate(specimen.values(learner)):
            fresh.replace(p, values)
        fresh.restart()
        learner.restart()
        assert_equal(specimen.train(learner, STEPS), specimen.train(fresh, STEPS))
        assert_equal(specimen.values(learner), specimen.values(fresh))

    def test_local_leaves_of_a_life_without_a_step_have_the_form_of_any_and_are_fresh(self, specimen: Specimen) -> None:
        idle, worked, fresh = specimen.learner(steps=0), specimen.learner(steps=STEPS), specimen.learner(steps=0)
        kept = list(idle.local())
        assert forms(kept) == forms(worked.local())
        assert worked.take_local(kept)
        for p, values in enumerate(specimen.values(fresh)):
            worked.replace(p, values)
        assert_equal(specimen.train(worked, STEPS), specimen.train(fresh, STEPS))

    @pytest.mark.parametrize("way", ["local", "lend"])
    def test_another_life_goes_on_with_local_leaves_that_it_takes(self, specimen: Specimen, way: str) -> None:
        give, take = (way, "take_local") if way == "local" else (way, "borrow")
        learner, other = specimen.learner(steps=STEPS), specimen.learner(LearnerLife(7, 1, 1), steps=1)
        leaves = list(getattr(learner, give)())
        if way == "lend" and not leaves:
            assert not other.borrow([])
            return
        assert getattr(other, take)(leaves)
        for p, values in enumerate(specimen.values(learner)):
            other.replace(p, values)
        assert_equal(specimen.train(other, STEPS, STEPS), specimen.train(learner, STEPS, STEPS))
        assert_equal(specimen.values(other), specimen.values(learner))

    def test_leaves_of_another_form_are_refused_and_change_nothing(self, specimen: Specimen) -> None:
        learner, same = specimen.learner(steps=1), specimen.learner(steps=1)
        wrong = [np.zeros((3, 1, 4), np.float32)] * 2
        assert not learner.take_local(wrong)
        assert not learner.borrow(wrong)
        assert not learner.borrow([])
        assert_equal(specimen.train(learner, 2, 1), specimen.train(same, 2, 1))

    @pytest.mark.parametrize("whole", [False, True])
    def test_what_a_life_owns_goes_on_in_the_next_bit_for_bit(self, specimen: Specimen, whole: bool) -> None:
        learner, later = specimen.learner(steps=STEPS), specimen.learner(LearnerLife(7, 0, 2))
        own = learner.own(whole=whole)
        assert later.take_own(own)
        if not whole:
            for p, values in enumerate(specimen.values(learner)):
                later.replace(p, values)
        assert_equal(specimen.train(later, STEPS, STEPS), specimen.train(learner, STEPS, STEPS))
        assert_equal(specimen.values(later), specimen.values(learner))

    def test_after_a_loss_that_is_not_finite_it_begins_again_from_sound_leaves(self, specimen: Specimen) -> None:
        learner, fresh = specimen.learner(steps=1), specimen.learner()
        sound = specimen.values(learner)
        spoilt = float(np.asarray(learner.step(specimen.spoilt, 0.0)["loss"]))
        assert not all(map(math.isfinite, [spoilt, *specimen.train(learner, 1)]))
        for each in (learner, fresh):
            for p, values in enumerate(sound):
                each.replace(p, values)
            each.restart()
        losses = specimen.train(learner, STEPS)
        assert all(map(math.isfinite, losses))
        assert_equal(losses, specimen.train(fresh, STEPS))

    def test_counters_are_set_for_a_life_that_goes_on(self, specimen: Specimen) -> None:
        learner = specimen.learner(steps=0)
        learner.count_from(5)
        assert all(map(math.isfinite, specimen.train(learner, 1)))

    def test_the_evaluation_is_of_the_leaves_that_fragments_make_up(self, specimen: Specimen) -> None:
        learner, evaluation = specimen.learner(steps=0), specimen.evaluator(7)
        values = dict(enumerate(specimen.values(learner)))
        tensors = evaluation.assemble(specimen.fragments, values)
        assert {name: np.shape(tensor) for name, tensor in tensors.items()} == dict(specimen.shapes)
        first = evaluation.metrics(tensors)["loss"]
        assert math.isfinite(first)
        others = {p: each + np.float32(1.0) for p, each in values.items()}
        assert evaluation.metrics(evaluation.assemble(specimen.fragments, others))["loss"] != first
        assert evaluation.metrics(tensors)["loss"] == first


def named(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested dicts, by path."""
    if not isinstance(tree, Mapping):
        return [(path, tree)]
    return [each for key, branch in tree.items() for each in named(branch, f"{path}/{key}" if path else key)]
