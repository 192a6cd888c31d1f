"""Ranks that hang, a rank that dies, and a rank that works for long: what becomes of their island and of another one.

    .venv-torch/bin/python -m tests.bench.long.bench_hanging_ranks [--bound 20] [--calm 30] [--json]

One run of two islands, each of two ranks of DDP on gloo, whose steps take 50 ms and next to no core. In island 1 rank 0
waits in a collective operation that rank 1 never makes; then its next life loses rank 1 by SIGKILL; then rank 0 of
island 0 works for three times the bound (`run.rank_seconds`), while its rank 1 waits in a barrier. The ranks write when
they make each step, so that nothing asks them. From the last step of a life it takes so long until it has ended, until
the next one is started, and until that makes its first step, once it has imported torch. `pace` are the steps a second
of island 0 from the one step to the other, over those of the calm time before.

Bars, at a bound of 20 s: started within 40 s and 20 s, .98 each, and nobody ended while one works. Exit status 1 below
one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.runtime.supervision.incidents import Ended, Exited
from isthmus.runtime.system.processes import RANKS_HUNG
from tests.bench.place import CPU_INFO, commit, kind_of
from tests.programs.engine.run.process_run import FOREVER, Run

STEP_SECONDS: Final = 0.05
HANGS, DIES, PACE = 40.0, 20.0, 0.98
"""The bars: seconds until the island is started again, and the pace of the other one."""


def loop(folder: Path) -> None:
    """The script of a rank."""
    import torch
    import torch.distributed as dist

    import isthmus

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with isthmus.island(model, optimizer) as island:
        own = folder / f"{island.slot}-{rank}"
        own.with_suffix(".pid").write_text(str(os.getpid()))
        asked = folder / f"ask-{island.slot}"
        with own.open("a", buffering=1) as stamps:
            while not island.is_over:
                time.sleep(STEP_SECONDS)
                x = torch.randn(16, 32)
                loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                told = torch.tensor([float(asked.exists())])
                dist.broadcast(told, 0)
                if told.item():
                    _do(asked, rank, stamps)
                island.step(loss, tokens=16)
                stamps.write(f"{os.getpid()} {time.monotonic()}\n")


def _do(asked: Path, rank: int, stamps: Any) -> None:
    """What a file asks for: to hang, or that rank 0 works for so many seconds."""
    import torch.distributed as dist

    dist.barrier()  # Both have seen it.
    what, seconds = asked.read_text().split() if rank == 0 else ("", "0")
    if what == "hang":
        asked.unlink()
        dist.broadcast_object_list(["hang"], 0)
    elif rank == 0:
        asked.unlink()
        dist.broadcast_object_list(["work"], 0)
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            sum(range(10_000))
        dist.barrier()
        stamps.write(f"worked {time.monotonic()}\n")
    if rank:
        found = [""]
        dist.broadcast_object_list(found, 0)
        what = found[0]
        if what == "work":
            dist.barrier()
    if what == "hang":
        time.sleep(36_000 * rank)
        dist.barrier()  # It never returns.


class Life(NamedTuple):
    """What one of island 1's ends has come to."""

    ended_s: float
    started_s: float
    stepped_s: float
    pace: float


class Stamps:
    """When ranks have made their steps."""

    def __init__(self, folder: Path, events: Path, calm: float) -> None:
        self._folder, self._events, self._calm = folder, events, calm

    def of(self, slot: int) -> list[tuple[str, float]]:
        """(process, instant) of the steps of an island's rank 0."""
        path = self._folder / f"{slot}-0"
        rows = path.read_text().splitlines() if path.exists() else []
        return [(who, float(at)) for who, at in (row.split() for row in rows if row.count(" ") == 1)]

    def life(self, process: str) -> Life | None:
        """That of the end of a process of island 1; None where no other one has made a step since."""
        steps = self.of(1)
        last = max(at for who, at in steps if who == process)
        later = [at for who, at in steps if at > last]
        if not later:
            return None
        stepped = later[0] - last
        others = [at for _, at in self.of(0)]
        meanwhile = sum(last < at <= later[0] for at in others) / stepped
        before = sum(last - self._calm < at <= last for at in others) / self._calm
        ended, started = (self._event(kind, last) - last for kind in ("ended", "restarted"))
        return Life(ended, started, stepped, meanwhile / before)

    def _event(self, kind: str, since: float) -> float:
        """When that was first said of island 1, after an instant."""
        rows = [json.loads(line) for line in self._events.read_text().splitlines()]
        found = [row["at"] / 1e9 for row in rows if (row["host"], row["kind"]) == ("learner/1", kind)]
        return min(at for at in found if at > since)


def measure(bound: float, calm: float) -> dict[str, Any]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = ("--loop", __file__, "--ranks", "2", "--set", f"run.rank_seconds={bound}")
        root = str(Path(__file__).parents[3])
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        (folder / "stamps").mkdir()
        run = Run(folder, *options, learners=2, tokens=FOREVER, after=("--", "loop", str(folder / "stamps")))
        try:
            return _measured(
                run, Stamps(folder / "stamps", run.folder / "events.jsonl", calm), folder / "stamps", bound, calm
            )
        finally:
            run.close()


def _measured(run: Run, stamps: Stamps, folder: Path, bound: float, calm: float) -> dict[str, Any]:
    def since(slot: int) -> float:
        """For how long the present life of an island has made steps."""
        steps = stamps.of(slot)
        return steps[-1][1] - min(at for who, at in steps if who == steps[-1][0]) if steps else 0.0

    def next_life(what: str) -> Life:
        process = stamps.of(1)[-1][0]
        _say(f"{what}: island 1")
        if what == "hangs":
            (folder / "ask-1").write_text("hang 0")
        else:
            os.kill(int((folder / "1-1.pid").read_text()), signal.SIGKILL)
        life: Life = run.wait_for(lambda: stamps.life(process), 10 * bound)
        _say(str(life))
        return life

    def is_calm() -> bool:
        return since(0) > calm and since(1) > calm

    run.wait_for(is_calm, 20 * calm)
    hung = next_life("hangs")
    (ended,) = [each for each in run.incidents("learner/1#1") if isinstance(each, Ended)]
    is_told = isinstance(ended.end, Exited) and ended.end.status == RANKS_HUNG and len(ended.end.places) == 2
    run.wait_for(is_calm, 20 * calm)
    died = next_life("dies")
    run.wait_for(is_calm, 20 * calm)
    _say("works: rank 0 of island 0")
    (folder / "ask-0").write_text(f"work {3 * bound}")
    run.wait_for(lambda: any(who == "worked" for who, _ in stamps.of(0)), 10 * bound)
    run.wait_for(lambda: stamps.of(0)[-1][0] != "worked", 10 * bound)
    ends = {life: len([each for each in run.incidents(life) if isinstance(each, Ended)]) for life in _LIVES}
    return {
        "bound": bound,
        "hangs": {**hung._asdict(), "told_with_places": is_told},
        "dies": died._asdict(),
        "works": {"seconds": 3 * bound, "ended": ends["learner/0#1"] + ends["learner/1#3"]},
        "load": os.getloadavg()[1],
        "cpu": kind_of(CPU_INFO.read_text(), os.cpu_count()),
        "commit": commit(),
    }


_LIVES: Final = ("learner/0#1", "learner/1#3")
"""Those that are there while one rank works."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def missed(found: dict[str, Any]) -> Sequence[str]:
    """The bars that were missed; those of seconds are for a bound of 20 s, and grow with it."""
    later, hangs, dies = found["bound"] - 20.0, found["hangs"], found["dies"]
    bars = {
        "hangs: started": hangs["started_s"] <= HANGS + later,
        "hangs: pace": hangs["pace"] >= PACE,
        "hangs: told": hangs["told_with_places"],
        "dies: started": dies["started_s"] <= DIES,
        "dies: pace": dies["pace"] >= PACE,
        "works: ended": found["works"]["ended"] == 0,
    }
    return [name for name, is_met in bars.items() if not is_met]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bound", type=float, default=20.0)
    parser.add_argument("--calm", type=float, default=30.0, help="seconds of steps before each of the three")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.bound, asked.calm)
    if asked.json:
        print(json.dumps(found))
    else:
        print(f"run.rank_seconds {found['bound']:.0f}; load {found['load']:.1f}, {found['cpu']}, {found['commit']}")
        for name in ("hangs", "dies"):
            one = found[name]
            times = f"ended after {one['ended_s']:.1f} s, started after {one['started_s']:.1f} s"
            print(f"{name}: {times}, stepped after {one['stepped_s']:.1f} s; pace beside it {one['pace']:.3f}")
        print(f"works for {found['works']['seconds']:.0f} s: {found['works']['ended']} ended")
    for each in missed(found):
        _say(f"missed: {each}")
    return 1 if missed(found) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["loop"]:
        loop(Path(sys.argv[2]))
    else:
        sys.exit(main())
