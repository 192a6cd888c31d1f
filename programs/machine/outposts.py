"""The runs of other machines that have hosts here: an outpost each, in a folder of its own among this daemon's state.

A home says what a run is (`station`), which lives are wanted (`orders`), and asks: whether a request would be permitted
(`check`), which files a run has left here (`files`), and for parts of them (`piece`). What may be loaded is judged by
name, and data by their digest; nothing is imported. What a home asks for again and again is done once. A home is heard
of its own runs only.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import zmq

from isthmus.programs.cluster import digest
from isthmus.programs.cluster.machine_file import MachineConfig
from isthmus.programs.cluster.run_root import RUN_NAME
from isthmus.programs.machine.home_link import Home, Link
from isthmus.programs.request import spec
from isthmus.programs.run.launch import Launcher
from isthmus.runtime.control.messages import Message
from isthmus.runtime.daemon.outpost import Outpost
from isthmus.runtime.daemon.outpost_messages import ORDERS
from isthmus.runtime.errors import ConfigError, Fault, RunError
from isthmus.runtime.system.files import write_json

STATION: Final = "station"
UNSTATIONED: Final = "unstationed"
NOTE: Final = "outpost.json"
PIECE_BYTES: Final = 1 << 18
FILES: Final = re.compile(r"(logs|spans)/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a home may ask for."""
_UNABLE: Final = (OSError, sqlite3.Error, zmq.ZMQError, RunError)


@final
class Outposts:
    """The outposts of the daemon `name`, below `folder`. `tell` is given lines for people, `on_change` is called when
    there is one more or one less, and `link` gives the link to a home."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        folder: Path,
        config: MachineConfig,
        *,
        tell: Callable[[str], None],
        on_change: Callable[[], None],
        link: Callable[[Home], Link],
    ) -> None:
        self._loop, self._name, self._folder, self._config = loop, name, folder, config
        self._tell, self._on_change, self._link = tell, on_change, link
        self._held: dict[str, tuple[Outpost, Home]] = {}
        self._is_ending = False
        self._requests: Mapping[str, Callable[[Home, Message], Awaitable[Message]]] = {
            "check": self._check,
            "files": self._files,
            "piece": self._piece,
        }

    # -- from outside --------------------------------------------------------------------------------------------------

    @property
    def folders(self) -> list[Path]:
        return [outpost.folder for outpost, _ in self._held.values()]

    def runs(self, home: Home) -> list[str]:
        return [run for run, (_, whose) in self._held.items() if whose.address == home.address]

    def hear(self, link: Link, message: Message) -> None:
        """Do what a home says; what no home of ours says, or of another home's run, is refused."""
        try:
            if message["type"] == STATION:
                self._station(link, message)
            elif message["type"] == ORDERS and message["run"] in self._held:
                self._of(link.home, message).order(message)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            self._tell(f"refused what {link.home.name} says, a {message['type']}: {type(error).__name__}: {error}")

    async def answer(self, home: Home, message: Message) -> Message:
        """Answer a home; ConfigError with what is refused."""
        return await self._requests[message["type"]](home, message)

    def _of(self, home: Home, message: Message) -> Outpost:
        """The outpost that a message of a home is about; KeyError if there is none, or it is another home's."""
        run = str(message["run"])
        outpost, whose = self._held[run]
        if whose.address != home.address:
            raise KeyError(run)
        return outpost

    def adopt(self, folder: Path) -> None:
        """Go on with what a daemon before this one held."""
        try:
            told = json.loads((folder / NOTE).read_text())
            spec.count_on(folder)
            self._hold(folder, str(told["run"]), self._link(Home(**told["home"])))
        except (KeyError, TypeError, ValueError, ConfigError, *_UNABLE) as error:
            self._tell(f"leaves {folder}, a run of the daemon before it: {error}")
            return
        self._tell(f"adopts its part of {told['run']}, a run of {told['home']['name']}")

    def end(self) -> None:
        """End every host here, and take no more."""
        self._is_ending = True
        for outpost, _ in list(self._held.values()):
            outpost.end()

    def end_of(self, home: Home) -> None:
        """End every host of a home's runs."""
        for run in self.runs(home):
            self._held[run][0].end()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _station(self, link: Link, message: Message) -> None:
        """Have a part in a run from now on."""
        run = str(message["run"])
        if run in self._held:
            return
        try:
            if not RUN_NAME.fullmatch(run):
                raise ValueError(f"a run named {run!r}")
            told = spec.read(message["spec"])
            self._permit(told.job.program, told.job.task.text)
            folder = self._folder / run
            folder.mkdir(parents=True, exist_ok=True)
            # Times count from the same moment everywhere, as nearly as the way of this message is short.
            zero_ns = time.monotonic_ns() - int(message["age_ns"])
            here = {**message["spec"]["here"], "secret": str(self._config.secret or "")}
            spec.write(folder, {**message["spec"], "zero_ns": zero_ns, "here": here})
            write_json(folder / NOTE, {"run": run, "home": link.home.as_data()})
            self._hold(folder, run, link)
        except (KeyError, TypeError, ValueError, ConfigError, *_UNABLE) as error:
            link.send({"type": UNSTATIONED, "run": run, "error": f"{type(error).__name__}: {error}"})
            self._tell(f"refused its part of {run}, a run of {link.home.name}: {error}")
            return
        self._tell(f"takes part in {run}, a run of {link.home.name}")

    def _hold(self, folder: Path, run: str, link: Link) -> None:
        launch = Launcher(self._loop, folder, spec.load(folder).computing)
        outpost = Outpost(
            self._loop,
            folder,
            run=run,
            name=self._name,
            launch=launch,
            send=link.send,
            on_over=lambda: self._over(run),
        )
        self._held[run] = outpost, link.home
        self._on_change()
        outpost.start()

    def _over(self, run: str) -> None:
        """Every host has ended; what its home wanted of the files, it has."""
        outpost, home = self._held.pop(run)
        outpost.close()
        with suppress(OSError):
            shutil.rmtree(outpost.folder)
        self._tell(f"finished its part of {run}, a run of {home.name}")
        self._on_change()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _check(self, home: Home, message: Message) -> Message:
        """Whether a program and a task may be loaded here, and their files and data are what the home has."""
        program, task = str(message["program"]), str(message["task"])
        self._permit(program, task)
        wanted = str(message["digest"])
        if wanted:
            doing = f"Comparing sources and data on the machine {self._name!r}"
            found = await self._loop.run_in_executor(None, digest.digest, program, task)
            if found != wanted:
                do = "Put the same isthmus, program, task and data (--data; else Python's library) on every machine."
                raise ConfigError(doing, f"what the command has, {wanted[:8]}", f"something else, {found[:8]}", do)
        return {"type": "permitted"}

    def _permit(self, program: str, task: str) -> None:
        faults = list(self._config.faults(program, task, self._name))
        if self._is_ending:
            do = "Start it again, or wait until it has been."
            faults.append(Fault(f"Asking the machine {self._name!r} to take part", "one that goes on", "it ends", do))
        if faults:
            raise ConfigError.of(faults)

    async def _files(self, home: Home, message: Message) -> Message:
        """[name, bytes] of the logs and spans of a run."""
        folder = self._of(home, message).folder
        found = {f"{path.parent.name}/{path.name}": path.stat().st_size for path in sorted(folder.glob("*/*"))}
        return {"type": "files", "files": [[name, size] for name, size in found.items() if FILES.fullmatch(name)]}

    async def _piece(self, home: Home, message: Message) -> Message:
        """A part of a file, each byte a character; of the last bytes if the offset is negative."""
        name, offset = str(message["name"]), int(message["offset"])
        if not FILES.fullmatch(name):
            raise ValueError(f"no file of a run: {name[:100]!r}")
        path = self._of(home, message).folder / name
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size + offset) if offset < 0 else offset)
            return {"type": "piece", "text": file.read(PIECE_BYTES).decode("latin-1")}
