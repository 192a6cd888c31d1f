"""The fork server: `python -m isthmus.programs.engine.run.fork_server RUN TASK LINE`, which starts the hosts that
compute.

Importing jax and tracing a training step takes longer than everything else that a learner does before its first step.
So it is done once for a run: this process imports the task, lets the bodies prepare everything that needs no device and
no thread, and then forks a host whenever its daemon requests one; pages that no process writes are shared. It is safe
to fork as long as there is only one thread. Where the task has started others, or cannot be prepared, this process
reports that, and the daemon starts such hosts from nothing.

Started by a daemon, never by hand. LINE is the number of its end of the line to it, TASK the reference of the task of
its hosts: where slots train different tasks, each has a fork server, which imports that one alone. Once all is prepared
this process sends {ready}; then a request is {name, incarnation, endpoint}, the answer {pid} or {refused}. A host is
forked twice, so that it becomes a child of the daemon, which is the nearest subreaper. It waits in this process group
until its pid has been sent, and ends if this process does before: a request without an answer leaves nothing
(`ForkLink`). So does a spare, which is forked before there is a request for it.

Without its daemon this process ends: the kernel kills it, even where it is stopped or busy with the user's task.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.environment import has_backend, prepare_environment
from isthmus.programs.engine.run import host_process, spare
from isthmus.programs.engine.run.logs import PLAIN_SERVER_LOG, log_of, opened_log
from isthmus.programs.engine.run.plans_apart import PlanMaker, plans_of
from isthmus.runtime.graph.body import has
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.system import phases
from isthmus.runtime.system.children import serve_line
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.pidfds import pidfd_open
from isthmus.runtime.system.processes import end_after, name_process
from isthmus.runtime.system.waiting import readable

TITLE: Final = "isthmus fork-server"
"""Title of this process, once its daemon can read that it is ready."""
PROCESS: Final = "fork server"
"""Its name among the phases of a start."""
PLAIN_TITLE: Final = "isthmus plain-server"
PID_BYTES_MAX: Final = 20


def main(arguments: list[str]) -> int:
    """Prepare, then fork on request until the daemon is gone."""
    folder, task, line = arguments
    daemon = serve_line("fork-server preparing", line)
    gc.disable()  # As in `preparing`.
    prepare_environment(1)
    return serve(Path(folder), daemon, task, has_graph=False)


def serve(folder: Path, daemon: ProcessLine, task: str, *, has_graph: bool = True) -> int:
    """The same; in a process that has the graph, and the task, because it has prepared the run (`preparing`)."""
    name_process("isthmus fork-server preparing")
    refusal, plans, body = _prepared(folder, task, has_graph=has_graph)
    return _serve(folder, daemon, refusal, plans, PROCESS, TITLE, body)


def serve_plain(daemon: ProcessLine) -> int:
    """Fork the hosts of a run that do not compute, which need neither jax nor the task.

    The run folder is the first message: the kernels of syncers, and what makes plans, are loaded before.
    """
    name_process(f"{PLAIN_TITLE} preparing")
    maker = PlanMaker()
    _load_kernels()
    run = daemon.next()
    if run is None:
        maker.end()
        return 0
    folder = Path(run["folder"])
    redirect_output(folder, PLAIN_SERVER_LOG)
    refusal = ""
    plans: Mapping[str, Plan] = {}
    try:
        plans = plans_of(spec.load(folder), folder, maker)
    except BaseException:
        refusal = f"preparing the hosts failed:\n{traceback.format_exc()}"
    refusal = refusal or _threads()
    return _serve(folder, daemon, refusal, plans, "plain fork server", PLAIN_TITLE)


def _load_kernels() -> None:
    """Load the kernels of syncers, which leaves one thread."""
    from isthmus.ops.kernels import averaging, coding, nesterov

    averaging.warm()
    coding.warm_answers()
    coding.warm_updates()
    nesterov.warm()


def redirect_output(folder: Path, name: str) -> None:
    """Have a log of the run for standard output and errors, and nothing for input."""
    (folder / "logs").mkdir(exist_ok=True)
    with opened_log(folder / "logs" / name) as log, Path(os.devnull).open("rb") as nothing:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)


def _serve(
    folder: Path,
    daemon: ProcessLine,
    refusal: str,
    plans: Mapping[str, Plan],
    process: str,
    title: str,
    spare_body: Any = None,
) -> int:
    """Fork on request until the daemon is gone, or refuse to."""
    gc.freeze()
    gc.enable()
    with suppress(ConnectionError):  # The daemon died between a request and its answer.
        daemon.send({"ready": True})
        phases.note(folder, process, "ready")
        name_process(title)
        forks = Forks(folder, daemon, plans, spare_body)
        while request := forks.next_request():
            if refusal:
                daemon.send({"refused": refusal})
            else:
                forks.serve(request)
    return 0


class _WaitingProcess(NamedTuple):
    """A forked process, a child of the daemon, that waits for its request; without one it ends with this process."""

    pid: int
    watch: int
    """Readable once it has ended."""
    held: int
    """The end at which it reads. This process has it, too, and writes in vain to one that was killed."""
    line: int

    def begin(self, request: dict[str, Any]) -> None:
        """Let it be that host."""
        os.write(self.line, json.dumps(request).encode() + b"\n")

    def close(self) -> None:
        """Close what this process has of it."""
        for each in (self.watch, self.held, self.line):
            os.close(each)


class Forks:
    """The hosts of a run that are forked here, and, where one is wanted, the spare: forked before its request, so that
    a learner's next life has compiled everything when the last one dies (`spare`)."""

    def __init__(self, folder: Path, daemon: ProcessLine, plans: Mapping[str, Plan], spare_body: Any = None) -> None:
        self._folder, self._daemon, self._plans = folder, daemon, plans
        self._body = spare_body
        self._spare: _WaitingProcess | None = None
        self._requests: deque[dict[str, Any]] = deque()

    def next_request(self) -> dict[str, Any] | None:
        """The next request; meanwhile a spare is forked, once no host was for some time."""
        while not self._requests:
            self._requests += self._daemon.hear()
            if self._daemon.is_over or self._requests:
                break
            wants = self._body is not None and self._spare is None
            if not readable([self._daemon], spare.AFTER_SECONDS if wants else None):
                self._fork_spare()
        return self._requests.popleft() if self._requests else None

    def serve(self, request: dict[str, Any]) -> None:
        """Fork a host, or take the spare; send its pid once it is a child of the daemon, which may wait for it; then
        let it start."""
        try:
            host = self._taken(request) or self._forked(None)
        except OSError as error:
            self._daemon.send({"refused": f"it could not be forked: {error}"})
            return
        try:
            self._daemon.send({"pid": host.pid})
            host.begin(request)
        finally:
            host.close()

    def _taken(self, request: dict[str, Any]) -> _WaitingProcess | None:
        """The spare, if it lives and is for such a host."""
        taken = self._spare
        if taken is None or Replica.parse(request["name"]).role != LEARNER:
            return None
        self._spare = None
        if not readable([taken.watch], 0.0):
            return taken
        taken.close()
        return None

    def _fork_spare(self) -> None:
        run_spec = spec.load(self._folder)
        if not spare.has_room(run_spec):
            self._body = None
            return
        try:
            self._spare = self._forked(lambda: spare.warm(self._folder, run_spec, self._body))
        except OSError:  # No room for a process: the next life is forked then, or refused.
            self._body = None

    def _forked(self, warm: Callable[[], None] | None) -> _WaitingProcess:
        """A process that waits for its request, once it is warm. OSError if there cannot be one."""
        cores = os.sched_getaffinity(0)
        reader, writer = os.pipe()
        held, line = os.pipe()
        try:
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.close(line)
                if self._spare is not None:
                    self._spare.close()
                self._fork_host(writer, held, warm, cores)
            os.close(writer)
            writer = -1
            host = os.read(reader, PID_BYTES_MAX)
            os.waitpid(child, 0)
            if not host:
                raise OSError("no room for another process")
            return _WaitingProcess(int(host), pidfd_open(int(host)), held, line)
        except BaseException:
            os.close(held)
            os.close(line)
            raise
        finally:
            for each in (reader, writer):
                if each != -1:
                    os.close(each)

    def _fork_host(self, writer: int, held: int, warm: Callable[[], None] | None, cores: Collection[int]) -> None:
        """In the child: fork a grandchild, write its pid to `writer`, end. The grandchild waits for a request."""
        try:
            host = os.fork()
        except OSError:
            os._exit(1)
        if host:
            os.write(writer, str(host).encode())
            os._exit(0)
        end_after(lambda: self._serve_host(writer, held, warm, cores))

    def _serve_host(self, writer: int, held: int, warm: Callable[[], None] | None, cores: Collection[int]) -> int:
        """In the grandchild: run the host, once the daemon knows this process."""
        self._daemon.close()
        os.close(writer)
        if warm is not None:
            warm()
        with os.fdopen(held, "rb") as requests:
            asked = requests.readline()
        if not asked:
            return 0
        os.setsid()
        request = json.loads(asked)
        replica = Replica.parse(request["name"])
        redirect_output(self._folder, log_of(self._folder, replica).name)
        arguments = [str(self._folder), request["name"], str(request["incarnation"]), request["endpoint"]]
        if warm is None:
            return host_process.main(arguments, self._plans)
        return host_process.serve(arguments, self._plans, time.monotonic_ns(), cores)


def _prepared(folder: Path, task: str, *, has_graph: bool) -> tuple[str, Mapping[str, Plan], Any | None]:
    """Prepare every host of a task that may be requested; returns why hosts cannot be forked, or '', the plans, and the
    body that a spare warms, if there is to be one."""
    plans: Mapping[str, Plan] = {}
    body = None
    try:
        run_spec = spec.load(folder)
        sys.argv = list(run_spec.settings.argv)
        if has_graph:
            plans = run_spec.plans()
        else:  # To import the task takes longer than to make them.
            plans = plans_of(run_spec, folder, meanwhile=lambda: reference.resolve(Reference(task)))
        for role in run_spec.computing:
            if role == LEARNER or run_spec.task_of(Replica(role, 0)) == task:
                for node in plans[role].nodes:
                    _prepare(node, task, run_spec.job.task)
        if spare.is_wanted(run_spec):
            body = spare.body_of(plans[LEARNER], lambda value: _resolved(value, task, run_spec.job.task))
    except BaseException:
        return f"preparing the hosts failed:\n{traceback.format_exc()}", plans, None
    if has_backend():
        return "tracing the task has started a backend of jax, which each host starts for itself", plans, None
    return _threads(), plans, body


def _threads() -> str:
    """Why this process cannot be forked, if it has threads."""
    threads = len(os.listdir("/proc/self/task"))
    return f"the task has started {threads - 1} threads, and with threads no process can be forked" * (threads > 1)


def _prepare(node: Any, task: str, of_run: Reference) -> None:
    """Let a body prepare once what each of its hosts would otherwise repeat; `task` stands for the run's."""
    if has(node.body, "prepare"):
        keywords = {name: _resolved(value, task, of_run) for name, value in node.keywords.items()}
        node.body(*(_resolved(value, task, of_run) for value in node.arguments), **keywords).prepare()


def _resolved(value: Any, task: str, of_run: Reference) -> Any:
    """An argument of a body; `task` stands for the run's."""
    if not isinstance(value, Reference):
        return value
    return reference.resolve(Reference(task) if value == of_run else value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
