"""A program trained twice, undisturbed and under a plan of faults, and the figures of several beside each other.

Decides how a run is started and awaited (as by `isthmus train`; on several machines it is handed over to its home and
detached, so that the home may die with everything on it), and what its figures are: those of its own `summary.json`; a
recovery ends where its files show that a host works again; waits are those on its tapes. Only the beginning of a fault
comes from the strikes (`chaos_strikes`). `chaos_page` shows the result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import reading, tapes
from isthmus.programs.engine.results.absences import Absence
from isthmus.programs.engine.results.record import RunRecord
from isthmus.programs.engine.results.run_files import OVER
from isthmus.programs.engine.results.tapes import HostWait, waits_on_others
from isthmus.programs.engine.results.words import percent
from isthmus.programs.engine.run.host_process import PROXY
from isthmus.programs.engine.run.private_daemon import kill_all
from isthmus.programs.wings.chaos.chaos_plan import (
    DAEMON,
    FORK_SERVER,
    OF_LINKS,
    ChaosPlan,
    Planned,
    SlowLinks,
    faults_of,
    machine_hosts,
    seconds_of,
)
from isthmus.programs.wings.chaos.chaos_snapshots import (
    GOES_BACK,
    SETTING,
    SnapshotPace,
    costs,
    deaths,
    pace,
    step_times,
)
from isthmus.programs.wings.chaos.chaos_strikes import (
    LinkProxy,
    Machines,
    ProcessTable,
    Strike,
    Striker,
    WayConditions,
    owner_of,
)
from isthmus.runtime.errors import RunError
from isthmus.runtime.graph.plans import Plan, lower
from isthmus.runtime.ids import LEARNER, LEARNERS_MAX
from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import read_text


@dataclass(frozen=True, slots=True)
class Recovery:
    """Time from the strike (for a pause: from its end) until the process, or its next life, worked again.

    For a machine until the last of its hosts did. None if the files do not show it.
    """

    strike: Strike
    seconds: float | None

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        fault = self.strike.fault
        return {"role": fault.role, "fault": fault.kind, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Figures of one run: its `record`; `waits` counts those of inner steps on other hosts; `zero` is its first inner
    step, in seconds of the monotonic clock."""

    record: RunRecord
    strikes: Sequence[Strike]
    recoveries: Sequence[Recovery]
    waits: int
    zero: float


def figures_of(folder: Path, strikes: Sequence[Strike] = ()) -> TrialFigures:
    """The figures of the run in `folder`, which is over."""
    record = reading.load(folder)
    run_spec = spec.load(folder)
    zero = run_spec.zero_ns / 1e9 + float(record.summary.get("start_seconds") or 0.0)
    happened = [strike for strike in strikes if strike.proof]
    plan = lower(run_spec.graph()).get(LEARNER)
    waits = 0 if plan is None else _waits(folder, plan, happened, run_spec.zero_ns)
    return TrialFigures(record, strikes, [_recovery(record, each, zero) for each in happened], waits, zero)


def _waits(folder: Path, plan: Plan, strikes: Sequence[Strike], zero_ns: int) -> int:
    """The number of waits of learners on other hosts while they were not struck themselves."""
    count = 0
    for file in tapes.of_folder(folder)[0]:
        if file.member is None or file.member.replica.role != LEARNER:
            continue
        own = [each for each in strikes if str(file.member.replica) in (each.fault.host, *each.hosts)]
        for segment in tapes.read(file).segments:
            waits = waits_on_others(plan, segment.records)
            count += sum(not any(_meet(wait, strike, zero_ns) for strike in own) for wait in waits)
    return count


def _meet(wait: HostWait, strike: Strike, zero_ns: int) -> bool:
    begun, ended = (zero_ns + wait.begun) / 1e9, (zero_ns + wait.ended) / 1e9
    return begun <= strike.ended and ended >= strike.begun


# -- recoveries --------------------------------------------------------------------------------------------------------


def _recovery(record: RunRecord, strike: Strike, zero: float) -> Recovery:
    """When it worked again, by the files."""
    fault = strike.fault
    if fault.kind == "kill" and fault.host == FORK_SERVER:
        back = None if strike.back is None else strike.back - zero
        begun = strike.begun - zero
    elif fault.kind == "kill":
        begun = strike.begun - zero
        came = [back_from_the_dead(record.absences, host, begun) for host in strike.hosts or (fault.host,)]
        back = None if None in came else max(at for at in came if at is not None)
    else:
        begun = strike.ended - zero
        back = next((at for at in _works(record, fault.host) if at > begun), None)
    return Recovery(strike, None if back is None else round(max(0.0, back - begun), 3))


def back_from_the_dead(absences: Sequence[Absence], host: str, killed: float) -> float | None:
    """When the absence ended that a kill began or, where the host had not worked since an earlier death, went on."""
    of_it = (each for each in absences if each.host == host and (each.ended is None or each.ended > killed))
    absence = next(of_it, None)
    return None if absence is None else absence.ended


def _works(record: RunRecord, host: str) -> Iterator[float]:
    """The moments at which files show a host at its work, in order."""
    role, _, slot = host.partition("/")
    shows: Mapping[str, Callable[[], Iterator[float]]] = {
        "learner": lambda: (each.time for each in record.reports if each.learner == int(slot)),
        "syncer": lambda: (each.time for each in record.merges if each.fragment % record.shards == int(slot)),
        "evaluator": lambda: (each.time for each in record.evaluations),
        "recorder": lambda: (each.time for each in record.reports),
    }
    return shows[role]() if role in shows else iter(())


LOOK_SECONDS: Final = 0.1
ASK_SECONDS: Final = 5.0
SILENCE_SECONDS_MAX: Final = 120.0
"""A daemon that was killed is back within seconds; on a machine with several times as many busy processes as cores it
took half a minute."""
END_SECONDS_MAX: Final = 120.0
"""Time limit for a run that is ended from here: it may need a minute to write to a full disk."""


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """A training run: `task` and `sets` are the --task and --set of `isthmus train`."""

    program: str
    task: str | None
    sets: tuple[str, ...]
    links: SlowLinks | None = None
    machines: int = 1
    learners: int = 1

    def command(self, folder: Path, cluster: Path | None) -> list[str]:
        """The command line."""
        main = "from isthmus.programs.command.main import main; main()"
        options = [part for text in self.sets for part in ("--set", text)]
        options += ["--task", self.task] if self.task is not None else []
        options += ["--cluster", str(cluster), "--detach"] if cluster is not None else []
        return [sys.executable, "-c", main, "train", self.program, *options, "--quiet", "--run-dir", str(folder)]


def run(
    order: TrainingOrder,
    folder: Path,
    faults: Sequence[Planned],
    say: Callable[[str], None],
    *,
    is_endless: bool = False,
) -> TrialFigures:
    """Train under these faults; returns the figures. RunError if the run fails, or leaves no summary.

    `is_endless`: faults that were not due before the end of the run are left out.
    """
    strikes: list[Strike] = []
    links = _links(order.links) if order.links or any(fault.kind in OF_LINKS for fault in faults) else None
    environment = {} if links is None else {PROXY: links.address}
    with ExitStack() as ended:
        machines = None if order.machines == 1 else ended.enter_context(_machines(order, folder, environment))
        cluster, home = (None, {}) if machines is None else (machines.cluster, machines.home)
        command = ended.enter_context(_started(order.command(folder, cluster), folder, {**environment, **home}))
        striker: Striker | None = None
        try:
            life = TrialLife(command, folder, is_detached=cluster is not None)
            while not life.is_over():
                if striker is None and faults and (zero := ProcessTable(folder).zero()) is not None:
                    striker = Striker(ProcessTable(folder), faults, zero, order.program, links, machines)
                if machines is not None:
                    machines.look()
                if striker is not None:
                    for strike in striker.news():
                        say(_strike_line(strike))
                time.sleep(LOOK_SECONDS)
        finally:
            strikes = striker.close() if striker is not None else [Strike(fault, is_late=True) for fault in faults]
            if links is not None:
                links.close()
    if not (folder / "summary.json").exists():
        log = read_text(folder.parent / f"{folder.name}.log").strip()
        raise RunError(f"{order.program} left no summary in {folder}: {log}")
    return figures_of(folder, [strike for strike in strikes if not (is_endless and strike.is_late)])


@final
class TrialLife:
    """Whether a run is in progress: while its `command` is, or, if that hands it over, until its folder has its end."""

    def __init__(self, command: subprocess.Popen[bytes], folder: Path, *, is_detached: bool) -> None:
        self._command, self._folder, self._is_detached = command, folder, is_detached
        self._heard = self._asked_at = time.monotonic()

    def is_over(self) -> bool:
        """Whether the run is over; RunError if no daemon has answered for it for SILENCE_SECONDS_MAX."""
        code = self._command.poll()
        if code is None:
            self._heard = time.monotonic()
            return False
        if code or not self._is_detached or (self._folder / OVER).exists():
            return True
        now = time.monotonic()
        if now - self._asked_at > ASK_SECONDS:
            self._asked_at = now
            self._heard = now if ProcessTable(self._folder).status() else self._heard
        if now - self._heard > SILENCE_SECONDS_MAX:
            raise RunError(f"no daemon has answered for the run in {self._folder} for {now - self._heard:.0f} s")
        return False


@contextmanager
def _started(command: Sequence[str], folder: Path, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with its output beside the folder; it and its processes are gone after the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with opened_at_end(folder.parent / f"{folder.name}.log") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **more},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kill_all(folder)


def _machines(order: TrainingOrder, folder: Path, environment: Mapping[str, str]) -> Machines:
    """The machines of a run, beside its folder, which the home's daemon makes."""
    references = [text for text in (order.program, order.task) if text is not None]
    return Machines(folder.parent, folder.name, order.machines, order.learners, references, environment)


def _links(usual: SlowLinks | None) -> LinkProxy:
    """A proxy; learners' links have the requested conditions."""
    links = LinkProxy(owner_of, WayConditions())
    for slot in range(LEARNERS_MAX if usual is not None else 0):
        assert usual is not None
        kbits = usual.kbits[min(slot, len(usual.kbits) - 1)] if usual.kbits else None
        links.way(f"{LEARNER}/{slot}").conditions = WayConditions(kbits, usual.latency)
    return links


def _strike_line(strike: Strike) -> str:
    return f"{strike.fault.kind} {strike.fault.host}: {strike.proof or strike.why}"


@dataclass(frozen=True, slots=True)
class Tried:
    """A program: its undisturbed run (`calm`), and its run under the faults (`struck`), which are `planned` for all
    programs; `pace`: how often it took snapshots under them, None if as in the undisturbed run."""

    order: TrainingOrder
    calm: TrialFigures
    struck: TrialFigures
    planned: tuple[Planned, ...] = ()
    pace: SnapshotPace | None = None

    @property
    def is_good(self) -> bool:
        """Whether both runs were done, and every fault happened."""
        is_done = all(each.record.text("outcome") == "done" for each in (self.calm, self.struck))
        return is_done and all(strike.proof for strike in self.struck.strikes)

    @property
    def ratio(self) -> float | None:
        """Goodput over the plan, of the program's own undisturbed goodput."""
        struck, calm = self.struck.record.number("goodput"), self.calm.record.number("goodput")
        return struck / calm if struck is not None and calm else None

    def as_data(self) -> dict[str, Any]:
        """For --json."""
        summary, calm = self.struck.record.summary, self.calm.record.summary
        return {
            "program": self.order.program,
            **{name: summary[name] for name in ("outcome", "uptime", "goodput")},
            "goodput_undisturbed": calm["goodput"],
            "kept": self.ratio,
            "snapshots": None if self.pace is None else self.pace.as_data(),
            "merged_share": summary["merged_share"],
            "eval_loss_final": summary["eval_loss_final"],
            "eval_loss_undisturbed": calm["eval_loss_final"],
            "tokens_total": summary["tokens_total"],
            "seconds": summary["wall_seconds"],
            "seconds_undisturbed": calm["wall_seconds"],
            "waits_on_other_hosts": self.struck.waits,
            "recoveries": [each.as_data() for each in self.struck.recoveries],
            "faults": [
                {**each.as_data(), "begun": round(each.begun - self.struck.zero, 3) if each.proof else None}
                for each in self.struck.strikes
            ],
            "folder": str(self.struck.record.folder),
        }


def try_program(
    order: TrainingOrder,
    hosts: Sequence[str],
    plan: ChaosPlan,
    folder: Path,
    first: Sequence[Tried],
    say: Callable[[str], None],
) -> Tried:
    """Train undisturbed, and then under the faults of the plan: those of the `first` program, for existing `hosts`.

    RunError if a run fails, or leaves no figures.
    """
    own = folder / order.program.replace("/", "-")
    say(f"{order.program}: undisturbed")
    calm = run(order, own / "undisturbed", (), say)
    faults = first[0].planned if first else faults_of(plan, hosts, calm.record.number("wall_seconds") or 0.0)
    there = (*hosts, DAEMON, FORK_SERVER, *machine_hosts(order.machines))
    own_faults = [fault for fault in faults if fault.host in there]
    if not own_faults:
        return Tried(order, calm, calm, faults)
    own_pace = _pace(order, plan, own_faults, calm.record)
    if own_pace is not None:
        say(own_pace.line(order.program))
    under = order if own_pace is None else replace(order, sets=(*order.sets, f"program.{SETTING}={own_pace.interval}"))
    say(f"{order.program}: under the plan")
    struck = run(under, own / "plan", own_faults, say, is_endless=plan.is_endless)
    return Tried(order, calm, struck, faults, own_pace)


def _pace(order: TrainingOrder, plan: ChaosPlan, faults: Sequence[Planned], calm: RunRecord) -> SnapshotPace | None:
    """How often a program that goes back to snapshots takes them under these faults.

    None if it never goes back, the plan itself says how often, or the undisturbed run took no snapshot.
    """
    if order.program not in GOES_BACK or SETTING in plan.program.get(order.program, {}):
        return None
    count = deaths(order.program, faults, order.machines)
    return pace(snapshot_costs(calm.folder), count, seconds_of(plan, faults, calm.number("wall_seconds") or 0.0))


def snapshot_costs(folder: Path) -> list[float]:
    """What each snapshot of a run of a program that goes back to them cost, in seconds, by the tapes of its learners:
    with equal states one learner takes them for all."""
    plan = lower(spec.load(folder).graph())[LEARNER]
    lives = tapes.of_lives(folder)
    return [
        cost
        for member in sorted(lives)
        if member.replica.role == LEARNER
        for segment in lives[member].segments
        for cost in costs(step_times(plan, segment.records))
    ]


def as_data(tried: Sequence[Tried]) -> dict[str, Any]:
    """All figures, for --json; `verdict` has the share that the first program kept over that of each other."""
    return {"runs": [each.as_data() for each in tried], "verdict": verdict(tried)}


def verdict(tried: Sequence[Tried]) -> dict[str, float]:
    """Program -> how many times the share of its own undisturbed goodput that it kept the first program kept."""
    first, *others = tried
    return {each.order.program: first.ratio / each.ratio for each in others if first.ratio is not None and each.ratio}


def headline(tried: Sequence[Tried]) -> Iterator[str]:
    """The share of its goodput that the first program kept, compared with the others."""
    first, *others = tried
    struck = sum(bool(strike.proof) for strike in first.struck.strikes)
    if first.ratio is None or not struck:
        return
    yield (
        f"Under {struck} faults {first.order.program} kept {percent(first.ratio)} of its undisturbed goodput, with "
        f"some learner stepping {percent(first.struck.record.number('uptime'))} of the time."
    )
    times = verdict(tried)
    compared = [
        f"{times[each.order.program]:.2f} times the share that {each.order.program} kept ({percent(each.ratio)})"
        for each in others
        if each.order.program in times
    ]
    if compared:
        yield f"That is {', and '.join(compared)}."


def paces(tried: Sequence[Tried]) -> list[str]:
    """How often programs took snapshots under the plan, where not as in the undisturbed run."""
    return [each.pace.line(each.order.program) for each in tried if each.pace is not None]
