"""One run, looked at again and again: its status as `isthmus status` has it, and what its files have grown by.

Decides what is kept of the lines. Files are read as far as they have grown. Reports of learners become coarser as their
number grows, as if the recorder had written them less often; of merges the last ones are kept, and the newest of each
fragment. So a look costs what is new, and memory is bounded, however long the run. The figures are those of its daemon,
of its summary, or, of a run that neither has, of the recorder's own books, into which the same lines are folded.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from msgspec.structs import replace

from isthmus.programs.engine.recorder.books import FILE, Books, load, read_into
from isthmus.programs.engine.results.absences import waiting_of
from isthmus.programs.engine.results.lines import (
    LOSS,
    ChangeRecord,
    EvaluationLine,
    GrowingFile,
    MergeRecord,
    ReportLine,
    finite,
)
from isthmus.programs.engine.results.reading import read_absences
from isthmus.programs.engine.results.record import RunRecord
from isthmus.programs.engine.results.run_files import DATA
from isthmus.programs.study.terminal.live import Notice, NoticeFeed, notices_of
from isthmus.programs.study.terminal.status import status_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import read_bytes, read_text

if TYPE_CHECKING:
    from isthmus.programs.engine.machine.client import DaemonClient

_T = TypeVar("_T", ReportLine, EvaluationLine, MergeRecord, ChangeRecord)

REPORTS_MAX: Final = 10_000
"""Reports of all learners that are kept: twice the places of a chart."""
EVALUATIONS_MAX: Final = 4_000
"""Evaluations that are kept; beyond them every other one is dropped, but for the newest."""
REPORTS_OF_LEARNER: Final = (40, 300)
"""The least and the most of one learner: a chart draws half as many."""


@final
class _Stretch:
    """Reports of one life in one phase that have become one."""

    __slots__ = ("_sums", "begun", "last")

    def __init__(self, line: ReportLine) -> None:
        self.begun, self.last = line.time, line
        self._sums: dict[str, tuple[float, int]] = {}
        """Of the loss and each metric the sum of its known values, and their number."""
        self.add(line)

    def takes(self, other: ReportLine, seconds: float) -> bool:
        """Whether a later report falls into it, if stretches last so long."""
        last = self.last
        return other.time - self.begun < seconds and (last.incarnation, last.phase) == (other.incarnation, other.phase)

    def add(self, line: ReportLine) -> None:
        """Take in a later report: what it has are means since the line before it."""
        self.last = line
        self._add(LOSS, line.loss, 1)
        for name, value in line.metrics.items():
            self._add(name, value, 1)

    def join(self, other: _Stretch) -> None:
        """Take in the stretch that follows it."""
        self.last = other.last
        for name, (total, count) in other._sums.items():
            self._add(name, total, count)

    @property
    def line(self) -> ReportLine:
        """The line that stands for all of them, with the last counters and the mean values."""
        means = {name: total / count for name, (total, count) in self._sums.items()}
        return replace(self.last, loss=means.pop(LOSS, None), metrics={**self.last.metrics, **means})

    def _add(self, name: str, total: float | None, count: int) -> None:
        if total is not None:
            before, number = self._sums.get(name, (0.0, 0))
            self._sums[name] = before + total, number + count


@final
class CoarseReports:
    """The reports of all learners: one for each stretch of time, which doubles whenever there would be too many."""

    def __init__(self) -> None:
        self._stretches: dict[int, list[_Stretch]] = {}
        self._seconds = 0.0
        self.newest: dict[int, ReportLine] = {}

    def add(self, line: ReportLine) -> None:
        """Take in a line, the newest of its learner."""
        before = self.newest.get(line.learner)
        # The last one of a life has none.
        self.newest[line.learner] = line if before is None or line.loss is not None else replace(line, loss=before.loss)
        kept = self._stretches.setdefault(line.learner, [])
        if kept and kept[-1].takes(line, self._seconds):
            kept[-1].add(line)
            return
        kept.append(_Stretch(line))
        least, most = REPORTS_OF_LEARNER
        if len(kept) > max(least, min(most, REPORTS_MAX // len(self._stretches))):
            span = max(each[-1].last.time - each[0].begun for each in self._stretches.values())
            self._seconds = max(2 * self._seconds, span / len(kept) * 2)
            for slot, stretches in self._stretches.items():
                self._stretches[slot] = self._joined(stretches)

    def _joined(self, stretches: Sequence[_Stretch]) -> list[_Stretch]:
        joined: list[_Stretch] = []
        for each in stretches:
            if joined and joined[-1].takes(each.last, self._seconds):
                joined[-1].join(each)
            else:
                joined.append(each)
        return joined

    def in_order(self) -> list[ReportLine]:
        """All of them, by time."""
        return sorted((each.line for kept in self._stretches.values() for each in kept), key=lambda line: line.time)


MERGES_MAX: Final = 400
"""Merges that are kept one by one."""


@final
class LastMerges:
    """The last merges of a run, the newest of each fragment, and who was left out how often."""

    def __init__(self) -> None:
        self.last: deque[MergeRecord] = deque(maxlen=MERGES_MAX)
        self.newest: dict[int, MergeRecord] = {}
        self.left_out = Counter[int]()
        self.refused = Counter[int]()
        self.count = 0

    def add(self, merge: MergeRecord) -> None:
        """Take in a line of merges.jsonl."""
        if merge.kind not in ("merge", "final") or merge.version is None:
            return  # Nothing was merged.
        merge = replace(merge, merged_tokens=[])  # A row for each learner, which the books have.
        self.last.append(merge)
        self.newest[merge.fragment] = merge
        self.left_out.update(merge.left_out)
        self.refused.update(slot for slot, _ in merge.refused)
        self.count += 1


@final
@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a run."""

    name: str
    status: Mapping[str, Any]
    """That of its daemon, or what holds its `summary`; without either its outcome is SILENT."""
    merges: LastMerges
    changes: Sequence[ChangeRecord]
    newest: Mapping[int, ReportLine]
    """The last report of each slot."""
    notices: Sequence[Notice]
    graph: Mapping[str, Any]
    """That of graph.json."""
    configuration: Mapping[str, Any]
    """That of config.toml."""
    data: Mapping[str, Any]
    """That of data.json."""
    at: float
    """The time of the look, in seconds of the looker's clock."""
    fault: str = ""
    """Why there is no status."""

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """The figures of a run that is over; None as long as it goes on."""
        return self.status.get("summary")

    @property
    def training(self) -> Mapping[str, Any]:
        """The recorder's figures, with the daemon's hosts beside them; of a run that is over there are none."""
        return {**(self.status.get("training") or {}), "hosts": self.status.get("hosts", ())}

    @property
    def program(self) -> str:
        """The name of the program; empty if it is unknown."""
        return str((self.summary or {}).get("program") or self.graph.get("program") or "")


UNREADABLE: Final = (OSError, ValueError, LookupError, RecursionError)
"""What reading a damaged file raises."""
SILENT: Final = "silent"
"""The outcome of a run that is not over, and of which no daemon answers."""


@final
class WatchedRun:
    """The run in `folder`; `home` is asked about a run whose folder is on another machine, and which has no files here.

    Of those its reports are taken from its statuses.
    """

    def __init__(self, folder: Path, home: DaemonClient | None = None) -> None:
        self.folder, self._home = folder, home
        self._files = _RunFiles(folder)
        self._feed = NoticeFeed(folder)
        self._over: tuple[Mapping[str, Any], Sequence[Notice]] | None = None
        self._over_place: object = None
        self._seen_tokens: dict[tuple[int, int], int] = {}
        self._seen_evaluations = 0

    def look(self, at: float) -> Look:
        """Look at it now, at the instant `at`, in seconds."""
        files, fault = self._files, ""
        files.read()
        try:
            status: Mapping[str, Any] = self._status()
        except (ConfigError, *UNREADABLE) as error:  # No daemon answers, or a summary is torn.
            fault = str(error)
            status = {"outcome": SILENT, "hosts": [], "training": files.figures()}
        if self._home is not None:
            self._note(status.get("training") or {})
        if "summary" in status:
            notices = self._of_over(status)
        else:
            self._feed.update({**(status.get("training") or {}), "hosts": status.get("hosts", ())})
            notices = self._feed.notices
        read = files.merges, files.changes, files.reports.newest
        written = files.graph, files.configuration, files.data
        return Look(self.folder.name, status, *read, notices, *written, at, fault)

    def record(self, look: Look) -> RunRecord:
        """What was read so far, as the charts of the report take it."""
        return self._files.record(look.summary or {})

    def _status(self) -> Mapping[str, Any]:
        """The status; that of a run that is over is read once."""
        place = place_of(self.folder / "summary.json")
        if self._over is not None and place == self._over_place:
            return self._over[0]
        self._over = None
        return status_of(self.folder, self._home)

    def _of_over(self, status: Mapping[str, Any]) -> Sequence[Notice]:
        if self._over is None:
            notices = () if self._home is not None else notices_of(read_absences(self.folder), waiting_of(self.folder))
            self._over, self._over_place = (status, notices), place_of(self.folder / "summary.json")
        return self._over[1]

    def _note(self, training: Mapping[str, Any]) -> None:
        """Note the reports and evaluations of a status as lines, as its recorder writes them where the folder is."""
        time = training.get("time", 0.0)
        for slot, report in training.get("learners", {}).items():
            life = int(slot), report["incarnation"]
            if report["tokens"] > self._seen_tokens.get(life, -1):
                self._seen_tokens[life] = report["tokens"]
                names = ("incarnation", "phase", "step", "tokens", "staleness", "bytes_sent", "bytes_received")
                fields = {name: report.get(name) for name in names}
                self._files.reports.add(ReportLine(time=time, learner=int(slot), loss=finite(report["loss"]), **fields))
        if (count := training.get("evaluations", 0)) > self._seen_evaluations:
            self._seen_evaluations = count
            scalars = training.get("eval_metrics", {})
            line = EvaluationLine(
                time=time, tokens=training["eval_tokens"], eval_loss=training["eval_loss"], metrics=dict(scalars)
            )
            self._files.add_evaluation(line)


def place_of(path: Path) -> object:
    """What tells one file from the next in its place; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@final
class _RunFiles:
    """The files of a run folder, as far as they were read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.reports, self.merges = CoarseReports(), LastMerges()
        self.evaluations: list[EvaluationLine] = []
        self.changes: list[ChangeRecord] = []
        self.graph: Mapping[str, Any] = {}
        self.configuration: Mapping[str, Any] = {}
        self.data: Mapping[str, Any] = {}
        self._data_place: object = None
        self._report_file = GrowingFile(folder, ReportLine)
        self._evaluation_file = GrowingFile(folder, EvaluationLine)
        self._merge_file = GrowingFile(folder, MergeRecord)
        self._change_file = GrowingFile(folder, ChangeRecord)
        self._books: Books | None = None
        self._state: object = None

    def read(self) -> None:
        """Read what is new in them."""
        for report in self._folded(self._report_file):
            self.reports.add(report)
        for merge in self._folded(self._merge_file):
            self.merges.add(merge)
        for evaluation in self._folded(self._evaluation_file):
            self.add_evaluation(evaluation)
        self.changes += self._folded(self._change_file)
        if not self.graph:
            with suppress(*UNREADABLE):
                graph = json.loads(read_bytes(self._folder / "graph.json"))
                self.graph = graph if isinstance(graph, dict) else {}
        if not self.configuration:
            with suppress(*UNREADABLE):
                self.configuration = tomllib.loads(read_text(self._folder / "config.toml"))
        if (place := place_of(self._folder / DATA)) != self._data_place:  # A run that goes on writes it again.
            self._data_place = place
            with suppress(*UNREADABLE):
                data = json.loads(read_bytes(self._folder / DATA))
                self.data = data if isinstance(data, dict) else {}

    def add_evaluation(self, line: EvaluationLine) -> None:
        """Take in an evaluation."""
        self.evaluations.append(line)
        if len(self.evaluations) > EVALUATIONS_MAX:
            self.evaluations = [*self.evaluations[:-1:2], line]

    def _folded(self, file: GrowingFile[_T]) -> Iterator[_T]:
        """The new lines of a file, which are folded into the books, too, where these are needed."""
        for line in file.read():
            if self._books is not None:
                self._books.accept(line, 0)
            yield line

    def figures(self) -> dict[str, Any]:
        """The figures of the recorder's books, for a run of which no daemon answers."""
        place = place_of(self._folder / FILE)
        time = max((line.time for line in self.reports.newest.values()), default=0.0)
        try:
            if self._books is None:
                books = Books(sizes=())
                read_into(books, self._folder, DISK, 0)
                self._books = books
            elif place != self._state and (memory := load(self._folder, DISK)) is not None:
                self._books.recall(memory)
            self._state = place
            run = self.configuration.get("run", {})
            figures = self._books.figures(int(run.get("learners", 0)))
            return {**figures, "time": time, "phase": "training", "tokens_budget": run.get("tokens", 0)}
        except (*UNREADABLE, TypeError, AttributeError, ArithmeticError):  # Nothing was recorded, or it is damaged.
            return {"time": time}

    def record(self, summary: Mapping[str, Any]) -> RunRecord:
        """What was read, as the charts of the report take it."""
        return RunRecord(
            folder=self._folder,
            summary=summary,
            configuration_text="",
            configuration=self.configuration,
            graph=self.graph,
            reports=self.reports.in_order(),
            evaluations=self.evaluations,
            merges=list(self.merges.last),
            timeline=None,
            parameters=None,
            begun_at=None,
        )


def runs_below(folder: Path) -> dict[str, Path]:
    """The run folders in a folder, by name, the newest last; links are left out."""
    found: list[tuple[float, str, Path]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    began = (Path(entry.path) / "config.toml").stat().st_mtime
                    found.append((began, entry.name, Path(entry.path)))
    return {name: path for _, name, path in sorted(found)}
