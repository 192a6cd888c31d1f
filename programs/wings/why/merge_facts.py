"""Builds the facts of one merge from its line of merges.jsonl and from its round on the shard's tape. Pure.

All known facts of one merge, as data. Facts that the run folder does not hold are None.

Durations are milliseconds, times are seconds since the first inner step, as in merges.jsonl.

The records of rounds on the tape of a shard: their openings, the times of their answers, and their outcomes. Pure.

A tape has no payloads, but of each item the fields that cores read or that are noted: of an opening its terms, of an
answer its round and its tokens (begin, end], of a merge the round and when it was published. So nothing here needs the
graph of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from isthmus.ops.data.life_tokens import tokens_of_life
from isthmus.ops.step_tokens import AtMost, ChangedStepTokens, StepTokens
from isthmus.ops.syncer.terms import EDGE_WAIT, OBSERVATIONS
from isthmus.programs.engine.results.changes import in_use
from isthmus.programs.engine.results.lines import ChangeRecord, MergeRecord
from isthmus.runtime.cores.scheduler_events import (
    DropItem,
    FiringEnded,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    Output,
    RunBody,
)
from isthmus.runtime.ids import LEARNER, Handle

Fate: TypeAlias = Literal["merged", "refused", "without steps", "not needed", "late", "left out", "gone"]
"""The fate of a learner in a round: its answer was merged; refused; held no step; was the same version as the one taken
(kinds 'initial' and 'recover', which take one); arrived after the close; had not arrived by the end of the run or the
tape; it was asked, and was no longer live when the round closed."""
ClosedBy: TypeAlias = Literal["everybody", "grace", "deadline"]
NOT_RECORDED: Final = ("norms of answers", "step times", "delays of publication and adoption")
"""Facts that a shard has in its memory, but no file of the run folder."""


@dataclass(frozen=True, slots=True)
class RoundAnswer:
    """A learner in a round."""

    slot: int
    fate: Fate
    incarnation: int | None = None
    weight: float | None = None
    """Its share of the merge: tokens x (tokens / steps), over the sum."""
    arrived_ms: float | None = None
    """Counts from the opening of the round."""
    late_ms: float | None = None
    """Counts from its close."""
    tokens: int | None = None
    steps: float | None = None
    size_bytes: int | None = None
    refusal: str | None = None
    """Why it was not merged."""
    shortened_to: float | None = None
    """The merged share of its length, if it was too long."""
    clipped_to: float | None = None
    """Of what was left then, if that was longer than `program.clip_answers` permits."""
    opposed_merges: int | None = None
    """In how many merges in a row it has pulled against all others."""
    from_round: int | None = None
    """The round that it was sent for, if it was late for that and counts in this one."""
    counted_in: int | None = None
    """The later round in which it counts, if it was late for this one."""
    dropped: str | None = None
    """Why it counts in none."""


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """The terms of a round's last attempt, with grace = gamma x slack."""

    attempts: int
    members: Sequence[Sequence[int]]
    """[slot, incarnation]."""
    quorum: int
    """The answers that were needed."""
    grace_ms: float | None
    """Granted after them; None: without end."""
    required: Sequence[int]
    """The slots that were waited for."""
    deadline_ms: float | None
    """Until when, after the opening."""
    gamma: float | None = None
    slack_ms: float | None = None
    """Follows from the grace where that is above 0."""
    typical_quorum_ms: float | None = None
    """The median, from opening to quorum, of the rounds before it that a shard looks at."""
    typical_rounds: int = 0
    """How many rounds those are."""


@dataclass(frozen=True, slots=True)
class MergeFacts:
    """One merge. `terms` and all arrivals are from the shard's tape."""

    fragment: int
    version: Sequence[int] | None
    """None if nothing was merged."""
    kind: str
    round: int
    shard: int
    epoch: int
    origin: Sequence[int] | None
    """The version with which this epoch of the shard began."""
    undone_by: int | None
    """The next epoch, if that began with an older version than this one, which is then not in the model."""
    time: float
    opened: float | None
    quorum_ms: float | None
    grace_ms_used: float | None
    merge_ms: float | None
    closed_by: ClosedBy | None
    reason: str
    """The quorum's sentence on why the round closed."""
    terms: RoundTerms | None
    answers: Sequence[RoundAnswer]
    """Those of replicas of the role `by`: learners, or regions."""
    asked: Mapping[str, Any] | None = None
    """The settings that followed the links, None if none did."""
    changes: Sequence[ChangeRecord] = ()
    """The last change of each that counted."""
    capped: Sequence[tuple[str, float, float]] = ()
    """[participant, share, capped share]."""
    by: str = LEARNER


@dataclass(frozen=True, slots=True)
class AbsentHost:
    """A host that was away while the round was open: the story, begin and end (None: the end of the run)."""

    host: str
    story: str
    begun: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """What the host of a learner has waited for on its device: how often, and for how long in all, in that life until
    its newest report."""

    learner: int
    incarnation: int
    what: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Why:
    """The requested merge, and its context.

    `recoveries`: the rounds in which later lives of the shard took its version up again; `away`: absent hosts;
    `problems`: unreadable files of the folder; `host_waits`: of the newest life of each learner on a device.
    """

    run: str
    merge: MergeFacts
    recoveries: Sequence[MergeFacts]
    away: Sequence[AbsentHost]
    problems: Sequence[str]
    host_waits: Sequence[DeviceWait] = ()


_ANSWER: Final = {"round", "begin", "end"}
_OPENING: Final = {"round", "members", "count_min"}
_PUBLISHED: Final = {"round", "version", "kind"}


class Came(NamedTuple):
    """An answer as it arrived: its life, its round, the time (nanoseconds of the shard's clock), and its tokens.

    It was the `nth` of its learner on this tape, from 0.
    """

    slot: int
    incarnation: int
    round: int
    at: int
    tokens: int
    nth: int


@dataclass(slots=True)
class Closing:
    """The close of a round: its instants, and the answers that it took."""

    opened_at: int
    quorum_at: int
    closed_at: int
    answers: list[Came]


@dataclass(slots=True)
class TapedRound:
    """One round on a tape. Its closing and publication are None if the tape ends before."""

    openings: list[Mapping[str, Any]] = field(default_factory=list)
    """One for each attempt."""
    came: list[Came] = field(default_factory=list)
    """The answers that were sent for it."""
    closing: Closing | None = None
    published_at: int | None = None
    counted_in: dict[Came, int] = field(default_factory=dict)
    """The round in which a late answer counts."""
    dropped: dict[Came, str] = field(default_factory=dict)
    """Why an answer counts in none."""
    usual_ns: list[int] = field(default_factory=list)
    """The times from opening to quorum of the last rounds before it that the shard learnt from."""
    answers_of: dict[int, int] = field(default_factory=dict)
    """The number of answers of each learner on the whole tape."""


def taped_round(records: Sequence[HostRecord], number: int) -> TapedRound:
    """What a tape has of round `number`; empty where it has nothing."""
    return taped_rounds(records, [number])[number]


def taped_rounds(records: Sequence[HostRecord], rounds: Collection[int]) -> dict[int, TapedRound]:
    """What a tape has of each of these `rounds`; empty where it has nothing."""
    taped = {number: TapedRound() for number in rounds}
    answers_of: dict[int, int] = {}
    first: dict[int, Mapping[str, Any]] = {}
    numbers: dict[Handle, int] = {}
    answers: dict[Handle, Came] = {}
    quorums: dict[int, int] = {}
    usual: list[int] = []
    for record in records:
        event = record.event
        if isinstance(event, ItemArrived) and event.fields and event.fields.keys() >= _ANSWER:
            answers[event.handle] = came = _came(record.at, event, answers_of)
            if came.round in taped:
                taped[came.round].came.append(came)
        for output in _outputs(record):
            fields = output.fields or {}
            of = taped.get(fields.get("round", -1))
            if fields.keys() >= _OPENING:
                numbers[output.handle] = fields["round"]
                first.setdefault(fields["round"], fields)
                if of is not None:
                    of.openings.append(fields)
                    of.usual_ns = of.usual_ns or usual[-OBSERVATIONS:]
            elif fields.keys() >= _PUBLISHED:
                if of is not None:
                    of.published_at = of.published_at or record.at
                if fields["round"] in quorums:
                    usual.append(quorums.pop(fields["round"]))
        for command in record.commands:
            if isinstance(command, RunBody) and "closed_at" in (command.decision or {}):
                _close(command, taped, numbers, answers, first, quorums)
            elif isinstance(command, DropItem) and (dropped := answers.get(command.handle)) and dropped.round in taped:
                taped[dropped.round].dropped[dropped] = command.reason
    for of in taped.values():
        of.answers_of = answers_of
    return taped


def _close(
    command: RunBody,
    taped: Mapping[int, TapedRound],
    numbers: Mapping[Handle, int],
    answers: Mapping[Handle, Came],
    first: Mapping[int, Mapping[str, Any]],
    quorums: dict[int, int],
) -> None:
    """Take a round that closes."""
    decision = command.decision or {}
    handles = [handle for _, entries in command.inputs for _, _, handle in entries]
    closed = next((numbers[handle] for handle in handles if handle in numbers), None)
    if closed is None:
        return
    received = [answers[handle] for handle in handles if handle in answers]
    opened_at, quorum_at = decision["opened_at"], decision["quorum_at"]
    opening = first[closed]
    is_usual = opening.get("grace") is not None and opening.get("deadline") != EDGE_WAIT
    if received and is_usual and opening.get("chain") is not None:
        quorums[closed] = quorum_at - opened_at
    if closed in taped:
        taped[closed].closing = Closing(opened_at, quorum_at, decision["closed_at"], received)
    for came in received:
        if came.round in taped and came.round != closed:
            taped[came.round].counted_in[came] = closed


def _came(at: int, event: ItemArrived, answers_of: dict[int, int]) -> Came:
    fields, slot = event.fields or {}, event.source.replica.slot
    nth = answers_of.get(slot, 0)
    answers_of[slot] = nth + 1
    tokens = fields["end"] - fields["begin"] + sum(end - begin for _, begin, end, _ in fields.get("former", ()))
    return Came(slot, event.source.incarnation, fields["round"], at, tokens, nth)


def _outputs(record: HostRecord) -> tuple[Output, ...]:
    return record.event.outputs if isinstance(record.event, FiringEnded | ItemsEmitted) else ()


_MS: Final = 1e6


def merge_facts(
    line: MergeRecord,
    taped: TapedRound,
    *,
    lines: Sequence[MergeRecord] = (),
    gamma: float | None = None,
    tokens_of_step: StepTokens = (),
    sizes: Mapping[int, Sequence[float]] | None = None,
    changes: Sequence[ChangeRecord] = (),
    by: str = LEARNER,
) -> MergeFacts:
    """The facts of one merge.

    Arguments:
        line: that of merges.jsonl.
        taped: its round on the tape of the shard; empty without one.
        lines: those that have the origins of later epochs.
        gamma: the run's safety margin of the grace; None if it has none.
        tokens_of_step: the tokens of a learner's batch; empty if unknown.
        sizes: the bytes of all answers of each learner to this shard, in their order; None if unknown.
        changes: those of settings that followed the links.
        by: the role that answers.
    """
    terms = _terms(taped, gamma)
    opened = _opened(line, taped)
    return MergeFacts(
        fragment=line.fragment,
        version=line.version,
        kind=line.kind,
        round=line.round,
        shard=line.shard,
        epoch=line.epoch,
        origin=line.origin,
        undone_by=_undone_by(line, lines),
        time=line.time,
        opened=opened,
        quorum_ms=line.quorum_ms,
        grace_ms_used=line.grace_ms_used,
        merge_ms=_merge_ms(taped),
        closed_by=_closed_by(line, terms),
        reason=line.reason,
        terms=terms,
        answers=_answers(line, taped, terms, tokens_of_step, sizes or {}),
        asked=line.asked,
        changes=in_use(changes, line.shard, line.epoch, line.round),
        capped=line.capped,
        by=by,
    )


def _undone_by(line: MergeRecord, lines: Sequence[MergeRecord]) -> int | None:
    """The next epoch of the shard, if it began this fragment with an older version."""
    if line.version is None:
        return None
    epoch = line.epoch
    later = [
        (each.epoch, each.origin)
        for each in lines
        if each.fragment == line.fragment and each.origin and each.epoch > epoch
    ]
    following, origin = min(later, default=(0, None))
    return following if origin is not None and list(origin) < list(line.version) else None


def _terms(taped: TapedRound, gamma: float | None) -> RoundTerms | None:
    if not taped.openings:
        return None
    last = taped.openings[-1]
    grace, deadline = last.get("grace"), last.get("deadline")
    is_granted = bool(gamma and grace) and last.get("chain") is not None
    return RoundTerms(
        attempts=len(taped.openings),
        members=last["members"],
        quorum=last["count_min"],
        grace_ms=None if grace is None else grace / _MS,
        required=last.get("required") or [],
        deadline_ms=None if deadline is None else deadline / _MS,
        gamma=gamma if is_granted else None,
        slack_ms=grace / _MS / gamma if is_granted and grace and gamma else None,
        typical_quorum_ms=median(taped.usual_ns) / _MS if taped.usual_ns and is_granted else None,
        typical_rounds=len(taped.usual_ns) if is_granted else 0,
    )


def _opened(line: MergeRecord, taped: TapedRound) -> float | None:
    """When the round opened."""
    if taped.closing is None or taped.published_at is None:
        return None
    return float(line.time) - (taped.published_at - taped.closing.opened_at) / 1e9


def _merge_ms(taped: TapedRound) -> float | None:
    """Time from the close to the publication: merge and outer step."""
    if taped.closing is None or taped.published_at is None:
        return None
    return (taped.published_at - taped.closing.closed_at) / _MS


def _closed_by(line: MergeRecord, terms: RoundTerms | None) -> ClosedBy | None:
    if not line.left_out:
        return "everybody"
    if terms is None:
        return None
    is_awaited = terms.deadline_ms is not None and any(slot in terms.required for slot in line.left_out)
    end_of_grace = (line.quorum_ms or 0.0) + (terms.grace_ms or 0.0)
    return "deadline" if is_awaited and (terms.deadline_ms or 0.0) > end_of_grace else "grace"


def _answers(
    line: MergeRecord,
    taped: TapedRound,
    terms: RoundTerms | None,
    tokens_of_step: StepTokens,
    sizes: Mapping[int, Sequence[float]],
) -> list[RoundAnswer]:
    """All learners that answered, or were asked, by slot."""
    closing = taped.closing
    received = {came.slot: came for came in closing.answers} if closing else {}
    late = {came.slot: came for came in taped.came if closing and came.slot not in received}
    weights = dict(zip(line.voters, line.weights, strict=False))
    refused: dict[int, Any] = {entry[0]: entry[1] for entry in line.refused}
    left_out = set(line.left_out)
    members: dict[int, int] = {member[0]: member[1] for member in (terms.members if terms else ())}
    answers = []
    is_trained = line.kind in ("merge", "final")
    for slot in sorted({*weights, *refused, *left_out, *received, *late, *members}):
        came = received.get(slot) or late.get(slot)
        tokens = came.tokens if came and is_trained else None
        is_late = slot in late and closing is not None
        answers.append(
            RoundAnswer(
                slot=slot,
                fate=_fate(slot, weights, refused, received, late, left_out, is_trained=is_trained),
                incarnation=came.incarnation if came else members.get(slot),
                weight=weights.get(slot),
                arrived_ms=(came.at - closing.opened_at) / _MS if came and closing else None,
                late_ms=(came.at - closing.closed_at) / _MS if came and closing and is_late else None,
                tokens=tokens,
                steps=_steps(slot, came.incarnation if came else members.get(slot), tokens, tokens_of_step),
                size_bytes=_size(came, taped, sizes),
                refusal=refused.get(slot),
                shortened_to=dict(line.shortened).get(slot),
                clipped_to=dict(line.clipped).get(slot),
                opposed_merges=dict(line.opposed).get(slot),
                from_round=came.round if came and came.round != line.round else None,
                counted_in=taped.counted_in.get(came) if came else None,
                dropped=taped.dropped.get(came) if came else None,
            )
        )
    return answers


def _fate(
    slot: int,
    weights: Mapping[int, Any],
    refused: Mapping[int, Any],
    received: Mapping[int, Any],
    late: Mapping[int, Any],
    left_out: Set[int],
    *,
    is_trained: bool,
) -> Fate:
    if slot in weights:
        return "merged"
    if slot in refused:
        return "refused"
    if slot in received:
        return "without steps" if is_trained else "not needed"
    if slot in late:
        return "late"
    return "left out" if slot in left_out else "gone"


def _steps(slot: int, life: int | None, tokens: int | None, tokens_of_step: StepTokens) -> float | None:
    if tokens is None or not tokens_of_step or (life is None and isinstance(tokens_of_step, ChangedStepTokens)):
        return None
    of_step = tokens_of_life(tokens_of_step, slot, life or 1)
    return None if isinstance(of_step, AtMost) else tokens / of_step


def _size(came: Came | None, taped: TapedRound, sizes: Mapping[int, Sequence[float]]) -> int | None:
    """The bytes of an answer: the trace has the answers of a learner in the same order as the tape, if it has all."""
    sizes_of = () if came is None else sizes.get(came.slot, ())
    return int(sizes_of[came.nth]) if came and len(sizes_of) == taped.answers_of.get(came.slot) else None
