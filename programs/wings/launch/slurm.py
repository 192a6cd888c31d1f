"""Launches on Slurm: the home is one job, the islands are elements of job arrays, a node or several each.

Theory of operation. All of them share the launch folder. The home's script writes a cluster file with the node that it
got and a free port, and an invitation; an island's waits for the invitation, and joins. Both are started by `srun`,
because a step gets SIGTERM at the begin of a preemption's grace at every site, and a script only where the site has set
`preempt_send_user_signal`. What leaves with the status of a notice, or died, is requeued by its script, since Slurm
does so by itself only where the grace was too short; not while it is cancelled, which Slurm calls COMPLETING. When the
run is over the home's script cancels what has not begun, or is just beginning again.

By `invite_by = "env"` islands share no folder with the home: its script submits them, with the invitation in their
environment, and submits them anew where the home has come up at another address.

A launch's jobs are known by their names, `NAME-home` and `NAME-island`, and by the folder in which they work; those
that share none have the launch's as their comment.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, final

from isthmus.programs.engine.run.resume import outcome_of
from isthmus.programs.loop_script import INVITE
from isthmus.programs.settings import collecting
from isthmus.programs.wings.launch.engine import Engine, LaunchedMachine, LaunchState, PrintedFile
from isthmus.programs.wings.launch.folder import NOTE, RUN, Launch
from isthmus.programs.wings.launch.launch_file import (
    AFTER_GRACE_SECONDS,
    HOME,
    ISLAND,
    LaunchRequest,
    LaunchTable,
    home_table,
)
from isthmus.runtime.errors import ConfigError, Fault, RunError, nearest, shortened
from isthmus.runtime.system.refusals import remedy

PROGRAMS: Final = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
COMMAND_SECONDS_MAX: Final = 60.0
LEAVE_SECONDS_MAX: Final = 180.0
"""For jobs to be gone after they were cancelled: a site's KillWait, 30 s by default, and an epilog."""
LOOK_SECONDS: Final = 0.5
ALONE_SECONDS: Final = 300
"""Between two looks of an island whether there still is a home in the queue."""
HOME_FILE: Final = "home.sh"
ISLAND_FILE: Final = "island.sh"
INVITATION: Final = "island.invite"
APART: Final = "/tmp"
"""Where islands work that share no folder with the home; each makes its own below."""
_ODD: Final = "|%\\"
"""What Slurm replaces in the path of a log, and what is between the columns of squeue."""

EXTRA: Final = "Reading launch.extra"
SHORT: Final = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters",
    "N": "nodes", "a": "array", "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
OF_KEYS: Final = {"partition": "partition", "cpus-per-task": "cpus", "mem": "memory", "time": "time"}
"""Options that a key of [launch] has: of two Slurm takes the last one."""
NEEDED: Final = {
    "job-name": "Rename the file: its name is that of the launch.",
    "output": "", "open-mode": "", "chdir": "", "requeue": "", "no-requeue": "",
    "signal": "Set --grace, from which it follows.",
    "array": "Say how many with --islands.",
    "nodes": "Say how many with --nodes-per-island.",
    "ntasks": "", "ntasks-per-node": "",
}  # fmt: skip
"""Options of the scripts, and what to do in their place."""
APART_NEEDED: Final = ("comment",)

_HEAD: Final = """\
#!/bin/bash
#SBATCH --job-name={job} --output={log} --open-mode=append
#SBATCH {resources}
# A notice to leave, so many seconds before the time limit; at a preemption when its grace begins.
#SBATCH --requeue --signal=TERM@{seconds}
{extra}{path}"""
_SHARED: Final = "export XDG_STATE_HOME=$PWD/state\n"
_AGAIN: Final = """\
case $status in
0 | 1 | 2) ;;  # Done, failed, or wrong.
*)  # It had to leave, or died: once more, unless it is cancelled.
    if [ "$(squeue -h -j "$job" -o %T)" = RUNNING ]; then scontrol requeue "$job"; sleep 60; fi
    exit "$status" ;;
esac
"""
_HOME: Final = """\
job=$SLURM_JOB_ID
[ -e home.key ] || isthmus keygen home
# The address by which Slurm itself knows this node.
address=$(scontrol show node -o "$SLURMD_NODENAME" | grep -o 'NodeAddr=[^ ]*')
endpoint=tcp://${{address#NodeAddr=}}:{port}
cat - run.toml >cluster.toml <<END
{table}END
{settle}isthmus invite --count {names} --for island- --cluster cluster.toml --to island.invite &&
{submit}{step} isthmus daemon --name home --listen "$endpoint" --config machine.toml --run cluster.toml \\
    --run-dir {run} {going_on} {leaving}
status=$?
{again}# The run is over, and islands end with it; those that have not begun would never learn of it.
scancel --me --name={name}-island --state=PENDING
for _ in 1 2 3 4 5; do [ -z "$(squeue -h --me --name={name}-island)" ] || sleep 1; done
scancel --me --name={name}-island
exit "$status"
"""
_SUBMIT: Final = """\
{{  # Islands share no folder with the home: at a new address it needs new ones.
    numbers=$(squeue -h -r --me --name={name}-island -o %K | paste -sd,)
    if [ -z "$numbers" ] || ! cmp -s island.invite submitted.invite; then
        scancel --me --name={name}-island
        ISTHMUS_INVITE=$(cat island.invite) sbatch --export=ALL --comment="$PWD" ${{numbers:+--array=$numbers}} \
            island.sh && cp -p island.invite submitted.invite
    fi
}} &&
"""
_WAIT: Final = """\
until [ -s island.invite ]; do  # The home writes it; without one there is nothing to wait for.
    sleep 1
    [ $((SECONDS % 30)) != 29 ] || ! is_alone || exit 1
done
"""
_ALONE: Final = """is_alone() (home=$(squeue -h --me --name={name}-home) && [ -z "$home" ])
"""
_ISLAND: Final = """\
job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID name=island-$SLURM_ARRAY_TASK_ID
{step} {join} {leaving}{config} &
until timeout {look} tail -f --pid=$! /dev/null; do  # A home that was cancelled never tells that it is over.
    ! is_alone || scancel "$job"
done
wait $!
status=$?
{again}exit "$status"
"""
_JOIN: Final = """bash -c '{place}exec isthmus join {invitation}{who} "$@"' "$name\""""
_PLACE: Final = """\
here={apart}/{name}-$UID-$0-$SLURM_NODEID
    mkdir -m 700 "$here" || {{ [ -O "$here" ] && [ ! -L "$here" ]; }} && cd "$here" || exit 2
    export XDG_STATE_HOME=$here/state
    """
_FREE_PORT: Final = """$(python -c 'import socket; s = socket.create_server(("", 0)); print(s.getsockname()[1])')"""


@final
class _Slurm:
    def faults(self, request: LaunchRequest, folder: Path) -> Iterator[Fault]:
        doing, table = f"Launching {request.name} on Slurm", request.table
        if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
            do = "Type it on a login node of the cluster, or install the client (Debian: apt-get install slurm-client)."
            yield Fault(doing, "the commands of Slurm", f"no {', '.join(missing)}", do)
            return
        do = "Leave it out: jobs run this installation; what goes before it stands in launch.extra."
        yield from request.useless("Slurm", do, "image", "namespace")
        if odd := [letter for letter in str(folder) if letter in _ODD or not letter.isprintable()]:
            do = "Rename it, or name another folder with --to."
            yield Fault("Reading the launch folder", f"one without {' '.join(_ODD)} in its path", repr(odd[0]), do)
        own = [each for kind in request.permits.values() for each in kind if not table.is_there_only(each)]
        faults = list[Fault]()
        with collecting(faults):
            _scripts(request)
        yield from faults
        if faults:
            return
        if _is_apart(table) and own:
            do = "Install them on the nodes as a package, or launch in a folder that all share, by a file."
            yield Fault("Reading launch.invite_by", "file, by which the user's code travels", "env", do)
        done = _run("sinfo", "-h", "-o", "%R")
        if done.returncode:
            do = "Ask whether slurmctld runs, and whether this machine has its slurm.conf."
            yield Fault(doing, "an answer of slurmctld", _words(done), do)
            return
        partitions = sorted(set(done.stdout.split()))
        if table.partition and table.partition not in partitions:
            yield Fault(
                "Reading launch.partition", "a partition", repr(table.partition), nearest(table.partition, partitions)
            )
            return
        others = [row for row in _rows(request.name) if row.folder != str(folder)]
        if others:
            end = f"isthmus launch down --to {shlex.quote(others[0].folder)}"
            if not (Path(others[0].folder) / NOTE).exists():  # Submitted by hand.
                end = f"scancel --me --name={request.name}-{HOME} && scancel --me --name={request.name}-island"
            do = f"End that one first, `{end}`, or rename the file."
            found = f"job {others[0].id} of {others[0].folder}"
            yield Fault(doing, "no other launch of that name", found, do)
            return
        for file in _scripts(request):
            tried = _run("sbatch", "--test-only", text=file.text)
            if tried.returncode:
                do = "Change [launch]; `sinfo` shows what there is."
                yield Fault(f"Trying {file.name}", "a job that Slurm takes", _words(tried), do)
                return

    def files(self, request: LaunchRequest) -> Sequence[PrintedFile]:
        island = [PrintedFile("island.toml", request.machine_text)] if request.permits else []
        texts = [PrintedFile("run.toml", request.run_text), PrintedFile("machine.toml", request.home_text)]
        return [*_scripts(request), *texts, *island]

    def by_hand(self, request: LaunchRequest) -> str:
        return f"sbatch {HOME_FILE}" + ("" if _is_apart(request.table) else f" && sbatch {ISLAND_FILE}")

    def submit(self, launch: Launch) -> None:
        try:
            with launch.busy() as lock:
                _submit(launch, lock, HOME_FILE)
                if not _is_apart(launch.table):
                    _submit(launch, lock, ISLAND_FILE)
        except BaseException:
            self.down(launch)
            raise

    def scale(self, launch: Launch, islands: int) -> None:
        machines = {machine.name: machine for machine in self.state(launch).machines if not machine.is_home}
        numbers = {int(name.removeprefix(ISLAND)) for name in machines}
        free = (number for number in range(launch.slots_max) if number not in numbers)
        new = [next(free) for _ in range(islands - len(numbers))]
        if new:
            words = [f"--array={','.join(map(str, new))}"]
            words += [f"--comment={launch.folder}"] if _is_apart(launch.table) else []
            with launch.busy() as lock:
                _submit(launch, lock, *words, ISLAND_FILE, invitation=_invitation(launch))
        if surplus := sorted(numbers)[islands:]:
            _cancel([machines[f"{ISLAND}{number}"].id for number in surplus])

    def state(self, launch: Launch) -> LaunchState:
        machines = [row.machine for row in _rows(launch.name) if row.folder == str(launch.folder)]
        return LaunchState(machines, outcome_of(launch.folder / RUN) or "")

    def down(self, launch: Launch) -> LaunchState:
        cancelled, before = set[str](), self.state(launch).machines
        end = time.monotonic() + LEAVE_SECONDS_MAX
        while True:
            with launch.busy():
                ids = {machine.id for machine in self.state(launch).machines}
                if new := ids - cancelled:  # A home may just have submitted some.
                    _cancel(sorted(new))
                    cancelled |= new
            if not ids:
                return replace(self.state(launch), machines=before)
            if time.monotonic() > end:
                raise RunError(f"jobs {', '.join(sorted(ids))} are there still, {LEAVE_SECONDS_MAX:g} s after scancel")
            time.sleep(LOOK_SECONDS)


class _Row(NamedTuple):
    """A job, or an element of an array, as squeue has it."""

    id: str
    job: str
    folder: str
    number: str
    state: str
    node: str

    @property
    def machine(self) -> LaunchedMachine:
        name = HOME if self.job.endswith(f"-{HOME}") else f"{ISLAND}{self.number}"
        return LaunchedMachine(name, self.id, self.state, self.node)


def _rows(name: str) -> list[_Row]:
    """This user's jobs of the launches of that name; ConfigError if Slurm does not answer."""
    done = _run("squeue", "--me", "-h", "-r", f"--name={name}-{HOME},{name}-island", "-o", "%i|%j|%Z|%K|%T|%N|%k")
    if done.returncode:
        do = "Type it on a login node of the cluster, once slurmctld runs."
        raise ConfigError("Looking for jobs on Slurm", "an answer of squeue", _words(done), do)
    rows = (line.split("|", len(_Row._fields)) for line in done.stdout.splitlines())
    return [
        _Row(number, job, comment if folder == APART and job.endswith("-island") else folder, *others)
        for number, job, folder, *others, comment in (row for row in rows if len(row) == len(_Row._fields) + 1)
    ]


class _Extra(NamedTuple):
    """What a user adds to both scripts: options of sbatch, of which Slurm reads none behind a command, devices, which
    it takes from one option only, and commands."""

    options: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @classmethod
    def read(cls, table: LaunchTable) -> _Extra:
        """That of `launch.extra`; ConfigError with what contradicts the scripts."""
        faults, options, devices, commands = list[Fault](), list[str](), list[str](), list[str]()
        for line in table.extra.rstrip().splitlines():
            if not line.startswith("#SBATCH"):
                commands += [line]
                continue
            given = list(_options_of(line, faults))
            faults += (fault for option in given for fault in _refusals(table, *option))
            kept = [(name, value) for name, value in given if name != "gres"]
            devices += [value for name, value in given if name == "gres"]
            if kept == given:
                options.append(line.removeprefix("#SBATCH").strip())
            elif kept:
                options.append(" ".join(shlex.quote(f"--{name}" + f"={value}" * bool(value)) for name, value in kept))
        if faults:
            raise ConfigError.of(faults)
        return cls(tuple(options), tuple(devices), tuple(commands))


def _options_of(line: str, faults: list[Fault]) -> Iterator[tuple[str, str]]:
    """The options of a line of sbatch, by their long names, with their values, if any."""
    try:
        words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
    except ValueError as error:
        faults.append(Fault(f"{EXTRA}, {line!r}", "options of sbatch", str(error), "Correct its quotes."))
        return
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            name, value = SHORT.get(word[1:2], word[1:2]), word[2:]
            equals = value
        if not word.startswith("-") or not name:
            do = "Write --name=value; commands stand in lines of their own."
            faults.append(Fault(f"{EXTRA}, {line!r}", "options of sbatch", repr(word), do))
            return
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value


def _refusals(table: LaunchTable, name: str, value: str) -> Iterator[Fault]:
    """Why an option may not stand in `launch.extra`."""
    doing = f"{EXTRA}, --{name}"
    key = OF_KEYS.get(name)
    if key is not None and (given := getattr(table, key)) and str(given) != value:
        do = f"Leave one of them out, this or launch.{key}."
        yield Fault(doing, f"{given}, as launch.{key} says", repr(value), do)
    if name in NEEDED or (name in APART_NEEDED and _is_apart(table)):
        do = NEEDED.get(name) or "Leave it out."
        yield Fault(doing, "none: isthmus sets it, to find its jobs and to end them", repr(value or name), do)


def _scripts(request: LaunchRequest) -> list[PrintedFile]:
    """The two scripts of a request; ConfigError with what `launch.extra` contradicts."""
    table = request.table
    given = _Extra.read(table)
    options = {"partition": table.partition, "cpus-per-task": table.cpus, "mem": table.memory, "time": table.time}
    resources = [f"--{name}={value}" for name, value in options.items() if value]
    apart = APART if _is_apart(table) else ""
    seconds = math.ceil(request.grace) + AFTER_GRACE_SECONDS
    extra = "".join([*(f"#SBATCH {line}\n" for line in given.options), *(f"{line}\n" for line in given.commands)])
    path = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
    path += "export SLURM_EXPORT_ENV=ALL  # A site, or you, may have SBATCH_EXPORT=NONE: then steps had no PATH.\n"
    # Since 22.05 a step does not have its job's cores by itself.
    step = f"srun --cpus-per-task={table.cpus}" if table.cpus else "srun"
    leaving = f"--until-over --grace {request.grace:g}"

    def head(job: str, log: str, *more: str) -> str:
        words = " ".join(["--ntasks-per-node=1", *more, *resources])
        return _HEAD.format(job=job, log=log, resources=words, seconds=seconds, extra=extra, path=path)

    home = (
        head(f"{request.name}-{HOME}", "home.log", "--nodes=1", *_gres(*given.devices))
        + _SHARED
        + _HOME.format(
            port=table.port or _FREE_PORT,
            table=home_table("$endpoint"),
            names=request.names,
            settle=f"{step} {request.settling} &&\n" if request.is_for_home else "",
            submit=_SUBMIT.format(name=request.name) if apart else "",
            step=step,
            run=RUN,
            going_on=request.going_on,
            leaving=leaving,
            again=_AGAIN,
            name=request.name,
        )
    )
    own = [f"--array=0-{request.islands - 1}", f"--nodes={request.nodes_per_island}"]
    own += _gres(table.devices, *given.devices)
    own += [f"--chdir={apart}"] if apart else []
    log = f"{apart}/{request.name}-island-%A_%a.log" if apart else "island-%a.log"
    join = _JOIN.format(
        place=_PLACE.format(apart=apart, name=request.name) if apart else "",
        invitation="" if apart else f"--invite {INVITATION} ",
        who='--name "$0"' if request.nodes_per_island == 1 else '--island "$0" --name "$0-$SLURM_NODEID"',
    )
    config = " --config island.toml" if request.permits else ""
    words = {"step": step, "join": join, "leaving": leaving, "config": config, "again": _AGAIN}
    island = head(f"{request.name}-island", log, *own) + _ALONE.format(name=request.name)
    island += ("" if apart else _SHARED + _WAIT) + _ISLAND.format(look=ALONE_SECONDS, **words)
    return [PrintedFile(HOME_FILE, home), PrintedFile(ISLAND_FILE, island)]


def _gres(*devices: str) -> list[str]:
    """One option for all devices: of two of these Slurm takes the last one."""
    return [f"--gres={','.join(filter(None, devices))}"] if any(devices) else []


def _is_apart(table: LaunchTable) -> bool:
    """Whether islands share no folder with the home."""
    return table.invite_by == "env"


def _invitation(launch: Launch) -> str:
    """What goes into the environment of new islands, empty for a file; ConfigError where the home has not begun."""
    if not _is_apart(launch.table):
        return ""
    path = launch.folder / INVITATION
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        do = "Wait until the home runs: isthmus launch status."
        raise ConfigError(
            f"Reading {path}", "the invitation, which the home writes", str(error), remedy(error, do)
        ) from None


def _submit(launch: Launch, lock: int, *words: str, invitation: str = "") -> None:
    """Have sbatch make a job of a script; ConfigError if it makes none. sbatch holds `lock`."""
    words = ("--export=ALL", *words) if invitation else words
    done = _run("sbatch", "--parsable", *words, folder=launch.folder, holds=(lock,), invitation=invitation)
    if done.returncode:
        do = "Change [launch], or ask for what this account may submit."
        raise ConfigError(f"Submitting {words[-1]}", "a job that Slurm takes", _words(done), do)


def _cancel(ids: Sequence[str]) -> None:
    """Have jobs leave: SIGTERM, and SIGKILL after the site's KillWait. One that is over is none to cancel."""
    _run("scancel", "--quiet", *ids)


def _run(
    *words: str,
    text: str | None = None,
    folder: Path | None = None,
    holds: Sequence[int] = (),
    invitation: str = "",
) -> subprocess.CompletedProcess[str]:
    """What a command of Slurm answers; ConfigError if it is not there, or does not answer."""
    try:
        return subprocess.run(
            words,
            input=text,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
            env={**os.environ, INVITE: invitation} if invitation else None,
            pass_fds=holds,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        do = "Type it on a login node of the cluster, once slurmctld runs."
        raise ConfigError(
            f"Calling {words[0]}", f"an answer within {COMMAND_SECONDS_MAX:g} s", str(error), do
        ) from None


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """What a command of Slurm complains about, in a line."""
    lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
    return shortened("; ".join(lines), 1000) or f"status {done.returncode}"


ENGINE: Final[Engine] = _Slurm()
