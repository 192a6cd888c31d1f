"""The runs of other machines that have hosts here: an outpost each, in a folder of its own among this daemon's state.

A home describes a run (`station`), lists the wanted lives (`orders`), and asks: whether a request would be permitted
(`check`), which files a run has left here (`files`), and for parts of them (`piece`). A machine that keeps the texts of
errors serves no logs, and has them still when the run is over. Code is judged by name, and data by their digest;
nothing is imported. A repeated request is carried out once. Messages of a home count for its own runs only, and so do
those of a machine that becomes the home of a run in its place: one that the home before it has named (an *heir*), or an
operator. The station decides which of two it follows, by their terms. While the home of a run is silent, its heirs are
dialled, too, as each of them may be the next home.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, final

import zmq

from isthmus.ops.data.site_terms import EVALUATIONS
from isthmus.programs.engine.cluster import handover
from isthmus.programs.engine.cluster.handover import RUN_NAME
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.cluster.permitted_scripts import checked_digest
from isthmus.programs.engine.machine import kept_models, ways_to_others
from isthmus.programs.engine.machine.absent_homes import HomeView, lonely_seconds
from isthmus.programs.engine.machine.kept_models import MODELS
from isthmus.programs.engine.machine.links import HomeAddress, HomeLink
from isthmus.programs.engine.machine.own_data_reading import READ_SECONDS, OwnDataReader, UnreadError
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.own_data import OwnData, own_data_faults
from isthmus.programs.engine.request.reference import is_open_loop
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.engine.results.run_files import DATA
from isthmus.programs.engine.results.words import text_is_on
from isthmus.programs.engine.run.launch import Launcher
from isthmus.programs.engine.run.script_lives import ScriptLives
from isthmus.programs.loop_script import OPEN_NAME
from isthmus.runtime.daemon.ground import HostLaunching, LocalGround, Processes
from isthmus.runtime.daemon.outpost import ORDERS, Outpost, read_orders
from isthmus.runtime.errors import ConfigError, Fault, RunError
from isthmus.runtime.ids import leader
from isthmus.runtime.supervision.station_events import FollowHome, TurnAway
from isthmus.runtime.system import run_memory
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.wire import account_files
from isthmus.runtime.wire.control_messages import LEAVE_RUN, Message

STATION: Final = "station"
UNSTATIONED: Final = "unstationed"
NO_MODEL: Final = "no-model"
"""Tells the daemon of a loop that no run begins with its model."""
SUPERSEDED: Final = "superseded"
"""Tells a machine that believes itself the home of a run that another one is."""
HEIR_SECONDS: Final = 2.0
"""Interval between dials of possible heirs of a silent home."""
NOTE: Final = "outpost.json"
PIECE_BYTES: Final = 1 << 18
REFUSALS_MAX: Final = 64
"""Reasons for taking no part in a run, of which each is told once."""
FILES: Final = re.compile(
    r"(logs|spans)/[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
    rf"|{account_files.OF_HOST.pattern}"
    r"|tape/[A-Za-z0-9][A-Za-z0-9._-]{0,99}-\d{1,9}-\d{1,9}\.\d{1,9}\.tape"
)
"""Files that a home may request: of tapes and accounts, those of hosts."""
LOGS: Final = "logs"
RESUMED: Final = "resumed"
"""In orders and reports: `Spec.resumed`."""
_WRONG: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""Errors of messages that no home of ours sends."""
_UNABLE: Final = (OSError, sqlite3.Error, zmq.ZMQError, RunError)


def is_log(name: str) -> bool:
    """Whether a file of a run is a log, which has what its processes print."""
    return name.startswith(f"{LOGS}/")


def host_of(log: str) -> str:
    """The host ('learner/2') that a log is of, as `isthmus logs` names it."""
    return "/".join(Path(log).name.partition(".log")[0].rsplit("-", 1))


def _remove_all_but(folder: Path, names: Sequence[str]) -> None:
    """Remove what is in a folder but these, and the folder, too, where there is none of these."""
    for path in sorted(folder.iterdir()):
        if path.name in names:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


@dataclass(slots=True)
class HeldOutpost:
    """An outpost, the link to the home that it follows, in that `term`, its `heirs`, and by name the links of those
    that have spoken as its home; `is_to_return`: it leaves, and what its learners' next lives begin with is kept."""

    outpost: Outpost
    run_spec: Spec
    link: HomeLink
    term: int
    heirs: tuple[HomeAddress, ...]
    speakers: dict[str, HomeLink]
    is_to_return: bool = False

    def note(self, run: str) -> dict[str, Any]:
        """The note for the next daemon."""
        heirs = [heir.as_data() for heir in self.heirs]
        kept = {"keeps_texts": self.outpost.keeps_texts}
        return {"run": run, "home": self.link.home.as_data(), "term": self.term, "heirs": heirs, **kept}


class Guest(Processes, Protocol):
    """A process that has started this daemon, and is the one host that it ever has (`loop_guest`)."""

    leaves: Sequence[Any]
    """The merged leaves of its model, as `loop_task.leaf_rows` has them."""
    evaluates: bool
    """Whether it can evaluate."""

    def life(self, folder: Path) -> HostLaunching:
        """How lives of the run in `folder` are begun here."""

    def model(self, slots: int, seed: int) -> dict[str, Any] | None:
        """Its model, which is the first of a run with so many slots and this seed; None until it has told that."""

    def tell(self, *, state: str) -> None:
        """Tell it what its daemon waits for."""

    def refuse(self, faults: Sequence[Fault]) -> None:
        """No run begins with its model, or none that it may be in."""

    def choose(self, *, is_chosen: bool) -> None:
        """Tell it whether it is the one that evaluates."""


@final
class Outposts:
    """The outposts of a daemon.

    Arguments:
        loop: that of the daemon.
        name: this machine.
        folder: they are below.
        config: what the machine permits.
        tell: gets lines for people.
        on_change: called when an outpost is added or removed.
        link: returns the link to a home.
        is_operator: judges a public key.
        at_home: takes a home's call for a run that has its home here, and returns whether there is one.
        guest: the process of a user's loop that is the only host here, if there is one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        folder: Path,
        config: MachineConfig,
        *,
        tell: Callable[[str], None],
        on_change: Callable[[], None],
        link: Callable[[HomeAddress], HomeLink],
        is_operator: Callable[[str], bool],
        at_home: Callable[[HomeLink, str, int], bool],
        guest: Guest | None = None,
    ) -> None:
        self._loop, self._name, self._folder, self._config = loop, name, folder, config
        self._tell, self._on_change, self._link = tell, on_change, link
        self._is_operator, self._at_home = is_operator, at_home
        self._held: dict[str, HeldOutpost] = {}
        self._is_ending = False
        self._left: set[str] = set()
        """The runs that this daemon has left because their home has asked for it: it takes part in them no more."""
        self._keeps_texts = config.error_texts == "local"
        self._refusals = set[str]()
        self.own_data = OwnDataReader(loop, name, config.site, tell)
        """Of its owner, on which learners here train."""
        self._stationing: dict[str, HomeLink] = {}
        """The runs before whose part here own data are read, and who has asked for them."""
        self._tasks = set[asyncio.Task[None]]()
        self.guest = guest
        self._requests: Mapping[str, Callable[[HomeAddress, Message], Awaitable[Message]]] = {
            "check": self._check,
            "files": self._files,
            "piece": self._piece,
            "model": self._model,
        }
        loop.call_later(HEIR_SECONDS, self._look_for_homes)

    # -- from outside --------------------------------------------------------------------------------------------------

    @property
    def folders(self) -> list[Path]:
        return [held.outpost.folder for held in self._held.values()]

    @property
    def outposts(self) -> list[Outpost]:
        return [held.outpost for held in self._held.values()]

    @property
    def error_texts(self) -> str:
        """Where texts of errors of its hosts stay."""
        return "local" if self._keeps_texts else "home"

    def runs(self, home: HomeAddress) -> list[str]:
        return [run for run, held in self._held.items() if held.link.home.identity == home.identity]

    def on_message(self, link: HomeLink, message: Message) -> None:
        """Carry out a home's message; refuses those from unknown homes, or about another home's run."""
        try:
            if message["type"] == STATION:
                self._station(link, message)
            elif message["type"] == ORDERS and message["run"] in self._held:
                if self._is_of_another_make(link, message):
                    self._begin_anew(link, str(message["run"]))
                else:
                    self._order(link, message)
            elif message["type"] == NO_MODEL and self.guest is not None:
                self.guest.refuse([Fault(*map(str, fault)) for fault in message["faults"]])
            elif message["type"] == LEAVE_RUN and message["run"] in self._held:
                self._leave_run(link, str(message["run"]), float(message["seconds"]))
            elif message["type"] == LEAVE_RUN and self._stationing.get(str(message["run"])) is link:
                self._left.add(str(message["run"]))
        except _WRONG as error:
            self._tell(f"refused what {link.home.name} says, a {message['type']}: {type(error).__name__}: {error}")

    async def answer(self, home: HomeAddress, message: Message) -> Message:
        """The answer to a home's request; ConfigError for a refusal."""
        try:
            return await self._requests[message["type"]](home, message)
        except ConfigError as error:
            if message["type"] == "check":
                self._tell_refusal(home, error.faults)
            raise

    def _of(self, home: HomeAddress, message: Message) -> Outpost:
        """The outpost that a home's message names; KeyError if there is none, or it is another home's."""
        run = str(message["run"])
        held = self._held[run]
        if held.link.home.identity != home.identity:
            raise KeyError(run)
        return held.outpost

    def _heard(self, link: HomeLink, run: str) -> HeldOutpost:
        """The outpost to which a machine may speak as its home; KeyError for others."""
        held, who = self._held[run], link.home
        speakers = [*held.heirs, *(link.home for link in held.speakers.values())]
        may_speak = any(each.identity == who.identity for each in speakers)
        if not (may_speak or self._is_operator(who.public_key)):
            raise KeyError(run)
        held.speakers[who.name] = link
        return held

    def adopt(self, folder: Path) -> None:
        """Adopt an outpost of the previous daemon."""
        try:
            note = json.loads(read_text(folder / NOTE))
            spec.rebase_clock_after_reboot(folder)
            heirs = tuple(HomeAddress(**heir) for heir in note["heirs"])
            link = self._link(HomeAddress(**note["home"]))
            # A daemon that was started otherwise than the one before it, which has promised to keep them.
            keeps_texts = bool(note["keeps_texts"]) or self._keeps_texts
            self._hold(folder, str(note["run"]), link, int(note["term"]), heirs, keeps_texts=keeps_texts)
            for heir in heirs if int(note["term"]) > 1 else ():  # One of them was its home and may believe it still is.
                self._dial(heir)
        except (KeyError, TypeError, ValueError, ConfigError, *_UNABLE) as error:
            self._tell(f"leaves {folder}, a run of the daemon before it: {error}")
            return
        self._tell(f"adopts its part of {note['run']}, a run of {note['home']['name']}")
        if (own := self._held[str(note["run"])].run_spec.here.own_data) is not None or self.own_data.is_used:
            self.own_data.tell_of_adopted(own)

    def leave(self, seconds_max: float) -> None:
        """Let every host here give what it has within so many seconds, and end; accept no new stations."""
        self._is_ending = True
        for held in list(self._held.values()):
            held.is_to_return = True
            held.outpost.leave(seconds_max)

    def _leave_run(self, link: HomeLink, run: str, seconds_max: float) -> None:
        """Let the hosts of a run give what they have within so many seconds, because its home asks for it."""
        held = self._heard(link, run)
        self._left.add(run)
        self._tell(f"leaves {run}, as its home {link.home.name} asks")
        held.outpost.leave(seconds_max)

    def close(self) -> None:
        """Read no data any more."""
        self.own_data.close()

    def end(self) -> None:
        """End every host here at once, and accept no new stations."""
        self._is_ending = True
        for held in list(self._held.values()):
            held.outpost.end()

    def end_of(self, home: HomeAddress) -> None:
        """End every host of a home's runs."""
        for run in self.runs(home):
            self._held[run].outpost.end()

    def standing(self, run: str, caller: str) -> HomeView:
        """This machine's knowledge of a run's home, for the machine `caller`, which is about to be the next one."""
        held = self._held.get(run)
        if held is None:
            return HomeView("", 0, is_heard=False)
        home = held.link.home
        return HomeView(home.name, held.term, is_heard=held.link.is_up and home.name != caller)

    def release(self, run: str) -> Path | None:
        """Release a run whose home this machine becomes; returns the folder of its hosts here, which keep running."""
        held = self._held.pop(run, None)
        if held is None:
            return None
        held.outpost.close()
        self._on_change()
        return held.outpost.folder

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _station(self, link: HomeLink, message: Message) -> None:
        """Have a part in a run from now on."""
        run, term = str(message["run"]), int(message["term"])
        if self._at_home(link, run, term) or run in self._left:
            return
        if run in self._held:
            self._heard(link, run).outpost.call(link.home.name, term)
            return
        # Times count from the same moment everywhere, as nearly as the way of this message is short.
        zero_ns = time.monotonic_ns() - int(message["age_ns"])
        if run in self._stationing:
            return
        try:
            task, learners = str(message["spec"]["job"]["task"]), int(message["spec"]["here"]["learners"])
        except _WRONG as error:
            self._unstationed(link, run, error)
            return
        if not self.own_data.is_used or learners <= 0:
            self._take_part(link, message, zero_ns, None)
            return
        self._stationing[run] = link
        taking = self._loop.create_task(self._take_part_with_own_data(link, message, zero_ns, task))
        self._tasks.add(taking)
        taking.add_done_callback(self._tasks.discard)

    async def _take_part_with_own_data(self, link: HomeLink, message: Message, zero_ns: int, task: str) -> None:
        """Have a part once the machine's own data are read, on which its learners train."""
        run = str(message["run"])
        try:
            own, table = await self.own_data.read(task, dict(message["spec"].get("data", {})))
            if run in self._left:  # Meanwhile its home has asked for that.
                return
            self._take_part(link, message, zero_ns, own)
            if run in self._held:
                folder = self._held[run].outpost.folder
                self.own_data.taken(task)
                write_json(folder / DATA, table)
                if own.terms.keeps_own:
                    await self._loop.run_in_executor(None, kept_models.begin, folder, spec.load(folder))
        except (*_WRONG, ConfigError, *_UNABLE) as error:
            self._unstationed(link, run, error)
        finally:
            del self._stationing[run]

    def _order(self, link: HomeLink, message: Message) -> None:
        """Carry out a home's orders, unless they give the task of a run to a host that must not have it here."""
        held = self._heard(link, str(message["run"]))
        run_spec = held.run_spec
        if run_spec.here.is_site:
            wanted = [each.member.replica for each in read_orders(message)[0].wanted]
            computing = [each for each in wanted if leader(each).role in run_spec.computing]
            if faults := [fault for each in computing if (fault := run_spec.fault_of(each)) is not None]:
                error = ConfigError.of(faults)
                link.send({"type": UNSTATIONED, "run": message["run"], "error": f"{type(error).__name__}: {error}"})
                self._tell_refusal(link.home, faults)
                return
        held.outpost.order(link.home.name, message)

    def _is_of_another_make(self, link: HomeLink, message: Message) -> bool:
        """Whether a home that counts here has gone on from a snapshot on all machines since this one takes part; or, of
        a later term, has a copy of the run of before that: it hears no host of another make. Whoever is the home no
        more is turned away by the station."""
        held = self._heard(link, str(message["run"]))
        if int(message.get(RESUMED, 0)) == held.run_spec.resumed:
            return False
        orders = read_orders(message)[0]
        is_home = orders.stamp.term > held.term or (
            orders.stamp.term == held.term and link.home.identity == held.link.home.identity
        )
        return is_home and not orders.is_over and orders.home == link.home.name

    def _begin_anew(self, link: HomeLink, run: str) -> None:
        """End what is here of a run that has gone on from a snapshot on all machines; its home has this machine take
        part anew once it has heard of the end."""
        held = self._heard(link, run)
        if not held.is_to_return:
            held.is_to_return = True
            self._tell(f"ends its hosts of {run}, which goes on from a snapshot: they begin anew")
            held.outpost.end()

    def _take_part(self, link: HomeLink, message: Message, zero_ns: int, own: OwnData | None) -> None:
        run, term = str(message["run"]), int(message["term"])
        try:
            if not RUN_NAME.fullmatch(run):
                raise ValueError(f"a run named {run!r}")
            run_spec = spec.read(message["spec"])
            self._permit(run_spec.job.program, run_spec.job.task.text, computes=run_spec.here.learners > 0)
            folder = self._folder / run
            folder.mkdir(parents=True, exist_ok=True)
            run_memory.forget(folder)  # Of another run of this name, or of this one before it was resumed.
            # Whatever the message says: only the owner names data of this machine.
            own_data = None if own is None else asdict(own)
            owners = {"own_data": own_data, "is_site": self.own_data.is_used}
            here = {**message["spec"]["here"], "secret": str(self._config.secret or ""), **owners}
            spec.write(folder, {**message["spec"], "zero_ns": zero_ns, "here": here})
            heirs = tuple(HomeAddress(*map(str, heir)) for heir in message["heirs"])
            held = self._hold(folder, run, link, term, heirs, keeps_texts=self._keeps_texts)
            write_json(folder / NOTE, held.note(run))
        except (KeyError, TypeError, ValueError, ConfigError, *_UNABLE) as error:
            self._unstationed(link, run, error)
            return
        self._tell(f"takes part in {run}, a run of {link.home.name}")

    def _unstationed(self, link: HomeLink, run: str, error: Exception) -> None:
        """Tell a home, and people here, that this machine has no part in a run."""
        # What the system says of a file names it.
        is_told = isinstance(error, ConfigError) or not self._keeps_texts
        text = error if is_told else f"its owner sees the reason in what the daemon of {self._name!r} prints"
        link.send({"type": UNSTATIONED, "run": run, "error": f"{type(error).__name__}: {text}"})
        self._tell(f"refused its part of {run}, a run of {link.home.name}: {error}")

    def _hold(
        self, folder: Path, run: str, link: HomeLink, term: int, heirs: tuple[HomeAddress, ...], *, keeps_texts: bool
    ) -> HeldOutpost:
        self._settle(folder, link.home)
        run_spec = spec.load(folder)
        launch: HostLaunching
        if self.guest is None:
            script, forbids = run_spec.script, partial(self._config.refusal_of, machine=self._name)
            launch = Launcher(
                self._loop,
                folder,
                run_spec.computing,
                run_spec.task_of,
                None if script is None else ScriptLives(folder, run_spec, script, None, forbids),
                start_seconds=run_spec.settings.first_beat_seconds,
            )
            processes = None
        else:
            launch, processes = self.guest.life(folder), self.guest
        tape_bytes = run_spec.settings.tape_bytes
        outpost = Outpost(
            LocalGround(self._loop, folder, name=self._name, launch=launch, processes=processes, tape_bytes=tape_bytes),
            run=run,
            name=self._name,
            home=link.home.name,
            term=term,
            send=lambda message: self._held[run].link.send({**message, RESUMED: run_spec.resumed}),
            follow=lambda command: self._follow(run, command),
            turn_away=lambda command: self._turn_away(run, command),
            lonely_seconds=lonely_seconds(run_spec),
            on_over=lambda: self._over(run),
            keeps_texts=keeps_texts,
            is_far=self._config.is_far,
        )
        held = self._held[run] = HeldOutpost(outpost, run_spec, link, term, heirs, {link.home.name: link})
        self._on_change()
        outpost.start()
        return held

    def _settle(self, folder: Path, home: HomeAddress) -> None:
        """Hosts here reach the porter of the home at the address at which this daemon reaches the home."""
        config = self._config
        reaches = [(home.name, home.address)]
        spec.settle(folder, has_porter=config.has_porter, ports=config.ports, is_far=config.is_far, reaches=reaches)

    def _follow(self, run: str, command: FollowHome) -> None:
        """The station follows another home from now on."""
        held = self._held[run]
        former, held.link, held.term = held.link.home.name, held.speakers[command.home], command.term
        with suppress(OSError):  # The home calls again, where the next daemon does not know it.
            write_json(held.outpost.folder / NOTE, held.note(run))
            self._settle(held.outpost.folder, held.link.home)
        self._tell(f"follows {command.home}, the home of {run} in term {command.term}, in place of {former}")

    def _turn_away(self, run: str, command: TurnAway) -> None:
        """A machine takes itself for the home of a run, and is not."""
        speaker = self._held[run].speakers.get(command.home)
        if speaker is not None:
            speaker.send({"type": SUPERSEDED, "run": run, "by": command.by})

    def _look_for_homes(self) -> None:
        """Dial the heirs of homes that are silent, because one may have become the home."""
        self._loop.call_later(HEIR_SECONDS, self._look_for_homes)
        for held in self._held.values():
            for heir in held.heirs if not held.link.is_up else ():
                self._dial(heir)

    def _dial(self, heir: HomeAddress) -> None:
        """Open a link to a machine that may be a home, unless it is this one."""
        with suppress(ConfigError, zmq.ZMQError):  # It needs keys that are missing, or cannot be dialled.
            if heir.name != self._name:
                self._link(heir)

    def _over(self, run: str) -> None:
        """Every host has ended, and the home has the files it requested: remove the outpost, but for what it keeps."""
        held = self._held.pop(run)
        held.outpost.close()
        folder, home, kept = held.outpost.folder, held.link.home.name, [MODELS]
        if self.keep_models(folder):
            count, size = kept_models.bytes_kept(self._folder)
            self._tell(f"keeps {count} models in all, {size / 1e6:.3g} MB, below {self._folder}: yours to delete")
        if held.is_to_return:  # With its ledger and the moments of its learners.
            self._tell(f"left {run}, a run of {home}; what its return goes on with is in {folder}")
            self._on_change()
            return
        logs = ""
        if held.outpost.keeps_texts and any((folder / LOGS).glob("*")):
            logs, kept = f"; its logs are in {folder / LOGS}", [*kept, LOGS]
        evaluations = folder / EVALUATIONS
        if evaluations.exists():  # The site's own, told to the home or not.
            logs, kept = f"{logs}; its evaluations are {evaluations}", [*kept, EVALUATIONS, DATA]
        with suppress(OSError):
            _remove_all_but(folder, kept)
        self._tell(f"finished its part of {run}, a run of {home}{logs}")
        self._on_change()

    def keep_models(self, folder: Path) -> bool:
        """Keep the models that learners have left for their site, and tell the owner where they are; whether there are
        some."""
        try:
            own = spec.load(folder).here.own_data
            if own is None or not own.terms.keeps_own:
                return False
            lines = list(kept_models.keep_left(folder).lines)
        except (*_WRONG, ConfigError, *_UNABLE) as error:
            self._tell(f"keeps no models of the run in {folder}: {error}")
            return False
        for line in lines or ["keeps no model of this run: no learner here has left one"]:
            self._tell(line)
        return bool(lines)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _check(self, home: HomeAddress, message: Message) -> Message:
        """Check that a program and a task may be loaded here, and that their files and data equal the home's."""
        program, task, wanted = str(message["program"]), str(message["task"]), str(message["digest"])
        self._permit(program, task, computes=bool(wanted))
        if self.guest is not None and (layout := message.get("layout")):
            from isthmus.programs.loop_task import unlike  # Of a machine with a guest.

            if fault := unlike(self.guest.leaves, layout):
                self.guest.refuse([fault])  # Before it has a slot.
                raise ConfigError.of([fault])
        script = ""
        own = self.own_data.is_used
        if wanted and own and (faults := list(own_data_faults(task, self._name))):
            raise ConfigError.of(faults)  # Before files that the task names are read.
        if wanted:
            doing = f"Comparing sources and data on the machine {self._name!r}"
            digest = await self._loop.run_in_executor(None, partial(handover.digest, program, task, has_own_data=own))
            if digest != wanted[: len(digest)]:
                do = "Put the same isthmus, program, task and data (--data; else Python's library) on every machine."
                found = "something else" if own else f"something else, {digest[:8]}"  # A part of it checks a guess.
                raise ConfigError(doing, f"what the command has, {wanted[:8]}", found, do)
            script = await self._loop.run_in_executor(None, checked_digest, task, self._name)
        unread: tuple[Fault, ...] = ()
        if wanted and own:
            try:
                await self.own_data.read(task, dict(message.get("data", {})), READ_SECONDS)
            except UnreadError as error:
                unread = tuple(error.faults)
        unreached = await ways_to_others.faults(
            message.get("ways", []), self._name, f"Looking for ways to the machines of a run of {home.name}"
        )
        unreached += unread
        if unreached and self.guest is not None:
            self.guest.tell(state=f"waits for a way: {ConfigError.of(unreached)}")
        self._tell_refusal(home, unreached)
        return {
            "type": "permitted",
            "script": script,
            ways_to_others.UNREACHED: [list(fault) for fault in unreached],
            **self.standing(str(message.get("run", "")), home.name)._asdict(),
        }

    def _tell_refusal(self, home: HomeAddress, faults: Sequence[Fault]) -> None:
        """Tell why this machine takes no part in a run, once; the home is told by the answer."""
        if faults and (text := str(ConfigError.of(list(faults)))) not in self._refusals:
            self._refusals = {*self._refusals, text} if len(self._refusals) < REFUSALS_MAX else {text}
            self._tell(f"takes no part in a run of {home.name}: {text}")

    def _permit(self, program: str, task: str, *, computes: bool) -> None:
        faults = list(self._config.faults(program, task, self._name, computes=computes))
        if self.guest is not None and not is_open_loop(task):
            do = f"Begin a run of loops there: a cluster file with [run] task = {OPEN_NAME!r}."
            faults.append(Fault("Joining with a loop", "a run whose learners are loops", f"one of {task!r}", do))
        if self._is_ending:
            do = "Start it again, or wait until it has been."
            faults.append(Fault(f"Asking the machine {self._name!r} to take part", "one that goes on", "it ends", do))
        if faults:
            raise ConfigError.of(faults)

    async def _model(self, home: HomeAddress, message: Message) -> Message:
        """The model of the loop that this is the daemon of, None until its first step: for a home that begins a run."""
        if self.guest is None:
            raise ValueError("this is the daemon of no loop")
        return {"type": "model", "model": self.guest.model(int(message["slots"]), int(message["seed"]))}

    async def _files(self, home: HomeAddress, message: Message) -> Message:
        """[name, bytes] of the logs, spans and tapes of a run, and the names of the logs that are `kept` here."""
        outpost = self._of(home, message)
        found = {f"{path.parent.name}/{path.name}": path for path in sorted(outpost.folder.glob("*/*"))}
        names = [name for name in found if FILES.fullmatch(name)]
        logs = [name for name in names if outpost.keeps_texts and is_log(name)]
        files = [[name, found[name].stat().st_size] for name in names if name not in logs]
        kept = [name for name in logs if name.endswith(".log")]  # A log and its end before are one for people.
        return {"type": "files", "files": files, "kept": kept}

    async def _piece(self, home: HomeAddress, message: Message) -> Message:
        """A part of a file, each byte a character; of the last bytes if the offset is negative."""
        name, offset = str(message["name"]), int(message["offset"])
        if not FILES.fullmatch(name):
            raise ValueError(f"no file of a run: {name[:100]!r}")
        outpost = self._of(home, message)
        if outpost.keeps_texts and is_log(name):
            do = f"Look there: {text_is_on(self._name, host_of(name))}."
            raise ConfigError(f"Reading {name}", "a file that its machine gives away", "one that it keeps", do)
        path = outpost.folder / name
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size + offset) if offset < 0 else offset)
            return {"type": "piece", "text": file.read(PIECE_BYTES).decode("latin-1")}
