"""The outcome of a replay, as data: of each tape, and of all tapes of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.programs.replay.merges import Computed


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record of a tape after which a fresh core decides otherwise.

    Its `number`, from 1; its time, in nanoseconds since the submission of the run; the event, and the node or edge it
    is about (`place`, empty for others); and from the first command that differs on (`command`, from 1), the commands
    of the tape and of the core. `error` is the core's error instead, empty if there was none.
    """

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

    `records`, `commands` and `merges` (rounds that closed) are those that were replayed. The first `before` records of
    the tape were dropped; it then begins `begins_ns` after the submission (None: at its start). `missing` records after
    that were lost to a disk. `torn_bytes` are those of a last record that was never finished.
    """

    tape: str
    host: str
    number: int
    records: int
    commands: int
    merges: int
    torn_bytes: int = 0
    before: int = 0
    missing: int = 0
    begins_ns: int | None = None
    difference: Difference | None = None
    computed: Computed | None = None
    """The result of computing its merges again; None if no payloads were kept."""

    @property
    def is_identical(self) -> bool:
        """Whether its core decided the same, and its merges came to the same bytes."""
        return self.difference is None and (self.computed is None or self.computed.difference is None)


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay of a run folder; `absent` are initial hosts without a tape."""

    run: str
    tapes: Sequence[Replayed]
    absent: Sequence[str]

    @property
    def is_identical(self) -> bool:
        """Whether no core decided otherwise."""
        return all(each.is_identical for each in self.tapes)

    @property
    def computed(self) -> int | None:
        """The number of merge rounds that were computed again; None if no payloads were kept."""
        found = [each.computed.merges for each in self.tapes if each.computed is not None]
        return sum(found) if found else None

    @property
    def commands(self) -> int:
        return sum(each.commands for each in self.tapes)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.tapes)

    @property
    def merges(self) -> int:
        return sum(each.merges for each in self.tapes)
