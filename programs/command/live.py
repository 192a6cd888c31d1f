"""What a person sees of a run: a live table on a terminal, a line every few seconds elsewhere, or the last line only.

A view is given statuses as the recorder publishes them, any key of which may be missing at first, and the summary at
the end. It decides nothing, and what it cannot show it leaves out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isthmus.programs.command import report_numbers as numbers

if TYPE_CHECKING:
    from isthmus.programs.processes import Submitted
    from isthmus.programs.request import Request

LINE_SECONDS: Final = 5.0
"""How far apart lines are where the output is no terminal."""
_PHASES: Final = {
    "starting": "starting: compiling the first step",
    "training": "training",
    "final": "merging the last fragments",
    "done": "done",
}


class View(Protocol):
    """What watches a run."""

    def update(self, status: dict[str, Any]) -> None:
        """Show the newest status."""

    def close(self, summary: dict[str, Any]) -> None:
        """Show how the run ended."""

    def end(self) -> None:
        """Give the terminal back, whatever happened; may come twice."""


@contextmanager
def watching(request: Request | Submitted, *, quiet: bool, console: Console | None = None) -> Iterator[View]:
    """A view of the request's run on standard output, or on `console`."""
    console = console or Console(highlight=False)
    kind = LastLine if quiet else LiveTable if console.is_terminal else Lines
    view: View = kind(Figures(request), console)
    try:
        yield view
    finally:
        view.end()


@final
class Figures:
    """Turns statuses and summaries of one request's run into words; remembers what speed needs."""

    def __init__(self, request: Request | Submitted) -> None:
        self.program = request.name
        self.learners = request.job.learners
        self.budget = request.job.tokens
        self.folder = _short(request.run_dir)
        self._settings = request.job.settings
        self._first: tuple[float, int] | None = None

    def phase(self, status: Mapping[str, Any]) -> str:
        """What goes on, in words; before the first token is reported, that is the start."""
        phase = status.get("phase", "starting")
        return _PHASES["starting"] if phase == "training" and not status.get("tokens") else _PHASES.get(phase, phase)

    def share(self, status: Mapping[str, Any]) -> float:
        """The share of the token budget that has been trained, in [0, 1]."""
        return min(1.0, float(status.get("tokens", 0)) / self.budget)

    def tokens(self, status: Mapping[str, Any]) -> str:
        """'1.40 M of 4.10 M tokens'."""
        return f"{_scaled(status.get('tokens', 0))} of {_scaled(self.budget)} tokens"

    def speed(self, status: Mapping[str, Any]) -> tuple[str, str]:
        """Tokens a second since the first report, and the time that is left at that speed; both may be empty."""
        at, tokens = status.get("time", 0.0), status.get("tokens", 0)
        if self._first is None:
            self._first = (at, tokens) if tokens else None
            return "", ""
        passed, trained = at - self._first[0], tokens - self._first[1]
        if passed <= 0 or trained <= 0:
            return "", ""
        left = max(0, self.budget - tokens) * passed / trained
        return f"{_scaled(trained / passed)} tokens/s", f"{_clean(numbers.seconds(left))} left" if left else ""

    def evaluation(self, status: Mapping[str, Any]) -> str:
        """'eval loss 5.545 -> 1.812', or '' before the first evaluation."""
        first, newest = status.get("eval_loss_initial"), status.get("eval_loss")
        if newest is None:
            return ""
        return f"eval loss {_loss(first)} -> {_loss(newest)}" if first not in (None, newest) else _eval(newest)

    def merging(self, status: Mapping[str, Any]) -> str:
        """'contributors 3.9 of 4', '120 outer steps', and what the pacers have changed of their settings."""
        if not status.get("outer_steps"):
            return ""
        mean = status.get("contributors_mean")
        parts = [f"{status['outer_steps']} outer steps by {numbers.decimal(mean, 1)} of {self.learners} learners"]
        for name in ("interval", "overlap"):
            now = {pacer.get(name) for pacer in status.get("pacing", {}).values()} - {None, self._settings.get(name)}
            parts += [f"{name} raised to {max(now)} steps"] if now else []
        return ", ".join(parts)

    def ending(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What is worth reading at the end: a word and what it says."""
        learners = summary["learners"]
        people = f"{learners} learner{'s' if learners > 1 else ''}"
        wall = _clean(numbers.seconds(summary["wall_seconds"]))
        rows = [(summary["outcome"], f"{_scaled(summary['tokens_total'])} tokens in {wall} by {people}")]
        rows.append(("eval loss", f"{_loss(summary['eval_loss_initial'])} -> {_loss(summary['eval_loss_final'])}"))
        if summary["outer_steps"]:
            share = _clean(numbers.percent(summary["merged_share"]))
            mean = numbers.decimal(summary["contributors_mean"], 2)
            merges = f"{summary['outer_steps']} outer steps by {mean} learners each"
            rows.append(("merged", f"{share} of the tokens, in {merges}"))
        stalls = sum(learner["stall_seconds"] for learner in summary["per_learner"])
        goodput = _clean(numbers.percent(summary["goodput"]))
        rows.append(("goodput", f"{goodput}; the learners waited {_clean(numbers.seconds(stalls))} in all"))
        rows.append(("sent", _clean(numbers.size(summary["bytes_sent_total"]))))
        rows.append(("report", str(Path(self.folder, "report.html"))))
        return rows


@final
class LiveTable:
    """A terminal: a progress bar, a line of figures, and a row for each learner."""

    def __init__(self, figures: Figures, console: Console) -> None:
        self._figures = figures
        self._console = console
        self._status: dict[str, Any] = {}
        self._speed = ("", "")
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def update(self, status: dict[str, Any]) -> None:
        """Show the newest status."""
        self._status = status
        self._speed = self._figures.speed(status)
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def close(self, summary: dict[str, Any]) -> None:
        """Leave the last table where it is, and write how the run ended below it."""
        self.end()
        table = Table.grid(padding=(0, 2))
        for word, text in self._figures.ending(summary):
            table.add_row(Text(word, style="bold"), Text(text, overflow="fold"))
        self._console.print(table)

    def end(self) -> None:
        """Give the terminal back."""
        if self._live.is_started:
            self._live.stop()

    def _render(self) -> Group:
        figures, status = self._figures, self._status
        head = Text.assemble((figures.program, "bold"), f"  {figures.phase(status)}  ")
        head.append(figures.folder, style="dim")
        bar = Table.grid(padding=(0, 2))
        share = figures.share(status)
        words = [f"{100 * share:.0f} %", figures.tokens(status), *self._speed]
        bar.add_row(ProgressBar(total=1.0, completed=share, width=24, complete_style="green"), *filter(None, words))
        line = "   ".join(filter(None, [figures.evaluation(status), figures.merging(status)]))
        return Group(head, bar, Text(line), self._learners(status.get("learners", {})))

    def _learners(self, learners: Mapping[Any, Mapping[str, Any]]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("learner", no_wrap=True)
        table.add_column("phase", no_wrap=True)
        for name in ("step", "tokens", "loss", "step time", "behind", "sent", "received"):
            table.add_column(name, justify="right", no_wrap=True)
        for slot, learner in sorted(learners.items()):
            phase = Text("sick: not finite", style="red") if learner.get("sick") else Text(learner.get("phase", ""))
            table.add_row(str(slot), phase, *_learner(learner))
        return table


@final
class Lines:
    """No terminal: a line when something begins, and one every few seconds."""

    def __init__(self, figures: Figures, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._figures = figures
        self._console = console
        self._now = now
        self._phase = ""
        self._written_at = float("-inf")

    def update(self, status: dict[str, Any]) -> None:
        """Write a line if one is due."""
        phase, now = self._figures.phase(status), self._now()
        speed, left = self._figures.speed(status)
        if phase == self._phase and now - self._written_at < LINE_SECONDS:
            return
        if not self._phase:
            _write(self._console, f"{self._figures.program}: the run folder is {self._figures.folder}")
        self._phase, self._written_at = phase, now
        words = [phase]
        if status.get("tokens"):
            words.append(f"{100 * self._figures.share(status):.0f} %")
            words.append(self._figures.tokens(status))
            losses = [learner.get("loss") for learner in status.get("learners", {}).values()]
            known = [loss for loss in losses if numbers.is_known(loss)]
            words += [speed, left, f"loss {_loss(sum(known) / len(known))}" if known else ""]
            words += [self._figures.evaluation(status), self._figures.merging(status)]
        words += [f"learner {slot} is sick" for slot, item in status.get("learners", {}).items() if item.get("sick")]
        _write(self._console, ", ".join(filter(None, words)))

    def close(self, summary: dict[str, Any]) -> None:
        """Write how the run ended."""
        for word, text in self._figures.ending(summary):
            _write(self._console, f"{word:<10} {text}")

    def end(self) -> None:
        """Nothing is held."""


@final
class LastLine:
    """Quiet: how the run ended, in one line."""

    def __init__(self, figures: Figures, console: Console) -> None:
        self._figures = figures
        self._console = console

    def update(self, status: dict[str, Any]) -> None:
        """Nothing is shown."""

    def close(self, summary: dict[str, Any]) -> None:
        """Write the line."""
        losses = f"eval loss {_loss(summary['eval_loss_initial'])} -> {_loss(summary['eval_loss_final'])}"
        _write(self._console, f"{self._figures.program} {summary['outcome']}, {losses}, {self._figures.folder}")

    def end(self) -> None:
        """Nothing is held."""


def _learner(learner: Mapping[str, Any]) -> list[str]:
    """The figures of one learner's row."""
    step_ms = learner.get("step_ms")
    staleness = learner.get("staleness")
    return [
        _clean(numbers.whole(learner.get("step"))),
        _scaled(learner.get("tokens")),
        _loss(learner.get("loss")),
        _clean(numbers.seconds(step_ms / 1e3)) if step_ms else "",
        "" if staleness is None else f"{staleness}",
        _clean(numbers.size(learner.get("bytes_sent"))),
        _clean(numbers.size(learner.get("bytes_received"))),
    ]


def _write(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
    console.file.flush()


def _clean(text: str) -> str:
    """Numbers for a terminal or a log file, whose fonts and encodings are unknown: ASCII."""
    return text.replace(numbers.SPACE, " ").replace(numbers.UNKNOWN, "-").replace("\u2212", "-").replace("µ", "u")


def _scaled(value: float | None) -> str:
    return _clean(numbers.scaled(value))


def _loss(value: float | None) -> str:
    return _clean(numbers.decimal(value, 3))


def _eval(value: float) -> str:
    return f"eval loss {_loss(value)}"


def _short(path: Path) -> str:
    """A path from the current folder, where it is inside it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
