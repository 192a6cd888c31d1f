"""The process of a daemon: `python -m isthmus.programs.daemon_process RUN [--listen ENDPOINT] [--name NAME] [--pipe]`.

It supervises the run in RUN, and writes the summary, the trace and the report when everything has ended. With `--pipe`
its standard input is held by the command that started it: when that ends, the run ends with it. It imports no jax.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from setproctitle import setproctitle

from isthmus.programs import spec
from isthmus.programs.command.report import write_report
from isthmus.programs.launch import launch
from isthmus.programs.summary import fragment_sizes, summarise
from isthmus.runtime.clock import Instant
from isthmus.runtime.daemon import Daemon
from isthmus.runtime.store import write_bytes, write_json
from isthmus.runtime.trace import Span, as_perfetto

LINGER_SECONDS = 2.0
"""How long a detached daemon still answers after the end."""


def finish(daemon: Daemon, told: spec.Spec) -> None:
    """Write what comes at the end of a run."""
    folder = daemon.folder
    spans = [
        Span(*fields) for path in sorted((folder / "spans").glob("*.json")) for fields in json.loads(path.read_text())
    ]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    zero = daemon.status_last.get("zero") or 0
    summary = summarise(
        daemon.status_last,
        sorted(spans, key=lambda span: span.begun),
        program=told.job.program if ":" not in told.job.program else told.graph().name,
        outcome=daemon.outcome,
        learners=told.job.learners,
        shards=told.roles.get("syncer", 0),
        fragment_sizes=fragment_sizes(told.graph()),
        ended=time.monotonic_ns() - told.zero_ns,
        cpu_seconds=told.cpu_seconds + sum(usage.ru_utime + usage.ru_stime for usage in used),
        bytes_sent_by_shards=round(daemon.former_figures.get("syncer.bytes_sent", 0)),
    )
    summary["error"] = daemon.error
    write_json(folder / "summary.json", summary)
    events: dict[str, Any] = {"traceEvents": list(as_perfetto(spans, Instant(zero))), "displayTimeUnit": "ms"}
    write_bytes(folder / "trace.json", json.dumps(events, separators=(",", ":")).encode())
    write_report(folder)


def main(arguments: list[str]) -> int:
    """Serve until the run is over and nobody wants to hear of it any more."""
    parser = argparse.ArgumentParser(prog="isthmus daemon", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--listen", default="tcp://127.0.0.1:*")
    parser.add_argument("--name", default="local")
    parser.add_argument("--pipe", action="store_true")
    asked = parser.parse_args(arguments)
    setproctitle(f"isthmus daemon {asked.name}")
    told = spec.load(asked.run)
    loop = uvloop.new_event_loop()

    def over(daemon: Daemon) -> None:
        """Write the rest in a thread, because the daemon goes on answering meanwhile."""

        def finished() -> None:
            write_json(asked.run / "over.json", {"outcome": daemon.outcome, "error": daemon.error})
            if not asked.pipe:
                loop.call_later(LINGER_SECONDS, loop.stop)

        def work() -> None:
            try:
                finish(daemon, told)
            finally:
                loop.call_soon_threadsafe(finished)

        threading.Thread(target=work, name="finish").start()

    daemon = Daemon(
        loop,
        asked.run,
        told.roles,
        name=asked.name,
        listen=asked.listen,
        launch=partial(launch, asked.run),
        on_over=over,
    )
    if asked.pipe:
        loop.add_reader(0, _hung_up, loop, daemon)
    daemon.start()
    loop.run_forever()
    daemon.close()
    return 0


def _hung_up(loop: Any, daemon: Daemon) -> None:
    """The command that held the pipe is gone."""
    if os.read(0, 1024):
        return
    loop.remove_reader(0)
    if daemon.outcome == "running":
        daemon.end("failed", "the command that started the run is gone")
    loop.call_later(LINGER_SECONDS, loop.stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
