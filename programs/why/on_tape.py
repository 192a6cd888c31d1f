"""The records of rounds on the tape of a shard: their openings, the times of their answers, and their outcomes. Pure.

A tape has no payloads, but of each item the fields that cores read or that are noted: of an opening its terms, of an
answer its round and its tokens (begin, end], of a merge the round and when it was published. So nothing here needs the
graph of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from isthmus.ops.syncer.terms import OBSERVATIONS
from isthmus.runtime.cores.scheduler_events import (
    DropItem,
    FiringEnded,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    Output,
    RunBody,
)
from isthmus.runtime.ids import Handle

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
    given: list[Came]


@dataclass(slots=True)
class TapedRound:
    """One round on a tape.

    `openings`: one for each attempt; `came`: the answers that were sent for it; its closing and publication, None if
    the tape ends before; `counted_in`: the round in which a late answer counts; `dropped`: why an answer counts in
    none; `usual_ns`: the times from opening to quorum of the last rounds before it that the shard learnt from;
    `answers_of`: the number of answers of each learner on the whole tape.
    """

    openings: list[Mapping[str, Any]] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    closing: Closing | None = None
    published_at: int | None = None
    counted_in: dict[Came, int] = field(default_factory=dict)
    dropped: dict[Came, str] = field(default_factory=dict)
    usual_ns: list[int] = field(default_factory=list)
    answers_of: dict[int, int] = field(default_factory=dict)


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
    given = [answers[handle] for handle in handles if handle in answers]
    opened_at, quorum_at = decision["opened_at"], decision["quorum_at"]
    opening = first[closed]
    if given and opening.get("grace") is not None and opening.get("chain") is not None:
        quorums[closed] = quorum_at - opened_at
    if closed in taped:
        taped[closed].closing = Closing(opened_at, quorum_at, decision["closed_at"], given)
    for came in given:
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
