"""Whether models beside the dense transformer learn together: four learners, and one alone on a quarter of the tokens.

    python -m tests.bench.long.bench_models [--seeds 3] [--model experts|digits] [--json]

Decoupled DiLoCo in one process. `experts`: the shipped task with 4 experts, of which each token goes to 2, on 1,020,000
tokens, as in the table of README; `digits`: `docs/examples/digits.py`, on 12,800 images. A figure is the median over
the seeds, and the lowest and highest; the loss is of held-out data.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from isthmus import Program, Task, train

LEARNERS = 4
DIGITS = Path(__file__).resolve().parents[3] / "docs" / "examples" / "digits.py"


class Model(NamedTuple):
    """What is trained, with which program, and on how many tokens by four learners."""

    task: Callable[[], Task]
    program: Program
    tokens: int
    metric: str


def _experts() -> Task:
    from isthmus.programs.language_model import task

    return task(experts=4)


def _digits() -> Task:
    found: Task = runpy.run_path(str(DIGITS), run_name="digits")["task"]
    return found


MODELS = {
    "experts": Model(_experts, Program("decoupled-diloco"), 1_020_000, "balance"),
    "digits": Model(_digits, Program("decoupled-diloco", interval=12, fragments=2), 12_800, "accuracy"),
}


def run(model: Model, learners: int, seed: int) -> dict[str, Any]:
    """The held-out figures of one run; each learner has the same share of the tokens, however many there are."""
    tokens = model.tokens * learners // LEARNERS
    wanted: dict[str, Any] = {
        "learners": learners,
        "tokens": tokens,
        "seed": seed,
        "transport": "inproc",
        "quiet": True,
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        summary = train(model.program, model.task(), run_dir=Path(folder, "run"), **wanted).summary
    return {
        "learners": learners,
        "seed": seed,
        "loss": summary["eval_loss_final"],
        model.metric: summary["eval_metrics"][model.metric],
        "contributors": summary["contributors_mean"],
    }


def spread(values: list[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", choices=tuple(MODELS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for name, model in MODELS.items():
        if asked.model not in (None, name):
            continue
        for learners in (LEARNERS, 1):
            runs = [run(model, learners, seed) for seed in range(asked.seeds)]
            if asked.json:
                print(*(json.dumps({"model": name, **each}) for each in runs), sep="\n", flush=True)
                continue
            figures = [f"{key} {spread([each[key] for each in runs])}" for key in ("loss", model.metric)]
            print(f"{name:8} {learners} learners  {'   '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
