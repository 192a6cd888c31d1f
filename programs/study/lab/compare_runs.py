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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import msgspec

from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import ProcessPlaces, process_places
from isthmus.programs.engine.run.in_processes import run_processes, submit_in_child
from isthmus.programs.engine.run.interrupts import interrupts
from isthmus.programs.engine.run.watch_loop import Watch
from isthmus.programs.study.lab import compare
from isthmus.programs.study.lab.compare import ComparisonPlan, Pacing, Variant, request_of
from isthmus.runtime.errors import RequestError, RunError

LOOK_SECONDS: Final = 0.1
LOG: Final = "virtual.log"


class VirtualOrder(msgspec.Struct, frozen=True):
    """The order to a process that runs one run in virtual time."""

    variant: Variant
    seed: int
    folder: str
    pacing: Pacing


@final
@dataclass(frozen=True, slots=True)
class RunEvent:
    """Progress while runs are in progress: `done` of `many`, and the news of one run.

    The news is its begin, its `failure`, or its `summary`; `share` is its share of the tokens, if known.
    """

    done: int
    many: int
    name: str
    share: float | None = None
    failure: str = ""
    summary: dict[str, Any] | None = None


def carry_out(
    folder: Path, plan: ComparisonPlan, seeds: int, on_event: Callable[[RunEvent | ProcessPlaces], None]
) -> int:
    """Make every run that is not done; how many failed. KeyboardInterrupt at a signal.

    `on_event` is called with the places of runs in virtual time, before the first, and with the news of every run.
    """
    runs = plan.runs(seeds)
    left = [(variant, seed) for variant, seed in runs if compare.done(folder, variant, seed) is None]
    tally = _Tally(on_event, len(runs) - len(left), len(runs))
    if plan.pacing is None:
        for variant, seed in left:
            _real(folder, variant, seed, tally)
    else:
        _virtual(folder, left, plan.pacing, tally)
    return tally.failed


@final
class _Tally:
    """Counts runs, and reports them."""

    def __init__(self, on_event: Callable[[RunEvent | ProcessPlaces], None], done: int, many: int) -> None:
        self._on_event, self._done, self._many = on_event, done, many
        self.failed = 0

    def placed(self, where: ProcessPlaces) -> None:
        self._on_event(where)

    def begun(self, variant: Variant, seed: int, share: float | None = None) -> None:
        self._on_event(RunEvent(self._done, self._many, _named(variant, seed), share))

    def ended(self, variant: Variant, seed: int, run: Path, failure: str) -> None:
        self._done += not failure
        self.failed += bool(failure)
        figures = None if failure else compare.summary(run)
        self._on_event(RunEvent(self._done, self._many, _named(variant, seed), failure=failure, summary=figures))


def _named(variant: Variant, seed: int) -> str:
    return f"{variant.name}, seed {seed}"


# -- real time ---------------------------------------------------------------------------------------------------------


def _real(folder: Path, variant: Variant, seed: int, tally: _Tally) -> None:
    run = compare.free(folder, variant, seed)
    tally.begun(variant, seed)
    failure = ""
    try:
        submitted = submit_in_child(lambda: request_of(variant, seed, str(run)))
        outcome = run_processes(submitted, watch=_Share(variant, seed, tally))
        if outcome.summary["outcome"] == "stopped":
            raise KeyboardInterrupt
    except (RunError, RequestError) as error:
        failure = "" if compare.has_ended(run, variant) else str(error)
    tally.ended(variant, seed, run, failure)


@final
class _Share(Watch):
    """Reports the progress of a run."""

    def __init__(self, variant: Variant, seed: int, tally: _Tally) -> None:
        self._variant, self._seed, self._tally = variant, seed, tally

    def update(self, status: dict[str, Any]) -> None:
        tokens = status.get("tokens") or 0
        self._tally.begun(self._variant, self._seed, tokens / self._variant.run.tokens)

    def close(self, summary: dict[str, Any]) -> None:
        """No-op: the caller that runs it reports its end."""


# -- virtual time ------------------------------------------------------------------------------------------------------


def _virtual(folder: Path, left: list[tuple[Variant, int]], pacing: Pacing, tally: _Tally) -> None:
    if not left:
        return
    waiting, busy = list(left), dict[int, _Process]()
    where = process_places(environment.find(), len(os.sched_getaffinity(0)), len(left), os.environ)
    tally.placed(where)
    with interrupts() as interrupted:
        try:
            while waiting or busy:
                if interrupted.count:
                    raise interrupted.error()
                free = next((place for place in range(len(where.environments)) if place not in busy), None)
                if waiting and free is not None:
                    variant, seed = waiting.pop(0)
                    tally.begun(variant, seed)
                    order = VirtualOrder(variant, seed, str(compare.free(folder, variant, seed)), pacing)
                    busy[free] = _Process(order, where.environments[free])
                    continue
                for place, process in [(place, each) for place, each in busy.items() if each.is_over()]:
                    del busy[place]
                    order = process.order
                    tally.ended(order.variant, order.seed, Path(order.folder), process.failure())
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
                [sys.executable, "-m", "isthmus.programs.study.lab.virtual_process"],
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
        lines = (self._run / LOG).read_text(errors="replace").strip().splitlines()
        status = self._process.returncode
        last = lines[-1] if lines else f"its process ended with status {status}"
        return f"{last}\n  Look at {self._run / LOG}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
