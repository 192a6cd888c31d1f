"""One fragment all the way round, at the size that a large model has.

    python -m tests.bench.long.bench_fragment [--json]

A model of one tensor of `--values`, in as many fragments as `--fragments`, whose step does next to nothing; learners,
a shard and a recorder are processes of this machine, by `isthmus train` with a program that has nothing else
(`fragment/exchange.py`). Told are the medians of what the runtime's own functions take, of merges and last merges: a
learner's extract, its answer (outer gradient, norms, codes), the way to the shard (from the last answer that was made
to the merge that begins), the merge with its checks, the outer step with its code, the way back and its decoding (from
the outer step's end to the adoption's begin), adoption. `round` is from the first extract to the last adoption: other
learners' steps are in it, and the digests that are made for the comparison, which no stage has in it.

What is compared: the bytes that the shard publishes, those that each learner adopts, and those that it then holds,
which are the same where it trains in float32, and rounded to its dtype elsewhere.
Memory is each host's highest (VmHWM), with pages of libraries, and what all processes of the run had together at the
highest, without those. A run that needs more than is free is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
ISTHMUS = str(Path(sys.executable).with_name("isthmus"))
STAGES = ("extract", "answer", "way to the shard", "merge", "outer step", "way back", "decode", "adopt", "round")
Line = dict[str, Any]
PACE_SECONDS = 0.05
"""A step takes no less, so that a small model, too, is exchanged some times before its tokens are spent."""
SAMPLE_SECONDS = 0.05
CODED = {"float32": 1.0, "bf16": 0.5, "int8": 0.26, "int4": 0.13}
"""Bytes of an answer, as a part of those in float32; scales are in it."""
HOST_BYTES = 200 << 20
"""What a learner or a shard takes whatever the model is; and command, daemon, fork server and recorder together, with
what the reckoning missed at 1.2 billion values."""
OTHERS_BYTES = 800 << 20


def available_bytes() -> int:
    """Memory that this machine has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def needed_bytes(asked: argparse.Namespace, code: str) -> int:
    """What the processes take together at most, nearly: while all learners answer at once for the last versions.

    A learner has its state and anchors then, captures of all fragments, each of which a gradient replaces, and one more
    while that is made; the shard its values, and what it has published where that is coded. Merges and adoptions take
    less where few learners answer: of a fragment an answer of each, direction, new values and, coded, what is published
    of them. Where updates are coded, free blocks of the last seconds come to a fragment more, measured at 500 million
    values.
    """
    values, fragment = 4 * asked.values, 4 * asked.values // asked.fragments
    state, is_coded = (values if asked.dtype == "float32" else values // 2), code != "float32"
    held = asked.learners * (state + values) + values * (1 + is_coded)
    answers = int(asked.learners * fragment * CODED[code])
    answering = asked.learners * (values + fragment) + (answers + fragment if is_coded else 0)
    merging = fragment * (2 + is_coded) + answers
    return held + max(answering, merging) + (asked.learners + 1) * HOST_BYTES + OTHERS_BYTES


def train(asked: argparse.Namespace, code: str, folder: Path) -> tuple[list[Line], int]:
    """What all hosts of a run have told, in its order; and the most memory that its processes had together, bytes."""
    (folder / "told").mkdir(parents=True)
    command = [ISTHMUS, "train", f"{HERE}/fragment/exchange.py:build", "--learners", str(asked.learners), "--quiet"]
    task = f"values = {asked.values}, tensors = {asked.fragments}, dtype = '{asked.dtype}', seconds = {PACE_SECONDS}"
    command += ["--task", f"{HERE}/memory/plain.py:task({task})"]
    command += ["--tokens", str(asked.steps * asked.learners), "--run-dir", str(folder / "run")]
    command += ["--set", f"program.fragments={asked.fragments}", "--set", f"program.code={code}"]
    environment = {**os.environ, "FRAGMENT_FOLDER": str(folder / "told"), "PYTHONPATH": str(HERE / "fragment")}
    together = 0
    with subprocess.Popen(command, env=environment) as running:
        while running.poll() is None:
            together = max(together, sum(map(own_bytes, descendants(running.pid))))
            time.sleep(SAMPLE_SECONDS)
    if running.returncode:
        raise SystemExit(running.returncode)
    told = [json.loads(line) for path in (folder / "told").glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(told, key=lambda line: line["at"]), together


def descendants(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children[int(path.read_text().rpartition(")")[2].split()[1])].append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def own_bytes(pid: int) -> int:
    """Resident memory of a process without files; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return 0


def check(told: list[Line]) -> int:
    """How many adoptions had the bytes that were published, and were then held; SystemExit for one that had not."""
    published = {line["digest"] for line in told if line["stage"] == "outer step"} - {None}
    adopted = [line for line in told if line["stage"] == "adopt"]
    for line in adopted:
        if line["given"] not in published or line["held"] != line["expected"]:
            raise SystemExit(f"other bytes were adopted than published: {line}")
    if not adopted:
        raise SystemExit("nothing was adopted")
    return len(adopted)


def stages(told: list[Line], learners: int) -> dict[str, list[float]]:
    """Seconds of each stage, of the rounds that all learners answered."""
    found: dict[str, list[float]] = defaultdict(list)
    by_stage = {stage: [line for line in told if line["stage"] == stage] for stage in {line["stage"] for line in told}}

    def newest(stage: str, p: int, before: float, kinds: tuple[str, ...] = ()) -> list[Line]:
        lines = [line for line in by_stage.get(stage, []) if line.get("fragment", p) == p and line["at"] <= before]
        return [line for line in lines if not kinds or line["kind"] in kinds]

    for merge in by_stage["merge"]:
        if merge["kind"] not in ("merge", "final") or merge["answers"] < learners:
            continue
        p, begun = merge["fragment"], merge["at"] - merge["seconds"]
        answers = newest("answer", p, begun, ("merge", "final"))[-learners:]
        extracts = newest("extract", p, answers[0]["at"])[-learners:]
        outer = next(each for each in by_stage["outer step"] if each["fragment"] == p and each["at"] > merge["at"])
        adopted = [each for each in by_stage["adopt"] if each["fragment"] == p and each["at"] > outer["at"]][:learners]
        if len(adopted) < learners:
            continue
        decoded = [
            each for each in by_stage.get("decode", []) if each["did"] and outer["at"] < each["at"] < adopted[-1]["at"]
        ]
        found["extract"] += [each["seconds"] for each in extracts]
        found["answer"] += [each["seconds"] for each in answers]
        found["way to the shard"].append(begun - answers[-1]["at"])
        found["merge"].append(merge["seconds"])
        found["outer step"].append(outer["seconds"])
        found["way back"] += [each["at"] - each["seconds"] - outer["at"] for each in adopted]
        found["decode"] += [each["seconds"] for each in decoded]
        found["adopt"] += [each["seconds"] for each in adopted]
        found["round"].append(adopted[-1]["at"] - extracts[0]["at"] + extracts[0]["seconds"])
    if not found:
        raise SystemExit("expected a round that all learners answered and adopted, found none: ask for more --steps")
    return found


def measure(asked: argparse.Namespace, code: str) -> dict[str, Any]:
    """One run."""
    size = 4 * asked.values // asked.fragments
    needed = needed_bytes(asked, code)
    if (left := available_bytes()) < needed:
        raise SystemExit(
            f"expected {needed / 1e9:.1f} GB of memory that is free, found {left / 1e9:.1f}: ask for less."
        )
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        told, together = train(asked, code, Path(folder))
    peaks: dict[str, int] = defaultdict(int)
    for line in told:
        peaks[line["host"]] = max(peaks[line["host"]], line["peak"])
    sent = [line["bytes"] for line in told if line["stage"] == "answer" and line["kind"] in ("merge", "final")]
    return {
        "values": asked.values,
        "fragment_bytes": size,
        "code": code,
        "adoptions_equal": check(told),
        "answer_bytes": statistics.median(sent),
        "seconds": dict(stages(told, asked.learners)),
        "peaks": dict(sorted(peaks.items())),
        "together": together,
        "needed": needed,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=500_000_000)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--dtype", default="float32", help="of the parameters where they are trained")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--codes", nargs="+", default=["float32", "int4"])
    parser.add_argument("--folder", help="where the run folders are made, for a while")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for code in asked.codes:
        found = measure(asked, code)
        if asked.json:
            print(json.dumps(found), flush=True)
            continue
        size = found["fragment_bytes"] / 1e9
        print(f"{code}: {asked.fragments} x {size:.2f} GB of parameters, {asked.learners} learners")
        print(f"  {found['adoptions_equal']} adoptions, each of the bytes that were published, and held then")
        print(f"  an answer: {found['answer_bytes'] / 1e6:.1f} MB")
        for stage in STAGES:
            if seconds := found["seconds"].get(stage):
                spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                print(f"  {stage:18}{statistics.median(seconds):8.2f} s   {spread}, {len(seconds)} of them")
        for host, peak in found["peaks"].items():
            print(f"  {host:18}{peak / 1e9:8.2f} GB, {peak / (4 * asked.values):.2f} x parameters")
        print(f"  {'together':18}{found['together'] / 1e9:8.2f} GB, reckoned with {found['needed'] / 1e9:.2f}")


if __name__ == "__main__":
    main()
