"""Settings that follow links, and learners whose pace changes, from the lines of changes.jsonl: the one place that
words them as sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.programs.engine.results import lines
from isthmus.programs.engine.results.lines import ChangeRecord
from isthmus.programs.engine.results.words import decimal, seconds, size
from isthmus.runtime.ids import LEARNER


def read(folder: Path) -> list[ChangeRecord]:
    """The changes of a run folder, in their order; those that cannot be read are left out."""
    return lines.read(folder / "changes.jsonl", ChangeRecord)


def step(change: ChangeRecord, by: str = LEARNER) -> str:
    """The change: 'push of learner 3: float32 -> int4'; `by` is the role at the other end of the links."""
    by = LEARNER if change.role else by
    who = "" if change.slot is None else f" of {by} {change.slot}"
    where = f" in {change.role}/{change.shard}" if change.role else ""
    return f"{change.setting}{who}{where}: {change.before} -> {change.after}"


def why(change: ChangeRecord, by: str = LEARNER) -> str:
    """The reason: 'the link of learner 3 carries 12.5 kB/s, and float32 needs 38.1 kB/s'."""
    by = LEARNER if change.role else by
    if change.setting == "pace":
        return f"a step takes {seconds(change.step_time / 1e9)}, the median {seconds(change.median / 1e9)}"
    if change.link is None:
        what = "steps of the fastest learner" if by == LEARNER else f"merges of the fastest {by}"
        return f"a round takes {decimal(change.round_trip, 2)} {what}"
    is_less = change.reason == "carries less"
    needs = change.before if is_less else change.after
    unit = "steps" if by == LEARNER else "merges"
    what = needs if change.setting in ("push", "update") else f"an interval of {needs} {unit}"
    way = f"to {by}" if change.setting == "update" else f"of {by}"
    return f"the link {way} {change.link} carries {size(change.goodput)}/s, and {what} needs {size(change.needed)}/s"


def sentence(change: ChangeRecord, by: str = LEARNER) -> str:
    """The change and its reason."""
    return f"{step(change, by)}, because {why(change, by)}"


def settings(requested: Mapping[str, Any], by: str = LEARNER) -> str:
    """The settings of a round: 'push float32, of learner 3 int4; update int4; interval 24, overlap 5'."""
    formats = [name for _, name in requested["push"]]
    usual = max(dict.fromkeys(formats), key=formats.count, default="")
    others = [f", of {by} {slot} {name}" for slot, name in requested["push"] if name != usual]
    push = f"push {usual}{''.join(others)}; " if usual else ""
    return f"{push}update {requested['update']}; interval {requested['interval']}, overlap {requested['overlap']}"


def in_use(changes: Iterable[ChangeRecord], shard: int, epoch: int, round_number: int) -> list[ChangeRecord]:
    """The newest change of each setting that counted when a round of a life of a shard was opened."""
    newest: dict[tuple[str, int | None], ChangeRecord] = {}
    for change in changes:
        is_its_own = not change.role and (change.shard, change.epoch) == (shard, epoch)
        if is_its_own and change.round <= round_number:
            newest[change.setting, change.slot] = change
    return list(newest.values())


def is_better(change: ChangeRecord) -> bool:
    """Whether the change is to a finer format, a shorter interval, or the usual pace."""
    return change.reason in ("carries more", "quick rounds", "usual steps")
