"""A comparison of programs and settings: its plan, kept as `compare.json`, and its folder, with a folder
`VARIANT/seed-N` for every run.

Decides the variants and controls (each prepared as a run would be, and nothing is started), which runs belong together,
and which attempt at a run counts. Preparing imports the task, and so jax: to be done in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, final

import msgspec

from isthmus.programs import SHIPPED, dipaco
from isthmus.programs.engine.recorder.node import TRAINED_SHARE_MIN
from isthmus.programs.engine.request.new_folder import RUNS
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.engine.request.run_settings import SCHEMA, RunSettings
from isthmus.programs.engine.results.lines import EvaluationLine
from isthmus.programs.engine.results.lines import read as read_lines
from isthmus.programs.engine.results.run_files import RunFilesError, summary_of
from isthmus.programs.settings import Schema, collecting
from isthmus.runtime.errors import ConfigError, Fault, RequestError, nearest
from isthmus.runtime.system.files import read_bytes, write_bytes

CONTROL: Final = "alone"
CONTROL_PROGRAM: Final = "diloco"
CONTROL_SETTINGS: Final[Mapping[str, Any]] = {"outer_lr": 1.0, "outer_momentum": 0.0}
PATHS: Final = "paths"
"""The setting of a task that cuts its model into modules."""
_SLUG_MAX: Final = 60
"""Letters of a folder's name; file systems take 255."""


class Variant(msgspec.Struct, frozen=True):
    """One side of a comparison: `config` has the sections run, program and task, resolved but for `run.seed`; `control`
    is the name of its control, empty for a control itself. `folder` is that of its runs."""

    name: str
    folder: str
    config: dict[str, dict[str, Any]]
    fingerprint: str
    control: str = ""

    @property
    def run(self) -> RunSettings:
        """Section `run.`."""
        return RunSettings.of_section(self.config["run"])


class Pacing(msgspec.Struct, frozen=True):
    """Virtual time: a speed for each slot, the time of an inner step at speed 1, and of a transfer between hosts."""

    speeds: tuple[float, ...]
    step_ms: float = 10.0
    delay_ms: float = 1.0


class ComparisonPlan(msgspec.Struct, frozen=True):
    """A comparison. The reference is the first of `variants`, controls are last; in real time `pacing` is None, and
    without a verdict `margin`, in units of the loss.

    For each number of learners (and each task) there is a control: one learner alone on its share of the tokens, the
    result that each would reach without the others. It is `diloco` with one learner and an outer step of 1 without
    momentum, which gives a learner its own parameters back. The `identity` leaves out the number of seeds, so that a
    comparison can be given more of them later, and the margin, which is given before the first run.
    """

    variants: tuple[Variant, ...]
    seed: int
    tokens: int
    pacing: Pacing | None = None
    margin: float | None = None

    @property
    def compared(self) -> tuple[Variant, ...]:
        """All but the controls."""
        return tuple(variant for variant in self.variants if variant.control)

    @property
    def identity(self) -> str:
        """Which comparison this is, as 32 hexadecimal digits."""
        content = msgspec.json.encode([self.variants, self.seed, self.tokens, self.pacing], order="deterministic")
        return hashlib.sha256(content).hexdigest()[:32]

    def runs(self, seeds: int) -> list[tuple[Variant, int]]:
        """All runs in the order of execution: seed by seed, so that pairs are complete early."""
        return [(variant, seed) for seed in range(self.seed, self.seed + seeds) for variant in self.variants]


def variant_name(program: str, chosen: Mapping[str, Any]) -> str:
    """A variant's name: its program, and its values of the sweeps."""
    return " ".join([program, *(f"{key.removeprefix('program.')}={value}" for key, value in chosen.items())])


def control_name(tokens: int) -> str:
    """A control's name."""
    return f"{CONTROL} on {tokens:,} tokens"


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder for each variant, numbered, so that they differ and stand in order."""
    slugs = [re.sub(r"[^A-Za-z0-9.=]+", "-", name).strip("-")[:_SLUG_MAX] for name in names]
    return [f"{number:02}-{slug}" for number, slug in enumerate(slugs)]


PLAN: Final = "compare.json"
_ATTEMPTS_MAX: Final = 100
"""Attempts of one run; after so many the cause is in a log."""
_DO: Final = "Name another folder with --dir, or leave it out."


def folder_of(plan: ComparisonPlan, chosen: Path | None) -> Path:
    """The folder of a comparison: `chosen`, or runs/compare-ID in the current folder: the same call finds it again."""
    return Path(
        os.path.abspath(RUNS / f"compare-{plan.identity[:12]}" if chosen is None else os.path.expanduser(chosen))
    )


def opened(folder: Path, plan: ComparisonPlan) -> ComparisonPlan:
    """The plan of the comparison in a folder, which is made if missing; a margin stays the one that was given first.

    ConfigError if the folder is of another comparison, contains something else, or cannot be written.
    """
    doing = f"Comparing in {folder}"
    path = folder / PLAN
    if folder.exists() and not path.exists() and (not folder.is_dir() or any(folder.iterdir())):
        actual = "files of something else" if folder.is_dir() else "a file"
        raise ConfigError(doing, "the folder of this comparison, or an empty one", actual, _DO)
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, msgspec.json.format(msgspec.json.encode(plan), indent=2))
        except OSError as error:
            raise ConfigError(doing, "a disk that takes its files", error.strerror or str(error), _DO) from None
        return plan
    try:
        kept = msgspec.json.decode(read_bytes(path), type=ComparisonPlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(doing, f"a {PLAN} that can be read", str(error), _DO) from None
    if kept.identity != plan.identity:
        raise ConfigError.of(
            [
                Fault(doing, f"the comparison that began there: {ours}", theirs, _DO)
                for ours, theirs in _differing(kept, plan)
            ]
        )
    if plan.margin is not None and plan.margin != kept.margin:
        expected = "no margin: none was given" if kept.margin is None else f"the margin {kept.margin}, which was given"
        do = "A margin says something if it is given before the figures. Leave it out, or begin anew with --dir."
        raise ConfigError(f"Reading --margin, for {folder}", f"{expected} before its first run", str(plan.margin), do)
    return kept


def _differing(kept: ComparisonPlan, plan: ComparisonPlan) -> Iterator[tuple[str, str]]:
    """The first difference of two plans, in words: of sides, then of pacing, then of a side's configuration."""
    names, theirs = ([variant.name for variant in each.compared] for each in (kept, plan))
    if names != theirs:
        yield ", ".join(names), ", ".join(theirs)
        return
    if (kept.seed, kept.pacing) != (plan.seed, plan.pacing):
        yield f"seeds from {kept.seed}, {_paced(kept)}", f"seeds from {plan.seed}, {_paced(plan)}"
        return
    for ours, other in zip(kept.variants, plan.variants, strict=False):
        if ours.config != other.config:
            yield f"{ours.name} with {_only(ours, other)}", _only(other, ours)
            return
    yield "its sources", "others: the program, the task or isthmus has changed since"


def _paced(plan: ComparisonPlan) -> str:
    if plan.pacing is None:
        return "in real time"
    return f"at virtual speeds {','.join(map(str, plan.pacing.speeds))} with a delay of {plan.pacing.delay_ms:g} ms"


def _only(one: Variant, other: Variant) -> str:
    """The keys of a variant that differ from another's."""
    ours, theirs = (
        {f"{section}.{key}": value for section, values in each.config.items() for key, value in values.items()}
        for each in (one, other)
    )
    differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return ", ".join(f"{key}={ours[key]}" if key in ours else f"no {key}" for key in differing)


def done(folder: Path, variant: Variant, seed: int) -> Path | None:
    """The folder of a run that has ended; None if there is none.

    A run that is done is never repeated; one that was interrupted or failed stays where it is, and the next attempt has
    a folder of its own beside it, `seed-N-2`. So a call continues where the one before it ended.
    """
    there = (path for path in _numbered(folder, variant, seed) if path.exists())
    return next((path for path in there if has_ended(path, variant)), None)


def has_ended(run: Path, variant: Variant) -> bool:
    """Whether a run trained its tokens and evaluated the model.

    A run that is judged failed nevertheless, because more was refused than merged, counts: it is typical of its side.
    """
    figures = summary(run)
    if figures.get("outcome") != "failed":
        return figures.get("outcome") == "done"
    last = read_lines(run / "evaluations.jsonl", EvaluationLine)[-1:]
    is_whole = figures.get("tokens_total", 0) >= TRAINED_SHARE_MIN * variant.run.tokens
    return is_whole and any(each.kind == "final" and each.eval_loss for each in last)


def free(folder: Path, variant: Variant, seed: int) -> Path:
    """The folder of the next attempt at a run; ConfigError after too many."""
    for path in _numbered(folder, variant, seed):
        if not path.exists():
            return path
    do = f"Look at the last of them: {path}."
    raise ConfigError(f"Running {variant.name}, seed {seed}", f"at most {_ATTEMPTS_MAX} attempts", "as many", do)


def _numbered(folder: Path, variant: Variant, seed: int) -> Iterator[Path]:
    stem = folder / variant.folder / f"seed-{seed}"
    yield stem
    yield from (stem.with_name(f"{stem.name}-{number}") for number in range(2, _ATTEMPTS_MAX + 1))


def summary(run: Path) -> dict[str, Any]:
    """The figures of a run; empty if they are missing or unreadable."""
    with suppress(RunFilesError):
        return summary_of(run) or {}
    return {}


def damaged(folder: Path, runs: Sequence[tuple[Variant, int]]) -> Iterator[str]:
    """Why the figures of a run cannot be read, a line for each of the runs that counts as none for that."""
    for variant, seed in runs:
        for run in _numbered(folder, variant, seed):
            if not run.exists():
                break
            try:
                summary_of(run)
            except RunFilesError as error:
                fault = error.faults[0]
                yield f"{variant.name}, seed {seed}: {fault.action}: expected {fault.expected}, found {fault.found}"


VARIANTS_MAX: Final = 64
"""Each is a run for every seed, and a curve of its own."""
_NOT_SWEPT: Final[Mapping[str, str]] = {
    "run.program": "Name the programs: isthmus compare PROGRAM PROGRAM.",
    "run.task": "Compare once for each task.",
    **{f"run.{name}": key.declared.sweeps for name, key in SCHEMA.keys.items() if key.declared.sweeps},
}
_Sections = dict[str, dict[str, Any]]


@final
@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The request for a comparison: `sections` are run, program and task without defaults, `sweeps` (section, key) ->
    values."""

    programs: tuple[str, ...]
    task: str | None
    sections: Mapping[str, Mapping[str, Any]]
    sweeps: Mapping[tuple[str, str], Sequence[Any]] = field(default_factory=dict)
    pacing: Pacing | None = None
    margin: float | None = None


def plan(wanted: ComparisonRequest, faults_before: Sequence[Fault] = ()) -> ComparisonPlan:
    """The plan; ConfigError or GraphError with the faults of all variants, and those already `faults_before`.

    Keys of section `program.` go to the programs that know them, because a family of programs has no settings in
    common; a key that none of them knows is refused. So does `task.paths`, to those that train modules: the others, and
    the controls, train the dense model of the same settings.
    """
    faults = [*faults_before, *_sweep_faults(wanted)]
    schemas: dict[str, Schema] = {}
    for name in wanted.programs:
        with collecting(faults):
            schemas[name] = Program(name).schema()
    faults += _unknown(wanted, schemas) if len(schemas) == len(wanted.programs) else []
    if faults:
        raise ConfigError.of(faults)
    variants = [
        (program, variant_name(short, chosen), sections)
        for (program, schema), short in zip(schemas.items(), _short(wanted.programs), strict=True)
        for chosen, sections in _chosen(wanted, program, schema)
    ]
    if len(variants) > VARIANTS_MAX:
        do = "Leave out programs, or values of --sweep."
        raise ConfigError("Reading --sweep", f"at most {VARIANTS_MAX} variants", str(len(variants)), do)
    prepared: list[tuple[str, Request]] = []
    error: RequestError | None = None
    for program, name, sections in variants:
        try:
            prepared.append((name, _prepared(program, wanted.task, sections)))
        except RequestError as raised:
            error = error or raised
            faults += [fault for fault in raised.faults if fault not in faults]
    if error is not None:
        raise type(error).of(faults)
    _check_speeds(wanted.pacing, max(request.job.learners for _, request in prepared))
    return _plan(wanted, prepared)


def _plan(wanted: ComparisonRequest, prepared: Sequence[tuple[str, Request]]) -> ComparisonPlan:
    """The plan of variants that are in order, with their controls."""
    controls: dict[str, Request] = {}
    belongs: list[str] = []
    for _, request in prepared:
        tokens = max(request.run.tokens // request.run.learners, request.task.tokens_mean(1))
        run = msgspec.structs.replace(request.run, learners=1, tokens=tokens)
        task = {key: value for key, value in request.config["task"].items() if key != PATHS}
        sections = {"run": run.section(), "program": dict(CONTROL_SETTINGS), "task": task}
        alone = _prepared(CONTROL_PROGRAM, request.config["run"].get("task"), sections)
        same = next((name for name, other in controls.items() if other.config == alone.config), None)
        if same is None:
            same = control_name(tokens)
            if same in controls:  # Another task of the same budget: a sweep of task.
                same = f"{same}, {len(controls)}"
            controls[same] = alone
        belongs.append(same)
    names = [name for name, _ in prepared] + list(controls)
    requests = [request for _, request in prepared] + list(controls.values())
    variants = tuple(
        Variant(name, folder, _resolved(request), request.fingerprint, control)
        for name, folder, request, control in zip(
            names, folder_names(names), requests, [*belongs, *[""] * len(controls)], strict=True
        )
    )
    job = prepared[0][1].job
    return ComparisonPlan(variants, job.seed, job.tokens, wanted.pacing, wanted.margin)


def request_of(variant: Variant, seed: int, run_dir: str) -> Request:
    """The request of one run."""
    config = variant.config
    sections = {**config, "run": msgspec.structs.replace(variant.run, seed=seed).section()}
    return _prepared(config["run"]["program"], config["run"].get("task"), sections, run_dir)


def _prepared(
    program: str, task: str | None, sections: Mapping[str, Mapping[str, Any]], run_dir: str | None = None
) -> Request:
    return prepare(
        Program(program, **sections["program"]),
        task,
        run=sections["run"],
        task_settings=sections["task"],
        run_dir=run_dir,
    ).to_train()


def _resolved(request: Request) -> _Sections:
    """The sections of a request's configuration as JSON would have them; None, which means a default, is left out."""
    return {
        section: {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None and (section, name) != ("run", "seed")
        }
        for section, values in request.config.items()
    }


def _chosen(wanted: ComparisonRequest, program: str, schema: Schema) -> Iterator[tuple[dict[str, Any], _Sections]]:
    """The variants of one program: the chosen values of the sweeps, by key, and the sections."""
    sweeps = {where: values for where, values in wanted.sweeps.items() if _is_for(program, schema, where)}
    for values in product(*sweeps.values()):
        sections = {
            name: {key: value for key, value in of.items() if _is_for(program, schema, (name, key))}
            for name in ("run", "program", "task")
            for of in [wanted.sections.get(name, {})]
        }
        chosen = dict(zip(sweeps, values, strict=True))
        for (section, key), value in chosen.items():
            sections[section][key] = value
        yield {".".join(where): value for where, value in chosen.items()}, sections


def _is_for(program: str, schema: Schema, where: tuple[str, str]) -> bool:
    """Whether a key is one for a program."""
    if where == ("task", PATHS):
        return program == dipaco.NAME or program not in SHIPPED
    return where[0] != "program" or _knows(schema, where)


def _knows(schema: Schema, where: tuple[str, str]) -> bool:
    return where[1] in schema.keys or schema.is_open


def _short(programs: Sequence[str]) -> list[str]:
    """Short names of programs, if these are distinct; else the full ones."""
    short = [Program(program).name for program in programs]
    return short if len(set(short)) == len(short) else list(programs)


def _sweep_faults(wanted: ComparisonRequest) -> Iterator[Fault]:
    doing = "Reading the programs to compare"
    for name in dict.fromkeys(name for name in wanted.programs if wanted.programs.count(name) > 1):
        yield Fault(doing, "each program once", f"{name!r} more than once", "Its settings are compared with --sweep.")
    if wanted.sections.get("run", {}).get(key := "local_batch", "same") != "same":
        yield Fault(f"Reading run.{key}", "batches of one size", "'paced'", _NOT_SWEPT[f"run.{key}"])
    if wanted.sections.get("run", {}).get("evaluate") == "none":
        do = "Leave it out, or say 'ends'."
        yield Fault("Reading run.evaluate", "an evaluation of each final model, by which sides compare", "'none'", do)
    if "router" in wanted.sections.get("task", {}) or ("task", "router") in wanted.sweeps:
        do = "Leave it out: each path would be evaluated on documents of its own, and other sides on all."
        yield Fault("Reading task.router", "one evaluation for all", "documents of a router's shards", do)
    for (section, key), values in wanted.sweeps.items():
        where = f"{section}.{key}"
        if where in _NOT_SWEPT:
            yield Fault(f"Reading --sweep {where}", "another key", where, _NOT_SWEPT[where])
        if key in wanted.sections.get(section, {}):
            actual = "a value from --set, an option or a file as well"
            yield Fault(f"Reading --sweep {where}", "its values from there alone", actual, "Leave one of them out.")
        if len(set(map(str, values))) < len(values):
            actual = ",".join(map(str, values))
            yield Fault(f"Reading --sweep {where}", "values that differ", actual, "Name each value once.")
    if wanted.margin is not None and not 0 <= wanted.margin < float("inf"):
        do = "Say by how much a loss may differ and be as good, for example --margin 0.03."
        yield Fault("Reading --margin", "a number of at least 0", str(wanted.margin), do)
    for speed in () if wanted.pacing is None else wanted.pacing.speeds:
        if not 0 < speed < float("inf"):
            do = "Write for example --speeds 1,1,0.8,0.6: by slot, 1 takes 10 virtual ms a step."
            yield Fault("Reading --speeds", "numbers above 0", str(speed), do)
    if wanted.pacing is not None and not 0 <= wanted.pacing.delay_ms < float("inf"):
        do = "Write for example --delay 30: a round trip of 6 steps."
        yield Fault("Reading --delay", "milliseconds of at least 0", str(wanted.pacing.delay_ms), do)


def _unknown(wanted: ComparisonRequest, schemas: Mapping[str, Schema]) -> Iterator[Fault]:
    """Keys of section `program.` that none of the programs knows, and paths that none of them trains."""
    where = ("task", PATHS)
    is_asked = wanted.sections.get("task", {}).get(PATHS) or where in wanted.sweeps
    if is_asked and not any(_is_for(program, schema, where) for program, schema in schemas.items()):
        do = f"Add {dipaco.NAME} to the programs, or leave out {PATHS}."
        yield Fault(f"Reading task.{PATHS}", "a program that trains modules", ", ".join(schemas), do)
    swept = [key for section, key in wanted.sweeps if section == "program"]
    for key in [*wanted.sections.get("program", {}), *swept]:
        if not any(_knows(schema, ("program", key)) for schema in schemas.values()):
            settings = {name for schema in schemas.values() for name in schema.keys}
            yield Fault(
                f"Reading program.{key}", "a setting of a program that is compared", repr(key), nearest(key, settings)
            )


def _check_speeds(pacing: Pacing | None, learners: int) -> None:
    if pacing is not None and len(pacing.speeds) > learners:
        do = "Name one for each learner, or fewer: slots beyond the last have the speed 1."
        raise ConfigError("Reading --speeds", f"at most {learners}, one a learner", str(len(pacing.speeds)), do)
