"""The books of a run, compared: the reports of learners, those of shards, and the contradictions between them.

Nothing is adjusted. For each life of a learner and each fragment an `Entry` has the fate of its tokens, from the best
source for each: the *merged* tokens are those that the shards have in the model; *overlapped* and *refused* are the
learner's; *pending* are those whose fate the learner does not know yet, and *lost* the same of a life that has ended,
with those that a shard had merged and took with it. These are counted one by one, so that they add up to the trained
tokens, or do not: the rest is the *difference*, of either sign.

Three things are no difference. A learner may end before it learns that its tokens were merged: its pending ones, or
those that it took for refused. It may have *unreported* tokens, which others know of: they are pending, or lost. And
where the recorder has not seen every merge that is in the model, the larger of both counts holds; where it has, but not
every one that was undone, tokens that only the learner counts were undone.

Tokens that a learner trained after its last message are in no book. For lives that have ended their number is estimated
from their pace, beside the books: `unreported_estimate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isthmus.ops.exchange.token_accounts import FATES
from isthmus.programs.books.shards import Life


class Entry(NamedTuple):
    """Tokens of one life in one fragment: `trained`, and their fates.

    `learner_merged` and `shard_merged` are the merged ones by the learner's count and by the shards', `undone` those
    that a shard took with it; `gap` is the difference of the learner's own account from its trained tokens.
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
        told = [*status.get("former", ()), *status.get("learners", {}).values()]
        reports = {(life["slot"], life["incarnation"]): life for life in told}
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

    def told(self, life: Life) -> int:
        """The tokens of its last report, which its accounts are of."""
        report = self.reports.get(life, {})
        return int(report.get("accounted", report.get("tokens", 0)))


def _is_gone(report: Mapping[str, Any]) -> bool:
    return bool(report.get("is_gone")) or "gone_at" in report


def _is_settled(report: Mapping[str, Any]) -> bool:
    """Whether a life knows the fate of all its tokens."""
    return report.get("phase") == "final" and not any(account[-1] for account in report["accounts"])


def entries(status: Mapping[str, Any], fragments: int) -> list[Entry]:
    """The balance of every life and fragment, from the learners and shards in a recorder's status."""
    known = Known.of(status)
    merged, undone = _by_life(status, "merged_tokens"), _by_life(status, "undone_tokens")
    models, merges = status.get("model_whole", {}), status.get("merges_whole", {})
    found = []
    for p in range(fragments):
        for life in known.trained:
            counts = merged.get(p, {}).get(life, 0), undone.get(p, {}).get(life, 0)
            found.append(_entry(known, p, life, *counts, models.get(p, True), merges.get(p, True)))
    return found


def _entry(
    known: Known, p: int, life: Life, by_shards: int, undone: int, is_model_whole: bool, is_undone_whole: bool
) -> Entry:
    accounts = known.reports.get(life, {}).get("accounts", ())
    merged, overlapped, refused, lost, pending = accounts[p] if len(accounts) > p else [0] * len(FATES)
    trained, told = known.trained.get(life, 0), known.told(life)
    gap = told - (merged + overlapped + refused + lost + pending)
    open_ = pending + trained - told
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
        in_model = merged
    has_ended = life in known.ended
    lost, pending = (lost + open_, 0) if has_ended else (lost, open_)
    difference = trained - (in_model + overlapped + refused + lost + pending)
    fates = in_model, overlapped, refused, lost, pending
    return Entry(p, *life, trained, *fates, difference, merged, by_shards, undone, gap)


def _by_life(status: Mapping[str, Any], name: str) -> dict[int, dict[Life, int]]:
    told: Mapping[int, Sequence[Sequence[int]]] = status.get(name, {})
    return {p: {(slot, incarnation): tokens for slot, incarnation, tokens in rows} for p, rows in told.items()}


def fragment_accounts(found: Sequence[Entry], fragments: int) -> list[dict[str, int]]:
    """The account of each fragment over all lives: trained tokens, their fates, and the difference."""
    names = ("trained", *FATES, "difference")
    return [
        {"fragment": p, **{name: sum(getattr(entry, name) for entry in found if entry.fragment == p) for name in names}}
        for p in range(fragments)
    ]


def merged_share(accounts: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> float:
    """Merged tokens over trained ones, a mean over fragments weighted by size; 0 if nothing was trained."""
    trained = accounts[0]["trained"] if accounts else 0
    if not trained:
        return 0.0
    return sum(account["merged"] * size for account, size in zip(accounts, sizes, strict=True)) / sum(sizes) / trained


# -- the summary -------------------------------------------------------------------------------------------------------


def books(
    status: Mapping[str, Any], found: Sequence[Entry], recorded: int | None, tokens_of_step: Mapping[int, int]
) -> dict[str, Any]:
    """`books` of a summary: accounts of learners, shards and recorder, and their `differences`; none in a sound run.

    `recorded` counts the merges in merges.jsonl, None if they were not counted; `tokens_of_step` are those of a batch
    by slot, of slots where every step trains one.
    """
    known = Known.of(status)
    by_shards = int(status.get("outer_steps", 0))
    lives = [_life(known, life, tokens_of_step) for life in sorted(known.trained)]
    merges = {"shards": by_shards, "recorded": recorded, "whole": all(status.get("merges_whole", {}).values())}
    return {
        "lives": lives,
        "fragments": [_sides(entry) for entry in found],
        "merges": merges,
        "unreported_estimate": sum(life["unreported_estimate"] for life in lives),
        "differences": [*_differences(found, lives), *_overheard(known), *_missing(by_shards, recorded)],
    }


def _life(known: Known, life: Life, tokens_of_step: Mapping[int, int]) -> dict[str, Any]:
    report = known.reports.get(life, {})
    steps, told = (int(report.get("accounted_steps", report["step"])) if report else None), known.told(life)
    by_steps = steps * tokens_of_step[life[0]] if life[0] in tokens_of_step and steps is not None else None
    return {
        "learner": life[0],
        "incarnation": life[1],
        "steps": steps,
        "tokens_reported": told,
        "tokens_by_steps": by_steps,
        "tokens_known": known.trained[life],
        "has_ended": life in known.ended,
        "is_final": report.get("phase") == "final",
        "unreported_estimate": _estimate(report, known.trained[life] - told) if life in known.ended else 0,
    }


def _estimate(report: Mapping[str, Any], unreported: int) -> int:
    """The unreported tokens of a life after its last report, at a constant pace until it was known to be gone."""
    reported_at, gone_at = report.get("reported_at"), report.get("gone_at")
    if report.get("phase") != "stepping" or not report.get("step_ms") or reported_at is None or gone_at is None:
        return 0
    steps = int(max(0, gone_at - reported_at) / 1e6 / report["step_ms"])
    return max(0, int(steps * report["tokens"] / max(report["step"], 1)) - unreported)


def _sides(entry: Entry) -> dict[str, Any]:
    names = ("fragment", "learner", "incarnation", "trained", "learner_merged", "shard_merged", "undone", "difference")
    return {name: getattr(entry, name) for name in names}


def _differences(found: Sequence[Entry], lives: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {"kind": "fates", **_sides(entry), "gap": entry.gap} for entry in found if entry.difference or entry.gap
    ]
    for life in lives:
        if life["tokens_by_steps"] not in (None, life["tokens_reported"]):
            difference = life["tokens_reported"] - life["tokens_by_steps"]
            names = ("learner", "incarnation", "steps", "tokens_reported", "tokens_by_steps")
            told.append({"kind": "steps", **{name: life[name] for name in names}, "difference": difference})
    return told


def _overheard(known: Known) -> list[dict[str, Any]]:
    """Lives of which others heard more tokens than the life reported, though its report is final."""
    return [
        {"kind": "heard", "learner": life[0], "incarnation": life[1], "tokens_reported": trained,
         "tokens_heard": known.heard[life], "difference": known.heard[life] - trained}
        for life, trained in known.trained.items() if known.heard[life] > trained
    ]  # fmt: skip


def _missing(by_shards: int, recorded: int | None) -> list[dict[str, Any]]:
    if recorded is None or recorded == by_shards:
        return []
    return [{"kind": "merges", "shards": by_shards, "recorded": recorded, "difference": by_shards - recorded}]
