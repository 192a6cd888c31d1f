"""Settings that follow the links: the lines of changes.jsonl, and the one place that words them as sentences.

The lines of a `.jsonl` file of a run folder as plain objects, for any state of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from isthmus.programs.engine.results.words import decimal, size


def objects(path: Path) -> list[Mapping[str, Any]]:
    """The objects in a file, a line each; skips other lines; empty for a missing file."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return [line_object for line in lines if (line_object := _parsed(line)) is not None]


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        line_object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return line_object if isinstance(line_object, dict) else None


class ChangeRecord(msgspec.Struct, frozen=True):
    """A setting that a shard changed because of the goodput of its links: one line of changes.jsonl.

    The fields are those of `ops.exchange.messages.Change`; `time` is in seconds since the first step.
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


def read(folder: Path) -> list[ChangeRecord]:
    """The changes of a run folder, in their order; those that cannot be read are left out."""
    records = []
    for line in objects(folder / "changes.jsonl"):
        with suppress(msgspec.ValidationError):
            records.append(msgspec.convert(line, ChangeRecord))
    return records


def step(change: ChangeRecord) -> str:
    """The change: 'push of learner 3: float32 -> int4'."""
    who = "" if change.slot is None else f" of learner {change.slot}"
    return f"{change.setting}{who}: {change.before} -> {change.after}"


def why(change: ChangeRecord) -> str:
    """The reason: 'the link of learner 3 carries 12.5 kB/s, and float32 needs 38.1 kB/s'."""
    if change.link is None:
        return f"a round takes {decimal(change.round_trip, 2)} steps of the fastest learner"
    is_less = change.reason == "carries less"
    needs = change.before if is_less else change.after
    what = needs if change.setting in ("push", "update") else f"an interval of {needs} steps"
    way = "to learner" if change.setting == "update" else "of learner"
    return f"the link {way} {change.link} carries {size(change.goodput)}/s, and {what} needs {size(change.needed)}/s"


def sentence(change: ChangeRecord) -> str:
    """The change and its reason."""
    return f"{step(change)}, because {why(change)}"


def settings(requested: Mapping[str, Any]) -> str:
    """The settings of a round: 'push float32, of learner 3 int4; update int4; interval 24, overlap 5'."""
    formats = [name for _, name in requested["push"]]
    usual = max(dict.fromkeys(formats), key=formats.count, default="")
    others = [f", of learner {slot} {name}" for slot, name in requested["push"] if name != usual]
    push = f"push {usual}{''.join(others)}; " if usual else ""
    return f"{push}update {requested['update']}; interval {requested['interval']}, overlap {requested['overlap']}"


def in_use(changes: Iterable[ChangeRecord], shard: int, epoch: int, round_number: int) -> list[ChangeRecord]:
    """The newest change of each setting that counted when a round of a life of a shard was opened."""
    newest: dict[tuple[str, int | None], ChangeRecord] = {}
    for change in changes:
        if (change.shard, change.epoch) == (shard, epoch) and change.round <= round_number:
            newest[change.setting, change.slot] = change
    return list(newest.values())


def is_better(change: ChangeRecord) -> bool:
    """Whether the change is to a finer format, or a shorter interval."""
    return change.reason in ("carries more", "quick rounds")


def change_of(fields: Mapping[str, Any]) -> ChangeRecord:
    """A change from its form in a status."""
    return msgspec.convert({**fields, "time": fields.get("time") or 0.0}, ChangeRecord)
