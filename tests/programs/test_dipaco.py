"""A model made of modules that paths share, in virtual time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from isthmus import At, Program, load
from isthmus.ops.exchange.paths import PathParts, path_parts
from isthmus.ops.island.contract import path_evaluations
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.programs.engine.recorder.graph_parts import paths_in
from isthmus.programs.engine.request import new_spec, spec
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.task_checks import check_alike, layout_of
from isthmus.programs.engine.run.resume import changes
from isthmus.programs.language_model import task as language_model
from isthmus.programs.routers import route
from isthmus.programs.trained.run_model import task_of
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.sim.faults import Cut, Kill, Pause, RefuseStarts
from tests.programs.family import ADAM, final_model, recorded

NAME = "dipaco"
LEVELS = {f"{kind}-{i}": i // 2 for i in range(4) for kind in ("layer", "bias")}
FLOAT = {"fragments": 5, "interval": 6}


def _task(*modules: int) -> Any:
    return replace(ADAM, paths=modules, levels=LEVELS if len(modules) == 2 else dict.fromkeys(LEVELS, 0))


def _run(world: Worlds, *modules: int, learners: int = 4, steps: int = 96, faults: Any = (), **settings: Any) -> Any:
    program = Program(NAME, **{**FLOAT, **settings})
    return world.run(program, task=_task(*modules), learners=learners, steps=steps, jitter=0.0, faults=faults)


def _parts(*modules: int) -> PathParts:
    parts = paths_in(prepare(Program(NAME, **FLOAT), _task(*modules)).graph)
    assert parts is not None
    return parts


def _voters(result: WorldResult) -> dict[int, set[int]]:
    voters = defaultdict(set)
    for line in (result.folder / "merges.jsonl").read_text().splitlines():
        merge = json.loads(line)
        if merge["kind"] in ("merge", "final"):
            voters[merge["fragment"]] |= set(merge["voters"])
    return dict(voters)


@pytest.mark.further
def test_one_module_a_level_is_decoupled_diloco(world: Worlds) -> None:
    """Bit for bit."""
    with recorded() as flat:
        one = world.run(Program("decoupled-diloco", **FLOAT, push="float32"), task=ADAM, learners=4, jitter=0.0)
    with recorded() as modules:
        two = world.run(Program(NAME, **FLOAT, push="float32"), task=_task(1, 1), learners=4, jitter=0.0)
    assert min(map(len, flat.answers.values())) > 10
    assert (flat.answers, flat.updates) == (modules.answers, modules.updates)
    ours, theirs = final_model(two.folder), final_model(one.folder)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert two.eval_loss == one.eval_loss


class Trained(NamedTuple):
    """A run of four paths, and what each slot received and held: numbers of fragments, and sizes of its anchors."""

    result: WorldResult
    received: dict[int, set[int]]
    held: dict[int, int]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    received, held = defaultdict[int, set[int]](set), dict[int, int]()
    adopt = InnerStep._adopt_all

    def noted(self: Any, update: Any) -> None:
        received[self._slot] |= {item["fragment"] for item in update.values()}
        adopt(self, update)
        held[self._slot] = sum(each.anchor.size for each in self._held if each is not None)

    worlds = Worlds(tmp_path_factory.mktemp("paths"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InnerStep, "_adopt_all", noted)
        result = _run(worlds, 2, 2)
    yield Trained(result, received, held)
    worlds.close()


def test_paths_train_and_nothing_waits(trained: Trained) -> None:
    check_paths(trained.result)


@pytest.mark.long
@pytest.mark.parametrize("formats", [{"push": "int1", "update": "int4"}, {"shards": 2, "push": "int2"}])
def test_paths_train_in_codes_and_of_several_shards(world: Worlds, formats: dict[str, Any]) -> None:
    check_paths(_run(world, 2, 2, **formats))


def check_paths(result: WorldResult) -> None:
    assert result.waits == 0
    assert result.summary["books"]["differences"] == []
    assert result.summary["tokens_lost"] == result.summary["tokens_pending"] == 0
    assert result.summary["tokens_merged"] > 0.75 * result.summary["tokens_total"]
    assert result.eval_loss < 0.75 * result.summary["eval_loss_initial"]
    assert [each["path"] for each in result.summary["per_learner"]] == [0, 1, 2, 3]
    losses = result.summary["eval_metrics"]
    assert list(losses) == [f"path {number}" for number in range(4)]
    assert np.mean(list(losses.values())) == pytest.approx(result.eval_loss)
    parts = _parts(2, 2)
    assert _voters(result) == {p: {slot for slot in range(4) if parts.has(slot, p)} for p in range(len(parts.whole))}
    names = {unit.tensor for part in parts.whole for unit in part.units}
    assert set(final_model(result.folder)) == names
    assert {"level0.module1/layer-0", "level1.module0/layer-3", "layer-5"} <= names


def test_a_learner_receives_and_holds_its_path_alone(trained: Trained) -> None:
    parts = _parts(2, 2)
    assert trained.received == {slot: set(parts.numbers(slot)) for slot in range(4)}
    assert set(trained.held.values()) == {sum(part.size for part in parts.own)}


@pytest.mark.long
def test_a_path_that_dies_holds_up_nobody_and_finds_its_modules_again(world: Worlds) -> None:
    result = _run(world, 1, 4, steps=240, faults=[Pause("learner/3", seconds=0.6, at=0.5), Kill("learner/3", at=1.2)])
    assert result.summary["books"]["differences"] == []
    assert [result.slots[slot].restarts for slot in range(4)] == [0, 0, 0, 1]
    assert all(each["stall_seconds"] == 0 for each in result.summary["per_learner"])
    merges = [json.loads(line) for line in (result.folder / "merges.jsonl").read_text().splitlines()]
    own = [each for each in merges if each["voters"] == [3]]
    lives = {each["incarnation"] for each in result.status["learners"].values()}
    assert lives == {1, 2}
    assert max(each["time"] for each in own) > 1.5
    assert len({each["epoch"] for each in own}) == 1  # Not begun anew.


@pytest.mark.long
def test_a_path_that_is_gone_for_a_third_of_a_run_is_merged_again_at_once(world: Worlds) -> None:
    gone = [RefuseStarts("learner-3", at=1.9), Kill("learner/3", at=2.0)]
    result = _run(world, 1, 4, steps=2000, faults=gone)
    assert result.waits == 0
    assert all(each["stall_seconds"] == 0 for each in result.summary["per_learner"])
    merges, reports = (
        [json.loads(line) for line in (result.folder / name).read_text().splitlines()]
        for name in ("merges.jsonl", "metrics.jsonl")
    )
    own = {part: [each["time"] for each in merges if each["fragment"] == part] for part in (6, 10)}
    away = {max(after - before for before, after in pairwise(times)) for times in own.values()}
    assert all(0.3 < each / max(own[6]) < 0.45 for each in away)
    back = min(each["time"] for each in reports if each["learner"] == 3 and each["incarnation"] > 1)
    again = {part: min(at for at in times if at > 5.0) for part, times in own.items()}
    a_step = 0.01
    assert all(at - back < 2 * FLOAT["interval"] * a_step for at in again.values())


@pytest.mark.long
def test_a_shard_that_comes_back_does_not_wait_for_a_path_that_does_not(world: Worlds) -> None:
    gone = [Cut("learner-3", seconds=1000.0, at=2.0), Kill("syncer/0", at=3.0)]
    result = _run(world, 1, 4, steps=400, faults=gone)
    assert result.summary["books"]["differences"] == []
    merges = [json.loads(line) for line in (result.folder / "merges.jsonl").read_text().splitlines()]
    alone = {part for part, holders in enumerate(_parts(1, 4).holders) if holders == (3,)}
    begun = [each for each in merges if each["kind"] == "recover" and each["version"]]
    assert {each["fragment"] for each in begun if not each["voters"]} == alone
    assert {each["fragment"] for each in begun if each["voters"]} == set(range(len(_parts(1, 4).whole))) - alone
    later = [each for each in merges if each["epoch"] == 2 and each["kind"] == "merge"]
    assert {slot for each in later for slot in each["voters"]} == {0, 1, 2}
    whole = {unit.tensor for part in _parts(1, 4).whole for unit in part.units}
    assert set(final_model(result.folder)) == whole  # With the last version of what only the lost path had.


def test_evaluation_batches_are_of_the_path() -> None:
    asked = list[tuple[str, int]]()

    def batch(at: Any) -> Any:
        asked.append((at.split, at.slot))
        return ADAM.batch(at)

    task = replace(_task(2, 2), batch=batch, evaluation=(1, 2, 1, 3))
    evaluations = path_evaluations(task, 0, 4)
    assert [each.count for each in evaluations] == [1, 2, 1, 3]  # type: ignore[attr-defined]
    assert asked == [("evaluation", path) for path, count in enumerate((1, 2, 1, 3)) for _ in range(count)]


def test_the_parameters_of_nano() -> None:
    for paths, whole in (((2, 2), 230_976), ((1, 4), 280_512)):
        request = prepare(Program(NAME), task_settings={"paths": paths})
        parts = path_parts(request.job.layout, request.job.modules, 8)
        assert sum(part.size for part in parts.own) == 131_904
        assert sum(part.size for part in parts.whole) == whole
        assert str(next(edge for edge in request.graph.edges if edge.target.name == "update").route.kind) == "some"


@pytest.mark.parametrize(
    ("settings", "learners", "message"),
    [
        ({"quorum": 3}, 4, r"program\.quorum of dipaco: expected 1 to the learners of a module, 2 at least"),
        ({"fragments": 2}, 4, r"program\.fragments of dipaco: expected at least 3"),
        ({"shards": 10}, 4, r"program\.shards of dipaco: expected 1 to the number of fragments, 9"),
        ({}, 3, "expected a learner for each of 4 paths at least, found 3 learners"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], learners: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(Program(NAME, **{**FLOAT, **settings}), _task(2, 2), run={"learners": learners})


def test_more_paths_than_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a learner for each of 36 paths at least"):
        prepare(Program(NAME), _task(6, 6), run={"learners": 16})


def test_a_task_without_paths_and_a_program_without_them_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a task that says how many modules each level has, found none"):
        prepare(Program(NAME), ADAM)
    for name in ("diloco", "decoupled-diloco"):
        with pytest.raises(ConfigError, match=f"expected dipaco, which trains models made of modules, found '{name}'"):
            prepare(Program(name), _task(2, 2))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"paths": (2, 0)}, r"paths= a tuple of the modules of each level, found \(2, 0\)"),
        ({"paths": ()}, r"no levels= without paths="),
        ({"levels": {"layer-0": 2}}, "levels from 0 to 1"),
        ({"levels": {"layer-9": 0}}, "'layer-9'"),
        ({"levels": {"layer-0": 0}}, r"leaves in each, found none in \[1\]"),
    ],
)
def test_modules_that_mean_nothing_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(Program(NAME), replace(_task(2, 2), **more))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"paths": (2, 2), "layers": 3}, r"numbers of modules, of levels that divide 3 layers, found \[2, 2\]"),
        ({"paths": (2, 2), "stacked": True}, "layers with tensors of their own, found task.stacked = true"),
    ],
)
def test_layers_that_cannot_be_cut_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        language_model(**settings)


@pytest.mark.further
def test_a_router_is_found_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of a run names its file in full, as it names the data."""
    (tmp_path / "text").mkdir()
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number} of these texts\n" * 60)
    monkeypatch.chdir(tmp_path)
    route(["text"], shards=2, out="by.router")
    request = prepare(Program(NAME), task_settings={"data": ("text",), "router": "by.router", "paths": (1, 2)})
    assert request.job.task.text.count(f'router = "{tmp_path}/by.router"') == 1


def test_paths_train_on_the_shards_of_a_router(tmp_path: Path) -> None:
    words = {"sea": b"the sea is wide. ", "land": b"a narrow land lies between. "}
    for name, text in words.items():
        (tmp_path / "text" / name).mkdir(parents=True)
        for number in range(80):
            (tmp_path / "text" / name / f"{number}.txt").write_bytes(b"%d " % number + text * (20 + number % 7))
    text, file = str(tmp_path / "text"), str(tmp_path / "by.router")
    route([text], shards=2, out=file, by="source")
    settings = {"data": (text,), "router": file, "paths": (1, 2), "context": 16, "batch": 2}
    task = language_model(**settings)
    seen = [bytes(task.batch(At(0, slot, 3))["tokens"].ravel()) for slot in range(4)]
    assert [b"sea" in each for each in seen] in ([True, False] * 2, [False, True] * 2)
    assert [b"sea" in bytes(each["tokens"].ravel()) for each in task.evaluation_batches(0, 1)] == [
        b"sea" in seen[1]
    ] * (task.evaluation[1])
    with pytest.raises(ConfigError, match="paths, a shard for each, found none"):
        language_model(**{**settings, "paths": ()})
    with pytest.raises(ConfigError, match="router"):
        language_model(**{**settings, "paths": (2, 2)})


def test_a_run_does_not_go_on_with_another_router(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(160):
        (tmp_path / "text" / f"{number}.txt").write_bytes(b"%d " % number + b"the sea is wide. " * 20)
    text, file, runs = str(tmp_path / "text"), tmp_path / "by.router", list[Any]()
    for seed in (0, 0, 1):
        file.unlink(missing_ok=True)
        route([text], shards=2, out=file, by="random", seed=seed)
        settings = {"data": (text,), "router": str(file), "paths": (1, 2), "context": 16, "batch": 2}
        runs.append(prepare(Program(NAME), run={"learners": 2, "tokens": 1000}, task_settings=settings))
    spec.write(tmp_path, new_spec.of(runs[0], zero_ns=0, cpu_seconds=0.0, transport=spec.INPROC))
    begun = spec.load(tmp_path)
    assert begun.job.routed_by
    assert changes(begun, runs[1].job, "Resuming") == {}
    with pytest.raises(ConfigError, match="the documents that each path has"):
        changes(begun, runs[2].job, "Resuming")
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (tmp_path / "config.toml").write_text("\n".join(["[task]", *lines]))
    with pytest.raises(ConfigError, match=f"the router of the run, {begun.job.routed_by}, found"):
        task_of(tmp_path, "Evaluating")
    file.unlink()
    route([text], shards=2, out=file, by="random", seed=0)
    assert task_of(tmp_path, "Evaluating").routed_by == begun.job.routed_by


@pytest.mark.parametrize(("more", "found"), [({"routed_by": 5}, "5"), ({"routed_by": "a", "paths": ()}, "'a'")])
def test_what_gives_data_to_paths_is_a_fingerprint(more: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=f"routed_by= text, beside paths=, found {found}"):
        replace(_task(2, 2), **({"levels": ()} if "paths" in more else {}), **more)


def test_tasks_of_a_run_are_cut_alike() -> None:
    task, other = _task(2, 2), replace(_task(2, 2), paths=(4, 1))
    tensors = layout_of(task, 0)
    check_alike(task, tensors, "a.py:task", _task(2, 2), tensors)
    with pytest.raises(ConfigError, match=r"paths = \[2, 2\], found paths = \[4, 1\]"):
        check_alike(task, tensors, "b.py:task", other, tensors)
    level = replace(_task(2, 2), levels={**LEVELS, "layer-1": 1})
    with pytest.raises(ConfigError, match=r"'layer-1' in level 0, found .* 'layer-1' in level 1"):
        check_alike(task, tensors, "c.py:task", level, tensors)


def test_a_path_of_a_run_is_a_model_like_any_other(world: Worlds, trained: Trained) -> None:
    result = trained.result
    final = final_model(result.folder)
    for path, (first, second) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        model = load(result.folder, _task(2, 2), path=path)
        assert np.array_equal(model["layer-0"], final[f"level0.module{first}/layer-0"])
        assert np.array_equal(model["layer-3"], final[f"level1.module{second}/layer-3"])
        assert np.array_equal(model["layer-5"], final["layer-5"])
    with pytest.raises(ConfigError, match="expected a path from 0 to 3, found none"):
        load(result.folder, _task(2, 2))
    with pytest.raises(ConfigError, match="expected a path from 0 to 3, found 4"):
        load(result.folder, _task(2, 2), path=4)
    flat = world.run("decoupled-diloco", task=ADAM, learners=2, steps=24)
    with pytest.raises(ConfigError, match="no path: this model is not made of modules, found 0"):
        load(flat.folder, ADAM, path=0)
