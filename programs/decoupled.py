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
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from isthmus.ops.data.batches_node import Batches
from isthmus.ops.exchange.fragments import count_default, partition
from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.exchange.requested import Format
from isthmus.ops.exchange.wanted_settings import AUTO, first_interval
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.syncer.answer_rules import usual_rules
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.pacer import Pacer
from isthmus.ops.syncer.slow_learners import SpeedTerms
from isthmus.ops.syncer.summed_merge import kept_by_default
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.settings import Setting, checked, settings_of
from isthmus.programs.shard_keeping import KEEPING, Keeps, Level
from isthmus.programs.sweeps import OUTER_DECOUPLED, carry_default
from isthmus.programs.update_settings import (
    PUSH,
    UPDATE,
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
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph.template import AnyOf, Latest, Queue, Quorum
from isthmus.runtime.ids import LEARNERS_MAX, is_machine_name

NAME: Final = "decoupled-diloco"


def rules(name: str, job: Job, values: Mapping[str, Any], holders_min: int) -> Iterator[Fault]:
    """Faults of settings that depend on the model, the learners, or each other, in a program with this `name`; each
    fragment is trained by at least `holders_min` learners."""
    quorum = values["quorum"]
    yield from overlap_faults(name, job, values)
    if not 1 <= quorum <= holders_min:
        expected = f"1 to the number of learners, {holders_min}"
        if holders_min < job.learners:
            expected = f"1 to the learners of a module, {holders_min} at least"
        yield setting_fault(name, "quorum", quorum, expected, "Lower the quorum, or add learners.")
    yield from share_faults(name, values["weight_share_max"], holders_min)
    if isinstance(values["site_weight"], Mapping):
        yield from _site_faults(name, values["site_weight"])


def _site_faults(name: str, weights: Mapping[str, float]) -> Iterator[Fault]:
    """The faults of the weights of sites."""
    do = "Write for example {alpha = 2.0, beta = 1.0}."
    if not weights:
        yield setting_fault(name, "site_weight", weights, "a site at least", "Write 'equal', or leave it out.")
    for site, weight in weights.items():
        if not is_machine_name(site):
            expected = "names of machines: letters, digits, '.', '_' and '-', 64 at most"
            yield setting_fault(name, "site_weight", site, expected, do)
        if not 0 < weight < math.inf:
            yield setting_fault(name, "site_weight", weight, f"a finite number above 0 for {site!r}", do)


def _rules(job: Job, values: Mapping[str, Any]) -> Iterator[Fault]:
    yield from fragment_faults(job, values["fragments"], NAME)
    yield from rules(NAME, job, values, job.learners)
    yield from shard_faults(NAME, "shards", values["shards"], fragments_had(job, values["fragments"]))


def free_running(
    name: str,
    job: Job,
    paths: PathParts | None,
    *,
    fragments: Fragments = None,
    interval: AutoInterval = None,
    overlap: Annotated[
        int | Literal["auto"],
        Setting("tau, the inner steps that a round may take, at most `interval`; 'auto': by the links.", resumes=True),
    ] = 2,
    quorum: Annotated[int, Setting("K, the answers that a round needs, at most one a learner.", resumes=True)] = 1,
    grace: Annotated[
        bool, Setting("The syncer waits for more answers while that costs no learner anything.", resumes=True)
    ] = True,
    late: Annotated[
        Literal["count", "refuse"],
        Setting("An answer too late for its round counts in the next of its fragment, or is refused, as published."),
    ] = "count",
    steps_by_speed: Annotated[
        bool | Literal["auto"],
        Setting(
            "A learner with long steps is asked ahead, by its step, and so answers after fewer steps instead of late; "
            "'auto': one that is slow, with steps of twice the median.",
            expected="true, false or 'auto'",
            resumes=True,
        ),
    ] = "auto",
    gamma: Gamma = 0.8,
    shards: Annotated[int, Setting("S, the number of syncers, at most one a fragment.")] = 1,
    keeps: Keeps = None,
    merge: MergeRule = "rda",
    carry: Annotated[
        bool | Literal["auto"] | None,
        Setting(
            "A learner keeps what it trained between its answer and the update, and sends it with its next answer; "
            "'auto': one that is slow, with steps of twice the median. Default: true where the interval is shorter "
            "than 24, else 'auto'.",
            expected="true, false or 'auto'",
            resumes=True,
        ),
    ] = None,
    bounded: Bounded = True,
    weight_share_max: WeightShareMax = 1.0,
    site_weight: Annotated[
        Literal["equal"] | Mapping[str, float] | None,
        Setting(
            "What a site counts in a merge with others, whatever its tokens are; a site is a machine, so that a run of "
            "one machine has one, and nothing changes: 'equal', or by the names of machines, 1 for any other. Default: "
            "answers count by their tokens.",
            expected="'equal', or a table of machines' names and numbers above 0",
            remedy="Write for example {alpha = 2.0, beta = 1.0}.",
            resumes=True,
        ),
    ] = None,
    clip_answers: ClipAnswers = None,
    epochs_max: EpochsMax = None,
    opposed: Opposed = "tell",
    push: Annotated[Format | Literal["auto"], PUSH] = "int4",
    update: Annotated[Format | Literal["auto"], UPDATE] = "float32",
    outer_lr: OuterLr = None,
    outer_momentum: OuterMomentum = None,
) -> ProgramGraph:
    """The graph of a program with this name, whose model may be made of modules, that of `paths`.

    `push`, `update`, `interval` and `overlap` follow the links where they are 'auto' (`ops.exchange.adaptive`).
    """
    interval = interval_of_links(job, interval, overlap)
    if paths is None:
        parts = partition(job.layout, count_default(job.layout) if fragments is None else fragments)
    else:
        parts = paths.whole
    steps = first_interval(interval)
    lr, momentum = outer_settings(job, steps, outer_lr, outer_momentum, OUTER_DECOUPLED)
    carried = carry_default(steps) if carry is None else carry
    graph = ProgramGraph(name)
    learner = graph.role("learner", replicas=(1, LEARNERS_MAX))
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
            exchange=FragmentExchange(
                push=push,
                carries=carried is True,
                tells_links=AUTO in (push, update, interval, overlap),
                frozen=job.frozen,
                paths=paths,
            ),
        ),
        never_waits=True,
    )
    kept = KEEPING[keeps or kept_by_default(job.learners, len(parts), shards, push)]
    send = kept.sender(learner, parts, push)
    pacer = syncer.node(
        "pacer",
        partial(
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
            step_tokens=step_tokens_of(job),
            push=push,
            update=update,
            sizes=[part.size for part in parts],
            paths=paths,
            speeds=SpeedTerms(ahead=steps_by_speed, carry=carried),
        ),
        fires=AnyOf("progress", "merged", "control"),
    )
    votes = Quorum(port="answer", key="round", opened_by="round", count_min=quorum)
    judges = usual_rules(
        bounded=bounded,
        opposed=opposed,
        share_max=weight_share_max,
        site_weight=site_weight,
        length_max=clip_answers,
    )
    terms = {"step_tokens": step_tokens_of(job), "method": merge, "lr": lr, "momentum": momentum, "rules": judges}
    level = Level(syncer, syncer.at("fragment"), learner.at("slot"), shards=shards)
    nodes = kept.merging(level, parts, votes, terms)
    outer = syncer.node("outer-step", partial(OuterStep, parts, lr=lr, momentum=momentum, update=update))

    most = 2 * len(parts) + 2
    rounds_in(graph, pacer, nodes.merge, outer, most=most, ballot=nodes.ballot)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(data["cursor"], step["cursor"], Latest())
    graph.edge(pacer["place"], data["place"], Latest("slot"), to=learner.all)
    graph.edge(step["fragment"], send["fragment"], Latest("fragment"))
    kept.connect(graph, send, nodes, level, most=most)
    to = None if paths is None else learner.some("fragment", paths.count, paths.holders)
    arriving = to_learner(graph, learner, outer, pacer["pull"], step, to=to)
    evaluation = evaluated_in(graph, evaluator, outer, job, parts, paths)
    graph.edge(step["progress"], pacer["progress"], Latest(), to=syncer.all)
    graph.train(
        reports=step["report"],
        control=pacer["control"],
        model=outer["final"],
        evaluation=evaluation.losses,
        merges=outer["merged"],
        changes=pacer["changed"],
        held=pacer["held"],
        loans=(step["moments"], step["loan"]),
    )
    # No learner that ever comes back may have a module of a path.
    copies = [arriving] if paths is None else [arriving, nodes.merge["copy"]]
    graph.hold(
        state=outer["state"],
        kept=outer["kept"],
        published=evaluation.taken,
        told=evaluation.told,
        copies=copies,
        held=[pacer["held"]],
        begins=nodes.merge["copy"],
    )
    own = parts if paths is None else paths.own
    graph.chose(fragments=len(own), interval=interval, outer_lr=lr, outer_momentum=momentum)
    if carried is True:
        graph.chose(carry=True)
    return graph


@checked(subject(NAME), _rules)
@settings_of(free_running)
def build(job: Job, **settings: Any) -> ProgramGraph:
    """The graph; ConfigError, with every fault, for settings out of range."""
    return free_running(NAME, job, None, **settings)
