"""The process of a run's own daemon: `python -m isthmus.programs.engine.run.daemon_process [--lock DESCRIPTOR]
[--grace SECONDS] RUN [LINE]`, or `--ahead LINE PID LINE PID LINE LINE`.

It ends with the run in RUN, and takes no other. LINE is its end of the line to the command that started it: when that
ends, the run ends with it, unless the command has said {detach}. With `--lock` it inherits the lock on RUN. It imports
no jax.

With `--ahead` it is started while the request is prepared, and waits: on the last LINE it gets an `Order` and the lock,
or nothing, and ends. Each pair LINE PID is its end of the line to that process, which it adopts: what prepares the run,
and may go on as its fork server, and the plain fork server. By the LINE behind them, what prepares the run asks for
processes of a script.

SIGTERM and SIGHUP have it set the run aside within SECONDS; its exit status is then 75. Ctrl-C is its command's, which
asks it; without a command it stops the run, and a second one ends it at once.
"""

from __future__ import annotations

import argparse
import os
import signal
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
from isthmus.programs.engine.run.launch import NONE_AHEAD, PLAIN, Ahead
from isthmus.programs.engine.run.logs import DAEMON_LOG, opened_log
from isthmus.programs.engine.run.order import Order
from isthmus.programs.engine.run.run_end import RunEnd
from isthmus.programs.engine.run.script_processes import ScriptsAhead
from isthmus.runtime.errors import INTERRUPTED_STATUS
from isthmus.runtime.ids import ONE_MACHINE
from isthmus.runtime.system import phases
from isthmus.runtime.system.children import Child
from isthmus.runtime.system.disk import FullNotes
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import began_ns, cpu_seconds, name_process, unblock
from isthmus.runtime.system.waiting import readable

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
    parser.add_argument("line", type=int, nargs="?")
    parser.add_argument("--ahead", type=int, nargs=6)
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
    line = None if options.line is None else ProcessLine.inherited(options.line)
    return _serve(options.run, lock, line, grace=options.grace)


def _wait(its: int, pid: int, plain_its: int, plain_pid: int, asks: int, command: int) -> int:
    """Wait for the run that `pid` prepares, and serve it."""
    waiting_ns = time.monotonic_ns()
    line, scripts = ProcessLine.inherited(command), ScriptsAhead(ProcessLine.inherited(asks))
    server = Child.adopted(pid, ProcessLine.inherited(its))
    plain = Child.adopted(plain_pid, ProcessLine.inherited(plain_its))
    while line not in (able := readable([line, *scripts.watched()], None)):
        scripts.hear(able)
    said = line.next()
    if said is None:
        scripts.end()
        server.end()
        plain.end()
        return 0
    order, lock = Order(**said), line.files.popleft()
    folder = Path(order.folder)
    with suppress(OSError):
        (folder / "logs").mkdir(exist_ok=True)
    with opened_log(folder / "logs" / DAEMON_LOG) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    phases.note(folder, "daemon", "begun", at_ns=began_ns())
    phases.note(folder, "daemon", "waiting", at_ns=waiting_ns)
    plain.line.offer({"folder": order.folder})  # If it has died, the launcher sees that.
    servers = {PLAIN: plain}
    if order.task:
        servers[order.task] = server
    else:
        server.end()
    ahead = Ahead(servers, scripts)
    return _serve(folder, RunLock.inherited(lock), line, grace=order.grace, ahead=ahead)


def finish(folder: Path, end: RunEnd) -> None:
    """Write the last files; what does that is loaded now, so that hosts need not wait for it when the run starts."""
    from isthmus.programs.engine.run import finish as last_files

    last_files.finish(folder, end)


def _tell_if_changed(folder: Path) -> None:
    """Write into the log which files are others than those that the run of a folder was begun with."""
    from isthmus.programs.engine.request.sources import told_if_changed  # Few daemons adopt runs.

    with suppress(OSError, ValueError):
        if altered := told_if_changed(folder):
            sys.stderr.write(f"isthmus daemon: {altered}\n")


def _serve(folder: Path, lock: RunLock, line: ProcessLine | None, *, grace: float, ahead: Ahead = NONE_AHEAD) -> int:
    """The same, with the run folder to itself. `line`: to the command, if that has it end with it."""
    loop = uvloop.new_event_loop()
    is_over = is_alone = False
    presses = 0

    def over() -> None:
        nonlocal is_over
        is_over = True
        if is_alone or run.is_unwritten or run.is_set_aside:
            loop.stop()
        elif line is None:
            loop.call_later(LINGER_SECONDS, loop.stop)

    def on_command() -> None:
        """The command lets the run go its own way, or is gone."""
        nonlocal line, is_alone
        assert line is not None
        is_detached = any("detach" in message for message in line.hear())
        if not is_detached and not line.is_over:
            return
        loop.remove_reader(line.fileno())
        line.close()
        line, is_alone = None, not is_detached
        if is_alone and run.is_running:
            run.daemon.end("the command that started the run is gone")
        if is_over:
            loop.call_later(0.0 if is_alone else LINGER_SECONDS, loop.stop)

    def on_interrupt() -> None:
        """Ctrl-C: its command asks for what it means; without one, the user."""
        nonlocal presses
        if line is None:
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

    if ahead is NONE_AHEAD:  # What is ahead was made with these files.
        _tell_if_changed(folder)
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
    if line is not None:
        loop.add_reader(line.fileno(), on_command)
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
