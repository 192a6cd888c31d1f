"""A recorder's knowledge of a run: the trained tokens of each learner in each life, the merges, evaluations and finals.

Decides which of them is news, so that nothing is written twice, and counts the figures of a status. Everything here
only grows: of each life of a learner the most tokens, of each fragment the newest merge in each epoch of its shard,
every evaluation once. So the knowledge of a recorder before this one may be added in any order, and twice
(`recorder.memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, cast

from isthmus.ops.exchange.messages import Merging, Report
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.island.evaluate import Evaluated
from isthmus.programs.adapted.known import FIELDS as CHANGE_FIELDS
from isthmus.programs.adapted.known import Changes
from isthmus.programs.books.balance import entries, fragment_accounts, merged_share
from isthmus.programs.books.goodput import allocated_seconds, goodput
from isthmus.programs.books.shards import ShardBooks
from isthmus.programs.recorder.memory import Memory
from isthmus.programs.recorder.metric_lines import finite, mean_of, metrics_of

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
_NOTED_FIELDS: Final = ("reported_at", "gone_at", "accounted", "accounted_steps")
"""Noted beside a report: when it arrived, and when its life was known to be gone; and its own tokens and steps, where
lines of metrics.jsonl have more."""


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
        self.reports: dict[int, Report] = {}
        self.former: list[Report] = []
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
        self.shards = ShardBooks()
        self.changes = Changes()
        self._sizes = tuple(sizes)

    # -- memory of an earlier recorder ---------------------------------------------------------------------------------

    def recall(self, memory: Memory) -> None:
        """Load the memory of an earlier recorder."""
        self.totals.hear(memory.totals)
        self.reports = {report["slot"]: cast(Report, report) for report in memory.reports}
        self.former = [cast(Report, report) for report in memory.former]
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
            self.take_merge(cast(Merging, line))
        elif name == "evaluations" and line.keys() >= _EVALUATION_FIELDS:
            loss = math.nan if line["eval_loss"] is None else line["eval_loss"]
            metrics = [[name, math.nan if value is None else value] for name, value in line.get("metrics", {}).items()]
            self.take_evaluation(Evaluated(kind=line["kind"], loss=loss, tokens=line["tokens"], metrics=metrics))
        elif name == "changes" and line.keys() >= {*CHANGE_FIELDS}:
            self.changes.take(line, line.get("time"))
        elif name == "metrics" and line.keys() >= _METRIC_FIELDS:
            self._recall_metric(line, now)

    def _recall_metric(self, line: Mapping[str, Any], now: int) -> None:
        """Take in a life's trained tokens, and an upper bound of zero, in case that is forgotten."""
        slot, incarnation = line["learner"], line["incarnation"]
        self.totals.hear([[slot, incarnation, line["tokens"]]])
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

    def memory(self, early: Sequence[tuple[str, dict[str, Any]]]) -> Memory:
        """The memory for the next recorder, with the lines that wait for the first step."""
        return Memory(
            totals=self.totals.told(),
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

    def take_report(self, report: Report, now: int) -> bool:
        """Take in a report; whether it is of the newest life of its slot."""
        self.totals.hear([[report["slot"], report["incarnation"], report["tokens"]]])
        if self.zero is None and report["step"]:
            self.zero = min(now - report["stepping"], self._zero_max or now)
        if report["phase"] == "stepping":
            self.stepping_until = now
        known = self.reports.get(report["slot"])
        if known is not None and known["incarnation"] > report["incarnation"]:
            return False
        if known is not None and known["incarnation"] < report["incarnation"]:
            self._note_gone(known, now)
            self.former.append(known)
        if known is not None and known["incarnation"] == report["incarnation"] and not report["metrics"]:
            report = cast(Report, {**report, "metrics": known["metrics"]})
        self.reports[report["slot"]] = cast(Report, {**report, "reported_at": now})
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
                cast(dict[str, Any], report).pop("gone_at", None)
            else:
                self._note_gone(report, now)

    def _note_gone(self, report: Report, now: int) -> None:
        """Note since when a life is known to be gone.

        A life that only an earlier recorder heard may have died with all others: it is gone since that heard any.
        """
        is_recalled = (report["slot"], report["incarnation"]) in self._recalled
        cast(dict[str, Any], report).setdefault("gone_at", self._heard_until if is_recalled else now)

    def note_snapshots(self, faults: Iterable[str]) -> None:
        """Note faults of snapshots, the first SNAPSHOT_FAULTS_MAX."""
        for fault in faults:
            if fault not in self.snapshot_faults and len(self.snapshot_faults) < SNAPSHOT_FAULTS_MAX:
                self.snapshot_faults.append(fault)

    def take_merge(self, merging: Merging) -> bool:
        """Take in a merge; returns whether it is newer than the known ones of its fragment in this epoch."""
        fragment, epoch, version = merging["fragment"], merging["epoch"], merging["version"]
        self.totals.hear(merging["merged_tokens"])  # A lower bound for lives whose reports are missing or refused.
        if not self.shards.take(merging):
            return False
        if version is not None and epoch >= self.publishers.get(fragment, [0, 0])[1]:
            self.publishers[fragment] = [merging["shard"], epoch]
        if version is not None and version[1]:
            self.versions[fragment] = max(self.versions.get(fragment, [0, 0]), list(version))
        return True

    def is_later_life(self, merging: Merging) -> bool:
        """Whether a merge is of a later life of its shard than the fragment was published by."""
        return merging["epoch"] > self.publishers.get(merging["fragment"], [0, 0])[1]

    def take_change(self, change: Mapping[str, Any]) -> bool:
        """Take in a change of a link-dependent setting; returns whether it is new."""
        at = None if self.zero is None else round((change["at"] - self.zero) / 1e9, 6)
        return self.changes.take(change, at)

    def take_evaluation(self, evaluated: Evaluated) -> Evaluated | None:
        """Take in a point of the curve; returns the point as it enters the curve, None if it is known.

        From a restarted evaluator only points beyond the known ones count, and none as the initial one.
        """
        kind, tokens = evaluated["kind"], evaluated["tokens"]
        if kind == "initial" and self.evaluations:
            if tokens <= self.evaluations[-1]["tokens"]:
                return None
            kind = "during"
        if any((known["tokens"], known["kind"]) == (tokens, kind) for known in self.evaluations):
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
        told = {
            "former": former,
            "learners": present,
            "totals": self.totals.told(),
            "zero": self.zero,
            "stepping_until": self.stepping_until,
            "joined": [[slot, at] for slot, at in sorted(self.since.items()) if slot >= learners],
            **self._by_shards(),
        }
        if self._live is not None:
            told["gone"] = self._unheard(self._live)
        found = entries(told, len(self._sizes))
        return {
            **told,
            "tokens": self.totals.trained,
            "outer_steps": merges,
            "contributors_mean": votes / merges if merges else 0.0,
            "merged_share": merged_share(fragment_accounts(found, len(self._sizes)), self._sizes),
            "goodput": goodput(lives, found, self._sizes, allocated_seconds(told, learners)),
            "eval_loss": finite(self.evaluations[-1]["loss"]) if self.evaluations else None,
            "eval_loss_initial": finite(self.evaluations[0]["loss"]) if self.evaluations else None,
            "evaluations": len(self.evaluations),
            "tokens_final": next((each["tokens"] for each in self.evaluations if each["kind"] == "final"), None),
            "metrics": metrics_of(mean_of(present.values()).items()),
            "eval_metrics": metrics_of(self.evaluations[-1]["metrics"] if self.evaluations else []),
            "epochs": self._epochs(),
            "changes": self.changes.figures(),
        }

    def accounts(self, told: Mapping[str, Any]) -> list[dict[str, int]]:
        """The account of each fragment, by the figures of a status."""
        return fragment_accounts(entries(told, len(self._sizes)), len(self._sizes))

    def _unheard(self, live: Set[tuple[int, int]]) -> list[list[int]]:
        """Lives that are gone and never reported: known from others' reports only."""
        reported = {(report["slot"], report["incarnation"]) for report in (*self.former, *self.reports.values())}
        known = {(slot, incarnation) for slot, incarnation, _ in self.totals.told()}
        return [[*life] for life in sorted(known - reported - live)]

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
        told: dict[str, Any] = {"merged_tokens": {}, "undone_tokens": {}, "model_whole": {}, "merges_whole": {}}
        for p in range(len(self._sizes)):
            merged, told["model_whole"][p] = self.shards.in_model(p)
            undone, told["merges_whole"][p] = self.shards.ever(p)
            undone.subtract(merged)
            told["merged_tokens"][p] = [[*life, tokens] for life, tokens in sorted(merged.items())]
            told["undone_tokens"][p] = [[*life, tokens] for life, tokens in sorted(undone.items()) if tokens]
        return told


def _reported_at(report: Report) -> int:
    return int(cast(dict[str, Any], report).get("reported_at", 0))


def _learner(report: Report) -> dict[str, Any]:
    fields: Mapping[str, Any] = {**report}
    noted = {name: fields[name] for name in _NOTED_FIELDS if name in fields}
    told = {name: fields[name] for name in _LEARNER_FIELDS}
    began = {"began": fields["began"]} if fields.get("began") else {}
    return {**told, **began, "metrics": dict(report["metrics"]), **noted, "step_ms": report["step_time"] / 1e6}
