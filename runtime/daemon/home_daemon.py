"""The daemon of a run, on its home machine: performs the commands of the home's core, and feeds it events.

It decides nothing: the core of the home does. The processes of this machine are with its site, those of other machines
behind links. It never computes, and holds nothing that training needs: when it dies, the hosts continue, find the
daemon that takes its place through the file `daemon.json` in the run folder, and are adopted by it.

`reopen` and `move` prepare the ledger of a run that is over, to continue it here or with another machine as its home:
its next daemon takes over as after a death. Lives and their numbers stay, so that no number is given twice. Replicas
that were given up are tried again; those that get no more lives are retired.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, assert_never, get_args

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.daemon.ground import Ground
from isthmus.runtime.daemon.host_endpoint import Shown
from isthmus.runtime.daemon.ledger import FILE, Ledger, LedgerError, opened_to_read
from isthmus.runtime.daemon.outpost import DIRECTORY, of_orders, over, read_report
from isthmus.runtime.daemon.site import Site
from isthmus.runtime.ids import Member, Party, Replica, keeps_run, leader, takes_island
from isthmus.runtime.supervision.fleet import Fleet
from isthmus.runtime.supervision.flows import renumbered
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import (
    DAEMON,
    INTERRUPTED,
    BadReportCame,
    EndAsked,
    FinishRun,
    HomeBeat,
    HomeBegan,
    HomeCommand,
    HomeTimerFired,
    IslandJoined,
    Journal,
    MachineJoined,
    MachineTakenAway,
    NotBegun,
    NoteJournal,
    Places,
    Recorded,
    ReportCame,
    RunRoles,
    ScriptSpoke,
    SendOrders,
    SetAside,
    SetHomeTimer,
    StopAsked,
    Taken,
    TurnedAway,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import (
    EVENTS,
    Failure,
    Happened,
    Incident,
    LedgerRemoved,
    Ordered,
    ReplicaFailure,
    as_line,
    of_line,
)
from isthmus.runtime.supervision.messages import BEAT_SECONDS, Directory, Report, ReportError
from isthmus.runtime.supervision.rosters import DirectoryDifference, Table
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted, NoteFound, NoteLives, TurnAway
from isthmus.runtime.system import run_memory
from isthmus.runtime.system.files import Lines
from isthmus.runtime.wire.control_messages import LEAVE_RUN, SCRIPT_GOES_ON, SET_ASIDE, Message, decode, encode

JOURNAL = "journal"
TRAINING = "training"


class DirectoryTerms:
    """What a program makes of the directory that a home gives to its stations: here nothing."""

    def told(self, directory: Directory, fleet: Fleet) -> tuple[Directory, Incident | None]:
        """The directory that is given, and what is to be written of it."""
        return directory, None


class Daemon:
    """The daemon of a run at its home.

    Arguments:
        ground: where its hosts run.
        cast: the run's replicas.
        run: the run's name.
        name: this machine.
        on_over: called once, when every process has ended.
        patience: the longest wait for a silent host.
        places: the machines of the replicas; None where this is the only one.
        send: sends a message to another machine, and may lose it.
        directory: returns what is known of machines.
        terms: what the program makes of that.
        parties: returns who has brought which.
        turn_away: tells a machine that claims to be the home that this one is.
    """

    def __init__(
        self,
        ground: Ground,
        cast: RunRoles,
        *,
        run: str,
        name: str,
        on_over: Callable[[Daemon], None],
        patience: Duration | None = None,
        places: Places | None = None,
        send: Callable[[str, Message], None] = lambda machine, message: None,
        directory: Callable[[], Directory] = Directory,
        terms: DirectoryTerms | None = None,
        parties: Callable[[], dict[str, Party]] = dict,
        turn_away: Callable[[str], None] = lambda machine: None,
    ) -> None:
        """Serve hosts and commands; raises what the ground's `serve` raises."""
        self.folder, self.name = ground.folder, name
        self.status_last: dict[str, Any] = {}
        places = places or Places(home=name)
        self.home = Home(cast, places, patience=patience)
        self._turn_away = turn_away
        self._ground, self._clock, self._ledger = ground, ground.clock, ground.ledger
        self._on_over, self._send, self._directory, self._parties = on_over, send, directory, parties
        self._terms = terms or DirectoryTerms()
        self._shown: dict[Member, Shown] = {}
        self._machines, self._held = Table(), dict[str, int]()
        """The directory, and the mark of the one that each machine holds."""
        self._cancel_timer: Callable[[], None] = lambda: None
        self._has_begun = self._is_closed = False
        self._events = Lines(self.folder / EVENTS, ground.disk)
        self._driver = ground.drive("home", self.home, self._perform)
        commands = {
            "status": self._status_asked,
            "stop": self._stop_asked,
            "end": self._end_asked,
            SET_ASIDE: self._set_aside_asked,
            LEAVE_RUN: self._leave_asked,
            SCRIPT_GOES_ON: self._script_goes_on,
        }
        self._site = Site(
            ground,
            run=run,
            is_at_home=True,
            home=name,
            term=places.term,
            turn_away=self._turned_away,
            report=lambda report, shown: self._on_report(name, report, shown),
            commands=MappingProxyType(commands),
        )
        self.endpoint = self._site.endpoint_of_hosts.endpoint

    # -- interface -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Publish this daemon's endpoint, adopt live hosts and start the others; or end them, if the run is over."""
        journal, training = self._ledger.noted(JOURNAL), self._ledger.noted(TRAINING)
        if training is not None:
            self.status_last = decode(training)["training"]
        former = None if journal is None else msgspec.msgpack.decode(journal, type=Journal)
        self._site.start()
        is_lost = self._ledger.is_lost("home")
        recorded = Recorded.of(self._recorded()) if is_lost else Recorded()
        began = HomeBegan(self._ledger.numbers(), former, is_lost, recorded, self._parties())
        self._has_begun = True
        self._driver.feed(began)
        self._beat()

    def request_stop(self) -> None:
        """Ask the hosts to bring the run to its end."""
        self._driver.feed(StopAsked())

    def set_aside(self, seconds_max: float) -> None:
        """Let the hosts here leave within so many seconds, with a snapshot, and be over; the next daemon goes on.

        Idempotent. Nothing is recorded of it: a daemon that dies meanwhile leaves what one that was killed does.
        """
        if self._has_begun and not self._is_closed:
            self._driver.feed(SetAside(seconds(seconds_max)))
            self._site.ask_leave(seconds_max)

    def end(self, reason: str) -> None:
        """Kill every host, and fail the run for this reason."""
        failure = Ordered(reason)
        self._driver.feed(EndAsked(failure) if self._has_begun else NotBegun(failure))

    def on_message(self, machine: str, message: Message) -> None:
        """Handle a report of an outpost; one that no outpost of ours sends is dropped, before anything of it counts.

        Status of hosts that are not on that machine is dropped.
        """
        try:
            report, shown = read_report(message)
        except ReportError as error:
            if not self._is_closed:
                self._driver.feed(BadReportCame(machine, error.fault))
            return
        mark = message.get(DIRECTORY, 0)
        self._held[machine] = mark if type(mark) is int else 0
        fleet = self.home.fleet
        shown = {member: each for member, each in shown.items() if fleet.name(member.replica) == machine}
        self._on_report(machine, report, shown)

    def join(self, machine: str, islands: int) -> list[Replica]:
        """Admit a machine, with learners in the slots that it had, or the next free ones; returns those."""
        before, fleet = set(self.home.fleet.taken_on(machine)), self.home.fleet
        self._driver.feed(MachineJoined(machine, islands, self._parties_of(machine)))
        return [replica for replica in fleet.taken_on(machine) if replica not in before]

    def join_island(self, machines: tuple[str, ...]) -> list[Replica]:
        """Admit machines that are one island together; returns its processes, none without a free slot."""
        before = set(self.home.fleet.taken_on(machines[0]))
        self._driver.feed(IslandJoined(machines, self._parties_of(*machines)))
        return [each for each in self.home.fleet.taken_on(machines[0]) if each not in before]

    def _parties_of(self, *machines: str) -> dict[str, Party]:
        return {name: party for name, party in self._parties().items() if name in machines}

    def take_away(self, machine: str, how: Taken) -> None:
        """Remove a machine: its hosts end, and its learners' slots with them."""
        self._driver.feed(MachineTakenAway(machine, how))

    def listening(self) -> list[str]:
        """The endpoints at which hosts listen on this machine."""
        return self._site.listening()

    def relayed(self) -> dict[str, list[str]]:
        """Host, on any machine -> the hosts that a porter relays to it."""
        shown = {member.replica: each for member, each in self._shown.items() if self._is_current(member)}
        figures = {str(replica): each["figures"].get("relayed", []) for replica, each in shown.items()}
        return {name: list(others) for name, others in sorted(figures.items()) if others}

    def full(self) -> list[str]:
        """The disks of this machine, by where they are mounted, that have no room for what is written."""
        return self._site.full()

    def dismiss(self) -> None:
        """Release the other machines."""
        for machine in self.home.fleet.machines:
            self._send(machine, over(self.name, self.home.term))

    def call(self, home: str, term: int) -> None:
        """Another machine claims to be the home of the run."""
        if not self._is_closed:
            self._site.call(home, term)

    @property
    def outcome(self) -> str:
        """'running', 'done', 'stopped', 'failed' or, of a home that is set aside, 'interrupted'."""
        return INTERRUPTED if self.home.is_set_aside else self.home.outcome

    @property
    def failure(self) -> Failure | None:
        """Why the run failed, if it did."""
        return self.home.failure

    @property
    def lost(self) -> Replica | None:
        """The replica that could not be replaced, if that is why the run failed."""
        failure = self.home.failure
        if isinstance(failure, ReplicaFailure):
            return Replica.parse(failure.host)
        return None

    def status(self) -> dict[str, Any]:
        """The status that `isthmus status` shows."""
        hosts = [self._host(replica) for replica in self.home.fleet.replicas]
        refused = self._site.endpoint_of_hosts.refused + self._site.station.refused
        error = None if self.home.failure is None else msgspec.to_builtins(self.home.failure)
        unfinished = {str(each): msgspec.to_builtins(ended) for each, ended in self.home.unfinished.items()}
        return {"run": str(self.folder.absolute()), "outcome": self.outcome, "error": error, "daemon": self.name,
                "term": self.home.term, "pid": os.getpid(), "hosts": hosts, "training": self.status_last,
                "awaited": [str(each) for each in self.home.awaited], "scripts_unfinished": unfinished,
                "refused": dict(refused), "full": self.full()}  # fmt: skip

    def close(self) -> None:
        """Release everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._cancel_timer()
        self._events.close()
        self._site.close()

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_report(self, machine: str, report: Report, shown: Mapping[Member, Shown]) -> None:
        for member, each in shown.items():
            self._shown[member] = each
            if keeps_run(member.replica) and "record" in each["published"]:
                self.status_last = dict(each["published"]["record"])
        if not self._is_closed:
            self._driver.feed(ReportCame(machine, report))
        if len(self._shown) > len(self.home.lives):  # Only then: every report of a thousand machines comes here.
            self._shown = {member: each for member, each in self._shown.items() if self._is_current(member)}

    def _is_current(self, member: Member) -> bool:
        life = self.home.lives.get(member.replica)
        return life is not None and life.member == member

    def _beat(self) -> None:
        if self._is_closed:
            return
        if self._site.beat():
            self._write(DAEMON, LedgerRemoved())
        if self._ground.is_gone() and self.outcome == "running":
            self.end(
                f"the run folder {self.folder} was deleted while the run went on, and with it what was recorded; "
                "the run was ended. Start it again."
            )
        self._driver.feed(HomeBeat())
        self._events.flush()
        self._ground.flush()
        self._clock.call_at(Instant(self._clock.now() + seconds(BEAT_SECONDS)), self._beat)

    def _fired(self) -> None:
        if not self._is_closed:
            self._driver.feed(HomeTimerFired())

    def _turned_away(self, command: TurnAway) -> None:
        """The station here follows one of two homes: this one, or another."""
        if command.home == self.name:
            self._driver.feed(TurnedAway(command.by, command.term))
        else:
            self._turn_away(command.home)

    def _status_asked(self, peer: bytes, message: Message) -> None:
        self._site.endpoint_of_hosts.send(peer, {"type": "status", **self.status()})

    def _stop_asked(self, peer: bytes, message: Message) -> None:
        is_first = not self.home.is_stopping
        self.request_stop()
        self._site.endpoint_of_hosts.send(peer, {"type": "stopping", "is_first": is_first})

    def _set_aside_asked(self, peer: bytes, message: Message) -> None:
        self._site.endpoint_of_hosts.send(peer, {"type": "leaving"})
        self.set_aside(float(message["seconds"]))

    def _leave_asked(self, peer: bytes, message: Message) -> None:
        """Another machine is to leave: its hosts give what they have within so many seconds, and end."""
        self._send(str(message["machine"]), {"type": LEAVE_RUN, "seconds": float(message["seconds"])})
        self._site.endpoint_of_hosts.send(peer, {"type": "asked"})

    def _script_goes_on(self, peer: bytes, message: Message) -> None:
        member = Member(Replica.parse(str(message["replica"])), int(message["incarnation"]))
        self._driver.feed(ScriptSpoke(member))
        self._site.endpoint_of_hosts.send(peer, {"type": "noted"})

    def _end_asked(self, peer: bytes, message: Message) -> None:
        self._site.endpoint_of_hosts.send(peer, {"type": "ending"})
        self.end(str(message.get("reason", "ended by a command")))

    # -- commands ------------------------------------------------------------------------------------------------------

    def _perform(self, command: HomeCommand) -> None:
        match command:
            case NoteLives():
                self._note_lives(command.members)
            case NoteFound():
                self._ledger.mark_whole("home")
            case NoteJournal():
                self._ledger.note(JOURNAL, msgspec.msgpack.encode(command.journal))
                if command.journal.outcome != "running":
                    self._ledger.note(TRAINING, encode({"type": TRAINING, "training": self.status_last}))
            case SendOrders():
                self._order(command)
            case WriteIncident():
                self._write(command.member, command.incident)
            case SetHomeTimer():
                self._cancel_timer()
                self._cancel_timer = self._clock.call_at(command.at, self._fired)
            case FinishRun():
                self._ground.launch.close()
                self._ground.forget_memory()
                self._clock.call_soon(partial(self._on_over, self))
            case _:
                assert_never(command)

    def _write(self, member: Member, incident: Incident) -> None:
        happened = Happened(self._clock.now(), member, incident)
        self._events.append(as_line(happened))
        self._ground.wrote(happened)

    def _recorded(self) -> Iterator[Happened]:
        """The incidents of the run, without lines that are torn."""
        data = b""
        with suppress(OSError):  # None was written yet.
            data = self._ground.disk.read(self.folder / EVENTS)
        for line in data.splitlines():
            with suppress(ValueError):
                yield of_line(json.loads(line))

    def _note_lives(self, members: tuple[Member, ...]) -> None:
        try:
            self._ledger.give(members)
        except LedgerError as error:
            self._driver.feed(LivesNotNoted(members, str(error)))
        else:
            self._driver.feed(LivesNoted(members))

    def _order(self, command: SendOrders) -> None:
        directory, incident = self._terms.told(self._directory().of(command.machines), self.home.fleet)
        if incident is not None:
            self._write(DAEMON, incident)
        table = self._machines
        table.follow(directory.rows())
        self._held[self.name] = self._site.directory_mark
        for machine, orders in command.by_machine():
            lacking = table.after(self._held.get(machine, 0))
            change = None if lacking is None else DirectoryDifference(table.mark, *lacking)
            if machine == self.name:
                self._site.order(orders, change)
            else:
                self._send(machine, of_orders(orders, change))

    # -- status --------------------------------------------------------------------------------------------------------

    def _host(self, replica: Replica) -> dict[str, Any]:
        life, reason = self.home.lives.get(replica), self.home.reason(replica)
        figures: dict[str, Any] = {"pid": None, "phase": self.home.phase(replica)}
        if life is not None:
            shown = self._shown.get(life.member, {"published": {}, "figures": {}})
            # A recorder publishes the status of the run, not its own.
            published = shown["published"] if not keeps_run(replica) else {}
            figures = {
                "pid": life.seen.pid,
                "phase": self.home.phase(replica),
                **shown["figures"],
                "published": published,
            }
        return {
            "name": str(replica),
            "role": replica.role,
            "machine": self.home.fleet.name(replica),
            "incarnation": self.home.incarnation(replica),
            "state": self.home.state(replica),
            "reason": None if reason is None else msgspec.to_builtins(reason),
            "user_code_ns": self.home.kept_by_user(replica),
            **figures,
        }


GIVEN_UP: Final = "given up"
"""That of one whose lives ended again and again."""
LEFT_OUT: Final = "left out"
"""The reason recorded for a retired replica that the run goes on without."""


def reopen(folder: Path, is_left_out: Callable[[Replica], bool], leaving: Collection[str] = ()) -> None:
    """Record in the ledger of a run that it goes on, without some replicas; machines that are `leaving` take no part
    any more, and may return, as others that have left.

    No other process may have the ledger open. OSError or sqlite3.Error where that cannot be recorded.
    """
    run_memory.forget(folder)  # What lives trained since the snapshot is not in it, and their processes are gone.
    with closing(Ledger(folder, was_there=True)) as ledger:
        noted = ledger.noted(JOURNAL)
        journal = Journal() if noted is None else msgspec.msgpack.decode(noted, type=Journal)
        retired = {name: how for name, how in journal.retired if how in get_args(Taken)}
        gone = {str(leader(replica)) for replica in _learners_on(journal, leaving)}
        retired |= dict.fromkeys(sorted(gone - retired.keys()), "left")
        retired |= {str(each.replica): LEFT_OUT for each in ledger.numbers() if is_left_out(each.replica)}
        away = tuple(dict.fromkeys((*journal.away, *leaving)))
        _go_on(ledger, folder, is_stopping=False, retired=tuple(retired.items()), away=away)


def _learners_on(journal: Journal, machines: Collection[str]) -> list[Replica]:
    """The processes of learners on some machines."""
    placed = [Replica.parse(text) for text, machine in journal.machines if machine in machines]
    return [replica for replica in placed if takes_island(replica)]


def renumber(folder: Path, edges: Mapping[int, int], nodes: Mapping[int, int]) -> None:
    """Have the ledger of a run count what its lives have moved by the edges and nodes of the graph that it goes on
    with: index of then -> index of now.

    No other process may have the ledger open. OSError or sqlite3.Error where that cannot be recorded.
    """
    with closing(Ledger(folder, was_there=True)) as ledger:
        noted = ledger.noted(JOURNAL)
        if noted is None:
            return
        journal = msgspec.msgpack.decode(noted, type=Journal)
        used = renumbered(journal.used, edges, nodes)
        ledger.note(JOURNAL, msgspec.msgpack.encode(msgspec.structs.replace(journal, used=used)))
        if not ledger.settle():
            raise OSError(f"the ledger in {folder} cannot be written")


def await_scripts_again(folder: Path) -> None:
    """Record in the ledger of a run that is over that the scripts which have not come to their end begin again.

    No other process may have the ledger open. OSError or sqlite3.Error where that cannot be recorded.
    """
    with closing(Ledger(folder, was_there=True)) as ledger:
        noted = ledger.noted(JOURNAL)
        journal = Journal() if noted is None else msgspec.msgpack.decode(noted, type=Journal)
        retired = tuple((name, how) for name, how in journal.retired if how != GIVEN_UP)
        again = msgspec.structs.replace(journal, unfinished=(), retired=retired)
        ledger.note(JOURNAL, msgspec.msgpack.encode(again))
        if not ledger.settle():
            raise OSError(f"the ledger in {folder} cannot be written")


def move(folder: Path, former: Path | None) -> None:
    """Turn the ledger of a run, perhaps a copy, into that of a home on this machine.

    The ledger in the folder `former` has this machine's hosts of the run, if there are any. No other process may have
    the ledger open. A run that was to stop still is, because its hosts have been told. OSError or sqlite3.Error where
    that cannot be recorded.
    """
    with closing(Ledger(folder, was_there=True)) as ledger:
        ledger.move(None if former is None else str(former / FILE))
        _go_on(ledger, folder)


def journal_in(database: sqlite3.Connection) -> Journal | None:
    """The journal of the last daemon that had a ledger; None where there is none, or it cannot be read."""
    try:
        row = database.execute("select value from notes where name = ?", (JOURNAL,)).fetchone()
        return None if row is None else msgspec.msgpack.decode(bytes(row[0]), type=Journal)
    except (sqlite3.Error, msgspec.DecodeError):
        return None


def journal_of(folder: Path) -> Journal | None:
    """The journal of the last daemon of a run; None where there is none, or it cannot be read."""
    try:
        with closing(opened_to_read(folder)) as database:
            return journal_in(database)
    except sqlite3.Error:
        return None


def _go_on(ledger: Ledger, folder: Path, **changes: Any) -> None:
    noted = ledger.noted(JOURNAL)
    journal = Journal() if noted is None else msgspec.msgpack.decode(noted, type=Journal)
    going = msgspec.structs.replace(journal, outcome="running", failure=None, **changes)
    if going != journal:
        ledger.note(JOURNAL, msgspec.msgpack.encode(going))
        if not ledger.settle():
            raise OSError(f"the ledger in {folder} cannot be written")
