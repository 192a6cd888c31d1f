"""The balance of a run's tokens, from the figures of a status: the fate of every token of every life, and the
contradictions between the sources.

Decides which source of a count is the best. Nothing is adjusted to fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import add, attrgetter
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from isthmus.ops.data.life_tokens import tokens_of_life
from isthmus.ops.exchange.away import seems_away
from isthmus.ops.exchange.token_accounts import FATES
from isthmus.ops.step_tokens import AtMost, StepTokens
from isthmus.runtime.host.contract import AWAY, Span

Life: TypeAlias = tuple[int, int]
"""(slot, incarnation) of a learner."""


class LifeTokens(NamedTuple):
    """Tokens of one life in one fragment: `trained`, and their fates.

    `learner_merged` and `shard_merged` are the merged ones by the learner's count and by the shards', `undone` those
    that a shard took with it; `gap` is the difference of the learner's own account from its trained tokens.

    Each fate comes from its best source: *merged* from the shards that have it in the model; *overlapped* and *refused*
    from the learner; *pending* is what the learner does not know yet, and *lost* the same of a life that has ended,
    with what a shard had merged and took with it. They are counted one by one; what does not add up to the trained
    tokens is the *difference*, of either sign.

    Three things are no difference. A learner may end before it learns that its tokens were merged. It may have tokens
    that it did not report, and others know of. And where the recorder has not seen every merge in the model, what
    only the learner counts is in it, but for what a shard took with it; where it has, but not every one that was
    undone, tokens that only the learner counts were undone.

    Where there are regions, the learner's merged ones are those in its region. Of these, what the model lacks is
    pending as long as the run goes on, and lost at its end, with its region; and where a region ended, the model may
    have tokens that the learner counts as lost.
    """

    fragment: int
    learner: int
    incarnation: int
    trained: int
    merged: int
    overlapped: int
    refused: int
    lost: int
    pending: int
    difference: int
    learner_merged: int
    shard_merged: int
    undone: int
    gap: int


class Known(NamedTuple):
    """A recorder's knowledge of lives: the last report of each, the tokens that others heard, the `trained` ones, and
    the lives that have ended.

    The report of a life that is live at the end, and knows the fate of all its tokens, is final. For any other life the
    largest known count holds: tokens that others heard, and those that follow from the shards' merges.
    """

    reports: Mapping[Life, Mapping[str, Any]]
    heard: Mapping[Life, int]
    trained: Mapping[Life, int]
    ended: frozenset[Life]

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Known:
        """The knowledge in a status of the recorder."""
        lives_reported = [*status.get("former", ()), *status.get("learners", {}).values()]
        reports = {(life["slot"], life["incarnation"]): life for life in lives_reported}
        heard = Counter({(slot, incarnation): tokens for slot, incarnation, tokens in status.get("totals", ())})
        undone, evident = _by_life(status, "undone_tokens"), heard.copy()
        for p, merged in _by_life(status, "merged_tokens").items():
            overlapped = {life: report["accounts"][p][1] for life, report in reports.items() if report["accounts"]}
            evident |= Counter(merged) + Counter(undone.get(p, {})) + Counter(overlapped)  # None is counted twice.
        lives = sorted(reports.keys() | {life for life, tokens in evident.items() if tokens})
        newest = dict(lives)
        gone = {(slot, incarnation) for slot, incarnation in status.get("gone", ())}
        ended = frozenset(
            life for life in lives if life[1] < newest[life[0]] or life in gone or _is_gone(reports.get(life, {}))
        )
        trained = {}
        for life in lives:
            own = reports.get(life, {}).get("tokens", 0)
            trained[life] = own if life not in ended and _is_settled(reports.get(life, {})) else max(own, evident[life])
        return cls(reports, heard, trained, ended)

    def reported_tokens(self, life: Life) -> int:
        """The tokens of its last report, which its accounts are of."""
        report = self.reports.get(life, {})
        return int(report.get("accounted", report.get("tokens", 0)))


def _is_gone(report: Mapping[str, Any]) -> bool:
    return bool(report.get("is_gone")) or "gone_at" in report


def _is_settled(report: Mapping[str, Any]) -> bool:
    """Whether a life knows the fate of all its tokens."""
    return report.get("phase") == "final" and not any(account[-1] for account in report["accounts"])


def entries(status: Mapping[str, Any], fragments: int) -> list[LifeTokens]:
    """The balance of every life and fragment, from the learners and shards in a recorder's status."""
    knowledge = Known.of(status)
    merged, undone = _by_life(status, "merged_tokens"), _by_life(status, "undone_tokens")
    models, merges = status.get("model_whole", {}), status.get("merges_whole", {})
    balances = []
    for p in range(fragments):
        for life in knowledge.trained:
            if not _has(status, life[0], p):
                continue
            counts = merged.get(p, {}).get(life, 0), undone.get(p, {}).get(life, 0)
            entry = _entry(knowledge, p, life, *counts, models.get(p, True), merges.get(p, True))
            if status.get("has_regions"):
                entry = _of_region(entry, is_over=status.get("phase") == "done")
            balances.append(entry)
    return balances


def _has(status: Mapping[str, Any], slot: int, fragment: int) -> bool:
    """Whether the learner in a slot has a fragment: its path does, of a model made of modules."""
    holders: Sequence[Sequence[int]] = status.get("holders", ())
    return not holders or slot % status["paths"] in holders[fragment]


def _entry(
    knowledge: Known, p: int, life: Life, by_shards: int, undone: int, is_model_whole: bool, is_undone_whole: bool
) -> LifeTokens:
    accounts = knowledge.reports.get(life, {}).get("accounts", ())
    merged, overlapped, refused, lost, pending = accounts[p] if len(accounts) > p else [0] * len(FATES)
    trained, reported = knowledge.trained.get(life, 0), knowledge.reported_tokens(life)
    gap = reported - (merged + overlapped + refused + lost + pending)
    open_ = pending + trained - reported
    late = by_shards - merged
    if late >= 0:  # The life, or the run, ended before it heard of these.
        of_open = min(late, open_)
        of_refused = min(late - of_open, refused)
        open_, refused = open_ - of_open, refused - of_refused
        in_model = by_shards
    elif is_model_whole:
        lost += min(-late, undone) if is_undone_whole else -late
        in_model = by_shards
    else:
        lost += min(-late, undone)
        in_model = merged - min(-late, undone)
    has_ended = life in knowledge.ended
    lost, pending = (lost + open_, 0) if has_ended else (lost, open_)
    difference = trained - (in_model + overlapped + refused + lost + pending)
    fates = in_model, overlapped, refused, lost, pending
    return LifeTokens(p, *life, trained, *fates, difference, merged, by_shards, undone, gap)


def _of_region(entry: LifeTokens, *, is_over: bool) -> LifeTokens:
    """The balance of a life whose learner counts as merged what its region has merged."""
    difference = entry.difference + entry.merged - entry.shard_merged
    above, late = max(0, difference), min(entry.lost, max(0, -difference))
    lost, pending = (entry.lost + above, entry.pending) if is_over else (entry.lost, entry.pending + above)
    difference -= above - late
    return entry._replace(merged=entry.shard_merged, lost=lost - late, pending=pending, difference=difference)


def _by_life(status: Mapping[str, Any], name: str) -> dict[int, dict[Life, int]]:
    rows_of: Mapping[int, Sequence[Sequence[int]]] = status.get(name, {})
    return {p: {(slot, incarnation): tokens for slot, incarnation, tokens in rows} for p, rows in rows_of.items()}


def fragment_accounts(life_tokens: Sequence[LifeTokens], fragments: int) -> list[dict[str, int]]:
    """The account of each fragment over all lives: trained tokens, their fates, and the difference."""
    names = ("trained", *FATES, "difference")
    values, accounts = attrgetter(*names), [[0] * len(names) for _ in range(fragments)]
    for entry in life_tokens:
        accounts[entry.fragment] = list(map(add, accounts[entry.fragment], values(entry)))
    return [{"fragment": p, **dict(zip(names, sums, strict=True))} for p, sums in enumerate(accounts)]


def merged_share(accounts: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> float:
    """Merged tokens over trained ones, a mean over fragments weighted by size; 0 if nothing was trained."""
    return share_of("merged", accounts, sizes)


def share_of(part: str, accounts: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> float:
    """A part of the trained tokens, a mean over fragments weighted by size; 0 if nothing was trained."""
    pairs = list(zip(accounts, sizes, strict=True)) if accounts else []
    trained = sum(account["trained"] * size for account, size in pairs)
    return sum(account[part] * size for account, size in pairs) / trained if trained else 0.0


# -- the summary -------------------------------------------------------------------------------------------------------


def books(
    status: Mapping[str, Any],
    life_tokens: Sequence[LifeTokens],
    recorded: int | None,
    step_tokens: StepTokens,
) -> dict[str, Any]:
    """`books` of a summary: accounts of learners, shards and recorder, and their `differences`; none in a sound run.

    `recorded` counts the merges in merges.jsonl, None if they were not counted; `step_tokens` are those of a
    step, empty where a step need not train one batch.
    """
    knowledge = Known.of(status)
    by_shards = int(status.get("outer_steps", 0))
    lives = [_life(knowledge, life, step_tokens) for life in sorted(knowledge.trained)]
    merges = {"shards": by_shards, "recorded": recorded, "whole": all(status.get("merges_whole", {}).values())}
    return {
        "lives": lives,
        "fragments": [_sides(entry) for entry in life_tokens],
        "merges": merges,
        "unreported_estimate": sum(life["unreported_estimate"] for life in lives),
        "differences": [*_differences(life_tokens, lives), *_overheard(knowledge), *_missing(by_shards, recorded)],
    }


def _life(knowledge: Known, life: Life, step_tokens: StepTokens) -> dict[str, Any]:
    report = knowledge.reports.get(life, {})
    steps, reported = (
        report.get("accounted_steps", report["step"]) if report else None,
        knowledge.reported_tokens(life),
    )
    by_steps: int | None = None
    if step_tokens and steps is not None:
        of_step = tokens_of_life(step_tokens, *life)
        # Where they are counted: what was counted, and no more than the steps can have.
        by_steps = min(reported, steps * of_step.tokens) if isinstance(of_step, AtMost) else steps * of_step
    return {
        "learner": life[0],
        "incarnation": life[1],
        "steps": steps,
        "tokens_reported": reported,
        "tokens_by_steps": by_steps,
        "tokens_known": knowledge.trained[life],
        "has_ended": life in knowledge.ended,
        "is_final": report.get("phase") == "final",
        "unreported_estimate": _estimate(report, knowledge.trained[life] - reported) if life in knowledge.ended else 0,
    }


def _estimate(report: Mapping[str, Any], unreported: int) -> int:
    """The unreported tokens of a life after its last report, at a constant pace until it was known to be gone."""
    reported_at, gone_at = report.get("reported_at"), report.get("gone_at")
    if report.get("phase") != "stepping" or not report.get("step_ms") or report.get("step") is None:
        return 0
    if reported_at is None or gone_at is None:
        return 0
    # Where everything was stopped, the life was, too.
    paused = max(0, report.get("gone_paused", 0) - report.get("reported_paused", 0))
    stepped = max(0, gone_at - reported_at - paused - report.get("away_at_end", 0))
    steps = int(stepped / 1e6 / report["step_ms"])
    return max(0, int(steps * report["tokens"] / max(report["step"], 1)) - unreported)


def _sides(entry: LifeTokens) -> dict[str, Any]:
    names = ("fragment", "learner", "incarnation", "trained", "learner_merged", "shard_merged", "undone", "difference")
    return {name: getattr(entry, name) for name in names}


def _differences(life_tokens: Sequence[LifeTokens], lives: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    differences: list[dict[str, Any]] = [
        {"kind": "fates", **_sides(entry), "gap": entry.gap} for entry in life_tokens if entry.difference or entry.gap
    ]
    for life in lives:
        if life["tokens_by_steps"] not in (None, life["tokens_reported"]):
            difference = life["tokens_reported"] - life["tokens_by_steps"]
            names = ("learner", "incarnation", "steps", "tokens_reported", "tokens_by_steps")
            differences.append({"kind": "steps", **{name: life[name] for name in names}, "difference": difference})
    return differences


def _overheard(knowledge: Known) -> list[dict[str, Any]]:
    """Lives of which others heard more tokens than the life reported, though its report is final."""
    return [
        {"kind": "heard", "learner": life[0], "incarnation": life[1], "tokens_reported": trained,
         "tokens_heard": knowledge.heard[life], "difference": knowledge.heard[life] - trained}
        for life, trained in knowledge.trained.items() if knowledge.heard[life] > trained
    ]  # fmt: skip


def _missing(by_shards: int, recorded: int | None) -> list[dict[str, Any]]:
    if recorded is None or recorded == by_shards:
        return []
    return [{"kind": "merges", "shards": by_shards, "recorded": recorded, "difference": by_shards - recorded}]


UPTIME_STEPS = 3
"""Median steps after the end of its last step for which a learner counts as up."""


def allocated_seconds(status: Mapping[str, Any], learners: int) -> float:
    """The time of all slots, by the figures of a status; `learners` slots are there from the start.

    Those have time from the run's first step on, others from when their first life was seen; all of them to the last
    report of a step, but for slots that left, with their machines or as their loops ended. In what a learner was away
    its user's code has run, and none of it is allocated.
    """
    zero: int | None = status.get("zero")
    if zero is None:
        return 0.0
    reports, joined = status.get("learners", {}), dict(status.get("joined", ()))
    away = Counter[int]()
    for life in (*status.get("former", ()), *reports.values()):
        away[life.get("slot", 0)] += away_ns(life, status["stepping_until"]) or 0
    total = 0
    for slot in {*range(learners), *joined}:
        report, until = reports.get(slot, {}), status["stepping_until"]
        if report.get("is_gone") or report.get("phase") == "leaving":
            until = min(until, report.get("gone_at", until))
        total += max(0, until - max(zero, joined.get(slot, zero)) - away[slot])
    return total / 1e9


def away_ns(life: Mapping[str, Any], until: int) -> int | None:
    """How long a life was away, in the user's own code, until the last report of any that stepped; None where it does
    not say so. Its own report says how long only once it is back; where it never was, the home knows
    (`away_at_end`)."""
    reported_at, told = life.get("reported_at"), life.get("away")
    if told is None or reported_at is None or life["phase"] != "stepping" or _is_gone(life):
        return None if told is None else int(told) + life.get("away_at_end", 0)
    silent = until - int(reported_at)
    return int(told) + (silent if seems_away(silent, 1e6 * life["step_ms"]) else 0)


def goodput(
    lives: Sequence[Mapping[str, Any]], life_tokens: Sequence[LifeTokens], sizes: Sequence[int], allocated: float
) -> float | None:
    """Inner-step wall time whose tokens were neither lost nor refused, over the `allocated` seconds; None where a body
    does not report how long it waited.

    The entries `life_tokens` have the wasted tokens of each life.
    """
    whole, bad = Counter[Life](), Counter[Life]()
    for entry in life_tokens:
        life, size = (entry.learner, entry.incarnation), sizes[entry.fragment]
        whole[life] += entry.trained * size
        bad[life] += (entry.lost + entry.refused) * size
    wasted = {life: bad[life] / trained for life, trained in whole.items() if trained}
    good = 0.0
    for report in lives:
        if report["waited"] is None:
            return None
        stepped = max(0, report["stepping"] - report["waited"]) / 1e9
        good += (1.0 - wasted.get((report["slot"], report["incarnation"]), 0.0)) * stepped
    return min(1.0, good / allocated) if allocated > 0 else 0.0


def uptime(spans: Iterable[Span], zero: int | None, ended: int) -> float | None:
    """The share of the time in which learners step (to the last step of any) at which some learner was up; None without
    an inner step. Time in which none was up, and some learner was away, in its user's code, does not count."""
    if zero is None:
        return None
    ends: dict[str, list[int]] = {}
    away: list[tuple[int, int]] = []
    for span in spans:
        if span.name == AWAY and not span.peer:
            away.append((span.begun, span.ended))
        if span.name == "inner-step" and not span.peer and span.host.startswith("learner/") and span.ended >= zero:
            ends.setdefault(span.host, []).append(span.ended)
    covered: list[tuple[int, int]] = []
    for instants in ends.values():
        gaps = [after - before for before, after in pairwise(instants)]
        reach = round(UPTIME_STEPS * median(gaps)) if gaps else 0
        covered.extend((instant, instant + reach) for instant in instants)
    if not covered:
        return None
    last = min(ended, max(begin for begin, _ in covered))
    first = min(begin for begin, _ in covered)
    up, spent = _length(covered, first, last), _length([*covered, *away], first, last)
    counted = last - first - (spent - up)
    return up / counted if counted > 0 else 1.0


def _length(intervals: Iterable[tuple[int, int]], first: int, last: int) -> int:
    """How much of [first, last) these cover."""
    length, reached = 0, first
    for begin, end in sorted(intervals):
        length += max(0, min(end, last) - max(begin, reached))
        reached = max(reached, min(end, last))
    return length
