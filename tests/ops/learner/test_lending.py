"""What a learner borrows and lends: when, of whom, and that another's leaves make the steps of that one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.merge_rules import LOCAL
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.recipe import Recipe, of_loss
from isthmus.ops.learner.recovery import BORROW_STEPS
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.recovery.hold import packed, unpacked
from tests.ops.bodies import Context, SmallTask, Spec, fragments_of, update
from tests.ops.island.test_jax_learner import StepTask, begun, drawn
from tests.ops.island.test_jax_learner import local as leaves_of
from tests.ops.learner.test_inner_step import InnerStep, batch, drive

LENDER = [2, 1]


def stepping(task: SmallTask, *, incarnation: int = 1) -> tuple[InnerStep, Context]:
    parts = fragments_of(task, 2)
    body = InnerStep(task, fragments=parts, report_every=2, run=RunTerms(tokens=100_000))
    context = Context(incarnation=incarnation)
    context.connected |= {"moments"}
    body.open(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    return body, context


def said(emitted: list[tuple[str, Any]]) -> list[tuple[str, Any, int]]:
    """(lacks or lends, to, number of leaves) of what is said of moments."""
    told = [item for port, item in emitted if port == "moments"]
    return [("lacks" * item["lacks"] + "lends" * item["lends"], item["to"], len(item["leaves"])) for item in told]


def loan(*, to: Any = None, by: Any = None, leaves: Any = (), life: int = 1) -> dict[Any, Any]:
    item = {"slot": 0, "incarnation": life, "to": to, "by": by, "step": 90, "leaves": list(leaves)}
    return {("recorder/0", 0): item}


def lent(task: SmallTask, steps: int = 5) -> list[Any]:
    learner = Learner(task, fragments_of(task, 2), life=LearnerLife(0, 2, 1))
    learner.compile(batch(task, 0))
    learner.begin()
    learner.restart()
    for position in range(steps):
        learner.step(batch(task, position), 0.0)
    return [packed(leaf) for leaf in learner.lend()]


def test_it_lacks_moments_from_its_first_step_until_its_own_are_as_good_and_can_lend_then() -> None:
    task = SmallTask()
    body, _ = stepping(task)
    heard = [said(drive(body, batch=batch(task, position))[1]) for position in range(2 * BORROW_STEPS + 2)]
    assert [(position, told) for position, told in enumerate(heard) if told] == [
        (0, [("lacks", None, 0)]),
        (BORROW_STEPS - 1, [("", None, 0)]),
        (2 * BORROW_STEPS - 1, [("lends", None, 0)]),
    ]
    _, emitted = drive(body, loan=loan(to=LENDER), batch=batch(task, 99))
    assert said(emitted) == [("lends", LENDER, 7)]  # Adam's count, and two means for each of three leaves.
    _, emitted = drive(body, loan=loan(), batch=batch(task, 100))
    assert said(emitted) == [("lends", None, 0)]


def test_it_steps_with_what_it_is_lent_and_says_whose_that_is() -> None:
    task = SmallTask()
    body, context = stepping(task)
    context.connected |= {"report"}
    drive(body, batch=batch(task, 0))
    leaves = lent(task)
    _, emitted = drive(body, loan=loan(by=LENDER, leaves=leaves))
    assert said(emitted) == [("lends", None, 0)]
    for own, given in zip(body._learner.lend(), leaves, strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(own, unpacked(given))
    context.at += 1_000_000_000
    _, emitted = drive(body, batch=batch(task, 1))
    assert [item["began"] for port, item in emitted if port == "report"] == [["peer", 2, 90]]


@pytest.mark.parametrize("why", ["of another life", "of another form", "no leaves", "not an array", "too late"])
def test_nothing_is_taken_that_is(why: str) -> None:
    task = SmallTask()
    body, context = stepping(task)
    context.connected |= {"report"}
    for position in range(BORROW_STEPS if why == "too late" else 1):
        drive(body, batch=batch(task, position))
    leaves = lent(task)
    before = [leaf.tobytes() for leaf in body._learner.lend()]  # type: ignore[attr-defined]
    given = {
        "of another life": loan(by=LENDER, leaves=leaves, life=2),
        "of another form": loan(by=LENDER, leaves=leaves[1:]),
        "no leaves": loan(by=LENDER),
        "not an array": loan(by=LENDER, leaves=[["float32", [7], leaves[1][2]], *leaves[1:]]),
        "too late": loan(by=LENDER, leaves=leaves),
    }[why]
    drive(body, loan=given)
    assert [leaf.tobytes() for leaf in body._learner.lend()] == before  # type: ignore[attr-defined]
    context.at += 1_000_000_000
    _, emitted = drive(body, batch=batch(task, 70))
    assert [item["began"] for port, item in emitted if port == "report"] == [None]


def test_a_learner_whose_loss_is_not_finite_lends_nothing() -> None:
    task = SmallTask()
    body, _ = stepping(task)
    for position in range(2 * BORROW_STEPS):
        drive(body, batch=batch(task, position))
    wrong = {**batch(task, 64), "y": np.full((8, 3), np.nan, np.float32)}
    for _ in range(3):
        drive(body, batch=wrong)
    body._read_metrics(left=0)
    _, emitted = drive(body, loan=loan(to=LENDER), batch=wrong)
    assert said(emitted) == [("lends", LENDER, 0)]


@pytest.mark.slow
def test_a_borrower_steps_as_the_lender_does_and_draws_its_own_random_numbers() -> None:
    one, other = begun(StepTask(), LearnerLife(7, 0, 1)), begun(StepTask(), LearnerLife(7, 3, 2))
    drawn(one, "own")
    before = leaves_of(other)
    leaves = one.lend()
    assert other.borrow(leaves)
    after = leaves_of(other)
    assert after["count"] == leaves_of(one)["count"] != before["count"]
    np.testing.assert_array_equal(after["twin"], leaves_of(one)["twin"])
    np.testing.assert_array_equal(after["key"], before["key"])
    assert not other.borrow([])
    assert not other.borrow(leaves[:1])


class OwnHead(SmallTask):
    """`inner/b` stays with each learner."""

    def recipe(self) -> Recipe:
        return of_loss(self.init, self.loss, optax.adam(1e-2), rules=(("inner/b", LOCAL), ("**", "rda")))


@pytest.mark.slow
def test_of_parameters_that_are_local_nothing_is_lent() -> None:
    task = OwnHead()
    names = [leaf for leaf in task.recipe().leaves() if leaf.kind != LOCAL]
    parts = partition([Spec(leaf.name, leaf.shape.shape) for leaf in names], 2)
    one, other = (Learner(task, parts, life=LearnerLife(7, slot, 1)) for slot in (0, 1))
    for learner in (one, other):
        learner.compile(batch(task, 0))
        learner.begin()
        learner.restart()
    for position in range(3):
        one.step(batch(task, position), 0.0)
    state = [jnp.asarray(leaf) for leaf in other.local()]
    assert other.borrow(one.lend())
    shapes = sorted(leaf.shape for leaf in one.lend())
    assert shapes == [(), (), (), (4, 3), (4, 3)]  # No (3,): neither b nor its means.
    kept = [leaf for leaf in other.local() if leaf.shape == (3,)]
    assert len(kept) == 3
    for leaf, was in zip(kept, [leaf for leaf in state if leaf.shape == (3,)], strict=True):
        np.testing.assert_array_equal(leaf, np.asarray(was))
    assert jax.tree.structure(one.lend()) == jax.tree.structure(other.lend())
