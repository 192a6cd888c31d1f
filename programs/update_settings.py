"""How coded updates reach the hosts of a role: the nodes and edges beside those of a program whose updates are whole.

syncer:      outer-step --state--> key-frames
between:     outer-step ==update==> receive    key-frames ==its slot==> receive    receive ==need==> key-frames
each role:   receive --update--> whoever takes updates, and --pull--> inner-step

The settings of an outer step, which a family of programs shares, and tasks that some programs cannot train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

from isthmus.ops.exchange.fragments import Cut, Fragment, count_default, fragments_count, rows_max
from isthmus.ops.exchange.merge_rules import Method
from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.exchange.wanted_settings import AUTO, first_interval
from isthmus.ops.island.cut_taker import CutTaker
from isthmus.ops.island.evaluate import Evaluate
from isthmus.ops.learner.receive import Receive
from isthmus.ops.step_tokens import ChangedStepTokens, StepTokens
from isthmus.ops.syncer.outer_step import KeyFrames
from isthmus.ops.syncer.version_sender import VersionSender
from isthmus.programs.job import Job
from isthmus.programs.program_graph import REGION, ProgramGraph, chosen_for
from isthmus.programs.settings import Setting
from isthmus.programs.sweeps import OUTER_LOCK_STEP, interval_default, outer_default, sweeps_of
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.template import AnyOf, Graph, Latest, Node, Policy, Port, Queue, Role, Route, Template
from isthmus.runtime.ids import LEARNER


class Evaluation(NamedTuple):
    """The ports of the nodes that evaluate a model: losses, the versions that were taken for them, and the books of
    all."""

    losses: Port
    taken: Port
    told: Port


def updates_in(
    graph: Graph, role: Role, outer: Node, *, in_turns: bool = False, to: Route | None = None, back: Route | None = None
) -> Port:
    """The port that gives the updates of an outer step, decoded, in a role: its own, or that of the role's `receive`.

    `in_turns`: turns, of programs in lock-step, pass through it to learners. `to`: the replicas of the role that get an
    update, where not all do; `back`: whoever publishes a fragment, where that is not its number's replica.
    """
    if outer.keywords.get("update", "float32") == "float32":
        return outer["update"]
    receivers = [node for node in graph.nodes if node.body is Receive and node.role == role.name]
    return (receivers[0] if receivers else _add_receive(graph, role, outer, in_turns, to or role.all, back))["update"]


def connect(graph: Graph, source: Port, target: Port, policy: Policy, *, to: Route | None = None) -> None:
    """An edge within the replica where both nodes are in one role, and to every replica of the target's otherwise, or
    to those of the route `to`."""
    within = source.node.role == target.node.role
    graph.edge(source, target, policy, to=None if within else to or graph.role_of(target.node.role).all)


def to_learner(
    graph: Graph,
    learner: Role,
    outer: Node,
    pull: Port,
    taker: Node,
    *,
    update: str = "update",
    in_turns: bool = False,
    to: Route | None = None,
    pulled: Route | None = None,
    back: Route | None = None,
) -> Port:
    """The edges of updates and pulls (`in_turns`: turns) to the node of a learner, or region, that takes both, updates
    at its input `update`; returns the input of the role at which updates arrive. `to`: whom updates are for, where that
    is not every learner; `pulled`: likewise of pulls; `back`: as of `updates_in`. Pulls go behind the updates that were
    sent before them: an answer on a version that is about to be replaced would be refused."""
    updates = updates_in(graph, learner, outer, in_turns=in_turns, to=to, back=back)
    connect(graph, updates, taker[update], Latest("fragment"), to=to)
    if updates.node is not outer:
        graph.edge(pull, updates.node["pull"], Latest("fragment"), to=pulled or learner.all)
        pull = updates.node["pull"]
    connect(graph, pull, taker["pull"], Latest("fragment"), to=pulled)
    return taker[update] if updates.node is outer else updates.node["update"]


def rounds_in(graph: Graph, pacer: Node, merge: Node, outer: Node, *, most: int, ballot: Node | None = None) -> None:
    """The edges of rounds in a syncer, of which there are `most` at once: pacer, merge, outer step, and back; `ballot`
    is the node that closes rounds, where `merge` does not."""
    graph.edge(merge["reached"], pacer["reached"], Latest("fragment"))
    graph.edge(pacer["round"], (ballot or merge)["round"], Queue(capacity=most))
    graph.edge(merge["gradient"], outer["gradient"], Queue(capacity=most))
    graph.edge(outer["merged"], pacer["merged"], Latest("fragment"))


def hold_whole(graph: ProgramGraph, step: Node, conductor: Node, outer: Node, *, published: Port, copies: Port) -> None:
    """Have the model of a program in lock-step held, and kept with what only its learners have, as of one step."""
    graph.hold(
        state=outer["state"],
        kept=outer["kept"],
        published=published,
        copies=[copies],
        held=[conductor["held"]],
        cut=outer["cut"],
        wanted=[outer["wanted"], step["wanted"]],
        own=step["own"],
        restored=step["restored"],
    )


def evaluated_in(
    graph: ProgramGraph,
    evaluator: Role,
    outer: Node,
    job: Job,
    parts: Sequence[Fragment],
    paths: PathParts | None = None,
) -> Evaluation:
    """Add the nodes that evaluate the model of an outer step: the evaluator is told of all versions, and asks the
    shards for those that it evaluates."""
    shard, terms = graph.role_of(outer.role), {"tokens": job.tokens, "times": job.evaluations}
    sender = shard.node("version-sender", VersionSender, fires=AnyOf("state", "wanted"))
    taker = evaluator.node("cut-taker", partial(CutTaker, parts, **terms), fires=AnyOf("told", "version", "done"))
    body = partial(Evaluate, job.task, parts, **terms, frozen=job.frozen, paths=paths)
    evaluate = evaluator.node("evaluate", body, fires=AnyOf("cut"))
    connect(graph, outer["told"], taker["told"], Latest("fragment"))
    graph.edge(outer["state"], sender["state"], Latest("fragment"))
    graph.edge(taker["wanted"], sender["wanted"], Latest("fragment"), to=shard.at("fragment"))
    connect(graph, sender["version"], taker["version"], Latest("fragment"))
    graph.edge(taker["cut"], evaluate["cut"], Latest())
    graph.edge(evaluate["done"], taker["done"], Latest())
    return Evaluation(evaluate["evaluation"], taker["taken"], outer["told"])


def _add_receive(graph: Graph, role: Role, outer: Node, in_turns: bool, route: Route, back: Route | None) -> Node:
    frames = next((node for node in graph.nodes if node.body is KeyFrames and node.role == outer.role), None)
    if frames is None:
        name = "region-key-frames" if outer.role == REGION else "key-frames"
        frames = graph.role_of(outer.role).node(name, KeyFrames, fires=AnyOf("state", "need"))
        graph.edge(outer["state"], frames["state"], Latest("fragment"))
    answers = role.name in (LEARNER, REGION)
    fires = AnyOf("update", "pull") if answers else AnyOf("update")
    receive = role.node(f"receive-{role.name}", partial(Receive, *outer.arguments, in_turns=in_turns), fires=fires)
    graph.edge(outer["update"], receive["update"], Latest("place"), to=route)
    sender, receiver = route.divisors  # The groups of updates are those of whole ones, too.
    to = (role.at("slot") if answers or role.name == outer.role else role.all).within(
        route.groups, sender=sender, receiver=receiver
    )
    graph.edge(frames[role.name], receive["update"], Latest("frame"), to=to)
    of_fragment = graph.role_of(outer.role).at("fragment").within(route.groups, sender=receiver, receiver=sender)
    graph.edge(receive["need"], frames["need"], Latest("fragment"), to=back or of_fragment)
    return receive


INTERVAL_MAX: Final = 10_000
"""Inner steps: a gate may permit as many at once, and each permit is an item of a Queue."""


LEFT_OUT: Final = "Leave it out for the default."
PUSH: Final = Setting("The format on the wire of outer gradients.", resumes=True)
Gamma = Annotated[
    float,
    Setting(
        "The safety margin of `grace`.",
        gt=0,
        lt=1,
        expected="a safety margin above 0 and below 1",
        remedy="The default is 0.8.",
        resumes=True,
    ),
]
Bounded = Annotated[
    bool, Setting("One answer counts only as far as its length is in proportion to the others'.", resumes=True)
]
UPDATE: Final = Setting("The format on the wire of published versions.", resumes=True)
ClipAnswers = Annotated[
    float | None,
    Setting(
        "C, an absolute bound of answers: the L2 norm that one about the whole model has at most, and C sqrt(n / N) "
        "that of one about n of its N values; a longer one is scaled down. Default: none.",
        gt=0,
        expected="a finite length above 0",
        remedy="Leave it out, or look at `clipped` in merges.jsonl: it says how far each answer was scaled down.",
        resumes=True,
    ),
]
EpochsMax = Annotated[
    float | None,
    Setting(
        "How often a learner may train the data of its site, a machine with data of its own, in all lives of its slot; "
        "then it leaves in order, and the others go on. Elsewhere it means nothing. Default: no bound.",
        gt=0,
        expected="a finite number above 0",
        remedy=LEFT_OUT,
        resumes=True,
    ),
]
Interval = Annotated[
    int | None,
    Setting(
        "H, the inner steps between two merges of one fragment. Default: 24, or fewer in a run of few sweeps.",
        ge=1,
        le=INTERVAL_MAX,
        expected=f"1 to {INTERVAL_MAX} inner steps",
        remedy="The published interval is 24.",
        resumes=True,
    ),
]
AutoInterval = Annotated[
    int | Literal["auto"] | None,
    Setting(
        "H, the inner steps between two merges of one fragment; 'auto': by the links. Default: 24, or fewer in a "
        "run of few sweeps.",
        ge=1,
        expected="at least 1 inner step, or 'auto'",
        remedy="The published interval is 24.",
        resumes=True,
    ),
]
Fragments = Annotated[
    Cut | None,
    Setting(
        "P, the number of fragments; 'layer' or 'tensor': one for each. Where there are more than layers and tensors, "
        "tensors are cut into rows, whose lengths are merged apart. Default: by the size of the model."
    ),
]
MergeRule = Annotated[
    Method,
    Setting("How answers are merged: by length and direction, or by their weighted average.", resumes=True),
]
WeightShareMax = Annotated[
    float,
    Setting(
        "The largest share of a merge that one machine's learners have together; in a run of one machine, that one "
        "learner has. Where all have that, the rest counts as a gradient of zero.",
        gt=0,
        le=1,
        expected="a share above 0 and at most 1",
        remedy="1 is no limit.",
        resumes=True,
    ),
]
Opposed = Annotated[
    Literal["tell", "refuse"],
    Setting("A learner that pulls against all others in 8 merges in a row is reported, or refused.", resumes=True),
]
OuterLr = Annotated[
    float | None,
    Setting(
        "eta, the learning rate of the outer step. Default: by the number of sweeps of the run.",
        gt=0,
        expected="a number above 0",
        remedy=LEFT_OUT,
        resumes=True,
    ),
]
OuterMomentum = Annotated[
    float | None,
    Setting(
        "mu, the momentum of the outer step. Default: by the number of sweeps of the run.",
        ge=0,
        lt=1,
        remedy=LEFT_OUT,
        resumes=True,
    ),
]
SnapshotSeconds = Annotated[
    float, Setting("Seconds between two snapshots of the state.", gt=0, expected="seconds above 0", remedy=LEFT_OUT)
]


def subject(program: str) -> str:
    """How faults name a setting of a program, with {} for it."""
    return f"setting program.{{}} of {program}"


def step_tokens_of(job: Job) -> StepTokens:
    """The tokens of one step: of every slot, by slot, or at most so many."""
    return ChangedStepTokens(job.step_tokens, job.step_tokens_before) if job.step_tokens_before else job.step_tokens


def step_tokens_most(job: Job) -> int:
    """The most tokens of one step of any slot."""
    return job.tokens_at_most or max(job.tokens_by_slot, default=job.tokens_per_batch)


def check_gradients(job: Job, program: str) -> None:
    """ConfigError for a task whose gradients cannot be averaged."""
    if job.has_gradients:
        return
    raise ConfigError(
        f"Training {job.task} by {program}",
        "a loss, all of whose parameters are merged, because learners average its gradient at every step",
        "a step of its own (Task.of_step), or parameters that are local",
        "Train it by decoupled-diloco, streaming-diloco or diloco, which merge what steps have made.",
    )


def fragments_of(job: Job, cut: Cut | None) -> int:
    """The number of fragments that the setting means; of one that the model cannot have, that number."""
    return count_default(job.layout) if cut is None else fragments_count(job.layout, cut)


def setting_fault(program: str, name: str, value: Any, expected: str, remedy: str) -> Fault:
    """The fault of a setting that does not go with others, or with the model."""
    return Fault(subject(program).replace("{}", name), expected, repr(value), remedy)


def fragment_faults(job: Job, cut: Cut | None, program: str) -> Iterator[Fault]:
    """The fault of a number of fragments that the model cannot have."""
    rows = rows_max(job.layout)
    if isinstance(cut, int) and not 1 <= cut <= rows:
        expected = f"1 to {rows}, the rows of this model's tensors, or 'layer' or 'tensor'"
        yield setting_fault(program, "fragments", cut, expected, "Choose one of these, or leave it out.")


def fragments_had(job: Job, cut: Cut | None) -> int:
    """The number of fragments that the setting means; where the model cannot have that, of the default."""
    count = fragments_of(job, cut)
    return count if 1 <= count <= rows_max(job.layout) else count_default(job.layout)


def interval_of_links(
    job: Job, interval: int | Literal["auto"] | None, overlap: int | Literal["auto"]
) -> int | Literal["auto"]:
    """The interval of a program whose settings may follow the links, or the default one, which has room for the
    overlap."""
    if interval is not None:
        return interval
    return interval_default(job, least=overlap if isinstance(overlap, int) else 1)


def overlap_faults(program: str, job: Job, values: Mapping[str, Any]) -> Iterator[Fault]:
    """The fault of an overlap above the interval."""
    overlap, interval = values["overlap"], interval_of_links(job, values["interval"], values["overlap"])
    if (interval == AUTO or interval >= 1) and overlap != AUTO and not 0 <= overlap <= first_interval(interval):
        expected = f"0 to interval = {first_interval(interval)} inner steps, or 'auto'"
        yield setting_fault(program, "overlap", overlap, expected, "Lower the overlap, or raise the interval.")


def shard_faults(program: str, name: str, shards: int, fragments: int) -> Iterator[Fault]:
    """The fault of a number of shards above that of fragments."""
    if not 1 <= shards <= fragments:
        expected = f"1 to the number of fragments, {fragments}"
        do = f"A shard needs a fragment to serve: name at most {fragments}, or set program.fragments higher."
        yield setting_fault(program, name, shards, expected, do)


def share_faults(program: str, share: float, learners: int) -> Iterator[Fault]:
    """The fault of a largest share that learners, of which each has it at most, cannot make a whole of."""
    if share * learners < 1:
        expected = f"at least 1 / learners, {1 / learners:g}"
        do = "Raise it, or add learners: all together would have less than the whole of a merge."
        yield setting_fault(program, "weight_share_max", share, expected, do)


def outer_settings(
    job: Job,
    interval: int,
    lr: float | None,
    momentum: float | None,
    table: Sequence[tuple[float, tuple[float, float]]] = OUTER_LOCK_STEP,
) -> tuple[float, float]:
    """(eta, mu) as given, or by the number of times that the run passes over all fragments."""
    lr_default, momentum_default = outer_default(sweeps_of(job, interval), table)
    return (lr_default if lr is None else lr), (momentum_default if momentum is None else momentum)


def derived(graph: Template, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a program chose for its settings that are None: by the number of sweeps, and by the size of the model."""
    return {key: value for key, value in chosen_for(graph).items() if key in settings and settings[key] is None}


def interval_of(graph: Template) -> int | None:
    """The initial interval of a graph whose fragments are merged at one; None for another graph."""
    interval = chosen_for(graph).get("interval")
    return None if interval is None else first_interval(interval)
