"""Data-parallel training: the learners' gradients are averaged at every step, by a ring all-reduce.

    learner role:  data --Queue--> inner-step --part, Queue--> ring --mean, Queue--> inner-step
    between:       ring ==passed, Queue==> ring of the next learner, 2 M - 1 times a step

No syncer, and no learner steps before all have: any learner that is slow, or gone, holds up all others. The number of
learners is part of the graph. The recorder keeps snapshots of the state, from which they go on where all of them begin
again.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.messages import SECONDS
from isthmus.ops.exchange.ring import START, Ring
from isthmus.ops.island.evaluate import EvaluateModel
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.settings import checked
from isthmus.programs.update_settings import SnapshotSeconds, check_gradients, step_tokens_most, subject
from isthmus.programs.wings.data_parallel.gradient_step import NO_MEAN, GradientStep
from isthmus.runtime.graph.template import Latest, Queue

EVALUATIONS: Final = 20
"""Models that a learner sends in a run."""


NAME: Final = "data-parallel"


@checked(subject(NAME))
def build(job: Job, *, snapshot_seconds: SnapshotSeconds = SECONDS) -> ProgramGraph:
    """The graph; ConfigError for a task whose gradients cannot be averaged, and for settings out of range."""
    check_gradients(job, NAME)
    graph = ProgramGraph(NAME)
    learner = graph.role("learner", replicas=(job.learners, job.learners))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node(
        "inner-step",
        partial(
            GradientStep,
            job.task,
            learners=job.learners,
            tokens=job.tokens,
            emit_every=max(1, job.steps // EVALUATIONS),
            snapshot_seconds=snapshot_seconds,
        ),
    )
    ring = learner.node("ring", partial(Ring, job.learners, tokens_most=step_tokens_most(job)))
    evaluate = evaluator.node("evaluate", partial(EvaluateModel, job.task, tokens=job.tokens, times=job.evaluations))

    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(step["part"], ring["mine"], Queue(capacity=2 * job.learners))
    graph.edge(ring["passed"], ring["neighbour"], Queue(capacity=2, initial=(START,)), to=learner.next)
    graph.edge(ring["mean"], step["mean"], Queue(capacity=2, initial=(NO_MEAN,)))
    graph.edge(step["hello"], step["hello"], Latest(), to=learner.all)
    graph.edge(step["model"], evaluate["model"], Latest(), to=evaluator.all)
    graph.edge(step["place"], data["place"], Latest("slot"))
    graph.train(
        reports=step["progress"],
        control=step["control"],
        model=evaluate["final"],
        evaluation=evaluate["evaluation"],
        counts_budget=True,
    )
    graph.keep(step["state"], step["kept"])
    return graph
