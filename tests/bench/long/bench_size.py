"""What a syncer takes for each learner, as learners become more.

    python -m tests.bench.long.bench_size [--json]

Decoupled DiLoCo on a task in NumPy whose steps sleep, 8 fragments of 40 kB, H = 16. `real`: processes on this machine;
CPU time of the syncer's process between two looks, a minute apart, by merges in merges.jsonl and by learners, and the
memory that the processes have for themselves. `simulated`: hosts on one virtual clock, as the simulator has them; CPU
time of everything that the syncer's host does, its sockets apart, from the first merge of the last fragment to the end
of training; and the most memory that this process has had. Ratios are to the smallest number of learners of the same
kind.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from isthmus.programs.engine.recorder.graph_parts import roster_counts
from isthmus.programs.engine.recorder.roles import least_replicas
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.places import MACHINES, cast_of
from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.machine import HostClock
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.tape.writing import SEGMENT_BYTES
from tests.bench import observed
from tests.bench.size import ordered
from tests.bench.size.light import STEP_SECONDS

LOOK_SECONDS = 60.0
STEPS_SIMULATED = 40
EVENTS_BETWEEN = 256
FIRST_MERGES = 8
"""Each fragment once: what learners cost as they come is not what a merge costs."""


class TimedClock(HostClock):
    """A host's clock that counts the CPU seconds of what it calls; of calls within calls, the outer one counts."""

    is_within = False

    def __init__(self, universe: Any) -> None:
        super().__init__(universe)
        self.used = 0.0

    def run(self, callback: Callable[[], None]) -> None:
        super().run(self._timed(callback))

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        return super().call_at(at, self._timed(callback))

    def _timed(self, callback: Callable[[], None]) -> Callable[[], None]:
        def timed() -> None:
            if TimedClock.is_within:
                callback()
                return
            TimedClock.is_within, began = True, time.thread_time()
            try:
                callback()
            finally:
                self.used += time.thread_time() - began
                TimedClock.is_within = False

        return timed


def simulated(learners: int) -> dict[str, Any]:
    """So many learners in one universe, without faults and without checkers."""
    graph = toy_task.graph_of(ordered.PROGRAM, learners=learners, steps=STEPS_SIMULATED, seed=1, task=toy_task.EVEN)
    began = time.monotonic()
    with (
        mock.patch("isthmus.runtime.sim.host.HostClock", TimedClock),
        mock.patch("isthmus.runtime.sim.host.SEGMENT_BYTES", SEGMENT_BYTES),  # As long as those of a real run.
    ):
        universe = Universe(
            lower(graph),
            cast_of(roster_counts(graph, learners), least_replicas(graph)),
            MACHINES,
            seed=1,
            resolve=resolving(Path("/run"), resolve, 15.0, None),
            duration=lambda _, node: milliseconds(1e3 * STEP_SECONDS if node == "inner-step" else 1),
            jitter=0.05,
            climate=Climate(latency=0.001, jitter=0.001, gbits=1.0),
        )
        _run_until(universe, lambda: _merges(universe) >= FIRST_MERGES)
        first, used = _merges(universe), _syncer_seconds(universe)
        _run_until(universe, lambda: universe.phase == "final")
        merges, used = _merges(universe) - first, _syncer_seconds(universe) - used
        universe.run(lambda: universe.outcome is not None, seconds_max=600.0)
    assert universe.outcome == "done"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    found = told("simulated", learners, merges, used)
    return found | {"wall_s": round(time.monotonic() - began, 1), "process_mb": round(most / 1e6)}


def _run_until(universe: Universe, holds: Callable[[], bool]) -> None:
    """Let time pass until something holds, or the run is over; asked now and then, as it looks at every host."""

    def is_there() -> bool:
        return universe.outcome is not None or (universe.events % EVENTS_BETWEEN == 0 and holds())

    universe.run(is_there, seconds_max=600.0)


def _merges(universe: Universe) -> int:
    """The merges that the recorder has heard of."""
    recorder = universe.last(Replica("recorder", 0))
    return 0 if recorder is None else int(recorder.host.published.get("record", {}).get("outer_steps", 0))


def _syncer_seconds(universe: Universe) -> float:
    (syncer,) = [life for life in universe.lives if life.member.replica.role == "syncer"]
    assert isinstance(syncer.clock, TimedClock)
    return syncer.clock.used


def real(learners: int) -> dict[str, Any]:
    """So many learners, each a process of this machine."""
    with tempfile.TemporaryDirectory() as within:
        folder = Path(within) / "run"
        with ordered.running({folder: learners}):
            until = time.monotonic() + 60 + 3 * learners
            while merges_in(folder) < 24:
                assert time.monotonic() < until, "the run does not come to merging"
                time.sleep(0.5)
            status = observed.status(folder)
            pids = {host["name"]: host["pid"] for host in status["hosts"]}
            alive = sum(host["role"] == "learner" and host["phase"] == "stepping" for host in status["hosts"])
            before, used = merges_in(folder), observed.cpu_seconds(pids["syncer/0"])
            time.sleep(LOOK_SECONDS)
            merges, used = merges_in(folder) - before, observed.cpu_seconds(pids["syncer/0"]) - used
            lines = [json.loads(line) for line in (folder / "merges.jsonl").read_text().splitlines()[-merges:]]
            found = told("real", learners, merges, used)
            found["stepping"] = alive
            found["voters_mean"] = round(sum(len(line["voters"]) for line in lines) / len(lines), 1)
            found["own_mb_learner"] = round(own_bytes(pids["learner/0"]) / 1e6, 1)
            found["own_mb_syncer"] = round(own_bytes(pids["syncer/0"]) / 1e6, 1)
            found["load"] = os.getloadavg()[0]
    return found


def merges_in(folder: Path) -> int:
    path = folder / "merges.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def own_bytes(pid: int) -> int:
    """Memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def told(kind: str, learners: int, merges: int, used: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "learners": learners,
        "merges": merges,
        "syncer_ms_per_merge_and_learner": round(1e3 * used / merges / learners, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", default="4,16,64", help="numbers of learners; empty for none")
    parser.add_argument("--simulated", default="4,64,256", help="the same")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for measure, counts in ((real, asked.real), (simulated, asked.simulated)):
        first = None
        for learners in [int(count) for count in counts.split(",") if count]:
            row = measure(learners)
            cost = row["syncer_ms_per_merge_and_learner"]
            first = cost if first is None else first
            rows.append(row | {"ratio": round(cost / first, 3)})
            if not asked.json:
                print(rows[-1], flush=True)
    if asked.json:
        print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
