"""What a recorder knows of a run: what each learner has trained in each life, what was merged, evaluated, and is final.

Decides what is news, so that nothing is written twice, and counts what a status shows. Everything here only grows: of
each life of a learner the most tokens, of each fragment the newest merge in each epoch of its shard, every evaluation
once. So what a recorder before this one has known and written may be heard in any order, and twice (`recorder_memory`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from isthmus.ops.evaluate import Evaluated
from isthmus.ops.items import Merging, Report
from isthmus.ops.totals import Totals
from isthmus.programs.recorder_memory import Memory
from isthmus.programs.summary import fragment_accounts, goodput, merged_share

_MERGE_FIELDS: Final = frozenset(
    {"shard", "epoch", "fragment", "round", "kind", "version", "merges", "votes", "merged_tokens"}
)
_EVALUATION_FIELDS: Final = frozenset({"tokens", "eval_loss", "kind"})
_METRIC_FIELDS: Final = frozenset({"learner", "incarnation", "phase", "tokens", "step", "time"})
_LEARNER_FIELDS: Final = (
    *("incarnation", "phase", "step", "tokens", "loss", "staleness", "sick", "accounts", "stepping", "waited"),
    *("bytes_sent", "bytes_received", "device_kind", "slot"),
)


class Books:
    """The books of one run. `sizes` of the fragments in values, none where whole trees are exchanged.

    `zero` is the first inner step of any learner, `stepping_until` when one was last heard of that steps, `final_at`
    when the last of the `final` fragments was written: instants of the recorder's clock. `reports` are the last of each
    slot, by slot; `former` those of lives that are over. `versions` are the newest that were merged, [epoch, count] by
    fragment; `publishers` the shards' lives that published a fragment last, [shard, epoch] by fragment.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.totals = Totals()
        self.reports: dict[int, Report] = {}
        self.former: list[Report] = []
        self.evaluations: list[Evaluated] = []
        self.versions: dict[int, list[int]] = {}
        self.publishers: dict[int, list[int]] = {}
        self.final: set[int] = set()
        self.final_at: int | None = None
        self.zero: int | None = None
        self.stepping_until = 0
        self._zero_max: int | None = None
        self._merging: dict[tuple[int, int], Merging] = {}
        self._sizes = tuple(sizes)

    # -- what a recorder before this one has known ---------------------------------------------------------------------

    def recall(self, memory: Memory) -> None:
        """Take in what was kept."""
        self.totals.hear(memory.totals)
        self.reports = {report["slot"]: cast(Report, report) for report in memory.reports}
        self.former = [cast(Report, report) for report in memory.former]
        for merging in memory.merging:
            self.take_merge(cast(Merging, merging))
        self.evaluations = [cast(Evaluated, each) for each in memory.evaluations]
        self.final, self.final_at = set(memory.final), memory.final_at
        self.zero, self.stepping_until = memory.zero, memory.stepping_until
        self.versions |= {fragment: [epoch, count] for fragment, epoch, count in memory.versions}
        self.publishers |= {fragment: [shard, epoch] for fragment, shard, epoch in memory.publishers}

    def recall_line(self, name: str, line: Mapping[str, Any], now: int) -> None:
        """Take in a line of the file `name`; one that lacks a field is left aside."""
        if name == "merges" and line.keys() >= _MERGE_FIELDS:
            self.take_merge(cast(Merging, line))
        elif name == "evaluations" and line.keys() >= _EVALUATION_FIELDS:
            self.take_evaluation(Evaluated(kind=line["kind"], loss=line["eval_loss"], tokens=line["tokens"]))
        elif name == "metrics" and line.keys() >= _METRIC_FIELDS:
            self._recall_metric(line, now)

    def _recall_metric(self, line: Mapping[str, Any], now: int) -> None:
        """Take in what a life of a learner had trained; and, if the zero of all times is forgotten, by when it was."""
        slot, incarnation = line["learner"], line["incarnation"]
        self.totals.hear([[slot, incarnation, line["tokens"]]])
        for report in (*self.former, *self.reports.values()):
            if (report["slot"], report["incarnation"]) == (slot, incarnation):
                report["tokens"] = max(report["tokens"], line["tokens"])
                report["step"] = max(report["step"], line["step"])
        since_zero = round(line["time"] * 1e9)
        if self.zero is not None and line["phase"] == "stepping":
            self.stepping_until = max(self.stepping_until, self.zero + since_zero)
        self._zero_max = min(now - since_zero, self._zero_max or now)

    def memory(self, early: Sequence[tuple[str, dict[str, Any]]]) -> Memory:
        """All of it, for the next recorder, with the lines that wait for the first step."""
        return Memory(
            totals=self.totals.told(),
            reports=[{**report, "totals": []} for report in self.reports.values()],
            former=[{**report, "totals": []} for report in self.former],
            merging=[{**merging} for merging in self._merging.values()],
            evaluations=[{**evaluated} for evaluated in self.evaluations],
            final=sorted(self.final),
            final_at=self.final_at,
            zero=self.zero,
            stepping_until=self.stepping_until,
            versions=self.published(),
            publishers=[[fragment, *publisher] for fragment, publisher in sorted(self.publishers.items())],
            early=list(early),
        )

    # -- what comes ----------------------------------------------------------------------------------------------------

    def take_report(self, report: Report, now: int) -> bool:
        """Take in a report; whether it is of the newest life of its slot."""
        self.totals.hear(report["totals"])
        if self.zero is None and report["step"]:
            self.zero = min(now - report["stepping"], self._zero_max or now)
        if report["phase"] == "stepping":
            self.stepping_until = now
        known = self.reports.get(report["slot"])
        if known is not None and known["incarnation"] > report["incarnation"]:
            return False
        if known is not None and known["incarnation"] < report["incarnation"]:
            self.former.append(known)
        self.reports[report["slot"]] = report
        return True

    def take_merge(self, merging: Merging) -> bool:
        """Take in a merge; whether it is newer than what is known of its fragment in this epoch."""
        fragment, epoch, version = merging["fragment"], merging["epoch"], merging["version"]
        known = self._merging.get((fragment, epoch))
        if known is not None and known["round"] >= merging["round"]:
            return False
        self._merging[fragment, epoch] = merging
        if version is not None and epoch >= self.publishers.get(fragment, [0, 0])[1]:
            self.publishers[fragment] = [merging["shard"], epoch]
        if version is not None and version[1]:
            self.versions[fragment] = max(self.versions.get(fragment, [0, 0]), list(version))
        return True

    def take_evaluation(self, evaluated: Evaluated) -> Evaluated | None:
        """Take in a point of the curve; the result is what it is in the curve, None where it is known.

        Of an evaluator that began again only what lies beyond what is known is a point, and none is the first.
        """
        kind, tokens = evaluated["kind"], evaluated["tokens"]
        if kind == "initial" and self.evaluations:
            if tokens <= self.evaluations[-1]["tokens"]:
                return None
            kind = "during"
        if any((known["tokens"], known["kind"]) == (tokens, kind) for known in self.evaluations):
            return None
        self.evaluations.append(Evaluated(kind=kind, loss=evaluated["loss"], tokens=tokens))
        return self.evaluations[-1]

    # -- what it comes to ----------------------------------------------------------------------------------------------

    def published(self) -> list[list[int]]:
        """The newest version of each fragment that is known to be merged, as [fragment, epoch, count]."""
        return [[fragment, *version] for fragment, version in sorted(self.versions.items())]

    def is_evaluated(self) -> bool:
        """Whether the last evaluation is known."""
        return any(evaluated["kind"] == "final" for evaluated in self.evaluations)

    def figures(self, learners: int) -> dict[str, Any]:
        """What a status says of all this, and all that the summary is made of; a run of so many `learners`."""
        former = [_learner(report) for report in self.former]
        present = {slot: _learner(report) for slot, report in sorted(self.reports.items())}
        lives = [*former, *present.values()]
        merges, votes = self._merge_counts()
        merged = self._merged_tokens()
        passed = 0.0 if self.zero is None else max(0.0, (self.stepping_until - self.zero) / 1e9)
        return {
            "zero": self.zero,
            "stepping_until": self.stepping_until,
            "tokens": self.totals.trained,
            "outer_steps": merges,
            "contributors_mean": votes / merges if merges else 0.0,
            "merged_share": merged_share(fragment_accounts(lives, merged, len(self._sizes)), self._sizes),
            "goodput": goodput(lives, learners * passed),
            "eval_loss": self.evaluations[-1]["loss"] if self.evaluations else None,
            "eval_loss_initial": self.evaluations[0]["loss"] if self.evaluations else None,
            "evaluations": len(self.evaluations),
            "epochs": self._epochs(),
            "former": former,
            "learners": present,
            "merged_tokens": merged,
        }

    def _epochs(self) -> dict[int, int]:
        """Shard -> the newest epoch in which it has merged."""
        newest: dict[int, int] = {}
        for merging in self._merging.values():
            if merging["kind"] in ("merge", "final"):
                newest[merging["shard"]] = max(merging["epoch"], newest.get(merging["shard"], 0))
        return newest

    def _merge_counts(self) -> tuple[int, int]:
        """Merges and votes of all shards: the newest count of each epoch of a shard stands for it."""
        newest: dict[tuple[int, int], tuple[int, int]] = {}
        for merging in self._merging.values():
            of = (merging["shard"], merging["epoch"])
            newest[of] = max(newest.get(of, (0, 0)), (merging["merges"], merging["votes"]))
        return sum(count for count, _ in newest.values()), sum(votes for _, votes in newest.values())

    def _merged_tokens(self) -> dict[int, dict[int, int]]:
        """Fragment -> slot -> tokens merged so far, over all epochs of its shard."""
        merged: dict[int, dict[int, int]] = {}
        for (p, _), merging in sorted(self._merging.items()):
            of = merged.setdefault(p, {})
            for slot, tokens in merging["merged_tokens"]:
                of[slot] = of.get(slot, 0) + tokens
        return merged


def _learner(report: Report) -> dict[str, Any]:
    fields: Mapping[str, Any] = {**report}
    return {**{name: fields[name] for name in _LEARNER_FIELDS}, "step_ms": report["step_time"] / 1e6}
