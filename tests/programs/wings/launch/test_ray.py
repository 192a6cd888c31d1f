"""What is printed for Ray, and what is refused; `tests/engines` has a real one."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.wings.launch import ray
from isthmus.programs.wings.launch.engine import LaunchState
from isthmus.programs.wings.launch.folder import Launch
from isthmus.programs.wings.launch.launch_file import LaunchTable, home_table
from isthmus.runtime.errors import ConfigError, Fault
from tests.programs.wings.launch.launch_request import request

Say = Callable[..., list[tuple[str, ...]]]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """What processes that speak with Ray answer: status, standard output and error; returns what they were asked."""
    asked: list[tuple[str, ...]] = []

    def answer(out: str = "", status: int = 0, error: str = "") -> list[tuple[str, ...]]:
        def run(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            asked.append(tuple(words[len(ray.PYTHON) :]))
            return subprocess.CompletedProcess(words, status, out, error)

        monkeypatch.setattr(ray, "run", run)
        return asked

    return answer


def plan(**changes: object) -> dict[str, Any]:
    """The plan in the printed file: the arguments that are literals, and those in `dict(...)`."""
    (first, *_) = ray.ENGINE.files(request(**changes))  # type: ignore[arg-type]
    (call,) = [node.value for node in ast.parse(first.text).body if isinstance(node, ast.Assign)]
    assert isinstance(call, ast.Call)
    values = {str(each.arg): each.value for each in call.keywords}
    options = values.pop("options")
    assert isinstance(options, ast.Call)
    read = {name: ast.literal_eval(value) for name, value in values.items()}
    return {**read, "options": {each.arg: ast.literal_eval(each.value) for each in options.keywords}}


def faults(**changes: object) -> list[Fault]:
    return list(ray.ENGINE.faults(request(**changes), Path("launches/demo")))


def test_the_plan_has_the_request_and_todays_commands() -> None:
    found = plan(grace=45.5, table=LaunchTable(port=7400))
    assert (found["run"], found["islands"], found["nodes"], found["grace"], found["port"]) == ("demo", 2, 1, 45.5, 7400)
    assert found["cluster"] == home_table("{address}") + request().run_text
    assert (found["home_machine"], found["island_machine"]) == (request().home_text, "")
    assert found["daemon"].endswith("--run-dir run --resume-or-start --until-over --grace 45.5")
    assert found["join"].endswith("--name {name} --until-over --grace 45.5")
    assert "--count 16 --for island- " in found["invite"]
    assert found["settle"] == ""
    assert plan(is_for_home=True)["settle"] == "isthmus launch settle cluster.toml --islands 2"


def test_an_island_of_several_nodes_says_which_part_each_is() -> None:
    found = plan(nodes_per_island=3)
    assert "--island {island} --rank {rank} --size 3 --until-over" in found["join"]
    assert "--count 48 " in found["invite"]


def test_what_actors_reserve_and_their_options() -> None:
    table = LaunchTable(cpus=3, memory="4 GiB", devices="gpu:2", extra='runtime_env={"pip": ["mine"]},')
    found = plan(table=table)
    assert found["home_needs"] == {"CPU": 3, "memory": 4 * 2**30}
    assert found["island_needs"] == {"CPU": 3, "memory": 4 * 2**30, "GPU": 2}
    assert found["options"] == {"runtime_env": {"pip": ["mine"]}}
    assert plan(table=LaunchTable(memory="4G"))["home_needs"] == {"CPU": 1, "memory": 4 * 10**9}
    assert plan(table=LaunchTable(devices="tpu:4"))["island_needs"] == {"CPU": 1, "TPU": 4}
    assert plan(table=LaunchTable(devices="npu:8"))["island_needs"] == {"CPU": 1, "npu": 8}


def test_your_own_files_travel_and_lie_above_the_folders_of_machines(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("task = 1\n")
    (tmp_path / "words.txt").write_text("a b\n")
    sections = {"run": {"task": f"{tmp_path}/mine.py:task"}, "task": {"data": [f"{tmp_path}/words.txt"]}}
    own = {
        "sections": sections,
        "modules": (f"{tmp_path}/mine.py",),
        "table": LaunchTable(files=(f"{tmp_path}/words.txt",)),
    }
    found = plan(**own)
    assert found["files"] == ("mine.py", "words.txt")
    assert 'task = "../mine.py:task"' in found["cluster"]
    assert 'data = ["../words.txt"]' in found["cluster"]
    assert found["island_machine"] == '[programs]\nmodules = ["../mine.py"]\n'
    files = ray.ENGINE.files(request(**own))
    assert [(file.name, file.text) for file in files[1:]] == [("mine.py", "task = 1\n"), ("words.txt", "a b\n")]


def test_the_file_is_sound_whatever_stands_in_it() -> None:
    odd = {"run": {"tokens": 100}, "task": {"note": 'a "quoted" \\ text\nof """ two lines', "width": 64}}
    for changes in ({}, {"sections": odd}):
        (file,) = ray.ENGINE.files(request(**changes))
        assert not file.is_secret
    assert plan(sections=odd)["cluster"] == home_table("{address}") + request(sections=odd).run_text
    assert file.name in ray.ENGINE.by_hand(request())


@pytest.mark.parametrize(
    ("extra", "where", "remedy"),
    [
        ("num_cpus=3,", ", num_cpus", "launch.cpus"),
        ("num_gpus=1,", ", num_gpus", "launch.devices"),
        ("memory=5,", ", memory", "launch.memory"),
        ("max_restarts=0,", ", max_restarts", "Leave it out"),
        ("name='x',", ", name", "Leave it out"),
        ('resources={"GPU": 1, "tape": 1},', ", resources", "launch.devices"),
        ('runtime_env={"working_dir": "."},', ", runtime_env", "launch.files"),
        ("num retries", "", "runtime_env="),
        ("3, 4", "", "runtime_env="),
        ("**more", "", "runtime_env="),
        ("a=1, a=2", "", "runtime_env="),
        ("a=1), dict(", "", "runtime_env="),
    ],
)
def test_what_contradicts_the_options_of_actors_is_refused_by_name(
    tmp_path: Path, extra: str, where: str, remedy: str
) -> None:
    (tmp_path / "words.txt").write_text("a b\n")
    table = LaunchTable(extra=extra, files=(f"{tmp_path}/words.txt",))
    (fault,) = faults(table=table)
    assert fault.action == f"Reading launch.extra{where}"
    assert remedy in fault.remedy
    with pytest.raises(ConfigError):
        plan(table=table)


def test_what_ray_does_not_know_is_refused(tmp_path: Path) -> None:
    assert not faults()
    for name in ("image", "partition", "namespace", "time"):
        assert faults(table=LaunchTable(**{name: "x"}))[0].action == f"Reading launch.{name}"
    with pytest.raises(ConfigError, match=r"launch\.memory"):
        plan(table=LaunchTable(memory="much"))
    (tmp_path / "image.bin").write_bytes(b"\xff\xfe\xfd")
    assert "UTF-8" in faults(table=LaunchTable(files=(str(tmp_path / "image.bin"),)))[0].expected


def test_ray_that_is_not_there_is_named(say: Say, tmp_path: Path) -> None:
    traced = 'Traceback (most recent call last):\n  File "<string>", line 1\n'
    for error in (
        "ConnectionError: Could not find any running Ray instance",
        "ModuleNotFoundError: No module named 'ray'",
    ):
        say(status=1, error=f"[a log]\nE: {traced}TimedOut\n\nThe above\n\n{traced}{error}\n")
        with pytest.raises(ConfigError, match=error) as caught:
            ray.ENGINE.submit(Launch.of("ray", request(), tmp_path))
        assert caught.value.faults[0].found == error
        for do in ("`ray status`", "RAY_ADDRESS=HOST:6379", "pip install 'isthmus[ray]'"):
            assert do in caught.value.faults[0].remedy


def test_a_launch_is_what_its_file_says(say: Say, tmp_path: Path) -> None:
    launch = Launch.of("ray", request(), tmp_path)
    assert ray.ENGINE.state(launch) == LaunchState()
    (tmp_path / "demo-on-ray.py").write_text("")
    home = {"node": "10.0.0.1", "at": "/home/me/isthmus/demo/home", "status": None, "state": "runs"}
    asked = say(f"a warning\n{json.dumps({'end': '', 'machines': {'home': home}})}\n")
    state = ray.ENGINE.state(launch)
    (machine,) = state.machines
    assert (machine.name, machine.id, machine.state, machine.node) == ("home", home["at"], "runs", "10.0.0.1")
    assert (state.has_home, state.outcome, state.keeps) == (True, "", "")
    for told, outcome in (("done", "done"), ("failed\nwhy", "failed"), ("interrupted", "interrupted")):
        say(json.dumps({"end": f"{told}\non 10.0.0.1: ~/isthmus/demo/home", "machines": {}}))
        state = ray.ENGINE.state(launch)
        assert (state.outcome, state.keeps) == (outcome, f"its run: {told}\non 10.0.0.1: ~/isthmus/demo/home")
    say("")
    ray.ENGINE.submit(launch)
    ray.ENGINE.scale(launch, 3)
    say(json.dumps({"end": "interrupted\non 10.0.0.1: ~/isthmus/demo/home", "machines": {"home": home}}))
    left = ray.ENGINE.down(launch)
    assert ([each.name for each in left.machines], left.outcome, left.has_home) == (["home"], "interrupted", True)
    assert asked[-3:] == [("demo-on-ray.py",), ("demo-on-ray.py", "scale", "3"), ("demo-on-ray.py", "down")]
    say(status=1, error="demo is over, or was not launched here\n")
    with pytest.raises(ConfigError, match="demo is over"):
        ray.ENGINE.scale(launch, 3)
