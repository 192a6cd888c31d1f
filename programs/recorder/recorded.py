"""The figures of a run from its folder alone: those of a recorder that opened it now.

A summary is made of them, so that the figures agree with the files beside them even if the recorder ended before it
could publish its last lines. Decides nothing but which of the two knows more, the folder or that status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.programs.recorder import memory as recorder_memory
from isthmus.programs.recorder.books import Books
from isthmus.programs.recorder.lines import FILES
from isthmus.runtime.system.disk import DISK


def figures(folder: Path, status: Mapping[str, Any], *, sizes: Sequence[int], learners: int) -> dict[str, Any]:
    """The last published status, with the figures of the folder where these are ahead."""
    try:
        found = _books(folder, sizes).figures(learners)
    except (OSError, KeyError, TypeError):  # Nothing was recorded, or nothing of it can be read.
        return dict(status)
    return {**status, **found} if _extent(found) >= _extent(status) and found["learners"] else dict(status)


def merges(folder: Path) -> int:
    """The merges in merges.jsonl, the file that it was rotated to included; each counts once."""
    return len({(line["fragment"], line["epoch"], line["round"]) for line in _merge_lines(folder)})


def _merge_lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for name in ("merges.jsonl.1", "merges.jsonl"):
        for line in recorder_memory.lines(folder / name, DISK, is_tail=False):
            if line.get("kind") == "merge" and line.get("version") is not None:
                yield line


def _books(folder: Path, sizes: Sequence[int]) -> Books:
    books = Books(sizes)
    memory = recorder_memory.load(folder, DISK)
    if memory is not None:
        books.recall(memory)
    for name in FILES:
        for line in recorder_memory.lines(folder / f"{name}.jsonl", DISK, is_tail=False):
            books.recall_line(name, line, 0)
    return books


def _extent(status: Mapping[str, Any]) -> tuple[int, ...]:
    """The figures of a status that only grow, for comparison."""
    return tuple(int(status.get(name) or 0) for name in ("tokens", "outer_steps", "evaluations"))
