"""What people do in a loop: the loss of two islands, of which one is killed once, against the script alone, by row.

    python -m tests.bench.long.bench_loops [--seeds 3] [--steps 800] [--only jax] [--kept FILE] [--json FILE] [--page]

It trains the rows of docs/reference/loops.md, which are those of tests/torch_tasks/loops, by the interpreter of
.venv-torch. d is the held-out loss of the model of two islands less that of the script alone, at equal tokens; smaller
is better. A row is within the range of the plain loop if the mean of its d over the seeds is at most the largest d of
the plain loop. Cells are kept, by framework, group of rows and seed. `--page` writes the means into the page.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.kept_cells import KeptCells
from tests.torch_tasks.loops import jax_rows, runs, torch_rows
from tests.torch_tasks.loops.ground import Row, groups_of

ROWS: Final[dict[str, dict[str, Row]]] = {"torch": torch_rows.ROWS, "jax": jax_rows.ROWS}
PATIENCE_SECONDS: Final = 3600.0
PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "loops.md"


def measured(framework: str, names: list[str], seed: int, steps: int) -> dict[str, Any]:
    """The held-out losses of some rows: of the script alone, and of two islands."""
    with tempfile.TemporaryDirectory(prefix="loops-") as folder:
        alone = runs.alone(framework, names, seed, Path(folder), steps=steps, patience=PATIENCE_SECONDS)
        end = runs.islands(framework, names, seed, Path(folder), steps=steps, patience=PATIENCE_SECONDS)
    return {"alone": alone.losses, "islands": end.ends[0].losses, "began_again_at": end.begins[1:]}


def differences(cells: KeptCells, framework: str, group: str, name: str, seeds: int, steps: int) -> list[float]:
    """d of a row, by seed, of the seeds that were measured."""
    found = [cells.get(_cell(framework, group, seed, steps)) for seed in range(seeds)]
    return [each["islands"][name] - each["alone"][name] for each in found if each and name in each["islands"]]


def _cell(framework: str, group: str, seed: int, steps: int) -> str:
    return f"{framework} {group or 'beside'} {seed} {steps}"


def with_means(page: str, means: dict[str, float]) -> str:
    """The page with the means of rows, by title, in its table."""
    for title, mean in means.items():
        head = re.compile(rf"^(\| {re.escape(title)} \| works \| )[^|]+", re.MULTILINE)
        page = head.sub(lambda found, mean=mean: f"{found[1]}{mean:+.3f} ", page)
    return page


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--only", choices=list(ROWS))
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    cells = KeptCells(options.kept)
    frameworks = [options.only] if options.only else list(ROWS)
    for seed in range(options.seeds):
        for framework in frameworks:
            for group, names in groups_of(ROWS[framework]).items():
                cell = _cell(framework, group, seed, options.steps)
                if cell not in cells:
                    cells.keep(cell, measured(framework, names, seed, options.steps))
    figures, means = dict[str, Any](), dict[str, float]()
    print("| row | d by seed | mean | within |\n| --- | --- | --- | --- |")
    for framework in frameworks:
        rows = ROWS[framework]
        plain = differences(cells, framework, "", next(iter(rows)), options.seeds, options.steps)
        for name, row in rows.items():
            each = differences(cells, framework, row.group, name, options.seeds, options.steps)
            mean = sum(each) / len(each)
            is_within = mean <= max(plain)
            means[row.title] = mean
            figures[f"{framework} {name}"] = {"d": each, "mean": mean, "is_within": is_within}
            shown = ", ".join(f"{d:+.3f}" for d in each)
            print(f"| {row.title} | {shown} | {mean:+.3f} | {'yes' if is_within else 'no'} |")
    print(f"\n{cells.told()}")
    if options.page:
        PAGE.write_text(with_means(PAGE.read_text(), means))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
