"""What the hosts of a large run take of memory at most, in sizes of its parameters; with snapshots and without.

    python -m tests.bench.bench_memory [--steps 24] [--every 15 86400] [--task TASK] [--learners 2] [--default] [--json]

gpt-124m by AdamW, contexts of 128, one sequence a batch, H = 4, 8 fragments, float32 on the wire (`--default`: what a
run has that sets none of these), processes on this machine: with two learners 17 GB and two to five minutes for each
value of `--every`, the seconds between two snapshots. Of each host its peak resident memory (VmHWM), which counts pages
of libraries, of files and of segments that it has mapped, each once for every host that has it; and the most of its
proportional set (PSS) that was seen, twice a second, in which a page that four hosts have is a quarter in each: the sum
over hosts is what the run takes. *Beyond idle* is a peak less that of the same host in a run of a model of 21 thousand
values. Of what crossed between hosts of the machine the bytes that were handed over, counted by each receiver, and
those that were moved: by sockets, or into shared memory, once for all that read them. Of learners and evaluator a CPU
device's memory is in both: parameters, moments, gradients and what the step computes. Of merges the longest time from
the last answer to the published version, which a snapshot would lengthen if a merge waited for it. `--task
torch_tasks.py:GPT_124M`, where PyTorch is installed (`.venv-torch`): as large a model in PyTorch.

`--home` measures the daemon and the recorder alone, of a run with a made shard (`memory/made_shard.py`), whose states
share their memory: a model of 2 GB with its momentum, in 8 fragments, ten versions a second, snapshots every ten
seconds, beside one of 31 kB. Some 14 GB of disk, three minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from isthmus.programs.wings.borders import borders
from isthmus.runtime.system.memory import proportional_bytes
from tests.bench import observed

HERE = Path(__file__).parent
ISTHMUS = str(Path(sys.executable).with_name("isthmus"))
CONTEXT = 128


def peaks(command: list[str], folder: Path, *, has_daemon: bool = False) -> tuple[dict[str, int], dict[str, int]]:
    """Host -> the most bytes that it had resident, and of its proportional set; over its lives, from start to end."""
    found: dict[str, int] = defaultdict(int)
    shares: dict[str, int] = defaultdict(int)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        pids: dict[str, int] = {}
        while process.poll() is None:
            if (folder / "spec.json").exists():
                pids |= {name: pid for name, pid in _pids(folder).items() if has_daemon or name != "daemon"}
            for _ in range(10):
                for name, pid in pids.items():
                    found[name] = max(found[name], _peak(pid))
                    shares[name] = max(shares[name], proportional_bytes(pid) or 0)
                time.sleep(0.5)
        assert process.stderr is not None
        if process.returncode:
            raise SystemExit(process.stderr.read().decode())
    return dict(sorted(found.items())), dict(sorted(shares.items()))


def _pids(folder: Path) -> dict[str, int]:
    return {host["name"]: host["pid"] for host in observed.status(folder)["hosts"] if host.get("pid")}


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


IDLE = f"{HERE}/memory/large.py:IDLE"
HELD = ["--set", "program.interval=4", "--set", "program.fragments=8", "--set", "program.push=float32"]


def run(task: str, learners: int, seconds: float, steps: int, folder: Path, held: list[str]) -> dict[str, Any]:
    """What one run takes."""
    command = [ISTHMUS, "train"]
    command += ["--task", task, "--learners", str(learners)]
    command += ["--tokens", str(steps * learners * CONTEXT)]
    command += [*held, "--run-dir", str(folder), "--set", f"run.snapshot_every_seconds={seconds}"]
    found, shares = peaks(command, folder)
    merges = [json.loads(line) for line in (folder / "merges.jsonl").read_text().splitlines()]
    took = [merge["merge_ms"] for merge in merges if merge["kind"] == "merge" and merge.get("merge_ms") is not None]
    summary = json.loads((folder / "summary.json").read_text())
    layout = json.loads((folder / "spec.json").read_text())["job"]["layout"]
    crossed = borders.read(folder)
    return {
        "seconds": seconds,
        "peaks": found,
        "proportional": shares,
        "model_bytes": sum(4 * math.prod(shape) for _, shape, *_ in layout),
        "handed_bytes": sum(each.size_bytes for sums in crossed.within.values() for each in sums),
        "moved_bytes": crossed.within_moved_bytes,
        "merges": len(took),
        "merge_ms": sorted(took)[len(took) // 2] if took else None,
        "merge_ms_max": max(took, default=None),
        "outcome": summary["outcome"],
    }


MADE = f"{HERE}/memory/made_shard.py"
HOME = ("daemon", "recorder/0")


def home(steps: int, folder: Path) -> dict[str, Any]:
    """What the home of a made model takes."""
    found: dict[str, dict[str, int]] = {}
    for name in ("MADE_31KB", "MADE_2GB"):
        command = [ISTHMUS, "train", f"{MADE}:build", "--task", f"{MADE}:{name}", "--learners", "1"]
        command += ["--tokens", str(steps), "--run-dir", str(folder / name)]
        command += ["--set", "run.snapshot_every_seconds=10"]
        found[name] = peaks(command, folder / name, has_daemon=True)[0]
    layout = json.loads((folder / "MADE_2GB" / "spec.json").read_text())["job"]["layout"]
    manifest = json.loads((folder / "MADE_2GB" / "snapshots" / "manifest.json").read_text())
    model = sum(4 * math.prod(shape) for _, shape, *_ in layout)
    return {
        "model_bytes": model,
        "snapshots": manifest["number"],
        "peaks": {name: found["MADE_2GB"][name] for name in HOME},
        "idle": {name: found["MADE_31KB"][name] for name in HOME},
        "models": sum(found["MADE_2GB"][name] for name in HOME) / model,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=float, nargs="+", default=[15.0, 86400.0])
    parser.add_argument("--task", default=f"{HERE}/memory/large.py:GPT_124M")
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--default", action="store_true", help="the settings of a run that sets none")
    parser.add_argument("--home", action="store_true", help="the daemon and the recorder of a made model")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.home:
        with tempfile.TemporaryDirectory() as folder:
            at_home = home(600, Path(folder))
        if asked.json:
            print(json.dumps(at_home))
            return
        print(f"{at_home['snapshots']} snapshots of a model of {at_home['model_bytes'] / 1e9:.2f} GB")
        for name, peak in at_home["peaks"].items():
            print(f"  {name:14}{peak / 1e6:8.0f} MB, of no model {at_home['idle'][name] / 1e6:.0f} MB")
        print(f"  together {at_home['models']:.2f} models")
        return
    with tempfile.TemporaryDirectory() as folder:
        held = [] if asked.default else HELD
        idle = run(IDLE, asked.learners, 86400.0, 400, Path(folder) / "idle", held)["peaks"]
        found = [
            {**run(asked.task, asked.learners, seconds, asked.steps, Path(folder) / f"run-{n}", held), "idle": idle}
            for n, seconds in enumerate(asked.every)
        ]
    if asked.json:
        print(json.dumps(found))
        return
    for told in found:
        print(f"snapshots every {told['seconds']:g} s: {told['outcome']}, {told['merges']} merges", end="")
        print(f", {told['merge_ms']} ms in the median, {told['merge_ms_max']} at most")
        for name, peak in told["peaks"].items():
            share = told["proportional"][name] / told["model_bytes"]
            idle_bytes = told["idle"].get(name)  # A host may be gone before it is seen.
            beyond = "?" if idle_bytes is None else f"{(peak - idle_bytes) / told['model_bytes']:.2f}"
            print(f"  {name:14}{peak / 1e9:6.2f} GB {peak / told['model_bytes']:6.2f} x parameters", end="")
            print(f", {beyond} beyond idle, {share:.2f} PSS")
        handed, moved = (told[f"{name}_bytes"] / told["model_bytes"] for name in ("handed", "moved"))
        print(f"  within the machine: {handed:.1f} x parameters handed over, {moved:.1f} moved")


if __name__ == "__main__":
    main()
