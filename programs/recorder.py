"""The recorder: keeps what a run leaves behind, and is where somebody who watches looks.

It writes metrics, evaluations, merges and the final model into the run folder as they come, publishes a status twice a
second, remembers for its next life what it knows (`record_books`, `recorder_memory`), passes on a request to stop, and
knows when a run is over: everything final has arrived, and is written. Where a program has no syncer it also keeps the
token budget. It decides nothing about training, but for one thing: where a model was merged, and every host that held
it has ended (`model_holders`), the run has failed.

A disk that is full or broken does not stop it: lines wait or are lost, and are counted; the final model is written as
soon as the disk takes it. Only where that lasts too long, the run has failed: the status has an `error` then. As long
as the disk does not say what a recorder before this one has known, what comes is kept and nothing is done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from isthmus.ops.items import Control, Merging, Report
from isthmus.ops.items import Final as FinalItem
from isthmus.programs import recorder_memory
from isthmus.programs.model_holders import ModelHolders
from isthmus.programs.record_books import Books
from isthmus.programs.record_lines import FILES, RecordLines
from isthmus.runtime.disk import Disk
from isthmus.runtime.store import write_tensors

METRIC_NS: Final = 200_000_000
"""A learner's lines in metrics.jsonl are at least this far apart: a day of them is some tens of megabytes."""
STATUS_NS: Final = 500_000_000
CONTROL_NS: Final = 1_000_000_000
"""Pacers fire on what they hear; this lets them notice, too, that time has passed."""
SETTLE_NS: Final = 2_000_000_000
"""How long after the last final fragment the learners' last reports are waited for: that of a dead one never comes."""
MEMORY_NS: Final = 1_000_000_000
"""Between two writings of what the next recorder has to know; what comes between them is in the lines, and where lines
wait, it is written at once."""
EVALUATOR: Final = "evaluator"
EVALUATOR_NS: Final = 30_000_000_000
"""How long an evaluator that is not there is waited for at the end: its next life begins within four seconds and some
for its imports, until it is given up."""
RETRY_NS: Final = 500_000_000
SAVE_TRIES_MAX: Final = 1200
"""How often a disk may refuse the final model: within ten minutes, in which somebody may make room for it. Tries are
counted, and not the time, because a clock may leap."""
LINES_NS_MAX: Final = 30_000_000_000
"""How long, at the end, lines are waited for that the disk does not take."""
_METRIC_FIELDS: Final = ("incarnation", "phase", "step", "tokens")
_TRAFFIC_FIELDS: Final = ("staleness", "bytes_sent", "bytes_received", "sick")
_MERGE_FIELDS: Final = (
    *("shard", "epoch", "fragment", "round", "kind", "version", "voters", "weights", "left_out", "refused", "reason"),
    *("merges", "votes", "merged_tokens", "shortened"),
)


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
        self._books, self._holders = Books(sizes), ModelHolders(len(sizes))
        self._arrived: dict[str, dict[Any, Any]] = {}
        self._has_recalled = False
        self._reported_at: dict[int, int] = {}
        self._losses_heard: dict[int, list[float]] = {}
        self._unsaved: dict[int, FinalItem] = {}
        self._save_tries = 0
        self._save_at = 0
        self._save_error: str | None = None
        self._remembered: bytes | None = None
        self._remembered_at = self._early_count = 0
        self._published_at = -STATUS_NS
        self._controlled_at = -CONTROL_NS
        self._complete_at: int | None = None
        self._evaluator_at = 0
        self._error: str | None = None
        self._is_stopping = False
        self.is_finished = False

    def open(self, context: Any) -> None:
        """Open the files, and go on from what a recorder before this one has known."""
        self._context = context
        self._began_at = context.now()
        self._disk: Disk = context.disk
        self._lines = RecordLines(self._folder, self._disk)
        self._recall()

    def close(self) -> None:
        """Close the files."""
        if self._has_recalled:
            self._lines.give_up_waiting(self._began_at)
            self._remember(self._context.now())
        self._lines.close()

    def __call__(
        self,
        progress: Any = None,
        merged: Any = None,
        evaluation: Any = None,
        final: Any = None,
        held: Any = None,
    ) -> dict[str, Control] | None:
        """Write down what is new; say stop where somebody asked, or where the budget is this recorder's to keep."""
        now = self._context.now()
        came = {"progress": progress, "merged": merged, "evaluation": evaluation, "final": final, "held": held}
        for port, items in came.items():
            self._arrived.setdefault(port, {}).update(_by_key(items))
        if not self._has_recalled and not self._recall():
            return None
        arrived, self._arrived = self._arrived, {}
        self._take(arrived, now)
        if self._unsaved and now >= self._save_at:
            self._save(now)
        self._judge_model()
        self.is_finished = self._error is not None or (self._is_complete(now) and self._is_flushed(now))
        if self.is_finished or now - self._published_at >= STATUS_NS:
            self._published_at = now
            self._lines.flush()
            self._context.publish(self._status(now))
        if self.is_finished or now - self._remembered_at >= MEMORY_NS or len(self._lines.early) > self._early_count:
            self._remember(now)
        return self._control(now)

    # -- from life to life ---------------------------------------------------------------------------------------------

    def _recall(self) -> bool:
        """Go on from what a recorder before this one has known and written; whether the disk says what that is."""
        try:
            memory = recorder_memory.load(self._folder, self._disk)
            read = {
                name: [*recorder_memory.lines(self._folder / f"{name}.jsonl", self._disk, is_tail=memory is not None)]
                for name in FILES
            }
            if memory is not None:
                self._lines.recall(memory.early)
        except OSError:
            return False
        if memory is not None:
            self._books.recall(memory)
        for name, lines in read.items():
            for line in lines:
                self._books.recall_line(name, line, self._began_at)
        self._has_recalled = True
        return True

    def _remember(self, now: int) -> None:
        """Write down what the next recorder has to know; what the disk does not take now it takes a second later."""
        self._remembered_at, self._early_count = now, len(self._lines.early)
        data = recorder_memory.encoded(self._books.memory(self._lines.early))
        if data == self._remembered:
            return
        try:
            recorder_memory.save(data, self._folder, self._disk)
        except OSError:
            return
        self._remembered = data

    # -- what came -----------------------------------------------------------------------------------------------------

    def _take(self, arrived: Mapping[str, Mapping[Any, Any]], now: int) -> None:
        """Take in all that has come since the last firing, by port and key."""
        self._holders.hear(arrived["held"])
        for report in sorted(arrived["progress"].values(), key=lambda item: item["slot"]):
            self._take_report(report, now)
        for merging in sorted(arrived["merged"].values(), key=lambda item: (item["published_at"], item["fragment"])):
            if self._books.take_merge(merging):
                self._lines.write("merges", merging["published_at"], _merge_line(merging))
        for each in sorted(arrived["evaluation"].values(), key=lambda item: (item["tokens"], item["kind"] == "final")):
            evaluated = self._books.take_evaluation(each)
            if evaluated is not None:
                line = {"tokens": evaluated["tokens"], "eval_loss": evaluated["loss"], "kind": evaluated["kind"]}
                self._lines.write("evaluations", now, line)
        for item in arrived["final"].values():
            self._unsaved[item["fragment"]] = item
        if self._books.zero is not None and not self._lines.has_begun:
            self._remember(now)  # The next recorder may have to go on in the middle of what is written now.
            self._lines.begin(self._books.zero)

    def _take_report(self, report: Report, now: int) -> None:
        slot, known = report["slot"], self._books.reports.get(report["slot"])
        if not self._books.take_report(report, now):
            return
        heard = self._losses_heard.setdefault(slot, [])
        if math.isfinite(report["loss"]):
            heard.append(report["loss"])
        is_new_phase = known is None or known["phase"] != report["phase"]
        if not is_new_phase and now - self._reported_at.get(slot, -METRIC_NS) < METRIC_NS:
            return
        self._reported_at[slot] = now
        fields: Mapping[str, Any] = {**report}
        line = {"learner": slot, **{name: fields[name] for name in _METRIC_FIELDS}}
        line["loss"] = sum(heard) / len(heard) if heard else None
        heard.clear()
        self._lines.write("metrics", now, {**line, **{name: fields[name] for name in _TRAFFIC_FIELDS}})

    def _save(self, now: int) -> None:
        """Write the final model, as much of it as is here; what the disk does not take is tried again."""
        where = self._folder / "snapshots" / "final"
        try:
            for fragment in sorted(self._unsaved):
                write_tensors(
                    where / f"fragment-{fragment}.safetensors", self._unsaved[fragment]["tensors"], self._disk
                )
                del self._unsaved[fragment]
                self._books.final.add(fragment)
                self._books.final_at = now
        except OSError as error:
            self._save_tries += 1
            self._save_at = now + RETRY_NS
            self._save_error = error.strerror or str(error)
            if self._save_tries >= SAVE_TRIES_MAX:
                self._error = (
                    f"the final model could not be written into {where}: {self._save_error}, {self._save_tries} times. "
                    "Make room, or mend the disk, and run again."
                )
        else:
            self._save_tries, self._save_error = 0, None

    # -- what follows --------------------------------------------------------------------------------------------------

    def _control(self, now: int) -> dict[str, Control] | None:
        """What learners or pacers are told: only what they cannot know themselves."""
        totals = self._books.totals
        is_spent = not self._has_syncer and totals.trained >= self._budget
        stop = self._context.stop_requested() or is_spent
        is_news = stop != self._is_stopping or now - self._controlled_at >= CONTROL_NS
        if self._has_syncer and not is_news:
            return None
        self._is_stopping, self._controlled_at = stop, now
        published = self._books.published()
        return {"control": Control(stop=stop, tokens=self._budget, totals=totals.told(), published=published)}

    def _judge_model(self) -> None:
        """Fail, loudly, where nobody is left who held a fragment of what was merged."""
        if self._error is None:
            saved = self._books.final | self._unsaved.keys()
            self._error = self._holders.lost(self._books, saved, self._context.members())

    def _is_flushed(self, now: int) -> bool:
        """Whether no line waits for the disk, or none is waited for any more, once all the rest is there."""
        self._complete_at = now if self._complete_at is None else self._complete_at
        self._lines.give_up_waiting(self._began_at)
        return self._lines.flush() or now - self._complete_at >= LINES_NS_MAX

    def _is_complete(self, now: int) -> bool:
        """Whether everything final has arrived, and the model is written."""
        reports, final_at = self._books.reports.values(), self._books.final_at
        fragments = max((len(report["accounts"]) for report in reports), default=0)
        if self._unsaved or not reports or final_at is None or len(self._books.final) < max(fragments, 1):
            return False
        if self._has_evaluator and not self._is_evaluated(now, final_at):
            return False
        settled = all(
            report["phase"] == "final" and not any(account[4] for account in report["accounts"]) for report in reports
        )
        return settled or now - final_at >= SETTLE_NS

    def _is_evaluated(self, now: int, final_at: int) -> bool:
        """Whether the last evaluation is here, or comes no more because its host was given up."""
        if any(member.replica.role == EVALUATOR for member in self._context.members()):
            self._evaluator_at = now
        return self._books.is_evaluated() or now - max(self._evaluator_at, final_at) >= EVALUATOR_NS

    def _status(self, now: int) -> dict[str, Any]:
        """Everything that somebody who watches wants to know, and all that the summary is made of."""
        zero = self._books.zero
        is_stepping = any(report["phase"] == "stepping" for report in self._books.reports.values())
        phase = "starting" if zero is None and is_stepping else self._phase()
        return {
            **self._books.figures(self._learners),
            "phase": phase,
            "time": (now - zero) / 1e9 if zero is not None else 0.0,
            "tokens_budget": self._budget,
            "error": self._error,
            "files": self._lines.counts(),
            "unsaved": {"fragments": len(self._unsaved), "error": self._save_error},
        }

    def _phase(self) -> str:
        if self.is_finished:
            return "done"
        is_ending = self._books.final_at or self._unsaved or self._is_stopping
        return "final" if is_ending else "training"


def _merge_line(merging: Merging) -> dict[str, Any]:
    """What is written of a merge."""
    fields: Mapping[str, Any] = {**merging}
    line = {name: fields[name] for name in _MERGE_FIELDS}
    line["quorum_ms"] = (merging["quorum_at"] - merging["opened_at"]) / 1e6
    line["grace_ms_used"] = (merging["closed_at"] - merging["quorum_at"]) / 1e6
    return line


def _by_key(items: Any) -> Mapping[Any, Any]:
    """What came at a port, by (replica, key); an item by itself, whose fields have names, has one place there."""
    if items is None:
        return {}
    if isinstance(items, Mapping) and not any(isinstance(key, str) for key in items):
        return items
    return {None: items}
