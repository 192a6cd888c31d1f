"""A host's part in an elastic island: in which form the island trains, and in which process it computes.

Decides what a host knows of the others, from the rosters that daemons send; it forms no island itself.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, final

import msgspec

from isthmus.programs.engine.islands.gang import TOKEN_BYTES
from isthmus.programs.wings.elastic import copies
from isthmus.programs.wings.elastic.copies import WorkerPlace
from isthmus.runtime.host.contract import IslandDevices, IslandProcesses
from isthmus.runtime.ids import Member, follower, gang_number, leader
from isthmus.runtime.supervision.messages import Form, Formed
from isthmus.runtime.system import addresses
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import die_with_parent, end_after, follow_daemon, name_process

Work = Callable[[Mapping[str, Any], Connection], None]
"""The work of a worker: it serves a connection, given the arguments of `start`."""


@final
class WorkerForker:
    """The host's end of its forker; made before the host has threads. `work` runs in each worker.

    A process that has threads cannot be forked, and a host has; so it forks a forker before it has any, which has none,
    and has all imported and traced that the host had. The forker forks a worker whenever the host requests one, and
    ends the one before. Both end with the host: the kernel kills the forker when the host is gone, and the worker when
    the forker is.
    """

    def __init__(self, name: str, work: Work) -> None:
        self._line, its = ProcessLine.pair()
        host = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            end_after(lambda: _serve(ProcessLine(its), name, work, host))
        its.close()
        self._worker = 0
        self._connection: Connection | None = None

    def start(self, worker_spec: Mapping[str, Any]) -> Connection:
        """Start a worker; returns the connection to it. OSError if there is no room for the process."""
        self.end()
        ours, its = socket.socketpair()
        with its:
            self._line.send({"begin": worker_spec}, [its.fileno()])
            answer = self._line.next()
        if answer is None:
            ours.close()
            raise OSError("beginning a process that computes: what begins them has ended")
        self._connection = Connection(ours.detach())
        self._worker = int(answer["pid"])
        if not self._worker:
            raise OSError(f"beginning a process that computes: {answer['error']}")
        return self._connection

    def end(self) -> None:
        """End the worker, if any; it has ended when this returns."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._worker:
            self._worker = 0
            self._line.send({"end": True})
            self._line.next()

    def cpu_seconds(self) -> float:
        """CPU seconds of the forker and its workers."""
        return sum(_used(pid, with_children=pid == self._pid) for pid in (self._pid, self._worker) if pid)


def _used(pid: int, *, with_children: bool) -> float:
    """The CPU seconds of a process, and of its ended children (proc_pid_stat(5)); 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


def _serve(host: ProcessLine, name: str, work: Work, parent: int) -> int:
    """The forker: start and end workers until the host is gone."""
    die_with_parent(parent)
    follow_daemon()
    name_process(f"isthmus {name} forker")
    worker = 0
    while asked := host.next():
        if worker:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            worker = 0
        answer: dict[str, Any] = {"pid": 0}
        if "begin" in asked:
            connection = host.files.popleft()
            begun = partial(_work, host, connection, os.getpid(), name, work, asked["begin"])
            try:
                worker = os.fork()
                if worker == 0:
                    end_after(begun)
                answer = {"pid": worker}
            except OSError as error:
                answer = {"pid": 0, "error": str(error)}
            os.close(connection)
        with suppress(OSError):
            host.send(answer)
    return 0


def _work(
    host: ProcessLine, descriptor: int, forker: int, name: str, work: Work, worker_spec: Mapping[str, Any]
) -> int:
    """A worker."""
    die_with_parent(forker)
    follow_daemon()
    host.close()
    name_process(f"isthmus {name} worker")
    work(worker_spec, Connection(descriptor))
    return 0


class _OfNumbers(NamedTuple):
    """A form, as the processes of its island know each other."""

    number: int
    members: tuple[tuple[int, int], ...]


@final
class ElasticHost(IslandProcesses):
    """The host side of one of the at most `size` processes of an island, in its life as `member`.

    `workers` is there once this host has begun. OSError if the leader cannot listen at `address`.

    Daemons announce in which form each island trains; the leader's host reports in its heartbeat in which it does, so
    that the home knows the result. Announcements arrive in the loop's thread; a node's thread reads them.
    """

    def __init__(self, member: Member, size: int, address: str) -> None:
        first = leader(member.replica)
        self.number, self.incarnation = gang_number(member.replica), member.incarnation
        self.names = (str(first), *(str(follower(first, number)) for number in range(1, size)))
        self.files = copies.open_files()
        self.token = secrets.token_hex(TOKEN_BYTES)
        self.door = addresses.serve(address, 0, size) if self.number == 0 else None
        self.workers: WorkerForker | None = None
        self._leader = first
        self._announced = threading.Event()
        self._form: _OfNumbers | None = None
        self._leader_at: dict[int, tuple[str, str]] = {}
        self._formed = Formed()
        self._is_forming = False

    def kind(self, island: IslandDevices) -> Any:
        from isthmus.programs.wings.elastic.elastic_kind import ElasticKind

        return ElasticKind(self)

    def begin(self, island: IslandDevices, body: Callable[[], Any], seed: int, slot: int) -> None:
        """Start the forker, which forks workers, while this process has no threads."""
        place = WorkerPlace(self.files, self.door, self.token, island.devices, island.kinds)

        def work(worker_spec: Mapping[str, Any], host: Connection) -> None:
            from isthmus.programs.wings.elastic import worker

            worker.work(body().computes(seed, slot), worker_spec, host, seed=seed, slot=slot, place=place)

        self.workers = WorkerForker(self.names[self.number], work)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The leader's endpoint and token; empty for a follower."""
        if self.door is None:
            return ()
        return addresses.text_of(*self.door.getsockname()[:2]), self.token

    # -- in the loop's thread ------------------------------------------------------------------------------------------

    def on_roster(self, rows: Sequence[Sequence[Any]], forms: Sequence[Form]) -> None:
        """Take in a roster: rows of (replica, incarnation, endpoints, machine), and the forms of elastic islands."""
        for name, incarnation, endpoints, _ in rows:
            if name == self.names[0] and len(endpoints) == 2:
                self._leader_at = {incarnation: (endpoints[0], endpoints[1])}
        for form in forms:
            if form.leader == self._leader and (self._form is None or form.number > self._form.number):
                members = tuple((gang_number(each.replica), each.incarnation) for each in form.members)
                self._form = _OfNumbers(form.number, members)
        self._announced.set()

    @property
    def form_result(self) -> Formed:
        """This host's result of the newest form."""
        return self._formed

    @property
    def is_forming(self) -> bool:
        """Whether computation pauses, because processes form an island."""
        return self._is_forming

    def cpu_seconds(self) -> float:
        """CPU seconds of the processes that compute for this host."""
        return 0.0 if self.workers is None else self.workers.cpu_seconds()

    # -- in a node's thread --------------------------------------------------------------------------------------------

    def form(self) -> _OfNumbers | None:
        return self._form

    def find(self, incarnation: int) -> tuple[str, str] | None:
        return self._leader_at.get(incarnation)

    def wait(self, seconds: float) -> None:
        self._announced.wait(seconds)
        self._announced.clear()

    def forming(self, broken: int) -> None:
        self._is_forming = True
        self._formed = msgspec.structs.replace(self._formed, broken=broken)  # The last report may be unheard yet.

    def formed(self, number: int, processes: int, stall: int, again: int) -> None:
        self._formed = Formed(number=number, processes=processes, stall_ns=stall, again=again)
        self._is_forming = False
