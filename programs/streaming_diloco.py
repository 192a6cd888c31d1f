"""Streaming DiLoCo (arXiv 2501.18512): the model in P fragments, one merged every H / P steps, with tau steps to do it.

    learner role:  data --Queue--> inner-step <--permit, Queue-- gate           inner-step --fragment--> fragment-send
    syncer role:   conductor --Queue--> merge [Quorum of all] --Queue--> outer-step
    between:       outer-step ==update==> gate    conductor ==pull==> gate    fragment-send ==answer==> merge

A fragment leaves at one boundary, and its outer step is adopted `overlap` steps later, at
the same step by all learners. If it has not arrived by then, they wait for it: communication is hidden, but training
still in lock-step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import Cut, Fragment, count_default, partition, rows_max
from isthmus.ops.exchange.requested import Format
from isthmus.ops.island.evaluate import Evaluate
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.lock_step import LockStep, StepGate
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.syncer.conductor import TICK_NS, Conductor, Tick, open_rounds_max
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.settings import Setting, checked
from isthmus.programs.sweeps import interval_default
from isthmus.programs.update_settings import (
    PUSH,
    UPDATE,
    Fragments,
    Interval,
    MergeRule,
    OuterLr,
    OuterMomentum,
    connect,
    fragment_faults,
    fragments_of,
    hold_whole,
    outer_settings,
    rounds_in,
    setting_fault,
    step_tokens_of,
    subject,
    to_learner,
    updates_in,
)
from isthmus.runtime.clock import Duration
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph.template import AnyOf, Every, Latest, Queue, Quorum
from isthmus.runtime.ids import LEARNERS_MAX

NAME: Final = "streaming-diloco"


def _rules(job: Job, values: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of settings that depend on the model or each other."""

    yield from fragment_faults(job, values["fragments"], NAME)
    overlap = values["overlap"]
    interval = _interval(job, values["interval"], values["fragments"], overlap)
    parts = fragments_of(job, values["fragments"])
    if 1 <= interval < parts <= rows_max(job.layout):
        expected = f"at least the number of fragments, {parts}: one of them leaves at a time"
        yield setting_fault(NAME, "interval", interval, expected, "Raise the interval, or ask for fewer fragments.")
    if not 0 <= overlap < max(interval, 1):
        expected = f"0 or more, and below interval = {interval} inner steps"
        yield setting_fault(NAME, "overlap", overlap, expected, "Lower the overlap, or raise the interval.")


def _interval(job: Job, interval: int | None, fragments: Cut | None, overlap: int) -> int:
    """The interval, or the default one."""
    if interval is not None:
        return interval
    return interval_default(job, least=max(fragments_of(job, fragments), overlap + 1))


@checked(subject(NAME), _rules)
def build(
    job: Job,
    *,
    fragments: Fragments = None,
    interval: Interval = None,
    overlap: Annotated[
        int,
        Setting(
            "tau, the steps between a fragment's capture and the adoption of its merged value; below `interval`.",
            resumes=True,
        ),
    ] = 2,
    alpha: Annotated[
        float,
        Setting(
            "How much of a learner's own fragment survives an update.",
            ge=0,
            le=1,
            remedy="0 lets every update replace the fragment; 1 keeps it as it is, so that one learner trains alone.",
            resumes=True,
        ),
    ] = 0.5,
    merge: MergeRule = "average",
    push: Annotated[Format, PUSH] = "float32",
    update: Annotated[Format, UPDATE] = "float32",
    outer_lr: OuterLr = None,
    outer_momentum: OuterMomentum = None,
) -> ProgramGraph:
    """The graph; ConfigError, with every fault, for settings out of range."""
    interval = _interval(job, interval, fragments, overlap)
    parts = partition(job.layout, count_default(job.layout) if fragments is None else fragments)
    outer = outer_settings(job, interval, outer_lr, outer_momentum)
    graph = in_turns(
        NAME, job, parts, interval, outer, overlap=overlap, alpha=alpha, merge=merge, push=push, update=update
    )
    graph.chose(fragments=len(parts))
    return graph


def in_turns(
    name: str,
    job: Job,
    parts: Sequence[Fragment],
    interval: int,
    outer: tuple[float, float],
    *,
    overlap: int,
    alpha: float,
    merge: MergeRule,
    push: Format,
    update: Format,
) -> ProgramGraph:
    """The graph `name` of learners in lock-step; `outer` are learning rate and momentum of the outer step."""
    lr, momentum = outer
    graph = ProgramGraph(name)
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
    syncer = graph.role("syncer", replicas=(1, 1))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node(
        "inner-step",
        partial(
            LockStep,
            job.task,
            fragments=parts,
            report_every=math.ceil(interval / len(parts)),
            run=RunTerms(tokens=job.tokens, evaluations=job.evaluations, learners=job.learners),
            overlap=overlap,
            exchange=FragmentExchange(push=push, alpha=alpha, frozen=job.frozen),
        ),
    )
    send = learner.node("fragment-send", partial(FragmentSend, parts, push=push))
    gate = learner.node(
        "gate",
        partial(StepGate, fragments=len(parts), overlap=overlap, free=min(overlap, interval // len(parts) - 1)),
        fires=AnyOf("update", "pull", "progress"),
    )
    tick = syncer.node("tick", Tick, fires=Every(Duration(TICK_NS)))
    conductor = syncer.node(
        "conductor",
        partial(
            Conductor,
            fragments=len(parts),
            interval=interval,
            overlap=overlap,
            learners=job.learners,
            tokens=job.tokens,
            tokens_per_batch=job.tokens_per_batch,
            step_tokens=step_tokens_of(job),
        ),
        fires=AnyOf("progress", "merged", "control", "held", "tick"),
    )
    everybody = Quorum(port="answer", key="round", opened_by="round", count_min=job.learners)
    merging = syncer.node(
        "merge",
        partial(Merge, parts, step_tokens=step_tokens_of(job), method=merge, lr=lr, momentum=momentum),
        fires=everybody,
    )
    stepping = syncer.node("outer-step", partial(OuterStep, parts, lr=lr, momentum=momentum, update=update))
    evaluate = evaluator.node(
        "evaluate",
        partial(Evaluate, job.task, parts, tokens=job.tokens, times=job.evaluations, frozen=job.frozen),
        fires=AnyOf("update"),
    )

    most = open_rounds_max(overlap, len(parts), interval) + len(parts)
    rounds_in(graph, conductor, merging, stepping, most=most)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(conductor["place"], data["place"], Latest("slot"), to=learner.all)
    graph.edge(tick["tick"], conductor["tick"], Latest())
    graph.edge(gate["permit"], step["permit"], Queue(capacity=2 * interval + 2))
    graph.edge(gate["update"], step["update"], Latest("fragment"))
    graph.edge(gate["pull"], step["pull"], Latest("fragment"))
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    graph.edge(send["answer"], merging["answer"], Latest("fragment"), to=syncer.all)
    arriving = to_learner(graph, learner, stepping, conductor["pull"], gate, in_turns=True)
    published = updates_in(graph, evaluator, stepping)
    connect(graph, published, evaluate["update"], Latest("fragment"))
    graph.edge(step["progress"], conductor["progress"], Latest(), to=syncer.all)
    graph.edge(step["progress"], gate["progress"], Latest())
    graph.train(
        reports=step["report"],
        control=conductor["control"],
        model=stepping["final"],
        evaluation=evaluate["evaluation"],
        merges=stepping["merged"],
        held=conductor["held"],
        counts_budget=True,
    )
    hold_whole(graph, step, conductor, stepping, published=published, copies=arriving)
    graph.chose(interval=interval, outer_lr=lr, outer_momentum=momentum)
    return graph
