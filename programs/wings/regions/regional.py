"""Decoupled DiLoCo on two levels: learners merge at the syncer of their region, regions at a global one.

    learner role:  data --Queue--> inner-step --Latest(fragment)--> fragment-send
    region role:   region-pacer --Queue--> region-merge [Quorum] --Queue--> regional-step
    syncer role:   pacer --Queue--> merge [Quorum] --Queue--> outer-step
    in a region:   region-pacer ==pull==> inner-step        fragment-send ==answer==> region-merge
                   regional-step ==update==> inner-step        inner-step ==progress==> region-pacer
    between:       pacer ==pull==> regional-step        regional-step ==answer==> merge
                   outer-step ==update==> regional-step, evaluator        regional-step ==progress==> pacer

Learner s is in region s mod N of N. Each level may have several shards, each with its own fragments (`region_parts`):
what is said of a region here is said of one of its shards. The bodies are those of `decoupled`, twice; `regional_step`
is a region's outer step, and answers the global syncer as a learner does. Everything that crosses between hosts is
Latest, and inner-step requires only its own data: `verify` proves that it is free-running.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import count_default, partition
from isthmus.ops.exchange.requested import Format
from isthmus.ops.exchange.wanted_settings import AUTO, first_interval
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.step_tokens import AtMost
from isthmus.ops.syncer.answer_rules import judging_rules, usual_rules
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.pacer import Pacer
from isthmus.ops.syncer.summed_merge import kept_by_default
from isthmus.programs.job import Job
from isthmus.programs.program_graph import REGION, ProgramGraph
from isthmus.programs.settings import Setting, checked
from isthmus.programs.shard_keeping import KEEPING, Keeps, Level
from isthmus.programs.sweeps import OUTER_DECOUPLED, OUTER_GLOBAL, OUTER_REGION
from isthmus.programs.update_settings import (
    PUSH,
    AutoInterval,
    Bounded,
    ClipAnswers,
    EpochsMax,
    Fragments,
    Gamma,
    MergeRule,
    Opposed,
    OuterLr,
    OuterMomentum,
    WeightShareMax,
    evaluated_in,
    fragment_faults,
    fragments_had,
    interval_of_links,
    outer_settings,
    overlap_faults,
    rounds_in,
    setting_fault,
    shard_faults,
    share_faults,
    step_tokens_of,
    subject,
    to_learner,
)
from isthmus.programs.wings.regions.region_answers import (
    OwnersAmong,
    OwnersWithin,
    RegionAnswers,
    RegionShares,
)
from isthmus.programs.wings.regions.region_parts import RegionParts
from isthmus.programs.wings.regions.regional_step import RegionalOffer, RegionalStep
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph.template import AnyOf, Latest, Queue, Quorum
from isthmus.runtime.ids import LEARNERS_MAX

NAME: Final = "regional-diloco"


def _rules(job: Job, values: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of settings that depend on the model, the learners, or each other."""

    yield from fragment_faults(job, values["fragments"], NAME)
    for name in ("shards", "region_shards"):
        yield from shard_faults(NAME, name, values[name], fragments_had(job, values["fragments"]))
    regions = values["regions"]
    yield from overlap_faults(NAME, job, values)
    if not 1 <= regions <= job.learners:
        expected = f"1 to the number of learners, {job.learners}: a region has one at least"
        yield setting_fault(NAME, "regions", regions, expected, "Name fewer regions, or add learners.")
        return
    least = job.learners // regions
    if not 1 <= values["quorum"] <= least:
        expected = f"1 to the learners of the smallest region, {least}"
        yield setting_fault(NAME, "quorum", values["quorum"], expected, "Lower the quorum, or add learners.")
    yield from share_faults(NAME, values["weight_share_max"], job.learners)
    if not 1 <= values["regions_quorum"] <= regions:
        expected = f"1 to the number of regions, {regions}"
        yield setting_fault(NAME, "regions_quorum", values["regions_quorum"], expected, "Lower the quorum.")


@checked(subject(NAME), _rules)
def build(
    job: Job,
    *,
    regions: Annotated[int, Setting("N, the number of regions; learner s is in region s mod N.")] = 2,
    shards: Annotated[int, Setting("The number of global syncers, at most one a fragment.")] = 1,
    region_shards: Annotated[int, Setting("The number of syncers of each region, at most one a fragment.")] = 1,
    fragments: Fragments = None,
    interval: AutoInterval = None,
    exchange: Annotated[
        int,
        Setting(
            "R, the merges of a fragment in a region between two exchanges of it with the other regions.",
            ge=1,
            le=1000,
            expected="1 to 1000 merges",
            remedy="2 halves the bytes between regions.",
            resumes=True,
        ),
    ] = 2,
    overlap: Annotated[
        int | Literal["auto"],
        Setting(
            "tau, the inner steps that a round of a region may take, at most `interval`; 'auto': by its links.",
            resumes=True,
        ),
    ] = 2,
    quorum: Annotated[
        int, Setting("K, the answers of learners that a round of a region needs, at most one a learner.", resumes=True)
    ] = 1,
    regions_quorum: Annotated[
        int, Setting("The answers of regions that a global round needs, at most one a region.", resumes=True)
    ] = 1,
    grace: Annotated[
        bool, Setting("Syncers wait for more answers while that costs no learner anything.", resumes=True)
    ] = True,
    gamma: Gamma = 0.8,
    keeps: Keeps = None,
    merge: MergeRule = "rda",
    bounded: Bounded = True,
    weight_share_max: WeightShareMax = 1.0,
    clip_answers: ClipAnswers = None,
    epochs_max: EpochsMax = None,
    opposed: Opposed = "tell",
    push: Annotated[Format | Literal["auto"], PUSH] = "int4",
    update: Annotated[
        Format | Literal["auto"],
        Setting("The format on the wire of the versions of a region; 'auto': by the links within it.", resumes=True),
    ] = "float32",
    regions_push: Annotated[
        Format | Literal["auto"],
        Setting(
            "The format on the wire of what regions send the global syncer; 'auto': by the links between them.",
            resumes=True,
        ),
    ] = "int4",
    regions_update: Annotated[
        Format | Literal["auto"],
        Setting("The format on the wire of global versions; 'auto': by the links between regions.", resumes=True),
    ] = "float32",
    outer_lr: OuterLr = None,
    outer_momentum: OuterMomentum = None,
    global_lr: Annotated[
        float | None,
        Setting(
            "The learning rate of the global outer step. Default: by the number of global sweeps of the run.",
            gt=0,
            expected="a number above 0",
            resumes=True,
        ),
    ] = None,
    global_momentum: Annotated[
        float | None,
        Setting(
            "The momentum of the global outer step. Default: by the number of global sweeps of the run.",
            ge=0,
            lt=1,
            resumes=True,
        ),
    ] = None,
) -> ProgramGraph:
    """The graph; ConfigError, with every fault, for settings out of range."""
    interval = interval_of_links(job, interval, overlap)
    steps, follows = first_interval(interval), AUTO in (push, update, interval, overlap)
    parts = partition(job.layout, count_default(job.layout) if fragments is None else fragments)
    global_lr, global_momentum = outer_settings(job, steps * exchange, global_lr, global_momentum, OUTER_GLOBAL)
    table = ((0, OUTER_REGION),) if global_momentum else OUTER_DECOUPLED
    lr, momentum = outer_settings(job, steps, outer_lr, outer_momentum, table)
    graph = ProgramGraph(NAME)
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
    of_regions = RegionParts(regions, region_shards, shards)
    region = graph.role(REGION, replicas=(of_regions.hosts, of_regions.hosts))
    graph.divide(regions)
    syncer = graph.role("syncer", replicas=(shards, shards))
    evaluator = graph.role("evaluator", replicas=(1, 1))

    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node(
        "inner-step",
        partial(
            InnerStep,
            job.task,
            fragments=parts,
            report_every=math.ceil(steps / len(parts)),
            run=RunTerms(tokens=job.tokens, evaluations=job.evaluations, learners=job.learners, epochs_max=epochs_max),
            exchange=FragmentExchange(push=push, tells_links=follows, frozen=job.frozen),
        ),
        never_waits=True,
    )
    kept = KEEPING[keeps or kept_by_default(-(-job.learners // regions), len(parts), region_shards, push)]
    kept_above = KEEPING[keeps or kept_by_default(regions, len(parts), shards, regions_push)]
    send = kept.sender(learner, parts, push)

    merges: dict[str, Any] = {"step_tokens": step_tokens_of(job), "method": merge}
    between = *judging_rules(bounded=bounded), RegionShares(regions), OwnersAmong()
    within = OwnersWithin(weight_share_max, regions)
    paces: dict[str, Any] = {"fragments": len(parts), "grace": grace, "gamma": gamma, "tokens": job.tokens}
    paces["sizes"] = [part.size for part in parts]
    region_pacer = region.node(
        "region-pacer",
        partial(
            Pacer,
            push=push,
            update=update,
            interval=interval,
            overlap=overlap,
            quorum=quorum,
            learners=job.learners,
            step_tokens=step_tokens_of(job),
            tier="region",
            regions=regions,
            shards=region_shards,
            **paces,
        ),
        fires=AnyOf("progress", "merged", "control", "begun", "first", "totals"),
    )
    votes = Quorum(port="answer", key="round", opened_by="round", count_min=quorum)
    judges = usual_rules(bounded=bounded, opposed=opposed, length_max=clip_answers, influence=within)
    inside = Level(
        region,
        of_regions.to_shard(region, parts),
        learner.at("slot").within(regions),
        "region-",
        shards=region_shards,
        regions=regions,
    )
    terms = {"lr": lr, "momentum": momentum, "rules": judges, **merges}
    region_nodes = kept.merging(inside, parts, votes, terms)
    regional = region.node(
        "regional-step",
        partial(
            RegionalOffer if kept_above.tells_ahead else RegionalStep,
            parts,
            lr=lr,
            momentum=momentum,
            push=regions_push,
            tells_links=AUTO in (regions_push, regions_update),
            parts=of_regions,
            share_max=weight_share_max,
            update=update,
        ),
        fires=AnyOf("gradient", "above", "pull", "standing", *(["wanted"] if kept_above.tells_ahead else [])),
    )

    # A region's step is a merge of one of its fragments, so that each fragment is due every `exchange` merges of it.
    turns = exchange * len(parts)
    pacer = syncer.node(
        "pacer",
        partial(
            Pacer,
            push=regions_push,
            update=regions_update,
            interval=turns,
            overlap=max(1, turns // 4),
            quorum=regions_quorum,
            learners=of_regions.hosts // of_regions.classes,
            step_tokens=AtMost(0),
            tier="regions",
            shards=shards,
            paths=of_regions if of_regions.is_split else None,
            **paces,
        ),
        fires=AnyOf("progress", "merged", "control"),
    )
    votes = Quorum(port="answer", key="round", opened_by="round", count_min=regions_quorum)
    above = Level(syncer, of_regions.to_global_shard(syncer), of_regions.to_region(region), shards=shards)
    terms = {"lr": global_lr, "momentum": global_momentum, "rules": between, "answers": RegionAnswers(), **merges}
    nodes = kept_above.merging(above, parts, votes, terms)
    publishes: dict[str, Any] = {"lr": global_lr, "momentum": global_momentum, "update": regions_update}
    outer = syncer.node("outer-step", partial(OuterStep, parts, **publishes))

    most = 2 * len(parts) + 2
    rounds_in(graph, region_pacer, region_nodes.merge, regional, most=most, ballot=region_nodes.ballot)
    rounds_in(graph, pacer, nodes.merge, outer, most=most, ballot=nodes.ballot)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    graph.edge(region_pacer["place"], data["place"], Latest("slot"), to=of_regions.to_learners(learner))
    if update == "float32":
        graph.edge(region_pacer["pull"], step["pull"], Latest("fragment"), to=of_regions.to_learners(learner))
        graph.edge(regional["update"], step["update"], Latest("fragment"), to=of_regions.to_learners(learner))
    else:
        to, back = of_regions.within_region(learner), of_regions.to_shard(region, parts)
        to_learner(graph, learner, regional, region_pacer["pull"], step, to=to, pulled=to, back=back)
    kept.connect(graph, send, region_nodes, inside, most=most)
    graph.edge(step["progress"], region_pacer["progress"], Latest(), to=of_regions.to_shards(region))
    graph.edge(region_pacer["standing"], regional["standing"], Latest())
    graph.edge(regional["begun"], region_nodes.merge["begun"], Latest("fragment"))
    graph.edge(regional["begun"], region_pacer["begun"], Latest("fragment"))
    graph.edge(regional["totals"], region_pacer["totals"], Latest())
    graph.edge(regional["first"], region_pacer["first"], Latest("fragment"))

    across = of_regions.to_regions(region, parts) if of_regions.shards > 1 else None
    arriving = to_learner(graph, region, outer, pacer["pull"], regional, update="above", to=across, pulled=across)
    kept_above.connect(graph, regional, nodes, above, most=most)
    graph.edge(regional["progress"], pacer["progress"], Latest(), to=of_regions.to_global(syncer))
    evaluation = evaluated_in(graph, evaluator, outer, job, parts)
    graph.train(
        reports=step["report"],
        control=(region_pacer["control"], pacer["control"]),
        model=outer["final"],
        evaluation=evaluation.losses,
        merges=outer["merged"],
        changes=(pacer["changed"], region_pacer["changed"]) if follows else pacer["changed"],
        held=pacer["held"],
        loans=(step["moments"], step["loan"]),
    )
    graph.hold(
        state=outer["state"],
        kept=outer["kept"],
        published=evaluation.taken,
        told=evaluation.told,
        copies=[arriving],
        held=[pacer["held"]],
        begins=nodes.merge["copy"],
    )
    graph.chose(fragments=len(parts), interval=interval, outer_lr=lr, outer_momentum=momentum)
    graph.chose(global_lr=global_lr, global_momentum=global_momentum)
    return graph
