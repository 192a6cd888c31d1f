"""The inner-step body: order at a boundary, phases, accounts, and the rules for buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.exchange.messages import Progress, StepReport
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.learner import local_copies, recovery
from isthmus.ops.learner.boundary import Boundary, Companion
from isthmus.ops.learner.first_data import FirstData
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.own_evaluation import OwnEvaluation
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update

KEY = ("syncer/0", 0)


def drive(body: InnerStep, **inputs: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """What one firing yields, and what it returns."""
    firing = body(**{"batch": None, **inputs})
    yielded = []
    while True:
        try:
            yielded.extend(next(firing))
        except StopIteration as end:
            return yielded, end.value


def opened(
    task: SmallTask, count: int = 2, emit_every: int | None = None, **terms: Any
) -> tuple[InnerStep, Any, Context]:
    parts = fragments_of(task, count) if count else ()
    exchange, context = FragmentExchange(**terms), Context()
    body = InnerStep(
        task, fragments=parts, emit_every=emit_every, report_every=2, exchange=exchange, run=RunTerms(tokens=1000)
    )
    body.open(context)
    return body, parts, context


def stepping(task: SmallTask, count: int = 2) -> tuple[InnerStep, Any, Context]:
    body, parts, context = opened(task, count)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    return body, parts, context


def batch(task: SmallTask, position: int) -> Any:
    return task.batch(At(0, 0, position))


def watch(context: Context) -> None:
    """From now on nobody paces, and those who watch hear as often instead, and everything."""
    context.connected = context.connected - {"progress"} | {"report"}


def diverged(task: SmallTask) -> tuple[InnerStep, Any, Context]:
    """A learner that is sick: the losses of its three steps are not finite."""
    body, parts, context = stepping(task)
    watch(context)
    bad = {name: np.full_like(values, np.nan) for name, values in batch(task, 0).items()}
    for _ in range(3):
        drive(body, batch=bad)
    assert context.published[-1]["sick"]
    return body, parts, context


def reports(emitted: list[tuple[str, Any]]) -> list[Any]:
    return [item for port, item in emitted if port in ("progress", "report")]


def test_answers_are_counted_with_the_bytes_of_their_codes_and_scales() -> None:
    task = SmallTask()
    body, parts, context = opened(task, push="int2")
    watch(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    asked = {("syncer/0", part.index): pull(part.index, part.index + 1) for part in parts}
    drive(body, pull=asked, batch=batch(task, 0))
    _, emitted = drive(body, batch=batch(task, 1))
    report = reports(emitted)[0]
    assert report["answers"] == len(parts)
    assert report["payload_bytes_sent"] == sum(-(-unit.size // 4) + 4 for part in parts for unit in part.units)


def test_a_learner_is_idle_until_it_has_adopted_every_fragment() -> None:
    task = SmallTask()
    body, parts, context = opened(task)
    watch(context)
    assert body.is_idle
    _, emitted = drive(body)
    assert reports(emitted)[0]["phase"] == "ready"
    drive(body, update={KEY: update(parts[0], 0, 1.0)})
    assert body.is_idle
    _, emitted = drive(body, update={KEY: update(parts[1], 0, 1.0)})
    assert not body.is_idle
    assert reports(emitted)[0]["phase"] == "stepping"
    assert reports(emitted)[0]["versions"] == [[1, 0], [1, 0]]


@pytest.mark.parametrize("answers_last", [True, False])
def test_a_run_that_is_stopped_has_no_further_step_but_where_all_step_in_turns(answers_last: bool) -> None:
    task = SmallTask()
    body, parts, context = opened(task, answers_last=answers_last)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    drive(body, batch=batch(task, 0))
    assert body.position == 1
    context.is_stopped = True
    answers, _ = drive(body, pull={KEY: pull(0, 1)}, batch=batch(task, 1))
    assert [item["steps"] for _, item in answers] == [1]  # What was done is given, without a step before it.
    assert (body.position == 1, body.is_idle) == (answers_last, answers_last)
    drive(body, pull={KEY: pull(0, 2, kind="final")})
    assert body.phase == "final"


def test_a_learner_steps_again_under_a_home_that_knows_of_no_stop() -> None:
    """The home has lost its ledger, and its run goes on to its budget."""
    task = SmallTask()
    body, parts, context = opened(task)
    context.is_stopped = True
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    assert body.is_idle
    context.is_stopped = False
    drive(body)
    assert not body.is_idle
    drive(body, batch=batch(task, 0))
    assert body.position == 1


def test_the_first_version_is_this_learners_own_parameters() -> None:
    task = SmallTask()
    body, _, _ = opened(task)
    yielded, _ = drive(body, pull={KEY: pull(0, 1, kind="initial"), ("syncer/0", 1): pull(1, 2, kind="initial")})
    values = np.concatenate([np.asarray(item["values"]) for _, item in yielded])
    own = jax.tree.leaves(task.init(jax.random.key(0)))
    assert sorted(values.tolist()) == sorted(np.concatenate([np.ravel(leaf) for leaf in own]).tolist())
    assert [item["base"] for _, item in yielded] == [None, None]


def test_a_learner_that_gives_the_rest_of_the_first_version_keeps_what_it_has_adopted() -> None:
    task = SmallTask()
    body, parts, _ = opened(task)
    drive(body, update={KEY: update(parts[0], 0, 2.0)})
    yielded, _ = drive(body, pull={KEY: pull(0, 1, kind="initial"), ("syncer/0", 1): pull(1, 2, kind="initial")})
    assert [(item["fragment"], item["base"]) for _, item in yielded] == [(0, [1, 0]), (1, None)]
    np.testing.assert_array_equal(np.asarray(yielded[0][1]["values"]), np.full(parts[0].size, 2.0))
    drive(body, update={KEY: update(parts[1], 0, 3.0)})
    answers, _ = drive(body, pull={KEY: pull(0, 3), ("syncer/0", 1): pull(1, 4)})
    for (_, capture), value in zip(answers, (2.0, 3.0), strict=True):
        np.testing.assert_array_equal(np.asarray(capture["values"]), np.full(parts[capture["fragment"]].size, value))


def test_the_optimizer_begins_at_the_parameters_that_were_adopted() -> None:
    keeping = optax.GradientTransformation(lambda params: params, lambda grads, state, params=None: (grads, state))
    task = SmallTask(optimizer=keeping)
    body, _, _ = stepping(task)
    assert all(np.all(np.asarray(leaf) == 0.5) for leaf in body._learner._local)


def test_those_who_only_watch_hear_every_250_ms_and_of_every_change_of_phase() -> None:
    task = SmallTask()
    body, parts, context = opened(task)
    context.connected |= {"report"}
    seen: list[tuple[str, int, str]] = []
    told: dict[str, Any] = {}
    for position in range(140):
        news = {("syncer/0", part.index): update(part, 0, 0.5) for part in parts} if not position else None
        context.at += 9_000_000
        _, emitted = drive(body, update=news, batch=batch(task, position))
        seen += [(port, item["step"], item["phase"]) for port, item in emitted if port in ("progress", "report")]
        told.update(emitted)
        if len(emitted) == 2:
            assert told["report"].items() > told["progress"].items()
    watched = [step for port, step, phase in seen if port == "report" and phase == "stepping"]
    paced = [step for port, step, phase in seen if port == "progress" and phase == "stepping"]
    assert watched[0] == paced[0]
    assert 4 <= len(watched) <= 10 < len(paced)
    assert told["progress"].keys() == Progress.__annotations__.keys() - {"links", "unmerged", "reached"}
    assert told["report"].keys() == StepReport.__annotations__.keys() - {
        *("links", "unmerged", "reached", "lacks_memory", "evaluates", "evaluation", "last", "host_waits", "site")
    }


class Judge:
    """An evaluation whose loss is the mean of what it is given."""

    is_on = True

    def metrics(self, tensors: Any) -> dict[str, float]:
        return {"loss": float(np.mean(np.concatenate(list(tensors.values())))), "more": 1.0}

    def assemble(self, fragments: Any, values: dict[int, Any]) -> Any:
        return values


class JudgingTask(SmallTask):
    def companions(self, boundary: Boundary) -> Iterator[Companion]:
        yield OwnEvaluation(Judge(), boundary)


def test_a_learner_that_is_to_evaluate_the_model_does_it_with_what_was_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = JudgingTask()
    body, parts, context = opened(task)
    watch(context)
    evaluations: list[Any] = []

    def publish(value: float, number: int, kind: str = "merge") -> None:
        news = {("syncer/0", part.index): update(part, number, value, kind=kind) for part in parts}
        context.at += 10_000_000
        _, emitted = drive(body, update=news, batch=None if kind == "final" else batch(task, number))
        evaluations.append(reports(emitted)[-1].get("evaluation") if reports(emitted) else None)

    publish(0.5, 0)
    first = {"kind": "initial", "loss": 0.5, "tokens": 0, "metrics": [["more", 1.0]]}
    assert evaluations == [{**first, "took": evaluations[0]["took"], "queued": 0}]
    monkeypatch.setattr(Judge, "is_on", False)
    for number in range(1, 8):
        publish(0.25, number)
    assert all(each == evaluations[0] for each in evaluations if each is not None)
    monkeypatch.setattr(Judge, "is_on", True)
    publish(0.25, 8)
    assert (evaluations[-1]["kind"], evaluations[-1]["loss"]) == ("during", 0.25)
    assert evaluations[-1]["tokens"] == 64
    publish(0.125, 9, "final")
    assert (evaluations[-1]["kind"], evaluations[-1]["loss"]) == ("final", 0.125)


def test_no_step_is_made_once_the_budget_is_spent_and_pulls_are_still_answered() -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    others = [[1, 1, 1000 - 2 * 8]]
    drive(body, update={KEY: {**update(parts[0], 1, 1.0), "totals": others}}, batch=batch(task, 0))
    assert not body.is_idle
    _, emitted = drive(body, batch=batch(task, 1))
    assert body.is_idle
    assert [report["phase"] for report in reports(emitted)] == ["stepping"]
    assert sum(tokens for _, _, tokens in reports(emitted)[0]["totals"]) == 1000
    yielded, emitted = drive(body, pull={KEY: pull(1, 9)})
    assert yielded[0][1]["steps"] == 2
    assert reports(emitted)[0]["step"] == 2


def test_updates_are_adopted_before_a_pull_is_answered() -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    drive(body, batch=batch(task, 0))
    request = {**pull(0, 7), "grace": None}
    yielded, _ = drive(body, update={KEY: update(parts[0], 1, 2.0)}, pull={KEY: request}, batch=batch(task, 1))
    ((port, capture),) = yielded
    assert port == "fragment"
    assert capture["base"] == [1, 1]
    assert (capture["begin"], capture["end"], capture["steps"]) == (8, 8, 0)
    np.testing.assert_array_equal(np.asarray(capture["values"]), np.full(parts[0].size, 2.0))
    np.testing.assert_array_equal(capture["anchor"], np.full(parts[0].size, 2.0))


def test_a_pull_that_comes_with_an_update_of_its_fragment_is_answered_an_interval_later() -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    drive(body, batch=batch(task, 0))
    request = {**pull(0, 7), "interval": 3}
    came = {KEY: request, ("syncer/0", 1): pull(1, 8)}
    yielded, _ = drive(body, update={KEY: update(parts[0], 1, 2.0)}, pull=came, batch=batch(task, 1))
    assert [capture["fragment"] for _, capture in yielded] == [1]
    answers = [drive(body, batch=batch(task, position))[0] for position in range(2, 6)]
    assert [len(answer) for answer in answers] == [0, 0, 1, 0]
    capture = answers[2][0][1]
    assert (capture["round"], capture["base"], capture["steps"]) == (7, [1, 1], 3)
    assert (capture["begin"], capture["end"]) == (8, 32)


def test_a_pull_that_is_answered_later_gives_way_to_the_next_and_to_the_end() -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    drive(body, batch=batch(task, 0))
    for number in (7, 8):
        request = {**pull(0, number), "interval": 2}
        drive(body, update={KEY: update(parts[0], number, 2.0)}, pull={KEY: request}, batch=batch(task, number))
    drive(body, batch=batch(task, 9))
    ((_, capture),) = drive(body, batch=batch(task, 10))[0]
    assert capture["round"] == 8
    request = {**pull(0, 9), "interval": 1}
    assert drive(body, update={KEY: update(parts[0], 9, 2.0)}, pull={KEY: request}, batch=batch(task, 11))[0] == []
    ((_, capture),) = drive(body, pull={KEY: pull(0, 10, kind="final")})[0]
    assert (capture["round"], capture["kind"]) == (10, "final")
    assert drive(body)[0] == []


def test_nothing_of_the_zeros_before_the_first_version_survives_and_alpha_of_later_ones() -> None:
    task = SmallTask()
    body, parts, _ = opened(task, alpha=0.25)
    drive(body, update={("syncer/0", part.index): update(part, 0, 2.0) for part in parts})
    assert all(np.all(np.asarray(leaf) == 2.0) for leaf in body._learner.copy())
    drive(body, update={("syncer/0", part.index): update(part, 1, 4.0) for part in parts})
    assert all(np.all(np.asarray(leaf) == 3.5) for leaf in body._learner.copy())


def test_nothing_of_what_is_not_finite_survives() -> None:
    task = SmallTask()
    body, parts, context = opened(task, alpha=0.25)
    watch(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, np.nan) for part in parts})
    for position in range(3):
        drive(body, batch=batch(task, position))
    drive(body, update={("syncer/0", part.index): update(part, 1, 4.0) for part in parts})
    assert all(np.all(np.asarray(leaf) == 4.0) for leaf in body._learner.copy())


def test_an_answer_holds_what_was_trained_since_adoption() -> None:
    task = SmallTask()
    body, _, _ = stepping(task)
    for position in range(3):
        drive(body, batch=batch(task, position))
    yielded, _ = drive(body, pull={KEY: pull(1, 9)})
    capture = yielded[0][1]
    assert (capture["begin"], capture["end"], capture["steps"], capture["base"]) == (0, 24, 3, [1, 0])
    assert not np.array_equal(np.asarray(capture["values"]), capture["anchor"])


@pytest.fixture(params=["device", "host"])
def carried_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where work is carried over."""
    if request.param == "host":
        monkeypatch.setattr(Learner, "carry", lambda *_: False)


@pytest.mark.usefixtures("carried_on")
@pytest.mark.parametrize("has_answered", [True, False])
def test_what_was_trained_since_the_answer_is_carried_over_and_in_the_next(has_answered: bool) -> None:
    task = SmallTask()
    body, parts, context = opened(task, carries=True)
    watch(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    drive(body, batch=batch(task, 0))
    pulled = {KEY: pull(0, 7)} if has_answered else None
    yielded, _ = drive(body, pull=pulled, batch=batch(task, 1))
    before = np.asarray(yielded[0][1]["values"]) if has_answered else np.full(parts[0].size, 0.5, np.float32)
    drive(body, batch=batch(task, 2))
    trained = np.asarray(body._learner.extract(0)) - before
    assert np.any(trained)
    published = np.linspace(-1, 1, parts[0].size).astype(np.float32)
    clock = [(0, 1, 8)] if has_answered else []
    yielded, _ = drive(body, update={KEY: update(parts[0], 1, published, clock=clock)}, pull={KEY: pull(0, 8)})
    capture = yielded[0][1]
    np.testing.assert_array_equal(np.asarray(capture["values"]), published + trained)
    np.testing.assert_array_equal(capture["anchor"], published)
    begin = 8 if has_answered else 0
    assert (capture["begin"], capture["end"], capture["steps"], capture["base"]) == (begin, 24, 3 - begin // 8, [1, 1])
    context.at += 10**9
    _, emitted = drive(body, batch=batch(task, 3))
    assert reports(emitted)[-1]["accounts"][0] == [begin, 0, 0, 0, 32 - begin]


@pytest.mark.usefixtures("carried_on")
@pytest.mark.parametrize(
    ("told", "is_kept"), [([[0]], True), ([None, [0]], True), ([[0], None], False), ([[1]], False), ([None], False)]
)
def test_a_learner_carries_over_as_long_as_its_last_pull_says_so(told: list[Any], is_kept: bool) -> None:
    """Answers to one pull after another, with a step after each; what follows the last is kept, or overwritten."""
    task = SmallTask()
    body, parts, context = opened(task)
    watch(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    drive(body, batch=batch(task, 0))
    for number, slots in enumerate(told, start=1):
        request = pull(0, 6 + number) | ({} if slots is None else {"carry": slots})
        yielded, _ = drive(body, pull={KEY: request}, batch=batch(task, number))
    before, trained = np.asarray(yielded[0][1]["values"]), 8 * (1 + len(told))
    kept = np.asarray(body._learner.extract(0)) - before
    clock = [(0, 1, trained - 8)]
    yielded, _ = drive(body, update={KEY: update(parts[0], 1, 2.0, clock=clock)}, pull={KEY: pull(0, 9)})
    values = np.asarray(body._learner.extract(0))
    np.testing.assert_array_equal(values, 2.0 + kept if is_kept else np.full(parts[0].size, 2.0))
    assert np.any(kept)
    context.at += 10**9
    _, emitted = drive(body, batch=batch(task, 1 + len(told)))
    overlapped = 0 if is_kept else 8
    assert reports(emitted)[-1]["accounts"][0] == [trained - 8, overlapped, 0, 0, 16 - overlapped]


@pytest.mark.usefixtures("carried_on")
def test_means_of_values_are_replaced_where_the_rest_is_carried_over() -> None:
    task = SmallTask()
    (part,) = fragments_of(task, 1)
    part = replace(
        part, units=tuple(replace(unit, merge="mean" if unit.tensor == "w" else unit.merge) for unit in part.units)
    )
    body = InnerStep(
        task, fragments=(part,), report_every=2, exchange=FragmentExchange(carries=True), run=RunTerms(tokens=1000)
    )
    body.open(Context())
    drive(body, update={KEY: update(part, 0, 0.5)})
    drive(body, batch=batch(task, 0))
    drive(body, update={KEY: update(part, 1, 2.0)})
    values = np.asarray(body._learner.extract(0))
    for unit, begin, end in zip(part.units, part.offsets, part.offsets[1:], strict=False):
        assert np.array_equal(values[begin:end], np.full(end - begin, 2.0, np.float32)) == (unit.tensor == "w")


def test_nothing_is_carried_over_to_the_last_version() -> None:
    task = SmallTask()
    body, parts, context = opened(task, carries=True)
    watch(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    drive(body, batch=batch(task, 0))
    _, emitted = drive(body, update={KEY: update(parts[0], 1, 2.0, kind="final")})
    np.testing.assert_array_equal(np.asarray(body._learner.extract(0)), np.full(parts[0].size, 2.0))
    assert reports(emitted)[-1]["accounts"][0] == [0, 0, 8, 0, 0]


@pytest.mark.parametrize("members", [[(1, 1)], [(0, 2)], []])
def test_a_pull_for_others_or_for_another_life_is_not_answered(members: Any) -> None:
    task = SmallTask()
    body, _, _ = stepping(task)
    assert drive(body, batch=batch(task, 0), pull={KEY: pull(0, 5, members=members)})[0] == []


def test_a_renewed_attempt_is_answered_once() -> None:
    task = SmallTask()
    body, _, _ = stepping(task)
    assert len(drive(body, batch=batch(task, 0), pull={KEY: pull(0, 5)})[0]) == 1
    assert drive(body, batch=batch(task, 1), pull={KEY: pull(0, 5, attempt=2)})[0] == []
    assert len(drive(body, batch=batch(task, 2), pull={KEY: pull(0, 6)})[0]) == 1


def test_an_older_version_is_never_adopted() -> None:
    task = SmallTask()
    body, parts, context = stepping(task)
    watch(context)
    drive(body, update={KEY: update(parts[0], 3, 3.0)})
    drive(body, update={KEY: update(parts[0], 2, 9.0)}, batch=batch(task, 0))
    _, emitted = drive(body, batch=batch(task, 1))
    assert reports(emitted)[0]["versions"][0] == [1, 3]


@pytest.mark.parametrize(
    ("refused", "kind", "kept"),
    [
        ([], "merge", True),
        ([[1, 1]], "merge", True),
        ([[0, 2]], "merge", True),
        ([[0, 1]], "merge", False),
        ([[0, 1]], "copy", True),
        ([[0, 1]], "recover", True),
        ([[1, 1]], "final", False),
    ],
)
def test_work_since_a_version_is_given_up_for_the_same_version_only_where_it_was_refused_or_is_over(
    refused: Any, kind: str, kept: bool
) -> None:
    task = SmallTask()
    body, parts, context = stepping(task)
    watch(context)
    drive(body, batch=batch(task, 0))
    drive(body, update={KEY: update(parts[0], 0, 0.5, refused=refused, kind=kind)}, batch=batch(task, 1))
    yielded, _ = drive(body, pull={KEY: pull(0, 7)})
    assert [item["begin"] for _, item in yielded] == [0 if kept else 8]


def test_a_learner_that_steps_reports_every_so_many_steps_and_not_at_news() -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    reported = []
    for number in range(1, 7):
        more = {"update": {KEY: update(parts[0], number, 1.0)}} if number == 3 else {}
        pulls = {"pull": {KEY: pull(0, 20)}} if number == 5 else {}
        reported.append(bool(reports(drive(body, batch=batch(task, number), **more, **pulls)[1])))
    assert reported == [False, True, False, True, False, True]


def test_after_a_final_pull_no_step_is_made_and_the_account_closes() -> None:
    task = SmallTask()
    body, parts, context = stepping(task)
    watch(context)
    drive(body, batch=batch(task, 0))
    pulls = {("syncer/0", p): pull(p, 20 + p, kind="final") for p in range(2)}
    yielded, emitted = drive(body, batch=batch(task, 1), pull=pulls)
    assert [item["end"] for _, item in yielded] == [8, 8]
    assert body.is_idle
    assert reports(emitted)[0]["phase"] == "final"
    finals = {("syncer/0", part.index): update(part, 1, 0.0, clock=[(0, 1, 8)], kind="final") for part in parts}
    _, emitted = drive(body, update=finals)
    assert reports(emitted)[0]["accounts"] == [[8, 0, 0, 0, 0], [8, 0, 0, 0, 0]]
    assert reports(emitted)[0]["tokens"] == 8


def test_a_learner_that_diverged_says_so_and_heals_once_all_fragments_are_global_again() -> None:
    task = SmallTask(factor=math.inf)
    body, parts, context = stepping(task)
    watch(context)
    for position in range(3):
        drive(body, batch=batch(task, position))
    assert context.published[-1]["sick"]
    drive(body, update={KEY: update(parts[0], 1, 0.0)})
    assert body._sick
    drive(body, update={KEY: update(parts[1], 1, 0.0)})
    assert not body._sick
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in body._learner._leaves)


def test_one_that_diverged_and_steps_between_the_adoptions_of_two_fragments_heals_for_good() -> None:
    """A step whose loss is not finite spoils all fragments, also the one that was global again."""
    task = SmallTask()
    body, parts, _ = diverged(task)
    drive(body, update={KEY: update(parts[0], 1, 0.0)}, batch=batch(task, 1))
    drive(body, update={KEY: update(parts[1], 1, 0.0)}, batch=batch(task, 2))
    told = [reports(drive(body, batch=batch(task, position))[1]) for position in range(3, 9)]
    assert [report["sick"] for each in told for report in each] == [False] * 3
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in body._learner._leaves)


def rate_of(body: InnerStep) -> float:
    """How far a step moves a parameter."""
    before = np.array(body._learner._leaves[0])
    drive(body, batch=batch(body._task, 50))
    return float(np.abs(np.array(body._learner._leaves[0]) - before).max())


def falling() -> SmallTask:
    return SmallTask(optimizer=optax.sgd(optax.linear_schedule(0.1, 0.0, 4)))


def test_a_rate_that_has_come_to_its_end_does_not_begin_again_when_a_learner_heals() -> None:
    task = falling()
    body, parts, _ = stepping(task)
    for position in range(4):
        drive(body, batch=batch(task, position))
    assert rate_of(body) == 0.0
    body._sick, body._unhealed = True, {0, 1}
    drive(body, update={("syncer/0", part.index): update(part, 1, 0.5) for part in parts})
    assert not body._sick
    assert rate_of(body) == 0.0


@pytest.mark.parametrize(("merged", "is_over"), [(0, False), (9, True)])
def test_a_life_without_a_state_counts_from_the_merged_steps_of_its_slot(*, merged: int, is_over: bool) -> None:
    task = falling()
    parts = fragments_of(task, 2)
    body, context = InnerStep(task, fragments=parts, report_every=2, run=RunTerms(tokens=1000)), Context(incarnation=2)
    context.connected = context.connected | {"cursor"}
    body.open(context)
    drive(body, cursor={"begin": merged, "position": merged, "state": None, "left_out": []})
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    assert (rate_of(body) == 0.0) == is_over


def test_losses_of_before_do_not_make_a_healed_learner_sick_again() -> None:
    task = SmallTask()
    body, parts, _ = diverged(task)
    both = {("syncer/0", part.index): update(part, 1, 0.0) for part in parts}
    drive(body, update=both, batch=batch(task, 1))
    told = [reports(drive(body, batch=batch(task, position))[1]) for position in range(2, 8)]
    assert [report["sick"] for each in told for report in each] == [False] * 3


def test_a_report_says_at_which_step_the_loss_was_not_finite() -> None:
    task = SmallTask()
    body, _, context = stepping(task)
    watch(context)
    bad = {name: np.full_like(values, np.nan) for name, values in batch(task, 0).items()}
    told: list[Any] = []
    for position in range(9):
        told += reports(drive(body, batch=bad if position >= 4 else batch(task, position))[1])
    assert {(report["sick"], report["sick_step"]) for report in told} == {(False, 0), (True, 5)}


def test_whole_trees_are_emitted_and_adopted_where_there_are_no_fragments() -> None:
    task = SmallTask()
    body, _, _ = opened(task, count=0, emit_every=2)
    assert not body.is_idle
    trees = []
    for position in range(5):
        _, emitted = drive(body, batch=batch(task, position))
        trees += [item for port, item in emitted if port == "parameters"]
    assert len(trees) == 2
    assert jax.tree.structure(trees[0]) == jax.tree.structure(task.init(jax.random.key(0)))
    zeros = jax.tree.map(np.zeros_like, trees[0])
    drive(body, update={("learner/0", None): zeros})
    np.testing.assert_array_equal(np.asarray(body._learner.copy()[-1]), 0.0)
    stop = {"stop": True, "tokens": 40, "totals": [], "published": []}
    _, emitted = drive(body, batch=batch(task, 5), control={("recorder/0", None): stop})
    assert body.is_finished
    assert [port for port, _ in emitted] == ["parameters", "progress"]


# -- buffers -----------------------------------------------------------------------------------------------------------


def learner(task: SmallTask) -> tuple[Learner, Any]:
    parts = fragments_of(task, 2)
    made = Learner(task, parts, life=LearnerLife(0, 0, 1))
    made.compile(batch(task, 0))
    made.begin()
    return made, parts


def test_a_step_is_given_its_state_and_uses_it_up() -> None:
    task = SmallTask()
    made, _ = learner(task)
    before = list(made._leaves)
    made.step(batch(task, 0), 0.0)
    assert all(leaf.is_deleted() for leaf in before)


def test_a_blending_adoption_uses_up_the_leaves_that_it_blends() -> None:
    task = SmallTask()
    parts = fragments_of(task, 2)
    made = Learner(task, parts, life=LearnerLife(0, 0, 1), alpha=0.5)
    made.begin()
    before = [made._leaves[i] for i in made._functions.touched[0]]
    values = np.asarray(made.extract(0)).copy()
    made.adopt(0, np.ones(parts[0].size, np.float32))
    assert all(leaf.is_deleted() for leaf in before)
    np.testing.assert_allclose(np.asarray(made.extract(0)), 0.5 * values + 0.5, rtol=1e-6)


def test_a_captured_fragment_is_not_touched_by_the_steps_after_it() -> None:
    task = SmallTask()
    made, _ = learner(task)
    captured = made.extract(0)
    copy = np.array(captured)
    for position in range(20):
        made.step(batch(task, position), 0.0)
    np.testing.assert_array_equal(np.asarray(captured), copy)
    assert not np.array_equal(np.asarray(made.extract(0)), copy)


def test_writing_into_what_was_handed_over_is_refused_and_what_was_captured_stays() -> None:
    """Rewrites buffers on purpose: those that the host froze refuse, and a copy protects the rest."""
    from isthmus.runtime.items import layout

    task = SmallTask()
    made, parts = learner(task)
    adopted = np.full(parts[0].size, 3.0, np.float32)
    layout.freeze({"values": adopted})
    made.adopt(0, adopted)
    with pytest.raises(ValueError, match="read-only"):
        adopted[:] = 99.0
    captured = np.asarray(made.extract(0))
    np.testing.assert_array_equal(captured, 3.0)
    with pytest.raises(ValueError, match="read-only"):
        captured[:] = 99.0
    tree = made.tree(made.copy())
    tree["w"][:] = 99.0
    assert not (np.asarray(made.copy()[-1]) == 99.0).any()


def test_a_shard_that_comes_back_is_told_what_the_learner_adopted_and_not_what_it_has_made_of_it() -> None:
    task = SmallTask()
    body, parts, _ = stepping(task)
    drive(body, update={KEY: update(parts[0], 4, 2.0, clock=[(0, 1, 0), (3, 1, 96)])})
    drive(body, batch=batch(task, 0))
    yielded, _ = drive(body, batch=batch(task, 1), pull={KEY: pull(0, 1, kind="recover")})
    capture = yielded[0][1]
    np.testing.assert_array_equal(capture["values"], 2.0)
    assert (capture["base"], capture["clock"], capture["steps"]) == ([1, 4], [[0, 1, 0], [3, 1, 96]], 0)
    yielded, _ = drive(body, batch=batch(task, 2), pull={KEY: pull(0, 2)})
    assert (yielded[0][1]["begin"], yielded[0][1]["end"]) == (0, 16)  # Recovery opens no account and closes none.


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_one_that_is_to_leave_steps_no_more_and_says_in_which_fragments_it_has_work() -> None:
    task = SmallTask()
    body, parts, context = stepping(task)
    drive(body, batch=batch(task, 0))
    assert body.is_engaged
    context.is_leaving = True
    _, emitted = drive(body, batch=batch(task, 1))
    (report,) = reports(emitted)
    assert (report["phase"], report["step"], report["unmerged"]) == ("leaving", 1, [0, 1])
    assert body.is_idle
    answers, _ = drive(body, pull={("syncer/0", 0): pull(0, 9)})
    assert [capture["steps"] for _, capture in answers] == [1]
    _, emitted = drive(body, update={("syncer/0", 0): update(parts[0], 1, 0.25, clock=[(0, 1, 4)])})
    assert reports(emitted)[-1]["unmerged"] == [1]
    assert body.is_engaged
    drive(body, update={("syncer/0", 1): update(parts[1], 1, 0.25, clock=[(0, 1, 4)])})
    assert not body.is_engaged


def test_one_that_holds_no_work_or_none_that_counts_leaves_at_once() -> None:
    task = SmallTask()
    body, _, _ = opened(task)
    assert not body.is_engaged
    whole, _, context = opened(task, 0)
    context.is_leaving = True
    drive(whole, batch=batch(task, 0))
    assert (whole.phase, whole.is_engaged) == ("stepping", False)


SITE = SiteTerms("0" * 32, 80, 20)


@dataclass(frozen=True)
class OnSite(SmallTask):
    """Of 8 tokens a batch, on a site whose data have 20."""

    site: SiteTerms | None = SITE


def on_site(epochs_max: float | None, task: SmallTask, *, trained: Any = ()) -> tuple[InnerStep, Any, Context]:
    """A learner in its second life that has adopted all fragments, of a slot whose first life has `trained`."""
    parts, context = fragments_of(task, 2), Context(incarnation=2)
    body = InnerStep(task, fragments=parts, report_every=1, run=RunTerms(tokens=1000, epochs_max=epochs_max))
    body.open(context)
    told = {"totals": [[0, 1, 24], [1, 1, 400], *trained]}
    drive(body, update={("syncer/0", part.index): {**update(part, 0, 0.5), **told} for part in parts})
    return body, parts, context


def test_one_that_has_trained_its_sites_data_often_enough_leaves_by_itself_with_its_work() -> None:
    task = OnSite()
    body, parts, context = on_site(2.0, task)
    for position in (3, 4):
        drive(body, batch=batch(task, position))
        assert (body.phase, context.leaves_itself) == ("stepping", False)
    _, emitted = drive(body, batch=batch(task, 5))  # 24 in a former life, 16 in this one; another step would be 48.
    (report,) = reports(emitted)
    assert (body.phase, context.leaves_itself) == ("leaving", True)
    assert (report["phase"], report["tokens"], report["unmerged"]) == ("leaving", 16, [0, 1])
    assert context.published[-1]["spent"] == {"tokens": 40, "of_tokens": 20, "epochs_max": 2.0}
    assert body.position == 2  # What was taken and not trained is no part of it.
    answers, _ = drive(body, pull={("syncer/0", 0): pull(0, 9, members=[(0, 2)])})
    assert [(capture["begin"], capture["end"]) for _, capture in answers] == [(0, 16)]
    drive(body, update={("syncer/0", part.index): update(part, 1, 0.25, clock=[(0, 2, 16)]) for part in parts})
    assert not body.is_engaged


def test_a_life_that_begins_after_that_leaves_without_a_step() -> None:
    task = OnSite()
    body, _, context = on_site(2.0, task, trained=[[0, 1, 33]])
    _, emitted = drive(body, batch=batch(task, 3))
    assert (body.phase, context.leaves_itself, reports(emitted)[-1]["step"]) == ("leaving", True, 0)
    assert not body.is_engaged


@pytest.mark.parametrize(("epochs_max", "task"), [(None, OnSite()), (0.1, SmallTask()), (0.1, OnSite(site=None))])
def test_without_a_site_or_a_bound_nobody_leaves(epochs_max: float | None, task: SmallTask) -> None:
    body, _, context = on_site(epochs_max, task)
    for position in range(8):
        drive(body, batch=batch(task, position))
    assert (body.phase, context.leaves_itself, "spent" in context.published[-1]) == ("stepping", False, False)


def with_disk(incarnation: int, disk: SimulatedDisk) -> Context:
    context = Context(incarnation=incarnation)
    context.folder, context.disk = Path("/run"), Mount(disk)
    context.connected = frozenset({"fragment", "report"})
    return context


def living(task: SmallTask, context: Context) -> InnerStep:
    """A learner that has adopted all fragments."""
    parts = fragments_of(task, 2)
    body = InnerStep(task, fragments=parts, report_every=2, run=RunTerms(tokens=1000))
    body.open(context)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    return body


@pytest.mark.parametrize("leaves", [False, True])
def test_the_life_after_ten_steps_of_a_large_model_begins_with_the_moments(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the life before was killed after them, or told to leave after three."""
    monkeypatch.setattr(local_copies, "HELD_BYTES_MAX", 1)  # As if the model were larger than what may be read at once.
    monkeypatch.setattr(recovery, "READ_BYTES_MAX", 8)
    monkeypatch.setattr(Mount, "memory_of", lambda disk, folder, size: None)
    task, disk = SmallTask(), SimulatedDisk("seed")
    context = with_disk(1, disk)
    body = living(task, context)
    for position in range(3 if leaves else 10):
        context.at += 5_000_000_000
        drive(body, batch=batch(task, position))
        body._inheritance._copies.settle()
    if leaves:
        context.is_leaving = True
        drive(body, batch=batch(task, 3))
    after = with_disk(2, disk)
    next_body = living(task, after)
    after.at += 5_000_000_000
    _, emitted = drive(next_body, batch=batch(task, 10))
    (report,) = reports(emitted)
    assert report["began"][:2] == ["copy", 1]
    moments = [np.asarray(leaf) for leaf in next_body._learner.local()]
    assert any(np.any(leaf != 0) for leaf in moments if leaf.dtype == np.float32)


# -- a loop of the user's makes the steps ------------------------------------------------------------------------------


class Looped:
    """A learner whose steps are made outside of it: `opened` has the progress of each that it has let them make."""

    def __init__(self, learner: Learner, task: LoopedTask) -> None:
        self._learner, self._task, self.opened = learner, task, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def open_step(self, progress: float) -> None:
        self.opened.append(progress)

    def made_tokens(self) -> int:
        return self._task.made[-1]

    def step(self, permission: Any, progress: float) -> Any:
        return self._learner.step(batch(self._task, len(self.opened)), progress)


@dataclass(frozen=True)
class LoopedTask(SmallTask):
    """`made` are the tokens of the steps that a loop has made."""

    made: list[int] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def prepare(self) -> None:
        raise NotImplementedError

    def evaluator(self, seed: int) -> Any:
        raise NotImplementedError

    def learner(self, fragments: Any, *, life: LearnerLife, alpha: float) -> Any:
        return Looped(Learner(self, fragments, life=life, alpha=alpha, island=None, pushes=()), self)

    def companions(self, boundary: Boundary) -> Iterator[Companion]:
        yield FirstData(boundary)


def test_a_firing_is_interrupted_for_the_users_step_after_answers_and_before_the_count() -> None:
    task = LoopedTask()
    body, _, _ = stepping(task)
    for made in (8, 16):
        firing = body(batch=batch(task, 0), pull={("syncer/0", 0): pull(0, made)})
        ((port, capture),) = next(firing) or []
        assert (port, capture["end"]) == ("fragment", made - 8)  # What was counted before this step.
        assert next(firing) is None
        task.made.append(8)
        with pytest.raises(StopIteration) as end:
            next(firing)
    assert [item["tokens"] for item in reports(end.value.value)] == [16]
    assert body._learner.opened == [0.0, 8 / 1000]
    assert body.position == 2


def test_the_first_losses_of_a_loop_are_told_as_a_digest() -> None:
    task = LoopedTask()
    body, _, context = stepping(task)
    watch(context)
    for _ in range(9):
        firing = body(batch=batch(task, 0))
        assert next(firing) is None
        task.made.append(8)
        with pytest.raises(StopIteration):
            next(firing)
    digests = [each.get("data_digest") for each in context.published]
    assert digests[0] is None
    assert digests[-1]


def test_where_the_user_has_made_no_step_none_is_counted() -> None:
    task = LoopedTask(made=[0])
    body, _, context = stepping(task)
    firing = body(batch=batch(task, 0))
    assert next(firing) is None
    context.is_leaving = True
    with pytest.raises(StopIteration):
        next(firing)
    assert body.position == 0
    drive(body)
    assert body.phase == "leaving"


@dataclass(frozen=True)
class LoopedOnSite(LoopedTask):
    site: SiteTerms | None = SITE

    def __hash__(self) -> int:
        return id(self)


def test_a_loop_whose_data_are_spent_leaves_behind_the_step_that_has_spent_them() -> None:
    """What a step trains is known behind it only: the last one exceeds what is left, and no other is let be made."""
    task = LoopedOnSite()
    body, _, context = on_site(2.0, task)
    for _ in range(3):
        assert not context.leaves_itself
        firing = body(batch=batch(task, 0))
        assert next(firing) is None
        task.made.append(6)
        with pytest.raises(StopIteration):
            next(firing)
    drive(body, batch=batch(task, 0))
    assert (body.phase, context.leaves_itself, len(body._learner.opened)) == ("leaving", True, 3)
    assert context.published[-1]["spent"]["tokens"] == 24 + 18


def test_losses_that_are_not_finite_are_counted_those_that_healing_drops_too() -> None:
    task = SmallTask()
    body, parts, context = stepping(task)
    watch(context)
    bad = {name: np.full_like(values, np.nan) for name, values in batch(task, 0).items()}
    drive(body, batch=batch(task, 0))
    for _ in range(3):
        drive(body, batch=bad)
    assert context.published[-1]["sick"]
    told = [drive(body, update={("syncer/0", part.index): update(part, 1, 0.5)})[1] for part in parts]
    told += [drive(body, batch=batch(task, position))[1] for position in range(1, 5)]
    found = [report["not_finite"] for each in told for report in reports(each)]
    assert found[-1] == 3
    assert not body._sick


def test_a_last_version_is_adopted_whole() -> None:
    task = SmallTask()
    body, parts, _ = opened(task, alpha=0.5)
    drive(body, update={("syncer/0", part.index): update(part, 0, 0.5) for part in parts})
    drive(body, batch=batch(task, 0))
    drive(
        body, update={("syncer/0", part.index): update(part, 1, 2.0, clock=[(0, 1, 8)], kind="final") for part in parts}
    )
    for part in parts:
        np.testing.assert_array_equal(np.asarray(body._learner.extract(part.index)), np.full(part.size, 2.0))
