"""Which run a command is about, and what its daemon says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.runtime.control import ask
from isthmus.runtime.errors import ConfigError, nearest

LATEST: Final = Path("runs", "latest")
ANSWER_SECONDS: Final = 3.0


def folder_of(run: Path | None) -> Path:
    """The folder of a run: the one given, or runs/latest; ConfigError if it is not that of a run."""
    folder = LATEST if run is None else run
    if not (folder / "config.toml").exists():
        found = "nothing there" if not folder.exists() else "no config.toml in it"
        do = "Name the folder of a run, or start one with: isthmus train."
        raise ConfigError(f"Looking for the run {folder}", "a run folder", found, do)
    return folder.resolve()


def all_folders() -> list[Path]:
    """Every run folder under ./runs, oldest first."""
    return sorted({path.parent.resolve() for path in Path("runs").glob("*/config.toml")})


def status(folder: Path) -> dict[str, Any]:
    """What is known of a run: its daemon's answer, or, once it is over, what it left behind.

    ConfigError if the run is not over and no daemon of it answers.
    """
    endpoint = _endpoint(folder)
    if endpoint is not None and not (folder / "summary.json").exists():
        answer = ask(endpoint, {"type": "status"}, ANSWER_SECONDS)
        if answer is not None:
            return {name: value for name, value in answer.items() if name not in ("type", "protocol")}
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        return {"run": str(folder), "outcome": summary["outcome"], "hosts": [], "training": {}, "summary": summary}
    raise _silent(folder, endpoint)


def request_stop(folder: Path) -> None:
    """Ask a run to come to its end; ConfigError if it is over already, or no daemon answers."""
    if (folder / "summary.json").exists():
        raise ConfigError(
            f"Stopping the run {folder}", "a run that goes on", "one that is over", "There is nothing to do."
        )
    endpoint = _endpoint(folder)
    if endpoint is None or ask(endpoint, {"type": "stop"}, ANSWER_SECONDS) is None:
        raise _silent(folder, endpoint)


def log_of(folder: Path, name: str) -> Path:
    """The log of a host ('learner/2') or of the daemon ('daemon'); ConfigError, with the nearest name, without one."""
    logs = {path.stem.replace("-", "/"): path for path in sorted((folder / "logs").glob("*.log"))}
    if name not in logs:
        raise ConfigError(f"Looking for the log of {name!r}", "a host of this run", repr(name), nearest(name, logs))
    return logs[name]


def rows(status: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Name, phase, life, pid and what was last said of every host."""
    return [
        (host["name"], _phase(host), str(host["incarnation"]), str(host["pid"] or "-"), host["reason"])
        for host in status["hosts"]
    ]


def _phase(host: Mapping[str, Any]) -> str:
    return f"{host['phase']} ({host['state']})" if host["state"] == "suspect" else str(host["phase"])


def _endpoint(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "daemon.json").read_text())["endpoint"])
    except (OSError, ValueError, KeyError):
        return None


def _silent(folder: Path, endpoint: str | None) -> ConfigError:
    found = "no daemon.json: the run was in one process" if endpoint is None else f"no answer from {endpoint}"
    do = "If the command that started the run is gone, so is the run; its folder holds what it left."
    return ConfigError(f"Asking for the run {folder}", "a daemon that answers", found, do)
