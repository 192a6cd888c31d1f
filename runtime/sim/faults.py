"""The vocabulary of faults: what may happen to hosts, machines and the ways between them, and when.

Plain data: the `Injector` makes them happen. A fault happens `at` seconds of virtual time, once the learner that it
names (any learner, where it names none) has reported inner step `at_step`, or once the run is in phase `at_phase`
('stepping' or 'final'); of the last two `later` seconds later. A host is named by its replica ('learner/2'), a machine
by its name. One that lasts is over after `seconds`, or when the world is healed. Two of one kind on one target add up
to the longer.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class _Moment:
    """When a fault happens: exactly one of the three. ValueError otherwise."""

    _: KW_ONLY
    at: float | None = None
    at_step: int | None = None
    at_phase: str | None = None
    later: float = 0.0

    def __post_init__(self) -> None:
        if [self.at, self.at_step, self.at_phase].count(None) != 2:
            raise ValueError(f"{self}: say one of at=SECONDS, at_step=STEP of a learner and at_phase=PHASE of the run")


@dataclass(frozen=True, slots=True)
class Kill(_Moment):
    """The process of a host ends without a word, as by kill -9. Whoever supervises it starts its next life."""

    kind: ClassVar[str] = "kill"
    host: str


@dataclass(frozen=True, slots=True)
class Pause(_Moment):
    """The process of a host stands still, as by SIGSTOP, and goes on later; what it was sent waits for it."""

    kind: ClassVar[str] = "pause"
    host: str
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Slow(_Moment):
    """Every firing of a host takes `factor` times as long."""

    kind: ClassVar[str] = "slow"
    host: str
    factor: float = 10.0
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Skew(_Moment):
    """The clock of a host leaps forward by `leap` seconds, and runs `drift` parts per million too fast from then on."""

    kind: ClassVar[str] = "skew"
    host: str
    leap: float = 0.0
    drift: int = 200


@dataclass(frozen=True, slots=True)
class Cut(_Moment):
    """Nothing gets from a machine to any other (`target`: to that one only), nor back unless it `is_one_way`."""

    kind: ClassVar[str] = "cut"
    machine: str
    target: str | None = None
    seconds: float = 2.0
    is_one_way: bool = False


@dataclass(frozen=True, slots=True)
class Clog(_Moment):
    """Every message from or to a machine takes `latency` seconds longer."""

    kind: ClassVar[str] = "clog"
    machine: str
    latency: float = 0.5
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Lose(_Moment):
    """Of the messages from or to a machine a `share` is lost and sent again by TCP, which takes 200 ms each time."""

    kind: ClassVar[str] = "lose"
    machine: str
    share: float = 0.1
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Reset(_Moment):
    """Every connection of a machine with others is broken, with all that is under way. They may be made anew."""

    kind: ClassVar[str] = "reset"
    machine: str


Fault: TypeAlias = Kill | Pause | Slow | Skew | Cut | Clog | Lose | Reset
HostFault: TypeAlias = Kill | Pause | Slow | Skew
"""Those of one host; the others are of a machine."""
