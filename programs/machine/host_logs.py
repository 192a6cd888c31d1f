"""Logs of a run's hosts for somebody on another machine: the end of one, from the run folder or from where it grows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus.programs.machine.collect_files import ANSWER_SECONDS
from isthmus.programs.machine.links import Links
from isthmus.programs.machine.outposts import PIECE_BYTES
from isthmus.programs.machine.run import MachineRun
from isthmus.programs.run.launch import log_of
from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.ids import Replica

TEXT_BYTES_MAX: Final = PIECE_BYTES
"""As much of the end of a log as one message holds."""


def names(folder: Path) -> dict[str, Path]:
    """Host ('learner/2') or 'daemon' -> its log, of those that are in a run folder."""
    return {path.stem.replace("-", "/"): path for path in sorted((folder / "logs").glob("*.log"))}


async def end_of_log(folder: Path, name: str, run: MachineRun | None, links: Links) -> str:
    """The end of a host's log; ConfigError, with the nearest name, if there is none. `run` is None once it is over."""
    here = names(folder)
    elsewhere = {} if run is None else dict(run.daemon.home.fleet.placed())
    if name in elsewhere and run is not None and links.is_up(elsewhere[name]):
        path = str(Path("logs") / log_of(folder, Replica.parse(name)).name)
        asked = {"type": "piece", "run": run.name, "name": path, "offset": -TEXT_BYTES_MAX}
        answer = await links.request(elsewhere[name], asked, ANSWER_SECONDS)
        return str(answer["text"]).encode("latin-1").decode(errors="replace")
    if name not in here:
        do = nearest(name, {*here, *elsewhere})
        raise ConfigError(f"Looking for the log of {name!r}", "a host of this run", repr(name), do)
    with here[name].open("rb") as file:
        file.seek(max(0, here[name].stat().st_size - TEXT_BYTES_MAX))
        return file.read(TEXT_BYTES_MAX).decode(errors="replace")
