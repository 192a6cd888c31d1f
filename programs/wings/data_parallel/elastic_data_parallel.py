"""Elastic data-parallel training: a mean of gradients at every step, of the learners that are there.

    learner role:  data --Queue--> inner-step
    syncer role:   caller --Queue--> average [Quorum of all members] --averaged--> caller
    between:       inner-step ==vote==> average        caller ==call, with the mean==> inner-step

Like data-parallel it waits for every member at every step. But a member that dies is dropped, and the others make the
step; one that comes, or comes back, gets the state of another and is a member two steps later. If the syncer dies, all
go back to the last snapshot, which the recorder keeps.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.exchange.messages import SECONDS
from isthmus.ops.island.evaluate import EvaluateModel
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.settings import checked
from isthmus.programs.update_settings import SnapshotSeconds, check_gradients, step_tokens_most, subject
from isthmus.programs.wings.data_parallel.elastic_rounds import Average, Caller
from isthmus.programs.wings.data_parallel.gradient_step import ElasticStep
from isthmus.runtime.graph.template import AnyOf, Latest, Queue, Quorum
from isthmus.runtime.ids import LEARNERS_MAX

EVALUATIONS: Final = 20
"""Models that the learners send in a run."""


NAME: Final = "elastic-data-parallel"


@checked(subject(NAME))
def build(job: Job, *, snapshot_seconds: SnapshotSeconds = SECONDS) -> ProgramGraph:
    """The graph; ConfigError for a task whose gradients cannot be averaged, and for settings out of range."""
    check_gradients(job, NAME)
    graph = ProgramGraph(NAME)
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
    syncer = graph.role("syncer", replicas=(1, 1))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    emit_every = max(1, job.steps // EVALUATIONS)
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node(
        "inner-step",
        partial(ElasticStep, job.task, tokens=job.tokens, emit_every=emit_every, snapshot_seconds=snapshot_seconds),
    )
    rounds = AnyOf("progress", "averaged", "kept", "control")
    caller = syncer.node("caller", partial(Caller, learners=job.learners, tokens=job.tokens), fires=rounds)
    everybody = Quorum(port="vote", key="round", opened_by="round", count_min=job.learners)
    average = syncer.node(
        "average", partial(Average, partition(job.layout, 1), tokens_most=step_tokens_most(job)), fires=everybody
    )
    evaluate = evaluator.node("evaluate", partial(EvaluateModel, job.task, tokens=job.tokens, times=job.evaluations))

    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(caller["place"], data["place"], Latest("slot"), to=learner.all)
    graph.edge(step["vote"], average["vote"], Latest(), to=syncer.all)
    graph.edge(caller["round"], average["round"], Queue(capacity=2))
    graph.edge(average["averaged"], caller["averaged"], Latest())
    graph.edge(caller["call"], step["call"], Latest(), to=learner.all)
    graph.edge(step["progress"], caller["progress"], Latest(), to=syncer.all)
    graph.edge(step["model"], evaluate["model"], Latest(), to=evaluator.all)
    graph.train(
        reports=step["progress"],
        control=caller["control"],
        model=evaluate["final"],
        evaluation=evaluate["evaluation"],
        counts_budget=True,
    )
    graph.keep(step["state"], caller["kept"])
    return graph
