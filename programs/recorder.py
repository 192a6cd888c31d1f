"""The recorder: keeps what a run leaves behind, and is where somebody who watches looks.

It writes metrics, evaluations, merges and the final model into the run folder as they come, publishes a status twice a
second, passes on a request to stop, and knows when a run is over: everything final has arrived, and is written. Where
a program has no syncer it also keeps the token budget. It decides nothing about training.

A disk that is full or broken does not stop it: lines wait or are lost, and are counted; the final model is written as
soon as the disk takes it. Only where that lasts too long, the run has failed: the status has an `error` then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from isthmus.ops.evaluate import Evaluated
from isthmus.ops.items import Control, Merging, Report
from isthmus.ops.items import Final as FinalItem
from isthmus.ops.totals import Totals
from isthmus.programs.summary import fragment_accounts, goodput, merged_share
from isthmus.runtime.disk import Disk
from isthmus.runtime.store import Lines, write_tensors

METRIC_NS: Final = 200_000_000
"""A learner's lines in metrics.jsonl are at least this far apart: a day of them is some tens of megabytes."""
STATUS_NS: Final = 500_000_000
CONTROL_NS: Final = 1_000_000_000
"""Pacers fire on what they hear; this lets them notice, too, that time has passed."""
SETTLE_NS: Final = 2_000_000_000
"""How long after the last final fragment the learners' last reports are waited for: that of a dead one never comes."""
RETRY_NS: Final = 500_000_000
SAVE_TRIES_MAX: Final = 1200
"""How often a disk may refuse the final model: within ten minutes, in which somebody may make room for it. Tries are
counted, and not the time, because a clock may leap."""

LINES_NS_MAX: Final = 30_000_000_000
"""How long, at the end, lines are waited for that the disk does not take."""


class Recorder:
    """Fires by timer and samples everything. `sizes` of the fragments in values, none where whole trees are exchanged;
    `has_syncer`: the model comes in `final` fragments, and shards keep the budget; `has_evaluator`: a final evaluation
    comes.
    """

    outputs = ("control",)

    def __init__(
        self, folder: Path, *, tokens: int, learners: int, sizes: Sequence[int], has_syncer: bool, has_evaluator: bool
    ) -> None:
        self._folder = folder
        self._budget, self._learners, self._sizes = tokens, learners, sizes
        self._has_syncer, self._has_evaluator = has_syncer, has_evaluator
        self._totals = Totals()
        self._reports: dict[int, Report] = {}
        self._reported_at: dict[int, int] = {}
        self._former: list[Report] = []
        self._losses_heard: dict[int, list[float]] = {}
        self._merging: dict[tuple[int, int], Merging] = {}
        self._evaluations: list[Evaluated] = []
        self._final: set[int] = set()
        self._unsaved: dict[int, FinalItem] = {}
        self._save_tries = 0
        self._save_at = 0
        self._complete_at: int | None = None
        self._save_error: str | None = None
        self._error: str | None = None
        self._final_at: int | None = None
        self._zero: int | None = None
        self._stepping_until = 0
        self._published_at = -STATUS_NS
        self._controlled_at = -CONTROL_NS
        self._early: list[tuple[Lines, dict[str, Any]]] = []
        self._is_stopping = False
        self.is_finished = False

    def open(self, context: Any) -> None:
        """Open the files."""
        self._context = context
        self._began_at = context.now()
        self._disk: Disk = context.disk
        self._metrics = Lines(self._folder / "metrics.jsonl", self._disk)
        self._merges = Lines(self._folder / "merges.jsonl", self._disk)
        self._losses = Lines(self._folder / "evaluations.jsonl", self._disk)
        self._files = {"metrics": self._metrics, "merges": self._merges, "evaluations": self._losses}

    def close(self) -> None:
        """Close the files."""
        self._flush_early()
        for lines in self._files.values():
            lines.close()

    def __call__(
        self,
        progress: Mapping[Any, Report] | None = None,
        merged: Mapping[Any, Merging] | None = None,
        evaluation: Any = None,
        final: Any = None,
    ) -> dict[str, Control] | None:
        """Write down what is new; say stop where somebody asked, or where the budget is this recorder's to keep."""
        now = self._context.now()
        for report in sorted((progress or {}).values(), key=lambda item: item["slot"]):
            self._hear(report, now)
        for merging in sorted((merged or {}).values(), key=lambda item: (item["published_at"], item["fragment"])):
            self._write_merge(merging)
        for evaluated in sorted(_items(evaluation), key=lambda item: (item["tokens"], item["kind"] == "final")):
            self._take_evaluation(evaluated, now)
        for item in _items(final):
            self._unsaved[item["fragment"]] = item
        if self._unsaved and now >= self._save_at:
            self._save(now)
        self.is_finished = self._error is not None or (self._is_complete(now) and self._is_flushed(now))
        if self.is_finished or now - self._published_at >= STATUS_NS:
            self._published_at = now
            for lines in self._files.values():
                lines.flush()
            self._context.publish(self._status(now))
        return self._control(now)

    # -- what came -----------------------------------------------------------------------------------------------------

    def _take_evaluation(self, evaluated: Evaluated, now: int) -> None:
        """Note a point of the curve; of an evaluator that began again, only what lies beyond what is known."""
        kind = evaluated["kind"]
        if kind == "initial" and self._evaluations:
            if evaluated["tokens"] <= self._evaluations[-1]["tokens"]:
                return
            kind = "during"
        self._evaluations.append(evaluated)
        self._write(self._losses, now, {"tokens": evaluated["tokens"], "eval_loss": evaluated["loss"], "kind": kind})

    def _hear(self, report: Report, now: int) -> None:
        slot = report["slot"]
        self._totals.hear(report["totals"])
        if self._zero is None and report["step"]:
            self._zero = now - report["stepping"]
            self._flush_early()
        if report["phase"] == "stepping":
            self._stepping_until = now
        known = self._reports.get(slot)
        if known is not None and known["incarnation"] > report["incarnation"]:
            return
        if known is not None and known["incarnation"] < report["incarnation"]:
            self._former.append(known)
        self._reports[slot] = report
        heard = self._losses_heard.setdefault(slot, [])
        if math.isfinite(report["loss"]):
            heard.append(report["loss"])
        is_new_phase = known is None or known["phase"] != report["phase"]
        if not is_new_phase and now - self._reported_at.get(slot, -METRIC_NS) < METRIC_NS:
            return
        self._reported_at[slot] = now
        fields: Mapping[str, Any] = {**report}
        line = {name: fields[name] for name in ("incarnation", "phase", "step", "tokens")}
        loss = sum(heard) / len(heard) if heard else None
        heard.clear()
        more = {name: fields[name] for name in ("staleness", "bytes_sent", "bytes_received", "sick")}
        self._write(self._metrics, now, {"learner": slot, **line, "loss": loss, **more})

    def _write_merge(self, merging: Merging) -> None:
        self._merging[merging["fragment"], merging["epoch"]] = merging
        names = ("fragment", "round", "kind", "version", "voters", "weights", "left_out", "refused", "reason")
        fields: Mapping[str, Any] = {**merging}
        line: dict[str, Any] = {name: fields[name] for name in names}
        line["quorum_ms"] = (merging["quorum_at"] - merging["opened_at"]) / 1e6
        line["grace_ms_used"] = (merging["closed_at"] - merging["quorum_at"]) / 1e6
        self._write(self._merges, merging["published_at"], line)

    def _save(self, now: int) -> None:
        """Write the final model, as much of it as is here; what the disk does not take is tried again."""
        try:
            for fragment in sorted(self._unsaved):
                self._write_final(self._unsaved[fragment])
                del self._unsaved[fragment]
                self._final.add(fragment)
                self._final_at = now
        except OSError as error:
            self._save_tries += 1
            self._save_at = now + RETRY_NS
            self._save_error = error.strerror or str(error)
            if self._save_tries >= SAVE_TRIES_MAX:
                where = self._folder / "snapshots" / "final"
                self._error = (
                    f"the final model could not be written into {where}: {self._save_error}, {self._save_tries} times. "
                    "Make room, or mend the disk, and run again."
                )
        else:
            self._save_tries, self._save_error = 0, None

    def _write_final(self, item: FinalItem) -> None:
        path = self._folder / "snapshots" / "final" / f"fragment-{item['fragment']}.safetensors"
        write_tensors(path, item["tensors"], self._disk)

    def _write(self, lines: Lines, at: int, line: dict[str, Any]) -> None:
        """Add a line; times count from the first inner step of any learner, so early lines wait for it."""
        line = {"time": at, **line}
        self._early.append((lines, line))
        if self._zero is not None:
            self._flush_early()

    def _flush_early(self) -> None:
        zero = self._zero if self._zero is not None else self._began_at
        for lines, line in self._early:
            lines.append({**line, "time": round((line["time"] - zero) / 1e9, 6)})
        self._early.clear()

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _control(self, now: int) -> dict[str, Control] | None:
        """What learners or pacers are told: only what they cannot know themselves."""
        is_spent = not self._has_syncer and self._totals.trained >= self._budget
        stop = self._context.stop_requested() or is_spent
        is_news = stop != self._is_stopping or now - self._controlled_at >= CONTROL_NS
        if self._has_syncer and not is_news:
            return None
        self._is_stopping, self._controlled_at = stop, now
        return {"control": Control(stop=stop, tokens=self._budget, totals=self._totals.told())}

    def _is_flushed(self, now: int) -> bool:
        """Whether no line waits for the disk, or none is waited for any more, once all the rest is there."""
        self._complete_at = now if self._complete_at is None else self._complete_at
        waiting = [name for name, lines in self._files.items() if not lines.flush()]
        return not waiting or now - self._complete_at >= LINES_NS_MAX

    def _is_complete(self, now: int) -> bool:
        """Whether everything final has arrived, and the model is written."""
        fragments = max((len(report["accounts"]) for report in self._reports.values()), default=0)
        if self._unsaved or not self._reports or self._final_at is None or len(self._final) < max(fragments, 1):
            return False
        if self._has_evaluator and (not self._evaluations or self._evaluations[-1]["kind"] != "final"):
            return False
        settled = all(
            report["phase"] == "final" and not any(account[4] for account in report["accounts"])
            for report in self._reports.values()
        )
        return settled or now - self._final_at >= SETTLE_NS

    def _status(self, now: int) -> dict[str, Any]:
        """Everything that somebody who watches wants to know, and all that the summary is made of."""
        stepping = [report for report in self._reports.values() if report["phase"] == "stepping"]
        phase = (
            "done"
            if self.is_finished
            else "final"
            if self._final_at or self._unsaved or self._is_stopping
            else "training"
        )
        former = [_learner(report) for report in self._former]
        present = {slot: _learner(report) for slot, report in sorted(self._reports.items())}
        merges, votes = self._merge_counts()
        merged = self._merged_tokens()
        lives = [*former, *present.values()]
        passed = 0.0 if self._zero is None else max(0.0, (self._stepping_until - self._zero) / 1e9)
        return {
            "phase": phase if self._zero is not None or not stepping else "starting",
            "zero": self._zero,
            "stepping_until": self._stepping_until,
            "time": (now - self._zero) / 1e9 if self._zero is not None else 0.0,
            "tokens": self._totals.trained,
            "tokens_budget": self._budget,
            "outer_steps": merges,
            "contributors_mean": votes / merges if merges else 0.0,
            "merged_share": merged_share(fragment_accounts(lives, merged, len(self._sizes)), self._sizes),
            "goodput": goodput(lives, self._learners * passed),
            "eval_loss": self._evaluations[-1]["loss"] if self._evaluations else None,
            "eval_loss_initial": self._evaluations[0]["loss"] if self._evaluations else None,
            "evaluations": len(self._evaluations),
            "epochs": self._epochs(),
            "error": self._error,
            "files": {name: lines.counts() for name, lines in self._files.items()},
            "unsaved": {"fragments": len(self._unsaved), "error": self._save_error},
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
    names = (
        *("incarnation", "phase", "step", "tokens", "loss", "staleness", "sick", "accounts", "stepping", "waited"),
        *("bytes_sent", "bytes_received", "device_kind", "slot"),
    )
    fields: Mapping[str, Any] = {**report}
    return {**{name: fields[name] for name in names}, "step_ms": report["step_time"] / 1e6}


def _items(received: Any) -> list[Any]:
    if received is None:
        return []
    if isinstance(received, Mapping) and all(isinstance(key, tuple) for key in received):
        return list(received.values())
    return [received]
