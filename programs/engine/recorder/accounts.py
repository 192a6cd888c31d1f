"""The books of a run: what a recorder knows of learners, merges, evaluations and settings, and the contradictions
between the sources.

Decides which of an input is news, so that nothing is written twice; which of the tokens that were ever merged are in
the model; and the figures of a status. Nothing is adjusted to fit. Everything here only grows, so the knowledge of a
former recorder may be added in any order, and twice.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

from isthmus.ops.data.batches import of_slot
from isthmus.ops.exchange.messages import MERGES_KEPT, Merging, StepReport
from isthmus.ops.exchange.token_accounts import FATES, AtMost, StepTokens, Totals
from isthmus.ops.island.evaluate import Evaluated
from isthmus.programs.engine.recorder.lines import BooksMemory, finite, mean_of, metrics_of
from isthmus.programs.engine.results.changes import ChangeRecord
from isthmus.runtime.host.contract import Span

LAST_COUNT: Final = 16
"""Changes that a status shows; changes.jsonl has all."""
FIELDS: Final = tuple(name for name in ChangeRecord.__struct_fields__ if name != "time")
"""Fields of a line of changes.jsonl, beside its time."""


class Changes:
    """Changes of all shards."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._in_use: dict[tuple[int, str, int], str] = {}
        self._last: deque[dict[str, Any]] = deque(maxlen=LAST_COUNT)
        self._count = 0

    def add(self, change: Mapping[str, Any], at: float | None) -> bool:
        """Take in a change, `at` seconds after the first step; returns whether it is new. A shard's arrive in order."""
        shard, newest = change["shard"], (change["epoch"], change["number"])
        newest_known = self._newest.get(shard, (0, 0))
        if newest <= newest_known:
            return False
        if newest[0] > newest_known[0]:  # A life begins with the requested settings.
            self._in_use = {key: value for key, value in self._in_use.items() if key[0] != shard}
        self._newest[shard] = newest
        slot = -1 if change["slot"] is None else change["slot"]
        self._in_use[shard, change["setting"], slot] = change["after"]
        self._last.append({"time": at, **{name: change[name] for name in FIELDS}})
        self._count += 1
        return True

    def figures(self) -> dict[str, Any]:
        """For a status: the number of changes, the last ones, and the values in use of all settings that ever changed:
        [shard, setting, slot or None, format or steps]."""
        in_use = [
            [shard, setting, None if slot < 0 else slot, value]
            for (shard, setting, slot), value in sorted(self._in_use.items())
        ]
        return {"count": self._count, "in_use": in_use, "last": list(self._last)}


def in_order(changes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Changes that arrived together, in the order in which they were made."""
    return sorted(changes, key=lambda change: (change["shard"], change["epoch"], change["number"]))


Life: TypeAlias = tuple[int, int]
"""(slot, incarnation) of a learner."""
KEPT_MAX: Final = 8
"""Merges of a fragment in an epoch that are kept one by one, beside those of versions on disk: a shard that comes back
is given the newest version of all holders, which is the last one that its former life published, or one of the few
before it; without any holder, the one on disk."""
SAVED_MAX: Final = 4
"""Versions of a fragment that are taken to be on disk: those of the last two snapshots, and of two that have gone."""


@final
class ShardBooks:
    """The merges of shards by fragment and epoch; the books only grow, and take items in any order and twice.

    A shard that comes back begins with a version that others hold, its *origin*; merges of its former life beyond that
    version are *undone*. So the model's tokens are those of the newest epoch, of the epoch before it up to the origin,
    and so on. Where a recorder has missed a merge, the counts of its fragment are only a bound, and are marked so.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], Merging] = {}
        self._kept: dict[tuple[int, int], dict[int, list[list[int]]]] = {}
        self._origins: dict[tuple[int, int], list[int]] = {}
        self._claimed: dict[tuple[int, int], int] = {}
        self._saved: dict[int, list[tuple[int, int]]] = {}
        """Fragment -> versions on disk, the newest last."""
        self._rounds: dict[tuple[int, int], set[int]] = {}
        """(shard, epoch) -> the rounds that were added, of the last MERGES_KEPT."""

    def add(self, merging: Merging) -> bool:
        """Take in a merge; returns whether it is new. A shard's records may arrive in any order."""
        fragment, epoch, version = merging["fragment"], merging["epoch"], merging["version"]
        if not self._is_news(merging):
            return False
        last = self._newest.get((fragment, epoch))
        if last is None or last["round"] < merging["round"]:
            self._newest[fragment, epoch] = merging
        if merging["origin"] is not None:
            self._begun(fragment, epoch, merging["origin"])
        if version is not None and version[0] == epoch:
            self._keep(fragment, epoch, version[1], merging["merged_tokens"])
        return True

    def _is_news(self, merging: Merging) -> bool:
        """Whether this merge was never added; a round behind the last MERGES_KEPT has no mailbox any more."""
        of, number = (merging["shard"], merging["epoch"]), merging["round"]
        rounds = self._rounds.setdefault(of, set())
        if number in rounds or number <= max(rounds, default=0) - MERGES_KEPT:
            return False
        rounds.add(number)
        if len(rounds) > 2 * MERGES_KEPT:
            oldest = max(rounds) - MERGES_KEPT
            self._rounds[of] = {each for each in rounds if each > oldest}
        return True

    def claimed(self, versions: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note the versions of fragments that learners hold, or that epochs began with: lower bounds of the merges."""
        for fragment, version in versions:
            of = (fragment, version[0])
            self._claimed[of] = max(self._claimed.get(of, 0), version[1])

    def _begun(self, fragment: int, epoch: int, origin: Sequence[int]) -> None:
        self._origins[fragment, epoch] = list(origin)
        self.claimed([(fragment, origin)])

    def saved(self, versions: Iterable[Sequence[int]]) -> None:
        """Note the versions on disk, as [fragment, epoch, count]: their merges are kept."""
        for fragment, epoch, count in versions:
            versions_saved = self._saved.setdefault(fragment, [])
            if (epoch, count) not in versions_saved:
                self._saved[fragment] = sorted([*versions_saved, (epoch, count)])[-SAVED_MAX:]

    def _keep(self, fragment: int, epoch: int, count: int, merged: list[list[int]]) -> None:
        kept = self._kept.setdefault((fragment, epoch), {})
        kept[count] = merged
        for old in sorted(kept)[:-KEPT_MAX]:
            if (epoch, old) not in self._saved.get(fragment, ()):
                del kept[old]

    # -- results -------------------------------------------------------------------------------------------------------

    def mergings(self) -> list[Merging]:
        """The newest merge of each fragment in each epoch of its shard, in this order."""
        return [merging for _, merging in sorted(self._newest.items())]

    def in_model(self, fragment: int) -> tuple[Counter[Life], bool]:
        """The tokens of each life that are in the newest version of a fragment, and whether no merge that is in it is
        missing in that count."""
        epoch = max((epoch for p, epoch in self._origins if p == fragment), default=None)
        is_whole = all(self._is_known(*of) for of in self._claimed if of[0] == fragment and of[1] >= (epoch or 0))
        if epoch is None:
            return Counter(), is_whole
        merged = _counted(self._newest[fragment, epoch]["merged_tokens"])
        while (origin := self._origins.get((fragment, epoch), [epoch, 0]))[0] < epoch:
            epoch = origin[0]
            before, is_exact = self._at(fragment, epoch, origin[1])
            merged.update(before)
            is_whole = is_whole and is_exact
        return merged, is_whole

    def ever(self, fragment: int) -> tuple[Counter[Life], bool]:
        """The tokens of each life that were merged by any epoch, undone or not, and whether no merge is missing in that
        count."""
        merged: Counter[Life] = Counter()
        for (p, _), merging in self._newest.items():
            merged.update(_counted(merging["merged_tokens"]) if p == fragment else {})
        return merged, all(self._is_known(*of) for of in self._claimed if of[0] == fragment)

    def _is_known(self, fragment: int, epoch: int) -> bool:
        """Whether no host holds a newer version of an epoch than its shard has reported to the recorder."""
        origin = self._origins.get((fragment, epoch))
        counts = [*self._kept.get((fragment, epoch), {}), *([] if origin is None else [origin[1]])]
        return not epoch or self._claimed[fragment, epoch] <= max(counts, default=-1)

    def _at(self, fragment: int, epoch: int, count: int) -> tuple[Counter[Life], bool]:
        """The tokens that an epoch had merged up to a version, and whether it is known; else those known before it."""
        kept = self._kept.get((fragment, epoch), {})
        before = [each for each in kept if each <= count]
        origin = self._origins.get((fragment, epoch), [0, -1])
        if not before:
            return Counter(), count == origin[1]
        return _counted(kept[max(before)]), max(before) == count

    # -- from life to life ---------------------------------------------------------------------------------------------

    def memory(self) -> list[dict[str, Any]]:
        """The books, as rows for the next recorder."""
        return [
            {
                "newest": {**self._newest[of]},
                "origin": self._origins.get(of),
                "kept": [[count, merged] for count, merged in sorted(self._kept.get(of, {}).items())],
                "saved": [version for version in self._saved.get(of[0], ()) if version[0] == of[1]],
            }
            for of in sorted(self._newest)
        ]

    def recall(self, row: dict[str, Any]) -> None:
        """Take in a row."""
        newest: Merging = row["newest"]
        of = newest["fragment"], newest["epoch"]
        self._newest[of] = newest
        if row["origin"] is not None:
            self._begun(*of, row["origin"])
        self.saved([of[0], *version] for version in row["saved"])
        for count, merged in row["kept"]:
            self._keep(*of, count, merged)


def _counted(rows: Iterable[Sequence[int]]) -> Counter[Life]:
    return Counter({(slot, incarnation): tokens for slot, incarnation, tokens in rows})


class LifeTokens(NamedTuple):
    """Tokens of one life in one fragment: `trained`, and their fates.

    `learner_merged` and `shard_merged` are the merged ones by the learner's count and by the shards', `undone` those
    that a shard took with it; `gap` is the difference of the learner's own account from its trained tokens.

    Each fate comes from its best source: *merged* from the shards that have it in the model; *overlapped* and *refused*
    from the learner; *pending* is what the learner does not know yet, and *lost* the same of a life that has ended,
    with what a shard had merged and took with it. They are counted one by one; what does not add up to the trained
    tokens is the *difference*, of either sign.

    Three things are no difference. A learner may end before it learns that its tokens were merged. It may have tokens
    that it did not report, and others know of. And where the recorder has not seen every merge in the model, the larger
    of both counts holds; where it has, but not every one that was undone, tokens that only the learner counts were
    undone.
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
            counts = merged.get(p, {}).get(life, 0), undone.get(p, {}).get(life, 0)
            balances.append(_entry(knowledge, p, life, *counts, models.get(p, True), merges.get(p, True)))
    return balances


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
        in_model = merged
    has_ended = life in knowledge.ended
    lost, pending = (lost + open_, 0) if has_ended else (lost, open_)
    difference = trained - (in_model + overlapped + refused + lost + pending)
    fates = in_model, overlapped, refused, lost, pending
    return LifeTokens(p, *life, trained, *fates, difference, merged, by_shards, undone, gap)


def _by_life(status: Mapping[str, Any], name: str) -> dict[int, dict[Life, int]]:
    rows_of: Mapping[int, Sequence[Sequence[int]]] = status.get(name, {})
    return {p: {(slot, incarnation): tokens for slot, incarnation, tokens in rows} for p, rows in rows_of.items()}


def fragment_accounts(life_tokens: Sequence[LifeTokens], fragments: int) -> list[dict[str, int]]:
    """The account of each fragment over all lives: trained tokens, their fates, and the difference."""
    names = ("trained", *FATES, "difference")
    return [
        {
            "fragment": p,
            **{name: sum(getattr(entry, name) for entry in life_tokens if entry.fragment == p) for name in names},
        }
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
    if isinstance(step_tokens, AtMost):  # What was counted, and no more than the steps can have.
        by_steps = None if steps is None else min(reported, steps * step_tokens.tokens)
    elif step_tokens:
        by_steps = None if steps is None else steps * of_slot(step_tokens, life[0])
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
    steps = int(max(0, gone_at - reported_at - paused) / 1e6 / report["step_ms"])
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
    report of a step, but for slots that left with their machines.
    """
    zero: int | None = status.get("zero")
    if zero is None:
        return 0.0
    reports, joined = status.get("learners", {}), dict(status.get("joined", ()))
    total = 0
    for slot in {*range(learners), *joined}:
        report, until = reports.get(slot, {}), status["stepping_until"]
        if report.get("is_gone"):
            until = min(until, report.get("gone_at", until))
        total += max(0, until - max(zero, joined.get(slot, zero)))
    return total / 1e9


def goodput(
    lives: Sequence[Mapping[str, Any]], life_tokens: Sequence[LifeTokens], sizes: Sequence[int], allocated: float
) -> float | None:
    """Inner-step wall time whose tokens were neither lost nor refused, over the `allocated` seconds; None where a body
    does not report how long it waited.

    The entries `life_tokens` have the wasted tokens of each life.
    """
    wasted: dict[Life, float] = {}
    for entry in life_tokens:
        if entry.trained:
            share = (entry.lost + entry.refused) * sizes[entry.fragment] / entry.trained / sum(sizes)
            life = (entry.learner, entry.incarnation)
            wasted[life] = wasted.get(life, 0.0) + share
    good = 0.0
    for report in lives:
        if report["waited"] is None:
            return None
        stepped = max(0, report["stepping"] - report["waited"]) / 1e9
        good += (1.0 - wasted.get((report["slot"], report["incarnation"]), 0.0)) * stepped
    return min(1.0, good / allocated) if allocated > 0 else 0.0


def uptime(spans: Iterable[Span], zero: int | None, ended: int) -> float | None:
    """The share of the time in which learners step (to the last step of any) at which some learner was up; None without
    an inner step."""
    if zero is None:
        return None
    ends: dict[str, list[int]] = {}
    for span in spans:
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
    up, reached = 0, first
    for begin, end in sorted(covered):
        up += max(0, min(end, last) - max(begin, reached))
        reached = max(reached, min(end, last))
    return up / (last - first) if last > first else 1.0


_MERGE_FIELDS: Final = frozenset(
    {"shard", "epoch", "fragment", "round", "kind", "version", "origin", "merges", "votes", "merged_tokens"}
)
_EVALUATION_FIELDS: Final = frozenset({"tokens", "eval_loss", "kind"})
_METRIC_FIELDS: Final = frozenset({"learner", "incarnation", "phase", "tokens", "step", "time"})
_LEARNER_FIELDS: Final = (
    *("incarnation", "phase", "step", "tokens", "loss", "staleness", "sick", "sick_step", "accounts", "stepping"),
    *("waited", "bytes_sent", "bytes_received", "device_kind", "slot"),
)
SNAPSHOT_FAULTS_MAX: Final = 16
"""A life of the recorder reads two snapshots."""
_NOTED_FIELDS: Final = ("reported_at", "reported_paused", "gone_at", "gone_paused", "accounted", "accounted_steps")
"""Noted beside a report: when it arrived, and when its life was known to be gone, and how long this recorder had been
paused by then; and its own tokens and steps, where lines of metrics.jsonl have more."""


class Books:
    """The books of one run. `sizes` of the fragments in values, none where whole trees are exchanged.

    `zero` is the first inner step of any learner, `stepping_until` the last report of a step, `final_at` the write of
    the last of the `final` fragments, `since` when a life of each slot was first seen: instants of the recorder's
    clock. `reports` are the last of each slot, by slot; `former` those of lives that are over. `snapshot_faults`
    describe damaged snapshots. `versions` are the newest merged ones, [epoch, count] by fragment; `publishers` the
    shards' lives that published a fragment last, [shard, epoch] by fragment.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.totals = Totals()
        self.reports: dict[int, StepReport] = {}
        self.former: list[StepReport] = []
        self.evaluations: list[Evaluated] = []
        self.versions: dict[int, list[int]] = {}
        self.publishers: dict[int, list[int]] = {}
        self.snapshot_faults: list[str] = []
        self.final: set[int] = set()
        self.final_at: int | None = None
        self.zero: int | None = None
        self.stepping_until = 0
        self.since: dict[int, int] = {}
        self._live: Set[tuple[int, int]] | None = None
        self._zero_max: int | None = None
        self._recalled: Set[tuple[int, int]] = frozenset()
        """Lives of which only the recorder before this one has heard, which heard of any until `_heard_until`."""
        self._heard_until = 0
        self.paused = 0
        """For how long this recorder was stopped, in nanoseconds, with all else that was."""
        self.shards = ShardBooks()
        self.changes = Changes()
        self._sizes = tuple(sizes)

    # -- memory of an earlier recorder ---------------------------------------------------------------------------------

    def recall(self, memory: BooksMemory) -> None:
        """Load the memory of an earlier recorder."""
        self.totals.raise_to(memory.totals)
        self.reports = {report["slot"]: cast(StepReport, report) for report in memory.reports}
        self.former = [cast(StepReport, report) for report in memory.former]
        for row in memory.shards:
            self.shards.recall(row)
        for report in (*self.former, *self.reports.values()):
            self.shards.claimed(enumerate(report["versions"]))
        self.evaluations = [cast(Evaluated, each) for each in memory.evaluations]
        self.final, self.final_at = set(memory.final), memory.final_at
        self.zero, self.stepping_until = memory.zero, memory.stepping_until
        self.since |= dict(memory.since)
        self.versions |= {fragment: [epoch, count] for fragment, epoch, count in memory.versions}
        self.snapshot_faults = list(memory.snapshot_faults)
        self._heard_until = max([self.stepping_until, *(_reported_at(report) for report in self.reports.values())])
        self._recalled = {(report["slot"], report["incarnation"]) for report in self.reports.values()}
        self.publishers |= {fragment: [shard, epoch] for fragment, shard, epoch in memory.publishers}

    def recall_line(self, name: str, line: Mapping[str, Any], now: int) -> None:
        """Take in a line of the file `name`; one that lacks a field is left aside."""
        if name == "merges" and line.keys() >= _MERGE_FIELDS:
            self.add_merge(cast(Merging, line))
        elif name == "evaluations" and line.keys() >= _EVALUATION_FIELDS:
            loss = math.nan if line["eval_loss"] is None else line["eval_loss"]
            metrics = [[name, math.nan if value is None else value] for name, value in line.get("metrics", {}).items()]
            self.add_evaluation(Evaluated(kind=line["kind"], loss=loss, tokens=line["tokens"], metrics=metrics))
        elif name == "changes" and line.keys() >= {*FIELDS}:
            self.changes.add(line, line.get("time"))
        elif name == "metrics" and line.keys() >= _METRIC_FIELDS:
            self._recall_metric(line, now)

    def _recall_metric(self, line: Mapping[str, Any], now: int) -> None:
        """Take in a life's trained tokens, and an upper bound of zero, in case that is forgotten."""
        slot, incarnation = line["learner"], line["incarnation"]
        self.totals.raise_to([[slot, incarnation, line["tokens"]]])
        for report in (*self.former, *self.reports.values()):
            if (report["slot"], report["incarnation"]) == (slot, incarnation) and line["tokens"] > report["tokens"]:
                noted = cast(dict[str, Any], report)
                noted.setdefault("accounted", report["tokens"])
                noted.setdefault("accounted_steps", report["step"])
                report["tokens"], report["step"] = line["tokens"], line["step"]
        since_zero = round(line["time"] * 1e9)
        if self.zero is not None and line["phase"] == "stepping":
            self.stepping_until = max(self.stepping_until, self.zero + since_zero)
        self._zero_max = min(now - since_zero, self._zero_max or now)

    def memory(self, early: Sequence[tuple[str, dict[str, Any]]]) -> BooksMemory:
        """The memory for the next recorder, with the lines that wait for the first step."""
        return BooksMemory(
            totals=self.totals.rows(),
            reports=[{**report, "totals": []} for report in self.reports.values()],
            former=[{**report, "totals": []} for report in self.former],
            shards=self.shards.memory(),
            evaluations=[{**evaluated} for evaluated in self.evaluations],
            final=sorted(self.final),
            final_at=self.final_at,
            zero=self.zero,
            stepping_until=self.stepping_until,
            since=sorted(self.since.items()),
            versions=self.published(),
            publishers=[[fragment, *publisher] for fragment, publisher in sorted(self.publishers.items())],
            snapshot_faults=self.snapshot_faults,
            early=list(early),
        )

    # -- input ---------------------------------------------------------------------------------------------------------

    def add_report(self, report: StepReport, now: int) -> bool:
        """Take in a report; whether it is of the newest life of its slot."""
        self.totals.raise_to([[report["slot"], report["incarnation"], report["tokens"]]])
        if self.zero is None and report["tokens"]:
            self.zero = min(now - report["stepping"], self._zero_max or now)
        if report["phase"] == "stepping":
            self.stepping_until = now
        last = self.reports.get(report["slot"])
        if last is not None and last["incarnation"] > report["incarnation"]:
            return False
        if last is not None and last["incarnation"] < report["incarnation"]:
            self._note_gone(last, now)
            self.former.append(last)
        if last is not None and last["incarnation"] == report["incarnation"] and not report["metrics"]:
            report = cast(StepReport, {**report, "metrics": last["metrics"]})
        noted = {"reported_at": now, "reported_paused": self.paused}
        self.reports[report["slot"]] = cast(StepReport, {**report, **noted})
        self._recalled -= {(report["slot"], report["incarnation"])}
        self.shards.claimed(enumerate(report["versions"]))
        return True

    def see(self, lives: Set[tuple[int, int]], now: int) -> None:
        """Note which lives of learners, as (slot, incarnation), are live: of the others, since when they are not."""
        self._live = lives
        for slot, _ in sorted(lives):
            self.since.setdefault(slot, now)
        for slot, report in self.reports.items():
            if (slot, report["incarnation"]) in lives:
                for name in ("gone_at", "gone_paused"):
                    cast(dict[str, Any], report).pop(name, None)
            else:
                self._note_gone(report, now)

    def _note_gone(self, report: StepReport, now: int) -> None:
        """Note since when a life is known to be gone.

        A life that only an earlier recorder heard may have died with all others: it is gone since that heard any.
        """
        is_recalled = (report["slot"], report["incarnation"]) in self._recalled
        noted = cast(dict[str, Any], report)
        noted.setdefault("gone_at", self._heard_until if is_recalled else now)
        noted.setdefault("gone_paused", self.paused)

    def note_snapshots(self, faults: Iterable[str]) -> None:
        """Note faults of snapshots, the first SNAPSHOT_FAULTS_MAX."""
        for fault in faults:
            if fault not in self.snapshot_faults and len(self.snapshot_faults) < SNAPSHOT_FAULTS_MAX:
                self.snapshot_faults.append(fault)

    def add_merge(self, merging: Merging) -> bool:
        """Take in a merge; returns whether it is new."""
        fragment, epoch, version = merging["fragment"], merging["epoch"], merging["version"]
        self.totals.raise_to(merging["merged_tokens"])  # A lower bound for lives whose reports are missing or refused.
        if not self.shards.add(merging):
            return False
        if version is not None and epoch >= self.publishers.get(fragment, [0, 0])[1]:
            self.publishers[fragment] = [merging["shard"], epoch]
        if version is not None and version[1]:
            self.versions[fragment] = max(self.versions.get(fragment, [0, 0]), list(version))
        return True

    def is_later_life(self, merging: Merging) -> bool:
        """Whether a merge is of a later life of its shard than the fragment was published by."""
        return merging["epoch"] > self.publishers.get(merging["fragment"], [0, 0])[1]

    def add_change(self, change: Mapping[str, Any]) -> bool:
        """Take in a change of a link-dependent setting; returns whether it is new."""
        at = None if self.zero is None else round((change["at"] - self.zero) / 1e9, 6)
        return self.changes.add(change, at)

    def add_evaluation(self, evaluated: Evaluated) -> Evaluated | None:
        """Take in a point of the curve; returns the point as it enters the curve, None if it is known.

        From a restarted evaluator only points beyond the known ones count, and none as the initial one.
        """
        kind, tokens = evaluated["kind"], evaluated["tokens"]
        if kind == "initial" and self.evaluations:
            if tokens <= self.evaluations[-1]["tokens"]:
                return None
            kind = "during"
        if any((point["tokens"], point["kind"]) == (tokens, kind) for point in self.evaluations):
            return None
        self.evaluations.append(cast(Evaluated, {"metrics": [], **evaluated, "kind": kind}))
        return self.evaluations[-1]

    # -- results -------------------------------------------------------------------------------------------------------

    def published(self) -> list[list[int]]:
        """The newest version of each fragment that is known to be merged, as [fragment, epoch, count]."""
        return [[fragment, *version] for fragment, version in sorted(self.versions.items())]

    def is_evaluated(self) -> bool:
        """Whether the last evaluation is known."""
        return any(evaluated["kind"] == "final" for evaluated in self.evaluations)

    def figures(self, learners: int) -> dict[str, Any]:
        """The figures of a status, from which the summary is made; the run has `learners` slots."""
        former = [_learner(report) for report in self.former]
        present = {slot: _learner(report) for slot, report in sorted(self.reports.items())}
        lives = [*former, *present.values()]
        merges, votes = self._merge_counts()
        status = {
            "former": former,
            "learners": present,
            "totals": self.totals.rows(),
            "zero": self.zero,
            "stepping_until": self.stepping_until,
            "joined": [[slot, at] for slot, at in sorted(self.since.items()) if slot >= learners],
            **self._by_shards(),
        }
        if self._live is not None:
            status["gone"] = self._unheard(self._live)
        life_tokens = entries(status, len(self._sizes))
        last = next((each for each in self.evaluations if each["kind"] == "final"), None)
        return {
            **status,
            "tokens": self.totals.trained,
            "outer_steps": merges,
            "contributors_mean": votes / merges if merges else 0.0,
            "merged_share": merged_share(fragment_accounts(life_tokens, len(self._sizes)), self._sizes),
            "goodput": goodput(lives, life_tokens, self._sizes, allocated_seconds(status, learners)),
            "eval_loss": finite(self.evaluations[-1]["loss"]) if self.evaluations else None,
            "eval_tokens": self.evaluations[-1]["tokens"] if self.evaluations else None,
            "eval_loss_final": None if last is None else finite(last["loss"]),
            "eval_loss_initial": finite(self.evaluations[0]["loss"]) if self.evaluations else None,
            "evaluations": len(self.evaluations),
            "tokens_final": None if last is None else last["tokens"],
            "metrics": metrics_of(mean_of(present.values()).items()),
            "eval_metrics": metrics_of(self.evaluations[-1]["metrics"] if self.evaluations else []),
            "epochs": self._epochs(),
            "changes": self.changes.figures(),
        }

    def accounts(self, status: Mapping[str, Any]) -> list[dict[str, int]]:
        """The account of each fragment, by the figures of a status."""
        return fragment_accounts(entries(status, len(self._sizes)), len(self._sizes))

    def _unheard(self, live: Set[tuple[int, int]]) -> list[list[int]]:
        """Lives that are gone and never reported: known from others' reports only."""
        reported = {(report["slot"], report["incarnation"]) for report in (*self.former, *self.reports.values())}
        mentioned = {(slot, incarnation) for slot, incarnation, _ in self.totals.rows()}
        return [[*life] for life in sorted(mentioned - reported - live)]

    def _epochs(self) -> dict[int, int]:
        """Shard -> the newest epoch in which it has merged."""
        newest: dict[int, int] = {}
        for merging in self.shards.mergings():
            if merging["kind"] in ("merge", "final"):
                newest[merging["shard"]] = max(merging["epoch"], newest.get(merging["shard"], 0))
        return newest

    def _merge_counts(self) -> tuple[int, int]:
        """Merges and votes of all shards: the newest count of each epoch of a shard stands for it."""
        newest: dict[tuple[int, int], tuple[int, int]] = {}
        for merging in self.shards.mergings():
            of = (merging["shard"], merging["epoch"])
            newest[of] = max(newest.get(of, (0, 0)), (merging["merges"], merging["votes"]))
        return sum(count for count, _ in newest.values()), sum(votes for _, votes in newest.values())

    def _by_shards(self) -> dict[str, Any]:
        """The shards' figures by fragment.

        Tokens of each life in the model, and undone ones; whether all merges in the model are known, and all merges
        ever.
        """
        sums: dict[str, Any] = {"merged_tokens": {}, "undone_tokens": {}, "model_whole": {}, "merges_whole": {}}
        for p in range(len(self._sizes)):
            merged, sums["model_whole"][p] = self.shards.in_model(p)
            undone, sums["merges_whole"][p] = self.shards.ever(p)
            undone.subtract(merged)
            sums["merged_tokens"][p] = [[*life, tokens] for life, tokens in sorted(merged.items())]
            sums["undone_tokens"][p] = [[*life, tokens] for life, tokens in sorted(undone.items()) if tokens]
        return sums


def _reported_at(report: StepReport) -> int:
    return int(cast(dict[str, Any], report).get("reported_at", 0))


def _learner(report: StepReport) -> dict[str, Any]:
    fields: Mapping[str, Any] = {**report}
    noted = {name: fields[name] for name in _NOTED_FIELDS if name in fields}
    fields_shown = {name: fields[name] for name in _LEARNER_FIELDS}
    more = {name: fields[name] for name in ("began", "in_model") if fields.get(name)}
    return {**fields_shown, **more, "metrics": dict(report["metrics"]), **noted, "step_ms": report["step_time"] / 1e6}
