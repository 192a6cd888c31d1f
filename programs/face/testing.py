"""What tests of yours import beside the `world` fixture: the faults that it injects, and the suites for a channel
and for a learner.

    def test_a_learner_that_dies_comes_back(world):
        world.run(..., faults=[Kill("learner/1", at=0.5)])

`channel_conformance` is the suite that every transport passes: derive from its `ChannelConformance`;
`learner_conformance` with its `LearnerConformance` is that of every learner. They import pytest, at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from isthmus.runtime.sim.faults import (
    Away,
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
    Lie,
    Lose,
    LoseReports,
    MoveHome,
    Mute,
    Pause,
    PauseDaemon,
    PreemptionNotice,
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

if TYPE_CHECKING:
    from isthmus.ops.island import learner_conformance
    from isthmus.runtime.channels import conformance as channel_conformance

__all__ = [
    "Away",
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
    "Lie",
    "Lose",
    "LoseReports",
    "MoveHome",
    "Mute",
    "Pause",
    "PauseDaemon",
    "PreemptionNotice",
    "RefuseStarts",
    "RepeatReports",
    "Reset",
    "Skew",
    "Slow",
    "SlowStarts",
    "Stick",
    "Stop",
    "Throttle",
    "channel_conformance",
    "learner_conformance",
]
_SUITES: Final = {
    "channel_conformance": "isthmus.runtime.channels.conformance",
    "learner_conformance": "isthmus.ops.island.learner_conformance",
}


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(_SUITES[name])
