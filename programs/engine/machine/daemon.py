"""The daemon of a machine: takes runs that commands hand to it, supervises several at once, and answers for them.

Decides who may request what, which run is carried out here, and how a request is answered: every message of a command
has one answer, and one that cannot be fulfilled, or that its sender may not send, is answered with the faults. Code is
judged by name before anything starts; this process imports no user's code. What belongs to no run is a service
(`services`), of which none is named here. The messages of other machines, and the parts that this one has in their
runs, are in `neighbours`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.handover import Handover, RunRoot, Sites
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.cluster.permitted_scripts import checked_digest
from isthmus.programs.engine.machine import kept_models, services
from isthmus.programs.engine.machine.absent_homes import alone_ns
from isthmus.programs.engine.machine.client import GO_ON, patience
from isthmus.programs.engine.machine.doors import Door, OwnDoor, door_that_leads_in
from isthmus.programs.engine.machine.followed_runs import RUNNING
from isthmus.programs.engine.machine.links import (
    INSTANCE_LENGTH_MAX,
    MALFORMED,
    HomeAddress,
    answered,
    refusal,
)
from isthmus.programs.engine.machine.names import DaemonRun
from isthmus.programs.engine.machine.neighbours import FORMER_MAX, Neighbours
from isthmus.programs.engine.machine.outposts import NOTE
from isthmus.programs.engine.machine.own_data_reading import READ_SECONDS
from isthmus.programs.engine.machine.readiness import check_machines, to_take_part
from isthmus.programs.engine.machine.run import (
    LEASE_TICKS_MAX,
    TICK_SECONDS,
    UNABLE,
    MachineRun,
    end_of_log,
    has_hosts,
    outcome_in,
    told_of,
    unable,
)
from isthmus.programs.engine.machine.services import DaemonService, Handler, Services
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.request.own_data import OwnData
from isthmus.programs.engine.results.run_files import OVER, check_files, summary_of
from isthmus.programs.engine.run.held_run import LEAVING_SHARE
from isthmus.programs.engine.run.room_for_hosts import check_compiler
from isthmus.programs.engine.run.run_end import error_of
from isthmus.programs.engine.snapshots.snapshot_files import has_snapshot
from isthmus.runtime.daemon.home_daemon import Daemon
from isthmus.runtime.daemon.outpost import Outpost
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.supervision.home_events import INTERRUPTED
from isthmus.runtime.system.disk import FullNotes
from isthmus.runtime.system.processes import boot_id
from isthmus.runtime.wire.control_messages import SET_ASIDE, Message, version_of
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.security_keys import Keyring

LOGGED_MAX: Final = 256
"""Refusals that are told, each once: more machines and types of requests than anybody reads of, and few bytes."""
OPERATORS: Final = {
    "machine": "to tell of its runs",
    "call": "to take part in runs of another home",
    "check": "to check a run",
    "take": "to take a run",
    GO_ON: "to go on with a run",
    "watch": "to show a run",
    "log": "to show the log of a run",
    "stop": "to stop a run",
    "end": "to end a run",
    SET_ASIDE: "to let a run go on",
    "expel": "to expel a machine",
    **services.OPERATORS,
}
"""Requests that need an operator's key: message type, and its meaning in words."""


@final
class Authority:
    """Checks messages to the daemon of `machine` against its current keys.

    `tell` gets one line for people about each machine and request type that is refused.

    A machine that is admitted offers its islands: it links itself, reports, answers and leaves, each for itself. All
    other requests, which decide what runs here or report on it, are for an operator: the machine's own key, one that
    was admitted with `--operator`, and, at a daemon without keys, which listens on loopback only, any caller.
    """

    def __init__(self, machine: str, keys: Keyring | None, tell: Callable[[str], None]) -> None:
        self._machine, self._keys, self._tell = machine, keys, tell
        self._logged: set[tuple[str | None, str]] = set()

    def check(self, kind: str, caller: str | None) -> None:
        """ConfigError if the machine `caller` may not send a message of this type."""
        keys = self._keys
        if kind not in OPERATORS or keys is None or (caller is not None and caller in keys.operators):
            return
        key = keys.key_of(caller or "") or "KEY"
        do = f"Type on that machine: isthmus admit --operator {caller} {key}"
        if (caller, kind) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((caller, kind))
            self._tell(f"refused the machine {caller}, which asked it {OPERATORS[kind]}: it is no operator")
        expected, actual = "an operator's key", f"that of {caller!r}, which may offer islands and nothing else"
        raise ConfigError(f"Asking the daemon {self._machine!r} {OPERATORS[kind]}", expected, actual, do)


ANSWERED_SHARE: Final = 0.9
"""Share of a command's waiting time within which a refusal for lack of time leaves."""
OVER_TICKS: Final = 2
"""A daemon that ends with its runs stays for so long, in which every machine that is linked hears of their outcomes."""
ENDED_BY_COMMAND: Final = f"the command that watched the run has not been heard of for {LEASE_TICKS_MAX} s"
ENDED_BY_DAEMON: Final = "ended with the daemon of its machine"


class DaemonOwner(Protocol):
    """Whoever runs a daemon."""

    def tell(self, line: str) -> None:
        """Tell people a line."""

    def changed(self, endpoint: str, runs: list[DaemonRun]) -> None:
        """The runs that are not over have changed; the daemon is reached at `endpoint`."""

    def idle(self) -> None:
        """The daemon is ending, and no run is left."""


@final
class MachineDaemon:
    """The daemon of a machine.

    Each run has a `Daemon` of its own on the same loop, and its folder is on this machine, which is the run's home. A
    run is running, then finishing (its processes have ended, and summary and report are written), then over:
    `over.json` is there. A message names runs by the folders that this daemon has announced, and no other.

    Arguments:
        loop: its event loop.
        name: the machine's.
        listen: where commands and other daemons reach it.
        config: what the machine permits, and the root of its own runs.
        keys: its own and the admitted ones; without, it listens on loopback only.
        folder: has its parts of other homes' runs.
        owner: gets what it tells.
        services: those it has beside the ones that are loaded when they are asked.
    """

    def __init__(
        self,
        loop: Any,
        name: str,
        listen: str,
        config: MachineConfig,
        keys: Keyring | None,
        folder: Path,
        owner: DaemonOwner,
        services: Iterable[DaemonService] = (),
    ) -> None:
        """Bind; zmq.ZMQError if the endpoint is taken."""
        self.neighbours: Neighbours
        self.name = name
        self.has_killed = self.is_set_aside = False
        self._presses = 0
        self._later_runs: list[DaemonRun] = []
        """The runs that were set aside."""
        self._over_ticks = 0
        self.fault: ConfigError | None = None
        self.keys, self.loop, self._owner = keys, loop, owner
        self._runs: dict[str, MachineRun] = {}
        self._former: dict[str, str] = {}
        self.root = RunRoot.at(config.runs)
        self._authority = Authority(name, keys, self.tell)
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._claims_refused: set[tuple[str, str]] = set()
        make = door_that_leads_in(listen) if config.has_porter else None
        self._door: Door = OwnDoor(listen) if make is None else make(loop, listen, keys, self._listening, self.tell)
        config = self.config = replace(config, has_porter=self._door.leads_in)
        self._server = ControlServer(
            loop,
            self._door.inner,
            self._hear,
            self._stranger,
            keys=keys,
            is_far=config.is_far,
            on_unknown=self._unknown,
            on_claim=self._claimed,
            on_crossed=lambda *crossing: self.neighbours.links.crossed(*crossing),
        )
        self.endpoint = self._door.endpoint or self._server.endpoint
        self._relayed: dict[str, list[str]] = {}
        self._full = FullNotes[str]()
        self._services = Services(self, services)
        self.neighbours = Neighbours(
            loop,
            name,
            folder,
            config,
            keys,
            runs=lambda: list(self._runs.values()),
            send=self._server.send,
            tell=self.tell,
            caller=self.caller,
            on_change=self._changed,
            on_expelled=self._expelled,
            on_loop=self._services.loop_linked,
            home_handler=self._services.home_handler,
            guest=self._services.guest(),
        )
        self._handlers: Mapping[str, Handler] = {
            "check": self._check,
            "log": self._log,
            "machine": lambda message: self._machine(),
            "call": self._call,
            "take": self._accept_run,
            GO_ON: self._go_on,
            "watch": self._watch,
            "stop": self._stop,
            "end": self._end,
            "expel": self._expel,
            SET_ASIDE: self._release,
        }
        # A message has one answer: `_hear` asks neighbours first, then these, and then the services.
        assert not self._handlers.keys() & self.neighbours.handlers.keys()
        assert not self._services.kinds & {*self._handlers, *self.neighbours.handlers}
        loop.call_later(TICK_SECONDS, self._tick)
        # The server is bound by now: what the door accepts has somewhere to go.
        self._door.start(self._server.endpoint)
        self._services.start()  # Last: they may ask all of a `ServedMachine` at once.

    # -- from outside --------------------------------------------------------------------------------------------------

    def adopt(self, run: DaemonRun) -> None:
        """Adopt a run of the previous daemon: with its live hosts or from its snapshot; end it if there is neither."""
        folder = Path(run.folder)
        if (folder / NOTE).exists():
            self.neighbours.outposts.adopt(folder)
            return
        if (folder / OVER).exists():
            self._remember(run.folder, outcome_in(folder))
            return
        if not (folder / spec.SPEC).exists():
            return
        from isthmus.programs.engine.run.standstill import FOR_EVER, stand_still  # Few daemons adopt runs.

        try:
            check_files(folder, "Adopting a run")
            sites, are_here = Sites.load(folder), has_hosts(folder)
            altered = self._checked_unaltered(folder)  # Where hosts live, too: next lives would be of other files.
            stand_still(folder, elsewhere_ns=FOR_EVER if are_here else alone_ns(folder))
            run_spec = told_of(folder, "Adopting a run")
            # Other machines may hold the lost state.
            is_alive = are_here or bool(sites.others)
            goes_on = is_alive or has_snapshot(folder)
            held = self._hold(folder, run_spec, sites, is_watched=run.is_watched)
        except (ConfigError, *UNABLE, *MALFORMED) as error:  # Of one run: this daemon may have others.
            self.tell(f"leaves {folder}, a run of the daemon before it: {error}")
            return
        how = "" if is_alive else ", which has no living process" + (", from its snapshot" if goes_on else "")
        self._say(held, f"adopts {folder}{how}{altered and f'; {altered}'}")
        if not goes_on:
            held.daemon.end("the daemon of its machine was gone for too long")

    def _checked_unaltered(self, folder: Path) -> str:
        """What a run goes on with that hosts do not agree on, in words; ConfigError if it would go on with other files
        than before: what there is of it waits until a command, or the next daemon, goes on with it."""
        from isthmus.programs.engine.request.sources import check_unaltered, told_if_changed  # As above.

        try:
            check_unaltered(folder, "Adopting a run")
            return told_if_changed(folder)
        except ConfigError:
            self._later_runs = [*self._later_runs, DaemonRun(str(folder), is_watched=False)]
            self.neighbours.set_aside.add(spec.load(folder).run)
            raise

    def request_end(self) -> None:
        """Ask every run to stop, leave those of others, and take no more; after the first time, end them at once."""
        is_first, self._is_ending = not self._presses, True
        self._presses += 1
        for run in list(self._runs.values()):
            if is_first:
                run.daemon.request_stop()
            elif run.daemon.outcome in ("running", INTERRUPTED):
                self.has_killed = True
                run.daemon.end(ENDED_BY_DAEMON)
        if is_first:
            self.neighbours.leave(self.config.grace * LEAVING_SHARE)
        else:
            self.neighbours.end()
        if is_first and self._runs:
            self.tell(f"asks {_count(len(self._runs))} to stop, and waits; a second Ctrl-C ends them at once")
        self._leave_if_idle()

    def set_aside(self) -> None:
        """Within the grace set every run aside, for the next daemon of this name, and leave those of others."""
        if self.is_set_aside:
            return
        self._is_ending = self.is_set_aside = True
        if self._runs:
            self.tell(f"sets {_count(len(self._runs))} aside: the next daemon {self.name} goes on with them")
        for run in list(self._runs.values()):
            run.set_aside(self.config.grace)
        self.neighbours.leave(self.config.grace * LEAVING_SHARE)
        self._leave_if_idle()

    def summary(self) -> str:
        """Its runs in one line."""
        runs = [f"{run.name} {run.daemon.outcome}" for run in self._runs.values()]
        return f"{_count(len(runs))}: {', '.join(runs)}" if runs else f"no run; {_count(len(self._former))} over"

    @property
    def is_over(self) -> bool:
        """Whether it ends with its runs, and none goes on."""
        followed = self.neighbours.followed
        return followed is not None and followed.are_over

    @property
    def has_failed(self) -> bool:
        """Whether it ends with its runs, and one has failed."""
        return self.is_over and self.neighbours.followed is not None and self.neighbours.followed.has_failed

    @property
    def folders(self) -> list[str]:
        """The folders of the runs that have their home here and are not over."""
        return list(self._runs)

    def know(self, folder: str, outcome: str) -> None:
        """Know a run that was over before this daemon began."""
        self.neighbours.note(self.name, {folder: outcome})
        self._remember(folder, outcome)

    def caller(self) -> str | None:
        """The machine whose message is handled now, by its key; None without keys."""
        return self._server.caller

    def statuses(self) -> list[dict[str, Any]]:
        """The status of each run that has its home here, and of its part in each of others, by the name of the run."""
        own = [{**run.daemon.status(), "run": run.name} for run in self._runs.values()]
        return [*own, *(outpost.status() for outpost in self.neighbours.outposts.outposts)]

    def fail(self, fault: ConfigError) -> None:
        """End, because the daemon cannot do what it was started for."""
        self.fault = fault
        self.request_end()

    def tell(self, line: str) -> None:
        """Tell people a line."""
        self._owner.tell(line)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` on the loop of this daemon, after `seconds`."""
        self.loop.call_later(seconds, call)

    def close(self) -> None:
        self.neighbours.close()
        self._services.close()
        self._door.close()
        self._server.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _hear(self, peer: bytes, message: Message) -> None:
        kind = message["type"]
        try:
            self._authority.check(kind, self._server.caller)
            if kind in self.neighbours.handlers:
                self.neighbours.handlers[kind](peer, message)
                return
            handler = self._handlers.get(kind) or self._services.handler(kind)
            if handler is None:
                raise ValueError(f"no message: {kind[:100]!r}")
            answer = handler(message)
            if not isinstance(answer, dict):
                task = self.loop.create_task(self._answer_later(peer, kind, answer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
        except (ConfigError, *MALFORMED) as error:
            answer = refusal(error)
        self._server.send(peer, answer)

    def _claimed(self, peer: bytes, invitation: str, message: Message) -> None:
        """Answer the holder of an invitation, who asks for a machine's key to be admitted."""
        try:
            away_seconds = self.neighbours.links.away_seconds(str(message["name"]))
            claimed = self._services.claim(invitation, message, away_seconds)
            if claimed is None:
                return
            answer = claimed
        except (ConfigError, *MALFORMED) as error:
            answer = refusal(error)
            claim = invitation, str(message.get("name"))[:INSTANCE_LENGTH_MAX]
            if claim not in self._claims_refused and len(self._claims_refused) < LOGGED_MAX:
                self._claims_refused.add(claim)
                self.tell(f"refused a claim by invitation: {answer['faults'][0][0]}: found {answer['faults'][0][2]}")
        self._server.send(peer, answer)

    async def _answer_later(self, peer: bytes, kind: str, coming: Awaitable[Message]) -> None:
        doing = f"Answering a command at the daemon {self.name!r}"
        self._server.send(peer, await answered(coming, doing, ANSWERED_SHARE * patience(kind)))

    def _stranger(self, message: Message) -> None:
        self.tell(f"refused a command of {version_of(message)}; this is {version_of()}")

    def _unknown(self, key: str, address: str) -> None:
        address = self._door.peer(address)
        self.tell(f"refused a connection from {address}, whose key it does not admit: isthmus admit NAME {key}")

    def _machine(self) -> Message:
        runs = [{"run": folder, "name": run.name, "outcome": run.daemon.outcome} for folder, run in self._runs.items()]
        former = [{"run": folder, "outcome": outcome} for folder, outcome in self._former.items()]
        return {"type": "machine", "name": self.name, "pid": os.getpid(), "boot": boot_id().decode(),
                "root": str(self.root.folder), "runs": runs, "former": former}  # fmt: skip

    def _call(self, message: Message) -> Message:
        """The home of a run asks this machine to link itself."""
        home = HomeAddress(**message["home"])
        if self.keys is not None and self.keys.name_of(home.public_key) != home.name:
            do = f"Type here: isthmus admit {home.name} KEY."
            raise ConfigError(f"Linking to {home.name!r}", "a home whose key is admitted", "a stranger", do)
        self.neighbours.link(home)
        return self._machine()

    async def _check(self, message: Message) -> Message:
        """Whether this machine and all others that are to take part would take a run."""
        sites, faults = Sites.read(message["cluster"]), [Fault(*fault) for fault in message["faults"]]
        program, task = str(message["program"]), str(message["task"])
        computing = [str(role) for role in message["computing"]]
        computes, digests = sites.computes(sites.sites[sites.home], computing), dict[str, str]()
        try:
            self.permit(program, task, str(message["run"]), computes=computes)
            if computes:
                digests[self.name] = await self.loop.run_in_executor(None, checked_digest, task, self.name)
            if self._trains_on_own_data(sites):
                await self.neighbours.outposts.own_data.read(task, {}, READ_SECONDS)
        except ConfigError as error:
            faults += error.faults
        requests = to_take_part(sites, self.name, program, task, computing)
        more, theirs = await check_machines(self.neighbours.links, requests, self.keys)
        faults += more
        if faults:
            raise ConfigError.of(faults)
        return {"type": "permitted", "scripts": {**digests, **theirs}}

    async def _log(self, message: Message) -> Message:
        """The end of the log of a host, or of a daemon, of a run that may be over."""
        run = str(message["run"])
        if run not in self._former:
            self._run_of(message)
        held = self._runs.get(run)
        name, elsewhere = ("", {}) if held is None else (held.name, dict(held.daemon.home.fleet.placed()))
        text = await end_of_log(Path(run), str(message["name"]), name, elsewhere, self.neighbours.links)
        return {"type": "log", "text": text}

    def permit(self, program: str, task: str, run: str, *, computes: bool = True) -> None:
        """ConfigError for a program, task and run that are not permitted here; `computes`: hosts here may load them."""
        faults = list(self.config.faults(program, task, self.name, computes=computes))
        if self._is_ending:
            do = "Start it again, or wait until it has been."
            faults.append(Fault(f"Handing a run to the daemon {self.name!r}", "one that goes on", "it is ending", do))
        if faults:
            self.tell(f"refused {run}: expected {faults[0].expected}, found {faults[0].found}")
            raise ConfigError.of(faults)

    def _accept_run(self, message: Message) -> Message | Awaitable[Message]:
        """Make the folder of a run, and start it."""
        handed, is_watched = Handover.read(message["handover"]), bool(message["is_watched"])
        if not self._trains_on_own_data(handed.sites):
            return self._accept(handed, None, is_watched=is_watched)
        return self._accept_with_own_data(handed, is_watched=is_watched)

    async def _accept_with_own_data(self, handed: Handover, *, is_watched: bool) -> Message:
        reader, run_spec = self.neighbours.outposts.own_data, spec.read(handed.spec)
        task = run_spec.job.task.text
        own, _ = await reader.read(task, run_spec.data, READ_SECONDS)
        reader.taken(task)
        taken = self._accept(handed, own, is_watched=is_watched)
        if own.terms.keeps_own:
            folder = Path(taken["run"])
            try:
                await self.loop.run_in_executor(None, lambda: kept_models.begin(folder, spec.load(folder)))
            except OSError as error:  # The run goes on.
                self.tell(f"keeps no models of the run in {folder}: {error}")
        return taken

    def _trains_on_own_data(self, sites: Sites) -> bool:
        """Whether learners of a run are here, which train on data of this machine's owner."""
        return self.neighbours.outposts.own_data.is_used and sites.here(None).learners > 0

    def _accept(self, handed: Handover, own: OwnData | None, *, is_watched: bool) -> Message:
        doing = f"Handing a run to the daemon {self.name!r}"
        run_spec = spec.read(handed.spec)
        sites = handed.sites
        computes = sites.home in sites.sites and sites.computes(sites.sites[sites.home], run_spec.computing)
        job, run_name = run_spec.job, handed.folder or handed.name
        self.permit(job.program, job.task.text, run_name, computes=computes)
        check_compiler(doing)
        handed.check(run_spec, self.name, self.run_names(), doing)
        ports = self.config.ports
        if ports and not spec.is_one_port(ports):
            listening = handed.sites.listening(run_spec.roles)
            cluster_file.check_room(ports, self.endpoint, listening, len(list(self._listening())), doing)
        folder = handed.make_folder(self.root, time.monotonic_ns(), self.config.secret, own)
        try:
            run = self._hold(folder, told_of(folder, doing), handed.sites, is_watched=is_watched)
        except UNABLE as error:
            raise unable(doing, error) from error
        elsewhere = f" on {len(handed.sites.sites)} machines" if handed.sites.others else ""
        hosts = f"{sum(run_spec.roles.values())} hosts{elsewhere}"
        self._say(run, f"took {folder}: {hosts}{'' if is_watched else ', detached'}")
        return {"type": "taken", "run": str(folder)}

    def _go_on(self, message: Message) -> Message:
        """Go on with a run in a folder here that a command has made ready."""
        doing = f"Going on with a run at the daemon {self.name!r}"
        folder = self.root.existing(str(message["run"]), doing)
        run_spec, sites = told_of(folder, doing), Sites.load(folder)
        if sites.home != self.name:
            do = f"Type it at the daemon of {sites.home!r}."
            raise ConfigError(doing, f"a run whose home is {self.name!r}", shortened(repr(sites.home), 100), do)
        if run_spec.run in self.run_names():  # Its folder was copied.
            found, do = f"{run_spec.run!r}, which goes on in another folder", "Stop that one before."
            raise ConfigError(doing, "a run that goes on nowhere else", found, do)
        job, computes = run_spec.job, sites.computes(sites.sites[sites.home], run_spec.computing)
        self.permit(job.program, job.task.text, str(message["run"]), computes=computes)
        check_compiler(doing)
        try:
            run = self._hold(folder, run_spec, sites, is_watched=bool(message["is_watched"]))
        except UNABLE as error:
            raise unable(doing, error) from error
        self._say(run, f"goes on with {folder}")
        return {"type": "taken", "run": str(folder)}

    def run_names(self) -> list[str]:
        """The names of the runs that have their home here."""
        return [run.name for run in self._runs.values()]

    def hold_next(self, folder: Path, run_spec: spec.Spec, sites: Sites) -> None:
        """Be the home of a run from now on that had another one; one of UNABLE if that cannot be."""
        run = self._hold(folder, run_spec, sites, is_watched=False)
        self._say(run, f"is the home of {run_spec.run} in term {sites.term}, in place of {sites.former or self.name}")

    def _watch(self, message: Message) -> Message:
        """The status of a run, or its summary, if it is over; renews its lease, if a watching command asks."""
        folder = str(message["run"])
        if folder in self._former:
            return {"type": "over", "run": folder, "summary": summary_of(Path(folder))}
        run = self._run_of(message)
        if message.get("renews", True):
            run.renew()
        return {"type": "status", **run.daemon.status()}

    def _stop(self, message: Message) -> Message:
        run = self._run_of(message)
        is_first = not run.daemon.home.is_stopping
        if is_first:
            self._say(run, f"asks {run.folder} to stop")
            run.daemon.request_stop()
        return {"type": "stopping", "is_first": is_first}

    def _release(self, message: Message) -> Message:
        """The command that watches a run has to go, and the run goes on without it."""
        self._run_of(message).release()
        return {"type": "released"}

    def _end(self, message: Message) -> Message:
        self._run_of(message).daemon.end(str(message["reason"]))
        return {"type": "ending"}

    def _expel(self, message: Message) -> Message:
        name = str(message["name"])
        was_linked = self.neighbours.links.is_up(name)
        count = self.neighbours.expel(name)
        self.tell(f"expels {name}, which took part in {_count(count)}")
        return {"type": "expelled", "runs": count, "was_linked": was_linked or count > 0}

    def _expelled(self, home: str, runs: list[str]) -> None:
        """Another machine has expelled this one from its runs."""
        taken = f": taken away from {', '.join(runs)}, whose hosts end here" if runs else ""
        self.tell(f"expelled by {home}{taken}")
        self._services.expelled()

    def _run_of(self, message: Message) -> MachineRun:
        """The run that a message is about; ConfigError if it is over, or not of this daemon."""
        folder = str(message["run"])
        if folder not in self._runs:
            actual = f"one that is over: {self._former[folder]}" if folder in self._former else "none of its runs"
            do = "`isthmus status --all` shows what there is on this machine."
            raise ConfigError(f"Asking the daemon {self.name!r} for {folder[:500]}", "a run that goes on", actual, do)
        return self._runs[folder]

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _hold(self, folder: Path, run_spec: spec.Spec, sites: Sites, *, is_watched: bool) -> MachineRun:
        """Be responsible for a run from now on; one of UNABLE if that cannot be."""
        config = self.config
        spec.settle(folder, has_porter=config.has_porter, ports=config.ports, is_far=config.is_far)
        lock = RunLock(folder)
        try:
            run = MachineRun(
                self.loop,
                folder,
                run_spec,
                lock=lock,
                machine=self.name,
                sites=sites,
                links=self.neighbours.links,
                keys=self.keys,
                is_watched=is_watched,
                on_over=lambda: self._over(run),
                forbids=partial(config.refusal_of, machine=self.name),
            )
        except BaseException:
            lock.close()
            raise
        self._runs[str(folder)] = run
        self._former.pop(str(folder), None)  # Its end, if it had one, is undone.
        self._later_runs = [each for each in self._later_runs if each.folder != str(folder)]
        self.neighbours.set_aside.discard(run_spec.run)
        self.neighbours.note(self.name, {run.name: RUNNING})
        self._changed()
        return run

    def _over(self, run: MachineRun) -> None:
        why = "" if run.daemon.failure is None else f" ({error_of(run.daemon)})"
        self._say(run, f"finished {run.folder}: {run.daemon.outcome}{why}")
        self.neighbours.outposts.keep_models(run.folder)
        del self._runs[str(run.folder)]
        fleet, outcome = run.daemon.home.fleet, run.daemon.outcome
        self.neighbours.former.add(run.name, outcome, [*fleet.others, *fleet.away])
        self.neighbours.note(self.name, {run.name: outcome})
        if run.is_set_aside:  # Its command, if it had one, has the same notice.
            self._later_runs.append(DaemonRun(str(run.folder), is_watched=False))
            self.neighbours.set_aside.add(run.name)
        self._remember(str(run.folder), run.daemon.outcome)
        self._changed()

    def _remember(self, folder: str, outcome: str) -> None:
        """Note the outcome of a run that is over, for commands that ask."""
        self._former[folder] = outcome
        if len(self._former) > FORMER_MAX:
            del self._former[next(iter(self._former))]

    def _leave_if_idle(self) -> None:
        if self._is_ending and not self._runs and not self.neighbours.outposts.folders:
            self.loop.call_later(self.neighbours.part(), self._owner.idle)

    def _tick(self) -> None:
        """End the runs of commands that are gone, and this daemon, if it ends with its runs."""
        self.loop.call_later(TICK_SECONDS, self._tick)
        is_idle = not self._runs and not self.neighbours.outposts.folders
        self._over_ticks = self._over_ticks + 1 if is_idle and self.is_over else 0
        if self._over_ticks == OVER_TICKS and self.neighbours.followed is not None:
            self.tell(f"ends, because its runs are over: {self.neighbours.followed.words}")
            self.request_end()
        self._tell_relayed()
        self._tell_full()
        for run in list(self._runs.values()):
            if run.tick():
                self._say(run, f"ends {run.folder}: {ENDED_BY_COMMAND}")
                run.daemon.end(ENDED_BY_COMMAND)

    def _listening(self) -> Iterator[str]:
        """The endpoints at which hosts listen here."""
        for each in self._parts():
            yield from each.listening()
        yield from self._services.listening()

    def _parts(self) -> list[Daemon | Outpost]:
        return [*(run.daemon for run in self._runs.values()), *self.neighbours.outposts.outposts]

    def _tell_relayed(self) -> None:
        """Print which hosts reach others through a porter, whenever that changes."""
        relayed: dict[str, list[str]] = {}
        for each in self._parts():
            relayed |= {f"{each.folder.name}, {host}": others for host, others in each.relayed().items()}
        for host, others in relayed.items():
            if self._relayed.get(host) != others:
                self.tell(f"{host}: relayed to {', '.join(others)} by the porter at the port of their daemon")
        for host in self._relayed:
            if host not in relayed:
                self.tell(f"{host}: relayed no more")
        self._relayed = relayed

    def _tell_full(self) -> None:
        """Print which disks here have no room, once a minute as long as they are full."""
        news = self._full.update({place for each in self._parts() for place in each.full()}, time.monotonic())
        for place in news.full:
            self.tell(f"the disk at {place} is full: what is written there waits, or is lost")
        for place in news.again:
            self.tell(f"the disk at {place} has room again")

    def _changed(self) -> None:
        held = [DaemonRun(str(folder), is_watched=False) for folder in self.neighbours.outposts.folders]
        live = [DaemonRun(folder, run.is_watched) for folder, run in self._runs.items()]
        self._owner.changed(self.endpoint, [*live, *held, *self._later_runs])
        self._leave_if_idle()

    def _say(self, run: MachineRun, line: str) -> None:
        """Print a line, and write it to the run's own log of its daemon."""
        self.tell(line)
        run.log(line)


def _count(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
