"""Conversion of a request to a plan: every variant and control is prepared as a run would be, and nothing is started.

Keys of section `program.` go to the programs that know them, because a family of programs has no settings in common; a
key that none of them knows is refused. Preparing imports the task, and so jax: to be done in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, final

from isthmus.programs.comparison.plan import (
    CONTROL_PROGRAM,
    CONTROL_SETTINGS,
    Pacing,
    Plan,
    Variant,
    control_name,
    folder_names,
    variant_name,
)
from isthmus.programs.request.program import Program
from isthmus.programs.request.request import Request, prepare
from isthmus.programs.request.settings import Schema, collecting
from isthmus.runtime.errors import ConfigError, Fault, RequestError, nearest

VARIANTS_MAX: Final = 64
"""Each is a run for every seed, and a curve of its own."""
_NOT_SWEPT: Final[Mapping[str, str]] = {
    "run.seed": "Say how many seeds with --seeds, and the first with --seed.",
    "run.tokens": "Programs are compared on the same tokens; compare once for each budget.",
    "run.program": "Name the programs: isthmus compare PROGRAM PROGRAM.",
    "run.task": "Compare once for each task.",
    "run.local_batch": "Give task.batch a number for each slot.",
}
_Sections = dict[str, dict[str, Any]]


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """The request for a comparison: `sections` are run, program and task without defaults, `sweeps` (section, key) ->
    values."""

    programs: tuple[str, ...]
    task: str | None
    sections: Mapping[str, Mapping[str, Any]]
    sweeps: Mapping[tuple[str, str], Sequence[Any]] = field(default_factory=dict)
    pacing: Pacing | None = None
    margin: float | None = None


def plan(wanted: Wanted, found: Sequence[Fault] = ()) -> Plan:
    """The plan; ConfigError or GraphError with the faults of all variants, and those already `found`."""
    faults = [*found, *_sweep_faults(wanted)]
    schemas: dict[str, Schema] = {}
    for name in wanted.programs:
        with collecting(faults):
            schemas[name] = Program(name).schema()
    faults += _unknown(wanted, list(schemas.values())) if len(schemas) == len(wanted.programs) else []
    if faults:
        raise ConfigError.of(faults)
    made = [
        (program, variant_name(short, chosen), sections)
        for (program, schema), short in zip(schemas.items(), _short(wanted.programs), strict=True)
        for chosen, sections in _chosen(wanted, schema)
    ]
    if len(made) > VARIANTS_MAX:
        do = "Leave out programs, or values of --sweep."
        raise ConfigError("Reading --sweep", f"at most {VARIANTS_MAX} variants", str(len(made)), do)
    prepared: list[tuple[str, Request]] = []
    error: RequestError | None = None
    for program, name, sections in made:
        try:
            prepared.append((name, _prepared(program, wanted.task, sections)))
        except RequestError as raised:
            error = error or raised
            faults += [fault for fault in raised.faults if fault not in faults]
    if error is not None:
        raise type(error).of(faults)
    _check_speeds(wanted.pacing, max(request.job.learners for _, request in prepared))
    return _plan(wanted, prepared)


def _plan(wanted: Wanted, prepared: Sequence[tuple[str, Request]]) -> Plan:
    """The plan of variants that are in order, with their controls."""
    controls: dict[str, Request] = {}
    belongs: list[str] = []
    for _, request in prepared:
        run, task = request.config["run"], request.config["task"]
        tokens = max(run["tokens"] // run["learners"], request.task.tokens_mean(1))
        alone = _prepared(
            CONTROL_PROGRAM,
            run.get("task"),
            {
                "run": {**_plain(run), "learners": 1, "tokens": tokens},
                "program": dict(CONTROL_SETTINGS),
                "task": dict(task),
            },
        )
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
    return Plan(variants, job.seed, job.tokens, wanted.pacing, wanted.margin)


def request_of(variant: Variant, seed: int, run_dir: str) -> Request:
    """The request of one run."""
    config = variant.config
    sections = {**config, "run": {**_plain(config["run"]), "seed": seed}}
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


def _plain(run: Mapping[str, Any]) -> dict[str, Any]:
    """Section `run.` without program and task, which are given apart."""
    return {name: value for name, value in run.items() if name not in ("program", "task")}


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


def _chosen(wanted: Wanted, schema: Schema) -> Iterator[tuple[dict[str, Any], _Sections]]:
    """The variants of one program: the chosen values of the sweeps, by key, and the sections."""
    known = {where: values for where, values in wanted.sweeps.items() if where[0] != "program" or _knows(schema, where)}
    for values in product(*known.values()):
        sections = {name: dict(wanted.sections.get(name, {})) for name in ("run", "program", "task")}
        sections["program"] = {
            key: value for key, value in sections["program"].items() if _knows(schema, ("program", key))
        }
        chosen = dict(zip(known, values, strict=True))
        for (section, key), value in chosen.items():
            sections[section][key] = value
        yield {".".join(where): value for where, value in chosen.items()}, sections


def _knows(schema: Schema, where: tuple[str, str]) -> bool:
    return where[1] in schema.settings or schema.is_open


def _short(programs: Sequence[str]) -> list[str]:
    """Short names of programs, if these are distinct; else the full ones."""
    short = [Program(program).name for program in programs]
    return short if len(set(short)) == len(short) else list(programs)


def _sweep_faults(wanted: Wanted) -> Iterator[Fault]:
    doing = "Reading the programs to compare"
    for name in dict.fromkeys(name for name in wanted.programs if wanted.programs.count(name) > 1):
        yield Fault(doing, "each program once", f"{name!r} more than once", "Its settings are compared with --sweep.")
    if wanted.sections.get("run", {}).get("local_batch", "same") != "same":
        yield Fault("Reading run.local_batch", "batches of one size", "'paced'", _NOT_SWEPT["run.local_batch"])
    for (section, key), values in wanted.sweeps.items():
        where = f"{section}.{key}"
        if where in _NOT_SWEPT:
            yield Fault(f"Reading --sweep {where}", "another key", where, _NOT_SWEPT[where])
        if key in wanted.sections.get(section, {}):
            found = "a value from --set, an option or a file as well"
            yield Fault(f"Reading --sweep {where}", "its values from there alone", found, "Leave one of them out.")
        if len(set(map(str, values))) < len(values):
            found = ",".join(map(str, values))
            yield Fault(f"Reading --sweep {where}", "values that differ", found, "Name each value once.")
    if wanted.margin is not None and not 0 <= wanted.margin < float("inf"):
        do = "Say by how much a loss may differ and be as good, for example --margin 0.03."
        yield Fault("Reading --margin", "a number of at least 0", str(wanted.margin), do)
    for speed in () if wanted.pacing is None else wanted.pacing.speeds:
        if not 0 < speed < float("inf"):
            do = "Write for example --speeds 1,1,0.8,0.6: by slot, 1 takes 10 virtual ms a step."
            yield Fault("Reading --speeds", "numbers above 0", str(speed), do)


def _unknown(wanted: Wanted, schemas: Sequence[Schema]) -> Iterator[Fault]:
    """Keys of section `program.` that none of the programs knows."""
    swept = [key for section, key in wanted.sweeps if section == "program"]
    for key in [*wanted.sections.get("program", {}), *swept]:
        if not any(_knows(schema, ("program", key)) for schema in schemas):
            known = {name for schema in schemas for name in schema.settings}
            yield Fault(
                f"Reading program.{key}", "a setting of a program that is compared", repr(key), nearest(key, known)
            )


def _check_speeds(pacing: Pacing | None, learners: int) -> None:
    if pacing is not None and len(pacing.speeds) > learners:
        do = "Name one for each learner, or fewer: slots beyond the last have the speed 1."
        raise ConfigError("Reading --speeds", f"at most {learners}, one a learner", str(len(pacing.speeds)), do)
