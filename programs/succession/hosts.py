"""Hosts of a run that are on a machine already when it becomes the run's home: they go on as the processes they are.

They have the folder of the outpost that this machine had, and find their daemon through the file in it. That file leads
to the one of the run folder from then on, so they find the home's daemon there, and each after it. Their files stay in
the outpost's folder until the run is over.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from isthmus.runtime.daemon.site import HERE
from isthmus.runtime.system.files import append_bytes, write_json

INHERITED: Final = "inherited.json"
"""Names the folder of an outpost whose hosts belong to the run folder that contains this file."""


def inherit(folder: Path, former: Path) -> None:
    """Make the hosts whose folder is `former` find the daemon of run folder `folder`; OSError on failure."""
    write_json(folder / INHERITED, {"folder": str(former)})
    beside = former / f".{HERE}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder / HERE)
    beside.replace(former / HERE)
    (folder / "logs").mkdir(exist_ok=True)
    for log in sorted((former / "logs").glob("*.log")):
        with suppress(FileExistsError):
            (folder / "logs" / log.name).symlink_to(log)


def bring_home(folder: Path) -> None:
    """Move the files of inherited hosts into the run folder, and remove their own folder; no-op without such hosts."""
    try:
        former = Path(json.loads((folder / INHERITED).read_text())["folder"])
    except FileNotFoundError:
        return
    for path in [*sorted(former.glob("logs/*.log")), *sorted(former.glob("spans/*.json"))]:
        there, data = folder / path.parent.name / path.name, path.read_bytes()
        if there.is_symlink():
            there.unlink()
        append_bytes(there, data)
    shutil.rmtree(former, ignore_errors=True)
    (folder / INHERITED).unlink()
