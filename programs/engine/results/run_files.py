"""What a run folder has that commands read: regular files, and a summary of the form that a run writes at its end.

Decides what is refused. A pipe would be waited for, a device never ends, and a summary of another form would be shown
in part: so a command of one run refuses them with one message, and one of many runs shows the others and one line.
What a run that was cut off leaves, as lines and records that are torn, is no such thing.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.files import read_bytes
from isthmus.runtime.system.refusals import is_own

SUMMARY: Final = "summary.json"
DATA: Final = "data.json"
"""The table of a run's data."""
_READ: Final = frozenset({".json", ".jsonl", ".lock", ".safetensors", ".sqlite", ".state", ".tape", ".toml"})
"""How the names of files end that commands read."""
_FOLDERS: Final = (".", "borders", "snapshots", "snapshots/final", "spans", "tape")
_NAMED_MAX: Final = 4
_TAKE_AWAY: Final = "Take it away, or copy the file there from where it is whole."


class RunFilesError(ConfigError):
    """The files of a run are not such as a run writes."""


def check_files(folder: Path, doing: str) -> None:
    """RunFilesError, with what is wrong, unless all that a command may read in a run folder are regular files, or links
    to some, and those that are written whole have the form in which a run writes them."""
    faults = list(_irregular(folder, doing)) or list(_of_other_forms(folder, doing))
    if faults:
        raise RunFilesError.of(faults[:_NAMED_MAX])


def _irregular(folder: Path, doing: str) -> Iterator[Fault]:
    for name in _FOLDERS:
        try:
            entries = sorted(os.scandir(folder / name), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            if entry.name.startswith(".") or Path(entry.name).suffix not in _READ or entry.is_file():
                continue
            if found := _kind(Path(entry.path)):
                place = os.path.relpath(entry.path, folder)
                yield Fault(doing, f"a regular file {place}", found, _TAKE_AWAY)


class _ConfigForm(msgspec.Struct):
    run: dict[str, Any]
    program: dict[str, Any] = {}
    task: dict[str, Any] = {}


class _GraphForm(msgspec.Struct):
    program: str
    roles: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class _SpecForm(msgspec.Struct):
    run: str
    roles: dict[str, int]
    zero_ns: int
    job: dict[str, Any]
    settings: dict[str, Any]
    here: dict[str, Any]


class _SourcesForm(msgspec.Struct):
    isthmus: str
    files: dict[str, dict[str, str]]
    fragments: str


class _ClusterForm(msgspec.Struct):
    home: str
    sites: list[dict[str, Any]]


class EndNote(msgspec.Struct, frozen=True):
    """How a run ended, or was set aside, as its daemon notes it once everything else is written."""

    outcome: str
    error: str | None = None


OVER: Final = "over.json"


_FORMS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "config.toml": _ConfigForm,
    "graph.json": _GraphForm,
    "spec.json": _SpecForm,
    "sources.json": _SourcesForm,
    OVER: EndNote,
    "cluster.json": _ClusterForm,
}
"""Of files that are written whole."""


def _of_other_forms(folder: Path, doing: str) -> Iterator[Fault]:
    for name, form in _FORMS.items():
        path = folder / name
        try:
            data = read_bytes(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Fault(doing, f"a {name} that can be read", error.strerror or str(error), _TAKE_AWAY)
            continue
        try:
            msgspec.convert(tomllib.loads(data.decode()) if path.suffix == ".toml" else _parsed(data), form)
        except (ValueError, RecursionError) as error:
            found = f"another file: {error}" if data else "an empty file"
            do = "Copy it from where it is whole; or read it with the version of isthmus that wrote it."
            yield Fault(doing, f"a {name} as a run writes it", found, do)


def _kind(path: Path) -> str:
    """What is at a path, in words; '' for a regular file, and where nothing is any more."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"a link that leads to no file ({error.strerror})" if path.is_symlink() else ""
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFREG: ""}
    return kinds.get(stat.S_IFMT(mode), "a device")


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = float | None


class _LearnerForm(msgspec.Struct):
    """What commands read of a learner in a summary."""

    learner: _Count
    stall_seconds: _Seconds
    restarts: _Count = 0
    tokens_lost: float | None = 0.0
    away_seconds: _Seconds = None


class _NodeForm(msgspec.Struct):
    name: str
    replica: str
    wait_seconds: _Seconds


class _SummaryForm(msgspec.Struct):
    """What commands read of a summary, whichever version of isthmus wrote it."""

    outcome: str
    program: str
    learners: _Count
    outer_steps: _Count
    goodput: float | None
    wall_seconds: float
    per_learner: list[_LearnerForm]
    tokens_total: _Count
    merged_share: float | None
    nodes: list[_NodeForm] | None = None
    regions: _Count = 0
    lines_lost: _Count = 0
    disk_error: str | None = None
    snapshot_faults: list[str] = []
    kept_bytes: int | None = None
    bytes_sent_total: int | None = None
    bytes_home_total: int | None = None
    books: dict[str, Any] = {}
    eval_metrics: dict[str, float | None] = {}
    metrics: dict[str, float | None] = {}
    final_figures: dict[str, float | None] = {}
    final_figures_better: dict[str, str] = {}
    final_figures_fault: dict[str, str] | None = None
    eval_loss_initial: float | None = None
    eval_loss_final: float | None = None
    eval_loss_last: float | None = None
    eval_tokens_last: int | None = None
    eval_loss_error: float | None = None
    eval_windows: int | None = None
    eval_windows_there: int | None = None
    losses_not_finite: int | None = None
    final_evaluation: str | None = None
    trained_seconds: float | None = None
    evaluated_seconds: float | None = None
    ending_seconds: float | None = None
    start_seconds: float = 0.0
    paused_seconds: float = 0.0
    agreement: list[dict[str, Any]] = []
    begins_from: str | None = None
    scripts_unfinished: list[str] = []
    scripts_unfinished_why: dict[str, str] = {}
    scripts_dismissed: list[str] = []
    error: str | None = None


def summary_of(folder: Path, doing: str = "") -> dict[str, Any] | None:
    """The summary of a run; None of one that has none, as it is not over. RunFilesError if there is something else,
    OSError where this process has no descriptor for it."""
    path = folder / SUMMARY
    doing = doing or f"Reading {path}"
    try:
        return read_summary(read_bytes(path))
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        found = "a link that leads to no file"
    except OSError as error:
        if is_own(error):
            raise
        found = error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        found = f"another one: {error}" if path.stat().st_size else "an empty file"
    do = f"Copy it from where it is whole; without any, the run counts as one that was cut off, and goes on: {_RESUME}"
    raise RunFilesError(doing, f"a {SUMMARY} as a run writes it", found, do.format(folder))


def over_of(folder: Path) -> EndNote | None:
    """How a run ended, or was set aside; None if it has not. RunFilesError if there is something else, OSError where
    this process has no descriptor for it."""
    path = folder / OVER
    try:
        return msgspec.json.decode(read_bytes(path), type=EndNote)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if is_own(error):
            raise
        found = getattr(error, "strerror", None) or str(error)
        do = f"Copy it from where it is whole; without any, the run counts as one that was cut off: {_RESUME}"
        raise RunFilesError(
            f"Reading {path}", "the end of a run as its daemon notes it", found, do.format(folder)
        ) from None


_RESUME: Final = "isthmus train --resume {}"


def read_summary(data: bytes) -> dict[str, Any]:
    """The summary that some bytes stand for; ValueError if they stand for none."""
    # The json module and not msgspec: it also reads NaN, which a diverged run may have written.
    value: dict[str, Any] = _parsed(data)
    msgspec.convert(value, _SummaryForm)
    return value


def _parsed(data: bytes) -> Any:
    return json.loads(data, parse_int=_int, parse_float=_float)


def _int(text: str) -> int:
    """An integer of 64 bits, which all that reads a summary can take."""
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"an integer of {len(text)} digits, where all have less than 20")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"a number beyond all that a run writes, {text[:20]}")
    return value
