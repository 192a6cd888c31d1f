"""Four regions on slow links.

    python -m tests.bench.long.bench_regions [--steps N] [--json]

The plan `links/four_regions.toml` (sockets throttled by the proxy of `isthmus chaos`) under decoupled-diloco in bf16
both ways, as it is; then data-parallel on the same links for fewer steps, with half of the model, whose float32
gradients are as many bytes as those of the whole in bf16. For each: seconds from the first inner step to the end, for
each step of a learner; of data-parallel also the quartiles of single steps, because its steps are multiplied: the
factor is what it would take for the tokens that decoupled-diloco trained, over what that took. Beside it, what the
bytes of the ring alone take on the slowest link, if every chunk crossed both of its links at once and no step lost a
moment: no implementation is faster than that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

PLAN: Final = Path(__file__).parents[1] / "links" / "four_regions.toml"
ISTHMUS: Final = Path(sys.executable).with_name("isthmus")
PARAMETERS: Final = 124_416
STEP_SECONDS: Final = 0.05
STEP_TOKENS: Final = 4
BAR: Final = 20.0
MERGED_BAR: Final = 0.8


def run(program: str, task: str, tokens: int, place: Path) -> dict[str, Any]:
    """One run of a program under the plan: its figures, and the seconds of the steps of each learner."""
    text = PLAN.read_text()
    given = tomllib.loads(text)["run"]
    text = text.replace(f'"{given["task"]}"', f'"{PLAN.parent / task}"')
    text = text.replace(f"tokens = {given['tokens']}", f"tokens = {tokens}")
    plan, folder = place / f"{program}-{task.partition(':')[2]}.toml", place / f"{program}-{task.partition(':')[2]}"
    plan.write_text(text)
    command = [str(ISTHMUS), "chaos", str(plan), program, "--json", "--run-dir", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    own = folder / program / "undisturbed"
    summary = json.loads((own / "summary.json").read_text())
    steps = [step_seconds(own, learner) for learner in range(summary["learners"])]
    return {
        "seconds": summary["wall_seconds"],
        "tokens": summary["tokens_total"],
        "seconds_a_step": summary["wall_seconds"] * summary["learners"] * STEP_TOKENS / summary["tokens_total"],
        "step_quartiles": statistics.quantiles([each for learner in steps for each in learner], n=4),
        "merged_share": summary["merged_share"],
        "pending_share": summary["tokens_pending"] / summary["tokens_total"],
        "overlapped_share": summary["tokens_overlapped"] / summary["tokens_total"],
        "waits": figures["waits_on_other_hosts"],
        "outcome": summary["outcome"],
    }


def step_seconds(folder: Path, learner: int) -> list[float]:
    """Seconds of a step between two reports of a learner, without the first."""
    told = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    at = [(each["time"], each["step"]) for each in told if each.get("learner") == learner and each.get("step")]
    pairs = list(pairwise(at))[1:]
    return [(after - before) / (last - first) for (before, first), (after, last) in pairs if last > first]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="of each learner, under data-parallel")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    plan = tomllib.loads(PLAN.read_text())
    learners, slowest = plan["run"]["learners"], min(plan["links"]["kbits"]) * 1e3
    with tempfile.TemporaryDirectory() as place:
        few = asked.steps * learners * STEP_TOKENS
        ours = run("decoupled-diloco", "paced.py:regions", plan["run"]["tokens"], Path(place))
        half = run("data-parallel", "paced.py:regions_half", few, Path(place))
    least = STEP_SECONDS + 2 * (learners - 1) / learners * 16 * PARAMETERS / slowest
    factors = {
        "the same format": half["seconds_a_step"] / ours["seconds_a_step"],
        "its bytes alone": least / ours["seconds_a_step"],
    }
    if asked.json:
        print(json.dumps({"decoupled": ours, "data_parallel": half, "factors": factors}))
        return
    for name, each in (("decoupled-diloco", ours), ("data-parallel, bf16", half)):
        quartiles = ", ".join(f"{second:.3f}" for second in each["step_quartiles"])
        print(f"{name:24} {each['seconds']:7.1f} s, {each['seconds_a_step']:.4f} s a step (single ones {quartiles})")
    shares = ", ".join(f"{share} {ours[f'{share}_share']:.3f}" for share in ("merged", "overlapped", "pending"))
    print(f"decoupled-diloco: {shares} (the aim is {MERGED_BAR} merged); {ours['waits']} waits for other hosts")
    for name, factor in factors.items():
        print(f"data-parallel, {name} / decoupled-diloco {factor:6.1f}   (the aim is {BAR:.0f})")


if __name__ == "__main__":
    main()
