"""The description of a run for its daemon and hosts: the job in full, as JSON in the run folder.

Every host builds the graph itself from it and compares the fingerprint: no code travels, only references to it. A run
in one process leaves it, too, for the replay of its tapes.

Whatever a process of a run has to know before it has a connection is here, and nothing that changes while it goes on.
A daemon and a command that looks at a run only read it, so what builds and describes graphs is imported where one is.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from isthmus.ops.step_tokens import AtMost, FormerStepTokens, PresentStepTokens
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.own_data import OwnData, on_own_data
from isthmus.programs.engine.request.reference import is_file, is_open_loop, script_of, split
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.request.slot_tasks import task_of
from isthmus.programs.job import Job, TensorSpec
from isthmus.programs.loop_script import LoopScript
from isthmus.programs.program_graph import REGION
from isthmus.runtime.clock import seconds
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.template import Reference, Template
from isthmus.runtime.ids import LEARNER, Replica, follower, leader
from isthmus.runtime.supervision.home_events import RunRoles, UserTerms
from isthmus.runtime.system.files import read_bytes, read_text, write_json
from isthmus.runtime.system.processes import boot_id
from isthmus.runtime.tape.reading import FOLDER, named

if TYPE_CHECKING:
    from isthmus.programs.engine.snapshots.stored import StorePlace
    from isthmus.programs.loop_script import LoopScript
    from isthmus.runtime.graph.plans import Plan
    from isthmus.runtime.graph.template import Template
    from isthmus.runtime.supervision.home_events import RunRoles

SPEC: Final = "spec.json"
CLUSTER: Final = "cluster.json"
"""Beside the spec of a run on several machines: these, and the placement of replicas at the start."""
SOURCES: Final = "sources.json"
"""Beside it: the files of which the run is made, which no host reads (`sources`)."""
INPROC: Final = "inproc"
"""The `transport` of a run in one process."""


def is_one_port(ports: str) -> bool:
    """Whether a range `A-B` has one port, which is the daemon's: hosts listen inside, for its porter alone."""
    first, _, last = ports.partition("-")
    return bool(ports) and first == last


@dataclass(frozen=True, slots=True)
class Here:
    """The part of a spec that differs by machine. Resources are 0 and empty where they are not declared."""

    address: str
    """On which hosts listen."""
    learners: int
    """How many share the machine."""
    machine: str = ""
    """Its name."""
    secret: str = ""
    """The file of its secret key, if any."""
    boot: str = ""
    """The boot of the machine in which `zero_ns` counts."""
    wall_ns: int = 0
    """The time of day at `zero_ns`, in nanoseconds."""
    islands: int = 0
    """The declared number of islands."""
    devices: int = 0
    """The number of devices in each."""
    kinds: tuple[str, ...] = ()
    """The names of their kind."""
    daemon: str = ""
    """The address at which others reach its daemon, if any."""
    has_porter: bool = False
    """Whether a porter accepts there, which relays."""
    ports: str = ""
    """Those at which hosts listen, `A-B`, or empty for any. Where these are one, hosts listen inside, for the porter
    alone."""
    reaches: tuple[tuple[str, str], ...] = ()
    """(machine, address) of other machines' porters, as this machine reaches them."""
    is_far: bool = False
    """The way to others, or to some of them, leads through a bucket."""
    own_data: OwnData | None = None
    """What its learners train on in place of the run's data, if its owner says so."""
    is_site: bool = False
    """Its owner has data of its own, here as a machine of another's run: no host reads files that the run names."""

    @property
    def islands_here(self) -> int:
        """How many islands share the machine's devices: as declared, or one for each learner."""
        return self.islands or self.learners

    @property
    def porter(self) -> str:
        """The address of this machine's porter; empty if it has none."""
        return self.daemon if self.has_porter else ""

    @property
    def is_inside(self) -> bool:
        """Whether hosts here are reached by others through the porter alone."""
        return is_one_port(self.ports)

    @property
    def listens(self) -> str:
        """The endpoint at which a host listens (`Reception.bind`)."""
        return "tcp://127.0.0.1:0" if self.is_inside else f"tcp://{self.address}:{self.ports or 0}"


@dataclass(frozen=True, slots=True)
class Spec:
    """A run as its processes know it."""

    run: str
    """A unique name."""
    job: Job
    fingerprint: str
    roles: Mapping[str, int]
    """The replicas of each role at the start."""
    most: Mapping[str, int]
    """Their maximum."""
    least: Mapping[str, int]
    """The number with which the run can go on."""
    computing: tuple[str, ...]
    """The roles whose hosts import the task, or are processes of its script."""
    zero_ns: int
    """The instant of the machine's monotonic clock from which all times count."""
    cpu_seconds: float
    """Used by the command by then."""
    here: Here
    settings: RunSettings
    """Section `run.`, with the `argv` of the command or script, which modules of the user's may read at import, and the
    `processes` that the islands were given."""
    tokens_of_step: tuple[int, ...] = ()
    """The tokens of a batch, by slot (`ops.data.batches.of_slot`); where they are counted, the most."""
    transport: str = "zmq"
    """Hosts are processes ("zmq") or all in one ("inproc")."""
    elastic: tuple[tuple[int, ...], ...] = ()
    """By slot, how many of the processes of an island may train without the others; none if they live and end
    together."""
    edges: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The roles of source and target of each edge between hosts, because a daemon builds no graph."""
    regions: int = 0
    """How many there are, in a run of two levels."""
    paused_ns: int = 0
    """For how long its clock has stood still, between its ends and what went on with it (`standstill`)."""
    program_file: str = ""
    """SHA-256 of the user's file that has the program's builder; '' for any other program."""
    script_digest: str = ""
    """SHA-256 of the script that was asked for the model, on the machine that was; '' where nothing is compared."""
    data: Mapping[str, int] = field(default_factory=dict)
    """How many `files`, `bytes` and `tokens` its data had; empty where that is not known."""
    resumed: int = 0
    """How often a run of a cluster has gone on from a snapshot on all of its machines; hosts of before are no part of
    it."""

    def snapshot_place(self, folder: Path) -> StorePlace | None:
        """The store of snapshots beside the run folder, if any."""
        if not self.settings.snapshots:
            return None
        from isthmus.programs.engine.snapshots.stored import StorePlace, home_text  # Of a run that has a second place.

        return StorePlace(self.settings.snapshots, self.run, home_text(folder))

    @property
    def cast(self) -> RunRoles:
        """The participants of the run, in the form that a home's core takes."""
        from isthmus.runtime.supervision.home_events import RunRoles  # A daemon's; hosts have no home.

        return RunRoles(
            roles=dict(self.roles),
            slots_max=dict(self.most),
            least=dict(self.least),
            processes=self.settings.processes,
            elastic=self.elastic,
            edges=dict(self.edges),
            exit_seconds=self.settings.end_seconds,
            user=UserTerms(
                start=seconds(self.settings.first_beat_seconds),
                silent=seconds(self.settings.silent_seconds),
                stuck=seconds(self.settings.stuck_seconds),
                idle=seconds(self.settings.loop_idle_seconds),
                away=seconds(self.settings.loop_away_max or 0.0),
                scripts=() if self.script is None else self.computing,
                has_guests=is_open_loop(self.job.task.text),
            ),
            group_role=REGION,
            groups=self.regions,
            period=math.prod(self.job.modules),
        )

    @property
    def weight_share_max(self) -> float:
        """The bound of what one participant has of a merge."""
        return float(self.job.settings.get("weight_share_max", 1.0))

    def task_of(self, replica: Replica) -> str:
        """The reference of the task that a host on this machine imports."""
        text, own = task_of(self.job.task.text, replica, self.here.machine), self._own_data_of(replica)
        return text if own is None else on_own_data(text, own.paths)

    def resolving(
        self, replica: Replica, resolve: Callable[[Reference], Any] = reference.resolve
    ) -> Callable[[Reference], Any]:
        """`resolve`, where the reference of the run's task means that of a host on this machine, which knows whether
        its data are the owner's."""

        def resolved(one: Reference) -> Any:
            if one != self.job.task:
                return resolve(one)
            if fault := self.fault_of(replica):
                raise ConfigError.of([fault])
            own = self._own_data_of(replica)
            task = resolve(Reference(self.task_of(replica)))
            return task if own is None else own.given_to(task)

        return resolved

    def fault_of(self, replica: Replica) -> Fault | None:
        """Why a host may not have the run's task on this machine: it would read files that the run names, and so might
        read those of its owner."""
        if not self.here.is_site or self._own_data_of(replica) is not None:
            return None
        doing = f"Giving the task of the run to {replica} on the machine {self.here.machine!r}, which has own data"
        return Fault(doing, "a learner, which trains on those", "other data", "Place it on another machine.")

    def _own_data_of(self, replica: Replica) -> OwnData | None:
        return self.here.own_data if leader(replica).role == LEARNER else None

    @property
    def script(self) -> LoopScript | None:
        """The script whose processes are the learners; None where they are ours."""
        return script_of(self.job.task.text)

    def processes_of(self, slot: int) -> int:
        """The number of processes that make up the island of a learner."""
        processes = self.settings.processes
        return processes[slot] if slot < len(processes) else 1

    def is_elastic(self, slot: int) -> bool:
        """Whether the island of a learner goes on without some of its processes."""
        return slot < len(self.elastic) and bool(self.elastic[slot])

    def plans(self, *, is_checked: bool = True) -> dict[str, Plan]:
        """The plan of each kind of host; ConfigError as for `graph`."""
        from isthmus.programs.engine.request.followers import follower_plan
        from isthmus.runtime.graph.plans import lower

        plans, job = lower(self.graph(is_checked=is_checked)), self.job
        for number in range(1, max(self.settings.processes, default=1)):
            role = follower(Replica(LEARNER, 0), number).role
            plans[role] = follower_plan(plans[LEARNER], role, job.learners, job.slots_max)
        return plans

    def graph(self, *, is_checked: bool = True) -> Template:
        """The graph, built here; ConfigError if it is not the one that was submitted: before a file of the user's that
        is another one now is imported. Where it is not checked, that which present sources make of the job."""
        from isthmus.programs.engine.recorder.roles import with_recorder
        from isthmus.programs.engine.request.fingerprint import fingerprint
        from isthmus.programs.engine.request.program import Program

        file = file_in(self.job.program)
        if is_checked and self.program_file and file is not None and (found := file_digest(file)) != self.program_file:
            do = "Use one version of the program and of isthmus everywhere, and do not edit them while a run starts."
            expected = f"{file} as it was, {self.program_file[:_SHOWN]}"
            raise ConfigError(f"Building the graph of {self.job.program!r}", expected, found[:_SHOWN], do)
        program = Program(self.job.program, **self.job.settings)
        graph = with_recorder(program.build(self.job).freeze(), self.job)
        own_fingerprint = fingerprint(graph, self.job, program.builder()) if is_checked else self.fingerprint
        if own_fingerprint != self.fingerprint:
            do = "Use one version of the program and of isthmus everywhere, and do not edit them while a run starts."
            raise ConfigError(f"Building the graph of {self.job.program!r}", self.fingerprint, own_fingerprint, do)
        return graph


_SHOWN: Final = 16
"""Digits of a digest, in a message."""


def file_in(program: str) -> Path | None:
    """The user's file that a program names; None for a module, and where there is no such file."""
    where, rest = split(program)
    path = Path(where)
    return path if rest and is_file(where) and path.is_file() else None


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(read_bytes(file)).hexdigest()


def write(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write a spec into a run folder, for this boot of this machine."""
    age = time.monotonic_ns() - int(fields["zero_ns"])
    now = {"boot": boot_id().decode(), "wall_ns": time.time_ns() - age}
    write_json(folder / SPEC, {**fields, "here": {**fields["here"], **now}})


def settle(
    folder: Path, *, has_porter: bool, ports: str, is_far: bool, reaches: Sequence[tuple[str, str]] = ()
) -> None:
    """Write how this machine's hosts listen and dial, as its present daemon has it."""
    fields = json.loads(read_text(folder / SPEC))
    now = {"has_porter": has_porter, "ports": ports, "is_far": is_far, "reaches": list(map(list, reaches))}
    if any(fields["here"].get(name) != value for name, value in now.items()):
        write_json(folder / SPEC, {**fields, "here": {**fields["here"], **now}})


def age(fields: Mapping[str, Any], least_ns: int = 0) -> int:
    """The age of a run, from its spec as data, by the time of day, nanoseconds; never less than `least_ns`, because
    clocks of machines differ, and are set."""
    return max(time.time_ns() - int(fields["here"]["wall_ns"]), least_ns)


def rebase_clock_after_reboot(folder: Path) -> None:
    """After a reboot, which restarts the clock, have the times of a run continue, by the time of day."""
    fields = json.loads(read_text(folder / SPEC))
    if fields["here"]["boot"] != boot_id().decode():
        write(folder, {**fields, "zero_ns": time.monotonic_ns() - age(fields)})


def rebase_clock(folder: Path, least_ns: int) -> None:
    """On another machine, have the times of a run continue by the time of day, and never from before `least_ns`."""
    fields = json.loads(read_text(folder / SPEC))
    write(folder, {**fields, "zero_ns": time.monotonic_ns() - age(fields, least_ns)})


def with_clock_of(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A spec as data, with the clock of the one in a run folder."""
    present = json.loads(read_text(folder / SPEC))
    here = {**fields["here"], **{name: present["here"][name] for name in ("boot", "wall_ns")}}
    return {**fields, "zero_ns": present["zero_ns"], "paused_ns": present.get("paused_ns", 0), "here": here}


def archive(folder: Path) -> int:
    """Keep the spec of a run that goes on under another one, for the existing tapes; returns its number."""
    tapes = sorted({name_parts[0] for path in (folder / FOLDER).glob("*.tape") if (name_parts := named(path.name))})
    number = 1 + sum(1 for _ in formers(folder))
    sources = folder / SOURCES
    record = {
        "spec": json.loads(read_text(folder / SPEC)),
        "tapes": tapes,
        "sources": json.loads(read_text(sources)) if sources.exists() else None,
    }
    write_json(folder / f"spec-{number}.json", record)
    return number


class FormerSpec(NamedTuple):
    """A spec under which a run has gone on before: with the names of the tapes that there were when it was put aside,
    and its sources as data, if they were noted."""

    spec: Spec
    tapes: frozenset[str]
    sources: Mapping[str, Any] | None


def formers(folder: Path) -> Iterator[FormerSpec]:
    """The specs under which a run has gone on before, oldest first."""
    for number in count(1):
        try:
            record = json.loads(read_text(folder / f"spec-{number}.json"))
        except FileNotFoundError:
            return
        yield FormerSpec(read(record["spec"]), frozenset(record["tapes"]), record.get("sources"))


def load(folder: Path) -> Spec:
    """The spec in a run folder."""
    return read(json.loads(read_text(folder / SPEC)))


def read(data: Mapping[str, Any]) -> Spec:
    """The spec that some data stand for; KeyError, TypeError or ValueError if they stand for none."""
    fields = dict(data)
    work = dict(fields.pop("job"))
    layout = tuple(TensorSpec(name, tuple(shape), *rest) for name, shape, *rest in work.pop("layout"))
    settings, by_slot = MappingProxyType(work.pop("settings")), tuple(work.pop("tokens_by_slot"))
    computing, here = tuple(fields.pop("computing")), fields.pop("here")
    run = _run_settings(fields.pop("settings"))
    reaches = tuple((str(machine), str(address)) for machine, address in here.get("reaches", ()))
    own = here.get("own_data")
    own_data = None if own is None else OwnData.read(own)
    here = Here(**{**here, "kinds": tuple(here.get("kinds", ())), "reaches": reaches, "own_data": own_data})
    fields["tokens_of_step"] = tuple(fields.get("tokens_of_step", ()))
    fields["elastic"] = tuple(map(tuple, fields.get("elastic", ())))
    fields["edges"] = {name: (source, target) for name, (source, target) in fields.get("edges", {}).items()}
    fields["data"] = {str(name): int(count) for name, count in fields.get("data", {}).items()}
    task = Reference(work.pop("task"))
    frozen = tuple((name, digest) for name, digest in work.pop("frozen", ()))
    modules = tuple(work.pop("modules", ()))
    before = tuple(
        FormerStepTokens(tuple((int(slot), int(life)) for slot, life in lives), _tokens_of_data(tokens))
        for lives, tokens in work.pop("step_tokens_before", ())
    )
    job = Job(
        layout=layout,
        task=task,
        settings=settings,
        tokens_by_slot=by_slot,
        frozen=frozen,
        modules=modules,
        step_tokens_before=before,
        **run.of_job(),
        **work,
    )
    return Spec(job=job, computing=computing, here=here, settings=run, **fields)


def _tokens_of_data(data: Any) -> PresentStepTokens:
    return AtMost(data["at_most"]) if isinstance(data, Mapping) else tuple(data) if isinstance(data, list) else data


def _run_settings(data: Mapping[str, Any]) -> RunSettings:
    """Section `run.` of a spec, whose sender may be another machine; ValueError if it is not valid."""
    try:
        return RunSettings.read(data)
    except ConfigError as error:
        raise ValueError(str(error)) from error
