"""A universe: a whole run on several machines, in one thread, in virtual time, with faults, from one seed.

Hosts, cores, wire, bodies and the supervision of hosts are those of a real run. The virtual clock, the sockets and
weather of `network`, and machines with their disks and processes are not; the `injector` disturbs them, and checkers
check invariants. The same arguments give the same tapes byte for byte, under any hash seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, final

import msgspec

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.daemon.home_daemon import Daemon, DirectoryTerms
from isthmus.runtime.errors import RunError
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import Trace
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.own_process import meets
from isthmus.runtime.host.virtual_time import Spread, VirtualClock, evenly
from isthmus.runtime.ids import MachineOwner, Member, Party, Replica, follower, island_in, owner_party, takes_island
from isthmus.runtime.sim.daemons import Shared, SimulatedDaemon, SimulatedMachine, SimulatedProcess
from isthmus.runtime.sim.faults import Fault, Join, check
from isthmus.runtime.sim.host import RUN, Life, UniverseSetting, Witness
from isthmus.runtime.sim.injector import Injector
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from isthmus.runtime.sim.network import Climate, ControlLinks, Ether, Weather
from isthmus.runtime.sim.world import DurationOf, a_millisecond
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import Places, RunRoles
from isthmus.runtime.supervision.incidents import Exited, Failure, Happened, SupersededHome
from isthmus.runtime.supervision.messages import Directory
from isthmus.runtime.tape.writing import joined
from isthmus.runtime.wire.peers import Limits

ASKED_EVERY: Final = 500
"""Events between two calls of the checkers; checking a core costs as much as some twenty events."""
ASKED_EVENTS: Final = 20
"""The same for each host, in universes of more than two dozen."""
LOOKED_MAX: Final = 64
"""Hosts in whose universe faults are looked for at each event; with more once in as many events as there are hosts."""
BUSY_MAX: Final = 100_000
"""Events at one instant; a few dozen are many."""
HOME: Final = "home"
CRASH_SECONDS: Final = 0.3
"""The duration of a life in a crash loop."""
BOOT_SECONDS: Final = 0.5
"""Mean time from the start of a process until it is a host."""
REBOOT_SECONDS: Final = 0.5
"""Time from the return of its power until a machine has a daemon again."""


class Observer(Witness, Protocol):
    """A Witness with callbacks for the events of a run, and periodic ones; they raise on a violation."""

    def began(self, universe: Universe, member: Member) -> None:
        """A daemon is about to start the process of a life."""

    def happened(self, universe: Universe, happened: Happened) -> None:
        """A home records an incident of a host."""

    def finished(self, universe: Universe, home: Home) -> None:
        """A home reports that the run is over, and no process is left."""

    def polled(self, universe: Universe) -> None:
        """Called every few hundred events."""

    def ended(self, universe: Universe) -> None:
        """The run is over."""


@final
@dataclass(frozen=True, slots=True)
class MachinesOfRun:
    """Where the replicas of a simulated run are, and whose the machines are."""

    place: Callable[[Replica], str]
    """The machine of each replica; HOME, or another name."""
    movable: tuple[str, ...] = ()
    """The roles whose next life may be at home, where their machine is lost."""
    owners: Mapping[str, MachineOwner] = field(default_factory=dict)
    """Whose machines are, where they are not their own."""
    terms: Callable[[], DirectoryTerms] = DirectoryTerms
    """Makes what the program makes of that, for one home."""
    parties: Mapping[str, Party] = field(default_factory=dict)
    """Who else brought some of them."""


class Universe:
    """Hosts of one run on machines of their own. `addresses` and `disks` are those of the machines, by name; `error` is
    what a body raised, `outcome` how the run ended, once its last process has; `incidents` those of all hosts;
    `requests`: 'stop' and 'end', once a home has got it; `is_stopped`: a requested stop was confirmed.

    Arguments:
        plans: by role.
        cast: the replicas of the run; the edges between them, and the most of each role, follow from plans and faults.
        machines: where they are.
        seed: from which everything is drawn.
        resolve: returns what a reference names.
        duration: of a replica and a node: the time of a firing before `jitter`.
        jitter: a share of it, that `spread` draws around.
        spread: draws it.
        climate: that of the network.
        faults: what happens.
        checkers: they watch, and object.
        limits: those of channels.
        trace: collects spans.
        boot_seconds: processes boot for half to three halves of it.
        leaves_files: hosts leave files on their machines for their next lives.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        cast: RunRoles,
        machines: MachinesOfRun,
        *,
        seed: int,
        resolve: Callable[[Reference], Any],
        duration: DurationOf = a_millisecond,
        jitter: float = 0.0,
        spread: Spread = evenly,
        climate: Climate = Climate(),  # noqa: B008
        faults: Iterable[Fault] = (),
        checkers: Sequence[Observer] = (),
        limits: Limits = Limits(),  # noqa: B008
        trace: Trace | None = None,
        boot_seconds: float = BOOT_SECONDS,
        leaves_files: bool = False,
    ) -> None:
        self.clock = VirtualClock()
        self.window_bytes = limits.window_bytes
        self.weather = Weather(climate, seed)
        self.ether = Ether(self.clock, self.weather, partial(_draw, random.Random(f"{seed} lingers")))
        self.ended: set[tuple[str, str]] = set()
        self.error: str | None = None
        self.events = 0
        self.lives: list[Life] = []
        self.daemons: list[SimulatedDaemon] = []
        self.incidents: list[Happened] = []
        self.outcome: str | None = None
        self.failure: Failure | None = None
        self.requests: set[str] = set()
        self.is_stopped = False
        self._pids = 0
        self._seed, self._boot_seconds = seed, boot_seconds
        self._place = machines.place
        self._has_started = False
        self._checkers = tuple(checkers)
        faults = tuple(faults)
        roles = {role: cast.roles[role] for role in plans if role in cast.roles}
        replicas = [Replica(role, slot) for role, count in roles.items() for slot in range(count)]
        for slot, count in enumerate(cast.processes):
            replicas += [follower(island_in(slot), number) for number in range(1, count)]
        joining = sorted({Replica.parse(fault.host) for fault in faults if isinstance(fault, Join)})
        names = sorted({HOME, *map(machines.place, [*replicas, *joining])})
        check(faults, list(plans), replicas, names)
        slots: dict[str, int] = {}
        for replica in [*replicas, *joining]:
            slots[replica.role] = max(slots.get(replica.role, 0), replica.slot + 1)
        self.addresses = {name: f"127.0.{i >> 8}.{i & 255}" for i, name in enumerate(names, 1)}
        self.disks = {name: SimulatedDisk(f"{seed} disk {name}") for name in names}
        self.tape_disks = {name: SimulatedDisk(f"{seed} tapes {name}") for name in names}
        self._setting = UniverseSetting(
            clock=self.clock,
            ether=self.ether,
            plans=plans,
            seed=seed,
            resolve=resolve,
            duration=duration,
            jitter=jitter,
            spread=spread,
            meets=meets,
            checkers=self._checkers,
            trace=trace,
            limits=limits,
            most=slots,
            ended=lambda life, node: self.ended.add((str(life.member.replica), node)),
            failed=self._failed,
            spoke=self._spoke,
            daemon_of=self._daemon_of,
            left=self._left,
            forgeries=lambda life: self.injector.forgeries.get(life.member.replica, ()),
            folder=RUN if leaves_files else None,
        )
        self.machines = {name: SimulatedMachine(name, self.addresses[name], self.disks[name]) for name in names}
        self.links = ControlLinks(self.clock, self.weather, self.addresses, seed)
        places = {replica: where for replica in replicas if (where := machines.place(replica)) != HOME}
        owners = {name: Party(owner_party(owner.name)) for name, owner in machines.owners.items()}
        edges = {
            edge.name: (edge.source_role, edge.target_role)
            for plan in plans.values()
            for edge in plan.edges.values()
            if edge.route != "local"
        }
        self.edges = tuple(edges)
        self._shared = Shared(
            clock=self.clock,
            links=self.links,
            machines=self.machines,
            cast=msgspec.structs.replace(cast, roles=roles, slots_max=slots, edges=edges),
            directory=Directory(owners=dict(machines.owners)),
            terms=machines.terms,
            parties={**owners, **machines.parties},
            launch=self._launch,
            began=self._began,
            wrote=self._wrote,
            finished=self._finished,
            died=self.kill_daemon,
        )
        self.home = HOME
        self.machines[HOME].places = Places(home=HOME, machines=places, home_offers=machines.movable)
        for machine in self.machines.values():
            machine.follows = HOME, 1
        self._place, self._replicas = machines.place, replicas
        self.injector = Injector(self, faults)

    # -- queries -------------------------------------------------------------------------------------------------------

    def life(self, replica: Replica) -> Life | None:
        """The present life of a replica, if its process exists."""
        lives = [life for life in self.living() if life.member.replica == replica]
        return max(lives, key=lambda life: life.member.incarnation, default=None)

    def last(self, replica: Replica) -> Life | None:
        """The last life of a replica: a former home that comes back begins others."""
        lives = [life for life in self.lives if life.member.replica == replica]
        return max(lives, key=lambda life: life.member.incarnation, default=None)

    def machine_of(self, replica: Replica) -> str:
        """The machine of the last life of a replica; of one that has none yet, that where it begins."""
        life = self.last(replica)
        return self._place(replica) if life is None else life.machine

    def living(self) -> list[Life]:
        return [life for machine in self.machines.values() for life in machine.living()]

    @property
    def home_name(self) -> str:
        """The name of the daemon at home; '' while there is none."""
        daemon = self.machines[self.home].daemon
        return "" if daemon is None else daemon.name

    def party(self, machine: str) -> str:
        """Who has brought a machine: itself, if nobody else has."""
        return self._shared.parties.get(machine, Party(machine)).name

    @property
    def hosts(self) -> dict[Replica, Host]:
        """The present host of every replica that has one."""
        return {life.member.replica: life.host for life in self.living()}

    @property
    def phase(self) -> str:
        """The phase of the run: 'starting' until a host steps, 'final' once a host reports that phase or a stop."""
        phase = "starting"
        for life in self.living():
            reported = life.phase
            if reported == "final" or any(shown.get("is_stopping") for shown in life.shown):
                return "final"
            phase = reported if reported == "stepping" else phase
        return phase

    @property
    def calm_ns(self) -> int:
        """The time since a fault began or ended; 0 while one lasts."""
        return self.clock.now() - self.injector.calm_since if self.injector.is_calm else 0

    # -- disturbances --------------------------------------------------------------------------------------------------

    def join(self, replica: Replica) -> bool:
        """Let a machine with one island join; False where there is no daemon to admit it."""
        daemon = self.machines[self.home].daemon
        if daemon is None:
            return False
        self.start_daemon(self.machines[self._place(replica)])
        daemon.at_home(lambda home: home.join(self._place(replica), 1))
        return True

    def request_stop(self) -> bool:
        """Request a stop of the run; False where there is no daemon to receive it."""
        daemon = self.machines[self.home].daemon
        if daemon is not None and daemon.home is not None:
            self.requests.add("stop")
            daemon.at_home(Daemon.request_stop)
            # A daemon that is suspended, or dies before it has recorded the stop, has confirmed nothing.
            journal = self.machines[self.home].journal()
            self.is_stopped |= journal is not None and journal.is_stopping and not daemon.home.is_ending
        return daemon is not None

    def forget_stop(self, machine: SimulatedMachine) -> None:
        """A home that loses its ledger forgets what it has confirmed."""
        self.is_stopped &= machine.name != self.home

    def move_home(self, name: str) -> None:
        """Another machine becomes the home of the run, in the next term, with what the disk of the present one has."""
        former, machine = self.machines[self.home], self.machines[name]
        journal = former.journal()
        if machine.is_dark or machine is former or self.outcome is not None:
            return
        if journal is not None and journal.outcome != "running":
            return
        assert former.places is not None
        machine.places = msgspec.structs.replace(
            former.places, home=name, term=former.places.term + 1, former=former.name
        )
        machine.disk.take_over(former.disk)
        machine.records.take_over(former.records)
        self.kill_daemon(machine)
        machine.ledger.take_over(former.ledger, machine)
        self.home = name
        self.start_daemon(machine)

    def end(self) -> bool:
        """Request the end of the run; False where there is no daemon to receive it, or its home has not begun yet."""
        daemon = self.machines[self.home].daemon
        if daemon is None or daemon.home is None or not daemon.home.has_begun:
            return False
        self.requests.add("end")  # Before: a run without processes is over at once.
        daemon.at_home(lambda home: home.end("ended by a fault"))
        return True

    def kill(self, life: Life) -> None:
        machine = self.machines[life.machine]
        machine.end(machine.processes[life.pid])

    def kill_daemon(self, machine: SimulatedMachine) -> None:
        if machine.daemon is not None:
            machine.daemon.die()
            machine.daemon = None

    def start_daemon(self, machine: SimulatedMachine) -> None:
        """Start a daemon on a machine that has power and no daemon."""
        if machine.daemon is None and not machine.is_dark:
            machine.daemon = daemon = SimulatedDaemon(self._shared, machine, len(self.daemons) + 1)
            self.daemons.append(daemon)
            daemon.start()

    def darken(self, machine: SimulatedMachine, *, keeps_power: bool = False) -> None:
        """End all processes of a machine and, unless it `keeps_power`, lose what its disks have not synced."""
        machine.is_dark = True
        self.kill_daemon(machine)
        for process in list(machine.processes.values()):
            machine.end(process)
        if not keeps_power:
            machine.boots += 1
            self.disks[machine.name].lose_power()
            self.tape_disks[machine.name].lose_power()

    def lighten(self, machine: SimulatedMachine) -> None:
        """Restore the power of a machine; its daemon starts soon."""
        machine.is_dark = False
        at = Instant(self.clock.now() + seconds(REBOOT_SECONDS))
        self.clock.call_at(at, partial(self.start_daemon, machine))

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, seconds_max: float) -> None:
        """Let time pass until `until()` holds, up to `seconds_max` virtual seconds; first start every host.

        The limit counts from the start of the run. Raises ViolationError if a checker finds a violation, RunError if a
        body failed, TimeoutError if `until` did not come to hold.
        """
        if not self._has_started:
            self._has_started = True
            for name in sorted({HOME, *map(self._place, self._replicas)}):
                self.start_daemon(self.machines[name])
        # Both look at all hosts, and with more hosts more events happen in the same time.
        hosts = len(self._replicas)
        looked_every, asked_every = hosts if hosts > LOOKED_MAX else 1, max(ASKED_EVERY, ASKED_EVENTS * hosts)
        end, busy = Instant(seconds(seconds_max)), 0
        while not until():
            due = self.clock.due()
            if due is None or due > end:
                raise TimeoutError(f"not over after {seconds_max:.1f} virtual seconds")
            busy = busy + 1 if due == self.clock.now() else 0
            if busy > BUSY_MAX:
                raise TimeoutError(f"{BUSY_MAX} events at one instant: it goes round in circles")
            self.clock.step()
            self.events += 1
            if self.injector.waiting and self.events % looked_every == 0:
                self.injector.look()
            if self.events % asked_every == 0:
                for checker in self._checkers:
                    checker.polled(self)
            if self.error is not None:
                raise RunError(self.error)

    def finish(self) -> None:
        """Call every checker a last time."""
        for checker in self._checkers:
            checker.ended(self)

    def heal(self) -> None:
        """End every fault; none begins any more."""
        self.injector.heal()

    def close(self) -> None:
        """Kill all hosts, and drop the ledgers."""
        for life in self.living():
            life.kill()
        for machine in self.machines.values():
            machine.ledger.close()

    # -- tapes ---------------------------------------------------------------------------------------------------------

    def tape(self) -> dict[str, bytes]:
        """The encoded tapes since the last call: of every life ('learner/2#1'), and of the cores of every daemon."""
        tapes = {str(life.member): joined(life.tape.news()) for life in self.lives}
        for daemon in self.daemons:
            for core, kept in daemon.tapes.items():
                tapes[f"{daemon.name} {core}"] = b"".join(joined(tape.drain()) for tape in kept)
        return tapes

    # -- processes -----------------------------------------------------------------------------------------------------

    def _began(self, member: Member) -> None:
        for checker in self._checkers:
            checker.began(self, member)

    def _wrote(self, machine: SimulatedMachine, happened: Happened) -> None:
        if machine.name != self.home:  # Incidents of a former home are ignored.
            return
        self.incidents.append(happened)
        for checker in self._checkers:
            checker.happened(self, happened)

    def _finished(self, machine: SimulatedMachine, home: Home) -> None:
        if isinstance(home.failure, SupersededHome):  # From now on it is an outpost of the run.
            machine.follows, machine.places = (home.failure.home, home.failure.term), None
            self.kill_daemon(machine)
            machine.ledger.forget()
            self.clock.call_soon(partial(self.start_daemon, machine))
            return
        if home.is_set_aside:
            self.clock.call_soon(partial(self.kill_daemon, machine))
            return
        for checker in self._checkers:
            checker.finished(self, home)
        self.outcome, self.failure = home.outcome, home.failure

    def _launch(self, machine: SimulatedMachine, member: Member) -> SimulatedProcess:
        """Start a process; it is a host once it has booted."""
        self._pids += 1
        process = machine.processes[self._pids] = SimulatedProcess(member, self._pids)
        rng = random.Random(f"{self._seed} boot {member}")
        at = Instant(self.clock.now() + seconds(self._boot_seconds * (0.5 + rng.random())))
        process.cancel_boot = self.clock.call_at(at, partial(self._booted, machine, process, machine.daemon))
        if machine.crashes.get(member.replica):
            machine.crashes[member.replica] -= 1
            self.clock.call_at(Instant(at + seconds(CRASH_SECONDS)), partial(machine.end, process, Exited(3)))
        return process

    def _booted(self, machine: SimulatedMachine, process: SimulatedProcess, daemon: object) -> None:
        mount = Mount(machine.disk, str(process.member))
        life = Life(
            self._setting,
            process.member,
            process.pid,
            machine.name,
            machine.address,
            mount,
            self.tape_disks[machine.name],
            daemon,
        )
        self.lives.append(life)
        process.life = life
        life.start(listens=not takes_island(process.member.replica))

    def _spoke(self, life: Life, message: bytes) -> None:
        daemon = self.machines[life.machine].daemon
        if daemon is not None and daemon is life.daemon:
            daemon.server.receive(life, message)

    def _daemon_of(self, life: Life) -> SimulatedDaemon | None:
        daemon = self.machines[life.machine].daemon
        return daemon if daemon is not None and daemon.is_published else None

    def _left(self, life: Life, how: Exited) -> None:
        machine = self.machines[life.machine]
        machine.end(machine.processes[life.pid], how)

    def _failed(self, life: Life, node: str, error: str) -> None:
        if self.error is None:
            self.error = f"{life.member}, node {node!r}: {error}"


def _draw(rng: random.Random) -> bool:
    """True or False, with equal chances."""
    return rng.random() < 0.5


def digest(tapes: Mapping[str, bytes]) -> str:
    """SHA-256 of tapes, as hexadecimal digits."""
    hasher = hashlib.sha256()
    for name, data in tapes.items():
        hasher.update(f"{name} {len(data)}\n".encode())
        hasher.update(data)
    return hasher.hexdigest()
