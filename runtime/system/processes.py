"""Processes, as the kernel sees them: how they compute, end, and are weighed and identified (proc(5)).

What the kernel knows of a process is asked here, and one is ended. What a process is for does not come in, and none is
started: its starter decides when, and what becomes of it.

`ONE_THREAD` makes numeric libraries compute in the calling thread only; it has to be set before they are loaded.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal

XLA_FLAGS: Final = " ".join(
    (
        "--xla_cpu_multi_thread_eigen=false",  # An operation is not split.
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",  # Operations follow each other, none beside another.
        "--xla_cpu_experimental_ynn_fusion_type=",  # Nor by YNNPACK: another thread does what follows a product.
    )
)
"""For the CPU alone: other devices do not look at them."""

ONE_THREAD: Final[Mapping[str, str]] = MappingProxyType(
    {"XLA_FLAGS": XLA_FLAGS, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
)


def environment(*, computes: bool) -> dict[str, str]:
    """The environment of a host process: those that compute share the cores of a machine, so each has one.

    NPROC=1 sizes XLA's pool of threads; it alone keeps no operation from splitting.
    """
    return {**ONE_THREAD, "NUMBA_NUM_THREADS": "1", **({"NPROC": "1"} if computes else {}), **os.environ}


def check_linux(doing: str) -> None:
    """ConfigError unless this is Linux.

    Processes are watched by pidfds and told apart by /proc, die with their parent by prctl(2), and wait with epoll(7).
    Other systems have other means for each, none of which was tried.
    """
    if not sys.platform.startswith("linux"):
        expected = "Linux, for pidfd_open, prctl, epoll and /proc"
        do = "Use a Linux machine, or a virtual machine or container of Linux here; other systems are untested."
        raise ConfigError(doing, expected, f"the system {sys.platform!r}", do)


DESCRIPTORS_MIN: Final = 32
"""Of a command that starts no run: one has seven of its own, and opens some more while it imports."""


def check_descriptors(doing: str, needed: int = DESCRIPTORS_MIN, *, has_own: bool = False) -> None:
    """ConfigError if a process may not have so many files open, beside those that this one has if it `has_own`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed += len(os.listdir("/proc/self/fd")) if has_own else 0
    if soft != resource.RLIM_INFINITY and soft < needed:
        may_raise = hard == resource.RLIM_INFINITY or hard >= needed
        do = f"Raise the limit: ulimit -n {needed}." if may_raise else "Have the hard limit raised (LimitNOFILE=)."
        raise ConfigError(doing, f"{needed} open files for a process (ulimit -n)", f"a limit of {soft}", do)


PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def name_process(title: str, name: str = "") -> None:
    """Give this process a title, its command line, and, cut to 15 bytes and without a space or slash, its name, which
    is the title's where no other is given: its threads inherit it.

    Slurm's proctrack/linuxproc cannot parse a /proc/PID/stat with a space in the name: it signals nothing of the job
    then, and drains the node.
    """
    from setproctitle import setproctitle  # A bench that computes in one process, on a bare machine, goes without.

    setproctitle(title)  # Sets the name, too, to the beginning of the title.
    name_thread(name or title)


def name_thread(name: str) -> None:
    """Name this thread, for the kernel and whoever asks it (prctl(2)); that of the first one is its process's name."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.replace(" ", "-").replace("/", "-").encode(), 0, 0, 0)


def signal_name(number: int) -> str:
    """The name of a signal, of which the kernel has 64 and Python names some: SIGKILL, SIGRTMIN+6."""
    try:
        return signal.Signals(number).name
    except ValueError:
        least = int(signal.SIGRTMIN)
        return f"SIGRTMIN+{number - least}" if least < number < signal.SIGRTMAX else f"SIG{number}"


def status_name(status: int) -> str:
    """An exit status, negative for a signal, as subprocess has it: "status 1", "signal SIGKILL"."""
    return f"signal {signal_name(-status)}" if status < 0 else f"status {status}"


STACKS: Final = int(signal.SIGRTMIN) + 8
"""The signal at which a process of a user's script prints where its threads are: one that nothing else uses."""


RANKS_HUNG: Final = 121
"""The exit status of the ranks of an island of which none did anything for too long: they are ended together."""
RANKS_HANG: Final = "isthmus: the ranks of this island hang"
"""How what is printed of them before that begins; a place of each follows, as faulthandler prints it."""


def print_stacks_at_signal() -> None:
    """Have this process print file and line of each of its threads on standard error at the signal STACKS, even where
    one of them holds the interpreter."""
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # Standard error has no descriptor, for example.
        faulthandler.register(STACKS, file=sys.stderr, all_threads=True)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (proc(5), SigCgt)."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent is gone, even while it is stopped or busy (prctl(2)).

    Processes that it forks do not inherit that. If its parent should be `parent`, and is gone by now, end at once.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end."""


def unblock() -> None:
    """Undo a mask that keeps them from this process. To be called at its start, before it has threads."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def follow_daemon() -> None:
    """Have none of them end this process, which its daemon ends. To be called at its start, before it has threads.

    A handler that does nothing: programs that user code starts have the default again, and so have its forked
    processes, by `register_at_fork`; signals that are ignored would stay ignored there, and `terminate()` end nothing.
    """
    unblock()
    for number in ENDING:
        signal.signal(number, _nothing)
    os.register_at_fork(after_in_child=_restore)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The handler of a process that follows its daemon."""


def _restore() -> None:
    for number in ENDING:
        if signal.getsignal(number) is _nothing:
            signal.signal(number, signal.SIG_DFL)


def end_after(work: Callable[[], int]) -> NoReturn:
    """Do the work, and end this process with the status that it returns, 1 where it raises.

    At once: an interpreter that is shut down while threads of libraries still run may abort, and its host would count
    as killed. A forked child never returns to its parent's code.
    """
    status = 1
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class SignalMasks(NamedTuple):
    """The names of signals that a process blocks, and of those that it ignores."""

    blocked: tuple[str, ...]
    ignored: tuple[str, ...]


def signal_masks() -> SignalMasks:
    """What this thread blocks and this process ignores; at the start of a process it is what its parent left to it."""
    blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    ignored = [each for each in signal.Signals if signal.getsignal(each) is signal.SIG_IGN]
    return SignalMasks(tuple(map(signal_name, blocked)), tuple(each.name for each in ignored))


NICENESS: Final = 5
"""As that of threads that compute (`ops.island.life`): a third of the weight."""
BESIDE_NICENESS: Final = 13
"""Of what computes beside learners, for a long time, and is awaited by none of them: a sixth of a learner's weight. On
a core that it shares with one it takes a seventh, and so it comes to its end; on an idle core it takes the whole."""
_GROUP: Final = Path("/proc/self/autogroup")


def lower_priority(niceness: int = NICENESS) -> None:
    """Let other sessions go before this one from now on: those that have little to do, and hosts that begin.

    Every host leads a session. Where the kernel groups processes by session (sched(7), "The autogroup feature"; on most
    desktops and virtual machines), the nice level of a thread means nothing to other sessions: that of the group does.
    Elsewhere there is no such group, or it has no effect.
    """
    with suppress(OSError, ValueError):  # No such group, or it is not to be changed here.
        if int(_GROUP.read_text().rpartition(" ")[2]) < niceness:
            _GROUP.write_text(str(niceness))


def lower_other_threads(niceness: int) -> None:
    """Give all threads of this process but the one that calls a nice level, where theirs is lower; those that they
    start inherit it."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # It has ended.
            if thread != threading.get_native_id() and os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)


def cpu_seconds(*, with_children: bool = False) -> float:
    """CPU seconds of this process; `with_children`: and of those children that it has waited for."""
    used = [resource.getrusage(resource.RUSAGE_SELF)]
    used += [resource.getrusage(resource.RUSAGE_CHILDREN)] if with_children else []
    return sum(each.ru_utime + each.ru_stime for each in used)


def began_ns() -> int:
    """When this process was started or forked, in nanoseconds of the monotonic clock; the kernel counts in ticks, of
    mostly 10 ms."""
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return int(_stat(os.getpid())[19]) * (10**9 // os.sysconf("SC_CLK_TCK")) - suspended


def boot_id() -> bytes:
    """The id of this machine's present boot; in a container that hides it, what tells its present start from others: a
    setting of the clock must not look like one, so the time of the boot will not do."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except (FileNotFoundError, PermissionError):
        return f"process 1 started at {started_at(1)}".encode()


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none of that pid, or it is a zombie. OSError
    where this process has no descriptor left to look."""
    fields = _stat(pid)
    return None if not fields or fields[0] == "Z" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether a process is known to be stopped, by a signal or a debugger, as the kernel reports it (proc(5))."""
    with suppress(OSError):
        fields = _stat(pid)
        return bool(fields) and fields[0] in ("T", "t")
    return False


def kill_if(pid: int, is_it: Callable[[int], bool]) -> None:
    """Kill a process if it is the one that is meant, and its number no stranger's by now; ProcessLookupError if it has
    ended. Without a descriptor for it, it is looked at just before."""
    try:
        watch = pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # This process has none left.
        if is_it(pid):
            os.kill(pid, signal.SIGKILL)
        return
    try:
        if is_it(pid):
            pidfd_send_signal(watch, signal.SIGKILL)
    finally:
        os.close(watch)


SCANS_MAX: Final = 20
"""A process may fork between a look at its session and its end; each that is killed forks no more."""


def kill_session(leader: int) -> None:
    """Kill all other processes of the session that `leader` leads, or has led: what it started ends with it. OSError
    where this process has no descriptor left to look for them.

    Call it before the leader is reaped: until then no other process can have its number. Where it was another process's
    child, a living process with the number is a stranger, whose session is left alone.
    """
    if leader != os.getpid() and started_at(leader) is not None:
        return
    for _ in range(SCANS_MAX):
        others = [pid for pid in _session(leader) if pid not in (leader, os.getpid())]
        for pid in others:
            with suppress(ProcessLookupError, PermissionError):  # The latter has become another user's.
                kill_if(pid, lambda pid: _stat(pid)[_SESSION : _SESSION + 1] == [str(leader)])
        if not others:
            return


_LEADING: Final = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"


def spawn_leader(command: list[str], variables: Mapping[str, str], files: Sequence[tuple[Any, ...]]) -> int:
    """Start a Python program as the leader of a session, with the actions of posix_spawn(3) on `files`; its pid.
    OSError if there is no room for it."""
    try:
        return os.posix_spawn(command[0], command, variables, file_actions=files, setsid=True)
    except NotImplementedError:  # The interpreter was built with glibc before 2.26, as those of conda are.
        leading = [command[0], "-I", "-S", "-c", _LEADING, *command]
        return os.posix_spawn(command[0], leading, variables, file_actions=files)


def end_child(pid: int) -> int:
    """Kill a child of this process that leads a session, and what it started, and reap it; returns its exit status,
    negative for a signal. ChildProcessError if it is no child."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        kill_session(pid)
    finally:
        status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


_SESSION: Final = 3


def _session(leader: int) -> list[int]:
    """The living processes of a session, but zombies."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    fields = {pid: _stat(pid) for pid in numbers}
    return [pid for pid, each in fields.items() if each and each[0] != "Z" and each[_SESSION] == str(leader)]


def _stat(pid: int) -> list[str]:
    """The fields of a process's stat, from its state on; empty where there is no such process. OSError where this one
    cannot look, which says nothing about the other."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # /proc may hide the processes of other users.
        return []
    # The name in parentheses may contain anything, so the fields are counted from its end; the state is the first.
    return text.rpartition(")")[2].split()
