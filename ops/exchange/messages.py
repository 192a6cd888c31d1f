"""The items that flow between the operators of Decoupled DiLoCo and its family: plain dicts, which survive any wire.

All of them are here, so that a body needs to know no other one; what bodies do with them does not come in.

Decides their fields, when a learner of a program with a shared state emits that state (`Due`), and the order of turns
in lock-step. Positions count the tokens that one incarnation of a slot has trained. A version is [epoch, count]. Times
are integer nanoseconds of the clock of the host that wrote them; only differences of one host's times mean something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from isthmus.ops.exchange.requested import Count, Format, Ordinal, RequestedSettings
from isthmus.ops.exchange.token_accounts import FATES

Finite: TypeAlias = Annotated[float, ("range",)]
Amount: TypeAlias = Annotated[float, ("range", 0)]
SenderSlot: TypeAlias = Annotated[int, ("sender", "slot")]
SenderLife: TypeAlias = Annotated[int, ("sender", "incarnation")]
Version: TypeAlias = Annotated[list[int], tuple[Count, Count]]
"""[epoch, count]."""
SlotLife: TypeAlias = Annotated[list[int], tuple[Count, Ordinal]]
"""[slot, incarnation]."""
Members: TypeAlias = list[SlotLife]
LifeTokens: TypeAlias = list[Annotated[list[int], tuple[Count, Ordinal, Count]]]
"""[slot, incarnation, tokens or position] of lives."""
Positions: TypeAlias = list[Annotated[list[int], tuple[Count, Count]]]
"""[slot, position in the slot's batches]."""
Metrics: TypeAlias = list[Annotated[list[Any], tuple[str, float]]]
"""[name, value] of scalars."""
Lengths: TypeAlias = list[Amount]
"""Lengths of merged answers."""
Former: TypeAlias = list[Annotated[list[int], tuple[Ordinal, Count, Count, Ordinal]]]
"""[incarnation, begin, end, steps] of earlier lives of a slot."""
Standings: TypeAlias = list[Annotated[list[Any], tuple[Count, Count, Count | None, Former]]]
"""[epoch, count, due, former] by fragment, as in `Own`."""
Work: TypeAlias = list[Annotated[list[int], tuple[Count, Ordinal, Count, Count, Ordinal]]]
"""[slot, incarnation, begin, end, steps]: tokens (begin, end] of lives of learners, in so many steps."""
Links: TypeAlias = list[Annotated[list[Any], tuple[str, Count, Count, Count]]]
"""[role, slot, bytes a second in the mean, and at best]."""
Vector: TypeAlias = Annotated[npt.NDArray[np.float32], ("sizes", None)]
"""A fragment's values, one flat float32 vector: the values of its units, each raveled in C order, one after another."""
SentVector: TypeAlias = Annotated[npt.NDArray[Any], Vector]
"""Values, or, where a node declares it (`vector`), their codes."""
PackedBytes: TypeAlias = Annotated[npt.NDArray[Any], Annotated[npt.NDArray[np.uint8], ("sizes", None)]]
StreamState: TypeAlias = Annotated[list[Any], tuple[Count, PackedBytes]]
"""[position, state] of the slot's stream."""
Leaves: TypeAlias = list[Annotated[list[Any], tuple[str, list[Count], PackedBytes]]]
"""[type, shape, bytes]."""


SECONDS: Final = 15.0
"""Interval of snapshots, as for those of fragments."""


class WholeState(TypedDict):
    """A state that every learner had."""

    tokens: Count
    """Those of all learners."""
    steps: Count
    """Those of each learner, where all take part in each."""
    totals: LifeTokens
    """The tokens of known lives."""
    positions: Positions
    """Where not all take part in each step: below which batch each slot's work is in it."""
    streams: list[list[Any]]
    """[slot, position, state] of those that have a state."""
    leaves: list[Any]
    """Of parameters and moments, in an order that learners know; none at the beginning."""
    standings: NotRequired[Standings]


BEGINNING: Final = WholeState(tokens=0, steps=0, totals=[], positions=[], streams=[], leaves=[])


def newest(states: Mapping[Any, WholeState] | None) -> WholeState | None:
    """The state that is furthest; None without any."""
    return max((states or {}).values(), key=lambda state: state["tokens"], default=None)


class Due:
    """Whether a snapshot is due, by the clock of a host.

    The recorder keeps the newest state, on disk, too, and sends it to learners that come back: so such a program
    survives the deaths of all its hosts.
    """

    def __init__(self, seconds: float) -> None:
        self._every = round(seconds * 1e9)
        self._taken_at: int | None = None

    def __call__(self, now: int) -> bool:
        """True once every `seconds`, and not at the first step."""
        if self._taken_at is None:
            self._taken_at = now
        if now - self._taken_at < self._every:
            return False
        self._taken_at = now
        return True


class WantedCut(TypedDict):
    """hold -> outer-step, inner-step: the cut to make after the turn about `fragment` (`turns`).

    It covers the model, whose versions then have these `counts`, by fragment, and each learner's own state.
    """

    fragment: Count
    counts: list[Count]


Taken: TypeAlias = Literal["local", "lent", "own", "whole"]
"""Which leaves of another life a learner continues with: all that are local; those of them that others are lent; the
local ones after the numbers of the random keys that come next, as in a cut; or these, and the merged ones."""


class Own(TypedDict):
    """inner-step -> hold, and back to a later life: the state that only this learner has.

    It is captured with its answer to the last turn before a cut, before its next step.
    """

    slot: Count
    incarnation: Ordinal
    standings: Standings
    """Its position by fragment, [epoch, count, due, former]: the version that it had adopted, or, where that was made
    from its answers, will have after `due` more steps; None for one that it had. Work since then that is in no version
    is `former`: [incarnation, begin, end, steps] by life."""
    totals: LifeTokens
    """The progress of the run, as this learner knew it."""
    leaves: Leaves
    """The first names the life whose random keys come next; then local ones, and merged ones where anything of them
    lasts."""


class Restored(TypedDict):
    """hold -> inner-step: the state that a life continues with; None where nothing is kept of its slot."""

    slot: Count
    incarnation: Ordinal
    own: Own | None


class WantedPart(TypedDict):
    """hold -> copy-sender of all learners: whose copy of its local leaves is to be sent, in which transfer (`number`),
    and from which byte on."""

    slot: Count
    incarnation: Ordinal
    number: Count
    at: Count


class CopyPart(TypedDict):
    """copy-sender -> hold: a part of that copy, which has `size` bytes in all; 0 where there is none."""

    slot: SenderSlot
    incarnation: SenderLife
    number: Count
    at: Count
    size: Count
    data: PackedBytes


class Moments(TypedDict):
    """inner-step -> lend: a learner's moments, for another one."""

    slot: SenderSlot
    incarnation: SenderLife
    lacks: bool
    """Whether this life would borrow."""
    lends: bool
    """Whether it can lend."""
    to: SlotLife | None
    """The life that asked through the recorder, None where none does."""
    step: Count
    """The number of this life's steps before which `leaves` are its moments."""
    leaves: Leaves
    """For that life; none where it has no good ones."""


class Loan(TypedDict):
    """lend -> inner-step, of the life [slot, incarnation]: the life `to` which it is to lend, or a loan `by` another.

    A loan holds the `leaves` after so many (`step`) of that life's steps, as in `Moments`. With neither, the request
    before is void.
    """

    slot: Count
    incarnation: Ordinal
    to: SlotLife | None
    by: SlotLife | None
    step: Count
    leaves: Leaves


Kind: TypeAlias = Literal["initial", "recover", "merge", "final"]
UpdateKind: TypeAlias = Literal[Kind, "copy"]
"""The purpose of a round: the first version of the model, the newest version that learners hold (requested by a shard
that came back), an ordinary merge, the hand-over at the end. An update of kind 'copy' comes from no round: a host that
only holds it sends it to learners that may have none."""


class Round(TypedDict):
    """pacer -> merge (port `round`) and, the same item, pacer -> inner-step (port `pull`). The firing rule of `merge`
    reads `count_min`, `grace`, `required`, `deadline` and `chain`.
    """

    round: Count
    fragment: Count
    attempt: Count
    kind: Kind
    members: Members
    """Those that may answer."""
    count_min: Count
    grace: Count | None
    """None: no limit."""
    required: list[Count]
    deadline: Count | None
    chain: Count | None
    """Late votes of one of its rounds count in the next; None: they are refused."""
    interval: Count
    """The pacer's present H."""
    totals: LifeTokens
    """The progress of the whole run."""
    known: list[Annotated[list[Any], tuple[Count, Count, str, Lengths]]]
    """Of kind 'recover', the versions of hosts that only hold the model, as [epoch, count, digest, lengths]."""
    given: NotRequired[Version]
    """Of kind 'recover', the version of which a copy is on its way to this shard from its neighbour."""
    asked: NotRequired[RequestedSettings]
    """Present where settings follow the links."""
    carry: NotRequired[list[Count]]
    """The slots of slow learners among the members: they keep what they train between this answer and the adoption."""


class Capture(TypedDict):
    """inner-step -> fragment-send: the fragment at a boundary, beside the anchor that it started from. Fields that an
    `Answer` has, too, are its.
    """

    fragment: int
    round: int
    kind: Kind
    slot: int
    incarnation: int
    base: Version | None
    """None for the first version."""
    begin: int
    end: int
    steps: int
    clock: LifeTokens
    """For kind 'recover', the one that came with the anchor."""
    values: Any
    """May still be on its way from the device; None where the outer gradient was `coded` there. For kind 'recover' they
    are the anchor itself."""
    anchor: Vector | None
    """None for the first version."""
    positions: Positions
    state: StreamState | None
    former: NotRequired[Former]
    push: NotRequired[str]
    """The requested format."""
    coded: NotRequired[Any]
    """May be on its way as well (`ops.island.contract.Codes`)."""


class Answer(TypedDict):
    """fragment-send -> merge: an outer gradient (in kinds 'initial' and 'recover', the values), and its account.

    Tokens (begin, end] were trained since the adoption of version `base`, in `steps` inner steps.
    """

    fragment: Count
    round: Count
    kind: Kind
    slot: SenderSlot
    incarnation: SenderLife
    base: Version | None
    begin: Count
    end: Count
    steps: Count
    clock: LifeTokens
    gradient: SentVector
    """In kinds 'merge' and 'final' it may be coded: then it has the codes."""
    norms: Vector
    """The gradient's Euclidean norm per unit, float32."""
    positions: Positions
    """Below which batch each slot's work is in it, for its own slot, or, of kind 'recover', for all."""
    state: StreamState | None
    """That of the slot's stream."""
    former: NotRequired[Former]
    """Work of earlier lives of the slot that is in it, too, where this life continued theirs."""
    format: NotRequired[Format]
    """That of the codes (`formats`)."""
    scales: NotRequired[Vector]
    """Those of the codes' units."""


class WantedValues(TypedDict):
    """merge -> fragment-send: an answer that was told ahead, of this life, is to send its values now."""

    fragment: Count
    round: Count
    slot: Count
    incarnation: Ordinal


class AnswerValues(TypedDict):
    """fragment-send -> merge: the values of an answer that was told ahead; none where it is replaced by now."""

    fragment: Count
    round: Count
    slot: SenderSlot
    incarnation: SenderLife
    gradient: SentVector
    format: NotRequired[Format]
    scales: NotRequired[Vector]


class ClosedRound(TypedDict):
    """ballot -> merge: a round that has closed, with its answers by slot, and when and why it closed."""

    round: Round
    answers: list[Answer]
    decision: dict[str, Any]


class RegionAnswer(Answer):
    """regional-step -> merge of the global syncer: what a region has merged, and no global version has.

    `work` are the tokens of learners in it, of which `begin` (0), `end` and `steps` are the sums; `positions` are those
    of all its slots.
    """

    work: Work
    owners: NotRequired[list[Annotated[list[Any], tuple[str, Amount, Amount]]]]
    """[owner, the share of the region's merges in it that its learners had in the mean, the most that it may have of a
    merge of the model], of those whose shares are bounded."""


class Begun(TypedDict):
    """regional-step -> merge and pacer of its region: a fragment begins as `version`, which is the global one.

    `largest` is the largest magnitude of its values; `clock` and `positions` are as in Update.
    """

    fragment: Count
    version: Version
    largest: float
    clock: LifeTokens
    positions: Positions


class RunTotals(TypedDict):
    """regional-step -> pacer of its region, with each global version: the progress of the run, as it is known there."""

    totals: LifeTokens


class Standing(TypedDict):
    """pacer -> regional-step: the number of live learners of a region."""

    learners: Count


MERGES_KEPT: Final = 1024
"""Records of a shard that wait for the recorder, which takes all of them ten times a second, and may be away for some
seconds: a small fast task merges some hundreds of times a second."""


class Merging(TypedDict):
    """The public record of one merge: its contributors, and why it closed when it did. Times are those of the shard's
    clock.
    """

    shard: Count
    epoch: Ordinal
    round: Count
    place: Count
    """Its mailbox among the last MERGES_KEPT of the shard, so that none replaces another before it is taken."""
    fragment: Count
    kind: Kind
    version: Version | None
    """None where nothing was merged."""
    origin: Version | None
    """The version that this epoch of the shard began with, None before it has one."""
    momentum: Version | None
    """The version whose momentum it continues, None where that began with zero."""
    voters: list[Count]
    weights: list[Finite]
    left_out: list[Count]
    refused: list[Annotated[list[Any], tuple[Count, str]]]
    """[slot, why] of answers that did not count."""
    shortened: list[Annotated[list[Any], tuple[Count, Finite]]]
    """[slot, share] of those that were too long."""
    clipped: NotRequired[list[Annotated[list[Any], tuple[Count, Finite]]]]
    """[slot, share] of those that were longer than the run permits any."""
    opposed: Positions
    """[slot, merges] of learners that have pulled against all others in so many merges in a row."""
    agreement: NotRequired[list[Annotated[list[Any], tuple[Count, Finite]]]]
    """[slot, cosine] of outer gradients with the mean of the others', of learners on the newest version."""
    capped: list[Annotated[list[Any], tuple[str, Finite, Finite]]]
    """[member, share, capped share] of members that would have had more of the weight than they may."""
    reason: str
    opened_at: int
    quorum_at: int
    closed_at: int
    published_at: int
    merged_tokens: LifeTokens
    """Everything of this fragment that was merged on top of `origin`."""
    merges: Count
    """The number of merges of kind 'merge', in this `epoch` of the shard."""
    votes: Count
    """The number of their contributors."""
    asked: NotRequired[RequestedSettings]
    """The requests of its round."""


class Change(TypedDict):
    """pacer -> recorder: a setting of a shard that follows its links, or the speeds of its learners, changes."""

    shard: Count
    epoch: Ordinal
    number: Ordinal
    """Counts those of this `epoch` of the shard."""
    place: Count
    """Its mailbox."""
    round: Count
    """From which on it holds."""
    setting: Literal["push", "update", "interval", "overlap", "pace"]
    slot: Count | None
    """Of 'push' and 'pace', that of the learner."""
    before: str
    """A format, or inner steps as text; of 'pace', 'usual', or what is done about a slow one."""
    after: str
    """Likewise."""
    reason: Literal["carries less", "carries more", "slow rounds", "quick rounds", "slow steps", "usual steps"]
    """'carries less' and 'carries more' are of a `link`, 'slow rounds' and 'quick rounds' of a `round_trip`, 'slow
    steps' and 'usual steps' of a `step_time`."""
    link: Count | None
    """The slot of the learner whose link it is."""
    goodput: Count
    """The bytes a second that this carries."""
    needed: Count
    """Those that the setting which is given up, or taken up, needs."""
    round_trip: Amount
    """The duration of a round, in steps."""
    at: int
    """An instant of the shard's clock."""
    role: NotRequired[str]
    """That of the shard, where it is one of a region."""
    step_time: NotRequired[Count]
    """Of 'pace', the nanoseconds of the learner's step."""
    median: NotRequired[Count]
    """And those of the median of all."""


class Gradient(TypedDict):
    """merge -> outer-step: the merged outer gradient."""

    fragment: int
    round: int
    kind: Kind
    version: Version | None
    direction: Vector | None
    """None: nothing to merge; kinds 'initial' and 'recover' hold values in it."""
    scale: Vector | None
    clock: LifeTokens
    positions: Positions
    totals: LifeTokens
    lives: Members
    """[slot, incarnation] of all answers."""
    work: Work
    """The tokens that were merged."""
    lengths: Lengths
    """Those of the answers that were merged last."""
    merging: Merging


class ReachedPositions(TypedDict):
    """merge -> pacer: the merged batches of each slot in a fragment.

    `positions` are [slot, position], `states` those of the streams, [slot, position, state]; `clock` as in Update.
    """

    fragment: int
    clock: LifeTokens
    positions: Positions
    states: list[list[Any]]


class Whole(TypedDict):
    """The fields of an update whose values are not coded."""

    fragment: Count
    version: Version
    kind: UpdateKind
    values: SentVector
    clock: LifeTokens
    positions: Positions
    totals: LifeTokens
    refused: Members


class Update(Whole):
    """outer-step -> inner-step, evaluator: the published values of a fragment.

    `clock` is [slot, incarnation, position]: up to which token each slot's work is in it; `positions` [slot, position]:
    below which batch, over all lives; `totals` the run's progress; `refused` the [slot, incarnation] whose answers did
    not count, which start again from these values.

    Where updates are coded (`syncer.publication`), they go to `receive`, with a `place` among the last versions of all
    fragments; with `base`, `values` and `scales` are the codes, in a `format`, of the difference from that version.
    """

    format: NotRequired[Format]
    scales: NotRequired[Vector]
    base: NotRequired[Version]
    place: NotRequired[Count]


class ShardState(Update):
    """outer-step -> state-sender, or, in lock-step, the hold node of the run's home: an update, and the rest of a
    shard's state.

    `tensors` are float32 vectors by name: the `momentum`, where the program has any, and `theta`, from which outer
    steps continue, where published values are coded. `lengths` are those of the answers that were merged last, which
    bound the next.
    """

    tensors: dict[str, Vector]
    lengths: Lengths


class NewVersion(TypedDict):
    """state-sender -> the hold node of the run's home: a shard's life has this version of a fragment. No values."""

    shard: SenderSlot
    incarnation: SenderLife
    fragment: Count
    version: Version
    kind: UpdateKind
    digest: str
    """That of the version (`ops.recovery.hold.digest_of`)."""
    lengths: Lengths


class WantedState(TypedDict):
    """the hold node of the run's home -> state-sender of the shard of `fragment`: the newest state of it is to be sent,
    in which transfer (`number`, 0 for none), and from which byte on."""

    fragment: Count
    number: Count
    at: Count


class StateBooks(TypedDict):
    """The fields of a ShardState but for its arrays: `tensors` are the names of these, its values included."""

    version: Version
    kind: UpdateKind
    clock: LifeTokens
    positions: Positions
    totals: LifeTokens
    lengths: Lengths
    digest: str
    tensors: list[str]


class StatePart(TypedDict):
    """state-sender -> the hold node of the run's home: a part of one state, whose arrays have `size` bytes in all, one
    after the other in the order of their names. The first part has the `books`."""

    shard: SenderSlot
    incarnation: SenderLife
    fragment: Count
    number: Count
    at: Count
    size: Count
    data: PackedBytes
    books: NotRequired[StateBooks]


class ToldVersion(TypedDict):
    """outer-step -> cut-taker, and the evaluator's hold node: a life has this version of a fragment. No values."""

    shard: SenderSlot
    incarnation: SenderLife
    fragment: Count
    version: Version
    kind: UpdateKind
    totals: LifeTokens


class WantedVersion(TypedDict):
    """cut-taker -> version-sender of the shard of `fragment`: no version below this one is asked for any more; it is to
    be sent, in transfer `number`, or no values are (0)."""

    fragment: Count
    version: Version
    number: Count


class SentVersion(Whole):
    """version-sender -> cut-taker: the version that was asked for in transfer `number`; with 0, and no values, in place
    of one that has come."""

    number: Count


class EvaluatedCut(TypedDict):
    """cut-taker -> evaluate: the values of all fragments, none where they are not needed, after so many `tokens`."""

    kind: EvaluationKind
    tokens: Count
    values: list[Vector]


class EvaluationNeeds(TypedDict):
    """evaluate -> cut-taker: a cut is dealt with; whether another one is evaluated, and whether the final one is
    needed."""

    during: bool
    final: bool


KeptTensor: TypeAlias = Annotated[npt.NDArray[Any], Vector | Annotated[npt.NDArray[np.int8], ("sizes", None)]]
"""Values, or their codes of 8 bits."""


class CodedState(TypedDict):
    """state-coder -> hold-neighbour, of the next shard: a ShardState without the published values, which that has from
    updates.

    `momentum` and `theta` are codes in STATE_FORMAT, with their scales: of the momentum, where the program has any,
    and of what Theta differs from the published values, where these are coded.
    """

    fragment: Count
    version: Version
    momentum: NotRequired[SentVector]
    momentum_scales: NotRequired[Vector]
    theta: NotRequired[SentVector]
    theta_scales: NotRequired[Vector]
    lengths: Lengths


class Kept(TypedDict):
    """a hold node -> outer-step, in a new life of the shard: the `tensors` of a State.

    From the run's home they are float32. From a neighbour they are codes as in CodedState, with their scales beside
    them; none at all where it has taken them back.
    """

    fragment: Count
    version: Version
    tensors: dict[str, KeptTensor]


class Need(TypedDict):
    """receive -> key-frames: a host's present `version` of a fragment, [0, 0] if it has none.

    `lacks`: it lacks codes that follow that version.
    """

    fragment: Count
    version: Version
    lacks: bool


class FinalFragment(TypedDict):
    """outer-step -> recorder, once per fragment: the trained model, by names of units ('head', 'embedding[0:64]')."""

    fragment: Count
    version: Version
    tensors: dict[str, npt.NDArray[np.float32]]


class FinalFile(TypedDict):
    """hold -> recorder, in the run's home, once per fragment: the values of the final version are in this `file` of the
    snapshots; `units` are [name, shape] of its tensors, in order. With an `error` they are not: the disk refuses them,
    and is tried again."""

    fragment: int
    version: Version
    error: str
    file: str
    units: list[list[Any]]


class Progress(TypedDict):
    """inner-step -> pacers: the basis of their decisions."""

    slot: SenderSlot
    incarnation: SenderLife
    phase: Literal["ready", "stepping", "leaving", "final"]
    step: Count
    tokens: Count
    step_time: Count
    """A moving average in nanoseconds, 0 before the second step."""
    delay_steps: Count
    """The inner steps between the last answer and the adoption of its result."""
    epochs: list[Count]
    """Those of the versions that it holds, by fragment, 0 where it holds none."""
    totals: LifeTokens
    """The progress that this learner knows of, its own included."""
    links: NotRequired[Links]
    """Where settings follow them, the goodput of its links."""
    unmerged: NotRequired[list[Count]]
    """Of one that leaves, the fragments in which it has work that no version contains."""
    reached: NotRequired[Count]
    """Of one that will go on with the work of the life before it: the position in its data which that had reached."""


EvaluationKind: TypeAlias = Literal["initial", "during", "final"]


class FiguresFault(TypedDict):
    """Why the figures of a final evaluation lack: the task's function raised, returned no figures, or some that are not
    finite; it did not return in time, its host ended, or the run was stopped. `detail`: what was found."""

    kind: Literal["raised", "no figures", "not finite", "late", "ended", "stopped"]
    detail: str


class Evaluated(TypedDict):
    """evaluator -> recorder, or inner-step, in its report: the loss of the global model."""

    kind: EvaluationKind
    loss: float | None
    """In the task's own unit; None for a task that evaluates nothing."""
    tokens: Count
    """Those of all learners that are in the model."""
    metrics: NotRequired[Metrics]
    """Every other scalar that the task evaluates."""
    error: NotRequired[float]
    """The loss's standard error, where it is of several batches."""
    extract: NotRequired[list[Count]]
    """Of how many windows it is, how many there are, and the tokens of each, where the task has told."""
    took: NotRequired[Count]
    """The nanoseconds that it lasted."""
    queued: NotRequired[Count]
    """Those of them for which it waited for a core."""
    figures_within: NotRequired[Count]
    """Of the final model, whose figures are being computed: they follow within so many nanoseconds."""
    figures: NotRequired[Metrics]
    """Those of the final model, by name; nan for one that is not finite."""
    better: NotRequired[list[Annotated[list[Any], tuple[str, str]]]]
    """[name, "higher" or "lower"]: which way is better."""
    figures_fault: NotRequired[FiguresFault]
    left_out: NotRequired[bool]
    """Of the final model, which was not evaluated because the run was stopped; its loss is then nan, which any node may
    compare."""


class LearnerEvaluation(TypedDict):
    """Of a learner that can evaluate the global model, where no other host can: whether it is the one that does, and
    the last evaluation that it has made."""

    evaluates: NotRequired[bool]
    evaluation: NotRequired[Evaluated]


class LastLeaves(TypedDict):
    """The digest of each fragment, once the last version of all was adopted, empty before; and the first leaf that has
    other values than these, '' if none has."""

    digests: list[Count]
    leaf: str


class LoopLeaves(TypedDict):
    """Of a learner in a user's loop: what its leaves have with the last model."""

    last: NotRequired[LastLeaves]


class DeviceWaits(TypedDict):
    """Of a learner on a device that is no CPU: what its host has waited for there in this life, how often, and how long
    (`island.host_waits`)."""

    host_waits: NotRequired[list[Annotated[list[Any], tuple[str, Count, Count]]]]


class Copies(TypedDict):
    """Of a learner that leaves no copies in its machine's memory, because it lacks them: the bytes that they need."""

    lacks_memory: NotRequired[Count]


class SiteScores(TypedDict):
    """What one model has on the held-out part of a site's data; a loss that is not finite is told as it is."""

    loss: float | None
    """In the task's own unit; None for a task that evaluates nothing."""
    error: NotRequired[float]
    """The loss's standard error, where it is of several batches."""
    bits: NotRequired[float]
    """The loss in bits a byte of text, where it is known how many bytes the tokens are of."""
    metrics: Metrics
    """Every other scalar that the task evaluates."""


class SiteEvaluated(TypedDict):
    """An evaluation by a learner on the held-out part of its site's own data, at one boundary: of the versions that it
    has adopted by then, and of its own parameters just before that."""

    kind: EvaluationKind
    number: Count
    """Which one of this life, from 0."""
    tokens: Count
    """Those of all learners that are known to be trained by then."""
    own_tokens: Count
    """Those that this life has trained by then."""
    versions: list[Version]
    """By fragment of the learner's."""
    predicted: Count
    """The tokens on which it is made, but for those of named sets."""
    took: Count
    """The nanoseconds that it lasted."""
    of_global: SiteScores
    of_own: SiteScores | None
    """None where the learner has no model of its own yet."""


class SiteReport(TypedDict):
    """Of a learner on a machine with data of its own: these, as figures, and its evaluations on them. No text, and no
    names but those of scalars, which the task gives."""

    digest: Annotated[list[Count], ("length", 4)]
    """That of the contents, in words of 32 bits."""
    bytes: Count
    tokens: Count
    is_told: bool
    """Whether losses are; else there are no evaluations here."""
    awaits: bool
    """Whether the evaluation of the final model is still to come."""
    evaluations: list[SiteEvaluated]
    """The last two, because a report may be overtaken."""


class SiteData(TypedDict):
    """Of a learner whose data are those of its site."""

    site: NotRequired[SiteReport]


class CompanionReport(LearnerEvaluation, LoopLeaves, DeviceWaits, Copies, SiteData):
    """Of a learner: what its companions, and its device, add to a report."""


class StepReport(Progress, CompanionReport):
    """inner-step -> recorder: the complete status; also on port `progress` of a body without a `report`. Times are in
    nanoseconds.
    """

    stepping: Count
    """The time since its first step began, but for what it was `away` of it (`runtime.host.busy`)."""
    away: NotRequired[Count]
    loss: float
    """The mean since the last report; nan before the first step."""
    metrics: Metrics
    """The means of the task's other metrics."""
    staleness: Count
    """The most inner steps since an adoption."""
    sick: bool
    sick_step: Count
    """The last step at which its loss was not finite and it replaced its parameters by the global ones, 0 if it never
    was."""
    accounts: list[Annotated[list[Count], ("length", len(FATES))]]
    """Per fragment, [merged, overlapped, refused, lost, pending]."""
    versions: list[Version]
    bytes_sent: Count
    bytes_received: Count
    payload_bytes_sent: NotRequired[Count]
    """Those of codes and scales, in programs that merge."""
    answers: NotRequired[Count]
    """Those with outer gradients."""
    waited: Count
    """The time in which it was kept from stepping."""
    device_kind: str
    began: Annotated[list[Any], tuple[Literal["memory", "copy", "snapshot", "anew", "peer"], Count, Count]] | None
    """Of a later life, the source of its learner's own state: ["copy", life, step] of that life's copy on its machine,
    ["snapshot", life, merges], as that life was after so many merges, ["anew", 0, 0], or, also of a first life,
    ["peer", slot, step] of another learner that lent its moments; None where nothing of it is lost, or known."""
    in_model: Positions
    """In programs that average gradients, the tokens of each slot in the model that it has."""
    not_finite: NotRequired[Count]
    """The number of batches of this life whose loss was not finite."""


class Brought(TypedDict):
    """The status of a store: URL, number of its newest snapshot, and why it lacks the next."""

    url: str
    number: Count
    error: str | None


class Held(TypedDict):
    """hold -> pacers and recorder, and pacer -> recorder, which knows it from merges (`ops.recovery.hold`)."""

    holder: str
    """The role of the host."""
    fragments: list[Count]
    """Those of which it has a version."""
    merged: list[Count]
    """Those of which it has a merged one."""
    saved: list[Annotated[list[int], tuple[Count, Ordinal, Count]]]
    """The versions on its disk, as [fragment, epoch, count]."""
    totals: LifeTokens
    """The progress of the run by the snapshot that it began with, which a recorder that died with all others may not
    know."""
    faults: list[str]
    """What is wrong with newer snapshots that are damaged."""
    error: str | None
    """The disk's, where it does not accept the next."""
    store: Brought | None
    """Where snapshots are brought to one."""
    lives: Members
    """Those of shards, [shard, incarnation], for which it looked."""
    given: list[Annotated[list[Any], tuple[Count, Count, Count, str, Lengths]]]
    """Its versions from a former life of their shard, as [fragment, epoch, count, digest, lengths]; the lengths are
    none where only the shard's state has them."""


class NeighbourHeld(Held):
    """hold-neighbour -> pacer of the shard `owner`, and recorder: what it holds of that shard's fragments."""

    owner: Count


class Control(TypedDict):
    """recorder -> pacer, and, where there is no pacer, recorder -> inner-step (port `progress`).

    `tokens` is the budget of the run, `published` the newest version of each fragment that is known to be merged, as
    [fragment, epoch, count].
    """

    stop: bool
    tokens: Count
    totals: LifeTokens
    published: list[Annotated[list[int], tuple[Count, Count, Count]]]


class Turn(Round):
    """conductor -> merge (port `round`), gate (port `pull`): a round, and the steps since the capture before its own.

    All turns of the end ask for one boundary.
    """

    steps: Count


class Permit(TypedDict):
    """gate -> inner-step: adopt `updates`, make a step (if it `trains`), and answer `pulls`."""

    updates: list[Update]
    pulls: list[Round]
    trains: bool


class LockStepGreeting(TypedDict):
    """inner-step -> inner-step of every other learner, in lock-step without a syncer: the `lives`, [slot, incarnation],
    that it hears, whether they are all, the tokens of its state (`at`), and whether it steps (`steps`)."""

    slot: SenderSlot
    incarnation: SenderLife
    at: Count
    hears_all: bool
    lives: Members
    steps: bool


class EvaluatedModel(TypedDict):
    """inner-step -> evaluate: the parameters as a tree, after so many `tokens` in all."""

    tree: Any
    tokens: Count
    is_final: bool


class RoundOpening(TypedDict):
    """caller -> average: a round of `members` ([slot, incarnation] pairs), all of which are awaited."""

    round: int
    members: Members
    count_min: int
    grace: int | None


class Call(TypedDict):
    """caller -> inner-step: the mean of the round before, and a call to vote in `round`."""

    round: int
    members: Members
    mean: Vector | None
    """None where there is none yet."""
    voters: Members
    """Those whose votes are in the mean."""
    served: Members
    """Those that take `state` before it."""
    state: list[Any] | None
    donor: int | None
    """The slot that must send its state along with its vote."""
    trained_before: int
    """The tokens of all means without this one."""
    trained: int
    """Those with it."""
    totals: LifeTokens
    """The tokens of lives in all means."""
    positions: Positions
    """The batches of each slot in these, as in `ReachedPositions`."""
    streams: list[list[Any]]
    """Likewise."""
    is_last: bool


class Vote(TypedDict):
    """inner-step -> average: a gradient, float32[n], of so many tokens; from a donor also its state before the round.

    `positions` is [[slot, position]], below which the batch of this gradient is, and `stream` [position, state] of the
    slot's stream.
    """

    round: Count
    slot: SenderSlot
    incarnation: SenderLife
    tokens: Ordinal
    values: Vector
    state: list[Any] | None
    positions: Positions
    stream: StreamState | None


def passed_on(kind: type, item: Mapping[str, Any], **others: Any) -> Any:
    """An item of a type, in the order of its fields: those that another item has, too, and others."""
    fields = {**item, **others}
    return {name: fields[name] for name in kind.__annotations__ if name in fields}


def whole_of(item: Update, values: Any) -> Update:
    """An update with these values, which are not coded."""
    whole: Update = passed_on(Whole, item, values=values)
    return whole


def copied(held: Update) -> Update:
    """A copy of a published update, for hosts that hold an older version or none; of a State only the update."""
    copy = whole_of(held, held["values"])
    if held["kind"] != "final":
        copy["kind"], copy["refused"] = "copy", []
    return copy


def withdrawn(fragment: int) -> Update:
    """The withdrawal of a copy: version [0, 0] stands for none."""
    return Update(
        fragment=fragment,
        version=[0, 0],
        kind="copy",
        values=np.empty(0, np.float32),
        clock=[],
        positions=[],
        totals=[],
        refused=[],
    )


def is_withdrawn(update: Update) -> bool:
    """Whether an update is a withdrawal."""
    return update["version"][0] == 0


def boundary(index: int, interval: int, fragments: int) -> int:
    """The number of steps after which the fragment of turn `index`, counted from 0, is captured; 0 before the first.

    Turns take one fragment after the other, after the same number of steps in each round of all. So the merge positions
    of all fragments determine which turn was the last, and which versions exist some turns later.
    """
    return (index + 1) * interval // fragments


def last_merged(positions: Mapping[int, Sequence[Sequence[int]]], fragments: int) -> int:
    """The fragment that was merged last, by the merged batches of each slot in each, [slot, position].

    Where nothing is merged, it is the last of all, so that the first is next.
    """
    reached = {p: sum(position for _, position in positions.get(p, ())) for p in range(fragments)}
    return max(reached, key=lambda p: (reached[p], p))


def after(counts: Sequence[int], last: int, turns: int) -> tuple[int, list[int]]:
    """The fragment that is merged last, and the counts of all versions, `turns` turns after `last`."""
    counted = list(counts)
    for _ in range(turns):
        last = (last + 1) % len(counted)
        counted[last] += 1
    return last, counted
