"""One run under the daemon of its home machine: its `Daemon`, its lease, its outposts elsewhere, and its end.

Decides when the command of a watched run is gone, when an outpost is stationed, and which files of other machines are
fetched, within bounds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, final

import zmq

from isthmus.programs.engine.cluster.handover import MachineSite, Sites
from isthmus.programs.engine.cluster.permitted_scripts import are_unlike
from isthmus.programs.engine.machine import ways_to_others
from isthmus.programs.engine.machine.inherited import bring_home
from isthmus.programs.engine.machine.link_accounts import LinkAccount
from isthmus.programs.engine.machine.links import HomeAddress, HomeLink, MachineLinks
from isthmus.programs.engine.machine.outposts import PIECE_BYTES, RESUMED, STATION, SUPERSEDED, host_of, is_log
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.new_folder import InUseError, LockError, RunLock
from isthmus.programs.engine.request.reference import is_open_loop
from isthmus.programs.engine.results.run_files import over_of
from isthmus.programs.engine.results.words import text_is_on
from isthmus.programs.engine.run.held_run import HeldRun
from isthmus.programs.engine.run.logs import log_of
from isthmus.programs.engine.run.run_end import finish_apart
from isthmus.programs.loop_script import LoopScript
from isthmus.runtime.daemon.ledger import living
from isthmus.runtime.errors import ConfigError, RunError, log_entry, nearest, shortened
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import is_offered
from isthmus.runtime.supervision.messages import Directory
from isthmus.runtime.system.disk import open_regular, opened_at_end
from isthmus.runtime.system.files import append_bytes, read_text
from isthmus.runtime.system.refusals import reason, remedy
from isthmus.runtime.tape.reading import FOLDER as TAPES
from isthmus.runtime.wire import account_files
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring

GATHER_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS: Final = 5.0
FILE_BYTES_MAX: Final = 32 << 20
MACHINE_BYTES_MAX: Final = 128 << 20
TAPES_BYTES_MAX: Final = 32 << 20
"""Of tapes of one machine: a run is complete without them, and they are fetched last, over a link of any speed."""
TEXT_BYTES_MAX: Final = PIECE_BYTES
"""The end of a log that one message holds."""
_NONSENSE: Final = (OSError, LookupError, TypeError, ValueError, AttributeError)
_OF_HOST: Final = (
    re.compile(r"logs/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<slot>\d{1,9})\.log(\.1)?"),
    re.compile(r"spans/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<slot>\d{1,9})-\d{1,9}\.json"),
    account_files.OF_HOST,
    re.compile(r"tape/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<slot>\d{1,9})-\d{1,9}\.\d{1,9}\.tape"),
)
_FORK_SERVER: Final = ("logs/forkserver.log", "logs/forkserver.log.1")


async def gather(
    links: MachineLinks, run: str, folder: Path, machines: Mapping[str, Collection[Replica]], log: Callable[[str], None]
) -> None:
    """Fetch a run's files from `machines` into its folder; each maps to the replicas that it may have hosted.

    Spans make the timeline, tapes that of lives that were killed; logs are for people. Files that stay where they are,
    because they are beyond the bound or do not arrive whole, are named in the log of the run's daemon, and in place of
    a log that its machine keeps a line says where it is; a machine that does not answer, or answers nonsense, costs its
    files and nothing else. Only files of hosts that the machine may have had are taken: it writes into no other's, and
    into no tape and no account that is here.
    """

    async def one(machine: str) -> None:
        try:
            async with asyncio.timeout(GATHER_SECONDS_MAX):
                await _fetch_all(links, run, folder, machine, machines[machine], log)
        except (ConfigError, TimeoutError, *_NONSENSE) as error:
            why = shortened(str(error), 500) or "it took too long"
            log(f"logs, spans and tapes of {machine} are missing, or some of them: {why}")

    async with asyncio.TaskGroup() as group:
        for machine in machines:
            group.create_task(one(machine))


async def _fetch_all(
    links: MachineLinks, run: str, folder: Path, machine: str, hosts: Collection[Replica], log: Callable[[str], None]
) -> None:
    listed = await links.request(machine, {"type": "files", "run": run}, ANSWER_SECONDS)
    for name in dict.fromkeys(listed["kept"]):
        if not is_of(name, hosts) or not is_log(name):
            raise ValueError(f"no log of a host of this machine: {str(name)[:100]!r}")
        line = f"{text_is_on(machine, host_of(name))}\n"
        append_bytes(folder / here(name, machine), line.encode())
    left, tapes_left, seen = MACHINE_BYTES_MAX, TAPES_BYTES_MAX, set[str]()
    for name, size in listed["files"]:
        if not is_of(name, hosts) or name in seen or type(size) is not int or size < 0:
            raise ValueError(f"no file of a host of this machine: {str(name)[:100]!r}, {str(size)[:20]} bytes")
        seen.add(name)
        is_tape = name.startswith(f"{TAPES}/")
        if size > min(left, FILE_BYTES_MAX, tapes_left if is_tape else left):
            log(f"{name} of {machine} stays there: {size} bytes")
            continue
        left -= size
        tapes_left -= size if is_tape else 0
        data = await fetch(links, run, machine, name, size)
        if len(data) < size:
            log(f"{name} of {machine} is not whole: {len(data)} of {size} bytes came")
        if len(data) == size or name.endswith(".log"):  # The beginning of a log is useful, that of spans is not.
            target = folder / here(name, machine)
            if not ((is_tape or account_files.OF_HOST.fullmatch(name)) and target.exists()):
                append_bytes(target, data)


def is_of(name: object, hosts: Collection[Replica]) -> bool:
    """Whether a file is the log or the spans of one of these hosts, or of a fork server."""
    forms = [form for each in _OF_HOST if isinstance(name, str) and (form := each.fullmatch(name))]
    return name in _FORK_SERVER or any(Replica(form["role"], int(form["slot"])) in hosts for form in forms)


async def fetch(links: MachineLinks, run: str, machine: str, name: str, size: int) -> bytes:
    """The first `size` bytes of a run's file on a machine, fewer where the file is shorter.

    ConfigError if the machine does not answer, ValueError if a piece is larger than PIECE_BYTES.
    """
    data = bytearray()
    while len(data) < size:
        request = {"type": "piece", "run": run, "name": name, "offset": len(data)}
        piece = (await links.request(machine, request, ANSWER_SECONDS))["text"].encode("latin-1")
        if not piece:
            break
        if len(piece) > PIECE_BYTES:
            raise ValueError(f"{name}: a piece of {len(piece)} bytes, {PIECE_BYTES} may be")
        data += piece
    return bytes(data[:size])


def here(name: str, machine: str) -> str:
    """The name at home of another machine's file: the fork servers' logs have the same name on all machines."""
    return name.replace("forkserver.log", f"forkserver-{machine}.log")


def names(folder: Path) -> dict[str, Path]:
    """Host ('learner/2') or 'daemon' -> its log, of those that are in a run folder."""
    return {path.stem.replace("-", "/"): path for path in sorted((folder / "logs").glob("*.log"))}


async def end_of_log(folder: Path, name: str, run: str, elsewhere: Mapping[str, str], links: MachineLinks) -> str:
    """The end of a host's log; ConfigError, with the nearest name, if there is none, and for one that cannot be read.

    `elsewhere`: host -> machine, for the run's hosts on other machines.
    """
    here = names(folder)
    if name in elsewhere and links.is_up(elsewhere[name]):
        path = str(Path("logs") / log_of(folder, Replica.parse(name)).name)
        request = {"type": "piece", "run": run, "name": path, "offset": -TEXT_BYTES_MAX}
        answer = await links.request(elsewhere[name], request, ANSWER_SECONDS)
        return str(answer["text"]).encode("latin-1").decode(errors="replace")
    if name not in here:
        do = nearest(name, {*here, *elsewhere})
        raise ConfigError(f"Looking for the log of {name!r}", "a host of this run", repr(name), do)
    try:
        with open_regular(here[name]) as file:
            file.seek(max(0, here[name].stat().st_size - TEXT_BYTES_MAX))
            return file.read(TEXT_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        doing, do = f"Reading {here[name]}", "Take it away, or look at it there."
        raise ConfigError(doing, "a log that can be read", reason(error), remedy(error, do)) from None


TICK_SECONDS: Final = 1.0
CHECK_SECONDS_MAX: Final = 60.0
"""Time limit for a joining machine's check, which may read its data."""
UNABLE: Final = (OSError, sqlite3.Error, zmq.ZMQError, RunError, InUseError, LockError)
"""Errors that mean that a run cannot be supervised."""
LEASE_TICKS_MAX: Final = 10
"""A command asks four times a second; ten seconds without a question are long for a busy machine, too."""


@final
class MachineRun:
    """A run from its start here until it is over; then it releases the `lock` on its folder and calls `on_over`.

    A run that is *watched* has a lease, which its command renews with every question; after LEASE_TICKS_MAX ticks
    without one, the command is gone. A tick that comes late counts once, so a daemon that was stopped does not blame
    its commands. A run that is *detached* has no lease. An outpost is *stationed* whenever its machine is there and
    does not report that it has this run. At the end logs and spans are fetched from there; then summary and report are
    written by a process of its own, because this one loads no user's code and has other runs.
    """

    def __init__(
        self,
        loop: Any,
        folder: Path,
        run_spec: spec.Spec,
        *,
        lock: RunLock,
        machine: str,
        sites: Sites,
        links: MachineLinks,
        keys: Keyring | None,
        is_watched: bool,
        on_over: Callable[[], None],
        forbids: Callable[[LoopScript], str],
    ) -> None:
        """Bind, and start the processes soon, which may take a second or more.

        Raises OSError, sqlite3.Error, zmq.ZMQError or RunError if the run cannot be supervised.
        """
        self.folder, self.name = folder, run_spec.run
        self._spec, self._sites, self._links = run_spec, sites, links
        self._loop, self._machine, self._on_over = loop, machine, on_over
        self._unheard = 0 if is_watched else None
        self._callers: dict[str, HomeLink] = {}
        self._held = HeldRun(
            loop,
            folder,
            run_spec,
            lock=lock,
            machine=machine,
            finish=finish_apart,
            on_over=self._over,
            gather=self._gather,
            places=sites.places(),
            send=self._send,
            directory=lambda: _directory(keys, sites),
            parties=lambda: sites.parties({} if keys is None else keys.parties),
            turn_away=self._turn_away,
            forbids=forbids,
        )
        self.daemon = self._held.daemon
        self._account = LinkAccount(
            loop, links, folder, self.name, machine, run_spec.zero_ns, is_encrypted=keys is not None
        )
        loop.call_soon(self._start)

    @property
    def resumed(self) -> int:
        """How often it has gone on from a snapshot on all of its machines."""
        return self._spec.resumed

    @property
    def takes_loops(self) -> bool:
        """Whether its learners are loops that start themselves, and no others."""
        return is_open_loop(self._spec.job.task.text)

    def leaves_out(self, machine: str) -> bool:
        """Whether this run is to go without a machine that is linked."""
        return machine in self._spec.settings.leaves_out

    @property
    def is_watched(self) -> bool:
        """Whether it ends with its command."""
        return self._unheard is not None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._held.is_running

    @property
    def is_set_aside(self) -> bool:
        """Whether it goes on with the next daemon."""
        return self._held.is_set_aside

    def set_aside(self, grace: float) -> None:
        """Have its hosts here leave, and its last files written, within `grace` seconds; others go on."""
        self._held.set_aside(grace)

    def release(self) -> None:
        """Let it go on without its command."""
        self._unheard = None

    def check(self) -> Message:
        """The request to a machine before it takes part."""
        job, layout = self._spec.job, list[list[Any]]()
        if self.takes_loops:
            from isthmus.programs.loop_task import layout_rows  # Of a run whose learners are loops.

            layout = layout_rows(job.layout)
        asked = {"type": "check", "program": job.program, "task": job.task.text, "digest": self._sites.digest}
        placed = [(Replica.parse(text), machine) for text, machine in self.daemon.home.fleet.placed()]
        return {
            **asked,
            "data": dict(self._spec.data),
            "layout": layout,
            "ways": ways_to_others.needed(placed, self._sites, self._machine),
        }

    def other_script(self, machine: str, answer: Message) -> str:
        """That a machine which joins has another script than the one that was asked for the model, in words; ''
        otherwise. `answer`: to `check`."""
        ours, its, script = self._spec.script_digest, str(answer.get("script", "")), self._spec.script
        if script is None or not are_unlike(its, ours):
            return ""
        return f"{script.name} on {machine} is another one, {its[:8]}, than the one that told of the model, {ours[:8]}"

    def station(self, machine: str, islands: int = 0, host: str = "") -> None:
        """Send a machine this run's description; `islands`: of one that joins, whose learners have no slots yet;
        `host`: the address at which its processes listen, if no site has it."""
        if not self.is_running:
            return
        data = json.loads(read_text(self.folder / spec.SPEC))
        learners = len(self.daemon.home.fleet.learners_on(machine))
        site = self._sites.sites.get(machine)
        site = MachineSite(machine) if site is None else site
        here = site.here(host or site.host, learners or islands)
        data["settings"]["processes"] = list(self.daemon.home.fleet.processes)
        message: Message = {"spec": {**data, "here": asdict(here)}, "age_ns": time.monotonic_ns() - self._spec.zero_ns}
        heirs = [(heir.name, heir.address, heir.public_key) for heir in map(_home, self._sites.heirs)]
        self._send(machine, {"type": STATION, **message, "term": self._sites.term, "heirs": heirs})

    def heir(self, name: str) -> HomeAddress | None:
        """Another machine that may be the home of this run."""
        return next((_home(site) for site in self._sites.heirs if name == site.name != self._machine), None)

    def call(self, link: HomeLink, term: int) -> None:
        """Another machine claims to be the home of this run."""
        heir = self.heir(link.home.name)
        if heir is not None and heir.identity == link.home.identity:  # Only the known key is believed.
            self._callers[heir.name] = link
            self.daemon.call(heir.name, term)

    def _turn_away(self, machine: str) -> None:
        self._callers[machine].send({"type": SUPERSEDED, "run": self.name, "by": self._machine})

    def _send(self, machine: str, message: Message) -> None:
        self._links.send(machine, {**message, "run": self.name, RESUMED: self._spec.resumed})

    def renew(self) -> None:
        """Renew the lease: the run's command has sent a request."""
        if self._unheard is not None:
            self._unheard = 0

    def tick(self) -> bool:
        """Count a tick without a request; returns whether the command is gone."""
        if self._unheard is None or not self.is_running:
            return False
        self._unheard += 1
        return self._unheard > LEASE_TICKS_MAX

    def log(self, line: str) -> None:
        """Write a line into the run's own log of its daemon; a folder that is gone costs the line."""
        with suppress(OSError):
            (self.folder / "logs").mkdir(exist_ok=True)
            with opened_at_end(self.folder / "logs" / "daemon.log", follows_links=True) as file:
                file.write(f"isthmus daemon {self._machine}: {log_entry(line)}\n".encode())

    def _start(self) -> None:
        for machine in self.daemon.home.fleet.others:
            self.station(machine)
        try:
            self.daemon.start()
        except (OSError, sqlite3.Error) as error:
            self.daemon.end(f"its processes could not be started: {type(error).__name__}: {error}")

    async def _gather(self) -> None:
        """Every process has ended: fetch their files from other machines, unless these go on."""
        if self.is_set_aside:
            return
        try:
            others = self.daemon.home.fleet.others
            machines = {name: self._hosts_of(name) for name in others if self._links.is_up(name)}
            await gather(self._links, self.name, self.folder, machines, self.log)
            await self._loop.run_in_executor(None, bring_home, self.folder)
        except OSError as error:
            self.log(f"what the machines have left could not all be brought home: {error}")
        finally:
            self.daemon.dismiss()

    def _hosts_of(self, machine: str) -> set[Replica]:
        """The replicas that a machine has, or may have had before they were moved."""
        fleet, site = self.daemon.home.fleet, self._sites.sites.get(machine)
        offers = () if site is None else self._sites.offers(site)
        return {each for each in fleet.replicas if fleet.name(each) == machine or is_offered(each, offers)}

    def _over(self) -> None:
        self._account.close()
        self._held.close()
        self._on_over()


def _directory(keys: Keyring | None, sites: Sites) -> Directory:
    """What this home knows of machines by now, those that have joined by invitation among them."""
    if keys is None:
        return Directory(owners=sites.owners({}))
    return Directory({name: key for key, name in keys.admitted.items()}, sites.owners(keys.owners))


def _home(site: MachineSite) -> HomeAddress:
    return HomeAddress(site.name, str(site.address), site.public_key or "")


def told_of(folder: Path, doing: str) -> spec.Spec:
    """The spec in a run folder; ConfigError if no run was prepared there."""
    try:
        if not folder.is_absolute():
            raise FileNotFoundError(f"{folder} is no absolute path")
        return spec.load(folder)
    except (OSError, TypeError, KeyError, ValueError) as error:
        do = "Hand runs over with: isthmus train --cluster FILE."
        raise ConfigError(
            doing, f"a run's {spec.SPEC}", f"{type(error).__name__}: {error}", remedy(error, do)
        ) from None


def unable(doing: str, error: BaseException) -> ConfigError:
    """The error for a run that cannot be supervised, with its cause."""
    do = "Look at the folder and at what the machine has left: space, memory, processes."
    return ConfigError(doing, "to supervise it", f"{type(error).__name__}: {error}", do)


def outcome_in(folder: Path) -> str:
    """The outcome of a run that is over, from its folder; "failed" if that cannot be read. OSError where this process
    has no descriptor for it."""
    try:
        over = over_of(folder)
    except ConfigError:
        return "failed"
    return "failed" if over is None else over.outcome


def has_hosts(folder: Path) -> bool:
    """Whether any host of a run lives."""
    return bool(living(folder))
