"""The published line at a size that two cores cannot train: what merging costs M learners, for one GPU.

    python -m tests.bench.long.bench_line [--tiny | --long] [--data FOLDER] [--minutes 10] [--seeds N]
        [--optimizer adamw] [--lr RATE] [--dtype float32] [--state FILE] [--out FILE] [--json]

Data-parallel, then M = 1, 2 and 4 decoupled learners, on as many tokens with the same seed and the same global batch,
which M learners divide, as the publication has it (arXiv 2503.09799, algorithm 1 and section 3). The model is the
preset mini, 4.9 million parameters and contexts of 256 bytes: 20 tokens a parameter, 32,768 a step, 99 sweeps of H = 30
in eight fragments. `--long` is the preset small, 25.5 million and contexts of 512, data-parallel and M = 4, 518 sweeps;
`--tiny` says on a CPU whether it works. M = 1 costs nothing where capture, merge, outer step and adoption are right,
but for the one step in H that overlaps.

The learners, the outer step and their order are those of `gap.py`, the plain loop, and losses at a small size are its
losses (`tests/test_bench_line.py`). Here all learners step in one computation (`jax.vmap`), and one call runs 16 steps
of them (`lax.scan`) on windows of a text that lies on the device: only the windows' places are sent. Data-parallel is
one learner whose fragments are never due, so that it runs the compiled program of M = 1.

Gaps are in nats per byte, and in percent of data-parallel's loss beside those published (`PUBLISHED`), which are of
tokens of a vocabulary of 32,768, of C4, each M at the best of several rates; here all have one rate, that of the
programs or --lr. `passes` says how often the text was trained on; a line of more than PASSES_MAX stands beside none.

A step costs 6 N + 12 layers x context x width operations a token: 34 million with mini, 3.3e15 a cell, and 178 million
with small, 9.1e16 a cell. At 30 % of an H100's peak (989e12 in bfloat16, half of that in the TF32 with which jax
multiplies float32) that is 11 or 22 s a cell, and 306 or 612 s. Mini rather waits for memory: attention writes and
reads its scores in float32 several times, of the order of 20 GB a step.

With --out every finished cell is appended to FILE as a line of JSON at once; when --minutes are over, cells that were
not finished follow, their loss null. With --state a later call goes on where this one ended, even within a cell. The
clock is read between calls: a program that is being compiled, an evaluation and the state of --long, 1.5 GB, end first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops import transformer
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.runtime.errors import ConfigError
from tests.bench.gap import (
    CANCELLED_SHARE,
    DEFAULTS,
    EMBEDDING_LIKE,
    EVALUATION_BATCH,
    EVALUATIONS,
    due_before_steps,
    fresh,
    hyperparameters,
    inner_step,
    learning_rate,
    loss,
    partition,
)

PUBLISHED: Final = {"M=1": -0.1, "M=2": 0.7, "M=4": 2.0}
"""Percent of data-parallel's loss, 3.485: arXiv 2503.09799, table 4, 35 million parameters, the smallest; H = 30."""
PASSES_MAX: Final = 1.5
"""Beyond, a text is repeated, as the published one is not: a model that remembers it stands beside no published gap."""
SOURCE: Final = "arXiv 2503.09799, table 4: 35M parameters, 20 tokens a parameter, H = 30"
CHUNK: Final = 16
"""Steps of one call. The clock is read between calls; one of 16 steps takes a few tenths of a second on a GPU, beside
which what it costs to make it is little."""
TOKENS_PER_PARAMETER: Final = 20
SAVE_SECONDS: Final = 120.0
"""Between two writings of the state within a cell: with small and M = 4 it is 1.5 GB."""
MINUTES_MIN: Final = 0.5
"""To compile a program takes about as long."""
TEXT_BYTES_MAX: Final = (1 << 31) - 1
"""Places in the text are int32."""


@dataclass(frozen=True)
class Size:
    """A model and how it is trained: `sequences` is the global batch, and H = `interval`."""

    model: str
    shape: Mapping[str, int]
    lr: float
    sequences: int
    interval: int
    learners: tuple[int, ...]
    seeds: int = 1
    tokens_per_parameter: int = TOKENS_PER_PARAMETER


SIZES: Final = {
    "line": Size("mini", {"layers": 6, "width": 256, "heads": 8, "context": 256}, 0.0015, 128, 30, (1, 2, 4), seeds=2),
    "long": Size("small", {"layers": 8, "width": 512, "heads": 8, "context": 512}, 0.00075, 64, 30, (4,)),
    "tiny": Size("tiny", {"layers": 1, "width": 16, "heads": 2, "context": 16}, 0.01, 16, 10, (1, 2, 4)),
}  # The shapes of mini and small, and the rates by AdamW, are those of `isthmus train --model`.
LR_MUON: Final = 0.012
"""That of the programs at every width."""
OUTER: Final = {"eta": 0.4, "omu": 0.7}
"""The programs' default at 60 sweeps and more."""


def merged(gradients: Any, method: str) -> Any:
    """The merge of `gradients` [learners, ...] of one tensor, with equal weights: "rda" or "average"."""
    average = jnp.mean(gradients, 0)
    if method == "average":
        return average
    axes = tuple(range(1, gradients.ndim))
    norms = jnp.sqrt(jnp.sum(gradients**2, axes, keepdims=True))
    direction = jnp.mean(gradients / jnp.where(norms > 0, norms, 1.0), 0)
    length = jnp.sqrt(jnp.sum(direction**2))
    is_cancelled = length < CANCELLED_SHARE / math.sqrt(len(gradients))
    return jnp.where(is_cancelled, average, jnp.mean(norms) * direction / jnp.where(is_cancelled, 1.0, length))


class Line:
    """The compiled functions for one model, and its text on the device.

    A state is a dict: `w` the learners' parameters, name -> [learners, ...], `moments` as `inner_step` has them with
    the same axis in front; `theta` the global model, `velocity` its momentum, `anchor` what the learners last adopted.
    """

    def __init__(self, config: transformer.ModelConfig, of: Mapping[str, Any], train: Any, held_out: Any) -> None:
        """`train` uint8[bytes] and `held_out` uint8[windows, context + 1]; `of` as `gap.DEFAULTS`."""
        self.config, self.of = config, of
        sizes = {name: math.prod(shape) for name, (shape, _) in transformer.tensors(config).items()}
        self.parameters = sum(sizes.values())
        parts = partition(sizes, int(of["P"]))
        self._part_of = {name: number for number, names in enumerate(parts) for name in names}
        self.text, self._held_out = jnp.asarray(train), jnp.asarray(held_out)
        self._hyper = hyperparameters(of)
        self._loss = jax.jit(partial(loss, config))
        self._outer_step = jax.jit(self._merge_due)
        self._compiled: dict[int, Any] = {}

    def begin(self, seed: int, learners: int) -> dict[str, Any]:
        """The state before the first step: all learners have the same parameters."""
        first = dict(named_leaves(transformer.init(self.config, jax.random.key(seed))))
        w = {name: jnp.broadcast_to(leaf, (learners, *leaf.shape)) for name, leaf in first.items()}
        zeros = {name: jnp.zeros_like(leaf) for name, leaf in first.items()}
        state = {"w": w, "moments": jax.vmap(fresh)(w), "theta": first, "velocity": zeros, "anchor": first}
        # Buffers are given to the next step, so none may be there twice.
        return jax.tree.map(partial(jnp.array, copy=True), state)

    def compile(self, state: dict[str, Any], inputs: Sequence[Any]) -> None:
        """The program for as many learners, unless it is there."""
        learners = len(state["moments"][2])
        if learners not in self._compiled:
            function = jax.jit(self._steps, donate_argnums=0)
            self._compiled[learners] = function.lower(state, inputs, self.text, self._hyper).compile()

    def advance(self, state: dict[str, Any], inputs: Sequence[Any]) -> dict[str, Any]:
        """The state after the steps of `inputs`; the given one is used up."""
        after: dict[str, Any] = self._compiled[len(state["moments"][2])](state, inputs, self.text, self._hyper)
        return after

    def loss_of(self, state: dict[str, Any], *, decoupled: bool, is_last: bool) -> float:
        """Nats per byte on held-out text: of the global model, after the last merge of all, or of the one learner."""
        if not decoupled:
            return self._held_out_loss({name: leaf[0] for name, leaf in state["w"].items()})
        if is_last:
            state = self._outer_step(state, np.ones(int(self.of["P"]), bool))
        return self._held_out_loss(state["theta"])

    def _held_out_loss(self, parameters: Mapping[str, Any]) -> float:
        """The mean over groups of as many windows."""
        groups = range(0, len(self._held_out), EVALUATIONS * EVALUATION_BATCH)
        losses = [float(self._loss(parameters, self._held_out[at : at + groups.step])) for at in groups]
        return sum(losses) / len(losses)

    def _steps(self, state: Any, inputs: Any, text: Any, hyper: Any) -> Any:
        window = np.arange(self.config.context + 1)
        muon = self.of["optimizer"] == "muon"
        step = jax.vmap(partial(inner_step, self.config, muon=muon), in_axes=(0, 0, 0, None, None))

        def one(state: Any, now: Any) -> Any:
            starts, rate, adopted, due = now
            state = jax.lax.cond(jnp.any(adopted), self._adopt, lambda state, _: state, state, adopted)
            state = jax.lax.cond(jnp.any(due), self._merge_due, lambda state, _: state, state, due)
            w, moments = step(state["w"], state["moments"], text[starts[..., None] + window], rate, hyper)
            return state | {"w": w, "moments": moments}, None

        return jax.lax.scan(one, state, inputs)[0]

    def _adopt(self, state: Any, adopted: Any) -> Any:
        """All learners take the global model's tensors of the fragments adopted bool[fragments]."""
        theta, is_new = state["theta"], {name: adopted[part] for name, part in self._part_of.items()}
        w = {name: jnp.where(is_new[name], theta[name], leaf) for name, leaf in state["w"].items()}
        return state | {"w": w, "anchor": {n: jnp.where(is_new[n], theta[n], x) for n, x in state["anchor"].items()}}

    def _merge_due(self, state: Any, due: Any) -> Any:
        """The merge and the outer step of the fragments due bool[fragments]: Nesterov's momentum."""
        eta, mu = self.of["eta"], self.of["omu"]
        theta, velocity = {}, {}
        for name, part in self._part_of.items():
            gradients = state["anchor"][name] - state["w"][name]
            gradient = merged(gradients, self.of["emb"] if name in EMBEDDING_LIKE else self.of["merge"])
            moved = mu * state["velocity"][name] + gradient
            stepped = state["theta"][name] - eta * (gradient + mu * moved)
            theta[name] = jnp.where(due[part], stepped, state["theta"][name])
            velocity[name] = jnp.where(due[part], moved, state["velocity"][name])
        return state | {"theta": theta, "velocity": velocity}


@dataclass(frozen=True)
class Cell:
    """One model to be trained; without M it is data-parallel."""

    seed: int
    decoupled: bool
    learners: int = 1

    @property
    def name(self) -> str:
        return f"M={self.learners}" if self.decoupled else "data-parallel"


def inputs(cell: Cell, of: Mapping[str, Any], steps: int, windows: Any) -> tuple[Any, ...]:
    """What the steps of a cell read, one row each: places int32[steps, learners, batch], rates float32[steps], and the
    fragments to adopt and those that are due, bool[steps, fragments]."""
    from isthmus.ops.data.batches import At

    batch = replace(windows, sequences=windows.sequences // cell.learners)
    starts = [[batch.starts(At(cell.seed, slot, at)) for slot in range(cell.learners)] for at in range(steps)]
    rates = [learning_rate(of, at / steps) for at in range(steps)]
    due = np.zeros((steps + 1, int(of["P"])), bool)
    if cell.decoupled:
        for at, ready in enumerate(due_before_steps(of, steps)):
            due[at, ready] = True
    # One step of overlap: what is merged before a step is adopted after it.
    return np.array(starts, np.int32), np.array(rates, np.float32), due[np.arange(steps) - 1], due[:steps]


class Kept:
    """The state file: which cells are finished, and where the unfinished one is; without a file it keeps nothing."""

    def __init__(self, file: Path | None, request: Mapping[str, Any]) -> None:
        """ConfigError if the file is of another request, or is no state."""
        self._file, self._request = file, json.loads(json.dumps(request))
        self.records: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._cell: str | None = None
        self._step = 0
        if file is not None and file.exists():
            self._read(file)

    def _read(self, file: Path) -> None:
        doing = f"Going on from {file}"
        try:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no archive of arrays")
            with np.load(file, allow_pickle=False) as kept:
                header = json.loads(str(kept["header"]))
            request, self.records, self.seconds = header["request"], header["records"], header["seconds"]
            self._cell, self._step = header["cell"], header["step"]
        except (OSError, ValueError, KeyError) as error:
            do = "Name the file of an earlier call, or a new one."
            raise ConfigError(doing, "a state of this bench", f"{type(error).__name__}: {error}", do) from error
        if request != self._request:
            other = [key for key in self._request if request.get(key) != self._request[key]]
            expected = ", ".join(f"{key}={self._request[key]}" for key in other)
            found = ", ".join(f"{key}={request.get(key)}" for key in other)
            raise ConfigError(doing, expected, found, "Give the options and the text of the call that wrote it.")

    def resume(self, cell: Cell, begun: dict[str, Any]) -> tuple[dict[str, Any], int, float]:
        """The state of a cell, its steps and its seconds so far: those in the file, if it is the one there."""
        if self._file is None or self._cell != f"{cell.name} {cell.seed}":
            return begun, 0, 0.0
        with np.load(self._file, allow_pickle=False) as kept:
            leaves = [jnp.asarray(kept[name]) for name, _ in named_leaves(begun)]
        return jax.tree.unflatten(jax.tree.structure(begun), leaves), self._step, self.seconds

    def save(self, cell: Cell | None = None, state: Any = None, step: int = 0, seconds: float = 0.0) -> None:
        """Write the records, and the state within a cell. A file that is there stays whole until the new one is."""
        if self._file is None:
            return
        name = None if cell is None else f"{cell.name} {cell.seed}"
        header = {"request": self._request, "records": self.records, "cell": name, "step": step, "seconds": seconds}
        leaves = {} if state is None else {name: np.asarray(leaf) for name, leaf in named_leaves(state)}
        new = self._file.with_name(f"{self._file.name}.new")
        with new.open("wb") as stream:
            np.savez(stream, header=np.array(json.dumps(header)), **leaves)
        os.replace(new, self._file)


@dataclass
class Bench:
    """Trains cell after cell until all are done or the time is over."""

    line: Line
    size: Size
    windows: Any
    kept: Kept
    is_over: Callable[[], bool]

    @property
    def steps(self) -> int:
        """Whole calls of CHUNK steps, that reach the tokens a parameter."""
        tokens = self.size.sequences * self.line.config.context * CHUNK
        return CHUNK * math.ceil(self.size.tokens_per_parameter * self.line.parameters / tokens)

    def record(self, cell: Cell, step: int, **figures: Any) -> dict[str, Any]:
        """One line of the file, with null for what is not known."""
        tokens = self.size.sequences * self.line.config.context
        passes = step * tokens / len(self.line.text)
        blank = dict.fromkeys(("loss", "loss_so_far", "gap", "gap_percent", "seconds", "compile_seconds"))
        return (
            {"step": "line", "cell": cell.name, "seed": cell.seed, "learners": cell.learners}
            | blank
            | {
                "published_percent": PUBLISHED.get(cell.name) if passes <= PASSES_MAX else None,
                "tokens": step * tokens,
                "tokens_planned": self.steps * tokens,
                "sweeps": step / self.size.interval if cell.decoupled else None,
                "passes": passes,
                "tokens_per_second": None,
                "tflops_per_second": None,
                "batch": self.size.sequences // cell.learners,
                "interval": self.size.interval if cell.decoupled else None,
                "fragments": int(self.line.of["P"]) if cell.decoupled else None,
                "model": self.size.model,
                "parameters": self.line.parameters,
                "optimizer": self.line.of["optimizer"],
                "lr": self.line.of["lr"],
                "dtype": self.line.config.dtype,
            }
            | machine()
            | figures
        )

    def cells(self, seeds: int) -> Iterator[Cell]:
        for seed in range(seeds):
            yield Cell(seed, decoupled=False)
            yield from (Cell(seed, decoupled=True, learners=count) for count in self.size.learners)

    def train(self, seeds: int) -> Iterator[dict[str, Any]]:
        """The records of all cells, each as soon as it is finished; of those that were not, when the time is over."""
        finished = {(record["cell"], record["seed"]): record for record in self.kept.records}
        for cell in self.cells(seeds):
            if (cell.name, cell.seed) in finished:
                continue
            if self.is_over():
                yield self.record(cell, 0)
                continue
            record = self.trained(cell, finished.get(("data-parallel", cell.seed)))
            if record["loss"] is not None:
                finished[cell.name, cell.seed] = record
                self.kept.records.append(record)
                self.kept.save()
            yield record

    def trained(self, cell: Cell, base: dict[str, Any] | None) -> dict[str, Any]:
        """The record of one cell; `base`: that of data-parallel with its seed."""
        begun = time.monotonic()
        rows = inputs(cell, self.line.of, self.steps, self.windows)
        state, at, before = self.kept.resume(cell, self.line.begin(cell.seed, cell.learners))
        self.line.compile(state, tuple(each[:CHUNK] for each in rows))
        compiled = saved = time.monotonic()
        first = at
        while at < self.steps and not self.is_over():
            state = self.line.advance(state, tuple(each[at : at + CHUNK] for each in rows))
            at += CHUNK
            state["moments"][2].block_until_ready()
            if time.monotonic() - saved > SAVE_SECONDS:
                self.kept.save(cell, state, at, before + time.monotonic() - begun)
                saved = time.monotonic()
        stepped = time.monotonic() - compiled
        is_last = at >= self.steps
        value = self.line.loss_of(state, decoupled=cell.decoupled, is_last=is_last)
        rate = (at - first) * self.size.sequences * self.line.config.context / stepped if at > first else None
        figures: dict[str, Any] = {
            "seconds": before + time.monotonic() - begun,
            "compile_seconds": compiled - begun,
            "tokens_per_second": rate,
            "tflops_per_second": None if rate is None else rate * self._operations() / 1e12,
        }
        if not is_last:
            self.kept.save(cell, state, at, figures["seconds"])
        if not math.isfinite(value):
            return self.record(cell, at, **figures)
        if not is_last:
            return self.record(cell, at, loss_so_far=value, **figures)
        if cell.decoupled and base is not None:
            figures["gap"] = value - base["loss"]
            figures["gap_percent"] = 100 * figures["gap"] / base["loss"]
        return self.record(cell, at, loss=value, **figures)

    def _operations(self) -> float:
        """Floating-point operations a token, forward and backward, with attention over the whole context."""
        shape = self.line.config
        return 6 * self.line.parameters + 12 * shape.layers * shape.context * shape.width


def machine() -> dict[str, Any]:
    """What computed."""
    device = jax.devices()[0]
    python = ".".join(map(str, sys.version_info[:3]))
    return {"device_kind": device.device_kind, "platform": device.platform, "jax": jax.__version__, "python": python}


def read(
    folder: Path | None, size: Size, *, evaluations: int = EVALUATIONS, is_other_split: bool = False
) -> tuple[Any, Any, Any]:
    """The training text uint8[bytes], the windows of its batches, and those held out uint8[windows, context + 1], in
    so many batches of EVALUATION_BATCH. The other split is that of the files which the first one trains on.

    ConfigError for data that is no text, or too little or too much of it, and without the package that splits it.
    """
    try:
        from isthmus.ops.data.batches import At, Windows
        from isthmus.ops.data.corpus import READING, DataError, held_out_from, load
        from isthmus.programs.reading.found import find
    except ModuleNotFoundError as error:
        do = f"Run: pip install {error.name}"
        raise ConfigError("Reading the training data", f"the package {error.name}", "none", do) from error
    try:
        sources = find(() if folder is None else (str(folder),)).files
        if tokens := [source.path for source in sources if source.holds_tokens]:
            raise DataError(READING, "text", f"token ids in {tokens[0]}", "Name a folder of text with --data.")
        if is_other_split:
            files = [np.fromfile(source.path, np.uint8) for source in sources]
            begins = zip(sources, files, held_out_from(files), strict=True)
            sources = tuple(source for source, ids, begin in begins if begin == len(ids))
        corpus = load(sources)
        if len(corpus.train) > TEXT_BYTES_MAX:
            found = f"{len(corpus.train)} bytes"
            raise DataError(READING, f"at most {TEXT_BYTES_MAX} bytes of text", found, "Name less with --data.")
        windows = Windows(corpus, size.sequences, size.shape["context"] + 1)
    except DataError as error:
        remedy = error.remedy.partition(", or make task")[0].removesuffix(".") + "."
        raise ConfigError(error.action, error.expected, error.found, remedy) from error
    evaluation = replace(windows, sequences=EVALUATION_BATCH)
    held_out = [evaluation.batch(At(0, 0, at, "evaluation"))["tokens"] for at in range(evaluations)]
    return np.concatenate(corpus.train.segments), windows, np.concatenate(held_out)


def check(given: argparse.Namespace) -> None:
    """ConfigError for an option that is out of range, and for a size that a CPU would train for days."""
    if given.size != "tiny" and (platform := machine()["platform"]) == "cpu":
        do = "Run it where jax has a GPU, or with --tiny."
        raise ConfigError(f"Training {SIZES[given.size].model}", "an accelerator that jax can use", platform, do)
    if not MINUTES_MIN <= given.minutes < math.inf:
        expected = f"at least {MINUTES_MIN}, in which one program is compiled"
        raise ConfigError("Reading --minutes", expected, str(given.minutes), "Give more minutes.")
    if given.seeds is not None and given.seeds < 1:
        raise ConfigError("Reading --seeds", "at least 1", str(given.seeds), "Leave it out for the default.")
    if given.lr is not None and not 0 < given.lr < math.inf:
        raise ConfigError("Reading --lr", "a rate above 0", str(given.lr), "Leave it out for the default.")
    for option, file in (("--out", given.out), ("--state", given.state)):
        if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
            expected, found = "a file in a folder that can be written", str(file)
            raise ConfigError(f"Reading {option}", expected, found, "Name another file, or make its folder.")


def prepare(given: argparse.Namespace) -> tuple[Bench, int]:
    """The bench, and how many seeds it trains. ConfigError, with nothing started, for what is wrong."""
    over = time.monotonic() + 60 * given.minutes
    check(given)
    size = SIZES[given.size]
    text, windows, held_out = read(given.data, size)
    of: dict[str, Any] = {**DEFAULTS, **OUTER, "H": size.interval, "batch": size.sequences}
    rate = size.lr if given.optimizer == "adamw" else LR_MUON
    of |= {"optimizer": given.optimizer, "lr": rate if given.lr is None else given.lr}
    request = asdict(size) | {key: of[key] for key in ("optimizer", "lr")}
    request |= {"dtype": given.dtype, "text": hashlib.sha256(text.tobytes()).hexdigest()}
    kept = Kept(given.state, request)
    line = Line(transformer.ModelConfig(**size.shape, dtype=given.dtype), of, text, held_out)
    bench = Bench(line, size, windows, kept, lambda: time.monotonic() > over)
    return bench, size.seeds if given.seeds is None else given.seeds


HEAD: Final = ("cell", "seed", "nats/byte", "gap", "gap %", "published %", "tokens", "sweeps", "tokens/s", "seconds")


def row(record: Mapping[str, Any]) -> str:
    """A line of the table; the loss of a cell that was not finished is in brackets."""

    def shown(key: str, form: str) -> str:
        return "-" if record[key] is None else format(record[key], form)

    value = shown("loss", ".4f") if record["loss"] is not None else f"({shown('loss_so_far', '.4f')})"
    figures = (shown("gap", "+.4f"), shown("gap_percent", "+.2f"), shown("published_percent", "+.1f"))
    rest = (shown("tokens", ","), shown("sweeps", ".0f"), shown("tokens_per_second", ",.0f"), shown("seconds", ".0f"))
    return aligned((record["cell"], str(record["seed"]), value, *figures, *rest))


def aligned(fields: Sequence[str]) -> str:
    widths = (13, 4, 9, 8, 6, 11, 13, 6, 11, 7)
    return "  ".join(field.rjust(width) for field, width in zip(fields, widths, strict=True))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = options.add_mutually_exclusive_group()
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny", default="line", help="for a CPU")
    size.add_argument("--long", dest="size", action="store_const", const="long", help="26 million parameters")
    options.add_argument("--data", type=Path, metavar="FOLDER", help="text; Python's standard library if absent")
    options.add_argument("--minutes", type=float, default=10.0, help="after which the rest is null; 10 if absent")
    options.add_argument("--seeds", type=int, help="how many, from 0; 2, and 1 with --tiny and --long, if absent")
    options.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    options.add_argument("--lr", type=float, help="the peak of the learning rate; as `isthmus train` if absent")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the computation")
    options.add_argument("--state", type=Path, metavar="FILE", help="go on from there, and write it when time is over")
    options.add_argument("--out", type=Path, metavar="FILE", help="append each cell as a line of JSON")
    options.add_argument("--json", action="store_true", help="print all cells as one JSON object in place of a table")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        bench, seeds = prepare(given)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    records = list(bench.kept.records)
    if not given.json:
        print(
            f"{machine()['device_kind']}; published: {SOURCE}", aligned(HEAD), *map(row, records), sep="\n", flush=True
        )
    for record in bench.train(seeds):
        records.append(record)
        if given.out is not None:
            with given.out.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        if not given.json:
            print(row(record), flush=True)
    if given.json:
        print(json.dumps({"step": "line", "published": SOURCE, **machine(), "cells": records}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
