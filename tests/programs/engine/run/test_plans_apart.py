"""A host has the plan of its role, as the graph gives it, and loads neither the graph nor rooms of other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request import new_spec, spec
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import prepare
from isthmus.runtime.errors import RequestError
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
RUN = {"tokens": 20_000, "learners": 2}
BEGIN = """
import json, os, sys
from pathlib import Path
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.run import host_process
from isthmus.programs.engine.run.plans_apart import PlanMaker, plans_of
folder = Path(sys.argv[1])
run_spec = spec.load(folder)
"""
COMPARED = """
plans, own = plans_of(run_spec, folder), run_spec.plans()
print(json.dumps({"kind": type(plans).__name__, "roles": list(plans), "are_equal": dict(plans) == own}))
"""
LOADED = """
plans = plans_of(run_spec, folder)
nodes = [node.name for node in plans[sys.argv[2]].nodes]
print(json.dumps({"nodes": nodes, "loaded": [name for name in sys.modules if name.startswith("isthmus.")]}))
"""
FAILS = """
def said(error):
    return {"kind": type(error).__name__, "text": str(error)}
try:
    plans_of(run_spec, folder)
except Exception as error:
    print(json.dumps(said(error)))
"""
DIES = """
import signal
maker = PlanMaker()
os.kill(maker._pid, signal.SIGKILL)
try:
    plans_of(run_spec, folder, maker)
except Exception as error:
    print(json.dumps({"kind": type(error).__name__}))
"""
ROOMS_OF_OTHERS = {
    "learner": (
        "ops.syncer", "programs.decoupled", "programs.engine.machine", "programs.engine.recorder.node",
        "programs.engine.request.program", "programs.engine.request.request", "programs.engine.results",
        "programs.engine.snapshots", "programs.loop_task", "programs.wings", "runtime.daemon",
        "runtime.supervision.home", "runtime.sim", "runtime.wire.porter_relay",
    ),
    "syncer": (
        "ops.data.batches", "ops.gang", "ops.learner", "programs.decoupled", "programs.engine.islands",
        "programs.engine.machine", "programs.engine.recorder.node", "programs.engine.request.program",
        "programs.engine.request.request", "programs.engine.results", "programs.engine.snapshots", "programs.loop_task",
        "programs.task", "programs.wings", "runtime.daemon", "runtime.supervision.home", "runtime.sim",
        "runtime.wire.porter_relay",
    ),
    "recorder": (
        "ops.data.batches", "ops.gang", "ops.kernels", "ops.learner", "ops.syncer", "programs.decoupled",
        "programs.engine.islands", "programs.engine.machine", "programs.engine.recorder.summary",
        "programs.engine.request.request", "programs.engine.results.words", "programs.loop_task", "programs.task",
        "programs.wings", "runtime.daemon", "runtime.supervision.home", "runtime.sim", "runtime.wire.porter_relay",
    ),
}  # fmt: skip
OF_A_DAEMON = {
    "programs.engine.run.daemon_process": (
        "ops.exchange", "ops.island", "ops.kernels", "ops.learner", "ops.recovery", "ops.syncer",
        "programs.engine.islands.claims", "programs.engine.recorder", "programs.engine.request.request",
        "programs.engine.results.words", "programs.engine.run.host_process", "programs.engine.run.preparing",
        "programs.engine.run.watch_loop", "programs.engine.snapshots", "programs.loop_task", "programs.task",
        "programs.wings", "runtime.host", "runtime.wire.channel",
    ),
    "programs.engine.machine.serve": (
        "ops.exchange", "ops.island", "ops.kernels", "ops.learner", "ops.recovery", "ops.syncer",
        "programs.engine.machine.bucket_road", "programs.engine.recorder", "programs.engine.snapshots.snapshots",
        "programs.engine.snapshots.stored", "programs.loop_task", "programs.task", "programs.wings", "runtime.host",
    ),
}  # fmt: skip


def folder_of(program: str, folder: Path) -> Path:
    """A run folder with the spec of a run of this program."""
    request = prepare(Program(program), "mine.py:task", run=RUN, run_dir=folder / "run")
    folder.joinpath("run").mkdir()
    spec.write(folder / "run", new_spec.of(request, zero_ns=0, cpu_seconds=0.0))
    return folder / "run"


def done(code: str, *arguments: object) -> dict[str, Any]:
    """What a process that runs this code prints, as JSON."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert process.returncode == 0, process.stderr
    printed: dict[str, Any] = json.loads(process.stdout)
    return printed


def of_rooms(loaded: list[str], rooms: tuple[str, ...]) -> list[str]:
    return [name for name in loaded if f"{name}.".startswith(tuple(f"isthmus.{room}." for room in rooms))]


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLES)
        return folder_of("decoupled-diloco", tmp_path_factory.mktemp("decoupled"))


@pytest.mark.parametrize("role", ROOMS_OF_OTHERS)
def test_a_host_loads_the_bodies_of_its_role(decoupled: Path, role: str) -> None:
    found = done(BEGIN + LOADED, decoupled, role)
    assert found["nodes"]
    assert "isthmus.runtime.host.own_process" in found["loaded"]
    assert not of_rooms(found["loaded"], ROOMS_OF_OTHERS[role])


@pytest.mark.parametrize("module", OF_A_DAEMON)
def test_a_daemon_loads_nothing_that_trains(module: str) -> None:
    code = f'import json, sys, isthmus.{module}\nprint(json.dumps({{"loaded": list(sys.modules)}}))'
    loaded = done(code)["loaded"]
    assert f"isthmus.{module}" in loaded
    assert not of_rooms(loaded, OF_A_DAEMON[module])


@pytest.mark.parametrize("program", [pytest.param(name, marks=pytest.mark.long) for name in SHIPPED])
def test_plans_of_a_shipped_program_are_those_of_its_graph(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    try:
        folder = folder_of(program, tmp_path)
    except RequestError:
        assert program == "dipaco"  # Its tasks have modules.
        return
    found = done(BEGIN + COMPARED, folder)
    assert (found["kind"], found["are_equal"]) == ("PickledPlans", True)
    assert {"learner", "recorder"} <= set(found["roles"])


def test_plans_of_a_users_program_are_made_in_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    found = done(BEGIN + COMPARED, folder_of(f"{EXAMPLES / 'gossip.py'}:build", tmp_path))
    assert (found["kind"], found["are_equal"]) == ("dict", True)


def test_a_child_that_fails_says_why(decoupled: Path, tmp_path: Path) -> None:
    other = {**json.loads((decoupled / spec.SPEC).read_text()), "fingerprint": "0" * 32}
    (tmp_path / spec.SPEC).write_text(json.dumps(other))
    found = done(BEGIN + FAILS, tmp_path)
    assert found["kind"] == "RunError"
    assert "ConfigError" in found["text"]
    assert done(BEGIN + DIES, decoupled) == {"kind": "RunError"}
