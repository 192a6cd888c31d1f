"""Decoupled DiLoCo (arXiv 2604.21428): learners that never wait, and a syncer that merges what has arrived.

    learner role:  data --Queue--> inner-step --Latest(fragment)--> fragment-send
    syncer role:   pacer --Queue--> merge [Quorum] --Queue--> outer-step
    between:       pacer ==pull==> inner-step        fragment-send ==answer==> merge
                   outer-step ==update==> inner-step, evaluator        inner-step ==progress==> every pacer

Everything that crosses between hosts is Latest, and inner-step requires only its own data: `verify` proves that it is
free-running. A syncer shard s owns the fragments p with p mod S = s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.adaptive import AUTO, first_interval
from isthmus.ops.exchange.fragments import Cut, count_default, fragments_count, partition, units_max
from isthmus.ops.island.evaluate import Evaluate
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.pacer import Pacer
from isthmus.programs.sweeps import OUTER_DECOUPLED, interval_default
from isthmus.programs.update_settings import LEARNERS_MAX, Format, format_faults, outer_settings, to_learner, updates_in
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.template import AnyOf, Graph, Job, Latest, Queue, Quorum

Rule = Literal["rda", "average"]


def build(
    job: Job,
    *,
    fragments: Cut | None = None,
    interval: int | Literal["auto"] | None = None,
    overlap: int | Literal["auto"] = 2,
    quorum: int = 1,
    grace: bool = True,
    late: Literal["count", "refuse"] = "count",
    gamma: float = 0.8,
    shards: int = 1,
    merge: Rule = "rda",
    alpha: float = 0.0,
    bounded: bool = True,
    push: Format | Literal["auto"] = "int4",
    update: Format | Literal["auto"] = "float32",
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
) -> Graph:
    """The graph. ConfigError, with every fault, for settings out of range.

    - `fragments`: P; by the size of the model if absent; 'layer' or 'tensor': one for each.
    - `interval`: H, inner steps between two merges of one fragment; if absent 24, or fewer (`programs.sweeps`).
    - `overlap`: tau, the inner steps that a round may take. `quorum`: K, the answers that a round needs.
    - `grace`: whether the syncer waits for more answers while that costs nothing; `gamma`: its safety margin, below 1.
    - `late`: an answer that is late for its round counts in the next of its fragment, or is refused, as published.
    - `shards`: S, syncers. `merge`: 'rda' or 'average'. `alpha`: 0, because the accounts have no work that survives.
    - `bounded`: one learner's answer counts only as far as its length is in proportion to others'.
    - `push`, `update`: the wire formats of outer gradients and of published versions: 'float32', 'bf16', 'int8' or
      'int4'; these, `interval` and `overlap` may be 'auto': they follow the links (`ops.exchange`).
    - `outer_lr`, `outer_momentum`: eta and mu; by the number of sweeps of the run if absent.
    """
    if interval is None:
        interval = interval_default(job, least=overlap if isinstance(overlap, int) else 1)
    settings = dict(locals())
    settings.pop("job")
    faults = list(_faults(job, settings))
    if faults:
        raise ConfigError.of(faults)
    parts = partition(job.layout, fragments if fragments is not None else count_default(job.layout))
    steps = first_interval(interval)
    lr, momentum = outer_settings(job, steps, outer_lr, outer_momentum, OUTER_DECOUPLED)
    graph = Graph("decoupled-diloco")
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
    syncer = graph.role("syncer", replicas=(shards, shards))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    data = learner.node("data", Batches, job.task, learners=job.learners, slots=job.slots_max)
    step = learner.node(
        "inner-step",
        InnerStep,
        job.task,
        fragments=parts,
        report_every=math.ceil(steps / len(parts)),
        tokens=job.tokens,
        alpha=alpha,
        push=push,
        free_running=True,
        tells_links=AUTO in (push, update, interval, overlap),
    )
    send = learner.node("fragment-send", FragmentSend, parts, push=push)
    pacer = syncer.node(
        "pacer",
        Pacer,
        fragments=len(parts),
        shards=shards,
        interval=interval,
        overlap=overlap,
        quorum=quorum,
        grace=grace,
        late=late,
        gamma=gamma,
        learners=job.learners,
        tokens=job.tokens,
        step_tokens=job.step_tokens,
        fires=AnyOf("progress", "merged", "control"),
        push=push,
        update=update,
        sizes=[part.size for part in parts],
    )
    votes = Quorum(port="answer", key="round", opened_by="round", count_min=quorum)
    merging = syncer.node(
        "merge",
        Merge,
        parts,
        step_tokens=job.step_tokens,
        method=merge,
        bounded=bounded,
        lr=lr,
        momentum=momentum,
        fires=votes,
    )
    outer = syncer.node("outer-step", OuterStep, parts, lr=lr, momentum=momentum, update=update)
    evaluate = evaluator.node("evaluate", Evaluate, job.task, parts, tokens=job.tokens, fires=AnyOf("update"))

    rounds_max = 2 * len(parts) + 2
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(pacer["place"], data["place"], Latest("slot"))
    graph.edge(merging["reached"], pacer["reached"], Latest("fragment"))
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    graph.edge(send["answer"], merging["answer"], Latest("fragment"), to=syncer.at("fragment"))
    graph.edge(pacer["round"], merging["round"], Queue(capacity=rounds_max))
    graph.edge(merging["gradient"], outer["gradient"], Queue(capacity=rounds_max))
    graph.edge(outer["merged"], pacer["merged"], Latest("fragment"))
    to_learner(graph, learner, outer, pacer["pull"], step)
    graph.edge(updates_in(graph, evaluator, outer), evaluate["update"], Latest("fragment"))
    graph.edge(step["progress"], pacer["progress"], Latest())
    return graph


def _faults(job: Job, settings: dict[str, Any]) -> Iterator[Fault]:
    """Everything that is out of range."""

    def fault(name: str, expected: str, do: str) -> Fault:
        return Fault(f"setting program.{name} of decoupled-diloco", expected, repr(settings[name]), do)

    fragments, units = settings["fragments"], units_max(job.layout)
    if isinstance(fragments, int) and not 1 <= fragments <= units:
        expected = f"1 to {units}, the units of this model, or 'layer' or 'tensor'"
        yield fault("fragments", expected, "Choose one of these, or leave it out.")
    interval, overlap = settings["interval"], settings["overlap"]
    if interval != AUTO and interval < 1:
        yield fault("interval", "at least 1 inner step, or 'auto'", "The published interval is 24.")
    elif overlap != AUTO and not 0 <= overlap <= first_interval(interval):
        expected = f"0 to interval = {first_interval(interval)} inner steps, or 'auto'"
        yield fault("overlap", expected, "Lower the overlap, or raise the interval.")
    if not 1 <= settings["quorum"] <= job.learners:
        yield fault("quorum", f"1 to the number of learners, {job.learners}", "Lower the quorum, or add learners.")
    if not 0 < settings["gamma"] < 1:
        yield fault("gamma", "a safety margin above 0 and below 1", "The default is 0.8.")
    parts = count_default(job.layout) if fragments is None else fragments_count(job.layout, fragments)
    shards_max = parts if 1 <= parts <= units else count_default(job.layout)
    if not 1 <= settings["shards"] <= shards_max:
        yield fault("shards", f"1 to the number of fragments, {shards_max}", "A shard needs a fragment to serve.")
    if settings["merge"] not in get_args(Rule):
        yield fault("merge", "'rda' or 'average'", "Choose one of them.")
    yield from format_faults("decoupled-diloco", settings, others=(AUTO,))
    if settings["alpha"]:
        do = "Leave it out: what survived would be merged later, and booked as overwritten. streaming-diloco mixes."
        yield fault("alpha", "0: every update replaces the learner's fragment", do)
    if settings["outer_lr"] is not None and not settings["outer_lr"] > 0:
        yield fault("outer_lr", "a number above 0", "Leave it out for the default.")
    if settings["outer_momentum"] is not None and not 0 <= settings["outer_momentum"] < 1:
        yield fault("outer_momentum", "at least 0 and below 1", "Leave it out for the default.")
