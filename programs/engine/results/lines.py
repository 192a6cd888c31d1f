"""The lines of a run folder: a record for each file of them, by which it is written, folded and read.

Decides which fields a line has, and which of them may be missing; and what is read of a file in any state. Every file
of lines is here, so that writer and readers cannot differ; nothing is summed up, and no sentence is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeAlias, TypeVar, final

import msgspec

from isthmus.ops.exchange.requested import RequestedSettings
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.system.files import read_bytes

if TYPE_CHECKING:
    from isthmus.ops.exchange.messages import Change, Evaluated, Merging

LOSS: Final = "loss"
Pair: TypeAlias = Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]
_WHERE_THERE_ARE_ANY: Final = (
    "began",
    "metrics",
    "host_waits",
    "asked",
    "clipped",
    "figures",
    "better",
    "figures_fault",
)
"""Fields that a line has only if they have something to say."""


class ReportLine(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """A learner's report: one line of metrics.jsonl.

    `host_waits`: [what, how often, seconds] that its host has waited for on its device, in this life.
    """

    time: float = 0.0
    learner: int = 0
    incarnation: int = 1
    phase: str = ""
    step: int | None = None
    tokens: int = 0
    loss: float | None = None
    began: list[Any] | None = None
    metrics: dict[str, float | None] = {}
    host_waits: list[tuple[str, int, float]] = []
    staleness: int | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    sick: bool = False
    sick_step: int = 0

    def of(self, metric: str) -> float | None:
        """The loss, or another scalar; None if not reported."""
        return self.loss if metric == LOSS else self.metrics.get(metric)


class EvaluationLine(msgspec.Struct, frozen=True, kw_only=True, tag="evaluations"):
    """The global model on held-out data: one line of evaluations.jsonl.

    `windows` of `windows_there` were evaluated, where the task has such; the loss has a standard error of
    `eval_loss_error`. It took `seconds`, for `queued_seconds` of which its thread waited for a core. `figures` are
    those of the final model by name, `better` says which way is better, and `figures_fault` why some lack.
    """

    time: float = 0.0
    tokens: int = 0
    eval_loss: float | None = None
    eval_loss_error: float | None = None
    windows: int | None = None
    windows_there: int | None = None
    kind: str = "during"
    metrics: dict[str, float | None] = {}
    seconds: float | None = None
    queued_seconds: float | None = None
    figures: dict[str, float | None] = {}
    better: dict[str, str] = {}
    figures_fault: dict[str, str] | None = None

    @classmethod
    def made_of(cls, evaluated: Evaluated) -> EvaluationLine:
        """The line of an evaluation, without its time."""
        loss, metrics = finite(evaluated["loss"]), metrics_of(evaluated.get("metrics", ()))
        fault = evaluated.get("figures_fault")
        error, (windows, there, *_) = evaluated.get("error"), evaluated.get("extract") or (None, None)
        return cls(
            tokens=evaluated["tokens"],
            eval_loss=loss,
            eval_loss_error=None if error is None else finite(error),
            windows=windows,
            windows_there=there,
            kind=evaluated["kind"],
            metrics=metrics,
            seconds=round(evaluated["took"] / 1e9, 6) if "took" in evaluated else None,
            queued_seconds=round(evaluated["queued"] / 1e9, 6) if "queued" in evaluated else None,
            figures=metrics_of(evaluated.get("figures", ())),
            better=dict(evaluated.get("better", ())),
            figures_fault=None if fault is None else {"kind": fault["kind"], "detail": fault["detail"]},
        )

    def of(self, metric: str) -> float | None:
        """The loss, or another scalar; None if not reported."""
        return self.eval_loss if metric == LOSS else self.metrics.get(metric)


class MergeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="merges"):
    """One round of a fragment, as it closed: one line of merges.jsonl.

    The fields are those of `ops.exchange.messages.Merging`, and the durations between its instants.
    """

    time: float = 0.0
    shard: int = 0
    epoch: int = 1
    fragment: int
    round: int
    kind: str
    version: Pair | None = None
    origin: Pair | None = None
    momentum: Pair | None = None
    voters: list[int] = []
    weights: list[float | None] = []
    left_out: list[int] = []
    refused: list[tuple[int, str]] = []
    reason: str = ""
    merges: int = 0
    votes: int = 0
    merged_tokens: list[list[int]] = []
    shortened: list[tuple[int, float]] = []
    clipped: list[tuple[int, float]] = []
    opposed: list[tuple[int, int]] = []
    agreement: list[tuple[int, float]] = []
    capped: list[tuple[str, float, float]] = []
    quorum_ms: float | None = None
    grace_ms_used: float | None = None
    merge_ms: float | None = None
    asked: RequestedSettings | None = None

    @classmethod
    def made_of(cls, merging: Merging) -> MergeRecord:
        """The line of a merge, without its time."""
        took: dict[str, Any] = {
            "quorum_ms": (merging["quorum_at"] - merging["opened_at"]) / 1e6,
            "grace_ms_used": (merging["closed_at"] - merging["quorum_at"]) / 1e6,
            "merge_ms": (merging["published_at"] - merging["closed_at"]) / 1e6,
        }
        return cls(**_own(cls, merging), **took)

    @property
    def duration(self) -> float:
        """Seconds from the opening of the round to its close; 0 if not recorded."""
        return sum(part for part in (self.quorum_ms, self.grace_ms_used) if part is not None) / 1e3


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="changes"):
    """A setting that a shard changed by its links, or a learner whose pace changed: one line of changes.jsonl.

    The fields are those of `ops.exchange.messages.Change`; `time` is in seconds since the first step, 0 before it;
    `role` is that of the shard where it is one of a region.
    """

    time: float = 0.0
    shard: int = 0
    epoch: int = 1
    number: int = 0
    round: int = 0
    setting: str = ""
    slot: int | None = None
    before: str = ""
    after: str = ""
    reason: str = ""
    link: int | None = None
    goodput: int = 0
    needed: int = 0
    round_trip: float = 0.0
    step_time: int = 0
    median: int = 0
    role: str = ""

    @classmethod
    def made_of(cls, change: Change, time: float) -> ChangeRecord:
        """The line of a change."""
        return cls(**_own(cls, change), time=time)


Line: TypeAlias = ReportLine | MergeRecord | EvaluationLine | ChangeRecord
KINDS: Final[tuple[type[Line], ...]] = (ReportLine, MergeRecord, EvaluationLine, ChangeRecord)
_T = TypeVar("_T")


def name_of(kind: type[msgspec.Struct]) -> str:
    """The name of the file of a kind of lines, without its ending."""
    return str(kind.__struct_config__.tag)


def fields_of(line: Line) -> dict[str, Any]:
    """A line as it is written."""
    fields = msgspec.structs.asdict(line)
    return {name: value for name, value in fields.items() if value or name not in _WHERE_THERE_ARE_ANY}


def finite(value: float | None) -> float | None:
    """A loss for files and figures: None if it is not finite, which JSON cannot express."""
    return value if value is not None and math.isfinite(value) else None


def metrics_of(scalars: Iterable[Sequence[Any]]) -> dict[str, float | None]:
    """Scalars by name, as files and figures have them."""
    return {name: finite(value) for name, value in scalars}


def _own(kind: type[Line], item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in kind.__struct_fields__ if name in item}


def records(data: bytes, kind: type[_T]) -> Iterator[_T | None]:
    """The record of each line, None for one that cannot be read. NaN is no JSON, and means a missing value."""
    decode = msgspec.json.Decoder(kind).decode
    for line in data.splitlines():
        try:
            yield decode(line)
        except ValueError:
            try:
                yield msgspec.convert(json.loads(line, parse_constant=lambda _: None), kind)
            except (ValueError, RecursionError):
                yield None


def read(path: Path, kind: type[_T]) -> list[_T]:
    """The records of a file, without lines that cannot be read; none if there is no file."""
    try:
        return [record for record in records(read_bytes(path), kind) if record is not None]
    except OSError:
        return []


READ_BYTES_MAX: Final = 1 << 22
_L = TypeVar("_L", ReportLine, EvaluationLine, MergeRecord, ChangeRecord)


@final
class GrowingFile(Generic[_L]):
    """The file of a kind of lines in a run folder."""

    def __init__(self, folder: Path, kind: type[_L], *, is_new_alone: bool = False) -> None:
        """`is_new_alone`: without what is in it by now."""
        self._path = folder / f"{name_of(kind)}.jsonl"
        self._kind: type[_L] = kind
        self._place, self._offset = (0, 0), 0
        if is_new_alone:
            for _ in self.read():
                pass

    def read(self) -> Iterator[_L]:
        """The lines since the last call, without those that cannot be read; of a file that took its place, all."""
        try:
            found = self._path.stat()
            if not S_ISREG(found.st_mode):  # To open a pipe would wait for its writer.
                return
            place = found.st_dev, found.st_ino
            if place != self._place or found.st_size < self._offset:
                self._place, self._offset = place, 0
            if found.st_size == self._offset:
                return
            with open_regular(self._path) as file:
                while True:
                    file.seek(self._offset)
                    data = file.read(READ_BYTES_MAX)
                    whole = data[: data.rfind(b"\n") + 1]
                    self._offset += len(whole)
                    yield from filter(None, records(whole, self._kind))
                    if not whole or len(data) < READ_BYTES_MAX:
                        return
        except OSError:
            return
