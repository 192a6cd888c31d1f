"""The processes of a user's script whose loop is a learner (`isthmus train --loop`): their start, also before the run.

What a script does before its first step, imports, data and model, takes longer than all that a run has to prepare. So
where a new run begins on this machine, the learners' processes are started before its request is known to be right.
Each makes a first step, so that it has compiled what it has to, tells of its model, and waits. Once the request is
prepared, with what slot 0 has told, each is given its life, and goes on.

    preparer --- the script, and how many ---> daemon that waits --- starts ---> the script, for each slot
             <--- the files with the answer ---                  <--- one byte: slot 0 has told
                                               the run's daemon  --- a life, and the log ---> each

They are children of the daemon, as all hosts are, and lead sessions. Until it has its life, each dies with the daemon;
what it prints is in a file of its own, and follows into the log. Where memory is short, the kernel is to end the other
slots' rather than that of slot 0: the request then says what does not fit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, final

from isthmus.programs.engine.islands.environment import compiling, gpus, script_environment
from isthmus.programs.engine.run.logs import opened_log
from isthmus.programs.job import RunSlots
from isthmus.programs.loop_script import ISLAND, LoopAhead, LoopLife, LoopScript
from isthmus.programs.rank_watch import BOUND
from isthmus.runtime.errors import RunError
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.system.children import ChildProcess
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import PR_SET_PDEATHSIG, environment, outlive_parent, spawn_leader
from isthmus.runtime.system.waiting import readable

if TYPE_CHECKING:
    from isthmus.programs.loop_task import ModelFound

COPIED_BYTES: Final = 1 << 16
_FIRST_TO_GO: Final = 1000
"""The score by which the kernel ends a process before all others where memory is short (proc(5), oom_score_adj)."""
_IN_FOLDER: Final = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
"""A program that goes to a folder and becomes another one: a process that is spawned begins in the folder of this one.
"""
_WITH_PARENT: Final = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0); "
    "os.getppid() == int(sys.argv.pop(1)) or os._exit(1); "
)
"""The same begins with this where it is to die with the process of a pid (`processes.die_with_parent`)."""


def output_to(file: BinaryIO) -> list[tuple[Any, ...]]:
    """What becomes of the standard streams of a process that is spawned, and whose output is to go to a file."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, file.fileno(), 1),
        (os.POSIX_SPAWN_DUP2, file.fileno(), 2),
    ]


def spawn_script(script: LoopScript, life: LoopLife, log: Path, devices: Mapping[str, str]) -> int:
    """Start a user's script as a life of a learner, with variables for its devices, as the leader of a session. Its
    pid."""
    with opened_log(log) as file:
        return _spawn([_IN_FOLDER], script, life, file, devices)


def _spawn(
    program: list[str], script: LoopScript, life: LoopLife | LoopAhead, output: BinaryIO, devices: Mapping[str, str]
) -> int:
    variables = {**environment(computes=True), **devices, ISLAND: json.dumps(life._asdict())}
    variables.setdefault("PYTHONUNBUFFERED", "1")  # Its log is read while it runs, and after it was killed.
    command = [sys.executable, "-I", "-S", "-c", *program, script.folder, *script.command]
    return spawn_leader(command, variables, output_to(output))


def devices_of(island: int, islands: int, devices: int = 0, *, has_evaluator: bool) -> dict[str, str]:
    """The variables by which a script's process sees the GPUs of one of so many islands, the first of which may be
    shared with an evaluator; each has so many `devices`, 0 where that is not declared. ConfigError for more than there
    are."""
    there = gpus()
    variables = script_environment(there, island, islands, devices, has_evaluator=has_evaluator, environment=os.environ)
    return variables if there is None else {**variables, **compiling(max(islands, 1), os.environ)}


def watching(script: LoopScript, rank_seconds: float) -> dict[str, str]:
    """The variables by which the ranks of a script are watched."""
    return {} if script.ranks == 1 else {BOUND: str(rank_seconds)}


# -- at the daemon -----------------------------------------------------------------------------------------------------


@final
class _Waiting:
    """The process of one slot, which tells of its model, and waits for its life."""

    def __init__(self, script: LoopScript, slot: int, run: RunSlots) -> None:
        """OSError if there is no room for it."""
        with ExitStack() as opened:
            self.output = opened.enter_context(tempfile.TemporaryFile())
            self.answer = opened.enter_context(tempfile.TemporaryFile())
            # Pipes, because what the script forks before its `with` is to have no socket of ours.
            (told, tells), (waits, life) = os.pipe(), os.pipe()
            self.told = opened.enter_context(os.fdopen(told, "rb", 0))
            self._life = opened.enter_context(os.fdopen(life, "wb", 0))
            answer = os.dup(self.answer.fileno())
            # The number of learners may still change; an evaluator is counted, because the script may have one.
            replica = Replica(LEARNER, slot)
            devices = devices_of(slot % max(run.learners, 1), run.learners, has_evaluator=True)
            try:
                for each in (answer, tells, waits):
                    os.set_inheritable(each, True)
                program = [_WITH_PARENT + _IN_FOLDER, str(os.getpid())]
                ahead = LoopAhead(answer, tells, waits, str(replica), run.slots, run.seed)
                watched = {**devices, **watching(script, run.rank_seconds)}
                self._process = ChildProcess(_spawn(program, script, ahead, self.output, watched))
            finally:
                for each in (answer, tells, waits):
                    os.close(each)
            self._opened = opened.pop_all()
        if slot:
            self._be_ended_first(_FIRST_TO_GO)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def watch(self) -> int:
        """A descriptor that can be read once it has ended."""
        return self._process.watch

    def has_told(self) -> bool:
        """Whether it has said that it has told of its model."""
        return bool(readable([self.told], 0) and self.told.read(1))

    def begin(self, life: LoopLife, log: Path) -> bool:
        """Give it its life, and the log for its output; whether it is there for that."""
        if self._process.wait(0.0):
            with opened_log(log) as file:
                _append(file, self.output.fileno())
            return False
        with suppress(OSError, ValueError):
            self._be_ended_first(int(Path("/proc/self/oom_score_adj").read_text()))
        known = os.fstat(self.output.fileno())
        given = {"life": life._asdict(), "log": os.path.abspath(log), "output": [known.st_dev, known.st_ino]}
        try:
            self._life.write(json.dumps(given).encode() + b"\n")
        except OSError:
            return False
        self._process.let_go()  # From now on it is a life, which its daemon watches.
        self._opened.close()
        return True

    def end(self) -> int | None:
        """End it, with what it has started; returns its exit status, negative for a signal."""
        self._process.end()
        self._opened.close()
        return self._process.status

    def _be_ended_first(self, score: int) -> None:
        with suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(str(score))


@final
class ScriptsAhead:
    """The processes of a script's first learners that were started before their run; none at first.

    `asks` is this daemon's end of a line on which a preparer may ask for them; None once nobody does.
    """

    def __init__(self, asks: ProcessLine) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._asks: ProcessLine | None = asks
        self._is_awaited = False
        """Whether the preparer waits for what slot 0 tells."""

    def watched(self) -> list[Any]:
        """What becomes readable as `hear` has something to do."""
        first = [self._waiting[0].told, self._waiting[0].watch] if self._is_awaited else []
        return first if self._asks is None else [*first, self._asks]

    def hear(self, able: Sequence[Any]) -> None:
        """Do what there is to do: start them, or pass on what slot 0 has told, or how it has ended."""
        if self._is_awaited and (self._waiting[0].watch in able or self._waiting[0].told in able):
            self._pass_on()
        elif self._asks is not None and self._asks in able:
            for asked in self._asks.hear():
                self._start(asked, self._asks)
            if self._asks.is_over:
                self._ask_no_more()

    def begin(self, life: LoopLife, log: Path) -> int | None:
        """Have the process that waits for a learner's life be that; its pid, None if there is none."""
        replica = Replica.parse(life.replica)
        waiting = self._waiting.pop(replica.slot, None) if replica.role == LEARNER else None
        if waiting is None:
            return None
        if waiting.begin(life, log):
            return waiting.pid
        waiting.end()
        return None

    def end(self, first: int = 0) -> None:
        """End those of the slots from `first` on, and start no more."""
        self._ask_no_more()
        for slot in [each for each in self._waiting if each >= first]:
            self._waiting.pop(slot).end()

    def _ask_no_more(self) -> None:
        """There is no preparer any more: nothing is passed on."""
        self._is_awaited = False
        if self._asks is not None:
            self._asks.close()
            self._asks = None

    def _start(self, asked: Mapping[str, Any], asks: ProcessLine) -> None:
        script = LoopScript.of(asked["script"])
        run = RunSlots(*asked["run"])
        try:
            self._waiting[0] = _Waiting(script, 0, run)
        except OSError as error:
            asks.offer({"error": str(error)})
            return
        self._is_awaited = True
        with suppress(OSError):  # Those for which there is no room now are started with the run.
            for slot in range(1, min(run.learners, len(os.sched_getaffinity(0)))):
                self._waiting[slot] = _Waiting(script, slot, run)

    def _pass_on(self) -> None:
        assert self._asks is not None
        self._is_awaited, first = False, self._waiting[0]
        has_told, status = first.has_told(), 0
        with ExitStack() as opened:
            files = [opened.enter_context(os.fdopen(os.dup(each.fileno()))) for each in (first.answer, first.output)]
            if not has_told:
                status = self._waiting.pop(0).end() or 0
            with suppress(OSError):  # The preparer has died.
                self._asks.send({"status": status}, [each.fileno() for each in files])


# -- at the preparer ---------------------------------------------------------------------------------------------------


def ask_through(daemon: ProcessLine) -> None:
    """Have a daemon that waits, at the other end of the line, start the scripts that this process asks."""
    from isthmus.programs.loop_task import ask_by, asked_of, told_in, wait_for_first_step  # A daemon asks none.

    found: dict[LoopScript, ModelFound] = {}

    def ask(script: LoopScript, run: RunSlots) -> ModelFound:
        asked = {"script": script.keywords, "run": run}
        if script.ranks != 1:
            return asked_of(script)
        if script not in found:
            told: dict[str, Any] = {}
            with suppress(OSError):  # The daemon has ended, which the line tells.
                daemon.send(asked)
                wait_for_first_step(daemon.fileno(), script)
                told = daemon.next() or {}
            if "status" not in told:
                raise RunError(f"the script could not be started: {told.get('error', 'the daemon has ended')}")
            files = [os.fdopen(daemon.files.popleft(), "rb") for _ in range(2)]
            with files[0] as answer, files[1] as output:
                found[script] = told_in(answer, output, told["status"], script)
        return found[script]

    ask_by(ask)


# -- in the script's process -------------------------------------------------------------------------------------------


def life_of_waiting(ahead: LoopAhead) -> LoopLife | None:
    """Wait for the life of this process, which has told of its model; None if there is to be no run. Meanwhile it loads
    what a host needs."""
    with os.fdopen(ahead.tells, "wb", 0) as tells, suppress(OSError):  # Nobody may hear it of another slot.
        tells.write(b".")
    _load_ahead()
    with os.fdopen(ahead.waits, "rb") as waits:
        text = waits.readline()
    if not text:
        return None
    outlive_parent()
    given = json.loads(text)
    _go_on_in(Path(given["log"]), tuple(given["output"]))
    return LoopLife(**given["life"])


def _load_ahead() -> None:
    """Load what the host of a life needs whatever its run is: its modules, and the default program. Not the kernels of
    answers and updates, which takes longer than all of that: the first answer is some steps after the first step."""
    from isthmus.programs.engine.run.plans_apart import load_ahead

    import_module("isthmus.programs.engine.run.loop_host")
    load_ahead()


def _go_on_in(log: Path, output: tuple[int, int]) -> None:
    """Have what goes into the file `output`, by device and inode, go into the log from now on, behind what is there."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # The script may have put anything there, or closed it.
            stream.flush()
    its = [number for number in (1, 2) if _file_of(number) == output]  # The script may have redirected them.
    with opened_log(log) as file:
        for number in its[:1]:
            _append(file, number)
        for number in its:
            os.dup2(file.fileno(), number)


def _append(log: BinaryIO, output: int) -> None:
    """Write what is in a file, by its descriptor, into a log; a disk that is full costs these lines."""
    offset = 0
    with suppress(OSError):
        while block := os.pread(output, COPIED_BYTES, offset):
            offset += os.write(log.fileno(), block)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of an open file; None for a descriptor that is closed."""
    with suppress(OSError):
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    return None
