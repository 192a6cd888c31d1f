"""Makes faults happen on hosts, daemons, the network between machines, and disks, and counts those that really did.

It decides when each fault of a list begins and ends (`Injector`); `Acts` has their effects. A fault that cannot happen
yet (its host is dead at the moment, for example) waits until it can; one that still waits at the end has not happened,
and is reported. A lurking fault, such as a disk's trouble, is in place from its moment on; it has happened, and begins
to last, when it strikes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim import faults
from isthmus.runtime.sim.daemons import (
    SimulatedDaemon,
    SimulatedMachine,
    SimulatedProcess,
    StartLag,
    StartTrouble,
    StationLie,
)
from isthmus.runtime.sim.faults import (
    BreakDisk,
    DieAll,
    Fault,
    FillDisk,
    Forge,
    HostFault,
    Lie,
    LurkingFault,
    RefuseStarts,
    SlowStarts,
)
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.lies import Liar
from isthmus.runtime.sim.machine import Ambush, SimulatedDisk, Trouble
from isthmus.runtime.sim.network import ControlLinks, Ether, Weather

Way: TypeAlias = tuple[str, str]
"""A network path, from one address to another."""
CRASH_SECONDS_MAX: Final = 30.0
"""The longest crash loop: six back-offs take 15.5 s."""


class Disturbed(Protocol):
    """An injector's view of a universe: its parts, some of them by machine, and its disturbances."""

    clock: VirtualClock
    weather: Weather
    ether: Ether
    links: ControlLinks
    addresses: dict[str, str]
    disks: dict[str, SimulatedDisk]
    tape_disks: dict[str, SimulatedDisk]
    machines: dict[str, SimulatedMachine]

    home: str
    edges: tuple[str, ...]

    @property
    def phase(self) -> str:
        """The phase of the run: starting, stepping or final."""

    def living(self) -> list[Life]:
        """The hosts that are alive."""

    def life(self, replica: Replica) -> Life | None:
        """The live host of a replica, if there is one."""

    def join(self, replica: Replica) -> bool:
        """A machine with an island joins; returns whether a home admits it."""

    def request_stop(self) -> bool:
        """Request a stop of the run; returns whether a home received it."""

    def forget_stop(self, machine: SimulatedMachine) -> None:
        """A machine's ledger was lost, and perhaps the stop that its daemon confirmed."""

    def move_home(self, name: str) -> None:
        """Another machine becomes the home of the run."""

    def end(self) -> bool:
        """Request the immediate end of the run; returns whether a home received it."""

    def kill(self, life: Life) -> None:
        """Kill a process at once."""

    def kill_daemon(self, machine: SimulatedMachine) -> None:
        """Kill a daemon at once."""

    def start_daemon(self, machine: SimulatedMachine) -> None:
        """Start a daemon on a machine."""

    def darken(self, machine: SimulatedMachine, *, keeps_power: bool = False) -> None:
        """End all processes of a machine and, unless it `keeps_power`, lose what its disks have not synced."""

    def lighten(self, machine: SimulatedMachine) -> None:
        """Restore the power of a machine."""


class Acts:
    """The acts of one universe.

    `last` is called with the duration of a fault and its end, `struck` with the number of a lurking one. `touched` are
    the replicas whose hosts a fault concerned, `forgeries` the changes to the items that they send, `liars` the
    machines that have lied.
    """

    def __init__(
        self,
        universe: Disturbed,
        last: Callable[[float, Callable[[], object]], None],
        struck: Callable[[int], None],
    ) -> None:
        self.touched: set[Replica] = set()
        self.forgeries: dict[Replica, list[faults.Forge]] = {}
        self.liars: set[str] = set()
        self._universe, self._last, self._struck = universe, last, struck
        self._number = 0
        self._doomed: set[int] = set()
        self._dead: dict[int, list[SimulatedMachine]] = {}

    def begin(self, fault: faults.PromptFault) -> bool:
        """Start a fault that does not lurk; returns whether it happens."""
        if isinstance(fault, faults.HostFault):
            return self._on_host(fault)
        if isinstance(fault, faults.WayFault):
            return self._on_ways(fault, self._ways(fault))
        match fault:
            case faults.Blackout():
                return self._black_out(fault)
            case faults.MoveHome():
                return self._move_home(fault)
            case faults.PreemptionNotice():
                return self._notify(fault)
            case faults.Join():
                return self._universe.join(Replica.parse(fault.host))
            case faults.Stop():
                return self._universe.request_stop()
            case faults.End():
                return self._universe.end()
            case _:
                return self._on_daemon(fault)

    def lurk(self, fault: faults.LurkingFault) -> int:
        """Let a fault lurk from now on; returns its number.

        A disk that will be in trouble, a machine without room for processes, or one that reports them late.
        """
        number = self._next()
        struck = partial(self._struck, number)
        match fault:
            case faults.RefuseStarts():
                trouble: Any = StartTrouble(fault.count, partial(self._refused, struck))
            case faults.SlowStarts():
                trouble = StartLag(fault.lag, struck)
            case faults.Lie():
                seed = f"{fault.machine} {number}"
                lie = Liar(fault.claim, fault.value, seed, self._universe.edges)
                trouble = StationLie(lie, partial(self._began_to_lie, fault.machine, struck))
            case faults.FillDisk():
                trouble = Trouble(struck, room=fault.room)
            case faults.BreakDisk():
                trouble = Trouble(struck, share=fault.share)
            case faults.DieAll():
                trouble = Ambush(fault.operation, fault.name, partial(self._ambush, fault, number), fault.then)
        self._troubles(fault)[number] = trouble
        return number

    def clear(self, fault: faults.LurkingFault, number: int) -> None:
        """End a fault that lurks or lasts."""
        if isinstance(fault, faults.DieAll):
            self._die_all(fault, number)
            self._revive(number)
        self._troubles(fault).pop(number, None)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _troubles(self, fault: faults.LurkingFault) -> dict[int, Any]:
        """The table in which a fault lurks."""
        if isinstance(fault, faults.RefuseStarts):
            return self._universe.machines[fault.machine].start_troubles
        if isinstance(fault, faults.SlowStarts):
            return self._universe.machines[fault.machine].start_lags
        if isinstance(fault, faults.Lie):
            return self._universe.machines[fault.machine].lies
        disk = self._universe.disks[fault.machine]
        return disk.ambushes if isinstance(fault, faults.DieAll) else disk.troubles

    def _refused(self, struck: Callable[[], None], replica: Replica) -> None:
        self.touched.add(replica)
        struck()

    def _began_to_lie(self, machine: str, struck: Callable[[], None]) -> None:
        self.liars.add(machine)
        self.touched.update(process.member.replica for process in self._universe.machines[machine].processes.values())
        struck()

    # -- all machines --------------------------------------------------------------------------------------------------

    def _ambush(self, fault: faults.DieAll, number: int) -> None:
        """The moment of an ambush: operations on the disk fail until the processes die."""
        self._struck(number)
        self._doomed.add(number)
        self._universe.clock.call_soon(partial(self._die_all, fault, number))

    def _die_all(self, fault: faults.DieAll, number: int) -> None:
        """End all processes, once, and only if the fault has struck."""
        if number not in self._doomed:
            return
        self._doomed.discard(number)
        self._dead[number] = [machine for machine in self._universe.machines.values() if not machine.is_dark]
        for machine in self._dead[number]:
            self.touched.update(process.member.replica for process in machine.processes.values())
            self._universe.darken(machine, keeps_power=fault.keeps_power)
        self._universe.disks[fault.machine].is_cut = False

    def _revive(self, number: int) -> None:
        for machine in self._dead.pop(number, []):
            self._universe.lighten(machine)

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _on_host(self, fault: faults.HostFault) -> bool:
        life = self._universe.life(Replica.parse(fault.host))
        if life is None:
            return False
        self.touched.add(life.member.replica)
        match fault:
            case faults.Kill():
                self._universe.kill(life)
            case faults.Crash():
                machine = self._universe.machines[life.machine]
                crashes = machine.crashes
                crashes[life.member.replica] = crashes.get(life.member.replica, 0) + fault.lives
                self._universe.kill(life)
                # Until the last of these lives has ended, which begins after a back-off.
                self._last(CRASH_SECONDS_MAX, partial(crashes.pop, life.member.replica, None))
            case faults.Pause() | faults.Hang():
                if life.clock.is_paused:
                    return False
                life.clock.is_paused = True
                process = self._universe.machines[life.machine].processes[life.pid]
                process.is_stopped = isinstance(fault, faults.Pause)
                self._last(fault.seconds, partial(self._resume, life, process))
            case faults.Away():
                if life.away is not None:
                    return False
                life.away = fault.seconds
                process = self._universe.machines[life.machine].processes[life.pid]
                process.idle_since = self._universe.clock.now() if fault.is_idle else None
                self._last(fault.seconds, partial(self._come_back, life, process))
            case faults.Stick():
                if fault.node in life.stuck:
                    return False
                life.stuck[fault.node] = fault.seconds
                self._last(fault.seconds, partial(life.stuck.pop, fault.node, None))
            case faults.Slow():
                if life.factor != 1.0:
                    return False
                life.factor = fault.factor
                self._last(fault.seconds, partial(setattr, life, "factor", 1.0))
            case faults.Skew():
                life.clock.skew(seconds(fault.leap), fault.drift)
            case faults.Forge():
                self.forgeries.setdefault(life.member.replica, []).append(fault)
        return True

    def _come_back(self, life: Life, process: SimulatedProcess) -> None:
        life.away = process.idle_since = None

    def _resume(self, life: Life, process: SimulatedProcess) -> None:
        process.is_stopped = False
        if not life.is_dead:
            life.clock.resume()

    # -- daemons -------------------------------------------------------------------------------------------------------

    def _on_daemon(self, fault: faults.TalkFault) -> bool:
        machine, links = self._universe.machines[fault.machine], self._universe.links
        daemon = machine.daemon
        number = self._next()
        match fault:
            case faults.KillDaemon():
                if daemon is None or daemon.commands_left is not None:
                    return False
                daemon.commands_left = fault.commands
                self._last(fault.seconds, partial(self._replace, machine, daemon, fault))
            case faults.PauseDaemon():
                if daemon is None or daemon.clock.is_paused:
                    return False
                daemon.clock.is_paused = True
                self._last(fault.seconds, daemon.clock.resume)
            case faults.LoseReports():
                links.losses.setdefault(machine.name, {})[number] = fault.share
                self._last(fault.seconds, partial(links.losses[machine.name].pop, number, None))
            case faults.RepeatReports():
                links.repeats.setdefault(machine.name, {})[number] = fault.share
                self._last(fault.seconds, partial(links.repeats[machine.name].pop, number, None))
        return True

    def _replace(self, machine: SimulatedMachine, daemon: SimulatedDaemon, fault: faults.KillDaemon) -> None:
        """Start another daemon in place of one that has died, or is killed now."""
        if machine.daemon is daemon:
            self._universe.kill_daemon(machine)
        if fault.loses_ledger and machine.daemon is None:
            machine.ledger.lose()
            self._universe.forget_stop(machine)
        self._universe.start_daemon(machine)

    # -- network paths -------------------------------------------------------------------------------------------------

    def _ways(self, fault: faults.WayFault | faults.Blackout) -> list[tuple[str, str]]:
        """The network paths, as ordered pairs of addresses, that a fault of a machine concerns."""
        addresses = self._universe.addresses
        here = addresses[fault.machine]
        target = fault.target if isinstance(fault, faults.Cut) else None
        others = [addresses[target]] if target is not None else [each for each in addresses.values() if each != here]
        there = [(here, other) for other in others]
        return there if isinstance(fault, faults.Cut) and fault.is_one_way else there + [(b, a) for a, b in there]

    def _on_ways(self, fault: faults.WayFault, ways: list[tuple[str, str]]) -> bool:
        weather, ether = self._universe.weather, self._universe.ether
        address = self._universe.addresses[fault.machine]
        number = self._next()
        match fault:
            case faults.Reset():
                broken = [each for each in ether.connections if each.machines in ways]
                for connection in broken:
                    connection.reset()
                return bool(broken)
            case faults.Cut():
                for way in ways:
                    weather.cuts.setdefault(way, set()).add(number)
                self._last(fault.seconds, partial(self._join, weather.cuts, ways, number))
            case faults.Mute():
                for way in ways:
                    weather.mutes.setdefault(way, set()).add(number)
                self._last(fault.seconds, partial(self._join, weather.mutes, ways, number))
            case faults.Clog():
                weather.clogs.setdefault(address, {})[number] = seconds(fault.latency)
                self._last(fault.seconds, partial(weather.clogs[address].pop, number, None))
            case faults.Throttle():
                weather.paces.setdefault(address, {})[number] = fault.kbits / 1e6
                self._last(fault.seconds, partial(weather.paces[address].pop, number, None))
            case faults.Lose():
                weather.losses.setdefault(address, {})[number] = fault.share
                self._last(fault.seconds, partial(weather.losses[address].pop, number, None))
        return True

    def _join(self, broken: dict[Way, set[int]], ways: list[Way], number: int) -> None:
        for way in ways:
            broken[way].discard(number)
        self._universe.ether.changed()

    def _move_home(self, fault: faults.MoveHome) -> bool:
        """Cut the power of the home, and make another machine the home; False where that is the same one, or dark."""
        home = self._universe.home
        if fault.machine == home or self._universe.machines[fault.machine].is_dark:
            return False
        if not self._black_out(faults.Blackout(home, fault.seconds, at=0.0)):
            return False
        self._last(fault.after, partial(self._universe.move_home, fault.machine))
        return True

    def _notify(self, fault: faults.PreemptionNotice) -> bool:
        """Tell a machine to leave; False where nobody is there to be told."""
        machine = self._universe.machines[fault.machine]
        daemon = machine.daemon
        if daemon is None or daemon.is_leaving or daemon.clock.is_paused:
            return False
        self.touched.update(process.member.replica for process in machine.processes.values())
        daemon.leave(fault.grace)
        self._last(fault.seconds, partial(self._start_again, machine))
        return True

    def _start_again(self, machine: SimulatedMachine) -> None:
        """Start a machine again that has left; what has not is killed."""
        if machine.daemon is None or machine.daemon.is_leaving:
            self._universe.darken(machine, keeps_power=True)
            self._universe.lighten(machine)

    def _black_out(self, fault: faults.Blackout) -> bool:
        """Cut a machine's power; False where it is dark already."""
        machine, ways = self._universe.machines[fault.machine], self._ways(fault)
        if machine.is_dark:
            return False
        number = self._next()
        for way in ways:
            self._universe.weather.cuts.setdefault(way, set()).add(number)
        self.touched.update(process.member.replica for process in machine.processes.values())
        self._universe.darken(machine)

        def lighten() -> None:
            self._join(self._universe.weather.cuts, ways, number)
            self._universe.lighten(machine)

        self._last(fault.seconds, lighten)
        return True


LURKING_SECONDS: Final = 1.0
"""The time after the first refused process at which a machine has room again."""


class Injector:
    """Injects the faults of one universe; `Acts` has their effects.

    `counts` has how often each kind happened, `phases` the same by (kind, phase of the run); `story` lists when each
    happened, `happened` each fault with the phase of the run; `waiting` are faults that are due and could not happen
    yet, `calm_since` is when the last one began or ended.
    """

    def __init__(self, universe: Disturbed, faults: Iterable[Fault]) -> None:
        self.counts: Counter[str] = Counter()
        self.phases: Counter[tuple[str, str]] = Counter()
        self.story: list[tuple[Instant, str]] = []
        self.happened: list[tuple[Fault, str]] = []
        self.waiting: list[Fault] = []
        self.calm_since = Instant(0)
        self._universe = universe
        self._acts = Acts(universe, self._last, self._struck)
        self._numbers = 0
        self._coming: list[Fault] = []
        self._late = set[Fault]()
        self._never: list[Fault] = []
        self._ends: dict[int, Callable[[], object]] = {}
        self._lurking: dict[int, LurkingFault] = {}
        for fault in faults:
            if fault.at is None:
                self.waiting.append(fault)
            else:
                self._expect(fault, Instant(seconds(fault.at)))

    @property
    def touched(self) -> set[Replica]:
        """The replicas whose hosts a fault concerned."""
        return self._acts.touched

    @property
    def forgeries(self) -> dict[Replica, list[Forge]]:
        """The changes to the items that hosts send, by replica."""
        return self._acts.forgeries

    @property
    def liars(self) -> set[str]:
        """The machines whose stations have lied."""
        return self._acts.liars

    @property
    def is_calm(self) -> bool:
        """Whether no fault lasts."""
        return not self._ends

    @property
    def missed(self) -> list[str]:
        """The faults that have not happened."""
        return [str(fault) for fault in (*self._never, *self.waiting, *self._coming, *self._lurking.values())]

    @property
    def has_missed(self) -> bool:
        """Whether there are any."""
        return bool(self._never or self.waiting or self._coming or self._lurking)

    def look(self) -> None:
        """Start the waiting faults that can happen now."""
        phase = self._universe.phase if any(fault.at_phase is not None for fault in self.waiting) else ""
        for fault in list(self.waiting):
            if fault in self._late or self._is_time(fault, phase):
                self.waiting.remove(fault)
                self._come(fault)

    def heal(self) -> None:
        """End every fault that lasts, and prevent all others."""
        self._never += [*self.waiting, *self._coming, *self._lurking.values()]
        self.waiting.clear()
        self._coming.clear()
        for number, fault in self._lurking.items():
            self._acts.clear(fault, number)
        self._lurking.clear()
        for number in list(self._ends):
            self._end(number)

    def _come(self, fault: Fault) -> None:
        """Start a fault whose moment has come, now or with its delay."""
        if fault.later and fault not in self._late:
            self._late.add(fault)
            self._expect(fault, Instant(self._universe.clock.now() + seconds(fault.later)))
        elif not self._begin(fault):
            self._late.add(fault)
            self.waiting.append(fault)

    def _expect(self, fault: Fault, at: Instant) -> None:
        self._coming.append(fault)
        self._universe.clock.call_at(at, partial(self._due, fault))

    def _due(self, fault: Fault) -> None:
        if fault in self._coming:
            self._coming.remove(fault)
            self._late.add(fault)
            self._come(fault)

    def _is_time(self, fault: Fault, phase: str) -> bool:
        if fault.at_phase is not None:
            return fault.at_phase == phase
        if fault.at_step is None:
            return True
        named = self._universe.life(Replica.parse(fault.host)) if isinstance(fault, HostFault) else None
        lives = [named] if named is not None and named.step else self._universe.living()
        return max((life.step for life in lives), default=0) >= fault.at_step

    def _begin(self, fault: Fault) -> bool:
        """Start a fault, or let it lurk; returns whether it does."""
        if isinstance(fault, RefuseStarts | SlowStarts | Lie | FillDisk | BreakDisk | DieAll):
            self._lurking[self._acts.lurk(fault)] = fault
            return True
        phase = self._universe.phase
        happened = self._acts.begin(fault)
        if happened:
            self._count(fault, phase)
        return happened

    def _count(self, fault: Fault, phase: str) -> None:
        self.counts[fault.kind] += 1
        self.phases[fault.kind, phase] += 1
        self.happened.append((fault, phase))
        self.calm_since = self._universe.clock.now()
        self.story.append((self._universe.clock.now(), str(fault)))

    def _struck(self, number: int) -> None:
        """A lurking fault struck: the first time, it has happened."""
        fault = self._lurking.pop(number, None)
        if fault is not None:
            self._count(fault, self._universe.phase)
            lasts = LURKING_SECONDS if isinstance(fault, RefuseStarts) else fault.seconds
            self._last(lasts, partial(self._acts.clear, fault, number))

    def _last(self, duration: float, end: Callable[[], object]) -> None:
        """End a fault after `duration` seconds."""
        self._numbers += 1
        self._ends[self._numbers] = end
        at = Instant(self._universe.clock.now() + seconds(duration))
        self._universe.clock.call_at(at, partial(self._end, self._numbers))

    def _end(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            self.calm_since = self._universe.clock.now()
            end()
