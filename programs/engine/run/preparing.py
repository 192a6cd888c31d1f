"""The processes that prepare requests, so that the command which asks imports neither jax nor the task.

`in_child` prepares in a child, which ends with the answer. `DaemonAhead` is for a run that starts here: what the run
needs anyway is started before its request is known to be right, and does nothing but import. The command forks a
process that becomes the run's daemon, which imports what daemons need and waits; and this one forks, before, the
process that prepares the request. It has jax, the task and what was traced of it by then, so that it goes on as the
fork server of the run (`fork_server`): a second process would import and trace all of that again. It is the daemon's
child from the start, because hosts that it forks have to become the daemon's.

    command --- forks ---> daemon (waits for a folder and its lock) --- has forked ---> preparer, then fork server
                                                                                   ---> plain fork server (waits, too)

The *plain* fork server forks the hosts that do not compute, and has what they import, and no jax.

A request that is refused ends both; so does the end of the command, at any time: the daemon reads the end of its line
to it, and the kernel kills the preparer with it. Nothing has been written by then but the run folder of an
accepted request.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn, final

from isthmus.programs.engine.request.environment import compute_anywhere, compute_on_cpu, has_backend, stay_forkable
from isthmus.programs.engine.run.interrupts import Interrupts, interrupts
from isthmus.programs.engine.run.logs import FORK_SERVER_LOG
from isthmus.programs.engine.run.order import Order
from isthmus.programs.reading.token_progress import MakingProgress, told_by
from isthmus.runtime.errors import ConfigError, Fault, GraphError, PlacementError, RequestError, RunError
from isthmus.runtime.system.children import Child
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal
from isthmus.runtime.system.processes import (
    die_with_parent,
    end_after,
    environment,
    follow_daemon,
    kill_session,
    name_process,
)
from isthmus.runtime.system.refusals import fault_of
from isthmus.runtime.system.waiting import readable

SIGNAL_SECONDS: Final = 0.05
"""Interval of checks for a signal."""
END_SECONDS: Final = 10.0
"""For a daemon that waits to end what it has started: it may still be importing."""
_DAEMON: Final = "isthmus.programs.engine.run.daemon_process"
_DIED: Final = "the process that prepared the request died"
_PROGRESS: Final = "progress"
"""The only key of a message that is no answer yet."""
_listeners: Final[list[Callable[[MakingProgress], object]]] = []


@contextmanager
def listening(listener: Callable[[MakingProgress], object]) -> Iterator[None]:
    """Have `listener` called, in this block, with how far the data of a request are that is prepared."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _pass_on(progress: MakingProgress) -> None:
    for listener in _listeners:
        listener(progress)


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work`, as JSON; runs in a child, so that this process imports neither jax nor the task.

    Raises the child's errors, as a RequestError with the same faults; RunError if the child dies; KeyboardInterrupt at
    a signal. The child ends with this process, however that ends, and its jax is on the CPU, where it computes the loss
    of a small task's first batch: accelerators are for the hosts. Where jax has a backend already there is no child,
    because a process with its threads must not be forked.
    """
    if has_backend():
        with told_by(_pass_on):
            return work()
    _flush()
    # Counted, because an exception that a handler raises in the middle of a fork is lost.
    with interrupts() as interrupted:
        line, its = ProcessLine.pair()
        pid = os.fork()
        if pid == 0:
            line.close()
            _prepare(work, ProcessLine(its))
        its.close()
        child = Child.adopted(pid, line)
        try:
            answer = _answer_on(line, pid, child.watch, interrupted)
        finally:
            child.end()
    return _done(answer)


def _answer_on(line: ProcessLine, pid: int, watch: int, interrupted: Interrupts) -> dict[str, Any] | None:
    """The answer on a line to a process, which is watched; None if it has died. KeyboardInterrupt if a signal arrives
    first.

    Processes that it has started have the other end, too, so they are ended with it.
    """
    watched: list[ProcessLine | int] = [line, watch]
    while not line.is_over:
        if interrupted.count:
            raise interrupted.error()
        able = readable(watched, SIGNAL_SECONDS)
        if line in able:
            for message in line.hear():
                if _PROGRESS not in message:
                    return message
                _pass_on(MakingProgress(**message[_PROGRESS]))
        elif watch in able:
            kill_session(pid)
            watched = [line]
    return None


def _prepare(work: Callable[[], dict[str, Any]], command: ProcessLine) -> NoReturn:
    """In the child: send the result of the work and end; end earlier if the command does."""

    def end_with_command() -> None:
        poll = select.poll()
        poll.register(command, 0)
        poll.poll()  # No events are requested, so this returns only when the other end is closed.
        kill_session(os.getpid())
        os._exit(1)

    os.setsid()  # The task may start processes, which end with this one.
    follow_daemon()  # A terminal sends them here, too; the command acts on them.
    threading.Thread(target=end_with_command, daemon=True).start()
    try:
        _say(_answer(work, command), command)
    finally:
        os._exit(0)


_KINDS: Final[Mapping[str, type[RequestError]]] = {
    kind.__name__: kind for kind in (ConfigError, GraphError, PlacementError, RequestError)
}


def _answer(work: Callable[[], dict[str, Any]], command: ProcessLine) -> dict[str, Any]:
    try:
        compute_on_cpu()
        with told_by(lambda progress: command.offer({_PROGRESS: progress._asdict()})):
            return {"done": work()}
    except RequestError as error:
        kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
        return {"kind": kind, "faults": [list(fault) for fault in error.faults]}
    except BaseException as error:
        if isinstance(error, OSError) and (fault := fault_of(error)) is not None:
            return {"kind": ConfigError.__name__, "faults": [list(fault)]}
        return {"error": f"preparing the request failed:\n{traceback.format_exc()}"}


def _say(answer: dict[str, Any], command: ProcessLine) -> None:
    """Send an answer, whole, and close the line."""
    _flush()
    command.send(answer)
    command.close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _done(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """The result in an answer; raises the error in it."""
    if answer is None:
        raise RunError(_DIED)
    if "faults" in answer:
        raise _KINDS[answer["kind"]].of([Fault(*fault) for fault in answer["faults"]])
    if "error" in answer:
        raise RunError(answer["error"])
    done: dict[str, Any] = answer["done"]
    return done


@final
class DaemonAhead:
    """A daemon that waits for its run, and the `answer` of the process under it that has prepared this."""

    def __init__(self, work: Callable[[], dict[str, Any]], meanwhile: Callable[[], Any] = lambda: None) -> None:
        """Fork both, call `meanwhile`, and wait for the result of `work`, as JSON; `task` in it is that of `Order`.

        Raises what `in_child` does, and nothing is left then.
        """
        _flush()
        # Counted, because an exception that a handler raises in the middle of a fork is lost.
        with interrupts() as interrupted:
            line, its = ProcessLine.pair()
            prepares, writer = ProcessLine.pair()
            pid = os.fork()
            if pid == 0:
                prepares.close()
                line.close()
                _become_daemon(work, writer, its)
            writer.close()
            its.close()
            try:
                self.child = Child.adopted(pid, line)
                preparer = int((line.next() or {}).get("preparer", 0))
                try:
                    if not preparer:
                        raise RunError(_DIED)
                    meanwhile()
                    with _watched(preparer) as watch:
                        self.answer = _done(_answer_on(prepares, preparer, watch, interrupted))
                except ProcessLookupError:
                    self._end(preparer)
                    raise RunError(_DIED) from None
                except BaseException:
                    self._end(preparer)
                    raise
            finally:
                prepares.close()

    def take(self, folder: Path, lock: int, grace: float) -> None:
        """Have it supervise the run in `folder`, with the `lock` on that; OSError if it is gone."""
        self.child.line.send(Order(str(folder), grace, self.answer["task"])._asdict(), [lock])

    def _end(self, preparer: int) -> None:
        """End both, and what the task has started: the daemon does that as it reads the end of its line. `preparer`: 0
        if there is none."""
        try:
            if preparer:
                _end_preparer(preparer)
        finally:
            self.child.end(END_SECONDS)


@contextmanager
def _watched(pid: int) -> Iterator[int]:
    """The pidfd of a process that is no child of this one, until the block ends."""
    watch = pidfd_open(pid)
    try:
        yield watch
    finally:
        os.close(watch)


def _end_preparer(pid: int) -> None:
    with suppress(ProcessLookupError), _watched(pid) as watch:  # Or it is gone, and so is what it had.
        pidfd_send_signal(watch, signal.SIGKILL)
        readable([watch], None)
        kill_session(pid)


def _become_daemon(work: Callable[[], dict[str, Any]], writer: socket.socket, command: socket.socket) -> NoReturn:
    """In the child: fork the preparer, tell its pid to the command, and become the daemon that waits."""
    try:
        os.setsid()
        (ours, its), (scripts, asks) = socket.socketpair(), socket.socketpair()
        parent, preparer = os.getpid(), os.fork()
        if preparer == 0:
            _close_all_but(*(each.fileno() for each in (writer, its, asks)))
            to_command, to_daemon, for_scripts = ProcessLine(writer), ProcessLine(its), ProcessLine(asks)
            end_after(lambda: _prepare_and_serve(work, to_command, to_daemon, for_scripts, parent))
        plain, its_plain = socket.socketpair()
        plain_pid = os.fork()
        if plain_pid == 0:
            _close_all_but(its_plain.fileno())
            end_after(lambda: _serve_plain(ProcessLine(its_plain), parent))
        ProcessLine(command).send({"preparer": preparer})
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        kept = (ours, plain, scripts, command)
        _close_all_but(*(each.fileno() for each in kept))
        for each in kept:
            each.set_inheritable(True)
        servers = [ours.fileno(), preparer, plain.fileno(), plain_pid]
        ahead = map(str, (*servers, scripts.fileno(), command.fileno()))
        os.execv(sys.executable, [sys.executable, "-m", _DAEMON, "--ahead", *ahead])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _close_all_but(*kept: int) -> None:
    """Close what the command has open but its standard streams: locks and sockets would stay with hosts, for the whole
    run. Nothing here uses the objects that had them; their frames live as long as this process."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in kept:
            with suppress(OSError):  # What listed them is gone.
                os.close(number)


def _name(what: str) -> None:
    """Name this process, before its environment changes: a title is written over that, as it was at the beginning."""
    name_process(f"isthmus {what}")


def _serve_plain(daemon: ProcessLine, parent: int) -> int:
    """In the plain fork server."""
    _name("plain-server")
    os.setsid()
    follow_daemon()
    die_with_parent(parent)
    os.environ.update(environment(computes=False))
    gc.disable()
    from isthmus.programs.engine.run import fork_server

    return fork_server.serve_plain(daemon)


def _prepare_and_serve(
    work: Callable[[], dict[str, Any]], command: ProcessLine, daemon: ProcessLine, scripts: ProcessLine, parent: int
) -> int:
    """In the preparer: send the result of the work to the command; then fork hosts of its task, if it has one. A script
    that it asks for its model is started by the daemon, through the line `scripts`."""
    _name("preparer")
    os.setsid()  # The task may start processes, which end with this one.
    follow_daemon()
    die_with_parent(parent)
    os.environ.update(environment(computes=True))  # As of a fork server that is started for itself.
    stay_forkable()
    gc.disable()  # Imports and traces leave next to no garbage, and it would be looked for again and again.
    from isthmus.programs.engine.run.script_processes import ask_through

    ask_through(scripts)
    answer = _answer(work, command)
    scripts.close()
    done = answer.get("done", {})
    _say(answer, command)
    if not done.get("task"):
        return 0
    from isthmus.programs.engine.run import fork_server

    folder = Path(done["folder"])
    fork_server.redirect_output(folder, FORK_SERVER_LOG)
    compute_anywhere()
    return fork_server.serve(folder, daemon, done["task"])
