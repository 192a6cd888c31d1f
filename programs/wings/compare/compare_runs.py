"""Carries out the runs of a comparison, in real or in virtual time.

In real time they run one after another, each as by `isthmus train`; in virtual time several at once, each in a process
of its own, on the devices that there are (`islands.environment`). A run that fails is reported, and the others
continue. Ctrl-C ends all that are in progress; the next call tries these again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import msgspec

from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import ProcessPlaces, process_places
from isthmus.programs.engine.results.words import decimal, seconds
from isthmus.programs.engine.run.in_processes import run_processes, submit_in_child
from isthmus.programs.engine.run.interrupts import interrupts
from isthmus.programs.engine.run.watch_loop import Watch
from isthmus.programs.study.terminal.figures import ProgressLine
from isthmus.programs.wings.compare import compare
from isthmus.programs.wings.compare.compare import ComparisonPlan, Pacing, Variant, request_of
from isthmus.runtime.errors import RequestError, RunError
from isthmus.runtime.system.files import read_text
from isthmus.runtime.system.processes import status_name

LOOK_SECONDS: Final = 0.1
LOG: Final = "virtual.log"


class VirtualOrder(msgspec.Struct, frozen=True):
    """The order to a process that runs one run in virtual time."""

    variant: Variant
    seed: int
    folder: str
    pacing: Pacing


def carry_out(folder: Path, plan: ComparisonPlan, seeds: int) -> int:
    """Make every run that is not done, with their progress on standard error; how many failed. KeyboardInterrupt at a
    signal."""
    runs = plan.runs(seeds)
    left = [(variant, seed) for variant, seed in runs if compare.done(folder, variant, seed) is None]
    progress = _Progress(len(runs) - len(left), len(runs))
    for line in compare.damaged(folder, runs):
        progress.say(line)
    try:
        if plan.pacing is None:
            for variant, seed in left:
                _real(folder, variant, seed, progress)
        else:
            _virtual(folder, left, plan.pacing, progress)
    except KeyboardInterrupt:
        progress.say(f"{progress.done} of {len(runs)} runs are done; the same command goes on with the others.")
        raise
    progress.line.show("")
    return progress.failed


@final
class _Progress:
    """Counts runs, and shows the one in progress, in a line that changes, and the end of each."""

    def __init__(self, done: int, many: int) -> None:
        self.line = ProgressLine()
        self.say = self.line.say
        self.done, self._many, self._before, self._begun = done, many, done, time.monotonic()
        self.failed = 0

    def begun(self, variant: Variant, seed: int, share: float = 0.0) -> None:
        """A run has begun, and has trained a `share` of its tokens."""
        percentage = f" {100 * share:.0f} %" if share else ""
        self.line.show(f"{self.done} of {self._many} runs; {_named(variant, seed)}{percentage}")

    def ended(self, variant: Variant, seed: int, run: Path, failure: str) -> None:
        """A run is done, or has failed."""
        if failure:
            self.failed += 1
            self.say(f"{_named(variant, seed)} failed: {failure}")
            return
        self.done += 1
        figures = compare.summary(run)
        took, loss = seconds(figures.get("wall_seconds")), decimal(figures.get("eval_loss_final"))
        pace = (time.monotonic() - self._begun) / (self.done - self._before)
        left = f"; about {seconds(pace * (self._many - self.done))} left" if self.done < self._many else ""
        self.say(f"{self.done} of {self._many}  {_named(variant, seed)}: {loss}, {took}{left}")


def _named(variant: Variant, seed: int) -> str:
    return f"{variant.name}, seed {seed}"


def placed(where: ProcessPlaces) -> str:
    """The devices of runs in virtual time, in words."""
    count = len(where.environments)
    runs = "one run at a time" if count == 1 else f"{count} runs at once"
    if not where.devices:
        platform = "what JAX_PLATFORMS names" if where.platform is None else "the CPU"
        return f"Computing on {platform}, {runs}."
    kind = "GPU" if where.platform == "cuda" else "TPU chip"
    many = f"{where.devices} {kind}{'s' if where.devices > 1 else ''}"
    share = "" if where.share is None else f", each with {where.share:g} of the memory of one"
    return f"Computing on {many}, {runs}{share}. JAX_PLATFORMS=cpu has them on the CPU."


# -- real time ---------------------------------------------------------------------------------------------------------


def _real(folder: Path, variant: Variant, seed: int, progress: _Progress) -> None:
    run = compare.free(folder, variant, seed)
    progress.begun(variant, seed)
    failure = ""
    try:
        submitted = submit_in_child(lambda: request_of(variant, seed, str(run)))
        outcome = run_processes(submitted, watch=_Share(variant, seed, progress))
        if outcome.summary["outcome"] == "stopped":
            raise KeyboardInterrupt
    except (RunError, RequestError) as error:
        failure = "" if compare.has_ended(run, variant) else str(error)
    progress.ended(variant, seed, run, failure)


@final
class _Share(Watch):
    """Reports the progress of a run."""

    def __init__(self, variant: Variant, seed: int, progress: _Progress) -> None:
        self._variant, self._seed, self._progress = variant, seed, progress

    def update(self, status: dict[str, Any]) -> None:
        tokens = status.get("tokens") or 0
        self._progress.begun(self._variant, self._seed, tokens / self._variant.run.tokens)

    def close(self, summary: dict[str, Any]) -> None:
        """No-op: the caller that runs it reports its end."""


# -- virtual time ------------------------------------------------------------------------------------------------------


def _virtual(folder: Path, left: list[tuple[Variant, int]], pacing: Pacing, progress: _Progress) -> None:
    if not left:
        return
    waiting, busy = list(left), dict[int, _Process]()
    where = process_places(environment.find(), len(os.sched_getaffinity(0)), len(left), os.environ)
    progress.say(placed(where))
    with interrupts() as interrupted:
        try:
            while waiting or busy:
                if interrupted.count:
                    raise interrupted.error()
                free = next((place for place in range(len(where.environments)) if place not in busy), None)
                if waiting and free is not None:
                    variant, seed = waiting.pop(0)
                    progress.begun(variant, seed)
                    order = VirtualOrder(variant, seed, str(compare.free(folder, variant, seed)), pacing)
                    busy[free] = _Process(order, where.environments[free])
                    continue
                for place, process in [(place, each) for place, each in busy.items() if each.is_over()]:
                    del busy[place]
                    order = process.order
                    progress.ended(order.variant, order.seed, Path(order.folder), process.failure())
                time.sleep(LOOK_SECONDS)
        finally:
            for process in busy.values():
                process.kill()


@final
class _Process:
    """A process that runs one run in virtual time, with these variables; it ends with this one, whose pipe it holds."""

    def __init__(self, order: VirtualOrder, environment: Mapping[str, str]) -> None:
        self.order = order
        self._run = Path(order.folder)
        self._run.mkdir(parents=True)
        log: BinaryIO
        with (self._run / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "isthmus.programs.wings.compare.virtual_process"],
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def failure(self) -> str:
        """Why it failed; empty if it did not."""
        self._close()
        if compare.has_ended(self._run, self.order.variant):
            return ""
        lines = read_text(self._run / LOG, "replace").strip().splitlines()
        status = self._process.returncode
        last = lines[-1] if lines else f"its process ended with {status_name(status)}"
        return f"{last}\n  Look at {self._run / LOG}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
