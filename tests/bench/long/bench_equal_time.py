"""Equal time as a curve: data-parallel by the share of time that it communicates, beside decoupled-diloco in that time.

    python -m tests.bench.long.bench_equal_time --cells FILE [--tokens 1020000] [--seeds 3] [--only-seed 0] [--free]
        [--minutes 60] [--json]

Four learners of the shipped model nano in virtual time (an inner step takes 10 ms). decoupled-diloco trains on
`--tokens`, and its steps never wait: its time is that of its steps, on any link. In the same time data-parallel that
communicates for a share s of it makes 1 - s of the steps. So it trains on (1 - s) of the tokens, at its own full
schedule: the learning rate has come down when its time ends. Batches, rate and all else are those of `isthmus compare`
at `--tokens`, for both: a step takes as long. What a transfer takes is chosen for the share, from the exchanges that a
step of a ring has, and `time` is what the run then took, over decoupled's, in virtual time: 1 if the share is right.

The break-even share of a seed is where the line between two shares crosses decoupled's loss; of all seeds, the mean
with the interval of 95 % (Student's t).

`--free` lets data-parallel choose at each share: batches of BATCHES times those of decoupled, whose steps take as many
times as long (gradients accumulated over several batches are the same), and a format of FORMS for its gradients, which
takes so many times fewer bytes. Rounding is left out, in data-parallel's favour. Shares are those of its own batch in
float32. The choice is that of the least loss with seed 0; the other seeds have it. Every cell is written to FILE when
it ends, and the same call goes on with the rest. `--only-seed` measures one seed and shows what there is."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.request import new_folder, new_spec, spec
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.sweeps import batch_default
from isthmus.programs.wings.compare.compare_outcome import difference
from isthmus.programs.wings.simulation.virtual_run import VirtualPace, VirtualRun
from tests.bench.kept_cells import KeptCells

LEARNERS: Final = 4
CONTEXT: Final = 64
"""Of nano."""
STEP_MS: Final = 10.0
SHARES: Final = (0.0, 0.15, 0.30, 0.45, 0.60)
DECOUPLED, PARALLEL = "decoupled-diloco", "data-parallel"
EXCHANGES: Final = 2 * LEARNERS - 1
"""Firings of a ring in a step; 2 (M - 1) of them follow a transfer."""
TRANSFERS: Final = 2 * (LEARNERS - 1)
BATCHES: Final = (0.5, 1.0, 2.0, 4.0)
FORMS: Final[Mapping[str, float]] = {"float32": 1.0, "bf16": 2.0, "int8": 3.9}
PARTS: Final = 1000
"""A firing that is no step takes such a part of one: a fiftieth, as in comparisons, would be a sixth of the time."""
SECONDS_MAX: Final = 1e5
SEEDS_MAX: Final = 100


class Variant(NamedTuple):
    """How data-parallel trains: times the batch of decoupled, and the format of its gradients."""

    batch: float = 1.0
    form: str = "float32"

    def step_ms(self) -> float:
        """What a step takes without its exchange."""
        return STEP_MS * self.batch

    def waits_ms(self, share: float) -> float:
        """What the exchange of a step takes, where it is a share of the time with the batch and format of decoupled."""
        return STEP_MS * share / (1.0 - share) / FORMS[self.form]

    def tokens_share(self, share: float) -> float:
        """Of the tokens that learners who never wait train on, in the same time."""
        return self.step_ms() / (self.step_ms() + self.waits_ms(share))

    def delay_ms(self, share: float) -> float:
        """What a transfer has to take for that."""
        return max(0.0, (self.waits_ms(share) - EXCHANGES * self.step_ms() / PARTS) / TRANSFERS)


AS_DECOUPLED: Final = Variant()


def measured(program: str, tokens: int, share: float, seed: int, variant: Variant = AS_DECOUPLED) -> dict[str, Any]:
    """One run: its loss, and what it took in virtual and in real seconds."""
    begun = time.monotonic()
    own = round(tokens * variant.tokens_share(share))
    task = {"batch": max(1, round(variant.batch * batch_default(tokens, LEARNERS, CONTEXT)))}
    with tempfile.TemporaryDirectory(prefix="equal-time-") as folder:
        run = {"learners": LEARNERS, "tokens": own, "seed": seed}
        made = prepare(Program(program), None, run=run, task_settings=task, run_dir=Path(folder) / "run").to_train()
        new_folder.create(made.run_dir, made.config_text)
        spec.write(made.run_dir, new_spec.of(made, zero_ns=0, cpu_seconds=0.0, transport=spec.INPROC))
        pace = VirtualPace(step_ms=variant.step_ms(), delay_ms=variant.delay_ms(share) or 1e-3, parts=PARTS)
        ran = VirtualRun(made, pace)
        try:
            ran.run(SECONDS_MAX)
        finally:
            ran.world.close()
    summary = ran.summary
    return {
        "loss": summary["eval_loss_final"],
        "tokens": summary["tokens_total"],
        "seconds": summary["wall_seconds"],
        "goodput": summary["goodput"],
        "took": time.monotonic() - begun,
    }


def name(program: str, tokens: int, share: float, seed: int, variant: Variant = AS_DECOUPLED) -> str:
    how = "" if variant == AS_DECOUPLED else f" batch {variant.batch:g} {variant.form}"
    return f"{program} {tokens} share {share:g} seed {seed}{how}"


def break_even(losses: Sequence[float], flat: float) -> float | None:
    """The share at which losses by SHARES cross `flat`; None if they do not between the first and the last of them."""
    for (share, low), (after, high) in pairwise(zip(SHARES, losses, strict=True)):
        if low <= flat <= high:
            return share + (after - share) * ((flat - low) / (high - low) if high > low else 0.0)
    return None


def wanted(tokens: int, seed: int) -> list[tuple[str, int, float, int]]:
    """The cells of a seed."""
    return [(DECOUPLED, tokens, 0.0, seed), *((PARALLEL, tokens, share, seed) for share in SHARES)]


def variants(share: float) -> list[Variant]:
    """What data-parallel may choose at a share: without an exchange its format does not matter."""
    return [Variant(batch, form) for batch in BATCHES for form in (FORMS if share else list(FORMS)[:1])]


def chosen(cells: Mapping[str, Mapping[str, Any]], tokens: int, share: float) -> Variant | None:
    """The variant of the least loss with seed 0, of those that are kept."""
    names = {each: name(PARALLEL, tokens, share, 0, each) for each in variants(share)}
    losses = {each: cells[cell]["loss"] for each, cell in names.items() if cell in cells}
    return min(losses, key=losses.__getitem__) if losses else None


def wanted_free(
    cells: Mapping[str, Mapping[str, Any]], tokens: int, seeds: Sequence[int]
) -> Iterator[tuple[str, int, float, int, Variant]]:
    """The cells of the free choice, by what is kept meanwhile."""
    for seed in seeds:
        yield DECOUPLED, tokens, 0.0, seed, AS_DECOUPLED
        for share in SHARES:
            if seed == 0:
                yield from ((PARALLEL, tokens, share, 0, each) for each in variants(share))
            elif (own := chosen(cells, tokens, share)) is not None:
                yield PARALLEL, tokens, share, seed, own


def figures(cells: Mapping[str, Mapping[str, Any]], tokens: int, *, is_free: bool = False) -> dict[str, Any]:
    """The curve of the seeds of which every cell is there."""
    own = {share: (chosen(cells, tokens, share) if is_free else None) or AS_DECOUPLED for share in SHARES}
    needed = {
        seed: [
            name(DECOUPLED, tokens, 0.0, seed),
            *(name(PARALLEL, tokens, share, seed, own[share]) for share in SHARES),
        ]
        for seed in range(SEEDS_MAX)
    }
    seeds = [seed for seed, names in needed.items() if all(each in cells for each in names)]
    flat = {seed: cells[name(DECOUPLED, tokens, 0.0, seed)] for seed in seeds}
    rows = []
    for share in SHARES:
        those = {seed: cells[name(PARALLEL, tokens, share, seed, own[share])] for seed in seeds}
        gap = difference({s: each["loss"] for s, each in those.items()}, {s: each["loss"] for s, each in flat.items()})
        if gap is not None:
            rows.append(
                {
                    "share": share,
                    "variant": own[share],
                    "loss": fmean(each["loss"] for each in those.values()),
                    "minus_decoupled": [gap.mean, gap.low, gap.high],
                    "time": fmean(those[seed]["seconds"] / flat[seed]["seconds"] for seed in seeds),
                }
            )
    crossings = {
        seed: break_even(
            [cells[name(PARALLEL, tokens, share, seed, own[share])]["loss"] for share in SHARES], flat[seed]["loss"]
        )
        for seed in seeds
    }  # fmt: skip
    found = {seed: share for seed, share in crossings.items() if share is not None}
    mean = difference(found, dict.fromkeys(found, 0.0))
    return {
        "tokens": tokens,
        "seeds": seeds,
        "decoupled": fmean(each["loss"] for each in flat.values()) if flat else None,
        "rows": rows,
        "crossings": crossings,
        "break_even": None if mean is None or len(found) < len(seeds) else [mean.mean, mean.low, mean.high],
        "real_seconds": sum(cells[each]["took"] for seed in seeds for each in needed[seed]),
    }


def words(mean: float, low: float | None, high: float | None, form: str) -> str:
    interval = "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"
    return f"{mean:{form}}{interval}"


def table(found: Mapping[str, Any]) -> str:
    """The curve, in Markdown."""
    if not found["seeds"]:
        return "No seed is complete."
    lines = [
        f"{found['tokens']:,} tokens, seeds {', '.join(map(str, found['seeds']))}; "
        f"decoupled-diloco {found['decoupled']:.3f}",
        "",
        "| communicates | data-parallel | minus decoupled | time | batch, format |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        minus, how = words(*row["minus_decoupled"], "+.3f"), row["variant"]
        lines.append(
            f"| {row['share']:.0%} | {row['loss']:.3f} | {minus} | {row['time']:.2f} | {how.batch:g}, {how.form} |"
        )
    if found["break_even"] is None:
        lines.append(f"\nNot every seed has a break-even share between 0 and {SHARES[-1]:.0%}: {found['crossings']}")
    else:
        lines.append(f"\nBreak-even share: {words(*found['break_even'], '.1%')}")
    lines.append(f"{found['real_seconds'] / 3600:.2f} hours of one process")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, help="a file that cells are added to; what it has is not measured again")
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only-seed", type=int)
    parser.add_argument("--free", action="store_true", help="data-parallel chooses its batch and format at each share")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further run begins")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    cells, until = KeptCells(asked.cells), time.monotonic() + 60 * asked.minutes
    seeds = range(asked.seeds) if asked.only_seed is None else [asked.only_seed]
    fixed = ((*each, AS_DECOUPLED) for seed in seeds for each in wanted(asked.tokens, seed))
    for each in wanted_free(cells, asked.tokens, seeds) if asked.free else fixed:
        if name(*each) not in cells:
            if time.monotonic() > until:
                break
            cells.keep(name(*each), measured(*each))
            print(name(*each), cells[name(*each)], file=sys.stderr, flush=True)
    found = figures(cells, asked.tokens, is_free=asked.free)
    print(json.dumps(found) if asked.json else f"{table(found)}\n{cells.told()}")


if __name__ == "__main__":
    main()
