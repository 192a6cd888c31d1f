"""For how long the user's code in a host's process has done nothing, as the kernel counts it (proc(5)).

Decides what is the user's: the threads of a process but ours, and the processes that it has started. A host has an
event loop, whose heartbeats use some of a core as long as it lives, so that the process as a whole is never idle: its
threads are told apart by their names, of which ours begin with OWN.

A look takes a millisecond or two; so only those processes are watched whose user's code has kept them for long.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar, final

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.system.refusals import ABSENT

OWN: Final = ("isthmus", "ZMQbg")
"""How the names of our threads begin: those that we name, and those that libzmq does."""
IDLE_CORES: Final = 0.01
"""The share of a core below which the user's code is idle: a process that waits wakes up some times a second."""
IDLE_BYTES: Final = 1000
"""Bytes a second that it reads and writes, below which it is idle."""
LOOK: Final = seconds(1)
"""Between two looks, at least: a hundredth of a core is 10 ms in it, which schedulers count in nanoseconds."""
PROCESSES_MAX: Final = 4096
"""Of one host, that are looked at."""

_UNSEEN: Final = ABSENT | {errno.ESRCH, errno.EACCES, errno.EPERM}
"""Of a process that has ended, or that the kernel does not show. Any other error is this process's own."""

_Key = TypeVar("_Key")


class Used(NamedTuple):
    """CPU time in nanoseconds, and bytes read and written."""

    cpu_ns: int
    size_bytes: int


@dataclass(slots=True)
class _Look:
    """The last look at one process: when, what each thread had used, and since when it has been idle."""

    at: Instant
    used: dict[tuple[int, int], Used]
    idle_since: Instant | None = None


@final
@dataclass(slots=True)
class IdleWatch(Generic[_Key]):
    """Watches processes, each by a key; `used_by` returns what the user's threads of one have used so far."""

    used_by: Callable[[int], Mapping[tuple[int, int], Used]]
    _looks: dict[_Key, _Look] = field(default_factory=dict)

    def look(self, pids: Mapping[_Key, int], now: Instant) -> dict[_Key, Duration]:
        """How long each has been idle; those that are not named any more are forgotten.

        0 while it works, and in the first second: nothing is known before a second look.
        """
        self._looks = {key: each for key, each in self._looks.items() if key in pids}
        for key, pid in pids.items():
            last = self._looks.get(key)
            if last is None:
                with suppress(OSError):
                    self._looks[key] = _Look(now, dict(self.used_by(pid)))
            elif now - last.at >= LOOK:
                try:
                    used = dict(self.used_by(pid))
                except OSError:  # This process cannot look: nothing is known, and so nothing is idle.
                    self._looks[key] = replace(last, idle_since=None)
                    continue
                is_idle = _is_idle(last.used, used, now - last.at)
                since = (last.idle_since if last.idle_since is not None else last.at) if is_idle else None
                self._looks[key] = _Look(now, used, since)
        idle_since = {key: None if key not in self._looks else self._looks[key].idle_since for key in pids}
        return {key: Duration(0 if since is None else now - since) for key, since in idle_since.items()}


def _is_idle(before: Mapping[tuple[int, int], Used], after: Mapping[tuple[int, int], Used], lasted: int) -> bool:
    """Whether so little was used between two looks; what a thread had used that has ended since is not known."""
    nothing = Used(0, 0)
    cpu_ns = sum(max(0, used.cpu_ns - before.get(thread, nothing).cpu_ns) for thread, used in after.items())
    size = sum(max(0, used.size_bytes - before.get(thread, nothing).size_bytes) for thread, used in after.items())
    return cpu_ns < IDLE_CORES * lasted and size < IDLE_BYTES * lasted / 1e9


def used_in(pid: int, apart: Collection[int] = ()) -> dict[tuple[int, int], Used]:
    """What each thread of the user's has used in a process and in those that it has started, by (thread, its start in
    clock ticks). OSError where this process has no descriptor left to look."""
    used: dict[tuple[int, int], Used] = {}
    for process in family(pid, apart):
        for thread in _listed(f"/proc/{process}/task"):
            folder = f"/proc/{process}/task/{thread}"
            if not _text(f"{folder}/comm").startswith(OWN) and (stat := _stat(f"{folder}/stat")):
                used[int(thread), int(stat[19])] = Used(_cpu_ns(folder, stat), _moved_bytes(f"{folder}/io"))
    return used


def family(pid: int, apart: Collection[int] = ()) -> list[int]:
    """A process, those that it has started, and, where it leads a session, those of that session; but those `apart`
    with what these have started."""
    parents, session = dict[int, int](), set[int]()
    for name in _listed("/proc"):
        if name.isdigit() and (stat := _stat(f"/proc/{name}/stat")) and stat[0] != "Z":
            parents[int(name)] = int(stat[1])
            if int(stat[3]) == pid:
                session.add(int(name))
    children: dict[int, list[int]] = {}
    for each, parent in parents.items():
        children.setdefault(parent, []).append(each)
    found, left = dict[int, None](), [pid, *sorted(session)]
    while left and len(found) < PROCESSES_MAX:
        each = left.pop()
        if each not in found and each not in apart and each in parents:
            found[each] = None
            left += children.get(each, [])
    return list(found)


def _cpu_ns(folder: str, stat: list[str]) -> int:
    """The CPU time of a thread; in nanoseconds where the kernel keeps them, else in ticks."""
    counts = _text(f"{folder}/schedstat").split()
    if counts and counts[0].isdecimal() and int(counts[0]):
        return int(counts[0])
    return (int(stat[11]) + int(stat[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))


def _moved_bytes(path: str) -> int:
    """What a thread has read and written, through caches or not; 0 where the kernel does not say."""
    return sum(int(value) for name, value in _pairs(_text(path)) if name in ("rchar", "wchar") and value.isdecimal())


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in _UNSEEN:
            return []
        raise


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        if error.errno in _UNSEEN:
            return ""
        raise


def _stat(path: str) -> list[str]:
    """The fields of a stat from the state on; the name before it may contain anything."""
    return _text(path).rpartition(")")[2].split()
