"""Makes faults happen, and counts those that really did.

Decides when each fault of a list begins and ends. One that cannot happen yet (its host is dead at the moment, say)
waits until it can; what is still waiting at the end has not happened, and is told. A disk's trouble lies in wait from
its moment on, and has happened, and begins to last, when it strikes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.daemons import SimulatedDaemon
from isthmus.runtime.sim.disk import Trouble
from isthmus.runtime.sim.faults import (
    Blackout,
    BreakDisk,
    Clog,
    Crash,
    Cut,
    DiskFault,
    End,
    Fault,
    FillDisk,
    Hang,
    HostFault,
    Join,
    Kill,
    KillDaemon,
    Lose,
    LoseReports,
    Pause,
    PauseDaemon,
    RefuseStarts,
    RepeatReports,
    Reset,
    Skew,
    Slow,
    Stick,
    Stop,
    Throttle,
    WayFault,
)
from isthmus.runtime.sim.life import Life
from isthmus.runtime.sim.machines import Process, SimulatedMachine, StartTrouble

if TYPE_CHECKING:
    from isthmus.runtime.sim.universe import Universe

CRASH_SECONDS_MAX: Final = 30.0
"""For so long at most a crash loop lasts: six back-offs take 15.5 s."""
LURKING_SECONDS: Final = 1.0
"""After its first process was refused, a machine is about to have room again."""


class Injector:
    """Of one universe. `counts` has how often each kind happened, `phases` the same by (kind, phase of the run);
    `story` says when and what; `touched` are the replicas whose hosts a fault was about; `waiting` are faults that are
    due and could not happen yet, `calm_since` is when the last one began or ended."""

    def __init__(self, universe: Universe, faults: Iterable[Fault]) -> None:
        self.counts: Counter[str] = Counter()
        self.phases: Counter[tuple[str, str]] = Counter()
        self.story: list[tuple[Instant, str]] = []
        self.waiting: list[Fault] = []
        self.calm_since = Instant(0)
        self.touched: set[Replica] = set()
        self._universe = universe
        self._numbers = 0
        self._coming: list[Fault] = []
        self._late: list[Fault] = []
        self._never: list[Fault] = []
        self._ends: dict[int, Callable[[], object]] = {}
        self._lurking: dict[int, DiskFault | RefuseStarts] = {}
        for fault in faults:
            if fault.at is None:
                self.waiting.append(fault)
            else:
                self._expect(fault, Instant(seconds(fault.at)))

    @property
    def is_calm(self) -> bool:
        """Whether no fault lasts."""
        return not self._ends

    @property
    def missed(self) -> list[str]:
        """The faults that have not happened."""
        return [str(fault) for fault in (*self._never, *self.waiting, *self._coming, *self._lurking.values())]

    def look(self) -> None:
        """See whether what waits can happen now."""
        phase = self._universe.phase if any(fault.at_phase is not None for fault in self.waiting) else ""
        for fault in list(self.waiting):
            if fault in self._late or self._is_time(fault, phase):
                self.waiting.remove(fault)
                self._come(fault)

    def heal(self) -> None:
        """End every fault that lasts, and let none begin any more."""
        self._never += [*self.waiting, *self._coming, *self._lurking.values()]
        self.waiting.clear()
        self._coming.clear()
        for number, fault in self._lurking.items():
            self._troubles(fault).pop(number)
        self._lurking.clear()
        for number in list(self._ends):
            self._end(number)

    def _come(self, fault: Fault) -> None:
        """Its moment is here: let a fault happen, now or so much later."""
        if fault.later and fault not in self._late:
            self._late.append(fault)
            self._expect(fault, Instant(self._universe.clock.now() + seconds(fault.later)))
        elif not self._begin(fault):
            self._late.append(fault)
            self.waiting.append(fault)

    def _expect(self, fault: Fault, at: Instant) -> None:
        self._coming.append(fault)
        self._universe.clock.call_at(at, partial(self._due, fault))

    def _due(self, fault: Fault) -> None:
        if fault in self._coming:
            self._coming.remove(fault)
            self._late.append(fault)
            self._come(fault)

    def _is_time(self, fault: Fault, phase: str) -> bool:
        if fault.at_phase is not None:
            return fault.at_phase == phase
        if fault.at_step is None:
            return True
        named = self._life(fault.host) if isinstance(fault, HostFault) else None
        lives = [named] if named is not None and named.step else self._universe.living()
        return max((life.step for life in lives), default=0) >= fault.at_step

    def _begin(self, fault: Fault) -> bool:
        """Let a fault happen, or lie in wait; whether it does."""
        phase = self._universe.phase
        match fault:
            case Kill() | Pause() | Hang() | Stick() | Crash() | Slow() | Skew():
                happened = self._on_host(fault)
            case KillDaemon() | PauseDaemon() | LoseReports() | RepeatReports():
                happened = self._on_daemon(fault)
            case RefuseStarts():
                self._refuse_starts(fault)
                return True
            case Join():
                happened = self._universe.join(Replica.parse(fault.host))
            case Stop():
                happened = self._universe.request_stop()
            case End():
                happened = self._universe.end()
            case Blackout():
                happened = self._black_out(fault)
            case FillDisk() | BreakDisk():
                self._lurk(fault)
                return True
            case _:
                happened = self._on_ways(fault, self._ways(fault))
        if happened:
            self._count(fault, phase)
        return happened

    def _count(self, fault: Fault, phase: str) -> None:
        self.counts[fault.kind] += 1
        self.phases[fault.kind, phase] += 1
        self.calm_since = self._universe.clock.now()
        self.story.append((self._universe.clock.now(), str(fault)))

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _life(self, host: str) -> Life | None:
        return self._universe.life(Replica.parse(host))

    def _on_host(self, fault: HostFault) -> bool:
        life = self._life(fault.host)
        if life is None:
            return False
        self.touched.add(life.member.replica)
        match fault:
            case Kill():
                self._universe.kill(life)
            case Crash():
                machine = self._universe.machines[life.machine]
                crashes = machine.crashes
                crashes[life.member.replica] = crashes.get(life.member.replica, 0) + fault.lives
                self._universe.kill(life)
                # Until the last of them has ended, which begins after a back-off.
                self._last(CRASH_SECONDS_MAX, partial(crashes.pop, life.member.replica, None))
            case Pause() | Hang():
                if life.clock.is_paused:
                    return False
                life.clock.is_paused = True
                process = self._universe.machines[life.machine].processes[life.pid]
                process.is_stopped = isinstance(fault, Pause)
                self._last(fault.seconds, partial(self._resume, life, process))
            case Stick():
                if fault.node in life.stuck:
                    return False
                life.stuck[fault.node] = fault.seconds
                self._last(fault.seconds, partial(life.stuck.pop, fault.node, None))
            case Slow():
                if life.factor != 1.0:
                    return False
                life.factor = fault.factor
                self._last(fault.seconds, partial(setattr, life, "factor", 1.0))
            case Skew():
                life.clock.skew(seconds(fault.leap), fault.drift)
        return True

    def _resume(self, life: Life, process: Process) -> None:
        process.is_stopped = False
        if not life.is_dead:
            life.clock.resume()

    # -- daemons -------------------------------------------------------------------------------------------------------

    def _on_daemon(self, fault: KillDaemon | PauseDaemon | LoseReports | RepeatReports) -> bool:
        machine, links = self._universe.machines[fault.machine], self._universe.links
        daemon = machine.daemon
        self._numbers += 1
        number = self._numbers
        match fault:
            case KillDaemon():
                if not isinstance(daemon, SimulatedDaemon) or daemon.commands_left is not None:
                    return False
                daemon.commands_left = fault.commands
                self._last(fault.seconds, partial(self._replace, machine, daemon, fault))
            case PauseDaemon():
                if not isinstance(daemon, SimulatedDaemon) or daemon.clock.is_paused:
                    return False
                daemon.clock.is_paused = True
                self._last(fault.seconds, daemon.clock.resume)
            case LoseReports():
                links.losses.setdefault(machine.name, {})[number] = fault.share
                self._last(fault.seconds, partial(links.losses[machine.name].pop, number, None))
            case RepeatReports():
                links.repeats.setdefault(machine.name, {})[number] = fault.share
                self._last(fault.seconds, partial(links.repeats[machine.name].pop, number, None))
        return True

    def _replace(self, machine: SimulatedMachine, daemon: SimulatedDaemon, fault: KillDaemon) -> None:
        """Another daemon takes the place of one that has died, or dies now."""
        if machine.daemon is daemon:
            self._universe.kill_daemon(machine)
        if fault.loses_ledger and machine.daemon is None:
            machine.book.lose()
            self._universe.forget_stop(machine)
        self._universe.start_daemon(machine)

    def _refuse_starts(self, fault: RefuseStarts) -> None:
        """Let a machine have no room for processes from now on."""
        self._numbers += 1
        number, troubles = self._numbers, self._universe.machines[fault.machine].start_troubles
        troubles[number] = StartTrouble(fault.count, partial(self._struck, number))
        self._lurking[number] = fault

    # -- ways ----------------------------------------------------------------------------------------------------------

    def _ways(self, fault: WayFault | Blackout) -> list[tuple[str, str]]:
        """The ordered pairs of addresses that a fault of a machine is about."""
        addresses = self._universe.addresses
        here = addresses[fault.machine]
        target = fault.target if isinstance(fault, Cut) else None
        others = [addresses[target]] if target is not None else [each for each in addresses.values() if each != here]
        there = [(here, other) for other in others]
        return there if isinstance(fault, Cut) and fault.is_one_way else there + [(b, a) for a, b in there]

    def _on_ways(self, fault: WayFault, ways: list[tuple[str, str]]) -> bool:
        weather, ether = self._universe.weather, self._universe.ether
        address = self._universe.addresses[fault.machine]
        self._numbers += 1
        number = self._numbers
        match fault:
            case Reset():
                broken = [each for each in ether.connections if each.machines in ways]
                for connection in broken:
                    connection.reset()
                return bool(broken)
            case Cut():
                for way in ways:
                    weather.cuts.setdefault(way, set()).add(number)
                self._last(fault.seconds, partial(self._join, ways, number))
            case Clog():
                weather.clogs.setdefault(address, {})[number] = seconds(fault.latency)
                self._last(fault.seconds, partial(weather.clogs[address].pop, number, None))
            case Throttle():
                weather.paces.setdefault(address, {})[number] = fault.kbits / 1e6
                self._last(fault.seconds, partial(weather.paces[address].pop, number, None))
            case Lose():
                weather.losses.setdefault(address, {})[number] = fault.share
                self._last(fault.seconds, partial(weather.losses[address].pop, number, None))
        return True

    def _join(self, ways: list[tuple[str, str]], number: int) -> None:
        for way in ways:
            self._universe.weather.cuts[way].discard(number)
        self._universe.ether.changed()

    # -- disks ---------------------------------------------------------------------------------------------------------

    def _black_out(self, fault: Blackout) -> bool:
        """Take a machine's power; False where it has no process."""
        machine, ways = self._universe.machines[fault.machine], self._ways(fault)
        if machine.is_dark:
            return False
        self._numbers += 1
        number = self._numbers
        for way in ways:
            self._universe.weather.cuts.setdefault(way, set()).add(number)
        self.touched.update(process.member.replica for process in machine.processes.values())
        self._universe.darken(machine)
        self._universe.disks[fault.machine].lose_power()

        def lighten() -> None:
            self._join(ways, number)
            self._universe.lighten(machine)

        self._last(fault.seconds, lighten)
        return True

    def _lurk(self, fault: DiskFault) -> None:
        """Let a disk be in trouble from now on."""
        self._numbers += 1
        struck = partial(self._struck, self._numbers)
        made = Trouble(struck, room=fault.room) if isinstance(fault, FillDisk) else Trouble(struck, share=fault.share)
        self._universe.disks[fault.machine].troubles[self._numbers] = made
        self._lurking[self._numbers] = fault

    def _troubles(self, fault: DiskFault | RefuseStarts) -> dict[int, Any]:
        """Where a fault lies in wait."""
        if isinstance(fault, RefuseStarts):
            return self._universe.machines[fault.machine].start_troubles
        return self._universe.disks[fault.machine].troubles

    def _struck(self, number: int) -> None:
        """A disk has refused something: the first time, its trouble has happened."""
        fault = self._lurking.pop(number, None)
        if fault is not None:
            self._count(fault, self._universe.phase)
            lasts = LURKING_SECONDS if isinstance(fault, RefuseStarts) else fault.seconds
            self._last(lasts, partial(self._troubles(fault).pop, number))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _last(self, duration: float, end: Callable[[], object]) -> None:
        """Let a fault be over after so many seconds."""
        self._numbers += 1
        self._ends[self._numbers] = end
        at = Instant(self._universe.clock.now() + seconds(duration))
        self._universe.clock.call_at(at, partial(self._end, self._numbers))

    def _end(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            self.calm_since = self._universe.clock.now()
            end()
