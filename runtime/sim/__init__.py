"""Whole runs in virtual time, in one thread, from one seed.

`World` has hosts over an in-process network, without faults: it is the fast one, for programs. `Universe` has hosts on
machines, over the real wire on simulated sockets, with clocks of their own, the supervision of a real run, and faults
(`Kill`, `Pause`, `Cut` and others) that are counted when they have really happened. `Checker` is what may object.
"""

from isthmus.runtime.sim.checkers import (
    BoundsChecker,
    Checker,
    RosterChecker,
    ViolationError,
    WaitsChecker,
)
from isthmus.runtime.sim.faults import (
    Blackout,
    BreakDisk,
    Clog,
    Crash,
    Cut,
    End,
    Fault,
    FillDisk,
    Forge,
    Hang,
    Join,
    Kill,
    KillDaemon,
    Lose,
    LoseReports,
    Mute,
    Pause,
    PauseDaemon,
    RefuseStarts,
    RepeatReports,
    Reset,
    Skew,
    Slow,
    SlowStarts,
    Stick,
    Stop,
    Throttle,
)
from isthmus.runtime.sim.network.conditions import Climate, Weather
from isthmus.runtime.sim.universe import Universe, digest, machine_of
from isthmus.runtime.sim.wire_checkers import CreditChecker, WireChecker, runtime_checkers
from isthmus.runtime.sim.world import DelayOf, DurationOf, World, at_once

__all__ = [
    "Blackout",
    "BoundsChecker",
    "BreakDisk",
    "Checker",
    "Climate",
    "Clog",
    "Crash",
    "CreditChecker",
    "Cut",
    "DelayOf",
    "DurationOf",
    "End",
    "Fault",
    "FillDisk",
    "Forge",
    "Hang",
    "Join",
    "Kill",
    "KillDaemon",
    "Lose",
    "LoseReports",
    "Mute",
    "Pause",
    "PauseDaemon",
    "RefuseStarts",
    "RepeatReports",
    "Reset",
    "RosterChecker",
    "Skew",
    "Slow",
    "SlowStarts",
    "Stick",
    "Stop",
    "Throttle",
    "Universe",
    "ViolationError",
    "WaitsChecker",
    "Weather",
    "WireChecker",
    "World",
    "at_once",
    "digest",
    "machine_of",
    "runtime_checkers",
]
