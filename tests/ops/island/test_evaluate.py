"""Evaluation of programs without a global model: what is evaluated first, what meanwhile, and what at the end."""

from __future__ import annotations

from types import GeneratorType
from typing import Any
from unittest.mock import ANY

import jax
import numpy as np
import pytest

from isthmus.ops.exchange.messages import EvaluatedCut, EvaluationKind
from isthmus.ops.island.evaluate import Evaluate, EvaluateMean, EvaluationSchedule
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.programs.wings.simulation import toy_task
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, update

SEED = 7
TOOK = ANY
"""What an evaluation took is a test of its own."""


def opened(task: Any, live: tuple[int, ...] = (0, 1)) -> EvaluateMean:
    body = EvaluateMean(task, roles=("learner",), tokens=100)
    context = Context("evaluator", seed=SEED)
    context.live = {Member(Replica("recorder", 7), 1)} | {Member(Replica("learner", slot), 1) for slot in live}
    body.open(context)
    return body


def items(result: Any) -> Any:
    """What a call emits by port, also before its end."""
    if not isinstance(result, GeneratorType):
        return result
    emitted: dict[str, Any] = {}
    while True:
        try:
            emitted |= next(result)
        except StopIteration as end:
            return emitted | (end.value or {})


def loss_of(task: SmallTask, tree: Any) -> float:
    return float(np.mean([float(task.loss(tree, batch)) for batch in task.evaluation_batches(SEED)]))


def heard(tokens: dict[int, int], phase: str = "stepping") -> dict[Any, Any]:
    reports = {slot: {"slot": slot, "tokens": count, "phase": phase} for slot, count in tokens.items()}
    return {(Replica("learner", slot), None): report for slot, report in reports.items()}


def sent(trees: dict[int, Any]) -> dict[Any, Any]:
    return {(Replica("learner", slot), None): tree for slot, tree in trees.items()}


def filled(task: SmallTask, value: float) -> Any:
    return jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), task.init(jax.random.key(0)))


@pytest.mark.parametrize("late", [False, True])
def test_the_first_evaluation_is_of_the_untrained_model_however_late_it_is(late: bool) -> None:
    task = SmallTask()
    body = opened(task)
    news = (sent({0: filled(task, 1.0)}), heard({0: 90})) if late else ()
    first = body(*news)
    assert first is not None
    untrained = pytest.approx(loss_of(task, task.init(jax.random.key(SEED))), rel=1e-5)
    losses = [float(task.loss(task.init(jax.random.key(SEED)), batch)) for batch in task.evaluation_batches(SEED)]
    error = pytest.approx(float(np.std(losses, ddof=1)) / len(losses) ** 0.5, rel=1e-4)
    expected = {"kind": "initial", "loss": untrained, "tokens": 0, "metrics": [], "error": error, "took": TOOK}
    expected |= {"queued": 0}
    assert first["evaluation"] == expected
    then = body(sent({1: filled(task, 3.0)}), heard({0: 90, 1: 30}))
    assert (then is None) == (not late)  # Nobody knows slot 0 otherwise.
    if then is not None:
        mean = pytest.approx(loss_of(task, filled(task, 1.5)), rel=1e-5)
        assert (then["evaluation"]["kind"], then["evaluation"]["tokens"]) == ("during", 120)
        assert then["evaluation"]["loss"] == mean


def test_the_untrained_model_is_the_one_that_learners_begin_with() -> None:
    task = SmallTask()
    learner = InnerStep(task, emit_every=1)
    learner.open(Context(seed=SEED))
    begun = learner._learner.tree(learner._learner.copy())
    first = opened(task)()
    assert first is not None
    assert first["evaluation"]["loss"] == pytest.approx(loss_of(task, begun), rel=1e-6)


def test_a_task_that_brings_its_own_learner_begins_with_what_that_has() -> None:
    learner = toy_task.TOY.learner((), life=LearnerLife(SEED, 0, 1), alpha=0.0)
    learner.begin()
    first = opened(toy_task.TOY)()
    assert first is not None
    assert first["evaluation"]["loss"] == toy_task.loss_of(learner.copy())


def test_nothing_is_evaluated_before_everybody_who_is_live_has_sent_parameters() -> None:
    task = SmallTask()
    body = opened(task)
    assert body() is not None
    assert body(sent({0: filled(task, 1.0)}), heard({0: 50, 1: 1})) is None
    assert body(sent({1: filled(task, 2.0)})) is not None


def test_a_learner_that_is_gone_is_in_the_last_mean_and_not_waited_for() -> None:
    task = SmallTask()
    body = opened(task, live=(0,))
    assert body() is not None
    assert body(sent({0: filled(task, 1.0), 1: filled(task, 4.0)}), heard({0: 60, 1: 30})) is not None
    assert body(progress=heard({0: 60}, "final")) is None
    last = items(body())
    assert last is not None
    assert last["evaluation"]["kind"] == "final"
    np.testing.assert_allclose(last["final"]["tensors"]["w"], 2.0)


def test_a_live_learner_is_waited_for_also_where_it_was_never_heard_of() -> None:
    task = SmallTask()
    body = opened(task)
    assert body() is not None
    assert body(sent({0: filled(task, 1.0)}), heard({0: 90}, "final")) is None
    assert body() is None
    assert body(sent({1: filled(task, 4.0)}), heard({1: 45}, "final")) is not None
    last = items(body())
    assert last is not None
    np.testing.assert_allclose(last["final"]["tensors"]["w"], 2.0)


def test_nothing_ends_while_nobody_is_live_and_nobody_was_final() -> None:
    task = SmallTask()
    body = opened(task, live=())
    assert body() is not None
    assert body(sent({0: filled(task, 1.0)}), heard({0: 50})) is not None
    assert [body(), body()] == [None, None]
    assert not body.is_finished


def test_a_run_that_was_stopped_before_anybody_stepped_ends_with_the_plain_mean() -> None:
    task = SmallTask()
    body = opened(task)
    assert body() is not None
    trees = sent({0: filled(task, 1.0), 1: filled(task, 3.0)})
    assert body(trees, heard({0: 0, 1: 0}, "final")) is None
    last = items(body())
    assert last is not None
    assert body.is_finished
    assert last["evaluation"]["kind"] == "final"
    np.testing.assert_allclose(last["final"]["tensors"]["w"], 2.0)


def test_a_schedule_begins_once() -> None:
    schedule = EvaluationSchedule(100, 20)
    assert [schedule.due(0, is_final=False) for _ in range(2)] == ["initial", None]
    assert schedule.due(50, is_final=False) == "during"
    assert schedule.due(100, is_final=True) == "final"


# -- cuts --------------------------------------------------------------------------------------------------------------

PARTS = fragments_of(SmallTask(), 2)


def evaluating(task: Any, *, times: int = 6) -> Evaluate:
    body = Evaluate(task, PARTS, tokens=100, times=times)
    body.open(Context("evaluator", seed=SEED))
    return body


def cut(kind: EvaluationKind, tokens: int, value: float = 1.0) -> EvaluatedCut:
    return EvaluatedCut(kind=kind, tokens=tokens, values=[np.full(part.size, value, np.float32) for part in PARTS])


def test_a_cut_is_evaluated_as_what_is_published_would_be() -> None:
    task = SmallTask()
    body, other = evaluating(task), evaluating(task)
    found = items(body(cut=cut("initial", 0)))
    arrived = {(Replica("syncer", 0), p): {**update(part, 0, 1.0), "totals": []} for p, part in enumerate(PARTS)}
    expected = items(other(update=arrived))
    assert found["done"] == {"during": True, "final": True}
    assert (
        found["evaluation"]["loss"] == expected["evaluation"]["loss"] == pytest.approx(loss_of(task, filled(task, 1.0)))
    )
    found = items(body(cut=cut("during", 40, 2.0)))
    assert (found["evaluation"]["tokens"], found["evaluation"]["kind"]) == (40, "during")
    assert not body.is_finished


def test_after_the_last_cut_nothing_more_is_needed() -> None:
    body = evaluating(SmallTask())
    found = items(body(cut=cut("final", 100)))
    assert found["evaluation"]["kind"] == "final"
    assert "done" not in found
    assert body.is_finished


def test_of_a_run_that_evaluates_nothing_no_cut_is_needed_but_for_figures() -> None:
    body = evaluating(SmallTask(), times=0)
    assert items(body(cut=cut("initial", 0))) == {"done": {"during": False, "final": False}}
    last = items(body(cut=EvaluatedCut(kind="final", tokens=100, values=[])))
    assert last["evaluation"]["loss"] is None
