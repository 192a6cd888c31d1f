"""cluster.toml, machine.toml and addresses: what is wrong with them is told at once, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from isthmus.programs import cluster, machine_address, machine_config
from isthmus.programs.command import config
from isthmus.programs.command.main import app
from isthmus.runtime.errors import ConfigError, PlacementError
from isthmus.runtime.graph import Graph, Job, Reference

MACHINE = '[[machine]]\nname = "alpha"\naddress = "tcp://127.0.0.1:7400"\n'
OTHER = MACHINE.replace("alpha", "beta").replace("7400", "7401")


def write(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected one [[machine]], found none"),
        ("[machine]\nname = 'alpha'\n", "expected [[machine]], found another `machine`"),
        ("[[machine]]\nname = 'alpha'\n", "machine 1: expected `address`, found nothing"),
        ("[[machine]]\naddress = 'tcp://127.0.0.1:7400'\n", "machine 1: expected `name`, found nothing"),
        (MACHINE + "island = 3\n", "Did you mean 'islands'?"),
        (MACHINE + "islands = '3'\n", "Reading machine.islands: expected an integer, found '3'"),
        (MACHINE + "islands = 0\n", "expected 1 or more, found 0"),
        (MACHINE + "roles = ['learners']\n", "Did you mean 'learner'?"),
        (MACHINE + "public_key = 'x'\n", "keys are not there yet"),
        (MACHINE + "[keys]\nsecret = 'x'\n", "keys are not there yet"),
        (MACHINE.replace("127.0.0.1", "10.0.0.7"), "Keys come first"),
        (MACHINE + OTHER, "more than one is not possible yet"),
        (MACHINE + OTHER.replace("beta", "alpha"), "expected each name once, found 2 named 'alpha'"),
        (MACHINE + OTHER.replace("7401", "7400"), "found tcp://127.0.0.1:7400 for 'alpha', 'beta'"),
        (MACHINE + "[runs]\ntokens = 3\n", "Did you mean 'run'?"),
        (MACHINE + "[run]\ntoken = 3\n", "Did you mean 'tokens'?"),
        ("[[machine", "expected TOML"),
    ],
)
def test_a_cluster_file_that_is_wrong(tmp_path: Path, text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["graph", "--cluster", str(write(tmp_path, text))])
    assert result.exit_code == 2
    assert told in result.stderr
    assert not (tmp_path / "runs").exists()


def test_all_that_is_wrong_with_a_cluster_file_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        cluster.read(write(tmp_path, MACHINE + "islands = -1\nroles = ['x']\n" + OTHER + "colour = 1\n[keys]\n"))
    assert len(error.value.faults) == 4


def test_a_cluster_file_holds_the_machine_and_the_keys_of_the_configuration(tmp_path: Path) -> None:
    text = f'{MACHINE}islands = 3\n[run]\ntokens = 12\ntask = "mine.py:task"\n[program]\ninterval = 6\n'
    found = cluster.read(write(tmp_path, text.replace("127.0.0.1", "localhost")))
    assert found.machine == cluster.Machine("alpha", "tcp://127.0.0.1:7400", (), 3)
    sections, faults = config.read(None, None, {("run", "tokens"): ("--tokens", 99)}, (), found)
    assert not faults
    assert (sections.run, sections.program) == ({"learners": 3, "tokens": 99}, {"interval": 6})
    assert sections.task_reference == f"{tmp_path / 'mine.py'}:task"
    fewer, _ = config.read(None, None, {}, ["run.learners=2"], found)
    assert fewer.run["learners"] == "2"


def test_what_does_not_fit_on_the_machine() -> None:
    graph = Graph("some")
    for role in ("learner", "syncer", "recorder"):
        graph.role(role, replicas=(1, 4))
    job = Job("p", Reference("t"), layout=(), tokens_per_batch=1, tokens=1, learners=3)
    cluster.Machine("alpha", "", (), None).place(graph, job)
    cluster.Machine("alpha", "", ("learner", "syncer"), 3).place(graph, job)
    with pytest.raises(PlacementError) as error:
        cluster.Machine("alpha", "", ("learner", "evaluator"), 2).place(graph, job)
    assert [fault.expected for fault in error.value.faults] == ["a machine for syncer", "an island for each"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[keys]\nsecret = 'x'\n", "keys are not there yet"),
        ("[program]\nmodules = []\n", "Did you mean 'programs'?"),
        ("[programs]\nmodule = []\n", "Did you mean 'modules'?"),
        ("[programs]\nmodules = 'mine.py'\n", "expected a list, each of it a text, found 'mine.py'"),
        ("programs = 3\n", "expected a table [programs], found 3"),
    ],
)
def test_a_machine_file_that_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    result = CliRunner().invoke(app, ["daemon", "--name", "a", "--listen", "tcp://127.0.0.1:0", "--config", str(path)])
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_machine_loads_what_is_shipped_and_what_its_file_lists(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    found = machine_config.read(write(tmp_path, '[programs]\nmodules = ["mine.py", "package.part"]\n'))

    def refused(program: str, task: str) -> list[str]:
        return [fault.found for fault in found.faults(program, task, "alpha")]

    shipped = "isthmus.programs.language_model:task(layers = 2)"
    assert refused("decoupled-diloco", shipped) == []
    assert refused(f"{tmp_path}/mine.py:build", f"{tmp_path}/link/mine.py:task") == []
    assert refused("package.part:build", "package.part.inner:task") == []
    for other in ("package.partly:build", "package:build", f"{tmp_path}/other.py:build", "os:system(command = 'x')"):
        assert refused(other, other) == [repr(other), repr(other)]
    assert refused("isthmus.programs.decoupled:other", shipped) == ["'isthmus.programs.decoupled:other'"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tcp://0.0.0.0:7400", "Keys come first"),
        ("tcp://*:7400", "Keys come first"),
        ("tcp://192.168.1.2:7400", "Keys come first"),
        ("tcp://machine.example:7400", "Keys come first"),
        ("tcp://127.0.0.1:65536", "expected tcp://ADDRESS:PORT"),
        ("tcp://127.0.0.1", "expected tcp://ADDRESS:PORT"),
        ("127.0.0.1:7400", "expected tcp://ADDRESS:PORT"),
        ("ipc:///tmp/socket", "expected tcp://ADDRESS:PORT"),
    ],
)
def test_an_address_that_is_none_or_that_others_can_reach(text: str, told: str) -> None:
    result = CliRunner().invoke(app, ["daemon", "--name", "a", "--listen", text])
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_port_is_free_for_a_daemon_only() -> None:
    assert machine_address.checked("tcp://localhost:0", "", may_choose=True) == "tcp://127.0.0.1:*"
    with pytest.raises(ConfigError):
        machine_address.checked("tcp://127.0.0.1:0", "")


@pytest.mark.parametrize("options", [["--detach"], ["--cluster", "file.toml"]])
def test_processes_are_not_one_process(tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, MACHINE)
    result = CliRunner().invoke(app, ["train", "--transport", "inproc", *options])
    assert result.exit_code == 2
    assert f"Reading {options[0]}: expected a run in processes, found --transport inproc" in result.stderr


@pytest.mark.parametrize("command", [["status"], ["stop"], ["logs", "daemon"]])
def test_a_run_is_named_by_itself_or_by_its_cluster(tmp_path: Path, command: list[str]) -> None:
    path = write(tmp_path, MACHINE)
    result = CliRunner().invoke(app, [*command, str(tmp_path), "--cluster", str(path)])
    assert result.exit_code == 2
    assert "expected RUN or --cluster" in result.stderr


def test_a_graph_is_placed_on_the_machine(tmp_path: Path) -> None:
    path = write(tmp_path, f"{MACHINE}islands = 2\n[task]\nlayers = 1\n")
    result = CliRunner().invoke(app, ["graph", "--cluster", str(path), "--format", "json"])
    assert result.exit_code == 0
    assert '"inner-step": "alpha"' in result.stdout
