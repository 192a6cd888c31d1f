"""What models made of modules gain over dense ones, on text that has parts.

    python -m tests.bench.long.bench_paths [--parts FOLDER] [--steps 500] [--seeds 1] [--case NAME ...]
        [--kept FILE.json]

Nano, Muon, batches of 8, in virtual time. The text is that of `parts_of_text.py` (made if `--parts` names no folder);
documents are given to four shards by `isthmus route`, by content or at random. Cases:

- 2 x 2: dipaco of four paths, two modules a level; 2 x 2, random: the same with random shards
- 1 x 4: dipaco of four paths, whose second half is their own
- 1 x 4, routed again: the same by a second router, which sends each document to the path that predicts it best, of the
  models of 1 x 4; trained anew, as long
- 2 x 2, average, 1 and sqrt: merged by weighted averages, with the outer rate of the others, and times the root of the
  paths that share a module, as published
- dense alone: one model on all of the text, as many steps as a path makes
- dense, 4 learners: decoupled-diloco, as many bytes in all as the four paths
- four dense: one on each shard, as many steps as a path makes
- dense, all steps: one model of a path's size, as many steps as all paths make: what as much compute in one place gives
- dense, all modules: the same bytes by one model with the layers of all modules of 2 x 2: what one place would train

Told are held-out nats a byte, of bytes 128 to 640 of each held-out document, each document by the path of its shard,
by the path whose loss on its first 64 bytes is least, and again so every 64 bytes. Windows are of 64 bytes. Everything
is deterministic but for the text of the machine. `--kept` has what is done; the same call goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from isthmus.ops import transformer
from isthmus.ops.data.routing import losses_along, paths_by_loss
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.model_config import ModelConfig
from isthmus.programs import language_model
from isthmus.programs.engine.recorder.graph_parts import paths_in
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.program_graph import chosen_for
from isthmus.programs.routers import reroute, route, sharded_corpus, training_documents
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.bench.kept_cells import KeptCells

PATHS: Final = 4
CHUNK: Final = 64
BEGIN, END = 128, 640
CONFIG: Final = ModelConfig(256, 2, 64, 4, CHUNK)
AVERAGE: Final = {"merge": "average"}
CASES: Final[Mapping[str, tuple[str, tuple[int, ...], Mapping[str, Any]]]] = {
    "2 x 2": ("content", (2, 2), {}),
    "2 x 2, random": ("random", (2, 2), {}),
    "1 x 4": ("content", (1, 4), {}),
    "1 x 4, routed again": ("losses", (1, 4), {}),
    "dense alone": ("content", (), {}),
    "dense, 4 learners": ("content", (), {}),
    "four dense": ("content", (), {}),
    "dense, all steps": ("content", (), {}),
    "dense, all modules": ("content", (), {}),
    "2 x 2, average": ("content", (2, 2), AVERAGE),
    "2 x 2, average, sqrt": ("content", (2, 2), AVERAGE),
}
"""Name -> how documents are routed, the modules, and the settings of the program."""
DENSE: Final = {"dense alone": (1, CONFIG), "dense, all steps": (PATHS, CONFIG)} | {
    "dense, all modules": (PATHS, replace(CONFIG, layers=2 * CONFIG.layers))
}
"""Of models that are trained in one place: times the steps of a path, and the model."""
Losses = npt.NDArray[np.float32]


def models(folder: Path, parts: PathParts | None) -> list[dict[str, Any]]:
    """The tensors of each path of a run's final model."""
    from safetensors.numpy import load_file

    tensors: dict[str, Any] = {}
    for path in sorted((folder / "snapshots" / "final").glob("*.safetensors")):
        tensors |= load_file(path)
    if parts is None:
        return [_joined((name.partition("[")[0], name, value) for name, value in sorted(tensors.items(), key=_row))]
    found = []
    for path in range(parts.count):
        units = [
            (own.tensor, unit.name)
            for p, number in enumerate(parts.numbers(path))
            for own, unit in zip(parts.own[p].units, parts.whole[number].units, strict=True)
        ]
        rows = sorted(((own, name, tensors[name]) for own, name in units), key=lambda row: _row(row[1:]))
        found.append(_joined(rows))
    return found


def _row(item: Any) -> int:
    """Where the rows of a piece begin."""
    name = item[0]
    return int(name.rpartition("[")[2].partition(":")[0]) if name.endswith("]") else 0


def _joined(rows: Any) -> dict[str, Any]:
    pieces: dict[str, list[Any]] = {}
    for tensor, _, value in rows:
        pieces.setdefault(tensor, []).append(value)
    return {name: np.concatenate(each) if len(each) > 1 else each[0] for name, each in pieces.items()}


@cache
def _like(config: ModelConfig) -> Any:
    return jax.eval_shape(lambda key: transformer.init(config, key), jax.random.key(0))


@partial(jax.jit, static_argnums=0)
def _losses(config: ModelConfig, params: Any, windows: Any) -> Any:
    scores = jax.nn.log_softmax(transformer.logits(config, params, windows[:, :-1]))
    return -jnp.take_along_axis(scores, windows[:, 1:, None], -1)[..., 0]


def byte_losses(
    tensors: Mapping[str, Any], documents: Sequence[npt.NDArray[Any]], config: ModelConfig = CONFIG
) -> Losses:
    """float32[documents, 64 + 512]: of bytes 1 to 64, and 128 to 639; nan beyond the end of a document."""
    params = jax.tree.unflatten(
        jax.tree.structure(_like(config)), [tensors[name] for name, _ in named_leaves(_like(config))]
    )
    starts = [0, *range(BEGIN - 1, END - 1, CHUNK)]
    rows = np.zeros((len(documents), len(starts), CHUNK + 1), np.int32)
    known = np.zeros((len(documents), len(starts), CHUNK), bool)
    for row, mask, document in zip(rows, known, documents, strict=True):
        for at, start in enumerate(starts):
            piece = document[start : start + CHUNK + 1]
            row[at, : len(piece)], mask[at, : max(len(piece) - 1, 0)] = piece, True
    found = np.concatenate(
        [np.asarray(_losses(config, params, block)) for block in np.array_split(rows.reshape(-1, 65), 16)]
    )
    return np.where(known, found.reshape(known.shape), np.nan).reshape(len(documents), -1).astype(np.float32)


def told(losses: Sequence[Losses], shards: npt.NDArray[Any]) -> dict[str, float]:
    """The mean nats a byte by each way of choosing a path; `losses` by path."""
    every = np.stack(losses, 1)  # [documents, paths, bytes]
    head, rest = every[..., :CHUNK], every[..., CHUNK:]
    shards = shards if len(losses) > 1 else np.zeros(len(every), np.int64)
    by_shard = np.take_along_axis(rest, shards[:, None, None], 1)[:, 0]
    first = np.nansum(head, -1).argmin(-1)
    by_head = np.take_along_axis(rest, first[:, None, None], 1)[:, 0]
    chosen = paths_by_loss(np.nan_to_num(rest), first)
    again = np.where(np.isnan(rest[:, 0]), np.nan, losses_along(np.nan_to_num(rest), chosen))
    return {name: float(np.nanmean(each)) for name, each in (("shard", by_shard), ("head", by_head), ("again", again))}


def run(worlds: Worlds, name: str, seed: int, steps: int, parts: str, routers: Path) -> dict[str, float]:
    """The figures of a case."""
    by, modules, settings = CASES[name]
    router = routers / f"{by}-{seed}.router"
    if not router.exists() and by == "losses":
        _route_again(worlds, seed, steps, parts, routers, router)
    elif not router.exists():
        route([parts], shards=PATHS, out=router, by=by, seed=seed)
    corpus = sharded_corpus([parts], router, PATHS)
    documents = [(corpus.held_out[shard], shard) for shard in range(PATHS)]
    shards = np.array([shard for held_out, shard in documents for _ in range(len(held_out))])
    ids = [np.asarray(held_out[index]) for held_out, _ in documents for index in range(len(held_out))]
    enough = np.array([len(each) > BEGIN for each in ids])
    ids, shards = [each for each, is_long in zip(ids, enough, strict=True) if is_long], shards[enough]

    def losses(program: Program, task: Any, learners: int) -> list[Losses]:
        trained = _trained(worlds, program, task, learners, steps, seed)
        return [byte_losses(tensors, ids) for tensors in trained]

    if modules:
        task = language_model.task(batch=8, data=(parts,), paths=modules, router=str(router))
        if name.endswith("sqrt"):
            chosen = prepare(Program("dipaco", **settings), task, run={"learners": PATHS, "tokens": steps * 2048})
            rate = float(chosen_for(chosen.graph)["outer_lr"]) * 2**0.5
            settings = {**settings, "outer_lr": rate}
        return told(losses(Program("dipaco", **settings), task, PATHS), shards)
    if name == "four dense":
        routed = language_model.task(batch=8, data=(parts,), paths=(1, PATHS), router=str(router))
        each = [losses(Program("data-parallel"), _alone(routed, shard), 1)[0] for shard in range(PATHS)]
        return told(each, shards)
    if name in DENSE:
        times, config = DENSE[name]
        task = language_model.task(batch=8, data=(parts,), layers=config.layers)
        trained = _trained(worlds, Program("data-parallel"), task, 1, times * steps, seed)
        return told([byte_losses(tensors, ids, config) for tensors in trained], shards)
    task = language_model.task(batch=8, data=(parts,))
    return told(losses(Program("decoupled-diloco"), task, PATHS), shards)


def _trained(worlds: Worlds, program: Program, task: Any, learners: int, steps: int, seed: int) -> list[dict[str, Any]]:
    """The tensors of each path."""
    result = worlds.run(program, task=task, learners=learners, steps=steps, seed=seed)
    return models(result.folder, paths_in(prepare(program, task, run={"learners": learners}).graph))


def _route_again(worlds: Worlds, seed: int, steps: int, parts: str, routers: Path, out: Path) -> None:
    """Make a router by the losses of the paths of 1 x 4 on the documents that they were trained on."""
    first = routers / f"content-{seed}.router"
    if not first.exists():
        route([parts], shards=PATHS, out=first, by="content", seed=seed)
    task = language_model.task(batch=8, data=(parts,), paths=(1, PATHS), router=str(first))
    documents = training_documents([parts], first)
    ids = [np.asarray(documents[index])[:END] for index in range(len(documents))]
    trained = _trained(worlds, Program("dipaco"), task, PATHS, steps, seed)
    means = np.stack([np.nanmean(byte_losses(tensors, ids), -1) for tensors in trained], 1)
    routed = reroute(means, [parts], first, out=out, seed=seed)
    print(f"of the training documents {routed.agreement:.3f} go where their losses say", flush=True)


def _alone(task: Any, shard: int) -> Any:
    """The task of a dense model on one shard."""
    return replace(
        task, paths=(), levels={}, routed_by="", evaluation=2, batch=lambda at: task.batch(replace(at, slot=shard))
    )


def main() -> None:
    """Measure what is not kept yet, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", help="a folder of parts_of_text.py")
    parser.add_argument("--steps", type=int, default=500, help="of each learner: 1.02M bytes of four paths in 500")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--kept", type=Path)
    asked = parser.parse_args()
    kept = KeptCells(asked.kept)
    cases, seeds = asked.case or list(CASES), range(asked.first, asked.first + asked.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        parts = asked.parts
        if parts is None:
            parts = str(Path(scratch, "parts"))
            subprocess.run([sys.executable, "-m", "tests.bench.parts_of_text", parts], check=True)
        worlds = Worlds(Path(scratch))
        for seed in seeds:
            for name in cases:
                key = f"{name}, {asked.steps} steps, seed {seed}"
                if key not in kept:
                    kept.keep(key, run(worlds, name, seed, asked.steps, parts, Path(scratch)))
                    print(f"{key}: {json.dumps(kept[key])}", flush=True)
        worlds.close()
    print(f"{'case':22} by shard  by first 64 bytes  every 64 bytes ({len(seeds)} seeds)")
    for name in cases:
        found = [kept[f"{name}, {asked.steps} steps, seed {seed}"] for seed in seeds]
        means = [statistics.mean(each[way] for each in found) for way in ("shard", "head", "again")]
        print(f"{name:22} {means[0]:8.3f}  {means[1]:17.3f}  {means[2]:14.3f}")
    print(kept.told())


if __name__ == "__main__":
    main()
