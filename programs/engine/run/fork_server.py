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
(`ForkLink`).

Without its daemon this process ends: the kernel kills it, even where it is stopped or busy with the user's task.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.environment import has_backend, prepare_environment
from isthmus.programs.engine.run import host_process
from isthmus.programs.engine.run.logs import PLAIN_SERVER_LOG, log_of, opened_log
from isthmus.programs.engine.run.plans_apart import PlanMaker, plans_of
from isthmus.runtime.graph.body import has
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.system import phases
from isthmus.runtime.system.children import serve_line
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import end_after, name_process

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
    refusal, plans = _prepared(folder, task, has_graph=has_graph)
    return _serve(folder, daemon, refusal, plans, PROCESS, TITLE)


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


def _serve(folder: Path, daemon: ProcessLine, refusal: str, plans: Mapping[str, Plan], process: str, title: str) -> int:
    """Fork on request until the daemon is gone, or refuse to."""
    gc.freeze()
    gc.enable()
    with suppress(ConnectionError):  # The daemon died between a request and its answer.
        daemon.send({"ready": True})
        phases.note(folder, process, "ready")
        name_process(title)
        while request := daemon.next():
            if refusal:
                daemon.send({"refused": refusal})
            else:
                _fork(folder, daemon, request, plans)
    return 0


def _fork(folder: Path, daemon: ProcessLine, request: dict[str, Any], plans: Mapping[str, Plan]) -> None:
    """Fork a host; send its pid once it is a child of the daemon, which may wait for it; then let the host start."""
    reader, writer = os.pipe()
    held, let_go = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.close(let_go)
            _fork_host(folder, daemon, writer, held, request, plans)
        os.close(writer)
        writer = -1
        host = os.read(reader, PID_BYTES_MAX)
        os.waitpid(child, 0)
        if not host:
            raise OSError("no room for another process")
        daemon.send({"pid": int(host)})
        os.write(let_go, b"!")  # This process holds the other end, too: the host may have been killed by now.
    except OSError as error:  # If the cause is a dead daemon, this raises again.
        daemon.send({"refused": f"it could not be forked: {error}"})
    finally:
        for each in (reader, writer, held, let_go):
            if each != -1:
                os.close(each)


def _prepared(folder: Path, task: str, *, has_graph: bool) -> tuple[str, Mapping[str, Plan]]:
    """Prepare every host of a task that may be requested; returns why hosts cannot be forked, or '', and the plans."""
    plans: Mapping[str, Plan] = {}
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
    except BaseException:
        return f"preparing the hosts failed:\n{traceback.format_exc()}", plans
    if has_backend():
        return "tracing the task has started a backend of jax, which each host starts for itself", plans
    return _threads(), plans


def _threads() -> str:
    """Why this process cannot be forked, if it has threads."""
    threads = len(os.listdir("/proc/self/task"))
    return f"the task has started {threads - 1} threads, and with threads no process can be forked" * (threads > 1)


def _prepare(node: Any, task: str, of_run: Reference) -> None:
    """Let a body prepare once what each of its hosts would otherwise repeat; `task` stands for the run's."""

    def resolved(value: Any) -> Any:
        if not isinstance(value, Reference):
            return value
        return reference.resolve(Reference(task) if value == of_run else value)

    if has(node.body, "prepare"):
        keywords = {name: resolved(value) for name, value in node.keywords.items()}
        node.body(*map(resolved, node.arguments), **keywords).prepare()


def _fork_host(
    folder: Path, daemon: ProcessLine, writer: int, held: int, request: dict[str, Any], plans: Mapping[str, Plan]
) -> None:
    """In the child: fork a grandchild, write its pid to `writer`, end. The grandchild waits for a byte on `held`."""
    try:
        host = os.fork()
    except OSError:
        os._exit(1)
    if host:
        os.write(writer, str(host).encode())
        os._exit(0)
    end_after(lambda: _serve_host(folder, daemon, writer, held, request, plans))


def _serve_host(
    folder: Path, daemon: ProcessLine, writer: int, held: int, request: dict[str, Any], plans: Mapping[str, Plan]
) -> int:
    """In the grandchild: run the host, once the daemon knows this process."""
    daemon.close()
    os.close(writer)
    if not os.read(held, 1):
        return 0
    os.close(held)
    os.setsid()
    replica = Replica.parse(request["name"])
    redirect_output(folder, log_of(folder, replica).name)
    arguments = [str(folder), request["name"], str(request["incarnation"]), request["endpoint"]]
    return host_process.main(arguments, plans)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
