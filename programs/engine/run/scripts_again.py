"""The scripts of a run that is over which did not come to their own end: they are started again, with its final model.

Decides which runs that is possible for, and with which of today's settings. The run itself is over, and nothing of it
trains again: its next daemon finds the outcome in the journal, begins a life for each script that has not finished, and
tells it to exit; so the script goes through its `with`, and on to its end (`runtime.supervision.user_code`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.results.run_files import OVER, summary_of
from isthmus.programs.engine.run.in_processes import Submitted, submitted
from isthmus.programs.engine.run.private_daemon import kill_all
from isthmus.programs.engine.run.resume import locked
from isthmus.programs.engine.run.room_for_hosts import check_loopback
from isthmus.programs.engine.run.standstill import stand_still
from isthmus.runtime.daemon.home_daemon import await_scripts_again
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import read_text, write_json

CHANGEABLE: Final = ("loop_idle_seconds", "loop_away_max", "end_seconds", "loop_over_seconds")
"""The settings that still mean something."""


def unfinished(folder: Path) -> list[str]:
    """The hosts of a run whose scripts did not come to their end; none where nothing says so. RunFilesError if its
    summary is not one."""
    summary = summary_of(folder)
    if summary is None or summary["outcome"] not in ("done", "stopped"):
        return []
    # One that was stopped goes on with its training: its scripts come to their ends then.
    dismissed = summary.get("scripts_dismissed", ()) if summary["outcome"] == "done" else ()
    return [*summary.get("scripts_unfinished", ()), *dismissed]


def start_again(folder: Path, settings: Mapping[str, Any]) -> Submitted:
    """Have the scripts of a run that is over begin again, with these settings of section `run.`; ConfigError, with
    nothing changed, if that is not possible."""
    doing = f"Resuming {folder}"
    check_loopback(doing)
    if (folder / spec.CLUSTER).exists():
        do = "Use the run's model for what they have not done: isthmus export RUN --format safetensors --to DIR."
        raise ConfigError(doing, "scripts of a run of this machine alone", "those of a cluster's machines", do)
    fields = json.loads(read_text(folder / spec.SPEC))
    changed = {**fields["settings"], **settings}
    RunSettings.read(changed)
    lock = locked(folder, doing)
    try:
        kill_all(folder)
        if changed != fields["settings"]:
            write_json(folder / spec.SPEC, {**fields, "settings": changed})
        stand_still(folder, was_over=True)
        await_scripts_again(folder)
        (folder / OVER).unlink(missing_ok=True)
    except BaseException:
        lock.close()
        raise
    return submitted(folder, folder.name, lock)


def is_for_scripts(asked: Collection[str]) -> bool:
    """Whether a resume asks for nothing that would train the run further: these keys of section `run.`, or others."""
    return all(key.removeprefix("run.") in CHANGEABLE for key in asked)
