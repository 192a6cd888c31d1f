"""Statuses and summaries of one run as words and numbers, for every view.

A status is published by the recorder, beside it `hosts` (the daemon's information on each process) and `pacing`; any
key may be missing at first. Nothing is decided here, and unknown figures are left out.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from isthmus.programs.books.words import book_lines, snapshot_lines
from isthmus.programs.results import numbers
from isthmus.programs.results.store_words import store_line

if TYPE_CHECKING:
    from isthmus.programs.request.request import Request
    from isthmus.programs.run.in_processes import Submitted

SPEED_SECONDS: Final = 20.0
"""Window of the speed, and so of the time left: a death shows in it, a single merge does not."""
_EPOCHS_SHOWN: Final = 4
METRICS_SHOWN: Final = 3
"""Scalars of a task that a terminal shows; all are in the files."""
_PHASES: Final = {
    "starting": "starting: compiling the first step",
    "training": "training",
    "final": "merging the last fragments",
    "done": "done, writing summary and report",
}


@final
class Figures:
    """Turns statuses and summaries of one request's run into words; keeps past statuses for the speed."""

    def __init__(self, request: Request | Submitted) -> None:
        self.program = request.name
        self.learners = request.job.learners
        self.budget = request.job.tokens
        self.run_dir = request.run_dir
        self.folder = short(request.run_dir)
        self._settings = request.job.settings
        self._heard: deque[tuple[float, int]] = deque()

    def phase(self, status: Mapping[str, Any]) -> str:
        """The phase in words; before the first token is reported, the progress of the start."""
        phase = status.get("phase", "starting")
        if phase in ("starting", "training") and not status.get("tokens"):
            return starting(status.get("hosts", ()))
        if phase == "final" and not status.get("outer_steps"):
            return "coming to the end"
        return str(_PHASES.get(phase, phase))

    def stage(self, status: Mapping[str, Any]) -> str:
        """The phase without its figures: while it stays the same nothing new has begun."""
        return re.sub(r"\d+", "", self.phase(status))

    def share(self, status: Mapping[str, Any]) -> float:
        """The share of the token budget that has been trained, in [0, 1]."""
        return min(1.0, float(status.get("tokens", 0)) / self.budget)

    def tokens(self, status: Mapping[str, Any]) -> str:
        """'1.40 M of 4.10 M tokens'."""
        return f"{numbers.scaled(status.get('tokens', 0))} of {numbers.scaled(self.budget)} tokens"

    def speed(self, status: Mapping[str, Any]) -> tuple[str, str]:
        """Tokens a second of late, and the time that is left at that speed; both may be empty."""
        at, tokens = status.get("time", 0.0), status.get("tokens", 0)
        heard = self._heard
        if tokens and (not heard or at > heard[-1][0]):
            heard.append((at, tokens))
        while len(heard) > 2 and heard[1][0] <= at - SPEED_SECONDS:
            heard.popleft()
        if len(heard) < 2:
            return "", ""
        passed, trained = heard[-1][0] - heard[0][0], heard[-1][1] - heard[0][1]
        if trained <= 0:
            return "", ""
        left = max(0, self.budget - tokens) * passed / trained
        return f"{numbers.scaled(trained / passed)} tokens/s", f"{numbers.seconds(left)} left" if left else ""

    def evaluation(self, status: Mapping[str, Any]) -> str:
        """'eval loss 5.545 -> 1.812', or '' before the first evaluation."""
        losses = eval_losses(status)
        return f"eval loss {losses}" if losses else ""

    def merging(self, status: Mapping[str, Any]) -> str:
        """'120 outer steps by 3.9 of 4 learners', merged share, goodput, and settings that pacers have changed."""
        shown = dict(self.shown(status))
        if "contributors" not in shown:
            return ""
        parts = [f"{shown['outer steps']} outer steps by {shown['contributors']} learners"]
        parts += [f"{name} {shown[name]}" for name in ("merged", "goodput") if name in shown]
        return ", ".join([*parts, *self.pacing(status), *filter(None, [disk(status)])])

    def pacing(self, status: Mapping[str, Any]) -> Iterator[str]:
        """Settings that the pacers have changed: 'interval raised to 31 steps'."""
        for name in ("interval", "overlap"):
            now = {pacer.get(name) for pacer in status.get("pacing", {}).values()} - {None, self._settings.get(name)}
            if now:
                yield f"{name} raised to {max(now)} steps"

    def shown(self, status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The figures of the run: name and value."""
        if losses := eval_losses(status):
            yield "eval loss", losses
        yield from eval_metrics(status)
        yield from merge_figures(status, max(self.learners, len(status.get("learners", ()))))

    def ending(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The notable facts at the end: keyword and text."""
        return ending(summary, self.folder)


def starting(hosts: Any) -> str:
    """The progress of the start: 'starting: learners compile, 1 of 4 are ready'."""
    learners = [host for host in hosts if host["role"] == "learner"]
    if not learners:
        return _PHASES["starting"]
    begun = sum(host["phase"] not in ("gone", "starting") for host in learners)
    ready = sum(host["phase"] not in ("gone", "starting", "compiling") for host in learners)
    if ready == len(learners):
        return "starting: all learners are ready, and begin with the same model"
    if begun == 0:
        up = sum(host["state"] == "alive" for host in hosts)
        return f"starting: {up} of {len(hosts)} processes are there"
    return f"starting: learners compile, {ready} of {len(learners)} are ready"


def eval_losses(status: Mapping[str, Any]) -> str:
    """'5.545 -> 1.812', or '' before the first evaluation."""
    first, newest = status.get("eval_loss_initial"), status.get("eval_loss")
    if newest is None:
        return ""
    begun = f"{numbers.decimal(first)} -> " if first not in (None, newest) else ""
    return begun + numbers.decimal(newest)


def eval_metrics(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The first few other scalars of the newest evaluation: name and number."""
    for name, value in list(told.get("eval_metrics", {}).items())[:METRICS_SHOWN]:
        yield f"eval {name}", numbers.decimal(value)


def merge_figures(status: Mapping[str, Any], learners: int) -> Iterator[tuple[str, str]]:
    """Contributors, outer steps, merged share, goodput, epochs of shards: name and value; only those that are known."""
    if status.get("outer_steps"):
        yield "contributors", f"{numbers.decimal(status.get('contributors_mean'), 1)} of {learners}"
        yield "outer steps", numbers.whole(status["outer_steps"])
        if "merged_share" in status:
            yield "merged", numbers.percent(status["merged_share"])
    if status.get("goodput"):
        yield "goodput", numbers.percent(status["goodput"])
    store = status.get("snapshots", {}).get("store")
    if store and store["number"] and not store["error"]:
        yield "snapshots", f"{numbers.whole(store['number'])} at {store['url']}"
    if line := store_line(store):
        yield "snapshots", line
    epochs = [epoch for _, epoch in sorted(status.get("epochs", {}).items())]
    if max(epochs, default=1) > 1:
        few = len(epochs) <= _EPOCHS_SHOWN
        yield "epoch" if len(epochs) == 1 else "epochs", ", ".join(map(str, epochs if few else [max(epochs)]))
    if refused := disk(status):
        yield "disk", refused


def disk(status: Mapping[str, Any]) -> str:
    """'No space left on device: 12 lines wait, 3 are lost, the final model waits', or '' if nothing is missing."""
    files = status.get("files", {}).values()
    waiting, lost = (sum(count[name] for count in files) for name in ("waiting", "lost"))
    unsaved = status.get("unsaved") or {}
    is_unsaved = bool(unsaved.get("fragments") and unsaved.get("error"))
    snapshot = status.get("snapshots", {}).get("error")
    parts = [f"{_lines(waiting)} wait{'' if waiting > 1 else 's'}"] if waiting else []
    parts += [f"{_lines(lost)} {'are' if lost > 1 else 'is'} lost"] if lost else []
    parts += ["the final model waits"] if is_unsaved else []
    parts += ["the next snapshot waits"] if snapshot else []
    errors = [str(count["error"]) for count in files if count["error"]]
    errors += [each for each in (unsaved.get("error") if is_unsaved else None, snapshot) if each]
    return f"{errors[0]}: {', '.join(parts)}" if parts and errors else ""


def _lines(count: int) -> str:
    return f"{count} line{'s' if count > 1 else ''}"


def ending(summary: Mapping[str, Any], folder: str) -> list[tuple[str, str]]:
    """The notable facts of a summary: keyword and text."""
    learners = max(summary["learners"], len(summary["per_learner"]))
    people = f"{learners} learner{'s' if learners > 1 else ''}"
    wall = numbers.seconds(summary["wall_seconds"])
    rows = [("error", str(summary["error"]))] if summary.get("error") else []
    rows.append((summary["outcome"], f"{numbers.scaled(summary['tokens_total'])} tokens in {wall} by {people}"))
    losses = [numbers.decimal(summary[name]) for name in ("eval_loss_initial", "eval_loss_final")]
    rows.append(("eval loss", " -> ".join(losses)))
    rows += eval_metrics(summary)
    if summary["outer_steps"]:
        share = numbers.percent(summary["merged_share"])
        mean = numbers.decimal(summary["contributors_mean"], 2)
        merges = f"{summary['outer_steps']} outer steps by {mean} learners each"
        rows.append(("merged", f"{share} of the tokens, in {merges}"))
    stalls = sum(learner["stall_seconds"] for learner in summary["per_learner"])
    goodput = numbers.percent(summary["goodput"])
    rows.append(("goodput", f"{goodput}; the learners waited {numbers.seconds(stalls)} in all"))
    restarts = sum(learner.get("restarts", 0) for learner in summary["per_learner"])
    if restarts:
        lost = sum(learner.get("tokens_lost", 0.0) for learner in summary["per_learner"])
        rows.append(("restarts", f"{restarts}; {numbers.scaled(round(lost))} tokens died with learners"))
    rows += [("books", line) for line in book_lines(summary.get("books", {}))]
    if lost := summary.get("lines_lost", 0):
        rows.append(("disk", f"{_lines(lost)} of metrics, merges or evaluations lost: {summary['disk_error']}"))
    rows += [("snapshot", line) for line in snapshot_lines(summary.get("snapshot_faults", ()))]
    rows += [("snapshot", line) for line in [store_line(summary.get("snapshot_store"))] if line]
    rows.append(("sent", numbers.size(summary["bytes_sent_total"])))
    rows.append(("report", str(Path(folder, "report.html"))))
    return rows


def short(path: Path) -> str:
    """A path, relative to the current folder if it is inside it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
