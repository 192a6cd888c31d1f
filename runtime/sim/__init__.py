"""Whole runs in virtual time, in one thread, from one seed.

`World` has hosts over an in-process network, without faults: it is the fast one, for programs. `Universe` has hosts on
machines, over the real wire on simulated sockets, with clocks of their own, a keeper that restarts them, and faults
(`Kill`, `Pause`, `Cut` and others) that are counted when they have really happened. `Checker` is what may object.
"""

from isthmus.runtime.sim.checkers import BoundsChecker, Checker, RosterChecker, ViolationError, WaitsChecker
from isthmus.runtime.sim.faults import Clog, Cut, Fault, Kill, Lose, Pause, Reset, Skew, Slow
from isthmus.runtime.sim.universe import Universe, digest, machine_of
from isthmus.runtime.sim.weather import Climate, Weather
from isthmus.runtime.sim.world import DelayOf, DurationOf, World, at_once

__all__ = [
    "BoundsChecker",
    "Checker",
    "Climate",
    "Clog",
    "Cut",
    "DelayOf",
    "DurationOf",
    "Fault",
    "Kill",
    "Lose",
    "Pause",
    "Reset",
    "RosterChecker",
    "Skew",
    "Slow",
    "Universe",
    "ViolationError",
    "WaitsChecker",
    "Weather",
    "World",
    "at_once",
    "digest",
    "machine_of",
]
