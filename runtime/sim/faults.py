"""The vocabulary of faults: what may happen to hosts, machines and the network between them, and when.

Plain data: the `Injector` makes them happen; `check` finds names of hosts and machines that do not exist. A fault
happens `at` seconds of virtual time, once the learner that it names (any learner, where it names none) has reported
inner step `at_step`, or once the run is in phase `at_phase` ('stepping' or 'final'); the last two with a delay of
`later` seconds. A host is named by its replica ('learner/2'), a machine by its name. One that lasts is over after
`seconds`, or when the world is healed. Two of one kind on one target last until the later end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.errors import Fault as Wrong
from isthmus.runtime.ids import Replica


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
            remedy = "say one of at=SECONDS, at_step=STEP of a learner and at_phase=PHASE of the run"
            raise ValueError(f"{self!r}: {remedy}")

    def __str__(self) -> str:
        """As a test would write it: without fields at their defaults."""
        shown = []
        for each in sorted(fields(self), key=lambda each: each.kw_only is True):
            value = getattr(self, each.name)
            if each.default is MISSING:
                shown.append(repr(value))
            elif value != each.default:
                shown.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Kill(_Moment):
    """The process of a host ends without warning, as by kill -9. Its supervisor starts its next life."""

    kind: ClassVar[str] = "kill"
    host: str


@dataclass(frozen=True, slots=True)
class Pause(_Moment):
    """The process of a host is suspended, as by SIGSTOP, and resumes later; messages wait for it."""

    kind: ClassVar[str] = "pause"
    host: str
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Hang(_Moment):
    """A host stands still and sends nothing, for no visible reason: for example, a body holds the interpreter."""

    kind: ClassVar[str] = "hang"
    host: str
    seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Away(_Moment):
    """The user's code keeps a learner from its next step for `seconds`: it works, or does nothing (`is_idle`)."""

    kind: ClassVar[str] = "away"
    host: str
    seconds: float = 60.0
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Stick(_Moment):
    """The next firing of a node takes `seconds` longer, while its host still sends heartbeats."""

    kind: ClassVar[str] = "stick"
    host: str
    node: str = "inner-step"
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Crash(_Moment):
    """The present life of a host ends, and so do the next `lives` of them, each soon after it began."""

    kind: ClassVar[str] = "crash loop"
    host: str
    lives: int = 2


@dataclass(frozen=True, slots=True)
class KillDaemon(_Moment):
    """The daemon of a machine dies, as by kill -9, instead of performing the command after the next `commands`.

    Its hosts go on. Another daemon takes its place after `seconds`, with its ledger, or, if that is lost, without.
    """

    machine: str
    seconds: float = 1.0
    commands: int = 0
    loses_ledger: bool = False

    @property
    def kind(self) -> str:
        """'daemon kill', or 'lost ledger'."""
        return "lost ledger" if self.loses_ledger else "daemon kill"


@dataclass(frozen=True, slots=True)
class PauseDaemon(_Moment):
    """The daemon of a machine is suspended, as by SIGSTOP, and resumes later; messages wait for it."""

    kind: ClassVar[str] = "daemon pause"
    machine: str
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class LoseReports(_Moment):
    """A `share` of the messages between the daemon of a machine and others is lost for good."""

    kind: ClassVar[str] = "lost report"
    machine: str
    share: float = 0.5
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class RepeatReports(_Moment):
    """A `share` of the messages between the daemon of a machine and others arrives twice, a little later."""

    kind: ClassVar[str] = "repeated report"
    machine: str
    share: float = 0.5
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class RefuseStarts(_Moment):
    """A machine has no room for the next `count` processes. It happens once one is refused."""

    kind: ClassVar[str] = "no room"
    machine: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class SlowStarts(_Moment):
    """The daemon of a machine learns of processes that it starts `lag` seconds late, as from a busy fork server.

    It happens once one is started.
    """

    kind: ClassVar[str] = "slow start"
    machine: str
    lag: float = 2.0
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Lie(_Moment):
    """The station of a machine that is not the home lies in every report.

    `claim` is one of `runtime.sim.lies.CLAIMS`, a field ('report.obeyed.epoch') that has another value, the `value`-th
    of `VALUES` there, or 'any': a random value in a random field, each time. It happens once a report is false.
    """

    kind: ClassVar[str] = "lie"
    machine: str
    claim: str
    value: int = 0
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class End(_Moment):
    """An immediate end of the run is requested, as by a second Ctrl-C."""

    kind: ClassVar[str] = "end"


@dataclass(frozen=True, slots=True)
class Slow(_Moment):
    """Every firing of a host takes `factor` times as long."""

    kind: ClassVar[str] = "slow"
    host: str
    factor: float = 10.0
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Forge(_Moment):
    """From now on, in all its lives, items that a host sends on a port have another `value` in `field`.

    None at all ('drop'), this one ('set', with tuples for lists), or so many times its own ('scale').
    """

    kind: ClassVar[str] = "forge"
    host: str
    port: str
    field: str
    value: Any = None
    how: Literal["drop", "set", "scale"] = "set"


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

    machine: str
    target: str | None = None
    seconds: float = 2.0
    is_one_way: bool = False

    @property
    def kind(self) -> str:
        """'cut', or 'one-way cut'."""
        return "one-way cut" if self.is_one_way else "cut"


@dataclass(frozen=True, slots=True)
class Mute(_Moment):
    """Nothing gets between the hosts of a machine and those of others; messages between daemons do.

    As in a network that lets only their port through.
    """

    kind: ClassVar[str] = "mute"
    machine: str
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Clog(_Moment):
    """Every message from or to a machine takes `latency` seconds longer."""

    kind: ClassVar[str] = "clog"
    machine: str
    latency: float = 0.5
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Lose(_Moment):
    """A `share` of the messages from or to a machine is lost and retransmitted by TCP, which takes 200 ms each time."""

    kind: ClassVar[str] = "lose"
    machine: str
    share: float = 0.1
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Reset(_Moment):
    """Every connection of a machine with others is broken, with everything under way. They may be made anew."""

    kind: ClassVar[str] = "reset"
    machine: str


@dataclass(frozen=True, slots=True)
class Blackout(_Moment):
    """A machine loses power: its processes are gone, it is unreachable, and its disk has lost what was not synced."""

    kind: ClassVar[str] = "blackout"
    machine: str
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class PreemptionNotice(_Moment):
    """A machine is told to leave, as by SIGTERM: its home is set aside, its other hosts leave the run.

    It has a `grace`, and is started again after `seconds`; where it has not left by then, all of it is killed.
    """

    kind: ClassVar[str] = "notice"
    machine: str
    grace: float = 5.0
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class FillDisk(_Moment):
    """The disk of a machine has room for `room` bytes more. It happens once something does not fit."""

    kind: ClassVar[str] = "full disk"
    machine: str
    room: int = 0
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class BreakDisk(_Moment):
    """The disk of a machine refuses a `share` of all operations. It happens once it has refused one."""

    kind: ClassVar[str] = "broken disk"
    machine: str
    share: float = 1.0
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class MoveHome(_Moment):
    """The machine that is the run's home loses power; `after` so many seconds another `machine` becomes the home.

    The new home has what the disk of the lost one had. The lost one comes back after `seconds`, and still claims to be
    the home.
    """

    kind: ClassVar[str] = "moved home"
    machine: str
    after: float = 3.0
    seconds: float = 8.0


@dataclass(frozen=True, slots=True)
class DieAll(_Moment):
    """Every process of every machine ends at once, by a power failure or, if it `keeps_power`, by kill -9.

    Hosts and daemons alike. It strikes at the first `operation` on the disk of a machine from then on with a file whose
    name matches `name`, or, with `then`, at the next such operation after that. `point` names that moment.
    """

    machine: str
    point: str
    operation: str
    name: str
    seconds: float = 1.0
    then: str = ""
    keeps_power: bool = False

    @property
    def kind(self) -> str:
        """Includes the moment, because each has to be tried."""
        return f"death of all: {self.point}"


@dataclass(frozen=True, slots=True)
class Throttle(_Moment):
    """No connection of a machine carries more than `kbits` thousand bits a second, in each direction."""

    kind: ClassVar[str] = "throttle"
    machine: str
    kbits: float = 64.0
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Stop(_Moment):
    """A stop of the run is requested, as by Ctrl-C."""

    kind: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Join(_Moment):
    """A new host joins, on a machine of its own: a learner of a new slot."""

    kind: ClassVar[str] = "join"
    host: str


WayFault: TypeAlias = Cut | Mute | Clog | Lose | Throttle | Reset
"""Faults of the network paths of one machine."""
TalkFault: TypeAlias = KillDaemon | PauseDaemon | LoseReports | RepeatReports
"""Faults by which a daemon sends nothing, too little or too much."""
DaemonFault: TypeAlias = TalkFault | RefuseStarts | SlowStarts | Lie
"""Faults of the daemon of one machine."""
HostFault: TypeAlias = Kill | Pause | Hang | Away | Stick | Crash | Slow | Skew | Forge
"""Faults of one live host."""
LurkingFault: TypeAlias = FillDisk | BreakDisk | RefuseStarts | SlowStarts | Lie | DieAll
"""Faults that lurk until they strike."""
PromptFault: TypeAlias = HostFault | WayFault | TalkFault | Blackout | MoveHome | PreemptionNotice | Join | Stop | End
"""Faults that happen at once, or not yet."""
Fault: TypeAlias = PromptFault | LurkingFault


def check(
    faults: Iterable[Fault], roles: Collection[str], replicas: Collection[Replica], machines: Collection[str]
) -> None:
    """ConfigError, with everything that is wrong, if a fault names a host or a machine that does not exist."""
    there, faults = list(map(str, replicas)), list(faults)
    hosts = [*there, *(fault.host for fault in faults if isinstance(fault, Join))]
    wrong_faults = [
        wrong
        for fault in faults
        for wrong in _wrong(fault, roles, there if isinstance(fault, Join) else hosts, machines)
    ]
    if wrong_faults:
        raise ConfigError.of(wrong_faults)


def _wrong(fault: Fault, roles: Collection[str], hosts: Collection[str], machines: Collection[str]) -> Iterator[Wrong]:
    doing = f"preparing {fault}"
    if isinstance(fault, Join):
        if fault.host in hosts or fault.host.partition("/")[0] not in roles:
            expected = f"a host that is not there yet, of one of the roles {', '.join(roles)}"
            yield Wrong(doing, expected, repr(fault.host), "Name a slot beyond the others: 'learner/4'.")
    elif isinstance(fault, HostFault):
        if fault.host not in hosts:
            yield Wrong(doing, f"one of {', '.join(hosts)}", repr(fault.host), "Name a host by its replica.")
    elif not isinstance(fault, Stop | End):
        named = [fault.machine, *([fault.target] if isinstance(fault, Cut) and fault.target is not None else [])]
        for name in named:
            if name not in machines:
                do = "Name a machine: learners and syncers have their own, everything else is at home."
                yield Wrong(doing, f"one of {', '.join(machines)}", repr(name), do)
