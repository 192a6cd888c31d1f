"""From what was asked for to a plan: which sides there are, their controls, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.settings import Text
from isthmus.programs.wings.compare import compare
from isthmus.programs.wings.compare.compare import ComparisonPlan, ComparisonRequest, Pacing, plan, request_of
from isthmus.runtime.errors import ConfigError
from tests.programs.engine.results import whole_files
from tests.programs.wings.compare.comparing import written


def asked(task: str, *programs: str, sweeps: Any = None, **more: Any) -> ComparisonRequest:
    sections = {"run": {"tokens": 25_600, "learners": 2}, "program": {}, "task": {}}
    for name, values in more.pop("sections", {}).items():
        sections[name].update(values)
    return ComparisonRequest(programs or ("decoupled-diloco",), task, sections, sweeps or {}, **more)


@pytest.fixture
def task(tmp_path: Path) -> str:
    return written(tmp_path)


@pytest.mark.slow
def test_a_sweep_is_over_the_programs_that_know_its_key(task: str) -> None:
    sweeps = {("program", "merge"): [Text("rda"), Text("average")], ("run", "learners"): [Text("2"), Text("4")]}
    wanted = asked(task, "data-parallel", "decoupled-diloco", sweeps=sweeps)
    del wanted.sections["run"]["learners"]  # type: ignore[attr-defined]
    made = plan(wanted)
    assert [side.name for side in made.compared] == [
        "data-parallel run.learners=2",
        "data-parallel run.learners=4",
        "decoupled-diloco merge=rda run.learners=2",
        "decoupled-diloco merge=rda run.learners=4",
        "decoupled-diloco merge=average run.learners=2",
        "decoupled-diloco merge=average run.learners=4",
    ]
    assert [side.name for side in made.variants[6:]] == ["alone on 12,800 tokens", "alone on 6,400 tokens"]
    assert made.variants[3].control == "alone on 6,400 tokens"
    assert made.variants[4].config["program"]["merge"] == "average"
    assert len({side.folder for side in made.variants}) == 8


def test_the_control_is_one_learner_whose_outer_step_changes_nothing(task: str) -> None:
    control = plan(asked(task)).variants[-1]
    assert control.run.learners == 1
    assert control.config["program"]["outer_lr"] == 1.0
    assert control.config["program"]["outer_momentum"] == 0.0
    assert control.config["run"]["tokens"] == 12_800


def test_a_run_is_what_its_variant_says(task: str, tmp_path: Path) -> None:
    made = plan(asked(task, sections={"program": {"interval": 12}}))
    request = request_of(made.variants[0], 5, str(tmp_path / "run"))
    assert (request.job.seed, request.job.learners, request.config["program"]["interval"]) == (5, 2, 12)
    assert request_of(made.variants[0], 0, str(tmp_path / "run")).fingerprint == made.variants[0].fingerprint


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"sweeps": {("program", "intervall"): [Text("1"), Text("2")]}}, "program.intervall"),
        ({"sweeps": {("run", "learner"): [Text("1"), Text("2")]}}, "run.learner:"),
        ({"sweeps": {("run", "seed"): [Text("1"), Text("2")]}}, "run.seed"),
        ({"sweeps": {("program", "interval"): [Text("6"), Text("6")]}}, "values that differ"),
        ({"sweeps": {("program", "interval"): [Text("6"), Text("often")]}}, "'often'"),
        ({"sections": {"program": {"nothing": 1}}}, "program.nothing"),
        ({"margin": -0.1}, "--margin"),
        ({"margin": float("nan")}, "--margin"),
        ({"pacing": Pacing((1.0, 0.0))}, "--speeds"),
        ({"pacing": Pacing((1.0,) * 3)}, "at most 2"),
    ],
)
def test_what_is_wrong_is_named(task: str, more: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=found.replace("(", r"\(")):
        plan(asked(task, **more))


def test_a_program_that_there_is_not_is_named(task: str) -> None:
    with pytest.raises(ConfigError, match="'decopled'"):
        plan(asked(task, "decopled", "diloco"))
    with pytest.raises(ConfigError, match="more than once"):
        plan(asked(task, "diloco", "diloco"))


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_is_of_one_comparison(task: str, tmp_path: Path) -> None:
    made = plan(asked(task, margin=0.1))
    folder = compare.folder_of(made, tmp_path / "compared")
    assert compare.opened(folder, made) == made
    assert compare.opened(folder, _with(made, margin=None)).margin == 0.1  # Given before; no need to say it again.
    others = {
        "the margin 0.1": _with(made, margin=0.2),
        "at virtual speeds": _with(made, pacing=Pacing((1.0,))),
        "seeds from 0": _with(made, seed=3),
        "decoupled-diloco": plan(asked(task, "diloco")),
        "program.interval=8": plan(asked(task, sections={"program": {"interval": 12}})),
        "its sources": _with(made, variants=tuple(_resourced(side) for side in made.variants)),
    }
    for found, other in others.items():
        with pytest.raises(ConfigError, match=found):
            compare.opened(folder, other)


def test_other_folders_are_left_alone(task: str, tmp_path: Path) -> None:
    made, folder = plan(asked(task)), tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match="something else"):
        compare.opened(folder, made)
    (folder / compare.PLAN).write_text("{")
    with pytest.raises(ConfigError, match="can be read"):
        compare.opened(folder, made)
    assert sorted(path.name for path in folder.iterdir()) == [compare.PLAN, "thesis.txt"]


def test_what_was_broken_off_is_tried_again_beside_it(task: str, tmp_path: Path) -> None:
    made = plan(asked(task))
    side = made.variants[0]
    first = compare.free(tmp_path, side, 0)
    first.mkdir(parents=True)
    (first / "summary.json").write_text(json.dumps(whole_files.summary(outcome="stopped")))
    assert compare.done(tmp_path, side, 0) is None
    second = compare.free(tmp_path, side, 0)
    assert second.name == "seed-0-2"
    second.mkdir()
    (second / "summary.json").write_text(json.dumps(whole_files.summary()))
    assert compare.done(tmp_path, side, 0) == second
    assert compare.done(tmp_path, side, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "kind", "loss", "counts"),
    [
        (25_600, "final", 1.5, True),
        (20_000, "final", 1.5, False),
        (25_600, "during", 1.5, False),
        (25_600, "final", None, False),
    ],
)
def test_one_that_is_judged_failed_counts_if_it_came_to_its_end(
    task: str, tmp_path: Path, tokens: int, kind: str, loss: float | None, counts: bool
) -> None:
    side = plan(asked(task)).variants[0]
    (tmp_path / "summary.json").write_text(json.dumps(whole_files.summary(outcome="failed", tokens_total=tokens)))
    (tmp_path / "evaluations.jsonl").write_text(json.dumps({"kind": kind, "eval_loss": loss}))
    assert compare.has_ended(tmp_path, side) == counts


def _with(made: ComparisonPlan, **changes: Any) -> ComparisonPlan:
    return ComparisonPlan(**{name: getattr(made, name) for name in made.__struct_fields__} | changes)


def _resourced(side: Any) -> Any:
    fields = {name: getattr(side, name) for name in side.__struct_fields__}
    return type(side)(**fields | {"fingerprint": "0" * 32})


def test_paths_are_for_the_programs_that_train_modules() -> None:
    sections = {"run": {"learners": 4}, "task": {"paths": [1, 2], "layers": 2}}
    made = plan(asked(None, "dipaco", "decoupled-diloco", sections=sections))  # type: ignore[arg-type]
    assert [side.config["task"].get("paths") for side in made.compared] == [[1, 2], []]
    assert not any(side.config["task"].get("paths") for side in made.variants if not side.control)
    with pytest.raises(ConfigError, match="a program that trains modules, found decoupled-diloco"):
        plan(asked(None, "decoupled-diloco", sections={"task": {"paths": [1, 2]}}))  # type: ignore[arg-type]
    sweeps = {("task", "router"): [Text("a.router"), Text("b.router")]}
    with pytest.raises(ConfigError, match="one evaluation for all"):
        plan(asked(None, "dipaco", sections=sections, sweeps=sweeps))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one evaluation for all"):
        plan(asked(None, "dipaco", sections={"task": {"paths": [1, 2], "router": "a.router"}}))  # type: ignore[arg-type]
