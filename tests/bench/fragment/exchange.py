"""Decoupled DiLoCo with nothing beside learners and shard: no host holds the model for others, so that memory is that
of the exchange alone. The shard evaluates what it publishes, where it is."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import partition
from isthmus.ops.island.scores import evaluated
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.receive import Receive
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.pacer import Pacer
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.update_settings import step_tokens_of
from isthmus.runtime.graph.template import AnyOf, Latest, Queue, Quorum

SEEN = 1 << 16


class Outer(OuterStep):
    """An outer step that keeps its state to itself."""

    outputs = ("update", "merged", "evaluation", "final")
    noted: ClassVar = {}

    def __call__(self, gradient: Any, kept: Any = None, wanted: Any = None) -> dict[str, Any]:
        """The update; of a last version, the loss and a sample too."""
        emitted = super().__call__(gradient, kept, wanted)
        told = {port: item for port, item in emitted.items() if port in ("update", "merged")}
        if final := emitted.get("final"):
            p, trained = gradient["fragment"], sum(tokens for _, _, tokens in gradient["totals"])
            sample = self._theta[p][:SEEN]
            loss = float(np.square(sample - np.float32(1.0)).mean())
            told["evaluation"] = evaluated("final", {"loss": loss}, trained)
            told["final"] = {**final, "tensors": {f"sample/{p}": sample}}
        return told


def build(
    job: Job, *, fragments: int = 1, interval: int = 4, overlap: int = 1, momentum: float = 0.0, code: str = "float32"
) -> ProgramGraph:
    """The graph; answers and updates are float32, bf16, int8 or int4."""
    parts = partition(job.layout, fragments)
    graph = ProgramGraph("exchange")
    learner, syncer = graph.role("learner", replicas=(1, 8)), graph.role("syncer", replicas=(1, 1))
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node(
        "inner-step",
        partial(InnerStep, job.task, fragments=parts, report_every=1, run=RunTerms(tokens=job.tokens)),
        never_waits=True,
    )
    send = learner.node("fragment-send", partial(FragmentSend, parts, push=code))
    pacer = syncer.node(
        "pacer",
        partial(
            Pacer,
            fragments=fragments,
            shards=1,
            interval=interval,
            overlap=overlap,
            quorum=job.learners,
            grace=True,
            gamma=0.8,
            learners=job.learners,
            step_tokens=step_tokens_of(job),
            tokens=job.tokens,
            push=code,
            update=code,
            sizes=[part.size for part in parts],
        ),
        fires=AnyOf("progress", "merged", "control"),
    )
    merge = syncer.node(
        "merge",
        partial(Merge, parts, step_tokens=step_tokens_of(job), method="rda", lr=0.7, momentum=momentum),
        fires=Quorum(port="answer", key="round", opened_by="round", count_min=job.learners),
    )
    outer = syncer.node("outer-step", partial(Outer, parts, lr=0.7, momentum=momentum, update=code))
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(pacer["place"], data["place"], Latest("slot"), to=learner.all)
    graph.edge(merge["reached"], pacer["reached"], Latest("fragment"))
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    graph.edge(send["answer"], merge["answer"], Latest("fragment"), to=syncer.at("fragment"))
    graph.edge(pacer["round"], merge["round"], Queue(capacity=2 * fragments + 2))
    graph.edge(merge["gradient"], outer["gradient"], Queue(capacity=2 * fragments + 2))
    graph.edge(outer["merged"], pacer["merged"], Latest("fragment"))
    graph.edge(step["progress"], pacer["progress"], Latest(), to=syncer.all)
    if code == "float32":
        graph.edge(outer["update"], step["update"], Latest("fragment"), to=learner.all)
        graph.edge(pacer["pull"], step["pull"], Latest("fragment"), to=learner.all)
    else:
        receive = learner.node("receive", partial(Receive, parts), fires=AnyOf("update", "pull"))
        graph.edge(outer["update"], receive["update"], Latest("place"), to=learner.all)
        graph.edge(pacer["pull"], receive["pull"], Latest("fragment"), to=learner.all)
        graph.edge(receive["update"], step["update"], Latest("fragment"))
        graph.edge(receive["pull"], step["pull"], Latest("fragment"))
    graph.train(
        reports=step["report"],
        control=pacer["control"],
        model=outer["final"],
        evaluation=outer["evaluation"] if "evaluation" in outer.outputs else None,
        merges=outer["merged"],
        changes=pacer["changed"],
        held=pacer["held"],
        loans=(step["moments"], step["loan"]),
    )
    return graph
