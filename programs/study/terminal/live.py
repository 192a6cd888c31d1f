"""The view of a run in progress: a live table on a terminal, a line every few seconds elsewhere, or the last line only.

A view receives statuses as the recorder publishes them, any key of which may be missing at first, and the summary at
the end; deaths and returns come from `notices`. It decides nothing, and leaves out figures that it cannot show.

The events of a run since a viewer attached: absences of hosts, reported as they begin and as they end.

It reads `events.jsonl` in the run folder as far as it has grown, and takes from the statuses which hosts work again. A
run in one process has no such file, and no news.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isthmus.programs.engine.results import alterations
from isthmus.programs.engine.results import words as numbers
from isthmus.programs.engine.results.absences import (
    Absence,
    Absences,
    CutFinder,
    Fact,
    RunCut,
    Tone,
    Waiting,
    Works,
    away,
    back,
    cut_words,
    facts_in,
    has_gone_on,
    hosts_of,
    is_urgent,
    remark,
    waiting_of,
)
from isthmus.programs.engine.results.changes import is_better, sentence
from isthmus.programs.engine.results.lines import ChangeRecord
from isthmus.programs.engine.results.reading import last_record, submitted_ns
from isthmus.programs.engine.results.words import not_finite, size, snapshot_lines, store_line, without_figures
from isthmus.programs.engine.run.preparing import listening
from isthmus.programs.study.terminal.figures import (
    WORKING,
    FigureWords,
    FullDisk,
    Screen,
    evaluated,
    final_figures,
    full_disks,
    in_lines,
    is_starting,
    learners_table,
    legend,
    no_room,
    resumption_words,
)
from isthmus.programs.study.terminal.sheet import Column
from isthmus.runtime.errors import Fault, printable
from isthmus.runtime.supervision.incidents import Restarted
from isthmus.runtime.system.disk import FullNotes, open_regular

if TYPE_CHECKING:
    from isthmus.programs.engine.request.request import Request
    from isthmus.programs.engine.run.in_processes import Submitted
    from isthmus.programs.reading.token_progress import MakingProgress


_READ_BYTES_MAX: Final = 1 << 20


class Notice(NamedTuple):
    """A line for the user; `at`: seconds since the first inner step, None before it.

    `is_earlier`: it happened before the user began to look, and nothing says when; `is_urgent`: a user who asked for
    quiet is told, too.
    """

    at: float | None
    text: str
    tone: Tone
    is_earlier: bool = False
    is_urgent: bool = False


_BEGUN: Final = {
    "memory": "with all that life {former} had after step {step}, from its machine's memory",
    "copy": "with its moments after step {step} of life {former}, from the copy that this left",
    "snapshot": "as life {former} was at version {step}, from the snapshot",
    "peer": "with the moments of learner {former} after step {step}",
    "anew": "with moments that begin anew, and counters after {step} steps: its machine has no copy",
}


class NoticeFeed:
    """Follows one run. `now_ns` is the monotonic clock of the machine, on which the daemon's facts are as well.

    Of a run that is resumed now (`is_resumed`) what happened before is no news. It `tells_disks` that are full, unless
    its viewer shows them otherwise.
    """

    def __init__(
        self,
        folder: Path,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        is_resumed: bool = False,
        tells_disks: bool = True,
    ) -> None:
        self.absences = Absences()
        self.notices: list[Notice] = []
        self._folder, self._now_ns = folder, now_ns
        self._offset = 0
        self._submitted_ns: int | None = None
        self._zero: int | None = None
        self._waiting: Waiting | None = None
        self._is_data_shown = self._has_looked = False
        self._told_errors = set[tuple[str, ...]]()
        self._told = set[tuple[Any, ...]]()
        self._is_store_away = False
        self._tells_disks, self._full = tells_disks, FullNotes[FullDisk]()
        self._full_shown: dict[FullDisk, Notice] = {}
        self._cuts = CutFinder(hosts_of(folder))
        self._news_from = self._now() if is_resumed else None

    def update(self, status: Mapping[str, Any]) -> list[Notice]:
        """The notices since the last call."""
        # A daemon that has just taken over does not know the time of the first step yet.
        self._zero = status.get("zero", self._zero)
        facts = [*self._decided(), *self._works(status)]
        past = list[Notice]()
        new = [*self._sick(status), *self._damaged(status), *self._stored(status), *self._begun(status)]
        new += [] if self._news_from is not None else self._altered(status)  # The command that resumes has said it.
        if not self._has_looked:
            new = [notice._replace(at=None, is_earlier=True) for notice in new]
        self._has_looked = True
        new += self._changed(status)
        new += self._without_room(status) if self._tells_disks else ()
        for fact in facts:
            if isinstance(fact.what, RunCut):
                self.absences.add(fact)
                self.notices, past, new = ([*map(_of_former_lives, notices)] for notices in (self.notices, past, new))
                new.append(self._cut(fact, fact.what))
                continue
            self._waiting = self._waiting or waiting_of(self._folder)
            changed = self.absences.add(fact)  # Also what is remarked on: a home that leaves has a next one.
            remarked = remark(fact, self._waiting)
            if remarked is not None and remarked.topic == "data" and self._is_data_shown:
                continue  # They all have the same batch().
            if remarked is not None:
                self._is_data_shown |= remarked.topic == "data"
                notice = Notice(self._since(fact.at), remarked.text, remarked.tone, is_urgent=is_urgent(fact))
                (new if self._is_news(fact) else past).append(notice)
                continue
            # Hosts that end with the run are silent, because they are writing their files.
            if changed is None or (changed.kind == "silent" and status.get("phase") == "done"):
                continue
            text = self._sentence(changed, fact)
            if text:
                # A silence is detected some time after it began.
                at = changed.begun if changed.kind == "silent" and changed.ended is None else fact.at
                (new if self._is_news(fact) else past).append(Notice(self._since(at), text, _tone(changed)))
        self.notices += [*past, *new]
        return new

    def _is_news(self, fact: Fact) -> bool:
        """Whether a fact is of this life of the run, if the feed follows a resume."""
        return self._news_from is None or fact.at >= self._news_from

    def _cut(self, fact: Fact, cut: RunCut) -> Notice:
        """The notice that the run was cut off, at the last time that its files know before that was found."""
        return Notice(last_record(self._folder, self._since(fact.at)), cut_words(len(cut.lives)), "bad")

    def _sentence(self, changed: Absence, fact: Fact) -> str:
        """The text for a change of an absence; '' for a restart alone, which the state of the host shows."""
        if changed.is_cut:  # The cut is told once; what follows it is the start.
            return ""
        if changed.ended is not None and (returned := back(changed)):
            return returned
        if isinstance(fact.what, Restarted) and changed.ended is None:
            return ""
        if changed.error is not None and changed.error.is_refusal:  # The run fails by it, which is told at its end.
            return ""
        return away(changed, self._waiting, is_known=_is_known(changed, self._told_errors))

    def _is_untold(self, *what: Any) -> bool:
        """Whether something was not asked about before."""
        is_untold = what not in self._told
        self._told.add(what)
        return is_untold

    def _sick(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The learners whose loss was not finite since the last call, each life and step once."""
        for slot, report in status.get("learners", {}).items():
            step = report.get("sick_step", 0)
            if step and self._is_untold("sick", int(slot), report["incarnation"], step):
                anew = "its moments begin anew, its counters do not"
                text = f"learner {slot}: loss not finite at step {step}, goes on from the global model; {anew}"
                yield Notice(status.get("time"), text, "bad")

    def _changed(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The settings that followed the links since the last call, each change once."""
        for row in status.get("changes", {}).get("last", ()):
            if self._is_untold("changed", row["shard"], row["epoch"], row["number"]):
                change = ChangeRecord(**{**row, "time": row["time"] or 0.0})
                yield Notice(row["time"], sentence(change), "good" if is_better(change) else "odd")

    def _altered(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """What was not as before at the resumes of the run, each once."""
        for each in alterations.read_all(status):
            if self._is_untold("altered", each.time, each.tokens, each.outer_steps):
                yield Notice(each.time, f"goes on with changes {alterations.headline(each)}", "odd")

    def _damaged(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The snapshots that a recorder could not read, each once."""
        for fault in status.get("snapshots", {}).get("faults", ()):
            if self._is_untold("damaged", fault):
                yield Notice(None, f"a snapshot is {snapshot_lines([fault])[0]}", "bad")

    def _begun(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """The source of the state with which later lives of learners continue, each once; and who leaves none."""
        for slot, report in status.get("learners", {}).items():
            began, life = report.get("began"), report.get("incarnation", 1)
            if (lacks := report.get("lacks_memory")) and self._is_untold("memory", int(slot)):
                text = f"learner {slot} leaves no copies in its machine's memory, which lacks {size(lacks)} for them"
                cost = "a process that is killed loses what it trained since its last answers"
                yield Notice(status.get("time"), f"{text}: {cost}", "odd")
            if began and self._is_untold("begun", int(slot), life, began[0]):
                kind, former, step = began
                source = _BEGUN[kind].format(former=former, step=step)
                yield Notice(status.get("time"), f"learner {slot} goes on as life {life} {source}", "good")

    def _stored(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """Notices of a store that stops taking snapshots, or takes them again."""
        store = status.get("snapshots", {}).get("store")
        line = store_line(store)
        if line and not self._is_store_away:
            yield Notice(status.get("time"), f"{line}; training goes on, and it is tried again", "bad")
        elif store and not line and self._is_store_away:
            yield Notice(status.get("time"), f"snapshots reach {store['url']} again", "good")
        self._is_store_away = bool(line) if store else self._is_store_away

    def _without_room(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """Notices of full disks, once a minute each, of which the newest stays; and of those that take writes again."""
        news = self._full.update(full_disks(status), self._now_ns() / 1e9)
        for place in (*news.full, *news.again):
            is_full = place in news.full
            text = no_room(place, status) if is_full else f"the disk at {place} has room again"
            before = self._full_shown.pop(place, None)
            if before is not None and is_full:
                self.notices = [notice for notice in self.notices if notice is not before]
            notice = Notice(status.get("time"), text, "bad" if is_full else "good")
            if is_full:
                self._full_shown[place] = notice
            yield notice

    def _since(self, at: float) -> float | None:
        """A time of the run as one since the first inner step; None before it."""
        return None if self._zero is None or at < self._zero / 1e9 else at - self._zero / 1e9

    def _now(self) -> float | None:
        """Seconds since the submission; None if it is unknown."""
        submitted = self._submitted()
        return None if submitted is None else (self._now_ns() - submitted) / 1e9

    def _decided(self) -> list[Fact]:
        """The facts that are known to be a cut of the run, or none, since the last call."""
        facts = [each for fact in self._written() for each in self._cuts.add(fact)]
        now = self._now()
        return facts if now is None else [*facts, *self._cuts.due(now)]

    def _written(self) -> Iterator[Fact]:
        """The facts that the daemon has written since the last call; times count from the run's submission."""
        submitted = self._submitted()
        if submitted is None:
            return
        try:
            with open_regular(self._folder / "events.jsonl") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES_MAX)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        if has_gone_on(whole):  # Perhaps while this feed looked.
            self._submitted_ns = submitted_ns(self._folder, [])
        yield from filter(None, facts_in(whole, self._submitted() or submitted))

    def _works(self, status: Mapping[str, Any]) -> Iterator[Fact]:
        """The hosts that are seen to work."""
        now = self._now()
        if now is None:
            return
        epochs = {int(shard): epoch for shard, epoch in status.get("epochs", {}).items()}
        for host in status.get("hosts", ()):
            if host["phase"] not in WORKING or self.absences.open_of(host["name"]) is None:
                continue
            # A syncer serves as soon as it is up, but works only once it merges under its own epoch.
            if host["role"] != "syncer" or epochs.get(int(host["name"].rpartition("/")[2]), 0) >= host["incarnation"]:
                yield Fact(now, host["name"], host["incarnation"], Works())

    def _submitted(self) -> int | None:
        """The instant of the machine's clock from which the times of the run count."""
        if self._submitted_ns is None:
            self._submitted_ns = submitted_ns(self._folder, [])
        return self._submitted_ns


def notices_of(absences: Iterable[Absence], waiting: Waiting | None) -> list[Notice]:
    """The notices of absences whose times count from the first inner step, in order; a cut of the run is one."""
    rows, errors = list[tuple[float, str, Tone]](), set[tuple[str, ...]]()
    every = list(absences)
    cuts = Counter(absence.begun for absence in every if absence.is_cut)
    rows += [(begun, cut_words(hosts), "bad") for begun, hosts in cuts.items()]
    for absence in every:
        if absence.is_cut:
            continue
        gone = replace(absence, ended=None) if absence.kind != "replaced" else absence
        rows.append((absence.begun, away(absence, waiting, is_known=_is_known(absence, errors)), _tone(gone)))
        if absence.ended is not None and back(absence):
            rows.append((absence.ended, back(absence), _tone(absence)))
    return [Notice(at if at >= 0 else None, text, tone) for at, text, tone in sorted(rows)]


def _of_former_lives(notice: Notice) -> Notice:
    """A notice from before a cut of the run: what has no time is earlier, and not of the start that follows."""
    return notice._replace(is_earlier=True) if notice.at is None else notice


def newest(notices: Sequence[Notice], count: int) -> Sequence[Notice]:
    """The last `count` of them."""
    return notices[-count:] if count > 0 else []


def _tone(changed: Absence) -> Tone:
    if changed.kind == "replaced" or (changed.kind == "silent" and changed.ended is None):
        return "odd"
    return "bad" if changed.ended is None else "good"


def _is_known(absence: Absence, errors: set[tuple[str, ...]]) -> bool:
    """Whether the error behind an absence is among these; it is from now on."""
    if absence.error is None:
        return False
    is_known = absence.error.mistake in errors
    errors.add(absence.error.mistake)
    return is_known


LINE_SECONDS: Final = 5.0
"""Interval of lines if the output is no terminal."""
WAITING_SECONDS: Final = 60.0
"""The same while a run that is over waits for scripts."""
NOTICES_SHOWN: Final = 6
_BAR_WIDTHS: Final = (4, 24)
_STYLES: Final = {"bad": "red", "odd": "yellow", "good": "green"}


class View(ABC):
    """A display of a run, on a console."""

    def __init__(self, figures: FigureWords, console: Console) -> None:
        self._figures, self._console = figures, console

    def update(self, status: dict[str, Any]) -> None:  # noqa: B027 (a view may show the end alone)
        """Show the newest status."""

    @abstractmethod
    def close(self, summary: dict[str, Any]) -> None:
        """Show how the run ended."""

    def _ending(self, summary: dict[str, Any]) -> list[tuple[str, str]]:
        """The rows about that, but for the reason of a failure: the command's last line is about it."""
        return [row for row in self._figures.ending(summary) if row[0] != "error"]

    def end(self) -> None:  # noqa: B027 (most hold none)
        """Restore the terminal, whatever happened. Idempotent."""


@contextmanager
def watching(
    request: Request | Submitted, *, quiet: bool, is_resumed: bool = False, console: Console | None = None
) -> Iterator[View]:
    """A view of the request's run, which may be one that is resumed, on standard output, or on `console`."""
    console = console or Screen()
    news = NoticeFeed(request.run_dir, is_resumed=is_resumed)
    figures = FigureWords(request)
    view: View
    if quiet:
        view = LastLine(figures, news, console)
    elif console.is_terminal:
        view = LiveTable(figures, news, console)
    else:
        view = LineView(figures, news, console)
    try:
        yield view
    finally:
        view.end()


@contextmanager
def preparing(*, quiet: bool, console: Console | None = None) -> Iterator[None]:
    """Show that a run is being prepared, and how far its data are: on a terminal, a line that is erased at the end.

    There is no spinner, because that needs a thread, and preparing forks.
    """
    console = console or Screen()
    if quiet or not console.is_terminal:
        yield
        return

    def show(words: str) -> None:
        console.file.write(_ERASED)
        console.print(Text(f"preparing: {words}"), end="", no_wrap=True, overflow="ellipsis", crop=True)
        console.file.flush()

    def show_progress(progress: MakingProgress) -> None:
        from isthmus.programs.engine.results.data_words import progress_words  # NumPy: a status is read without it.

        show(progress_words(progress))

    try:
        show("the request is read, the task is run on shapes")
        with listening(show_progress):
            yield
    finally:
        console.file.write(_ERASED)
        console.file.flush()


_ERASED: Final = "\r\x1b[2K"


def announce(chosen: Mapping[str, Any], warnings: Iterable[Fault], data: Iterable[str], *, quiet: bool) -> None:
    """Print the settings that were chosen for a run that is about to start, and the lines on its data, unless `quiet`,
    and on standard error the warnings of its request."""
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in chosen.items()}
    values = ", ".join(f"{name} {value}" for name, value in said.items())
    _print(f"chosen for this run: {values}" if chosen else "", quiet=quiet)
    for line in data:
        _print(printable(line), quiet=quiet)
    _warn(warnings)


def _warn(warnings: Iterable[Fault]) -> None:
    for warning in warnings:
        sys.stderr.write(f"isthmus: warning: {printable(str(warning))}\n")
    sys.stderr.flush()


def announce_resumption(submitted: Submitted, *, quiet: bool) -> None:
    """Print from which snapshot a run goes on, what is undone, and what is not as before, unless `quiet`, and on
    standard error warnings."""
    if submitted.resumption is not None:
        _print(resumption_words(submitted.resumption), quiet=quiet)
    for line in submitted.altered:
        _print(f"changed: {line}", quiet=quiet)
    _warn(submitted.warnings)


def _print(text: str, *, quiet: bool) -> None:
    if text and not quiet:
        with suppress(BrokenPipeError):  # The view of the run finds it again.
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


@final
class LiveTable(View):
    """A terminal: a progress bar, the figures of the run, a row for each learner, and recent notices."""

    def __init__(
        self, figures: FigureWords, news: NoticeFeed, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(figures, console)
        self._news, self._now, self._began = news, now, now()
        self._status: dict[str, Any] = {}
        self._losses: dict[int, float] = {}
        self._speed = ("", "")
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def update(self, status: dict[str, Any]) -> None:
        learners: Mapping[int, Mapping[str, Any]] = status.get("learners", {})
        reported = {slot: self._reported(slot, learner) for slot, learner in learners.items()}
        self._status = {**status, "learners": reported}
        self._news.update(status)
        self._speed = self._figures.speed(status)
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def close(self, summary: dict[str, Any]) -> None:
        """Keep the last table, and write the end of the run below it."""
        self.end()
        self._console.print(facts(self._ending(summary)))

    def end(self) -> None:
        """Give the terminal back."""
        if self._live.is_started:
            self._live.stop()

    def _reported(self, slot: int, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """A learner's report; the last one of a run, which stays on the screen, may lack the newest loss."""
        if numbers.is_known(report.get("loss")):
            self._losses[slot] = report["loss"]
        elif report.get("phase") == "final" and not report.get("sick"):
            return {**report, "loss": self._losses.get(slot)}
        return report

    def _render(self) -> Group:
        figures, status = self._figures, self._status
        width, height = self._console.width, self._console.height
        since = f" ({self._now() - self._began:.0f} s)" if is_starting(status) else ""
        words = f"  {figures.phase(status)}{since}  "
        head = Text.assemble((figures.program, "bold"), words, (figures.folder, "dim"))
        learners = learners_table(status, width)
        shown = [run_table(figures, status, width)] if any(figures.shown(status)) else []
        parts: list[RenderableType] = [head, self._progress(width), *shown, Text(""), learners]
        names = [*dict(figures.shown(status)), *(str(column.header) for column in learners.columns)]
        # Before the first merge there is nothing that it could explain.
        meanings = legend(names if status.get("outer_steps") else (), width)
        parts += [meanings] if meanings else []
        room = height - learners.row_count - 10 - bool(meanings)
        notices = newest(self._news.notices, min(NOTICES_SHOWN, room))
        if notices:
            parts += [Text(""), notices_table(notices)]
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
class LineView(View):
    """No terminal: a line when something begins or happens to a host, and one every few seconds."""

    def __init__(
        self, figures: FigureWords, news: NoticeFeed, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(figures, console)
        self._news, self._now = news, now
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
        is_waiting = bool(status.get("awaited"))
        if stage == self._stage and now - self._written_at < (WAITING_SECONDS if is_waiting else LINE_SECONDS):
            return
        self._stage, self._written_at = stage, now
        words = [self._figures.phase(status)]
        if status.get("tokens") and not is_waiting and not is_starting(status):
            words.append(numbers.progress(self._figures.share(status)))
            words.append(self._figures.tokens(status))
            losses = [learner.get("loss") for learner in status.get("learners", {}).values()]
            finite = [value for value in losses if numbers.is_known(value)]
            words += [speed, left, f"loss {numbers.decimal(sum(finite) / len(finite))}" if finite else ""]
            words += [self._figures.evaluation(status), self._figures.merging(status)]
        _write(self._console, ", ".join(filter(None, words)))

    def close(self, summary: dict[str, Any]) -> None:
        for word, text in self._ending(summary):
            _write(self._console, f"{word:<10} {text}")


@final
class LastLine(View):
    """Quiet: how the run ended, in one line; and, on standard error, what a script's user has to know before."""

    def __init__(self, figures: FigureWords, news: NoticeFeed, console: Console) -> None:
        super().__init__(figures, console)
        self._news = news

    def update(self, status: dict[str, Any]) -> None:
        """Say that a script makes no step, is about to be ended, or goes on after the end."""
        for notice in self._news.update(status):
            if notice.is_urgent:
                sys.stderr.write(f"isthmus: {_when(notice)}{printable(notice.text)}\n")
                sys.stderr.flush()

    def close(self, summary: dict[str, Any]) -> None:
        losses = evaluated(summary)
        figures = [f"{printable(name)} {value}" for name, value in final_figures(summary)]
        found = [
            f"eval loss {losses}" if losses else "",
            *figures,
            printable(without_figures(summary)),
            not_finite(summary),
            self._figures.folder,
        ]
        _write(self._console, ", ".join([f"{self._figures.program} {summary['outcome']}", *filter(None, found)]))


def run_table(figures: FigureWords, status: Mapping[str, Any], width: int) -> RenderableType:
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
        table.add_row(Text(_time(notice), style="dim"), Text(printable(notice.text), style=_STYLES[notice.tone]))
    return table


def facts(rows: Any) -> Table:
    """Keywords and texts in two columns."""
    table = Table.grid(padding=(0, 2))
    for word, text in rows:
        table.add_row(Text(word, style="bold"), Text(printable(text), overflow="fold"))
    return table


def _time(notice: Notice) -> str:
    if notice.at is None:
        return "earlier" if notice.is_earlier else "start"
    return f"{notice.at:.1f} s"


def _when(notice: Notice) -> str:
    if notice.at is None:
        return "earlier: " if notice.is_earlier else ""
    return f"at {notice.at:.1f} s "


def _write(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)
    console.file.flush()
