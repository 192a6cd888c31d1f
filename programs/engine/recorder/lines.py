"""The files of lines of a run folder, as a recorder writes them.

Decides when a line may be written, how often a learner's metrics become a line, and
what is added to a report that a body has not filled in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast, final

from msgspec.structs import replace

from isthmus.ops.exchange.messages import StepReport
from isthmus.programs.engine.results.lines import KINDS, Line, ReportLine, fields_of, metrics_of, name_of, records
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import Lines

_L = TypeVar("_L", bound=Line)
TAIL_BYTES: Final = 4 << 20
"""Read from the end of each file of lines if there is a state: more than a second ever adds, and more than the lines of
the MERGES_KEPT merges that a shard sends again."""


def recorded(folder: Path, disk: Disk, kind: type[_L], *, is_tail: bool = False, former: str = "") -> Iterator[_L]:
    """The valid lines of a kind in a run folder, or in the last TAIL_BYTES of their file; none if there is no file.

    `former` is the end of the name of the file that it was rotated to. OSError if the disk cannot be read.
    """
    try:
        data = disk.read(folder / f"{name_of(kind)}.jsonl{former}")
    except FileNotFoundError:
        return
    yield from filter(None, records(data[-TAIL_BYTES:] if is_tail else data, kind))


class RecordLines:
    """The lines of one recorder. `early` are those that wait, each with its instant.

    Times count from the first inner step of any learner, so lines that come before it wait for it. A recorder that ends
    while it writes them leaves some in the files, and all of them to the next one, which writes those that are missing.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.early: list[tuple[int, Line]] = []
        self._folder, self._disk = folder, disk
        self._files = {name: Lines(folder / f"{name}.jsonl", disk) for name in map(name_of, KINDS)}
        self._zero: int | None = None
        self._is_closed = False

    @property
    def has_begun(self) -> bool:
        """Whether lines are written on arrival."""
        return self._zero is not None

    def recall(self, early: Sequence[tuple[int, Line]]) -> None:
        """Take over lines that waited in an earlier life and are not written yet; OSError if the disk cannot be read.

        Lines are compared without their times, which count from a first step that this life may not know.
        """
        kinds = KINDS if early else ()
        written = [replace(line, time=0.0) for kind in kinds for line in recorded(self._folder, self._disk, kind)]
        self.early = []
        for at, line in early:
            if line in written:
                written.remove(line)
            else:
                self.early.append((at, line))

    def write(self, at: int, line: Line) -> None:
        """Add a line to its file, now or after the first step."""
        if self._zero is None:
            self.early.append((at, replace(line, time=0.0)))
        else:
            self._append(at, line, self._zero)

    def begin(self, zero: int) -> None:
        """Set `zero`, the time of the first step: writes the waiting lines; later ones need not wait."""
        self._zero = zero
        self.give_up_waiting(zero)

    def give_up_waiting(self, zero: int) -> None:
        """Write waiting lines with times from `zero`, because a first step may never come."""
        for at, line in self.early:
            self._append(at, line, zero)
        self.early = []

    def flush(self) -> bool:
        """Try to write the lines that the disk has not taken; returns whether it has all."""
        waiting = [name for name, lines in self._files.items() if not self._is_closed and not lines.flush()]
        return not waiting

    def counts(self) -> dict[str, dict[str, Any]]:
        """Counts of the lines of each file by their fate, for a status."""
        return {name: lines.counts() for name, lines in self._files.items()}

    def close(self) -> None:
        """Close the files; lines that the disk does not take now are lost. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for lines in self._files.values():
                lines.close()

    def _append(self, at: int, line: Line, zero: int) -> None:
        self._files[name_of(type(line))].append({**fields_of(line), "time": round((at - zero) / 1e9, 6)})


METRIC_NS: Final = 200_000_000
"""A learner's lines are at least this far apart: a day of them is some tens of megabytes."""
_PLACE: Final = ("incarnation", "phase", "step", "tokens")
_TRAFFIC: Final = ("staleness", "bytes_sent", "bytes_received", "sick", "sick_step")


@final
class TokenMeans:
    """Token-weighted means of one slot's metrics since the last `take`; values that are not finite do not count."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, metrics: Iterable[Sequence[Any]], tokens: int) -> None:
        """Take [name, mean] of the steps in which these tokens were trained."""
        for name, mean in metrics:
            if tokens > 0 and math.isfinite(mean):
                total, weight = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + tokens * mean, weight + tokens

    def pop(self) -> dict[str, float]:
        """The means, by name; resets them."""
        means = {name: total / weight for name, (total, weight) in self._sums.items()}
        self._sums.clear()
        return means


@final
class MetricLines:
    """The lines of one recorder, which `lines` writes.

    The newest report of each slot, at most every METRIC_NS, with means over all reports meanwhile.
    """

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self._written_at: dict[int, int] = {}
        self._losses: dict[int, list[float]] = {}
        self._means: dict[int, TokenMeans] = {}
        self._withheld: dict[int, StepReport] = {}
        self._written_last: dict[int, tuple[Any, ...]] = {}
        self._begun: set[tuple[int, int, str]] = set()
        """Lives whose `began` is written."""

    def add_report(self, report: StepReport, last: Mapping[str, Any] | None, now: int) -> None:
        """Take the report that follows the `last` one of its slot; write it now, or withhold it for a while."""
        slot = report["slot"]
        if last is not None and last["incarnation"] < report["incarnation"]:
            self._write(slot, now)
        if _content_of(report) != self._written_last.get(slot):
            self._withheld[slot] = report
        if math.isfinite(report["loss"]):
            self._losses.setdefault(slot, []).append(report["loss"])
        is_same_life = last is not None and last["incarnation"] == report["incarnation"]
        before = last["tokens"] if last is not None and is_same_life else 0
        self._means.setdefault(slot, TokenMeans()).add(report["metrics"], report["tokens"] - before)
        is_new_phase = last is None or last["phase"] != report["phase"]
        if is_new_phase or now - self._written_at.get(slot, -METRIC_NS) >= METRIC_NS:
            self._write(slot, now)

    def write_all(self, now: int) -> None:
        """Write the withheld reports."""
        for slot in sorted(self._withheld):
            self._write(slot, now)

    def _write(self, slot: int, now: int) -> None:
        """Write the newest report of a slot, if it is withheld."""
        report = self._withheld.pop(slot, None)
        if report is None:
            return
        self._written_at[slot], self._written_last[slot] = now, _content_of(report)
        fields: Mapping[str, Any] = {**report}
        losses, began = self._losses.pop(slot, []), fields.get("began")
        is_told = began and (slot, fields["incarnation"], began[0]) in self._begun
        if began:
            self._begun.add((slot, fields["incarnation"], began[0]))
        line = ReportLine(
            learner=slot,
            **{name: fields[name] for name in (*_PLACE, *_TRAFFIC)},
            loss=sum(losses) / len(losses) if losses else None,
            began=None if is_told else began,
            metrics=metrics_of(self._means[slot].pop().items()),
            host_waits=[(what, count, round(took / 1e9, 6)) for what, count, took in fields.get("host_waits", ())],
        )
        self._lines.write(now, line)


def mean_of(lives: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The newest scalars of several lives of learners, by name, each weighted by the tokens of its life."""
    means = TokenMeans()
    for life in lives:
        means.add(life.get("metrics", {}).items(), life["tokens"])
    return means.pop()


def _content_of(report: StepReport) -> tuple[Any, ...]:
    """The fields that distinguish one line from another."""
    fields: Mapping[str, Any] = {**report}
    return tuple(fields[name] for name in _PLACE)


_UNTOLD: Final[Mapping[str, Any]] = {
    "phase": "stepping",
    "step": None,
    "step_time": 0,
    "delay_steps": 0,
    "loss": math.nan,
    "metrics": [],
    "staleness": None,
    "sick": False,
    "sick_step": 0,
    "bytes_sent": None,
    "bytes_received": None,
    "waited": None,
    "device_kind": None,
}
"""What a body need not report. None: it is not measured here, and nothing takes its place."""


class Reports:
    """Completes the reports that arrive at a recorder.

    A body has to report nothing but `tokens`, the tokens that this life of this replica has trained in all; anything
    else that is worth showing may stand beside it:

        {"tokens": 6400, "step": 100, "loss": 0.3, "phase": "stepping"}

    `phase` is "final" once the body has ended; `step` counts steps, `step_time` is nanoseconds.
    """

    def __init__(self) -> None:
        self._began: dict[Member, int] = {}

    def whole(self, items: Mapping[Any, Mapping[str, Any]], live: Iterable[Member], now: int) -> list[StepReport]:
        """The reports in `items`, by (replica, key), of replicas on themselves, in their order."""
        lives = {member.replica: member for member in live}
        reports = [self._whole(replica, each, lives, now) for (replica, _), each in sorted(items.items(), key=_place)]
        return [report for report in reports if report is not None]

    def _whole(
        self, replica: Replica, item: Mapping[str, Any], lives: Mapping[Replica, Member], now: int
    ) -> StepReport | None:
        """One completed report; None if it is about another slot, or its life is unknown."""
        if item.get("slot", replica.slot) != replica.slot or not ("incarnation" in item or replica in lives):
            return None
        member = Member(replica, item["incarnation"] if "incarnation" in item else lives[replica].incarnation)
        began = self._began.setdefault(member, now)
        tokens = item["tokens"]
        defaults = {
            **_UNTOLD,
            "slot": replica.slot,
            "incarnation": member.incarnation,
            "stepping": now - began,
            "totals": [[replica.slot, member.incarnation, tokens]],
        }
        lists: dict[str, list[Any]] = {"epochs": [], "accounts": [], "versions": [], "in_model": []}
        return cast(StepReport, {**defaults, **lists, **item})


def _place(entry: tuple[tuple[Replica, Any], Any]) -> tuple[Replica, str]:
    (replica, key), _ = entry
    return replica, str(key)
