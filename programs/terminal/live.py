"""The view of a run in progress: a live table on a terminal, a line every few seconds elsewhere, or the last line only.

A view receives statuses as the recorder publishes them, any key of which may be missing at first, and the summary at
the end; deaths and returns come from `notices`. It decides nothing, and leaves out figures that it cannot show.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isthmus.programs.results import numbers
from isthmus.programs.terminal.figures import Figures, eval_losses
from isthmus.programs.terminal.fitted_table import Column, in_lines
from isthmus.programs.terminal.notices import News, Notice, newest
from isthmus.programs.terminal.rows import learners_table
from isthmus.runtime.errors import Fault

if TYPE_CHECKING:
    from isthmus.programs.request.request import Request
    from isthmus.programs.run.in_processes import Submitted

LINE_SECONDS: Final = 5.0
"""Interval of lines if the output is no terminal."""
NOTICES_SHOWN: Final = 6
_BAR_WIDTHS: Final = (4, 24)
_STYLES: Final = {"bad": "red", "odd": "yellow", "good": "green"}


class View(Protocol):
    """A display of a run."""

    def update(self, status: dict[str, Any]) -> None:
        """Show the newest status."""

    def close(self, summary: dict[str, Any]) -> None:
        """Show how the run ended."""

    def end(self) -> None:
        """Restore the terminal, whatever happened. Idempotent."""


@contextmanager
def watching(request: Request | Submitted, *, quiet: bool, console: Console | None = None) -> Iterator[View]:
    """A view of the request's run on standard output, or on `console`."""
    console = console or Console(highlight=False)
    figures = Figures(request)
    view: View
    if quiet:
        view = LastLine(figures, console)
    elif console.is_terminal:
        view = LiveTable(figures, News(request.run_dir), console)
    else:
        view = Lines(figures, News(request.run_dir), console)
    try:
        yield view
    finally:
        view.end()


@contextmanager
def preparing(*, quiet: bool, console: Console | None = None) -> Iterator[None]:
    """Show that a run is being prepared: on a terminal, a line that is erased at the end.

    There is no spinner, because that needs a thread, and preparing forks.
    """
    console = console or Console(highlight=False)
    is_shown = console.is_terminal and not quiet
    if is_shown:
        console.print(Text("preparing: the request is read, the task is run on shapes"), end="")
        console.file.flush()
    try:
        yield
    finally:
        if is_shown:
            console.file.write("\r\x1b[2K")
            console.file.flush()


def announce(chosen: Mapping[str, Any], warnings: Iterable[Fault], *, quiet: bool) -> None:
    """Print the settings that were chosen for a run that is about to start, unless `quiet`, and on standard error the
    warnings of its request."""
    if chosen and not quiet:
        values = ", ".join(f"{name} {value}" for name, value in chosen.items())
        sys.stdout.write(f"chosen for this run: {values}\n")
        sys.stdout.flush()
    for warning in warnings:
        sys.stderr.write(f"isthmus: warning: {warning}\n")
    sys.stderr.flush()


@final
class LiveTable:
    """A terminal: a progress bar, the figures of the run, a row for each learner, and recent notices."""

    def __init__(
        self, figures: Figures, news: News, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._figures = figures
        self._news = news
        self._console = console
        self._now, self._began = now, now()
        self._status: dict[str, Any] = {}
        self._losses: dict[int, float] = {}
        self._speed = ("", "")
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def update(self, status: dict[str, Any]) -> None:
        learners: Mapping[int, Mapping[str, Any]] = status.get("learners", {})
        told = {slot: self._reported(slot, learner) for slot, learner in learners.items()}
        self._status = {**status, "learners": told}
        self._news.update(status)
        self._speed = self._figures.speed(status)
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def close(self, summary: dict[str, Any]) -> None:
        """Keep the last table, and write the end of the run below it."""
        self.end()
        self._console.print(facts(self._figures.ending(summary)))

    def end(self) -> None:
        """Give the terminal back."""
        if self._live.is_started:
            self._live.stop()

    def _reported(self, slot: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """A learner's report; the last one of a run, which stays on the screen, may lack the newest loss."""
        if numbers.is_known(told.get("loss")):
            self._losses[slot] = told["loss"]
        elif told.get("phase") == "final" and not told.get("sick"):
            return {**told, "loss": self._losses.get(slot)}
        return told

    def _render(self) -> Group:
        figures, status = self._figures, self._status
        width, height = self._console.width, self._console.height
        since = "" if status.get("tokens") else f" ({self._now() - self._began:.0f} s)"
        words = f"  {figures.phase(status)}{since}  "
        head = Text.assemble((figures.program, "bold"), words, (figures.folder, "dim"))
        learners = learners_table(status, width)
        shown = [run_table(figures, status, width)] if any(figures.shown(status)) else []
        parts: list[RenderableType] = [head, self._progress(width), *shown, Text(""), learners]
        room = height - learners.row_count - 10
        told = newest(self._news.notices, min(NOTICES_SHOWN, room))
        if told:
            parts += [Text(""), notices_table(told)]
        return Group(*parts)

    def _progress(self, width: int) -> Table:
        figures, status = self._figures, self._status
        share = figures.share(status)
        words = [numbers.progress(share), figures.tokens(status), *filter(None, self._speed)]
        while (room := width - sum(len(word) + 2 for word in words)) < -2:
            words.pop()
        table = Table.grid(padding=(0, 2))
        # On a narrow terminal the figures replace it.
        if room >= _BAR_WIDTHS[0]:
            bar = ProgressBar(total=1.0, completed=share, width=min(_BAR_WIDTHS[1], room), complete_style="green")
            table.add_row(bar, *words)
        else:
            table.add_row(*words)
        return table


@final
class Lines:
    """No terminal: a line when something begins or happens to a host, and one every few seconds."""

    def __init__(
        self, figures: Figures, news: News, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._figures = figures
        self._news = news
        self._console = console
        self._now = now
        self._stage = ""
        self._written_at = float("-inf")

    def update(self, status: dict[str, Any]) -> None:
        """Write new notices, and a line of figures if one is due."""
        if not self._stage:
            _write(self._console, f"{self._figures.program}: the run folder is {self._figures.folder}")
        for notice in self._news.update(status):
            _write(self._console, f"{_when(notice)}{notice.text}")
        stage, now = self._figures.stage(status), self._now()
        speed, left = self._figures.speed(status)
        if stage == self._stage and now - self._written_at < LINE_SECONDS:
            return
        self._stage, self._written_at = stage, now
        words = [self._figures.phase(status)]
        if status.get("tokens"):
            words.append(numbers.progress(self._figures.share(status)))
            words.append(self._figures.tokens(status))
            losses = [learner.get("loss") for learner in status.get("learners", {}).values()]
            known = [value for value in losses if numbers.is_known(value)]
            words += [speed, left, f"loss {numbers.decimal(sum(known) / len(known))}" if known else ""]
            words += [self._figures.evaluation(status), self._figures.merging(status)]
        _write(self._console, ", ".join(filter(None, words)))

    def close(self, summary: dict[str, Any]) -> None:
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
        losses = eval_losses({**summary, "eval_loss": summary["eval_loss_final"]})
        _write(
            self._console, f"{self._figures.program} {summary['outcome']}, eval loss {losses}, {self._figures.folder}"
        )

    def end(self) -> None:
        """Nothing is held."""


def run_table(figures: Figures, status: Mapping[str, Any], width: int) -> RenderableType:
    """The figures of the run, each under its name; settings changed by pacers below."""
    shown = [Column(name, [value], is_text=True) for name, value in figures.shown(status)]
    changed = ", ".join(figures.pacing(status))
    return Group(*in_lines(shown, width, gap=3), *([Text(changed, style="dim")] if changed else []))


def notices_table(notices: Any) -> Table:
    """A row for each notice, oldest first."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for notice in notices:
        table.add_row(Text(_time(notice), style="dim"), Text(notice.text, style=_STYLES[notice.tone]))
    return table


def facts(rows: Any) -> Table:
    """Keywords and texts in two columns."""
    table = Table.grid(padding=(0, 2))
    for word, text in rows:
        table.add_row(Text(word, style="bold"), Text(text, overflow="fold"))
    return table


def _time(notice: Notice) -> str:
    return "start" if notice.at is None else f"{notice.at:.1f} s"


def _when(notice: Notice) -> str:
    return "" if notice.at is None else f"at {notice.at:.1f} s "


def _write(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
    console.file.flush()
