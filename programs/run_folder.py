"""The folder that a run leaves behind: which one it will be, and making it.

Choosing touches nothing, so that a request that turns out wrong leaves nothing behind. What is written into the folder
while the run lasts is decided by the recorder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from isthmus.programs import toml
from isthmus.runtime.errors import ConfigError

RUNS: Final = Path("runs")
CONFIG: Final = "config.toml"
_SIGNS: Final = (
    CONFIG,
    "graph.json",
    "metrics.jsonl",
    "summary.json",
    "tape",
    "snapshots",
    "trace.json",
    "report.html",
)
"""A folder with any of these is that of a run."""
UNWRITTEN: Final = 3
"""The exit status of a daemon whose run is over, where the disk does not even take that it is."""
_SAME_SECOND_MAX: Final = 1000


def choose(run_dir: str | Path | None, program: str, now: datetime) -> Path:
    """The absolute path of the run folder: `run_dir`, or runs/<program>-<YYYYmmdd-HHMMSS>.

    ConfigError if `run_dir` holds another run, is no folder, or cannot be written to.
    """
    if run_dir is None:
        stem = f"{program}-{now:%Y%m%d-%H%M%S}"
        names = [stem, *(f"{stem}-{count}" for count in range(2, _SAME_SECOND_MAX))]
        path = next(path for path in (Path.cwd() / RUNS / name for name in names) if not path.exists())
    else:
        path = Path(os.path.abspath(Path(run_dir).expanduser()))
    doing = f"Choosing the run folder {path}"
    if path.exists() and not path.is_dir():
        raise ConfigError(doing, "a folder, or nothing yet", "a file", "Name another folder with --run-dir.")
    signs = [name for name in _SIGNS if (path / name).exists()]
    if signs:
        expected = "a folder without another run in it"
        raise ConfigError(doing, expected, f"{', '.join(signs)} of another run", "Name another folder with --run-dir.")
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        found = f"{existing}, which is {'not writable' if existing.is_dir() else 'a file'}"
        raise ConfigError(doing, "a folder that can be written to", found, "Name another folder with --run-dir.")
    return path


def create(path: Path, config: Mapping[str, Mapping[str, Any]], *, latest: bool = True) -> None:
    """Make the folder with its config.toml, and, if it is to be the `latest`, let runs/latest in the current folder
    point to it. ConfigError if the disk does not take it."""
    with prepared(path):
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG).write_text(document(config), encoding="utf-8")
    if latest:
        point_latest_to(path)


@contextmanager
def prepared(path: Path) -> Iterator[None]:
    """While the files of a run that is about to start are written into its folder: ConfigError if the disk refuses, and
    then no file of a run is left there."""
    try:
        yield
    except OSError as error:
        for name in (CONFIG, "graph.json", "spec.json"):
            with suppress(OSError):
                (path / name).unlink(missing_ok=True)
        found, do = error.strerror or str(error), "Make room there, or choose another folder with --run-dir."
        raise ConfigError(f"Preparing the run folder {path}", "a disk that takes its files", found, do) from None


def document(config: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of config.toml."""
    head = "# The whole configuration of this run. To start it again: isthmus train --config THIS_FILE\n\n"
    return head + toml.document(config)


def point_latest_to(path: Path) -> None:
    """Let runs/latest in the current folder point to a run folder.

    A link that cannot be made (a read-only current folder beside --run-dir) costs a convenience, not the run.
    """
    with suppress(OSError):
        _point_latest_to(path)


def _point_latest_to(path: Path) -> None:
    RUNS.mkdir(exist_ok=True)
    link, fresh = RUNS / "latest", RUNS / f".latest-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(path, RUNS.resolve()), target_is_directory=True)
    os.replace(fresh, link)
