"""What tests of yours import beside the `world` fixture: faults that it injects, and the suite for a channel.

    def test_a_learner_that_dies_comes_back(world):
        world.run(..., faults=[Kill("learner/1", at=0.5)])

Importing this module imports no pytest: `channel_conformance` does, at its first use.
"""

from __future__ import annotations

from isthmus.runtime.sim.faults import (
    Blackout,
    BreakDisk,
    Clog,
    Crash,
    Cut,
    DieAll,
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
    MoveHome,
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

__all__ = [
    "Blackout",
    "BreakDisk",
    "Clog",
    "Crash",
    "Cut",
    "DieAll",
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
    "MoveHome",
    "Mute",
    "Pause",
    "PauseDaemon",
    "RefuseStarts",
    "RepeatReports",
    "Reset",
    "Skew",
    "Slow",
    "SlowStarts",
    "Stick",
    "Stop",
    "Throttle",
]
