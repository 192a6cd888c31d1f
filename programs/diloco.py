"""DiLoCo (arXiv 2311.08105): H inner steps alone, then all learners wait for the mean of their outer gradients.

    learner role:  data --Queue--> inner-step <--permit, Queue-- gate         inner-step --fragment--> outer-gradient
    syncer role:   conductor --Queue--> merge [Quorum of all] --Queue--> outer-step
    between:       outer-step ==update==> gate    conductor ==pull==> gate    outer-gradient ==answer==> merge

The model is one fragment. inner-step needs a permit for every step, and gate gives those of the next H steps when the
outer step is done: so every learner waits for the slowest, and for the transfers there and back.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.island.evaluate import Evaluate
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.lock_step import LockStep, StepGate
from isthmus.ops.syncer.conductor import TICK_NS, Conductor, Tick
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.settings import checked
from isthmus.programs.sweeps import interval_default
from isthmus.programs.update_settings import (
    LEARNERS_MAX,
    PUSH,
    UPDATE,
    Format,
    Interval,
    MergeRule,
    OuterLr,
    OuterMomentum,
    connect,
    hold_whole,
    outer_settings,
    step_tokens_of,
    subject,
    to_learner,
    updates_in,
)
from isthmus.runtime.clock import Duration
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Job, Latest, Queue, Quorum

NAME: Final = "diloco"


@checked(subject(NAME))
def build(
    job: Job,
    *,
    interval: Interval = None,
    merge: MergeRule = "average",
    push: Annotated[Format, PUSH] = "float32",
    update: Annotated[Format, UPDATE] = "float32",
    outer_lr: OuterLr = None,
    outer_momentum: OuterMomentum = None,
) -> Graph:
    """The graph; ConfigError, with every fault, for settings out of range."""
    interval = interval_default(job) if interval is None else interval
    parts = partition(job.layout, 1)
    lr, momentum = outer_settings(job, interval, outer_lr, outer_momentum)
    graph = Graph(NAME)
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
    syncer = graph.role("syncer", replicas=(1, 1))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node(
        "inner-step",
        partial(LockStep, job.task, fragments=parts, report_every=interval, tokens=job.tokens, overlap=0, push=push),
    )
    send = learner.node("outer-gradient", partial(FragmentSend, parts, push=push))
    gate = learner.node(
        "gate", partial(StepGate, fragments=1, overlap=0, free=0), fires=AnyOf("update", "pull", "progress")
    )
    tick = syncer.node("tick", Tick, fires=Every(Duration(TICK_NS)))
    conductor = syncer.node(
        "conductor",
        partial(
            Conductor,
            fragments=1,
            interval=interval,
            overlap=0,
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
    outer = syncer.node("outer-step", partial(OuterStep, parts, lr=lr, momentum=momentum, update=update))
    evaluate = evaluator.node("evaluate", partial(Evaluate, job.task, parts, tokens=job.tokens), fires=AnyOf("update"))

    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(conductor["place"], data["place"], Latest("slot"), to=learner.all)
    graph.edge(merging["reached"], conductor["reached"], Latest("fragment"))
    graph.edge(tick["tick"], conductor["tick"], Latest())
    graph.edge(gate["permit"], step["permit"], Queue(capacity=interval + 2))
    graph.edge(gate["update"], step["update"], Latest("fragment"))
    graph.edge(gate["pull"], step["pull"], Latest("fragment"))
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    graph.edge(send["answer"], merging["answer"], Latest("fragment"), to=syncer.all)
    graph.edge(conductor["round"], merging["round"], Queue(capacity=2))
    arriving = to_learner(graph, learner, outer, conductor["pull"], gate, in_turns=True)
    graph.edge(merging["gradient"], outer["gradient"], Queue(capacity=2))
    published = updates_in(graph, evaluator, outer)
    connect(graph, published, evaluate["update"], Latest("fragment"))
    graph.edge(outer["merged"], conductor["merged"], Latest("fragment"))
    graph.edge(step["progress"], conductor["progress"], Latest(), to=syncer.all)
    graph.edge(step["progress"], gate["progress"], Latest())
    graph.train(
        reports=step["report"],
        control=conductor["control"],
        model=outer["final"],
        evaluation=evaluate["evaluation"],
        merges=outer["merged"],
        held=conductor["held"],
        counts_budget=True,
    )
    hold_whole(graph, step, conductor, outer, published=published, copies=arriving)
    graph.chose(interval=interval, outer_lr=lr, outer_momentum=momentum)
    return graph
