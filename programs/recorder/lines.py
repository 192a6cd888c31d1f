"""The files of lines of a run folder, whose times count from the first inner step of any learner.

Decides nothing but when a line may be written: those that come before the first step wait for it. A recorder that ends
while it writes them leaves some in the files, and all of them to the next one, which writes those that are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from isthmus.programs.recorder import memory as recorder_memory
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import Lines

FILES: Final = ("metrics", "merges", "evaluations", "changes")
"""The files NAME.jsonl."""


class RecordLines:
    """The lines of one recorder. `early` are those that wait, as (name of the file, line), with instants for times."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.early: list[tuple[str, dict[str, Any]]] = []
        self._folder, self._disk = folder, disk
        self._files = {name: Lines(folder / f"{name}.jsonl", disk) for name in FILES}
        self._zero: int | None = None
        self._is_closed = False

    @property
    def has_begun(self) -> bool:
        """Whether lines are written on arrival."""
        return self._zero is not None

    def recall(self, early: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Take over lines that waited in an earlier life and are not written yet; OSError if the disk cannot be read.

        Lines are compared without their times, which count from a first step that this life may not know.
        """
        written = {name: self._read(name) if early else [] for name in FILES}
        self.early = []
        for name, line in early:
            told = _timeless(line)
            if told in written[name]:
                written[name].remove(told)
            else:
                self.early.append((name, line))

    def write(self, name: str, at: int, line: Mapping[str, Any]) -> None:
        """Add a line to the file `name`, now or after the first step."""
        timed = {"time": at, **line}
        if self._zero is None:
            self.early.append((name, timed))
        else:
            self._append(name, timed, self._zero)

    def begin(self, zero: int) -> None:
        """Set `zero`, the time of the first step: writes the waiting lines; later ones need not wait."""
        self._zero = zero
        self.give_up_waiting(zero)

    def give_up_waiting(self, zero: int) -> None:
        """Write waiting lines with times from `zero`, because a first step may never come."""
        for name, line in self.early:
            self._append(name, line, zero)
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

    def _append(self, name: str, line: Mapping[str, Any], zero: int) -> None:
        self._files[name].append({**line, "time": round((line["time"] - zero) / 1e9, 6)})

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / f"{name}.jsonl"
        return [_timeless(line) for line in recorder_memory.lines(path, self._disk, is_tail=False)]


def _timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "time"}
