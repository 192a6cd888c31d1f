"""The evaluation by site: when, of which parameters, what it may cost, and who gets it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from isthmus.ops.data.site_terms import EVALUATIONS, SHARE, SiteTerms, digest_of_words
from isthmus.ops.exchange.messages import CompanionReport
from isthmus.ops.island.jax_evaluation import JaxEvaluation
from isthmus.ops.learner.boundary import Boundary, Companion
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.learner.site_evaluation import (
    TIMES_MAX,
    SiteEvaluation,
    SiteJudge,
    SitePlan,
    batch_steps,
    judge_of,
)
from isthmus.runtime.items.schemas import compiled
from isthmus.runtime.system.disk import DISK
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update

DIGEST = "00112233445566778899aabbccddeeff"
SITE = SiteTerms(DIGEST, bytes=4000, tokens=1000, text_bytes=3000)
BUDGET = 1600
"""Of two learners with batches of eight: 100 steps each."""


class Judge:
    """An evaluation whose loss is the mean of what it is given, on two batches; each lasts for so long."""

    count = 2

    def __init__(self, context: Context, batch_ns: int = 0) -> None:
        self._context, self._batch_ns = context, batch_ns
        self.made = 0

    def parts(self, tensors: Any) -> Iterator[None]:
        for _ in range(self.count):
            yield
            self._context.at += self._batch_ns
        self.made += 1
        return {"loss": float(np.mean(np.concatenate(list(tensors.values())))), "loss_error": 0.5, "loss/code": 2.0}  # type: ignore[return-value]

    def metrics(self, tensors: Any) -> dict[str, float]:
        raise NotImplementedError

    def assemble(self, fragments: Any, values: dict[int, Any]) -> Any:
        return values


class SiteContext(Context):
    """A context with a disk, of a learner that many watch."""

    def __init__(self, **terms: Any) -> None:
        super().__init__(**terms)
        self.disk = DISK
        self.connected = self.connected - {"progress"} | {"report"}


class SiteTask(SmallTask):
    """A task whose learners have the companion, with a judge of the test's."""

    site = SITE
    plan = SitePlan(2, 5, 0.0)
    batch_ns = 0

    def companions(self, boundary: Boundary) -> Iterator[Companion]:
        self.made_by = Judge(boundary.context, self.batch_ns)  # type: ignore[misc]
        yield SiteEvaluation(self.site, lambda: SiteJudge(self.made_by, self.plan, 64), boundary)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # The tasks of other tests are frozen.


class Driven:
    """A learner that is driven boundary by boundary, and what it reported last."""

    step_ns = 10_000_000_000
    """So long that an evaluation, in which the clock is read some times, costs nothing beside it."""

    def __init__(self, task: SmallTask, context: Context | None = None, budget: int = BUDGET) -> None:
        self.task, self.parts = task, fragments_of(task, 2)
        self.context = SiteContext() if context is None else context
        self.body = InnerStep(task, fragments=self.parts, report_every=1, run=RunTerms(tokens=budget, learners=2))
        self.body.open(self.context)
        self.report: dict[str, Any] = {}
        self.position = 0

    def fire(self, *adopted: Any, pulls: Any = None, steps: bool = True) -> None:
        """One boundary, at which (fragment, version, value, kind, tokens of others) are adopted."""
        self.context.at += self.step_ns
        batch = self.task.batch(_at(self.position)) if steps else None
        self.position += steps
        news = {("syncer/0", p): self._update(p, *terms) for p, *terms in adopted}
        firing = self.body(batch=batch, update=news or None, pull=pulls)
        while True:
            try:
                next(firing)
            except StopIteration as end:
                self.report |= next((item for port, item in end.value if port == "report"), {})
                return

    def _update(self, p: int, version: int, value: Any, kind: str = "merge", others: int = 0) -> Any:
        return {**update(self.parts[p], version, value, kind=kind), "totals": [[1, 1, others]] if others else []}

    def begin(self, others: int = 0) -> None:
        self.fire((0, 0, 0.5, "merge", others), (1, 0, 0.5))

    @property
    def site(self) -> Any:
        return self.report["site"]

    @property
    def last(self) -> Any:
        return self.site["evaluations"][-1]

    def own(self) -> float:
        """What the judge would find of the learner's own parameters."""
        return float(np.mean(np.concatenate([np.asarray(self.body._learner.extract(p)) for p in range(2)])))


def _at(position: int) -> Any:
    from isthmus.ops.data.batches import At

    return At(0, 0, position)


@pytest.fixture
def task() -> SiteTask:
    return SiteTask()


def test_the_first_is_of_the_global_model_alone_before_the_first_step(task: SiteTask) -> None:
    driven = Driven(task)
    driven.begin()
    assert (driven.last["kind"], driven.last["of_global"]["loss"], driven.last["of_own"]) == ("initial", 0.5, None)
    assert (driven.last["tokens"], driven.last["own_tokens"], driven.last["predicted"]) == (0, 0, 64)
    assert driven.last["versions"] == [[1, 0], [1, 0]]
    assert driven.last["of_global"]["error"] == 0.5
    assert driven.last["of_global"]["metrics"] == [["loss/code", 2.0]]
    assert driven.last["of_global"]["bits"] == pytest.approx(0.5 / math.log(2) * 1000 / 3000)
    assert driven.site["awaits"]
    assert digest_of_words(driven.site["digest"]) == DIGEST


def test_on_the_way_both_models_are_those_of_one_adoption(task: SiteTask) -> None:
    driven = Driven(task)
    driven.begin()
    driven.fire((0, 1, 1.5, "merge", 100))
    assert driven.last["kind"] == "initial"  # A quarter of the budget is not trained yet.
    for _ in range(3):
        driven.fire()
    driven.fire((0, 2, 2.5, "merge", 400))
    assert driven.last["kind"] == "initial"  # What is adopted says that it is; it is due at the next.
    driven.fire((1, 1, 3.5))
    made = driven.last
    assert made["kind"] == "during"
    sizes = [part.size for part in driven.parts]
    assert made["of_global"]["loss"] == pytest.approx((2.5 * sizes[0] + 3.5 * sizes[1]) / sum(sizes), rel=1e-6)
    assert made["versions"] == [[1, 2], [1, 1]]
    assert made["own_tokens"] == 6 * 8


def test_the_own_model_on_the_way_is_the_one_just_before_the_adoption(task: SiteTask) -> None:
    driven = Driven(task)
    driven.begin()
    driven.fire((0, 1, 1.0, "merge", 400))
    for _ in range(3):
        driven.fire()
    own = driven.own()
    driven.fire((0, 2, 9.0), (1, 1, 9.0))
    assert driven.last["of_own"]["loss"] == pytest.approx(own, rel=1e-6)
    assert driven.last["of_global"]["loss"] == 9.0


def test_at_the_end_the_own_model_is_the_one_before_the_first_adoption_since_the_last_step(task: SiteTask) -> None:
    driven = Driven(task)
    driven.begin()
    for _ in range(3):
        driven.fire()
    own = driven.own()
    # This update says that the budget is spent: no step follows, and it replaces half of the own model.
    driven.fire((0, 1, 7.0, "merge", BUDGET))
    assert driven.body.is_idle
    driven.fire((1, 1, 7.0), steps=False)
    assert driven.site["awaits"]
    driven.fire((0, 2, 8.0, "final"), steps=False)
    assert driven.site["awaits"]  # One fragment of the final model is still to come.
    driven.fire((1, 2, 8.0, "final"), steps=False)
    assert (driven.last["kind"], driven.last["of_global"]["loss"]) == ("final", 8.0)
    assert driven.last["of_own"]["loss"] == pytest.approx(own, rel=1e-6)
    assert driven.report["phase"] == "final"
    assert not driven.site["awaits"]


def test_a_pull_that_comes_with_the_last_adoption_may_be_what_tells_of_the_end(task: SiteTask) -> None:
    driven = Driven(task)
    driven.begin()
    driven.fire()
    own = driven.own()
    driven.fire((0, 1, 7.0), pulls={("syncer/0", 1): {**pull(1, 1), "totals": [[1, 1, BUDGET]]}})
    assert driven.body.is_idle
    driven.fire((0, 2, 8.0, "final"), (1, 2, 8.0, "final"), steps=False)
    assert driven.last["of_own"]["loss"] == pytest.approx(own, rel=1e-6)


def test_a_learner_that_made_no_step_has_no_model_of_its_own(task: SiteTask) -> None:
    driven = Driven(task)
    driven.fire((0, 0, 0.5), (1, 0, 0.5), steps=False)
    driven.fire((0, 1, 8.0, "final"), (1, 1, 8.0, "final"), steps=False)
    assert (driven.last["kind"], driven.last["of_own"]) == ("final", None)


def test_a_later_life_does_not_begin_with_one_and_ends_with_one(task: SiteTask) -> None:
    driven = Driven(task, SiteContext(incarnation=2))
    driven.begin(others=1200)
    assert driven.site["evaluations"] == []
    for _ in range(2):
        driven.fire()
    driven.fire((0, 1, 2.0), (1, 1, 2.0))
    assert driven.site["evaluations"] == []  # What was due before this life, is the former one's.
    driven.fire((0, 2, 8.0, "final"), (1, 2, 8.0, "final"), steps=False)
    assert [each["kind"] for each in driven.site["evaluations"]] == ["final"]
    early = Driven(task, SiteContext(incarnation=2))
    early.begin(others=8)
    assert early.last["kind"] == "initial"  # The first life may have died before it told.


def test_a_learner_that_leaves_evaluates_nothing_and_is_not_awaited(task: SiteTask) -> None:
    from isthmus.ops.learner.fragment_exchange import FragmentExchange

    driven = Driven(task)
    driven.body = InnerStep(
        task,
        fragments=driven.parts,
        report_every=1,
        exchange=FragmentExchange(answers_last=True),
        run=RunTerms(tokens=BUDGET),
    )
    driven.body.open(driven.context)
    driven.begin(others=400)
    driven.fire()
    driven.context.is_leaving = True
    driven.fire((0, 1, 7.0, "merge", 800))
    assert driven.report["phase"] == "leaving"
    assert len(driven.site["evaluations"]) == 1
    assert not driven.site["awaits"]


def test_one_on_the_way_waits_while_it_would_cost_more_than_its_share(task: SiteTask) -> None:
    step_ns, batch_ns = 100_000_000, 5_000_000
    task.batch_ns = batch_ns
    driven = Driven(task)
    driven.step_ns = step_ns
    driven.begin(others=400)
    at = []
    for number in range(1, 80):
        driven.fire((0, number, 2.0, "merge", 400 + 8 * number), (1, number, 2.0))
        if driven.last["kind"] == "during" and driven.last["number"] not in [each for each, _ in at]:
            at.append((driven.last["number"], number))
    # Two models on two batches take 20 ms: 2 % of ten steps, of which each of these on the way has as many.
    evaluated = [number for _, number in at]
    assert evaluated, "shares of the budget were reached"
    for count, number in enumerate(evaluated, 1):
        spent = count * 2 * Judge.count * batch_ns
        assert spent <= SHARE * number * (step_ns + 20_000_000) + 1e7
        assert spent >= 0
    assert evaluated[0] >= 9
    usual = driven.context.published[-1]["usual_step_ns"]
    assert step_ns <= usual < step_ns + 2 * batch_ns  # What it lasts is no part of a step.


def test_figures_that_stay_are_in_a_file_of_the_site_and_in_no_report(tmp_path: Path) -> None:
    task = SiteTask()
    task.site = SiteTerms(DIGEST, 4000, 1000, is_told=False)
    context = SiteContext()
    context.folder = tmp_path
    driven = Driven(task, context)
    driven.begin()
    driven.fire()
    driven.fire((0, 2, math.nan, "final"), (1, 2, 8.0, "final"), steps=False)
    assert driven.site["evaluations"] == []
    assert not driven.site["is_told"]
    assert not driven.site["awaits"]
    lines = [json.loads(line) for line in (tmp_path / EVALUATIONS).read_text().splitlines()]
    assert [(line["learner"], line["kind"]) for line in lines] == [(0, "initial"), (0, "final")]
    assert lines[0]["of_global"]["loss"] == 0.5
    assert lines[1]["of_global"]["loss"] is None  # JSON has no word for what is not finite.
    assert lines[1]["of_own"]["loss"] is not None


def test_a_report_with_evaluations_keeps_to_its_schema(task: SiteTask) -> None:
    driven = Driven(task)
    driven.begin(others=400)
    driven.fire()
    driven.fire((0, 2, 8.0, "final"), (1, 2, 8.0, "final"), steps=False)
    check = compiled(CompanionReport)
    item = {"site": driven.site}
    assert check(item, item, driven.context.member) is None
    bad = {"site": {**driven.site, "digest": ["secret"] * 4}}
    assert check(bad, bad, driven.context.member) is not None


# -- how much ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "cost", "batches", "expected"),
    [
        (700, 1 / 3, 32, (3, 5)),  # 358,000 tokens of each learner in batches of 512.
        (125, 1 / 3, 32, (2, 2)),
        (1e6, 1 / 3, 32, (32, TIMES_MAX)),
        (10, 1 / 3, 32, (2, 2)),  # The least, which costs more than its share.
        (500, 1 / 3, 1, (1, 11)),  # All that there are, so more often.
    ],
)
def test_a_plan_costs_its_share_at_most_unless_the_least_does(
    steps: float, cost: float, batches: int, expected: tuple[int, int]
) -> None:
    plan = SitePlan.of(steps, cost, batches)
    assert (plan.batches, plan.times) == expected
    whole = (2 * plan.times - 1) * plan.batches * cost
    assert whole <= max(SHARE * steps, 3 * min(2, batches) * cost) + 1e-9
    assert plan.steps == pytest.approx(2 * plan.batches * cost)


def test_a_batch_of_an_evaluation_costs_a_third_of_a_step_for_as_many_tokens() -> None:
    assert batch_steps(512, 512) == pytest.approx(1 / 3)


class WholeTask(SmallTask):
    """A task in jax whose learners have the companion, as `Task` makes it."""

    site = SITE
    tokens_most = 8
    extract = None
    paths = ()
    sets: Any = ()

    def site_evaluator(self, seed: int, batches: Any, slot: int) -> Any:
        return JaxEvaluation(self, seed, batches=batches)

    def companions(self, boundary: Boundary) -> Iterator[Companion]:
        yield SiteEvaluation(self.site, lambda: judge_of(self, boundary), boundary)


def test_batches_are_some_of_those_of_the_task_evenly_and_of_each_set() -> None:
    task = WholeTask(evaluation=16)
    object.__setattr__(task, "sets", (("code", lambda: list(task.evaluation_batches(0))[:4]),))
    driven = Driven(task)
    boundary = driven.body._boundary()
    judge = judge_of(task, boundary)
    assert judge.plan.batches == 4
    assert {name: len(each) for name, each in judge.evaluation._batches.items()} == {"": 2, "code": 2}  # type: ignore[attr-defined]
    assert judge.predicted == 2 * 8
    every = list(task.evaluation_batches(0))
    for found, expected in zip(judge.evaluation._batches[""], (every[0], every[8]), strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(found["x"], expected["x"])


def test_what_is_trained_has_the_same_bits_with_and_without() -> None:
    trained = []
    for task in (SmallTask(evaluation=1), WholeTask(evaluation=1)):
        driven = Driven(task, budget=2 * BUDGET)
        driven.begin(others=400)
        for number in range(1, 25):
            value = float(number) / 8
            driven.fire((number % 2, number, value, "merge", 400 + 40 * number))
        own = driven.body._learner
        trained.append([*own.own(whole=True), *own.copy()])
        assert ("site" in driven.report) == isinstance(task, WholeTask)
    kinds = [each["kind"] for each in driven.site["evaluations"]]
    assert "during" in kinds
    for one, other in zip(*trained, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert jax.tree.leaves(trained[0])
