"""The run that a command is about, and its daemon's information on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isthmus.programs.cluster import addresses
from isthmus.programs.run import registry
from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.system.files import read
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import Message, without_mark

if TYPE_CHECKING:
    from isthmus.programs.machine.client import Daemon

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


def place_of(run: Path | None, cluster: Path | None) -> tuple[Path, Daemon | None]:
    """The folder of a run, and the daemon to ask about it if the folder is not on this machine.

    The run is given by its folder, by the cluster file of its home, or not at all.
    """
    if cluster is None:
        return folder_of(run), None
    if run is not None:
        found = f"RUN {run} and --cluster {cluster}"
        raise ConfigError("Reading the command line", "RUN or --cluster", found, "Leave one of them out.")
    from isthmus.programs.cluster.cluster_file import read
    from isthmus.programs.machine import client as machine_client

    home = machine_client.Daemon.of(read(cluster))
    folder = machine_client.newest_run(home)
    return (folder_of(folder), None) if _is_here(folder) else (folder, home)


def _is_here(folder: Path) -> bool:
    """Whether a run folder is on this machine, and the run's daemon, too, if it still goes on."""
    is_over = (folder / "summary.json").exists()
    return (folder / "config.toml").exists() and (is_over or _answer(folder) is not None)


def all_folders() -> list[Path]:
    """Every run folder under ./runs, and of every daemon of this user that lives on this machine; oldest first."""
    here = {path.parent.resolve() for path in Path("runs").glob("*/config.toml")}
    held = {Path(run.folder) for entry in registry.living() for run in entry.runs}
    return sorted(here | {path for path in held if (path / "config.toml").exists()}, key=_started)


def daemons() -> str:
    """A line for every machine's daemon of this user that lives here; empty without one."""
    lines = []
    for entry in registry.living():
        if entry.name:
            count = len(entry.runs) or "no"
            runs = f"{count} run{'' if count == 1 else 's'}"
            lines.append(f"daemon {entry.name}  at {entry.endpoint}, process {entry.pid}, {runs}\n")
    return "".join(lines)


def _started(folder: Path) -> float:
    try:
        return (folder / "config.toml").stat().st_mtime
    except OSError:
        return 0.0


def status(folder: Path, home: Daemon | None = None) -> dict[str, Any]:
    """The status of a run: its daemon's answer, or, once it is over, its summary.

    ConfigError if the run is not over and no daemon of it answers.
    """
    if home is not None:
        told = home.say({"type": "watch", "run": str(folder), "renews": False})
        if told["type"] == "status":
            return without_mark(told)
        return _over(folder, told["summary"] or {"outcome": "failed"})
    answer = None if (folder / "summary.json").exists() else _answer(folder)
    if answer is not None:
        return {**without_mark(answer), "run": str(folder)}
    if (folder / "summary.json").exists():
        return _over(folder, json.loads((folder / "summary.json").read_text()))
    raise _silent(folder)


def _over(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    return {"run": str(folder), "outcome": summary["outcome"], "hosts": [], "training": {}, "summary": summary}


def request_stop(folder: Path, home: Daemon | None = None) -> bool:
    """Ask a run to stop; returns whether this is the first request. ConfigError if it is over, or no daemon answers."""
    if home is not None:
        return bool(home.say({"type": "stop", "run": str(folder)})["is_first"])
    if (folder / "summary.json").exists():
        raise ConfigError(
            f"Stopping the run {folder}", "a run that goes on", "one that is over", "There is nothing to do."
        )
    answer = None if _answer(folder) is None else ask(_note(folder)["endpoint"], {"type": "stop"}, ANSWER_SECONDS)
    if answer is None:
        raise _silent(folder)
    return bool(answer["is_first"])


def log_of(folder: Path, name: str, home: Daemon | None = None) -> str:
    """The log of a host ('learner/2') or of the daemon ('daemon'); of one that grows on another machine, its end.

    ConfigError, with the nearest name, without one.
    """
    from isthmus.programs.machine.client import Daemon
    from isthmus.programs.request.spec import CLUSTER

    logs = {path.stem.replace("-", "/"): path for path in sorted((folder / "logs").glob("*.log"))}
    if home is None and name in logs:
        return read(logs[name])
    if home is None and (folder / CLUSTER).exists() and not (folder / "over.json").exists():
        home = Daemon.here(json.loads((folder / CLUSTER).read_text())["home"])
    if home is None:
        raise ConfigError(f"Looking for the log of {name!r}", "a host of this run", repr(name), nearest(name, logs))
    return str(home.say({"type": "log", "run": str(folder), "name": name})["text"])


def _note(folder: Path) -> dict[str, Any]:
    """The endpoint and process of the run's daemon, from its note; empty without one."""
    try:
        told = json.loads((folder / "daemon.json").read_text())
        return {"endpoint": str(told["endpoint"]), "pid": int(told["pid"]), "started": told["started"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _answer(folder: Path) -> Message | None:
    """The status of a run from its daemon; None without one, or if another daemon has its port by now."""
    note = _note(folder)
    if not note or not addresses.is_listening(note["endpoint"]):
        return None
    answer = ask(note["endpoint"], {"type": "status"}, ANSWER_SECONDS)
    return answer if answer is not None and Path(str(answer.get("run"))).resolve() == folder.resolve() else None


def _silent(folder: Path) -> ConfigError:
    note = _note(folder)
    found = "none: the run was in one process" if _is_in_one(folder) else "none yet, or one that did not start"
    if note:
        is_there = started_at(note["pid"]) == note["started"]
        found = f"no answer from {note['endpoint']}, process {note['pid']}{'' if is_there else ', which is gone'}"
    do = "Without its daemon a run ends by itself within a minute; its folder holds what it left."
    return ConfigError(f"Asking for the run {folder}", "a daemon that answers", found, do)


def _is_in_one(folder: Path) -> bool:
    """Whether all hosts of a run were in one process, which has no daemon."""
    from isthmus.programs.request.spec import INPROC, SPEC

    try:
        return str(json.loads((folder / SPEC).read_text())["transport"]) == INPROC
    except (OSError, ValueError, KeyError, TypeError):
        return False
