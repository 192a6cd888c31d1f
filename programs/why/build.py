"""Builds the facts of one merge from its line of merges.jsonl and from its round on the shard's tape. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from statistics import median
from typing import Any, Final

from isthmus.programs.adapted.words import ChangeRecord, in_use
from isthmus.programs.why.facts import Answer, ClosedBy, Fate, Line, MergeFacts, Terms
from isthmus.programs.why.on_tape import Came, TapedRound

_MS: Final = 1e6


def merge_facts(
    line: Line,
    taped: TapedRound,
    *,
    lines: Sequence[Line] = (),
    gamma: float | None = None,
    tokens_of_step: Sequence[int] = (),
    sizes: Mapping[int, Sequence[float]] | None = None,
    changes: Sequence[ChangeRecord] = (),
) -> MergeFacts:
    """The facts of one merge.

    Arguments:
        line: that of merges.jsonl.
        taped: its round on the tape of the shard; empty without one.
        lines: those that have the origins of later epochs.
        gamma: the run's safety margin of the grace; None if it has none.
        tokens_of_step: the tokens of a learner's batch, by slot, the last for all beyond; empty if unknown.
        sizes: the bytes of all answers of each learner to this shard, in their order; None if unknown.
        changes: those of settings that followed the links.
    """
    terms = _terms(taped, gamma)
    opened = _opened(line, taped)
    return MergeFacts(
        fragment=line["fragment"],
        version=line.get("version"),
        kind=line["kind"],
        round=line["round"],
        shard=line.get("shard", 0),
        epoch=line.get("epoch", 1),
        origin=line.get("origin"),
        undone_by=_undone_by(line, lines),
        time=line["time"],
        opened=opened,
        quorum_ms=line.get("quorum_ms"),
        grace_ms_used=line.get("grace_ms_used"),
        merge_ms=_merge_ms(taped),
        closed_by=_closed_by(line, terms),
        reason=line.get("reason", ""),
        terms=terms,
        answers=_answers(line, taped, terms, tokens_of_step, sizes or {}),
        asked=line.get("asked"),
        changes=in_use(changes, line.get("shard", 0), line.get("epoch", 1), line["round"]),
    )


def _undone_by(line: Line, lines: Sequence[Line]) -> int | None:
    """The next epoch of the shard, if it began this fragment with an older version."""
    if line.get("version") is None:
        return None
    epoch = line.get("epoch", 1)
    later = [
        (each["epoch"], each["origin"])
        for each in lines
        if each["fragment"] == line["fragment"] and each.get("origin") and each.get("epoch", 1) > epoch
    ]
    following, origin = min(later, default=(0, None))
    return following if origin is not None and list(origin) < list(line["version"]) else None


def _terms(taped: TapedRound, gamma: float | None) -> Terms | None:
    if not taped.openings:
        return None
    last = taped.openings[-1]
    grace, deadline = last.get("grace"), last.get("deadline")
    is_granted = bool(gamma and grace) and last.get("chain") is not None
    return Terms(
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


def _opened(line: Line, taped: TapedRound) -> float | None:
    """When the round opened."""
    if taped.closing is None or taped.published_at is None:
        return None
    return float(line["time"]) - (taped.published_at - taped.closing.opened_at) / 1e9


def _merge_ms(taped: TapedRound) -> float | None:
    """Time from the close to the publication: merge and outer step."""
    if taped.closing is None or taped.published_at is None:
        return None
    return (taped.published_at - taped.closing.closed_at) / _MS


def _closed_by(line: Line, terms: Terms | None) -> ClosedBy | None:
    if not line.get("left_out"):
        return "everybody"
    if terms is None:
        return None
    is_awaited = terms.deadline_ms is not None and any(slot in terms.required for slot in line["left_out"])
    end_of_grace = (line.get("quorum_ms") or 0.0) + (terms.grace_ms or 0.0)
    return "deadline" if is_awaited and (terms.deadline_ms or 0.0) > end_of_grace else "grace"


def _answers(
    line: Line,
    taped: TapedRound,
    terms: Terms | None,
    tokens_of_step: Sequence[int],
    sizes: Mapping[int, Sequence[float]],
) -> list[Answer]:
    """All learners that answered, or were asked, by slot."""
    closing = taped.closing
    given = {came.slot: came for came in closing.given} if closing else {}
    late = {came.slot: came for came in taped.came if closing and came.slot not in given}
    weights = dict(zip(line.get("voters", ()), line.get("weights", ()), strict=False))
    refused: dict[int, Any] = {entry[0]: entry[1] for entry in line.get("refused", ())}
    left_out = set(line.get("left_out", ()))
    asked: dict[int, int] = {member[0]: member[1] for member in (terms.members if terms else ())}
    found = []
    is_trained = line["kind"] in ("merge", "final")
    for slot in sorted({*weights, *refused, *left_out, *given, *late, *asked}):
        came = given.get(slot) or late.get(slot)
        tokens = came.tokens if came and is_trained else None
        is_late = slot in late and closing is not None
        found.append(
            Answer(
                slot=slot,
                fate=_fate(slot, weights, refused, given, late, left_out, is_trained=is_trained),
                incarnation=came.incarnation if came else asked.get(slot),
                weight=weights.get(slot),
                arrived_ms=(came.at - closing.opened_at) / _MS if came and closing else None,
                late_ms=(came.at - closing.closed_at) / _MS if came and closing and is_late else None,
                tokens=tokens,
                steps=_steps(slot, tokens, tokens_of_step),
                size_bytes=_size(came, taped, sizes),
                refusal=refused.get(slot),
                shortened_to=dict(line.get("shortened", ())).get(slot),
                opposed_merges=dict(line.get("opposed", ())).get(slot),
                from_round=came.round if came and came.round != line["round"] else None,
                counted_in=taped.counted_in.get(came) if came else None,
                dropped=taped.dropped.get(came) if came else None,
            )
        )
    return found


def _fate(
    slot: int,
    weights: Mapping[int, Any],
    refused: Mapping[int, Any],
    given: Mapping[int, Any],
    late: Mapping[int, Any],
    left_out: Set[int],
    *,
    is_trained: bool,
) -> Fate:
    if slot in weights:
        return "merged"
    if slot in refused:
        return "refused"
    if slot in given:
        return "without steps" if is_trained else "not needed"
    if slot in late:
        return "late"
    return "left out" if slot in left_out else "gone"


def _steps(slot: int, tokens: int | None, tokens_of_step: Sequence[int]) -> float | None:
    if tokens is None or not tokens_of_step:
        return None
    return tokens / tokens_of_step[min(slot, len(tokens_of_step) - 1)]


def _size(came: Came | None, taped: TapedRound, sizes: Mapping[int, Sequence[float]]) -> int | None:
    """The bytes of an answer: the trace has the answers of a learner in the same order as the tape, if it has all."""
    known = () if came is None else sizes.get(came.slot, ())
    return int(known[came.nth]) if came and len(known) == taped.answers_of.get(came.slot) else None
