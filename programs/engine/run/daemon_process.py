"""The process of a private daemon: `python -m isthmus.programs.engine.run.daemon_process RUN [--listen ENDPOINT]
[--name NAME] [--pipe] [--lock DESCRIPTOR]`.

It supervises the run in RUN, and writes the summary, the trace and the report when everything has ended. With `--pipe`
its standard input is held by the command that started it: when that ends, the run ends with it, unless the command has
written DETACH into it. With `--lock` it inherits the lock on RUN. It imports no jax.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Final

import uvloop
from setproctitle import setproctitle

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.new_folder import UNWRITTEN, InUseError, RunLock
from isthmus.programs.engine.run.finish import RunEnd, cpu_seconds, error_of, finish
from isthmus.programs.engine.run.interrupts import unblock
from isthmus.programs.engine.run.launch import Launcher
from isthmus.programs.engine.run.private_daemon import Private
from isthmus.runtime.daemon.ground import LocalGround
from isthmus.runtime.daemon.home_daemon import Daemon
from isthmus.runtime.errors import RunError
from isthmus.runtime.system.files import write_json
from isthmus.runtime.wire.control_messages import DETACH

IN_USE: Final = 2
"""The exit status where the run has another daemon."""
LINGER_SECONDS: Final = 2.0
"""How long a detached daemon still answers after the end."""


def main(arguments: list[str]) -> int:
    """Serve until the run is over and its command has been told; returns the exit status."""
    parser = argparse.ArgumentParser(prog="isthmus daemon", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--listen", default="tcp://127.0.0.1:*")
    parser.add_argument("--name", default="local")
    parser.add_argument("--pipe", action="store_true")
    parser.add_argument("--lock", type=int)
    options = parser.parse_args(arguments)
    setproctitle(f"isthmus daemon {options.name}")
    unblock()
    try:
        with RunLock(options.run) if options.lock is None else RunLock.inherited(options.lock):
            return _serve(options)
    except InUseError as error:
        sys.stderr.write(f"isthmus: Supervising {options.run}: expected a run without a daemon, found {error}.\n")
        return IN_USE


def _serve(options: argparse.Namespace) -> int:
    """The same, with the run folder to itself."""
    run_spec = spec.load(options.run)
    loop = uvloop.new_event_loop()

    is_finished = is_alone = False
    status = 0

    def over(daemon: Daemon) -> None:
        """Write the rest in a thread, because the daemon continues answering meanwhile."""

        def finished(outcome: str, error: str | None) -> None:
            nonlocal is_finished, status
            is_finished = True
            try:
                write_json(options.run / "over.json", {"outcome": outcome, "error": error})
            except OSError:
                status = UNWRITTEN
            if is_alone or status:
                loop.stop()
            elif not options.pipe:
                loop.call_later(LINGER_SECONDS, loop.stop)

        def work() -> None:
            ending: tuple[str, str | None] = daemon.outcome, error_of(daemon)
            try:
                finish(options.run, RunEnd.of(daemon, cpu_seconds() + launch.cpu_seconds))
            except (RunError, OSError) as error:
                ending = "failed", ending[1] or str(error)
            finally:
                loop.call_soon_threadsafe(finished, *ending)

        threading.Thread(target=work, name="finish").start()

    launch = Launcher(loop, options.run, run_spec.computing)
    ground = LocalGround(
        loop,
        options.run,
        name=options.name,
        launch=launch,
        listen=options.listen,
        tape_bytes=run_spec.settings.tape_bytes,
    )
    daemon = Daemon(ground, run_spec.cast, run=run_spec.run, name=options.name, on_over=over)

    def on_command() -> None:
        """The command lets the run go its own way, or is gone."""
        nonlocal is_alone
        options.pipe, is_alone = False, os.read(0, 1024) != DETACH
        loop.remove_reader(0)
        if is_alone and daemon.outcome == "running":
            daemon.end("the command that started the run is gone")
        if is_finished:
            loop.call_later(0.0 if is_alone else LINGER_SECONDS, loop.stop)

    if options.pipe:
        loop.add_reader(0, on_command)
    daemon.start()
    note = Private(daemon.endpoint, options.run)
    loop.run_forever()
    note.close()
    daemon.close()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
