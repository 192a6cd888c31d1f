"""A universe: a whole run on several machines, in one thread, in virtual time, with faults, from one seed.

Hosts, cores, wire and bodies are those of a real run. The virtual clock, sockets (`ether`), weather, processes
(`life`) and daemons (`keeper`) are not; the `injector` disturbs them, and checkers object. The same arguments give the
same tapes byte for byte, under any hash seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.errors import RunError
from isthmus.runtime.ether import Ether
from isthmus.runtime.graph import Reference
from isthmus.runtime.host import Host
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.inline import VirtualClock
from isthmus.runtime.lowering import Plan
from isthmus.runtime.meetings import meets
from isthmus.runtime.peers import Limits
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.disk import Mount, SimulatedDisk
from isthmus.runtime.sim.fault_check import check
from isthmus.runtime.sim.faults import Fault, Join
from isthmus.runtime.sim.injector import Injector
from isthmus.runtime.sim.keeper import Keeper
from isthmus.runtime.sim.life import Life, Setting
from isthmus.runtime.sim.weather import Climate, Weather
from isthmus.runtime.sim.world import DurationOf, a_millisecond
from isthmus.runtime.trace import Trace

ASKED_EVERY: Final = 500
"""Events between two questions to the checkers; checking a core costs as much as some twenty events."""
BUSY_MAX: Final = 100_000
"""Events at one instant; a few dozen are many."""
HOME: Final = "home"


def machine_of(replica: Replica) -> str:
    """Where a replica is by default: a learner or syncer on a machine of its own, everything else at home."""
    return f"{replica.role}-{replica.slot}" if replica.role in ("learner", "syncer") else HOME


class Universe:
    """Hosts of one run on machines of their own. `addresses` and `disks` are those of the machines, by name.

    `duration(replica, node)` is what a firing takes before `jitter` (a share); `boot` the seconds in which a process
    starts; `place(replica)` the machine of each. `error` is what a body raised.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        counts: Mapping[str, int],
        *,
        seed: int,
        resolve: Callable[[Reference], Any],
        duration: DurationOf = a_millisecond,
        jitter: float = 0.0,
        climate: Climate = Climate(),  # noqa: B008
        boot: float = 0.5,
        faults: Iterable[Fault] = (),
        checkers: Sequence[Checker] = (),
        place: Callable[[Replica], str] = machine_of,
        limits: Limits = Limits(),  # noqa: B008
        trace: Trace | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.weather = Weather(climate, seed)
        self.ether = Ether(self.clock, self.weather, partial(_draw, random.Random(f"{seed} lingers")))
        self.ended: set[tuple[str, str]] = set()
        self.error: str | None = None
        self.events = 0
        self.lives: list[Life] = []
        self._has_started = False
        self._checkers = tuple(checkers)
        faults = tuple(faults)
        replicas = [Replica(role, slot) for role in plans for slot in range(counts[role])]
        joining = sorted({Replica.parse(fault.host) for fault in faults if isinstance(fault, Join)})
        machines = sorted({HOME, *map(place, [*replicas, *joining])})
        check(faults, list(plans), replicas, machines)
        self.addresses = {name: f"127.0.0.{number}" for number, name in enumerate(machines, 1)}
        self.disks = {name: SimulatedDisk(f"{seed} disk {name}") for name in machines}
        self._setting = Setting(
            clock=self.clock,
            ether=self.ether,
            plans=plans,
            seed=seed,
            resolve=resolve,
            duration=duration,
            jitter=jitter,
            meets=meets,
            checkers=self._checkers,
            trace=trace,
            limits=limits,
            ended=lambda life, node: self.ended.add((str(life.member.replica), node)),
            failed=self._failed,
        )
        self.keeper = Keeper(
            self.clock,
            self.weather,
            places={replica: place(replica) for replica in replicas},
            addresses=self.addresses,
            home=HOME,
            launch=self._launch,
            boot=lambda member: boot * (0.5 + random.Random(f"{seed} boot {member}").random()),
            joining=joining,
        )
        self._place = place
        self.injector = Injector(self, faults)

    # -- what there is -------------------------------------------------------------------------------------------------

    def life(self, replica: Replica) -> Life | None:
        """The present life of a replica that is wished for, if its process is there."""
        found = [life for life in self.living() if life.member.replica == replica]
        return max(found, key=lambda life: life.member.incarnation, default=None)

    def living(self) -> list[Life]:
        """Every process that is there."""
        return [life for site in self.keeper.sites.values() for life in site.lives.values()]

    @property
    def hosts(self) -> dict[Replica, Host]:
        """The present host of every replica that has one."""
        return {life.member.replica: life.host for life in self.living()}

    @property
    def phase(self) -> str:
        """Of the run: 'starting' until somebody steps, 'final' once somebody says that it comes to the end."""
        lives = self.living()
        phases = [life.phase for life in lives]
        if "final" in phases or any(shown.get("is_stopping") for life in lives for shown in life.shown):
            return "final"
        return "stepping" if "stepping" in phases else "starting"

    @property
    def calm_ns(self) -> int:
        """How long it is ago that a fault began or ended; 0 while one lasts."""
        return self.clock.now() - self.injector.calm_since if self.injector.is_calm else 0

    def join(self, replica: Replica) -> bool:
        """Let a replica join, on its machine; False if it has."""
        if replica in self.keeper.places:
            return False
        self.keeper.join(replica, self._place(replica))
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], *, seconds_max: float) -> None:
        """Let time pass until `until()` holds, at most up to `seconds_max` virtual seconds from the start; the first
        time, start every host.

        Raises ViolationError if a checker objects, RunError if a body failed, TimeoutError if `until` did not come to
        hold.
        """
        if not self._has_started:
            self._has_started = True
            self.keeper.start()
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
            if self.injector.waiting:
                self.injector.look()
            if self.events % ASKED_EVERY == 0:
                for checker in self._checkers:
                    checker.asked(self)
            if self.error is not None:
                raise RunError(self.error)

    def finish(self) -> None:
        """Ask every checker a last time."""
        for checker in self._checkers:
            checker.ended(self)

    def heal(self) -> None:
        """End every fault; none begins any more."""
        self.injector.heal()

    def close(self) -> None:
        """Let go of everything."""
        for life in self.living():
            life.kill()

    # -- what is left --------------------------------------------------------------------------------------------------

    def tape(self) -> dict[str, bytes]:
        """The encoded tape of every life since the last call, by member ('learner/2#1')."""
        return {str(life.member): life.tape.take() for life in self.lives}

    def _launch(self, member: Member, machine: str) -> Life:
        life = Life(self._setting, member, machine, self.addresses[machine], Mount(self.disks[machine]))
        self.lives.append(life)
        life.start(listens=member.replica.role != "learner")
        return life

    def _failed(self, life: Life, node: str, error: str) -> None:
        if self.error is None:
            self.error = f"{life.member}, node {node!r}: {error}"


def _draw(rng: random.Random) -> bool:
    """Heads or tails."""
    return rng.random() < 0.5


def digest(tapes: Mapping[str, bytes]) -> str:
    """SHA-256 of tapes, as hexadecimal digits."""
    found = hashlib.sha256()
    for name, data in tapes.items():
        found.update(f"{name} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()
