"""The process of a run's own daemon: `python -m isthmus.programs.engine.run.daemon_process RUN [--pipe] [--lock
DESCRIPTOR] [--grace SECONDS]`, or `--ahead DESCRIPTOR PID DESCRIPTOR PID DESCRIPTOR`.

It ends with the run in RUN, and takes no other. With `--pipe` its standard input is held by the command that started
it: when that ends, the run ends with it, unless the command has written DETACH into it. With `--lock` it inherits the
lock on RUN. It imports no jax.

With `--ahead` it is started while the request is prepared, and waits: its standard input is a socket, on which it gets
an `Order` and the lock, or nothing, and ends. Of each pair DESCRIPTOR is its end of the socket of the process PID: what
prepares the run, and may go on as its fork server, and the plain fork server. By the last one, what prepares the run
asks for processes of a script.

SIGTERM and SIGHUP have it set the run aside within SECONDS; its exit status is then 75. Ctrl-C is its command's, which
asks it; without a command it stops the run, and a second one ends it at once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvloop

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.grace import GRACE_SECONDS, SECOND
from isthmus.programs.engine.request.new_folder import UNWRITTEN, InUseError, LockError, RunLock
from isthmus.programs.engine.run.held_run import HeldRun
from isthmus.programs.engine.run.launch import NONE_AHEAD, PLAIN, Ahead, ServerAhead
from isthmus.programs.engine.run.logs import DAEMON_LOG, opened_log
from isthmus.programs.engine.run.order import ORDER_BYTES_MAX, Order
from isthmus.programs.engine.run.run_end import RunEnd
from isthmus.programs.engine.run.script_processes import ScriptsAhead
from isthmus.runtime.errors import INTERRUPTED_STATUS
from isthmus.runtime.ids import ONE_MACHINE
from isthmus.runtime.system import phases
from isthmus.runtime.system.disk import FullNotes
from isthmus.runtime.system.processes import began_ns, cpu_seconds, name_process, unblock
from isthmus.runtime.system.waiting import readable
from isthmus.runtime.wire.control_messages import DETACH

IN_USE: Final = 2
"""The exit status where the run has another daemon."""
FULL_SECONDS: Final = 1.0
"""Between two looks whether a disk is full."""
LINGER_SECONDS: Final = 2.0
"""How long a detached daemon still answers after the end."""


def main(arguments: list[str]) -> int:
    """Serve until the run is over and its command has been told; returns the exit status."""
    parser = argparse.ArgumentParser(prog="isthmus daemon", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--ahead", type=int, nargs=5)
    parser.add_argument("--pipe", action="store_true")
    parser.add_argument("--lock", type=int)
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS)
    options = parser.parse_args(arguments)
    name_process(f"isthmus daemon {ONE_MACHINE}")
    unblock()
    if options.ahead is not None:
        return _wait(*options.ahead)
    try:
        lock = RunLock(options.run) if options.lock is None else RunLock.inherited(options.lock)
    except InUseError as error:
        sys.stderr.write(f"isthmus: Supervising {options.run}: expected a run without a daemon, found {error}.\n")
        return IN_USE
    except LockError as error:
        sys.stderr.write(f"isthmus: {error}\n")
        return IN_USE
    return _serve(options.run, lock, has_pipe=options.pipe, grace=options.grace)


def _server(descriptor: int, pid: int) -> ServerAhead:
    os.set_inheritable(descriptor, False)
    return ServerAhead(socket.socket(fileno=descriptor), pid)


def _wait(descriptor: int, pid: int, plain_descriptor: int, plain_pid: int, asks: int) -> int:
    """Wait for the run that `pid` prepares, and serve it."""
    waiting_ns = time.monotonic_ns()
    server, plain = _server(descriptor, pid), _server(plain_descriptor, plain_pid)
    os.set_inheritable(asks, False)
    command, scripts = socket.socket(fileno=0), ScriptsAhead(socket.socket(fileno=asks))
    while command not in (able := readable([command, *scripts.watched()], None)):
        scripts.hear(able)
    text, files, _, _ = socket.recv_fds(command, ORDER_BYTES_MAX, 1)
    command.detach()
    if not text:
        for each in (scripts, server, plain):
            each.end()
        return 0
    order = Order(*json.loads(text))
    folder = Path(order.folder)
    with suppress(OSError):
        (folder / "logs").mkdir(exist_ok=True)
    with opened_log(folder / "logs" / DAEMON_LOG) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    phases.note(folder, "daemon", "begun", at_ns=began_ns())
    phases.note(folder, "daemon", "waiting", at_ns=waiting_ns)
    with suppress(OSError):  # It has died; the launcher sees that.
        plain.link.send(os.fsencode(folder))
    servers = {PLAIN: plain}
    if order.task:
        servers[order.task] = server
    else:
        server.end()
    ahead = Ahead(servers, scripts)
    return _serve(folder, RunLock.inherited(files[0]), has_pipe=True, grace=order.grace, ahead=ahead)


def finish(folder: Path, end: RunEnd) -> None:
    """Write the last files; what does that is loaded now, so that hosts need not wait for it when the run starts."""
    from isthmus.programs.engine.run import finish as last_files

    last_files.finish(folder, end)


def _serve(folder: Path, lock: RunLock, *, has_pipe: bool, grace: float, ahead: Ahead = NONE_AHEAD) -> int:
    """The same, with the run folder to itself."""
    loop = uvloop.new_event_loop()
    is_over = is_alone = False
    presses = 0

    def over() -> None:
        nonlocal is_over
        is_over = True
        if is_alone or run.is_unwritten or run.is_set_aside:
            loop.stop()
        elif not has_pipe:
            loop.call_later(LINGER_SECONDS, loop.stop)

    def on_command() -> None:
        """The command lets the run go its own way, or is gone."""
        nonlocal has_pipe, is_alone
        has_pipe, is_alone = False, os.read(0, 1024) != DETACH
        loop.remove_reader(0)
        if is_alone and run.is_running:
            run.daemon.end("the command that started the run is gone")
        if is_over:
            loop.call_later(0.0 if is_alone else LINGER_SECONDS, loop.stop)

    def on_interrupt() -> None:
        """Ctrl-C: its command asks for what it means; without one, the user."""
        nonlocal presses
        if not has_pipe:
            presses += 1
            run.daemon.request_stop() if presses == 1 else run.daemon.end(SECOND)

    full = FullNotes[str]()

    def tell_full() -> None:
        """Write into the log which disks have no room, once a minute, if that has any."""
        loop.call_later(FULL_SECONDS, tell_full)
        for place in full.update(run.daemon.full(), time.monotonic()).full:
            with suppress(OSError):
                sys.stderr.write(
                    f"isthmus daemon: the disk at {place} is full: what is written there waits, or is lost\n"
                )
                sys.stderr.flush()

    run_spec = spec.load(folder)
    run = HeldRun(
        loop,
        folder,
        run_spec,
        lock=lock,
        machine=ONE_MACHINE,
        finish=finish,
        on_over=over,
        own_seconds=cpu_seconds,
        ahead=ahead,
    )
    if has_pipe:
        loop.add_reader(0, on_command)
    run.daemon.start()
    phases.note(folder, "daemon", "serving")
    tell_full()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, run.set_aside, grace)
    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.run_forever()
    run.close()
    return INTERRUPTED_STATUS if run.is_set_aside else UNWRITTEN if run.is_unwritten else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
