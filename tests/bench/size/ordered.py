"""Runs of the light task, in processes, which go on until they are stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from isthmus.programs.engine.recorder.roles import with_recorder
from isthmus.programs.engine.request.fingerprint import fingerprint
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.engine.run.in_processes import detach, submit_ahead
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.verify import verify
from tests.bench.size.light import LIGHT, Light

INTERVAL: Final = 16
PROGRAM: Final = Program("decoupled-diloco", fragments=8, interval=INTERVAL, overlap=2)
SUMMARY_SECONDS_MAX: Final = 120.0
_ISTHMUS: Final = str(Path(sys.executable).with_name("isthmus"))


@contextmanager
def running(learners: Mapping[Path, int], program: Program = PROGRAM, task: Light = LIGHT) -> Iterator[None]:
    """Runs without an end, which no command watches, of so many learners each, by folder; afterwards each has written
    its end."""
    begun: list[Path] = []
    try:
        for folder, count in learners.items():
            detach(submit_ahead(partial(_request, count, folder, program, task)))  # As `isthmus train` does.
            begun.append(folder)
        yield
    finally:
        for folder in begun:
            subprocess.run([_ISTHMUS, "stop", str(folder)], check=False, capture_output=True)
        for folder in begun:
            _wait_for_summary(folder)


def _wait_for_summary(folder: Path) -> None:
    """Return once a run that was stopped has written its end, and its daemon, which writes into the folder, is gone."""
    pid = json.loads((folder / "daemon.json").read_bytes())["pid"]
    until = time.monotonic() + SUMMARY_SECONDS_MAX
    while (_is_running(pid) or not (folder / "over.json").exists()) and time.monotonic() < until:
        time.sleep(0.2)


def _is_running(pid: int) -> bool:
    """Whether a process has not ended; one that its parent, this process, has not asked for has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _request(learners: int, folder: Path, program: Program, task: Light) -> Request:
    run = {"learners": learners, "slots_max": learners, "tokens": 10**9}
    made = prepare(program, run=run, run_dir=folder)
    job = replace(made.job, task=task.reference, layout=task.layout, tokens_per_batch=8, has_gradients=False)
    graph = with_recorder(program.build(job).freeze(), job)
    return replace(
        made,
        task_reference=job.task,
        task=task,
        job=job,
        graph=graph,
        proof=verify(graph),
        plans=lower(graph),
        fingerprint=fingerprint(graph, job, program.builder()),
    )
