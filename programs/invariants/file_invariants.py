"""The invariants of the run folder in every universe, for any faults of its disk.

The run is over, and has reported what it has written. Now the power fails: the files that are left must match that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim import Checker, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.machine import SimulatedDisk
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.system.files import encoded

RECORDER = Replica("recorder", 0)


class FilesChecker(Checker):
    """The final model exists, complete and as it was sent; so do the lines of each file.

    A recorder wrote every line of a file; each end of a recorder tears at most one line; the lines that the last
    recorder counts as written exist, and the rest are counted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[int, set[int]] = {}

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the final fragments that reach a recorder."""
        if edge.target_port == "final" and life.member.replica == RECORDER:
            self._models.setdefault(item["fragment"], set()).add(zlib.crc32(encoded(item["tensors"])))

    def ended(self, universe: Universe) -> None:
        """Check all files, and again after a power failure."""
        disk, recorder = universe.disks[universe.home], universe.last(RECORDER)
        nothing: dict[str, Any] = {"files": {}, "error": None}
        status = nothing if recorder is None else recorder.host.published.get("record", nothing)
        # A killed recorder may have written a line that it had not counted; later disk failures removed some.
        is_as_told = recorder is not None and recorder.failures_at_end == disk.failures
        counts = {name: told if is_as_told else None for name, told in status["files"].items()}
        deaths = sum(life.member.replica == RECORDER and life.was_killed for life in universe.lives)
        deaths += recorder is not None and not is_as_told  # A power failure after its end may tear the last line.
        for name in sorted(counts):
            told = counts[name]
            self._check_lines(disk, name, deaths + (told is not None and _has_unwritten(told)))
            if recorder is not None and told is not None:
                self._check_counts(disk, name, str(recorder.member), told)
        disk.troubles.clear()
        disk.lose_power()
        for name in sorted(counts):
            self._check_lines(disk, name, deaths + 1)
        if universe.outcome != "failed":
            self._check_model(disk.files())

    def _check_model(self, files: Mapping[Path, bytes]) -> None:
        for fragment, digests in sorted(self._models.items()):
            path = self._folder / "snapshots" / "final" / f"fragment-{fragment}.safetensors"
            if path not in files:
                raise ViolationError(f"{path.name} was written, and is lost with the power")
            if zlib.crc32(files[path]) not in digests:
                raise ViolationError(f"{path.name} is not what was sent: {len(files[path])} bytes")

    def _check_lines(self, disk: SimulatedDisk, name: str, deaths: int) -> None:
        """Compare a file with the lines written into it."""
        path = self._folder / f"{name}.jsonl"
        known = {line for writing in disk.written.get(path, []) for line in _lines(writing.data)}
        found = _lines(disk.files().get(path, b""))
        torn = [line for line in found if not _is_whole(line)]
        if len(torn) > deaths:
            raise ViolationError(
                f"{path.name} has {len(torn)} torn lines after {deaths} ends of its writers: {torn[0]!r}"
            )
        for line in found:
            if line not in known and line not in torn:
                raise ViolationError(f"{path.name} has a line that nobody has written: {line!r}")

    def _check_counts(self, disk: SimulatedDisk, name: str, recorder: str, counts: Mapping[str, Any]) -> None:
        """Compare the last recorder's counts with the lines it wrote, which the file ends in.

        A recorder that booted late, and learned that it is not the current life, may have opened the file after it.
        """
        path = self._folder / f"{name}.jsonl"
        own = [writing.data for writing in disk.written.get(path, []) if writing.writer == recorder]
        last = [line for data in own for line in _lines(data)]
        if len(last) - counts["written"] not in (0, _has_unwritten(counts)):
            raise ViolationError(f"{path.name}: {counts} is said where {len(last)} lines were written")
        found = _lines(disk.files().get(path, b""))
        if last and found[-len(last) :] != last:
            raise ViolationError(f"{path.name} does not end in the {len(last)} lines of its last writer")


def _lines(data: bytes | bytearray) -> list[bytes]:
    return [line for line in bytes(data).split(b"\n") if line]


def _has_unwritten(counts: Mapping[str, Any]) -> bool:
    """Whether the disk rejected a line, or took only a part of it."""
    return bool(counts["waiting"] or counts["lost"])


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
