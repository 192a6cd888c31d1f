"""A plan of the faults for the processes of a run, and their times: from a file, from a seed, or the built-in one.

Decides which plans are valid. Pure: the hosts are an argument, and the permission of a fault is checked elsewhere. The
words for faults are the simulator's (`runtime.sim.faults`), because they mean the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

from isthmus.programs.settings import Schema, Setting
from isthmus.runtime.errors import ConfigError, Fault, nearest
from isthmus.runtime.ids import LEARNER

Kind: TypeAlias = Literal["kill", "pause", "slow", "mute", "clog", "lose", "throttle"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)
DAEMON: Final = "daemon"
FORK_SERVER: Final = "fork-server"
MACHINE: Final = "machine"
MACHINES_MAX: Final = 16
FAULTS_MAX: Final = 1000
"""Faults in one plan: each has a thread, and more are no plan but a loop."""
LONGER_MAX: Final = 20.0
"""A run that is struck without end may last so much longer than the first undisturbed one."""
_LASTING: Final = {
    "pause": ("seconds",),
    "slow": ("seconds", "factor"),
    "mute": ("seconds",),
    "clog": ("seconds", "latency"),
    "lose": ("seconds", "share"),
    "throttle": ("seconds", "kbits"),
}
"""Which fields belong to a kind, beside `kind`, `host` and `at`."""
OF_LINKS: Final = ("mute", "clog", "lose", "throttle")
"""Kinds that happen to the link of a learner: learners are those that dial, and so all of theirs passes one proxy."""
_DO: Final = "Correct the plan."
_ENDLESS: Final = 1e6
"""Seconds: eleven days are longer than any trial."""


class Planned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One fault: `kind` happens to `host` ('learner/2', 'daemon', 'fork-server', 'machine/1').

    It begins `at` seconds after the run's first inner step, and lasts `seconds`, except a kill. A slow process has one
    part in `factor` of its CPU time. On the link of a learner nothing passes (mute), everything `latency` seconds later
    (clog), a `share` of segments is lost (lose), or no more passes than `kbits` thousand bits a second in each
    direction (throttle).
    """

    kind: Annotated[Kind, Setting("What happens.")]
    host: Annotated[str, Setting("What it happens to: learner/2, syncer/0, daemon, fork-server, machine/1.")]
    at: Annotated[
        float,
        Setting(
            "Seconds after the first inner step.",
            ge=0,
            lt=_ENDLESS,
            expected="at = seconds after the first inner step, from 0",
        ),
    ]
    seconds: Annotated[
        float, Setting("How long it lasts, except a kill.", gt=0, lt=_ENDLESS, expected="seconds above 0")
    ] = 2.0
    factor: Annotated[
        float,
        Setting("How many times less CPU time it has.", gt=1, le=1000, expected="factor above 1, at most 1000"),
    ] = 4.0
    latency: Annotated[
        float,
        Setting("Seconds by which all data is late.", gt=0, lt=_ENDLESS, expected="latency in seconds, above 0"),
    ] = 0.5
    share: Annotated[
        float,
        Setting("The share of the link's segments that is lost.", gt=0, lt=1, expected="a share above 0 and below 1"),
    ] = 0.1
    kbits: Annotated[
        float, Setting("Thousand bits a second in each direction.", gt=0, lt=1e9, expected="kbits above 0")
    ] = 64.0

    @property
    def role(self) -> str:
        """The kind of process."""
        return self.host.partition("/")[0]

    @property
    def until(self) -> float:
        """When it is over."""
        return self.at + (self.seconds if self.kind in _LASTING else 0.0)


class DrawnFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Faults from a seed: `count` of them, or as many as a run lasts for, `mean_seconds` apart in the mean, of these
    kinds, to these hosts (all)."""

    seed: Annotated[int, Setting("The seed.")] = 0
    count: Annotated[
        int | None,
        Setting(
            "How many faults. Default: as many as come while the run lasts.",
            ge=1,
            le=FAULTS_MAX,
            expected=f"count from 1 to {FAULTS_MAX}",
        ),
    ] = None
    mean_seconds: Annotated[
        float, Setting("Between two, on average.", gt=0, lt=_ENDLESS, expected="mean_seconds above 0")
    ] = 8.0
    kinds: Annotated[tuple[Kind, ...], Setting("The kinds that are drawn.")] = ("kill", "pause", "slow")
    hosts: Annotated[tuple[str, ...], Setting("What they happen to. Default: all hosts.")] = ()


class SlowLinks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Permanent conditions of learners' links: thousands of bits a second in each direction, by slot (the last for all
    beyond), and additional latency in seconds."""

    kbits: Annotated[
        tuple[float, ...], Setting("Thousand bits a second in each direction, by slot; the last for all beyond.")
    ] = ()
    latency: Annotated[
        float, Setting("Additional seconds of latency.", ge=0, lt=_ENDLESS, expected="latency in seconds, from 0")
    ] = 0.0


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    run: dict[str, Any] = {}
    program: dict[str, dict[str, Any]] = {}
    task: dict[str, Any] = {}
    fault: list[dict[str, Any]] = []
    random: dict[str, Any] | None = None
    links: dict[str, Any] | None = None
    machines: Annotated[
        int,
        Setting(
            "Of the runs; the first is the home.", ge=1, le=MACHINES_MAX, expected=f"machines from 1 to {MACHINES_MAX}"
        ),
    ] = 1


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """The requested faults. Without `faults`, `drawn` and `links`, the built-in faults."""

    faults: tuple[Planned, ...] = ()
    drawn: DrawnFaults | None = None
    """Random ones."""
    links: SlowLinks | None = None
    """Those that are slow all the time."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """A section of the configuration."""
    program: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """A section for each program."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """A section of the configuration."""
    machines: int = 1
    """How many runs are on, the first of which is the home."""

    def in_folder(self, folder: Path, absolute: Callable[..., Mapping[tuple[str, str], Any]]) -> ChaosPlan:
        """The same with the paths of its sections made `absolute`, from the plan's own folder."""
        keys = {(name, key): value for name in ("run", "task") for key, value in getattr(self, name).items()}
        absolute_keys = absolute(keys, folder)
        run, task = (
            {key: value for (of, key), value in absolute_keys.items() if of == name} for name in ("run", "task")
        )
        return replace(self, run=run, task=task)

    @property
    def is_endless(self) -> bool:
        """Whether faults occur for as long as a run goes on: those not due by its end do not count as missing."""
        return self.drawn is not None and self.drawn.count is None

    @property
    def is_built_in(self) -> bool:
        """Whether its faults are the built-in ones."""
        return not self.faults and self.drawn is None and self.links is None


def read(document: Mapping[str, Any], where: str) -> ChaosPlan:
    """The plan that a TOML document is; ConfigError with everything that is wrong with it by itself."""
    doing, wrong = f"Reading the plan {where}", list[Fault]()
    try:
        tables = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        expected = "tables [run], [program.NAME], [task], [links], [[fault]] and [random]"
        raise ConfigError(doing, expected, str(error), _DO) from None
    if tables.fault and tables.random is not None:
        wrong.append(Fault(doing, "[[fault]] or [random]", "both", "Leave one of them out."))
    wrong += _out_of_range(tables, doing)
    if len(tables.fault) > FAULTS_MAX:
        wrong.append(Fault(doing, f"at most {FAULTS_MAX} faults", str(len(tables.fault)), _DO))
    faults = [
        _converted(table, Planned, f"{doing}, fault {number}", wrong)
        for number, table in enumerate(tables.fault[:FAULTS_MAX], 1)
    ]
    drawn = None if tables.random is None else _converted(tables.random, DrawnFaults, f"{doing}, [random]", wrong)
    links = None if tables.links is None else _converted(tables.links, SlowLinks, f"{doing}, [links]", wrong)
    if wrong:
        raise ConfigError.of(wrong)
    in_order = sorted((fault for fault in faults if fault is not None), key=lambda fault: fault.at)
    return ChaosPlan(tuple(in_order), drawn, links, tables.run, tables.program, tables.task, tables.machines)


_Table = TypeVar("_Table", Planned, DrawnFaults, SlowLinks)
_FIELDS: Final[dict[type[msgspec.Struct], str]] = {
    Planned: "kind, host and at, and what the kind has",
    DrawnFaults: "seed, count, mean_seconds, kinds and hosts",
    SlowLinks: "kbits, a list of numbers, and latency",
}


def _converted(table: Mapping[str, Any], kind: type[_Table], doing: str, wrong: list[Fault]) -> _Table | None:
    """What a table of the plan says; None if it says nothing, and its faults are added to those that are `wrong`."""
    try:
        read = msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        name = table.get("kind")
        do = nearest(name, KINDS) if kind is Planned and isinstance(name, str) and name not in KINDS else _DO
        wrong.append(Fault(doing, _FIELDS[kind], str(error), do))
        return None
    wrong += _out_of_range(read, doing)
    wrong += _contradictions(read, table, doing)
    return read


def _contradictions(read: Planned | DrawnFaults | SlowLinks, table: Mapping[str, Any], doing: str) -> Iterator[Fault]:
    """Faults of values that are in their range, but do not belong together."""
    if isinstance(read, SlowLinks):
        if not all(0.0 < kbits < 1e9 for kbits in read.kbits):
            yield Fault(doing, "kbits above 0", str(list(read.kbits)), _DO)
        return
    if isinstance(read, DrawnFaults):
        has_links = any(kind in OF_LINKS for kind in read.kinds)
        if has_links and read.hosts and not any(host.startswith(LEARNER) for host in read.hosts):
            yield Fault(doing, "a learner among the hosts, for faults of links", ", ".join(read.hosts), _DO)
        if not read.kinds:
            yield Fault(doing, f"kinds of {', '.join(KINDS)}", "none", _DO)
        return
    for name in ("seconds", "factor", "latency", "share", "kbits"):
        if name in table and name not in _LASTING.get(read.kind, ()):
            yield Fault(doing, f"no {name}: a {read.kind} has none", f"{name} = {table[name]}", "Leave it out.")
    if read.role == MACHINE and read.kind != "kill":
        do = "Name a host, or kill the machine."
        yield Fault(doing, f"a host, which can be struck by {read.kind}", read.host, do)
    elif read.kind in OF_LINKS and read.role != LEARNER:
        do = "Name a learner: others are dialled, and not through the proxy."
        yield Fault(doing, f"a learner, whose link can {read.kind}", read.host, do)


def _out_of_range(table: msgspec.Struct, doing: str) -> Iterator[Fault]:
    """Faults of the values of one table, by their declarations."""
    return Schema.of("", type(table)).out_of_range(msgspec.structs.asdict(table), doing, _DO)


# -- the faults of a run -----------------------------------------------------------------------------------------------


def machines_of(plan: ChaosPlan, hosts: Sequence[str]) -> int:
    """The number of machines for runs of these hosts: two for the built-in plan, if each has a learner."""
    return min(2, len(_learners(hosts))) if plan.is_built_in else plan.machines


def machine_name(number: int) -> str:
    """The name of a machine, in its daemon and in the cluster file."""
    return f"{MACHINE}-{number}"


def machine_number(host: str) -> int:
    """Which machine a fault is about."""
    return int(host.partition("/")[2])


def machine_hosts(machines: int) -> list[str]:
    """Names in a plan of the machines of a run on several, the home first; empty with one machine."""
    return [f"{MACHINE}/{number}" for number in range(machines)] if machines > 1 else []


def check_hosts(plan: ChaosPlan, there: Collection[str]) -> None:
    """ConfigError if the plan names a host that no run of it has, or has more machines than a run has learners."""
    learners = len(_learners(there))
    if plan.machines > max(1, learners):
        do = "Lower the machines, or ask for more learners: [run] learners."
        expected = f"at most as many machines as learners, {learners}"
        raise ConfigError("Preparing the plan", expected, str(plan.machines), do)
    named = [fault.host for fault in plan.faults] + list(plan.drawn.hosts if plan.drawn else ())
    names = [*there, DAEMON, FORK_SERVER, *machine_hosts(plan.machines)]
    wrong = [
        Fault("Preparing the plan", f"one of {', '.join(names)}", repr(host), nearest(host, names))
        for host in dict.fromkeys(named)
        if host not in names
    ]
    if wrong:
        raise ConfigError.of(wrong)


def check_programs(plan: ChaosPlan, programs: Sequence[str]) -> None:
    """ConfigError if the plan has a section for a program that is none of these."""
    names = list(dict.fromkeys(programs))
    wrong = [
        Fault("Reading the plan", "[program.NAME] of a program that there is", repr(name), nearest(name, names))
        for name in plan.program
        if name not in names
    ]
    if wrong:
        raise ConfigError.of(wrong)


def faults_of(plan: ChaosPlan, hosts: Sequence[str], seconds: float) -> tuple[Planned, ...]:
    """The faults of a plan in runs of `hosts`, ordered by time; `seconds`: the duration of an undisturbed run."""
    faults = plan.faults
    if plan.drawn is not None:
        faults = tuple(_drawn(plan.drawn, hosts, LONGER_MAX * seconds))
    elif plan.is_built_in:
        faults = tuple(_built_in(hosts, seconds))
    return faults


def seconds_of(plan: ChaosPlan, faults: Sequence[Planned], seconds: float) -> float:
    """The time over which these faults of the plan are; `seconds`: the duration of an undisturbed run."""
    return faults[-1].at if plan.is_endless and faults else seconds


def _drawn(drawn: DrawnFaults, hosts: Sequence[str], seconds_max: float) -> Iterator[Planned]:
    """A Poisson process: distances are exponential. Without a count it ends with `seconds_max`."""
    rng, at = random.Random(f"chaos {drawn.seed}"), 0.0
    for _ in range(drawn.count or FAULTS_MAX):
        at += rng.expovariate(1.0 / drawn.mean_seconds)
        if drawn.count is None and at > seconds_max:
            return
        kind = rng.choice(drawn.kinds)
        able = [host for host in drawn.hosts or hosts if kind not in OF_LINKS or host.startswith(LEARNER)]
        host = rng.choice(able)
        yield Planned(kind=kind, host=host, at=round(at, 3))


def _learners(hosts: Collection[str]) -> list[str]:
    return [host for host in hosts if host.startswith(f"{LEARNER}/")]


def _built_in(hosts: Sequence[str], seconds: float) -> Iterator[Planned]:
    """One fault after another, evenly over the first 90 % of the run.

    Every kind of process is killed once, and all processes of one of two machines at once; one learner is stopped and
    another slowed for 4 % of the run.
    """
    learners = _learners(hosts)
    others = [host for host in hosts if host not in learners]
    lasts = round(0.04 * seconds, 3)
    story: list[dict[str, Any]] = [
        # A fork server exists until a daemon dies, and then from the next host on.
        {"kind": "kill", "host": FORK_SERVER},
        {"kind": "kill", "host": learners[1 % len(learners)]},
        *({"kind": "kill", "host": host} for host in [*machine_hosts(min(2, len(learners)))[1:], *others]),
        {"kind": "kill", "host": DAEMON},
        {"kind": "pause", "host": learners[2 % len(learners)], "seconds": lasts},
        {"kind": "slow", "host": learners[3 % len(learners)], "seconds": lasts},
    ]
    for number, fields in enumerate(story, 1):
        yield Planned(at=round(0.9 * seconds * number / (len(story) + 1), 3), **fields)
