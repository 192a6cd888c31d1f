"""Streaming DiLoCo (arXiv 2501.18512): the model in P fragments, one merged every H / P steps, with tau steps to do it.

    learner role:  data --Queue--> inner-step <--permit, Queue-- gate           inner-step --fragment--> fragment-send
    syncer role:   conductor --Queue--> merge [Quorum of all] --Queue--> outer-step
    between:       outer-step ==update==> gate    conductor ==pull==> gate    fragment-send ==answer==> merge

The same nodes as in diloco. A fragment leaves at one boundary, and its outer step is adopted `overlap` steps later, at
the same step by all learners. If it has not arrived by then, they wait for it: communication is hidden, but training
still in lock-step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import Cut, count_default, fragments_count, partition, units_max
from isthmus.ops.island.evaluate import Evaluate
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.lock_step import LockStep, StepGate
from isthmus.ops.syncer.conductor import TICK_NS, Conductor, Tick, open_rounds_max
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.sweeps import interval_default
from isthmus.programs.update_settings import (
    LEARNERS_MAX,
    Format,
    Rule,
    fault,
    faults,
    outer_settings,
    to_learner,
    updates_in,
)
from isthmus.runtime.clock import Duration
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Job, Latest, Queue, Quorum


def build(
    job: Job,
    *,
    fragments: Cut | None = None,
    interval: int | None = None,
    overlap: int = 2,
    alpha: float = 0.5,
    merge: Rule = "average",
    push: Format = "float32",
    update: Format = "float32",
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
) -> Graph:
    """The graph. ConfigError, with every fault, for settings out of range.

    - `fragments`: P; by the size of the model if absent; 'layer' or 'tensor': one for each.
    - `interval`: H, inner steps between two merges of one fragment; if absent 24, or fewer (`programs.sweeps`).
    - `overlap`: tau, the steps between a fragment's capture and the adoption of its merged value.
    - `alpha`: how much of a learner's own fragment survives that. `merge`: 'average' (weighted by tokens) or 'rda'.
    - `push`, `update`: the wire formats of outer gradients and of published versions: 'float32', 'bf16', 'int8' or
      'int4'.
    - `outer_lr`, `outer_momentum`: eta and mu of the outer step; by the number of sweeps of the run if absent.
    """
    if interval is None:
        count = count_default(job.layout) if fragments is None else fragments_count(job.layout, fragments)
        interval = interval_default(job, least=max(count, overlap + 1))
    given = dict(locals())
    given.pop("job")
    if found := list(_faults(job, given)):
        raise ConfigError.of(found)
    parts = partition(job.layout, fragments if fragments is not None else count_default(job.layout))
    lr, momentum = outer_settings(job, interval, outer_lr, outer_momentum)
    graph = Graph("streaming-diloco")
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
    syncer = graph.role("syncer", replicas=(1, 1))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    data = learner.node("data", Batches, job.task, learners=job.learners, slots=job.slots_max)
    step = learner.node(
        "inner-step",
        LockStep,
        job.task,
        fragments=parts,
        report_every=math.ceil(interval / len(parts)),
        tokens=job.tokens,
        overlap=overlap,
        alpha=alpha,
        push=push,
    )
    send = learner.node("fragment-send", FragmentSend, parts, push=push)
    gate = learner.node(
        "gate",
        StepGate,
        fragments=len(parts),
        overlap=overlap,
        free=min(overlap, interval // len(parts) - 1),
        fires=AnyOf("update", "pull", "progress"),
    )
    tick = syncer.node("tick", Tick, fires=Every(Duration(TICK_NS)))
    conductor = syncer.node(
        "conductor",
        Conductor,
        fragments=len(parts),
        interval=interval,
        overlap=overlap,
        learners=job.learners,
        tokens=job.tokens,
        tokens_per_batch=job.tokens_per_batch,
        step_tokens=job.step_tokens,
        fires=AnyOf("progress", "merged", "control", "held", "tick"),
    )
    everybody = Quorum(port="answer", key="round", opened_by="round", count_min=job.learners)
    merging = syncer.node(
        "merge", Merge, parts, step_tokens=job.step_tokens, method=merge, lr=lr, momentum=momentum, fires=everybody
    )
    outer = syncer.node("outer-step", OuterStep, parts, lr=lr, momentum=momentum, update=update)
    evaluate = evaluator.node("evaluate", Evaluate, job.task, parts, tokens=job.tokens, fires=AnyOf("update"))

    rounds_max = open_rounds_max(overlap, len(parts), interval) + len(parts)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(conductor["place"], data["place"], Latest("slot"))
    graph.edge(merging["reached"], conductor["reached"], Latest("fragment"))
    graph.edge(tick["tick"], conductor["tick"], Latest())
    graph.edge(gate["permit"], step["permit"], Queue(capacity=2 * interval + 2))
    graph.edge(gate["update"], step["update"], Latest("fragment"))
    graph.edge(gate["pull"], step["pull"], Latest("fragment"))
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    graph.edge(send["answer"], merging["answer"], Latest("fragment"))
    graph.edge(conductor["round"], merging["round"], Queue(capacity=rounds_max))
    to_learner(graph, learner, outer, conductor["pull"], gate, in_turns=True)
    graph.edge(merging["gradient"], outer["gradient"], Queue(capacity=rounds_max))
    graph.edge(updates_in(graph, evaluator, outer), evaluate["update"], Latest("fragment"))
    graph.edge(outer["merged"], conductor["merged"], Latest("fragment"))
    graph.edge(step["progress"], conductor["progress"], Latest())
    graph.edge(step["progress"], gate["progress"], Latest())
    return graph


def _faults(job: Job, settings: dict[str, Any]) -> Iterator[Fault]:
    """Everything that is out of range."""
    name, fragments, interval = "streaming-diloco", settings["fragments"], settings["interval"]
    units = units_max(job.layout)
    yield from faults(name, settings)
    if isinstance(fragments, int) and not 1 <= fragments <= units:
        do = "Choose one of these, or leave it out."
        expected = f"1 to {units}, the units of this model, or 'layer' or 'tensor'"
        yield fault(name, settings, "fragments", expected, do)
    parts = count_default(job.layout) if fragments is None else fragments_count(job.layout, fragments)
    if 1 <= interval < parts <= units:
        expected = f"at least the number of fragments, {parts}: one of them leaves at a time"
        yield fault(name, settings, "interval", expected, "Raise the interval, or ask for fewer fragments.")
    if not 0 <= settings["overlap"] < max(interval, 1):
        expected = f"0 or more, and below interval = {interval} inner steps"
        yield fault(name, settings, "overlap", expected, "Lower the overlap, or raise the interval.")
    if not 0 <= settings["alpha"] < 1:
        yield fault(name, settings, "alpha", "at least 0 and below 1", "0 lets every update replace the fragment.")
