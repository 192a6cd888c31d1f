"""`isthmus compile`, with a stand-in for its worker: what is asked of it, what is shown, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from isthmus.programs.engine.islands.kept_programs import CompiledProgram, read_compiled
from isthmus.programs.wings.compile import compiling
from tests.command_line import app
from tests.patience import PATIENCE
from tests.programs.wings.compile.made import EXTRACT, REFUSED, STEP, answer

FITS = {"answer": msgspec.to_builtins(answer(STEP, EXTRACT))}
REFUSES = {"answer": msgspec.to_builtins(answer(replace(STEP, compiled=None, refused=REFUSED)))}
STAND_IN = """
import json, os, sys
from pathlib import Path
from isthmus.runtime.system.lines import ProcessLine
line = ProcessLine.inherited(sys.argv[1])
request = line.next()
with Path(os.environ["ASKED"]).open("a") as file:
    file.write(json.dumps({**request, "environment": {n: os.environ.get(n) for n in ("JAX_PLATFORMS",)}}) + "\\n")
line.send({"doing": "step"})
said = json.loads(Path(os.environ["SAID"]).read_text())
if said is None:
    sys.exit("it broke")
line.send(said)
"""


class Worker:
    """A stand-in in a folder: answers every request with `says`, and dies for None."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "stand_in.py").write_text(STAND_IN)
        self.environment = {
            "PYTHONPATH": str(folder),
            "ASKED": str(folder / "asked"),
            "SAID": str(folder / "said"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.says(FITS)

    def says(self, what: Any) -> None:
        (self._folder / "said").write_text(json.dumps(what))

    @property
    def asked(self) -> list[dict[str, Any]]:
        path = self._folder / "asked"
        return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    made = Worker(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(compiling, "WORKER", "stand_in")
    monkeypatch.setattr(compiling, "HERE", "stand_in")
    monkeypatch.setattr(compiling, "find_spec", lambda _: True)
    (tmp_path / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    monkeypatch.chdir(tmp_path)
    return made


def isthmus(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compile", *arguments], catch_exceptions=False, prog_name="isthmus")


@pytest.mark.process
def test_each_island_is_compiled_for_a_learner(worker: Worker) -> None:
    line = "diloco --data text.txt --island v5p:2x2x1 --island v6e:2x2 --seed 3 --set task.layers=1 --json"
    result = isthmus(*line.split())
    assert result.exit_code == 0
    islands = json.loads(result.stdout)["islands"]
    assert [island["island"] for island in islands] == ["v5p:2x2x1", "v6e:2x2"]
    for island in islands:
        assert island["fits"] is True
        assert {"device_kind", "devices", "memory_bytes", "memory_limit_bytes", "flops_per_device"} < set(island)
        assert {"compile_seconds", "options", "collectives", "fragment_bytes", "memory"} < set(island)
    first, second = worker.asked
    assert [(each["target"], each["slot"]) for each in worker.asked] == [("v5p:2x2x1", 0), ("v6e:2x2", 1)]
    assert first["spec"] == second["spec"]
    job = first["spec"]["job"]
    assert (job["program"], first["spec"]["settings"]["seed"]) == ("diloco", 3)
    assert "layers = 1" in job["task"]
    assert first["kept"] == str(Path("cache/isthmus/ahead").absolute())
    assert first["environment"] == {"JAX_PLATFORMS": "cpu"}
    assert "compiling for v6e:2x2\n" in result.stderr
    assert not Path("runs").exists()


@pytest.mark.process
def test_an_island_that_is_too_small_is_status_1(worker: Worker) -> None:
    worker.says(REFUSES)
    result = isthmus("--data", "text.txt", "--island", "v6e:2x2")
    assert result.exit_code == 1
    assert result.stdout.startswith("v6e:2x2 (4 x TPU v6 lite, learner 0): does not fit\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("says", "status", "message"),
    [
        (
            {"faults": [["Cutting 'w'", "an axis", "none", "Change it."]]},
            2,
            "Cutting 'w' (an island v6e:2x2): expected",
        ),
        ({"error": "ValueError: no"}, 1, "the run failed: compiling for v6e:2x2 failed: ValueError: no"),
        (None, 1, "compiling for v6e:2x2 failed: its process ended with status 1\nit broke"),
    ],
)
def test_what_is_wrong_in_the_worker_is_told(worker: Worker, says: Any, status: int, message: str) -> None:
    worker.says(says)
    result = isthmus("--data", "text.txt", "--island", "v6e:2x2")
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", ["the islands to compile for", "found none", "--island v5p:2x2x1"]),
        ("--island v9:2x2 --island v6e:2", ["2 things are wrong", "'v9:2x2'", "'v6e:2'"]),
        ("--island v6e:2x2 --learners 0", ["Reading run.learners"]),
        ("--here --island v6e:2x2", ["Reading --here", "found --island"]),
        ("--here --fit", ["Reading --here", "found --fit"]),
        ("--island v6e:2x2 --set task.batch=6", ["(an island v6e:2x2)", "a batch that divides by 4", "6 rows"]),
    ],
)
def test_a_wrong_request_asks_nobody(worker: Worker, line: str, told: list[str]) -> None:
    result = isthmus("--data", "text.txt", *line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert all(each in result.stderr for each in told), result.stderr
    assert not worker.asked


def test_without_the_compiler_it_is_said_how_to_get_it(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda _: None)
    result = isthmus("--island", "v6e:2x2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("isthmus: Compiling for v6e:2x2: expected libtpu, the compiler of TPUs")
    assert "pip install 'isthmus[tpu]'" in result.stderr
    assert not worker.asked


@pytest.mark.process
def test_here_a_learner_of_this_machine_is_compiled_for_and_told(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda _: None)  # It needs no compiler of TPUs.
    made = CompiledProgram("compile", 1, "step", "compiled", 13.2, "", 0.0, "1.0", "1 x made")
    worker.says({"answer": {"programs": [list(made), list(made._replace(function="copy", way="read"))]}})
    result = isthmus("--here", "--data", "text.txt", "--set", "task.layers=1", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)["programs"]
    assert [(each["function"], each["way"], each["seconds"]) for each in told] == [
        ("step", "compiled", 13.2),
        ("copy", "read", 13.2),
    ]
    (asked,) = worker.asked
    assert "layers = 1" in asked["spec"]["job"]["task"]
    assert asked["environment"] == {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS")}
    worker.says({"faults": [["Opening an island", "a device", "none", "Get one."]]})
    assert isthmus("--here", "--data", "text.txt").exit_code == 2


@pytest.mark.long
@pytest.mark.process
def test_what_is_compiled_here_is_read_by_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [each for each in os.environ if each.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"))]:
        monkeypatch.delenv(name)  # As this process has set it.
    (tmp_path / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    command = [sys.executable, "-c", "from isthmus.programs.command.main import main; main()"]
    asked = ["--data", str(tmp_path / "text.txt"), "--set", "task.layers=1", "--set", "task.width=16"]
    asked += ["--learners", "2", "--tokens", "4000"]
    here = subprocess.run([*command, "compile", "--here", *asked, "--json"], capture_output=True, text=True, check=True)
    made = json.loads(here.stdout)["programs"]
    assert {each["function"]: each["way"] for each in made}["step"] == "compiled"
    run = ["train", *asked, "--quiet", "--run-dir", str(tmp_path / "run")]
    subprocess.run([*command, *run], check=True, stdout=subprocess.DEVNULL)
    used = list(read_compiled(tmp_path / "run"))
    assert {each.process for each in used} == {"learner/0", "learner/1"}
    assert {each.function for each in used} == {each["function"] for each in made}
    # A learner has called `fresh` as it was made: of that program the process has read what jax keeps by itself.
    assert [each for each in used if each.way != ("had" if each.function == "fresh" else "read")] == []


APART = """
import sys
from isthmus.programs.wings.compile import compiling
compiling.WORKER, compiling.find_spec = "stand_in", lambda _: True
from isthmus.programs.command.main import main
sys.argv = ["isthmus", "compile", "--data", "text.txt", "--island", "v6e:2x2"]
try:
    main()
finally:
    assert "jax" not in sys.modules
"""


@pytest.mark.long
@pytest.mark.process
def test_the_command_itself_imports_no_jax(tmp_path: Path, worker: Worker) -> None:
    command = [sys.executable, "-c", APART]
    environment = os.environ | worker.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("v6e:2x2 (4 x TPU v6 lite, learner 0): fits\n")
