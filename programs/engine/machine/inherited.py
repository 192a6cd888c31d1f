"""Hosts that a machine had of another home's run, and has as the home of that run: how they find its daemon, and where
their files are.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from isthmus.runtime.system.disk import beside
from isthmus.runtime.system.files import append_bytes, read_bytes, read_text, write_json
from isthmus.runtime.wire import account_files
from isthmus.runtime.wire.daemon_notes import HERE

INHERITED: Final = "inherited.json"
"""Names the folder of an outpost whose hosts belong to the run folder that contains this file."""


def inherit(folder: Path, former: Path) -> None:
    """Make the hosts whose folder is `former` find the daemon of run folder `folder`; OSError on failure.

    They find their daemon through the file in the outpost's folder, which leads to the one of the run folder from then
    on: so they find the home's daemon there, and each after it. Their files stay in the outpost's folder until the run
    is over.
    """
    write_json(folder / INHERITED, {"folder": str(former)})
    link = beside(former / HERE)
    link.symlink_to(folder / HERE)
    link.replace(former / HERE)
    (folder / "logs").mkdir(exist_ok=True)
    for log in sorted((former / "logs").glob("*.log")):
        with suppress(FileExistsError):
            (folder / "logs" / log.name).symlink_to(log)


def bring_home(folder: Path) -> None:
    """Move the files of inherited hosts into the run folder, and remove their own folder; no-op without such hosts."""
    try:
        former = Path(json.loads(read_text(folder / INHERITED))["folder"])
    except FileNotFoundError:
        return
    accounts = sorted(former.glob(f"{account_files.FOLDER}/*.json"))
    for path in [*sorted(former.glob("logs/*.log")), *sorted(former.glob("spans/*.json")), *accounts]:
        there, data = folder / path.parent.name / path.name, read_bytes(path)
        if there.is_symlink():
            there.unlink()
        append_bytes(there, data)
    shutil.rmtree(former, ignore_errors=True)
    (folder / INHERITED).unlink()
