"""The recorder: keeps the files of a run, publishes its status, and detects its end.

Decides nothing about training. It decides when a run has ended (everything final is there and written, or is waited for
no longer), whether that end is a success, and that a run has failed whose model no host holds any more. A disk that is
full or broken does not stop it: lines wait or are lost, and are counted, and the final model is written as soon as the
disk takes it. As long as the disk does not return the knowledge of a former recorder, inputs are kept and nothing is
done.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from isthmus.ops.exchange import last_digests
from isthmus.ops.exchange.messages import (
    Amount,
    Change,
    Control,
    Evaluated,
    FinalFile,
    FinalFragment,
    Held,
    Merging,
    StepReport,
)
from isthmus.ops.exchange.paths import PathParts
from isthmus.programs.engine.recorder import sites
from isthmus.programs.engine.recorder.accounts import share_of
from isthmus.programs.engine.recorder.books import Books, Remembering, read_into
from isthmus.programs.engine.recorder.final_files import save_final
from isthmus.programs.engine.recorder.last_evaluation import LastEvaluation
from isthmus.programs.engine.recorder.lines import MetricLines, RecordLines, Reports
from isthmus.programs.engine.results.lines import ChangeRecord, EvaluationLine, Line, MergeRecord
from isthmus.programs.program_graph import EVALUATOR, SYNCER
from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.ids import LEARNER, RECORDER, Member, Replica
from isthmus.runtime.system.disk import Disk

PLAIN: Final = seconds(10)
"""The shortest wait for the next sign where no final model is to come."""
MODEL: Final = seconds(90)
"""The shortest where one is: a daemon that takes over, a lost machine and a life that begins after back-offs take that
long together."""
EVALUATION: Final = seconds(600)
"""Time limit for the last evaluation, if nothing else is missing and its host lives."""
TIMES: Final = 4
"""The wait, as a multiple of the slowest step, or sweep of merges."""
GAP: Final = seconds(2)
"""Upper limit for the time that counts between two looks, which come several times a second."""


class Ending:
    """The end of one run; `has_model`: its program gives a final model.

    A run is to end once the token budget is spent or a stop was requested; then learners are final, fragments are
    final, the model is evaluated (`last_evaluation`). Each of these is a sign. Without a new one for some steps of the
    slowest learner and some sweeps of the slowest merges, nothing is waited for any more, whatever bodies do. Time in
    which this host was stopped, or its machine asleep, does not count: the others may have sent signs in it.
    """

    def __init__(self, *, has_model: bool) -> None:
        self._least = MODEL if has_model else PLAIN
        self._slowest = 0
        self._merged_at: dict[int, int] = {}
        self._signs: object = None
        self._looked_at: int | None = None
        self._waited = 0

    def step_took(self, duration: int) -> None:
        """A step of some learner took `duration` nanoseconds."""
        self._slowest = max(self._slowest, duration)

    def merged(self, fragment: int, now: int) -> None:
        """A fragment was merged; from one such merge to the next is a sweep."""
        self._slowest = max(self._slowest, now - self._merged_at.get(fragment, now))
        self._merged_at[fragment] = now

    def look(self, signs: object, now: int) -> None:
        """Note the `signs` of progress of an end that is due; called repeatedly."""
        if self._looked_at is None or signs != self._signs:
            self._signs, self._waited = signs, 0
        else:
            self._waited += min(now - self._looked_at, GAP)
        self._looked_at = now

    @property
    def limit(self) -> Duration:
        """Time limit for the next sign of progress."""
        return Duration(max(self._least, TIMES * self._slowest))

    def is_late(self, *, is_evaluating: bool = False) -> bool:
        """Whether the time limit was exceeded at the last look."""
        return self._waited >= (max(self.limit, EVALUATION) if is_evaluating else self.limit)


LOST_TIMES: Final = 100
"""Ten seconds of looks: hosts that come back report what they hold within a second or two, and a recorder that comes
back hears it then. Looks are counted, not time, because a clock may leap."""


class ModelHolders:
    """Looks, ten times a second, whether each of `count` fragments is held.

    A fragment is held by the hosts that report it (`ops.recovery.hold`), by the learners whose last report has a
    version of it, and by the life of its shard that published it last; each only while that life is live. A model is
    lost if a fragment of it was merged and some fragment has no holder any more. In a program in which no host reports
    what it holds nothing is lost. Nor is a fragment whose shard is not live: a recorder that comes back before its home
    has found the other hosts again is alone in its roster, and knows nothing of them. Of a model made of modules
    (`is_of_modules`), a fragment that was never merged is not lost: it begins anew.
    """

    def __init__(self, count: int, *, is_of_modules: bool = False) -> None:
        self._count, self._is_of_modules = count, is_of_modules
        self._held: dict[Any, frozenset[int]] = {}
        """By (replica, holder): a shard is one of its own, and of its neighbour."""
        self._is_merged = False
        self._looks: dict[int, int] = {}
        """Fragment -> looks in a row in which it had no holder."""

    def record(self, held: Mapping[Any, Held]) -> None:
        """Take the holders' reports, by (replica, key)."""
        self._held |= {(each, item["holder"]): frozenset(item["fragments"]) for (each, _), item in held.items()}
        self._is_merged |= any(item["merged"] for item in held.values())

    def look(self, books: Books, members: Iterable[Any]) -> None:
        """Look which fragments have a holder, once there is a merged model."""
        is_judged = self._held and (books.versions or self._is_merged)
        unheld = self._unheld(books, members) if is_judged else []
        self._looks = {fragment: self._looks.get(fragment, 0) + 1 for fragment in unheld}

    @property
    def gone(self) -> list[int]:
        """The fragments that no host has held for LOST_TIMES looks."""
        return [fragment for fragment, looks in self._looks.items() if looks >= LOST_TIMES]

    def lost(self, saved: Container[int]) -> str | None:
        """The verdict that the model is lost, or None; of fragments that are `saved` as final nothing can be lost."""
        lost = [fragment for fragment in self.gone if fragment not in saved]
        if not lost:
            return None
        return (
            f"the model is lost: every host that held fragment {lost[0]} ({len(lost)} of {self._count} "
            "fragments) has ended, after fragments were merged. It is not begun anew; run again."
        )

    def _unheld(self, books: Books, members: Iterable[Any]) -> list[int]:
        lives = {(member.replica.role, member.replica.slot): member.incarnation for member in members}
        held = set[int]()
        for (replica, _), fragments in self._held.items():
            held |= fragments if (replica.role, replica.slot) in lives else set()
        for slot, report in books.reports.items():
            if lives.get((LEARNER, slot)) == report["incarnation"]:
                held |= {fragment for fragment, version in enumerate(report["versions"]) if version[0]}
        for fragment, (shard, epoch) in books.publishers.items():
            is_back = lives.get((SYNCER, shard), epoch) != epoch  # A later life, which began without the fragment.
            held |= set() if is_back else {fragment}
        judged = books.versions.keys() if self._is_of_modules else range(self._count)
        return [fragment for fragment in sorted(judged) if fragment not in held]


SCHEMAS: Final[dict[str, Any]] = {
    # Of any program: some report their tokens alone.
    "progress": Annotated[StepReport, ("needs", "tokens"), {"step_time": Amount}],
    "merged": Merging,
    "evaluation": Evaluated,
    "final": Annotated[FinalFragment, {"tensors": Any}],
    "held": Held,
    "changed": Change,
}


TRAINED_SHARE_MIN: Final = 0.9
"""Share of the budget: learners stop at the first boundary at which they know it to be spent, so a run without delays
trains all of it, and a little more."""


def failure(
    figures: Mapping[str, Any],
    accounts: Sequence[Mapping[str, int]],
    sizes: Sequence[int],
    *,
    budget: int,
    is_stopped: bool,
    loss: float | None,
) -> str | None:
    """Why the run has failed, or None if it is done.

    `figures` are those of a status, `accounts` those of its fragments, `loss` that of the last evaluation, None if
    there was none.
    """
    tokens = figures["tokens"]
    if not is_stopped and tokens < TRAINED_SHARE_MIN * budget:
        from isthmus.programs.engine.results.words import percent  # Sentences are made where a run has failed.

        share = percent(tokens / budget)
        return (
            f"only {tokens} of {budget} tokens ({share}) were trained, and nobody had the run stopped. "
            "The report says which learners ended; the model has what was merged until then."
        )
    merged, refused = (tokens * share_of(part, accounts, sizes) for part in ("merged", "refused"))
    sick = [report["sick_step"] for report in figures["learners"].values()]
    is_lost = refused > merged or (loss is not None and not math.isfinite(loss))
    if is_lost and sick and all(sick):  # First: refusals, and the loss of the model, follow from it.
        return (
            f"the loss of all learners was not finite, first at step {min(sick)}. "
            "Lower the learning rates (task.lr, program.outer_lr), or look at the data."
        )
    if refused > merged:
        return (
            f"more was refused than merged: {refused:.0f} tokens against {merged:.0f}, of {tokens} trained. "
            "merges.jsonl says why answers were refused."
        )
    if loss is not None and not math.isfinite(loss):
        return (
            "the loss of the trained model is not finite. "
            "Lower the learning rates (task.lr, program.outer_lr), or look at the data."
        )
    return None


STATUS_NS: Final = 500_000_000
STATUS_TIMES: Final = 8
"""The least time from one status to the next, as a multiple of what it takes: with very many learners a good part of a
second."""
CONTROL_NS: Final = 1_000_000_000
"""Between two messages to pacers: they fire on messages, and so notice, too, that time has passed."""
SETTLE_NS: Final = 2_000_000_000
"""Wait after the last final fragment for the learners' last reports: a dead one sends none."""
MEMORY_NS: Final = 1_000_000_000
"""Between two writes of the memory for the next recorder; the lines have the input between them, and where lines wait,
the memory is written at once."""
EVALUATOR_NS: Final = 30_000_000_000
"""Wait at the end for an absent evaluator: its next life begins within four seconds and its imports, until it is given
up."""
RETRY_NS: Final = 500_000_000
SAVE_TRIES_MAX: Final = 1200
"""How often a disk may refuse the final model: ten minutes of tries, in which an operator may make room. Tries are
counted, not time, because a clock may leap."""
LINES_NS_MAX: Final = 30_000_000_000
"""Wait at the end for lines that the disk does not take."""


class Recorder:
    """Fires by timer and samples everything.

    Arguments:
        folder: that of the run.
        tokens: the budget.
        learners: replicas whose tokens count.
        sizes: of the fragments in values, none where whole trees are exchanged.
        has_model: a final model arrives, in `final` fragments.
        has_evaluator: a final evaluation arrives.
        keeps_budget: learners do not notice themselves that it is spent; where they do, as in programs that go back to
            a shared state, undone tokens count as trained here, but not there.
        has_regions: learners answer to the syncers of regions.
        paths: those of a model made of modules.
    """

    outputs = ("control",)
    collects = ("progress", "merged", "evaluation", "final", "final_file", "held", "changed", "stop")
    schemas: Final = SCHEMAS

    def __init__(
        self,
        folder: Path,
        *,
        tokens: int,
        learners: int,
        sizes: Sequence[int],
        has_model: bool,
        has_evaluator: bool,
        keeps_budget: bool = True,
        has_regions: bool = False,
        paths: PathParts | None = None,
    ) -> None:
        self._folder, self._keeps_budget = folder, keeps_budget
        self._budget, self._learners, self._sizes = tokens, learners, sizes
        self._has_model, self._has_evaluator = has_model, has_evaluator
        self._books, self._holders = (
            Books(sizes=sizes, has_regions=has_regions, paths=paths),
            ModelHolders(len(sizes), is_of_modules=paths is not None),
        )
        self._reports, self._ending = Reports(), Ending(has_model=has_model)
        self._stop_reason: str | None = None
        self._ended: set[tuple[int, int]] = set()
        self._arrived: dict[str, dict[Any, Any]] = {}
        self._has_recalled = False
        self._unsaved: dict[int, FinalFragment | FinalFile] = {}
        self._save_tries = 0
        self._save_at = 0
        self._save_error: str | None = None
        self._snapshots: dict[str, Any] = {"error": None, "store": None}
        self._remembered_at = self._early_count = 0
        self._published_at, self._status_every = -STATUS_NS, STATUS_NS
        self._controlled_at = -CONTROL_NS
        self._complete_at: int | None = None
        self._evaluator_at = 0
        self._last_evaluation = LastEvaluation()
        self._has_losses = False
        self._unevaluated: Evaluated | None = None
        """The last evaluation without a loss, while a learner may still give one."""
        self._error: str | None = None
        self._is_stopping = False
        self._ends_since: int | None = None
        self.is_finished = self.is_engaged = False

    def open(self, context: Any) -> None:
        """Open the files, and continue from the memory of an earlier recorder."""
        self._context = context
        self._began_at = self._fired_at = context.now()
        self._disk: Disk = context.disk
        self._lines = RecordLines(self._folder, self._disk)
        self._metrics = MetricLines(self._lines)
        self._memory = Remembering(self._folder, self._disk, context.member.incarnation)
        self._recall()

    def close(self) -> None:
        """Close the files; writes nothing if a later life of this recorder has taken over."""
        if self._has_recalled and not self._memory.is_replaced():
            self._metrics.write_all(self._context.now())
            self._lines.give_up_waiting(self._began_at)
            self._remember(self._context.now())
        self._lines.close()

    def __call__(
        self,
        progress: Any = None,
        merged: Any = None,
        evaluation: Any = None,
        final: Any = None,
        final_file: Any = None,
        held: Any = None,
        changed: Any = None,
        stop: Any = None,
    ) -> dict[str, Control] | None:
        """Record the new inputs; signal stop if it was requested, or this recorder keeps the budget and it is spent."""
        now = self._context.now()
        if now - self._fired_at >= GAP:  # It fires ten times a second.
            self._books.paused += now - self._fired_at
        self._fired_at = now
        came = {"progress": progress, "merged": merged, "evaluation": evaluation, "final": final, "held": held}
        for port, items in {**came, "final_file": final_file, "changed": changed, "stop": stop}.items():
            self._arrived.setdefault(port, {}).update(items or {})
        if not self._has_recalled and not self._recall():
            return None
        arrived, self._arrived = self._arrived, {}
        self._accept(arrived, now)
        is_unevaluated = not self._awaits_learner() and not self._last_evaluation.is_left_out
        if self._unevaluated is not None and is_unevaluated:
            unevaluated, self._unevaluated = self._unevaluated, None
            self._note_evaluation(unevaluated, now)
        if self._unsaved and now >= self._save_at:
            self._save(now)
        self._judge_model()
        self._judge_end(now)
        self._judge_evaluation(now)
        self._books.note_live(_lives(self._context.members()), now)
        if self._error is not None or self._is_complete(now):
            self._metrics.write_all(now)
            self.is_finished = self._is_flushed(now)
        if self.is_finished:
            self._lines.close()  # Their counts in this status are final.
            self._error = self._error or self._failure()
        if self.is_finished or now - self._published_at >= self._status_every:
            self._published_at, begun = now, self._context.now()
            self._lines.flush()
            self._context.publish(self._status(now))
            self._status_every = max(STATUS_NS, STATUS_TIMES * (self._context.now() - begun))
        if self._context.leave_requested():
            self._metrics.write_all(now)
            self.is_engaged = not self._lines.flush()
        if self.is_finished or now - self._remembered_at >= MEMORY_NS or len(self._lines.early) > self._early_count:
            self._remember(now)
        return self._control(now)

    # -- from life to life ---------------------------------------------------------------------------------------------

    def _recall(self) -> bool:
        """Go on from an earlier recorder's memory and lines; returns whether the disk could be read."""
        try:
            read_into(self._books, self._folder, self._disk, self._began_at)
            self._lines.recall(self._books.early)
        except OSError:
            return False
        for _, line in self._lines.early:
            if isinstance(line, MergeRecord):  # They are in the memory, too, but not one by one.
                self._books.accept(line, self._began_at)
        self._has_recalled = True
        return True

    def _remember(self, now: int) -> None:
        """Write the memory for the next recorder."""
        self._remembered_at, self._early_count = now, len(self._lines.early)
        self._memory.save(self._books, self._lines.early)

    # -- input ---------------------------------------------------------------------------------------------------------

    def _accept(self, arrived: Mapping[str, Mapping[Any, Any]], now: int) -> None:
        """Take in the items that arrived since the last firing, by port and key."""
        self._holders.record(arrived["held"])
        for item in arrived["held"].values():
            self._books.shards.saved(item["saved"])
            self._books.totals.raise_to(item["totals"])
            self._books.note_snapshots(item["faults"])
            if item["holder"] == RECORDER:
                self._snapshots = {"error": item["error"], "store": item["store"]}
        for report in self._reports.whole(arrived["progress"], self._context.members(), now):
            self._take_report(report, now)
        is_over = self._has_model and self._is_saved() and self._is_evaluation_there()
        for merging in sorted(arrived["merged"].values(), key=lambda item: (item["published_at"], item["fragment"])):
            merge = MergeRecord.made_of(merging)
            if is_over and self._books.is_later_life(merge):
                continue  # It changes nothing of the final model.
            if self._note(merge, merging["published_at"], now):
                self._ending.merged(merge.fragment, now)
        for change in sorted(
            arrived["changed"].values(), key=lambda item: (item["shard"], item["epoch"], item["number"])
        ):
            self._note(ChangeRecord.made_of(change, self._books.since_zero(change["at"])), change["at"], now)
        for each in sorted(arrived["evaluation"].values(), key=lambda item: (item["tokens"], item["kind"] == "final")):
            if each.get("left_out"):
                self._last_evaluation.leave_out()
            elif "figures_within" in each:
                self._last_evaluation.hold(each, now)
            elif each["loss"] is None and each["kind"] == "final":
                self._unevaluated = each
            else:
                self._note_evaluation(each, now)
        for item in () if is_over else (*arrived["final"].values(), *arrived["final_file"].values()):
            self._unsaved[item["fragment"]] = item
        for request in arrived["stop"].values():
            if not self._is_to_end():
                self._stop_reason = str(request["reason"])
        if self._books.zero is not None and not self._lines.has_begun:
            self._remember(now)  # The next recorder may have to continue amid the lines that follow.
            self._lines.begin(self._books.zero)

    def _note_evaluation(self, each: Evaluated, now: int) -> None:
        """Note an evaluation, unless there is a last one with a loss, and this has none."""
        if each["loss"] is None and self._books.is_evaluated():
            return
        if each["kind"] == "final":
            self._last_evaluation.come()
        line = EvaluationLine.made_of(each)
        self._books.note_last(line)
        if self._note(line, now, now):
            self._has_losses = each["loss"] is not None

    def _note(self, line: Line, at: int, now: int) -> bool:
        """Fold a line that is made of an input at an instant, and write it if it is news; returns whether it is."""
        news = self._books.accept(line, now)
        if news is not None:
            self._lines.write(at, news)
        return news is not None

    def _take_report(self, report: StepReport, now: int) -> None:
        slot, last = report["slot"], self._books.reports.get(report["slot"])
        life = Member(Replica(LEARNER, slot), report["incarnation"])
        self._books.note_site(report, self._context.was_on(life))
        if not self._books.add_report(report, now):
            return
        self._ending.step_took(report["step_time"])
        if (evaluation := report.get("evaluation")) is not None:
            if evaluation.get("left_out"):
                self._last_evaluation.leave_out()
            else:
                self._note_evaluation(evaluation, now)
        if report["phase"] == "final":
            self._ended.add((slot, report["incarnation"]))
        self._metrics.add_report(report, last, now)

    def _save(self, now: int) -> None:
        """Write the fragments of the final model that have arrived; those that the disk refuses are tried again."""
        where = self._folder / "snapshots" / "final"
        try:
            for fragment in sorted(self._unsaved):
                item = self._unsaved[fragment]
                digest = save_final(item, where / f"fragment-{fragment}.safetensors", self._folder, self._disk)
                del self._unsaved[fragment]
                self._books.note_final(fragment, item["version"], digest, now)
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

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _control(self, now: int) -> dict[str, Control] | None:
        """The item for ports `control`: whether to end, the budget, the tokens trained and the versions merged."""
        stop = self._is_to_end()
        is_news = stop != self._is_stopping or now - self._controlled_at >= CONTROL_NS
        if self._sizes and not is_news:  # Whole trees have no other source of trained tokens.
            return None
        self._is_stopping, self._controlled_at = stop, now
        totals, published = self._books.counted_rows(), self._books.published()
        return {"control": Control(stop=stop, tokens=self._budget, totals=totals, published=published)}

    def _is_to_end(self) -> bool:
        """Whether the budget is spent, or a stop was requested."""
        is_spent = self._keeps_budget and self._books.counted >= self._budget
        return is_spent or self._stop_reason is not None or self._context.stop_requested()

    def _judge_end(self, now: int) -> None:
        """Track the progress of the end; fail if the final model is due and does not arrive."""
        if self._is_to_end():
            self._ends_since = now if self._ends_since is None else self._ends_since
            come = self._books.final | self._unsaved.keys()
            self._ending.look((len(self._ended), len(come), self._books.is_evaluated()), now)
        if self._is_late(now) and self._has_model and not self._is_saved() and self._books.totals.trained:
            going = [str(slot) for slot, report in self._books.reports.items() if report["phase"] != "final"]
            self._error = self._error or (
                f"the run was to end, and its final model did not come: for {self._ending.limit / 1e9:.0f} s no body "
                f"came nearer to its end (not final: {', '.join(going) or 'none that reports'}). A body hears of the "
                "end by `stop` in what comes to its port `control`; what emits `final` is to do so then."
            )

    def _judge_evaluation(self, now: int) -> None:
        """Track the wait for the last evaluation, where all else has come; it is left out of a run that was stopped
        where it does not come soon."""
        has_else = self._is_saved() if self._has_model else self._are_learners_final()
        is_due = self._is_to_end() and has_else and self._has_evaluator
        self._last_evaluation.look(
            now,
            is_due=is_due,
            has_come=self._books.is_evaluated(),
            is_stopped=self._context.stop_requested(),
        )
        is_given_up = self._is_unevaluated(now, self._books.final_at or now)
        if (released := self._last_evaluation.released(now, is_given_up=is_given_up)) is not None:
            self._note_evaluation(released, now)

    def _is_late(self, now: int) -> bool:
        """Whether the wait for missing items is over; a slow disk has its own limit."""
        if self._last_evaluation.figures_awaited is not None:
            return False  # They have their own limit.
        is_evaluating = self._is_saved() and self._has_evaluator and now - self._evaluator_at < EVALUATOR_NS
        is_evaluating |= self._awaits_sites(now)
        return not self._unsaved and self._ending.is_late(is_evaluating=is_evaluating)

    def _is_saved(self) -> bool:
        """Whether the final model is written."""
        fragments = max((len(report["accounts"]) for report in self._books.reports.values()), default=0)
        return not self._unsaved and len(self._books.final) >= max(fragments, 1)

    def _judge_model(self) -> None:
        """Fail the run if no holder is left of a fragment of the merged model."""
        self._holders.look(self._books, self._context.members())
        self._error = self._error or self._holders.lost(self._books.final | self._unsaved.keys())

    def _failure(self) -> str | None:
        """Why a run that has all its final items has still failed; None if it has not."""
        books = self._books
        figures, last = books.figures(self._learners), books.evaluations[-1] if books.evaluations else None
        return failure(
            figures,
            books.accounts(figures),
            self._sizes,
            budget=self._budget,
            is_stopped=self._context.stop_requested() or self._stop_reason is not None,
            loss=None if last is None or not self._has_losses else _or_nan(last.eval_loss),
        )

    def _is_flushed(self, now: int) -> bool:
        """Whether no line waits for the disk, or their time limit after completion is over."""
        self._complete_at = now if self._complete_at is None else self._complete_at
        self._lines.give_up_waiting(self._began_at)
        return self._lines.flush() or now - self._complete_at >= LINES_NS_MAX

    def _is_complete(self, now: int) -> bool:
        """Whether everything final has arrived and the model is written, or the wait is over."""
        if any(member.replica.role == EVALUATOR for member in self._context.members()) or self._awaits_learner():
            self._evaluator_at = now
        return self._is_late(now) or (self._has_come(now) if self._has_model else self._are_final())

    def _has_come(self, now: int) -> bool:
        """Whether the model is written and evaluated, and the learners' last reports have arrived."""
        reports, final_at = self._books.reports.values(), self._books.final_at
        if not reports or final_at is None or not self._is_saved():
            return False
        if not self._is_evaluation_there() and not self._is_unevaluated(now, final_at):
            return False
        settled = all(
            report["phase"] == "final"
            and not any(account[4] for account in report["accounts"])
            and not last_digests.is_awaited(report)
            for report in reports
        )
        if self._awaits_sites(now):
            return False
        return settled or now - final_at >= SETTLE_NS

    def _are_final(self) -> bool:
        """Whether all learners are final, in a program without a final model."""
        return self._are_learners_final() and self._is_evaluation_there()

    def _are_learners_final(self) -> bool:
        final = [report["phase"] == "final" for report in self._books.reports.values()]
        return bool(final) and all(final)

    def _is_evaluation_there(self) -> bool:
        """Whether the last evaluation has arrived or is left out, if there is one."""
        return not self._has_evaluator or self._books.is_evaluated() or self._last_evaluation.is_left_out

    def _awaits_learner(self) -> bool:
        """Whether a learner lives that evaluates, and has not evaluated the final model yet."""
        live = _lives(self._context.members())
        return any(
            report.get("evaluates", False)
            and (slot, report["incarnation"]) in live
            and report.get("evaluation", {}).get("kind") != "final"
            for slot, report in self._books.reports.items()
        )

    def _awaits_sites(self, now: int) -> bool:
        """Whether a site evaluates the final model, or will, and there is time for it."""
        final_at = self._books.final_at
        if final_at is None:
            return False
        trained = max(0, self._books.stepping_until - (self._books.zero or 0))
        most = sites.patience(trained, is_stopped=self._context.stop_requested())
        return now - final_at < most and sites.awaited(self._books.reports, _lives(self._context.members()))

    def _is_unevaluated(self, now: int, final_at: int) -> bool:
        """Whether the last evaluation cannot come: its host was given up, or no host holds the model."""
        return now - max(self._evaluator_at, final_at) >= EVALUATOR_NS or bool(self._holders.gone)

    def _status(self, now: int) -> dict[str, Any]:
        """The status for watching commands, from which the summary is made."""
        zero = self._books.zero
        is_stepping = any(report["phase"] == "stepping" for report in self._books.reports.values())
        phase = "starting" if zero is None and is_stepping else self._phase()
        return {
            **self._books.figures(self._learners),
            "slots": self._learners,
            "phase": phase,
            "time": (now - zero) / 1e9 if zero is not None else 0.0,
            "tokens_budget": self._budget,
            "error": self._error,
            "stop_reason": self._stop_reason,
            "ending": self._ending_status(now) if phase == "final" else None,
            **self._last_evaluation.figures(now, is_over=self.is_finished, is_evaluated=self._books.is_evaluated()),
            "unlike": [list(each) for each in self._books.unlike()] if self.is_finished else [],
            "files": self._lines.counts(),
            "unsaved": {"fragments": len(self._unsaved), "error": self._save_error},
            "snapshots": {"faults": self._books.snapshot_faults, **self._snapshots},
        }

    def _ending_status(self, now: int) -> dict[str, Any]:
        """What a run that comes to its end awaits, and for how long so far; of an evaluation, how long the last one
        took, but for its waits for a core: learners do not compute any more."""
        is_stopped = self._context.stop_requested()
        if (awaited := self._last_evaluation.figures_awaited) is not None:
            waited, most = (now - awaited[0]) / 1e9, awaited[1] / 1e9
            return {"awaits": "figures", "seconds": waited, "usual_seconds": most, "is_stopped": is_stopped}
        if (since := self._last_evaluation.awaited_since) is not None:
            last = self._books.evaluations[-1] if self._books.evaluations else EvaluationLine()
            took = None if last.seconds is None else last.seconds - (last.queued_seconds or 0.0)
            waited = (now - since) / 1e9
            return {"awaits": "evaluation", "seconds": waited, "usual_seconds": took, "is_stopped": is_stopped}
        began = now if self._ends_since is None else self._ends_since
        awaits = "reports" if self._has_model and self._is_saved() else "model"
        awaits = "sites" if self._awaits_sites(now) else awaits
        return {"awaits": awaits, "seconds": (now - began) / 1e9, "usual_seconds": None, "is_stopped": is_stopped}

    def _phase(self) -> str:
        if self.is_finished:
            return "done"
        is_ending = self._books.final_at or self._unsaved or self._is_stopping
        return "final" if is_ending else "training"


def _lives(members: Iterable[Any]) -> frozenset[tuple[int, int]]:
    """The learners among live members, as (slot, incarnation)."""
    return frozenset((member.replica.slot, member.incarnation) for member in members if member.replica.role == LEARNER)


def _or_nan(loss: float | None) -> float:
    """The loss of a line, in which one that is not finite is None."""
    return math.nan if loss is None else loss
