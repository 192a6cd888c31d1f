"""Every graph ends: when its budget is spent or somebody asks, within a bound, whatever its bodies do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.recorder.node import EVALUATION, MODEL, PLAIN, Ending
from isthmus.programs.engine.recorder.roles import resolving
from isthmus.programs.engine.recorder.summary import fragment_sizes, roster_counts, summarise
from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.request.request import Program, prepare
from isthmus.programs.program_graph import REGION
from isthmus.runtime.clock import Instant, milliseconds, seconds
from isthmus.runtime.errors import GraphError
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.world import World
from isthmus.runtime.supervision.flows import RunFlows
from tests.effort import long, soaked

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ODD = Path(__file__).with_name("odd_graphs.py")
STEP = 0.01
"""Virtual seconds of every firing that trains."""
SLACK = 4.0
"""Virtual seconds for timers, the last evaluation, and reports that are waited for."""


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


class Ended:
    """A run in virtual time that came to its end: what its recorder showed last, and the summary."""

    def __init__(self, world: World, summary: dict[str, Any]) -> None:
        self.status = world.hosts[Replica("recorder", 0)].published["record"]
        self.summary, self.seconds, self.world = summary, world.clock.now() / 1e9, world


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs a program; `stop_at`: the virtual second at which every host is asked to stop."""
    worlds: list[World] = []

    def go(
        program: str,
        *,
        tokens: int,
        learners: int = 2,
        stop_at: float | None = None,
        paces: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> Ended:
        program = program if ":" in program else f"{ODD}:{program}"
        budget = {"tokens": tokens, "learners": learners}
        request = prepare(Program(program, **settings), "mine.py:task", run=budget, run_dir=tmp_path / "run")
        new_folder.create(request.run_dir, request.config_text)
        counts = roster_counts(request.graph, learners)
        world = World(
            request.plans,
            counts,
            seed=0,
            resolve=resolving(request.run_dir, resolve, request.run.snapshot_every_seconds),
            duration=lambda replica, node: milliseconds(1000 * (paces or {}).get(node, STEP)),
            delay=lambda edge, size_bytes: milliseconds(1),
        )
        worlds.append(world)
        if stop_at is not None:
            for host in world.hosts.values():
                world.clock.call_at(Instant(seconds(stop_at)), partial(host.follow_stop, is_stopping=True))
        world.run(lambda: ("recorder/0", "record") in world.ended, seconds_max=1000.0)
        status = world.hosts[Replica("recorder", 0)].published["record"]
        told: dict[str, Any] = {"program": "odd", "outcome": "done", "learners": learners, "shards": 0}
        told |= {"fragment_sizes": fragment_sizes(request.graph), "ended": world.clock.now(), "cpu_seconds": 0.0}
        told |= {"flows": RunFlows.of(((replica, host.flows) for replica, host in world.hosts.items()), REGION)}
        return Ended(world, summarise(status, [], **told, graph=request.graph))

    yield go
    for world in worlds:
        world.close()


Run = Callable[..., Ended]


# -- whatever bodies do ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("program", "trains", "waits"), [("deaf", 2, 10.0), ("without_learners", 2, 10.0)])
def test_bodies_that_hear_nothing_are_ended_after_a_while(run: Run, program: str, trains: int, waits: float) -> None:
    """In each of the ways in which a run is to end; what was trained meanwhile is counted, and no model is made up."""
    spent = run(program, tokens=64 * 200)
    needed = 200 / trains * STEP
    assert needed + waits <= spent.seconds <= needed + waits + SLACK
    assert spent.status["error"] is None
    assert spent.summary["tokens_total"] >= 64 * 200
    assert [each["tokens"] > 0 for each in spent.summary["per_learner"]] == [True] * trains
    assert (spent.summary["goodput"], spent.summary["uptime"]) == (None, None), "their bodies report tokens alone"


@pytest.mark.slow
def test_bodies_that_hear_nothing_are_ended_when_somebody_asks(run: Run) -> None:
    stopped = run("deaf", tokens=10**12, stop_at=2.0)
    assert 12.0 <= stopped.seconds <= 12.0 + SLACK
    assert stopped.status["error"] is None
    assert 0 < stopped.summary["tokens_total"] < 10**12


@pytest.mark.slow
@pytest.mark.parametrize("program", ["deaf_model", "one_deaf_model", "or_none"])
def test_of_a_model_whose_learners_hear_nothing_the_newest_is_the_end(run: Run, tmp_path: Path, program: str) -> None:
    """Whether one learner may be there or many, and whatever their role is called."""
    ended = run(program, tokens=64 * 200, learners=1)
    assert ended.status["error"] is None
    assert ended.seconds <= 200 * STEP + 10.0 + SLACK
    assert ended.summary["eval_loss_final"] is not None
    assert list((tmp_path / "run" / "snapshots" / "final").glob("*.safetensors"))


@pytest.mark.long
@pytest.mark.slow
def test_a_final_model_that_does_not_come_is_a_failure_that_is_told(run: Run) -> None:
    ended = run("promises", tokens=64 * 200)
    assert 90.0 <= ended.seconds <= 90.0 + 200 * STEP + SLACK
    assert "final model" in ended.status["error"]
    assert "0, 1" in ended.status["error"]
    assert ended.summary["tokens_total"] >= 64 * 200


@pytest.mark.parametrize("stop_at", [None, 1.0])
def test_bodies_that_hear_of_the_end_are_not_waited_for(run: Run, stop_at: float | None) -> None:
    ended = run("obeys", tokens=64 * 400, stop_at=stop_at)
    assert ended.seconds <= (stop_at or 200 * STEP) + 1.0
    assert ended.status["error"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "stop_at"), [(1, 1.0), (3, None), long(1, None), long(3, 1.0)])
def test_edges_of_ones_own_on_progress_take_nothing_away(run: Run, replicas: int, stop_at: float | None) -> None:
    ended = run("watched", tokens=64 * 300, learners=replicas, replicas=replicas, stop_at=stop_at)
    assert ended.seconds <= (stop_at or 300 / replicas * STEP) + SLACK
    assert ended.summary["eval_loss_final"] < ended.summary["eval_loss_initial"]
    assert [each["steps"] > 0 for each in ended.summary["per_learner"]] == [True] * replicas


# -- what is measured of any graph -------------------------------------------------------------------------------------


def test_waits_and_bytes_of_edges_are_measured_and_nothing_is_made_up(run: Run) -> None:
    lesson, study, lessons = 0.02, 0.002, 60
    ended = run("school", tokens=64 * lessons, learners=4, paces={"teach": lesson, "study": study})
    summary = ended.summary
    [edge] = [each for each in summary["edges"] if each["target"] == "study.lesson"]
    [student] = [each for each in summary["nodes"] if each["replica"] == "bench/0"]
    [teacher] = [each for each in summary["nodes"] if each["replica"] == "desk/0"]
    assert student["firings"] >= lessons
    outside = (lesson - study) * (student["firings"] - 1)  # By the clock of the world: from each firing to the next.
    assert student["wait_seconds"] == pytest.approx(outside, rel=0.05)
    assert edge["wait_seconds"] == pytest.approx(student["wait_seconds"])
    assert teacher["wait_seconds"] == 0.0
    sent = ended.world.hosts[Replica("desk", 0)]._channel.statistics()  # type: ignore[attr-defined]
    assert edge["items"] == pytest.approx(student["firings"], abs=2)
    assert edge["bytes"] == pytest.approx(sent["bytes_sent"], rel=0.05) == pytest.approx(8000 * edge["items"], rel=0.05)
    assert summary["bytes_sent_total"] == edge["bytes"]
    assert summary["learners"] == 1
    unmeasured = (summary["goodput"], summary["uptime"], summary["per_learner"][0]["steps"])
    assert unmeasured == (None, None, None)
    assert summary["per_learner"][0]["stall_seconds"] == student["wait_seconds"]


def test_waits_for_room_count_for_the_edge_that_is_full(run: Run) -> None:
    summary = run("school", tokens=64 * 40, paces={"teach": 0.002, "study": 0.02}).summary
    [edge] = [each for each in summary["edges"] if each["target"] == "study.lesson"]
    [teacher] = [each for each in summary["nodes"] if each["replica"] == "desk/0"]
    assert edge["wait_seconds"] == teacher["wait_seconds"] == pytest.approx(0.018 * teacher["firings"], rel=0.05)


# -- the examples ------------------------------------------------------------------------------------------------------


EXAMPLE_RUNS = [("parameter_server.py:build", 3, {}), soaked("actor_learner.py:build", 1, {"actors": 3})]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "learners", "settings"), EXAMPLE_RUNS)
def test_an_example_learns_and_ends_with_its_budget(
    run: Run, tmp_path: Path, program: str, learners: int, settings: dict[str, Any]
) -> None:
    ended = run(program, tokens=64 * 600, learners=learners, **settings)
    assert ended.seconds < 600 * STEP
    assert ended.summary["eval_loss_final"] < 0.1 * ended.summary["eval_loss_initial"]
    assert 64 * 600 <= ended.summary["tokens_total"] < 64 * 700
    assert list((tmp_path / "run" / "snapshots" / "final").glob("*.safetensors"))


@pytest.mark.slow
def test_a_program_that_asks_for_the_end_gets_it_and_says_why(run: Run, tmp_path: Path) -> None:
    ended = run("early_stop.py:build", tokens=64 * 5000, learners=3, below=20.0)
    assert "below 20" in ended.status["stop_reason"]
    assert ended.summary["eval_loss_final"] < 20.0
    assert ended.summary["tokens_total"] < 64 * 2500
    assert list((tmp_path / "run" / "snapshots" / "final").glob("*.safetensors"))


@pytest.mark.slow
def test_the_pipeline_ends_with_its_budget_and_without_a_model(run: Run, tmp_path: Path) -> None:
    ended = run("pipeline.py:build", tokens=16 * 500)
    assert ended.status["error"] is None
    assert ended.summary["tokens_total"] >= 16 * 500
    assert not (tmp_path / "run" / "snapshots" / "final").exists()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("two_that_report", ("train(reports=)", "not declared yet", "train.progress", "odd_graphs.py")),
        ("mean_of_others", ("mean_of=again.parameters", "role that reports, 'learner'", "role 'other'")),
        ("with_own_control", ("data.batch -> train.control", "recorder")),
        ("with_own_recorder", ("role 'recorder'", "node 'record'")),
        ("with_own_evaluator", ("role 'evaluator'", "evaluation=")),
    ],
)
def test_what_a_run_cannot_do_is_refused_before_it(run: Run, tmp_path: Path, program: str, words: Any) -> None:
    with pytest.raises(GraphError) as caught:
        run(program, tokens=100)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "run").exists()


# -- the bound ---------------------------------------------------------------------------------------------------------


def at(when: float) -> int:
    return seconds(when)


def wait(ending: Ending, signs: object, since: float, until: float) -> Ending:
    """Look once a second."""
    for second in range(int(since), int(until) + 1):
        ending.look(signs, at(second))
    return ending


@pytest.mark.parametrize(("has_model", "least"), [(True, MODEL), (False, PLAIN)])
def test_nothing_is_late_before_the_run_is_to_end_nor_sooner_than_the_least(has_model: bool, least: int) -> None:
    ending, seconds_least = Ending(has_model=has_model), least / 1e9
    assert not ending.is_late()
    assert not wait(ending, 0, 1000, 1000 + seconds_least - 1).is_late()
    assert wait(ending, 0, 1000 + seconds_least, 1000 + seconds_least).is_late()


def test_a_sign_of_the_end_is_waited_for_anew_and_the_same_again_is_none() -> None:
    ending = Ending(has_model=False)
    assert wait(ending, (1, 0), 0, 10).is_late()
    assert not wait(ending, (2, 0), 10, 19).is_late()
    assert wait(ending, (2, 0), 20, 20).is_late()


def test_time_in_which_this_host_was_stopped_does_not_count() -> None:
    ending = wait(Ending(has_model=False), 0, 0, 1)
    assert not wait(ending, 0, 3600, 3606).is_late()
    assert wait(ending, 0, 3607, 3607).is_late()


def test_slow_steps_and_slow_sweeps_are_waited_for_longer() -> None:
    ending = Ending(has_model=False)
    ending.step_took(at(5))
    ending.merged(1, at(0))
    ending.merged(2, at(8))
    assert ending.limit == at(20)
    ending.merged(1, at(30))
    assert ending.limit == at(120)


def test_an_evaluation_has_more_time_than_all_the_rest() -> None:
    ending = wait(Ending(has_model=True), 0, 0, EVALUATION / 1e9 - 1)
    assert (ending.is_late(), ending.is_late(is_evaluating=True)) == (True, False)
    assert wait(ending, 0, EVALUATION / 1e9, EVALUATION / 1e9).is_late(is_evaluating=True)
