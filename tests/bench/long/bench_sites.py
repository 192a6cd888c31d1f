"""What it costs and brings to train on data that stay at their sites: by site, of the global and of its own last model.

    python -m tests.bench.long.bench_sites [--parts FOLDER] [--seeds 5] [--steps 500] [--kept FILE] [--case NAME ...]
        [--minutes N] [--json]

Nano, batches of 8 sequences of 64 bytes, decoupled-diloco with its defaults, in virtual time: a step takes 10 ms at
speed 1. There are four kinds of text, of 2 MB each (`parts_of_text.py`): Python, C headers, manual pages, data in JSON,
CSV and XML. Cases, of 500 steps a learner (1.02M tokens in all) or half as many:

- own: a learner for each kind; then each site goes on alone from the final model, with the merge off, for a quarter of
  the steps that it has made (`train --from RUN --data OWN --learners 1`)
- mixed: four learners, of which each draws from all kinds alike; data-parallel: the same, by that program
- alone: a model for each kind, of one learner's steps
- half: as own; alike: two sites with Python, one with data; alike, mixed: the same text in each learner
- sizes: batches of 2, 2, 2 and 20 sequences, weighted by tokens, and equally (`site_weight`)
- with all: as half, and beside it without a kind: the other three sites, with as many steps each; and the agreement of
  the site that is left out, the cosine of its outer gradients with the mean of the others'
- slow: the last site at a quarter of the pace, and with equal weights; joins: it joins when two fifths of the time are
  over

Losses are nats a byte on 512 windows of the held-out part of each kind, the same for all; a site's own last model is
its parameters before the first adoption behind its last step. Means of seeds, and differences paired by seed, with
intervals of 95 % (Student's t). `--kept` has every cell once it is measured, and the same call goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from isthmus.ops.data.site_folders import OWN
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.island.jax_evaluation import JaxEvaluation
from isthmus.ops.learner.site_models import SiteModels
from isthmus.ops.syncer import answer_rules
from isthmus.programs import language_model
from isthmus.programs.command.beginning import ALONE, ALONE_BY
from isthmus.programs.engine.recorder.summary import agreement
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.compare.compare_outcome import FigureDifference, difference
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.ids import HostMachine
from isthmus.runtime.sim.faults import Fault, Join
from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_joined import replaced
from tests.bench.long.bench_paths import models
from tests.bench.parts_of_text import PARTS

KINDS: Final = tuple(sorted(PARTS))
"""data, headers, pages, python."""
DATA, HEADERS, PAGES, PYTHON = KINDS
SITES: Final = (PYTHON, HEADERS, PAGES, DATA)
STEPS: Final = 500
BATCH: Final = 8
CONTEXT: Final = 64
WINDOWS: Final = 512
GOES_ON: Final = 0.25
"""The share of its steps that a site makes alone, once the run is over."""
STEP_SECONDS: Final = 0.01
TERMS: Final = SiteTerms("0" * 32, bytes=2_000_000, tokens=2_000_000, keeps_own=True)
Tensors = Mapping[str, Any]


class Case(NamedTuple):
    """A run: the kind of text of each site, and how they train on it; its steps are `length` of those asked for."""

    length: float = 1.0
    sites: tuple[str, ...] = SITES
    program: str = "decoupled-diloco"
    settings: Mapping[str, Any] = {}
    batches: tuple[int, ...] = ()
    speeds: tuple[float, ...] = ()
    is_mixed: bool = False
    joins: bool = False
    goes_on: bool = False
    knows_all: bool = False
    """The own last models are evaluated on the text of all sites."""
    compares: bool = False
    """The agreement of the sites' outer gradients is recorded."""

    @property
    def has_own(self) -> bool:
        """Whether its learners have models of their own."""
        return self.program != "data-parallel"


UNEQUAL: Final = (2, 2, 2, 20)
SLOW: Final = (1.0, 1.0, 1.0, 0.25)
ALIKE: Final = (PYTHON, PYTHON, DATA)
CASES: Final[Mapping[str, Case]] = {
    "own": Case(goes_on=True, knows_all=True),
    "mixed": Case(is_mixed=True),
    "alone": Case(program="alone"),
    "half": Case(0.5),
    "alike": Case(0.5, ALIKE),
    "alike, mixed": Case(0.5, ALIKE, is_mixed=True),
    "sizes, by tokens": Case(0.5, batches=UNEQUAL),
    "sizes, equal": Case(0.5, batches=UNEQUAL, settings={"site_weight": "equal"}),
    "slow": Case(0.5, speeds=SLOW),
    "slow, equal": Case(0.5, speeds=SLOW, settings={"site_weight": "equal"}),
    "joins": Case(0.5, joins=True),
    "with all": Case(0.5, compares=True),
    **{f"without {kind}": Case(0.5, tuple(site for site in SITES if site != kind)) for kind in SITES},
    "data-parallel": Case(program="data-parallel", is_mixed=True),
}


@dataclass(frozen=True)
class SiteText:
    """Batches of a slot from its site's text, or, where all are mixed, of each site's as often; the evaluation is of
    all in turn."""

    tasks: tuple[Any, ...]
    is_mixed: bool

    def __call__(self, at: Any) -> Any:
        """The batch at a place."""
        count = len(self.tasks)
        if at.split == "evaluation":
            return self.tasks[at.position % count].batch(replace(at, position=at.position // count))
        if not self.is_mixed:
            return self.tasks[at.slot % count].batch(at)
        windows = np.stack([task.batch(at)["tokens"] for task in self.tasks])
        rows = np.arange(windows.shape[1])
        chosen = np.random.default_rng((at.seed, at.slot, at.position)).integers(0, count, len(rows))
        return {"tokens": windows[chosen, rows]}


class SitesBench:
    """The texts of all sites, and the cells that are measured on them."""

    def __init__(self, parts: Path, steps: int) -> None:
        self._parts, self._steps = parts, steps
        like = {kind: self._task(kind, evaluation_windows=WINDOWS) for kind in KINDS}
        self._evaluations = {
            kind: JaxEvaluation(task, 0, batches={"": list(task.evaluation_batches(0))}) for kind, task in like.items()
        }

    def measured(self, case: Case, seed: int) -> dict[str, Any]:
        """The losses of one run, by the kinds of text: of the global model, and of each slot's own last one, by slot in
        digits, as JSON has it."""
        steps = round(self._steps * case.length)
        if case.program == "alone":
            alone = {kind: self._alone(kind, steps, seed) for kind in case.sites}
            return {"global": {kind: losses[kind] for kind, losses in alone.items()}, "alone": alone}
        task = self._of_sites(case)
        sites, faults = len(case.sites), list[Fault]()
        learners, each = sites, steps
        if case.batches:
            each = round(steps * BATCH * sites / sum(case.batches))
        if case.joins:  # All together make as many steps: of a time of `last` steps, one learner makes half.
            last = steps * sites / (sites - 0.5)
            # As long as the first learners have taken to start, this one takes, too.
            faults = [Join(f"learner/{sites - 1}", at=STEP_SECONDS * last / 2)]
            learners, each = sites - 1, round(steps * sites / (sites - 1))
        with worlds_and_models(self._assembled) as (worlds, own):
            world = {"learners": learners, "steps": each, "speeds": case.speeds, "faults": faults}
            program = Program(case.program, **case.settings)
            result = worlds.run(program, task=task, seed=seed, **world)
            final = models(result.folder, None)[0]
            agreed = agreement(result.folder, result.summary["fragments"])
        # Worlds are closed, so that every learner has kept its models.
        cell: dict[str, Any] = {"global": self._losses(final, case.sites)}
        cell["merged"] = float(result.summary["merged_share"] or 0.0)
        cell["tokens"] = {str(slot): figures.tokens for slot, figures in sorted(result.slots.items())}
        if case.has_own and not case.is_mixed:
            kinds = case.sites if case.knows_all else None
            cell["own"] = {
                str(slot): self._losses(own[slot], kinds or case.sites[slot : slot + 1]) for slot in sorted(own)
            }
        if case.compares:
            cell["agreement"] = {str(row["learner"]): row["mean"] for row in agreed}
        if case.goes_on:
            cell["on"] = {kind: self._gone_on(kind, final, round(steps * GOES_ON), seed) for kind in case.sites}
        return cell

    # -- one model -----------------------------------------------------------------------------------------------------

    def _task(self, kind: str, batch: int | tuple[int, ...] = BATCH, **settings: Any) -> Any:
        return language_model.task(data=(str(self._parts / kind),), batch=batch, context=CONTEXT, **settings)

    def _of_sites(self, case: Case) -> Any:
        tasks = tuple(self._task(kind, case.batches or BATCH) for kind in case.sites)
        site = TERMS if case.has_own else None
        return replace(tasks[0], batch=SiteText(tasks, case.is_mixed), site=site)

    def _alone(self, kind: str, steps: int, seed: int) -> dict[str, float]:
        """The losses of a model on the text of all sites, which one learner has trained on that of one."""
        with worlds_and_models(self._assembled) as (worlds, _):
            folder = worlds.run(
                Program("data-parallel"), task=self._task(kind), learners=1, steps=steps, seed=seed
            ).folder
            return self._losses(models(folder, None)[0], SITES)

    def _gone_on(self, kind: str, final: Tensors, steps: int, seed: int) -> float:
        """The loss of a site's model on its text, which has gone on alone from a final one."""
        task = replace(self._task(kind), load=lambda path, _: final[path], site=TERMS)
        with worlds_and_models(self._assembled) as (worlds, own):
            worlds.run(Program(ALONE_BY, **ALONE), task=task, learners=1, steps=steps, seed=seed)
        return self._losses(own[0], [kind])[kind]

    def _assembled(self, fragments: Any, values: Sequence[Any]) -> Tensors:
        tensors = self._evaluations[PYTHON].assemble(fragments, dict(enumerate(values)))
        return {name: np.array(tensors[name]) for name in tensors}

    def _losses(self, tensors: Tensors, kinds: Sequence[str]) -> dict[str, float]:
        return {kind: self._evaluations[kind].metrics(tensors)["loss"] for kind in dict.fromkeys(kinds)}


@contextmanager
def worlds_and_models(assembled: Any) -> Iterator[tuple[Worlds, dict[int, Tensors]]]:
    """Virtual time in which every learner is a site of its own, and the own last model of each slot once it is kept."""
    own: dict[int, Tensors] = {}

    def keeping(_: Any) -> Any:
        def keep(self: Any, kept: Mapping[str, Any], note: Mapping[str, Any]) -> None:
            if OWN in kept:
                own[note["learner"]] = assembled(self._at.fragments, kept[OWN])

        return keep

    def placing(begin: Any) -> Any:
        return lambda self, place: begin(self, place._replace(context=Apart()))

    with (
        tempfile.TemporaryDirectory() as folder,
        replaced(SiteModels, "_write_all", keeping),
        replaced(answer_rules.SiteWeights, "begin", placing),
    ):
        worlds = Worlds(Path(folder))
        try:
            yield worlds, own
        finally:
            worlds.close()


class Apart:
    """Whereabouts of learners, each on a machine of its own."""

    def machine_of(self, role: str, slot: int) -> HostMachine:
        """The machine of a slot."""
        return HostMachine(f"{role}-{slot}")


# -- what is told ------------------------------------------------------------------------------------------------------

Figures = dict[int, float]
"""A figure by seed."""


class Told:
    """The figures of the cells that are there."""

    def __init__(self, kept: Mapping[str, Mapping[str, Any]], steps: int, seeds: int) -> None:
        self._kept, self._steps, self._seeds = kept, steps, seeds

    def cells(self, case: str) -> dict[int, Mapping[str, Any]]:
        """Those of a case, by seed."""
        names = {seed: name_of(case, self._steps, seed) for seed in range(self._seeds)}
        return {seed: self._kept[name] for seed, name in names.items() if name in self._kept}

    def of(self, case: str, kind: str = "") -> Figures:
        """The loss of its final model on a kind of text, or in the mean of its sites."""
        sites = [kind] if kind else CASES[case].sites
        return {seed: fmean(cell["global"][each] for each in sites) for seed, cell in self.cells(case).items()}

    def own(self, case: str, slot: int, kind: str = "") -> Figures:
        """The loss of a site's own last model, on its own text or that of another site."""
        kind = kind or CASES[case].sites[slot]
        cells = self.cells(case).items()
        return {seed: cell["own"][str(slot)][kind] for seed, cell in cells if str(slot) in cell["own"]}

    def alone(self, kind: str, other: str) -> Figures:
        """The loss on the text of another site of a model that has trained on that of one."""
        return {seed: cell["alone"][kind][other] for seed, cell in self.cells("alone").items()}

    def own_mean(self, case: str) -> Figures:
        """The same, in the mean of the sites."""
        slots = [self.own(case, slot) for slot in range(len(CASES[case].sites))]
        return {seed: fmean(each[seed] for each in slots) for seed in self.cells(case)}

    def on(self, kind: str = "") -> Figures:
        """The loss of a site's model that has gone on alone; in the mean of the sites."""
        kinds = [kind] if kind else SITES
        return {seed: fmean(cell["on"][each] for each in kinds) for seed, cell in self.cells("own").items()}

    def agreement(self, slot: int) -> str:
        """The mean over the seeds of a site's agreement with the others, and the range."""
        found = [cell["agreement"][str(slot)] for cell in self.cells("with all").values()]
        return f"{fmean(found):+.3f} ({min(found):+.3f} to {max(found):+.3f})"

    def share(self, case: str, slot: int) -> float:
        """The share of all tokens that a slot has trained."""
        cells = self.cells(case).values()
        return fmean(cell["tokens"][str(slot)] / sum(cell["tokens"].values()) for cell in cells)


def mean(figures: Figures) -> str:
    """The mean over the seeds."""
    return f"{fmean(figures.values()):.3f}" if figures else "-"


def minus(one: Figures, other: Figures) -> str:
    """The mean of the differences, with its interval."""
    gap: FigureDifference | None = difference(one, other)
    if gap is None:
        return "-"
    if gap.low is None or gap.high is None:
        return f"{gap.mean:+.3f}"
    return f"{gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"


def row(*columns: str) -> str:
    """A row in Markdown."""
    return f"| {' | '.join(columns)} |"


def head(*columns: str) -> list[str]:
    """The head of a table."""
    return ["", row(*columns), row(*["---"] * len(columns))]


def tables(told: Told) -> Iterator[str]:
    """The tables of the page."""
    yield from head("final model, by text", *SITES, "mean of the four")
    for case in ("own", "mixed", "alone", "data-parallel"):
        yield row(case, *(mean(told.of(case, kind)) for kind in SITES), mean(told.of(case)))
    for case in ("mixed", "alone", "data-parallel"):
        apart = (minus(told.of("own", kind), told.of(case, kind)) for kind in SITES)
        yield row(f"own minus {case}", *apart, minus(told.of("own"), told.of(case)))
    yield from head("own, by text", *SITES)
    yield row("the global model", *(mean(told.of("own", kind)) for kind in SITES))
    for slot, kind in enumerate(SITES):
        yield row(f"own last, of {kind}", *(mean(told.own("own", slot, each)) for each in SITES))
    for kind in SITES:
        yield row(f"trained on {kind} alone", *(mean(told.alone(kind, each)) for each in SITES))
    yield from head("own, on the text of", *SITES, "mean of the four")
    own = {kind: told.own("own", slot) for slot, kind in enumerate(SITES)}
    pairs = {
        "global minus own last": ({kind: told.of("own", kind) for kind in SITES}, told.of("own"), own),
        "gone on alone minus own last": ({kind: told.on(kind) for kind in SITES}, told.on(), own),
    }
    for name, (by_kind, whole, other) in pairs.items():
        apart = (minus(by_kind[kind], other[kind]) for kind in SITES)
        yield row(name, *apart, minus(whole, told.own_mean("own")))
    for name, other_of in {"global": told.of, "alone": told.of}.items():
        case = "own" if name == "global" else "alone"
        apart = (minus(told.on(kind), other_of(case, kind)) for kind in SITES)
        yield row(f"gone on alone minus {name}", *apart, minus(told.on(), other_of(case)))
    there = [case for case in HALVES if told.cells(case)]
    if there:
        yield from head("final model, half as long", *SITES, "mean of the four", f"tokens of {SITES[-1]}")
        for case in there:
            share = f"{told.share(case, len(SITES) - 1):.0%}"
            yield row(case, *(mean(told.of(case, kind)) for kind in SITES), mean(told.of(case)), share)
        for case in there[1:]:
            apart = (minus(told.of(case, kind), told.of("half", kind)) for kind in SITES)
            yield row(f"{case}, minus half", *apart, minus(told.of(case), told.of("half")), "")
        yield from head("global minus own last, half as long", *SITES, "mean of the four")
        for case in there:
            apart = (minus(told.of(case, kind), told.own(case, slot)) for slot, kind in enumerate(SITES))
            yield row(case, *apart, minus(told.of(case), told.own_mean(case)))
    if any(told.cells(f"without {kind}") for kind in SITES):
        yield from head("left out, minus with all", *(f"on {kind}" for kind in SITES), "agreement with the others")
        for slot, kind in enumerate(SITES):
            others = (
                minus(told.of(f"without {kind}", each), told.of("with all", each)) for each in SITES if each != kind
            )
            yield row(kind, *(next(others) if each != kind else "" for each in SITES), told.agreement(slot))
    if told.cells("alike"):
        yield from head("two alike, one unlike", *(f"{kind}, site {slot}" for slot, kind in enumerate(ALIKE)), "mean")
        for case in ("alike", "alike, mixed"):
            yield row(case, *(mean(told.of(case, kind)) for kind in ALIKE), mean(told.of(case)))
        apart = (minus(told.of("alike", kind), told.of("alike, mixed", kind)) for kind in ALIKE)
        yield row("alike minus alike, mixed", *apart, minus(told.of("alike"), told.of("alike, mixed")))
        apart = (minus(told.of("alike", kind), told.own("alike", slot)) for slot, kind in enumerate(ALIKE))
        yield row("global minus own last", *apart, minus(told.of("alike"), told.own_mean("alike")))


HALVES: Final = ("half", "slow", "slow, equal", "joins", "sizes, by tokens", "sizes, equal")
"""The cases of half as many steps, with the same four sites."""


def name_of(case: str, steps: int, seed: int) -> str:
    """The name of a cell."""
    return f"{case}, {steps} steps, seed {seed}"


def measure(kept: KeptCells, asked: argparse.Namespace) -> None:
    """Cell after cell that is not there yet, until the time is over: seed by seed, so that pairs are complete early."""
    until = time.monotonic() + 60 * asked.minutes
    names = {(seed, case): name_of(case, asked.steps, seed) for seed in range(asked.seeds) for case in asked.cases}
    missing = {where: name for where, name in names.items() if name not in kept}
    if not missing:
        return
    with tempfile.TemporaryDirectory() as scratch:
        parts = asked.parts or Path(scratch, "parts")
        if not parts.exists():
            subprocess.run(
                [sys.executable, "-m", "tests.bench.parts_of_text", str(parts)], check=True, stdout=sys.stderr
            )
        bench = SitesBench(parts, asked.steps)
        for (seed, case), name in missing.items():
            if time.monotonic() > until:
                return
            kept.keep(name, bench.measured(CASES[case], seed))
            print(name, json.dumps(kept[name]), file=sys.stderr, flush=True)


def main() -> None:
    """Measure what is not kept yet, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=Path, help="a folder of parts_of_text.py; it is made where there is none")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each learner, in whole cases")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--kept", type=Path, help="a file, with which a later call goes on")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further run begins")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.cases = asked.case or list(CASES)
    kept = KeptCells(asked.kept)
    measure(kept, asked)
    if asked.json:
        print(json.dumps(kept, indent=1))
        return
    print("\n".join(tables(Told(kept, asked.steps, asked.seeds))).lstrip())
    print(f"\n{kept.told()}")


if __name__ == "__main__":
    main()
