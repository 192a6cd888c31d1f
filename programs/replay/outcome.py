"""What came of a replay, as data: of each tape, and of all tapes of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record of a tape after which a fresh core decides otherwise: its `number`, from 1; when it was, in
    nanoseconds since the submission of the run; the event, and the node or edge it is about (`place`, empty for
    others); and from the first command on that differs (`command`, from
    1), what the tape has and what the core says. `error` is what the core raised instead, empty if it did not."""

    number: int
    at_ns: int
    event: Any
    place: str
    command: int
    taped: Sequence[Any]
    said: Sequence[Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One tape: `host` is that of a life ('learner/2'), or 'home' or 'station', of which `number` is the process.

    `records`, `commands` and `merges` (rounds that closed) are those that were replayed: none where the beginning of
    the tape is not kept any more, so that there is no state to start from; it `begins_ns` after the submission then.
    `torn_bytes` are those of a last record that was never finished.
    """

    tape: str
    host: str
    number: int
    records: int
    commands: int
    merges: int
    torn_bytes: int = 0
    begins_ns: int | None = None
    difference: Difference | None = None

    @property
    def is_replayed(self) -> bool:
        """Whether there was a state to start from."""
        return self.begins_ns is None


@dataclass(frozen=True, slots=True)
class Replay:
    """A run folder; `absent` are the hosts that the run began with of which it has no tape."""

    run: str
    tapes: Sequence[Replayed]
    absent: Sequence[str]

    @property
    def is_identical(self) -> bool:
        """Whether no core decided otherwise."""
        return all(each.difference is None for each in self.tapes)

    @property
    def commands(self) -> int:
        return sum(each.commands for each in self.tapes)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.tapes)

    @property
    def merges(self) -> int:
        return sum(each.merges for each in self.tapes)
