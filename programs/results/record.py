"""The contents of a run folder, as data: the source of the report.

`results.reading` fills it in. A run may have ended early, be running still, or be of a program without merges, so
everything may be empty; `problems` lists in words what was missing or unreadable. Numbers that are not finite are None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.programs.results.absences import Absence
from isthmus.programs.results.remarks import Remark
from isthmus.programs.results.timeline import Timeline
from isthmus.programs.results.who_waits import Waiting, waiting_in

LOSS: Final = "loss"
STAMP: Final = re.compile(r"-(\d{8}-\d{6})(?:-\d+)?$")
"""End of a run folder's default name: the start of the run, and a number if that was taken."""


class Report(msgspec.Struct, frozen=True):
    """A learner's report: one line of metrics.jsonl."""

    time: float = 0.0
    learner: int = 0
    incarnation: int = 1
    phase: str = ""
    step: float = 0.0
    tokens: float = 0.0
    loss: float | None = None
    staleness: float | None = None
    bytes_sent: float = 0.0
    bytes_received: float = 0.0
    sick: bool = False
    metrics: dict[str, float | None] = {}

    def of(self, metric: str) -> float | None:
        """The loss, or another scalar; None if not reported."""
        return self.loss if metric == LOSS else self.metrics.get(metric)


class Evaluation(msgspec.Struct, frozen=True):
    """The global model on held-out data: one line of evaluations.jsonl."""

    time: float = 0.0
    tokens: float = 0.0
    eval_loss: float | None = None
    kind: str = "during"
    metrics: dict[str, float | None] = {}

    def of(self, metric: str) -> float | None:
        """The loss, or another scalar; None if not reported."""
        return self.eval_loss if metric == LOSS else self.metrics.get(metric)


class MergeRecord(msgspec.Struct, frozen=True):
    """One round of a fragment, as it closed: one line of merges.jsonl."""

    time: float = 0.0
    fragment: int = 0
    round: int = 0
    kind: str = "merge"
    version: list[int] | None = None
    voters: list[int] = []
    weights: list[float | None] = []
    left_out: list[int] = []
    refused: list[list[Any]] = []
    reason: str = ""
    quorum_ms: float | None = None
    grace_ms_used: float | None = None
    norm: float | None = None

    @property
    def duration(self) -> float:
        """Seconds from the opening of the round to its close; 0 if not recorded."""
        return sum(part for part in (self.quorum_ms, self.grace_ms_used) if part is not None) / 1e3


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run folder in memory. `parameters` counts the numbers of the final model, None if there is no snapshot.

    `absences` are those of hosts that were processes (`is_apart`), in the order in which they began; their times count
    from the submission of the run unless `is_placed`. `remarks` are other notable facts, on the same clock.
    """

    folder: Path
    summary: Mapping[str, Any]
    configuration_text: str
    configuration: Mapping[str, Any]
    graph: Mapping[str, Any]
    reports: list[Report]
    evaluations: list[Evaluation]
    merges: list[MergeRecord]
    timeline: Timeline | None
    parameters: int | None
    begun_at: datetime | None
    problems: list[str] = field(default_factory=list)
    absences: tuple[Absence, ...] = ()
    remarks: tuple[Remark, ...] = ()
    is_apart: bool = False
    is_placed: bool = True

    @property
    def shards(self) -> int:
        """The number of syncer shards, 1 without any; fragment p belongs to shard p modulo this number."""
        return max(1, int(self.number("syncer_shards") or 1))

    def number(self, name: str) -> float | None:
        """A figure of summary.json; None if it is missing or no finite number."""
        return as_number(self.summary.get(name))

    def text(self, name: str) -> str:
        """A text of summary.json; empty if it is missing."""
        value = self.summary.get(name)
        return value if isinstance(value, str) else ""

    def setting(self, section: str, name: str) -> Any:
        """A key of config.toml; None if it is missing."""
        values = self.configuration.get(section)
        return values.get(name) if isinstance(values, Mapping) else None

    @property
    def waiting(self) -> Waiting | None:
        """The effect of absent hosts on learners, by the graph; None if there is no graph."""
        return waiting_in(self.graph)

    @property
    def program(self) -> str:
        """The name of the program, from the first place that has it."""
        graph = self.graph.get("program")
        return self.text("program") or (graph if isinstance(graph, str) else "") or STAMP.sub("", self.folder.name)

    @property
    def learners_count(self) -> int:
        """The number of learners: requested and joined ones."""
        return max(int(self.number("learners") or 0), len(self.learners))

    @property
    def learners(self) -> list[int]:
        """The slots that were used, in order."""
        slots = {report.learner for report in self.reports}
        slots |= {int(row["learner"]) for row in self.per_learner}
        return sorted(slots)

    @property
    def metrics(self) -> list[str]:
        """The names of the scalars beside the loss, in order of appearance."""
        items: list[Evaluation | Report] = [*self.evaluations, *self.reports]
        return list(dict.fromkeys(name for item in items for name in item.metrics))

    @property
    def per_learner(self) -> list[Mapping[str, Any]]:
        """The rows of summary.json about one learner each."""
        rows = self.summary.get("per_learner")
        known = rows if isinstance(rows, list) else []
        return [row for row in known if isinstance(row, dict) and as_number(row.get("learner")) is not None]

    @property
    def wall_seconds(self) -> float:
        """The duration of the run, so far if it is not over."""
        known = self.number("wall_seconds")
        if known is not None:
            return known
        last = [items[-1].time for items in (self.reports, self.evaluations, self.merges) if items]
        return max(last, default=0.0)


def as_number(value: object) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None
