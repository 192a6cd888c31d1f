"""The folder of a comparison: `compare.json` with the plan, and a folder for every run, `VARIANT/seed-N`.

A run that is done is never repeated; one that was interrupted or failed stays where it is, and the next attempt has a
folder of its own beside it, `seed-N-2`. So a call continues where the one before it ended, for whatever reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.programs.comparison.plan import Plan, Variant
from isthmus.programs.recorder.verdict import TRAINED_SHARE_MIN
from isthmus.programs.request.new_folder import RUNS
from isthmus.programs.results.json_lines import objects
from isthmus.programs.results.record import as_number
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.files import write_bytes

PLAN: Final = "compare.json"
_ATTEMPTS_MAX: Final = 100
"""Attempts of one run; after so many the cause is in a log."""
_DO: Final = "Name another folder with --dir, or leave it out."


def folder_of(plan: Plan, given: Path | None) -> Path:
    """The folder of a comparison: `given`, or runs/compare-ID in the current folder, so that the same call finds it."""
    return (Path.cwd() / RUNS / f"compare-{plan.identity[:12]}" if given is None else given.expanduser()).absolute()


def opened(folder: Path, plan: Plan) -> Plan:
    """The plan of the comparison in a folder, which is made if missing; a margin stays the one that was given first.

    ConfigError if the folder is of another comparison, contains something else, or cannot be written.
    """
    doing = f"Comparing in {folder}"
    path = folder / PLAN
    if folder.exists() and not path.exists() and (not folder.is_dir() or any(folder.iterdir())):
        found = "files of something else" if folder.is_dir() else "a file"
        raise ConfigError(doing, "the folder of this comparison, or an empty one", found, _DO)
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, msgspec.json.format(msgspec.json.encode(plan), indent=2))
        except OSError as error:
            raise ConfigError(doing, "a disk that takes its files", error.strerror or str(error), _DO) from None
        return plan
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Plan)
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


def _differing(kept: Plan, plan: Plan) -> Iterator[tuple[str, str]]:
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


def _paced(plan: Plan) -> str:
    return "in real time" if plan.pacing is None else f"at virtual speeds {','.join(map(str, plan.pacing.speeds))}"


def _only(one: Variant, other: Variant) -> str:
    """The keys of a variant that differ from another's."""
    ours, theirs = (
        {f"{section}.{key}": value for section, values in each.config.items() for key, value in values.items()}
        for each in (one, other)
    )
    differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return ", ".join(f"{key}={ours[key]}" if key in ours else f"no {key}" for key in differing)


def done(folder: Path, variant: Variant, seed: int) -> Path | None:
    """The folder of a run that has ended; None if there is none."""
    return next((path for path in attempts(folder, variant, seed) if has_ended(path, variant)), None)


def has_ended(run: Path, variant: Variant) -> bool:
    """Whether a run trained its tokens and evaluated the model.

    A run that is judged failed nevertheless, because more was refused than merged, counts: it is typical of its side.
    """
    figures = summary(run)
    if figures.get("outcome") != "failed":
        return figures.get("outcome") == "done"
    last = objects(run / "evaluations.jsonl")[-1:]
    is_whole = figures.get("tokens_total", 0) >= TRAINED_SHARE_MIN * variant.config["run"]["tokens"]
    return is_whole and any(each.get("kind") == "final" and as_number(each.get("eval_loss")) for each in last)


def attempts(folder: Path, variant: Variant, seed: int) -> list[Path]:
    """The folders of all attempts at a run, in their order."""
    return [path for path in _numbered(folder, variant, seed) if path.exists()]


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
    try:
        found = json.loads((run / "summary.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
