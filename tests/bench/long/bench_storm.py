"""A storm: 32 learners whose steps sleep, and processes killed 125 times an hour, and 1,250 times.

    python -m tests.bench.long.bench_storm [--learners 32] [--minutes 30] [--an-hour 125] [--an-hour 1250]
        [--step-seconds .01] [--seed 0] [--dir DIR] [--json]

For each rate `isthmus chaos` trains decoupled-diloco twice, calm and under kills at the moments of a Poisson process:
any of the learners, the syncer, the recorder and the evaluator, each as likely. Real processes on this machine; each
step takes its seconds asleep, so that islands do not share its cores. DIR has a page with a picture for each rate,
`chaos.html`, one file that loads nothing. The table: tokens a second of the calm ones; the mean number of learners in a
merge, of the calm one's; seconds from a kill until the process, or its next life, works, of learners and of all; waits
of learners on other hosts while they were not struck themselves; tokens that are lost; losses.

Published by others: 97.7 % of tokens, 16 of 32 learners in a merge, and 149 s to work again at 125 an hour (ft-diloco).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.observed import COMMAND
from tests.bench.poisson_kills import poisson_kills

TASK: Final = Path(__file__).parents[1] / "links" / "paced.py"
PROGRAM: Final = "decoupled-diloco"
BATCH_TOKENS: Final = 4
"""Of `small`: ROWS."""
BARS: Final = {125.0: (0.97, 0.95), 1250.0: (0.90, 0.9)}
"""Faults an hour -> the least share of calm tokens, and of calm participation."""
WORK_SECONDS_BAR: Final = 3.0


def plan(asked: argparse.Namespace, an_hour: float) -> str:
    """The plan of `isthmus chaos` for a rate, TOML."""
    tokens = round(asked.learners * BATCH_TOKENS * 60 * asked.minutes / asked.step_seconds)
    hosts = [f"learner/{slot}" for slot in range(asked.learners)] + ["syncer/0", "recorder/0", "evaluator/0"]
    return poisson_kills(
        f"{TASK}:small",
        hosts,
        learners=asked.learners,
        tokens=tokens,
        mean_seconds=3600 / an_hour,
        seed=asked.seed,
    )


def storm(asked: argparse.Namespace, an_hour: float, folder: Path) -> dict[str, Any]:
    """Both runs of a rate; returns the figures."""
    folder.mkdir(parents=True)
    path = folder / "plan.toml"
    path.write_text(plan(asked, an_hour))
    command = [*COMMAND, "chaos", str(path), PROGRAM, "--json"]
    environment = {**os.environ, "PACED_STEP_SECONDS": str(asked.step_seconds)}
    done = subprocess.run(
        [*command, "--run-dir", str(folder / "runs")], env=environment, stdout=subprocess.PIPE, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    [run] = json.loads(done.stdout)["runs"]
    struck, calm = (_summary(Path(run["folder"]).parent / name) for name in ("plan", "undisturbed"))
    return {"an_hour": an_hour, **figures(run, struck, calm)}


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def figures(run: dict[str, Any], struck: dict[str, Any], calm: dict[str, Any]) -> dict[str, Any]:
    """The figures of a rate, from what `isthmus chaos` tells and the two summaries."""
    back = [each for each in run["recoveries"] if each["seconds"] is not None]
    learners = [each["seconds"] for each in back if each["role"] == "learner"]
    faults = [each for each in run["faults"] if each["proof"]]
    return {
        "faults": len(faults),
        "unproved": len(run["faults"]) - len(faults),
        "tokens_of_calm": _rate(struck) / _rate(calm),
        "contributors": struck["contributors_mean"],
        "participation_of_calm": struck["contributors_mean"] / calm["contributors_mean"],
        "work_seconds_learner": _spread(learners),
        "work_seconds": _spread([each["seconds"] for each in back]),
        "not_back": len(run["recoveries"]) - len(back),
        "waits": run["waits_on_other_hosts"],
        "tokens_lost_share": struck["tokens_lost"] / struck["tokens_total"],
        "loss": run["eval_loss_final"],
        "loss_calm": run["eval_loss_undisturbed"],
        "seconds": run["seconds"],
        "seconds_calm": run["seconds_undisturbed"],
        "books_differ": len(struck["books"]["differences"]),
    }


def _rate(summary: dict[str, Any]) -> float:
    """Tokens a second that were not lost, from the first step on."""
    kept: float = summary["tokens_total"] - summary["tokens_lost"]
    return kept / summary["wall_seconds"]


def _spread(seconds: Sequence[float]) -> list[float] | None:
    """Median, least and most; None of nothing."""
    return [statistics.median(seconds), min(seconds), max(seconds)] if seconds else None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rates beside each other, in Markdown."""
    head = [f"{row['an_hour']:g} an hour" for row in rows]
    lines = [["", *head], ["---"] * (len(rows) + 1)]

    def line(name: str, words: Sequence[str]) -> None:
        lines.append([name, *words])

    line("kills, all proved by /proc", [f"{row['faults']}" for row in rows])
    line("tokens a second, of calm", [f"{row['tokens_of_calm']:.3f}" for row in rows])
    line("participation, of calm", [f"{row['participation_of_calm']:.3f}" for row in rows])
    line("learners in a merge", [f"{row['contributors']:.1f}" for row in rows])
    for name, key in (
        ("kill to work, a learner, s", "work_seconds_learner"),
        ("kill to work, any, s", "work_seconds"),
    ):
        line(name, [_words(row[key]) for row in rows])
    line("tokens lost", [f"{row['tokens_lost_share']:.4f}" for row in rows])
    line("waits on other hosts", [f"{row['waits']}" for row in rows])
    line("loss; calm", [f"{_number(row['loss'])}; {_number(row['loss_calm'])}" for row in rows])
    return "\n".join(f"| {' | '.join(words)} |" for words in lines)


def _words(spread: list[float] | None) -> str:
    return "none" if spread is None else f"{spread[0]:.2f} ({spread[1]:.2f} to {spread[2]:.2f})"


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"


def missed(row: dict[str, Any]) -> list[str]:
    """The bars that a rate misses."""
    tokens, participation = BARS.get(row["an_hour"], (0.0, 0.0))
    back = row["work_seconds_learner"]
    found = {
        f"tokens of calm >= {tokens}": row["tokens_of_calm"] >= tokens,
        f"participation of calm >= {participation}": row["participation_of_calm"] >= participation,
        f"kill to work <= {WORK_SECONDS_BAR} s": back is not None and back[0] <= WORK_SECONDS_BAR,
        "every kill is proved": row["unproved"] == 0,
        "the books agree": row["books_differ"] == 0,
    }
    return [words for words, holds in found.items() if not holds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the calm run")
    parser.add_argument("--an-hour", type=float, action="append", help="faults; may be repeated")
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    folder = asked.dir or Path(tempfile.mkdtemp(prefix="storm-"))
    rows = []
    for an_hour in asked.an_hour or list(BARS):
        rows.append(storm(asked, an_hour, folder / f"{an_hour:g}"))
        print(json.dumps(rows[-1]), file=sys.stderr)
    if asked.json:
        print(json.dumps(rows))
    else:
        print(table(rows))
        print("\n".join(f"{row['an_hour']:g} an hour misses: {', '.join(missed(row)) or 'nothing'}" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
