"""A merge in words: the one place that words its facts as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from isthmus.programs.adapted.words import sentence, settings
from isthmus.programs.results import numbers
from isthmus.programs.why.facts import NOT_RECORDED, Answer, Away, Fate, MergeFacts, Terms, Why

_KINDS: Final = {
    "initial": "the first version",
    "merge": "a merge",
    "final": "the last merge of the run",
    "recover": "the version that learners held, taken up again",
}
_FATES: Final[dict[Fate, str]] = {
    "merged": "merged",
    "refused": "refused",
    "without steps": "no steps",
    "not needed": "not needed",
    "late": "late",
    "left out": "left out",
    "gone": "gone",
}


def head(merge: MergeFacts) -> str:
    """Which merge this is."""
    version = "no version" if merge.version is None else f"version {dotted(merge.version)}"
    return f"fragment {merge.fragment}, {version}: {_KINDS.get(merge.kind, merge.kind)}"


def rows(merge: MergeFacts) -> Iterator[tuple[str, str]]:
    """A merge from its opening to its publication: keywords and texts."""
    yield "round", f"{merge.round & 0xFFFFFFFF} of syncer/{merge.shard}, life {merge.epoch}{_began(merge)}"
    if merge.terms is not None:
        yield "asked", _asked(merge.terms, merge.opened)
    if merge.asked is not None:
        yield "settings", settings(merge.asked)
    for change in merge.changes:
        yield "changed", f"{sentence(change)} ({_since(change.time)})"
    if merge.quorum_ms is not None:
        yield "quorum", f"{_ms(merge.quorum_ms)} after the opening"
    if merge.terms is not None and merge.kind not in ("initial", "recover"):
        yield "grace", _grace(merge.terms)
    if merge.terms is not None and merge.terms.required:
        yield "deadline", _deadline(merge.terms)
    used = "" if merge.grace_ms_used is None else f"{_ms(merge.grace_ms_used)} after the quorum: "
    yield "closed", f"{used}{merge.reason}"
    took = "" if merge.merge_ms is None else f", {_ms(merge.merge_ms)} after the close"
    what = "published" if merge.version is not None else "told"
    yield what, f"{_since(merge.time)}{took}{_nothing(merge)}"
    if merge.undone_by is not None:
        yield "undone", f"life {merge.undone_by} of the shard began with an older version: this is not in the model"


def remark(answer: Answer) -> str:
    """Further remarks on a learner in a round."""
    parts = []
    if answer.refusal is not None:
        parts.append(answer.refusal)
    if answer.shortened_to is not None:
        parts.append(f"too long, shortened to {numbers.percent(answer.shortened_to)} of its length")
    if answer.opposed_merges is not None:
        merges = f"{answer.opposed_merges} merge{'' if answer.opposed_merges == 1 else 's'}"
        parts.append(f"against all others, for {merges} now")
    if answer.from_round is not None:
        parts.append(f"late for round {answer.from_round & 0xFFFFFFFF}, counted here")
    if answer.late_ms is not None:
        parts.append(f"{_ms(answer.late_ms)} after the close{_later(answer)}")
    if answer.fate == "left out":
        parts.append("live, and no answer of it came")
    if answer.fate == "gone":
        parts.append("asked, and not live any more at the close")
    if answer.fate == "without steps":
        parts.append("had made no step on this version: weight 0")
    return "; ".join(parts)


def table(answers: Sequence[Answer]) -> dict[str, list[str]]:
    """Column -> its cells, a row for each learner; columns of which nothing is known are left out."""
    lives = {answer.incarnation for answer in answers} - {None, 1}
    columns = {
        "learner": [str(answer.slot) for answer in answers],
        "life": [str(answer.incarnation or "") for answer in answers] if lives else [],
        "answer": [fate(answer) for answer in answers],
        "arrived": ["" if answer.arrived_ms is None else _ms(answer.arrived_ms) for answer in answers],
        "tokens": [_whole(answer.tokens) for answer in answers],
        "steps": [_whole(answer.steps) for answer in answers],
        "weight": ["" if answer.weight is None else numbers.percent(answer.weight) for answer in answers],
        "bytes": ["" if answer.size_bytes is None else numbers.size(answer.size_bytes) for answer in answers],
    }
    return {name: cells for name, cells in columns.items() if any(cells)}


def fate(answer: Answer) -> str:
    """The fate of a learner in a round, in a word or two."""
    return _FATES[answer.fate]


def absent(away: Away) -> str:
    """A host's absence while a round was open, in words."""
    until = "" if away.ended is None else f" to {numbers.seconds(away.ended)}"
    return f"{away.story} ({numbers.seconds(away.begun)}{until})"


def notes(why: Why) -> Iterator[str]:
    """Unknown facts, and why."""
    yield from why.problems
    yield f"Not recorded: {', '.join(NOT_RECORDED)}."


def dotted(version: Sequence[int]) -> str:
    """A version as people write it: EPOCH.COUNT."""
    return ".".join(map(str, version))


def _began(merge: MergeFacts) -> str:
    if merge.origin is None or merge.epoch == 1:
        return ""
    return f", which began with version {dotted(merge.origin)}"


def _asked(terms: Terms, opened: float | None) -> str:
    """The members asked, the time, and the quorum."""
    when = "" if opened is None else f", {_since(opened)}"
    again = f", in {terms.attempts} attempts" if terms.attempts > 1 else ""
    who = f"{_learners([slot for slot, _ in terms.members])}{again}"
    return f"{who}{when}; a quorum is {terms.quorum} answer{'' if terms.quorum == 1 else 's'}"


def _grace(terms: Terms) -> str:
    """The grace after the quorum, and its measurements."""
    if terms.grace_ms is None:
        return "without end: the round waits for every member that is live"
    told = f"{_ms(terms.grace_ms)} granted"
    if terms.slack_ms is None or terms.gamma is None:
        return told
    told += f" = gamma {terms.gamma:g} x slack {_ms(terms.slack_ms)}"
    if terms.typical_quorum_ms is None:
        return told
    rounds = f"{terms.typical_rounds} round{'' if terms.typical_rounds == 1 else 's'}"
    return f"{told}; a quorum took {_ms(terms.typical_quorum_ms)}, the median of {rounds} before"


def _deadline(terms: Terms) -> str:
    until = "without end" if terms.deadline_ms is None else f"until {_ms(terms.deadline_ms)} after the opening"
    return f"{_learners(terms.required)} waited for, {until}: left out too often before"


def _learners(slots: Sequence[int]) -> str:
    named = ", ".join(map(str, slots))
    return f"learner{'' if len(slots) == 1 else 's'} {named}" if slots else "nobody"


def _nothing(merge: MergeFacts) -> str:
    return "" if merge.version is not None else "; nothing was merged, and the model stays as it was"


def _later(answer: Answer) -> str:
    if answer.counted_in is not None:
        return f"; counted in round {answer.counted_in & 0xFFFFFFFF}"
    return "" if answer.dropped is None else f"; counted in no round: {answer.dropped}"


def _since(time: float) -> str:
    return f"{numbers.seconds(abs(time))} {'before' if time < 0 else 'after'} the first step"


def _whole(value: float | None) -> str:
    return "" if value is None else numbers.whole(value)


def _ms(value: float) -> str:
    return numbers.seconds(value / 1e3)
