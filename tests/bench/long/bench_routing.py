"""How well shards by content are parts of text.

    python -m tests.bench.long.bench_routing [--parts FOLDER] [--json]

For each seed and number of shards, of the folders of `parts_of_text.py` (made new without --parts): purity, the share
of documents that are of the most frequent part of their shard, for training and held out, and as a control of shards at
random; the largest shard in equal shares of the training bytes; and the seconds of `isthmus route`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SHARDS = (4, 8)


def purity(shards: npt.NDArray[np.int64], parts: npt.NDArray[np.int64]) -> float:
    """The share of documents that are of the most frequent part of their shard."""
    counts = np.zeros((shards.max() + 1, parts.max() + 1))
    np.add.at(counts, (shards, parts), 1)
    return float(counts.max(1).sum() / len(shards))


def measured(folder: Path, shards: int, seed: int) -> dict[str, Any]:
    """The figures of one seed."""
    from isthmus.programs.routers import opened, route, sharded_corpus

    with tempfile.TemporaryDirectory() as place:
        figures: dict[str, Any] = {"shards": shards, "seed": seed}
        for by in ("content", "random"):
            began = time.perf_counter()
            routed = route([str(folder)], shards=shards, out=Path(place, by), by=by, seed=seed)
            seconds = time.perf_counter() - began
            corpus = sharded_corpus([str(folder)], Path(place, by), shards)
            purities = []
            for sides in (corpus.train, corpus.held_out):
                parts = np.concatenate([side.labels for side in sides])
                purities.append(purity(np.repeat(np.arange(shards), [*map(len, sides)]), parts))
            sizes = np.array([shard.tokens for shard in routed.shards])
            if by == "random":
                figures["random"] = purities[0]
                continue
            figures |= {"train": purities[0], "held_out": purities[1], "seconds": seconds}
            figures |= {"largest": float(sizes.max() / sizes.mean()), "bytes": opened(Path(place, by)).weights.size * 4}
    return figures


def main() -> None:
    """Measure, and print a table, or lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--parts", type=Path, help="a folder that has a folder for each part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.parts
        if folder is None:
            from tests.bench.parts_of_text import MissingTextError, make_parts

            folder = Path(place)
            try:
                make_parts(folder)
            except MissingTextError as error:
                print(error, file=sys.stderr)
                raise SystemExit(2) from None
        rows = [measured(folder, shards, seed) for shards in SHARDS for seed in options.seeds]
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    print("shards  seed  purity  held out  random  largest  seconds")
    for row in rows:
        ratios = f"{row['train']:6.3f}  {row['held_out']:8.3f}  {row['random']:6.3f}  {row['largest']:7.3f}"
        print(f"{row['shards']:6}  {row['seed']:4}  {ratios}  {row['seconds']:7.1f}")


if __name__ == "__main__":
    main()
