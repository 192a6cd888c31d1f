"""Reading the file of a launch, and the numbers of a request: no engine is needed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from isthmus.programs.command import launch_commands
from isthmus.programs.launch.engine import ENGINES, PrintedFile, engine_of
from isthmus.programs.launch.folder import Launch, find, folder_for
from isthmus.programs.launch.launch_file import LaunchFile, LaunchTable, modules_of, name_of
from isthmus.programs.launch.launching import _check_same, _write
from isthmus.runtime.errors import ConfigError
from tests.programs.launch.launch_request import request


def written(folder: Path, text: str, name: str = "demo.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def actions(error: ConfigError) -> list[tuple[str, str]]:
    return [(fault.action, fault.found) for fault in error.faults]


def test_a_file_has_the_sections_of_a_run_and_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    text = '[run]\ntokens = 5\n[task]\nlayers = 1\n[launch]\ndevices = "gpu:4"\ncpus = 2\nfiles = ["mine.py"]\n'
    file = LaunchFile.read(written(tmp_path, text))
    assert file.sections == {"run": {"tokens": 5}, "task": {"layers": 1}}
    assert file.table == LaunchTable(devices="gpu:4", cpus=2, files=(str(tmp_path / "mine.py"),))
    assert (file.name, file.islands) == ("demo", None)


def test_all_faults_of_a_file_come_together(tmp_path: Path) -> None:
    text = '[runs]\ntokens = 5\n[launch]\ndevices = "4"\ncpus = 0\nfiles = ["none.py"]\nport = 99999\n'
    with pytest.raises(ConfigError) as caught:
        LaunchFile.read(written(tmp_path, text))
    assert actions(caught.value) == [
        (f"Reading {tmp_path / 'demo.toml'}", "'runs'"),
        ("Reading launch.cpus", "0"),
        ("Reading launch.port", "99999"),
        ("Reading launch.devices", "'4'"),
        ("Reading launch.files", f"nothing at {tmp_path / 'none.py'}"),
    ]


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        LaunchFile.read(written(tmp_path, '[launch]\npartitions = "low"\n'))
    assert "Did you mean 'partition'?" in str(caught.value)


def test_a_cluster_file_says_how_many_islands(tmp_path: Path) -> None:
    machines = '[[machine]]\nname = "a"\nroles = ["syncer", "evaluator"]\n[[machine]]\nname = "b"\nislands = 3\n'
    assert LaunchFile.read(written(tmp_path, machines)).islands == 3


def test_a_cluster_file_without_a_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        LaunchFile.read(written(tmp_path, '[[machine]]\nname = "b"\nroles = ["learner"]\nislands = 3\n'))
    assert [fault.found for fault in caught.value.faults] == ["b: learners only"]


@pytest.mark.parametrize(
    ("path", "name"), [("demo.toml", "demo"), ("x/My_run.2.toml", "my-run-2"), (f"{'a' * 50}.toml", "a" * 40)]
)
def test_the_name_is_one_that_every_engine_takes(path: str, name: str) -> None:
    assert name_of(Path(path)) == name


@pytest.mark.parametrize("path", ["7.toml", "___.toml"])
def test_a_file_without_such_a_name_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        name_of(Path(path))


def test_numbers_out_of_range_are_refused() -> None:
    assert [fault.found for fault in request(islands=17, nodes_per_island=65).faults()] == ["17", "65"]
    assert not list(request(islands=16, nodes_per_island=64).faults())


def test_own_code_is_listed_in_machine_toml() -> None:
    modules = modules_of("decoupled-diloco", "/home/x/mine.py:task")
    assert modules == ("/home/x/mine.py",)
    assert request(modules=modules).machine_text == '[programs]\nmodules = ["/home/x/mine.py"]\n'
    assert 'secret = "home.key"' in request(modules=modules).home_text
    assert request().machine_text == ""


def test_a_launch_is_found_by_its_folder_its_file_or_because_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="none"):
        find(None, None)
    launch = Launch.of("slurm", request(), folder_for("demo", None))
    launch.folder.mkdir(parents=True)
    launch.write()
    assert find(None, None) == find(Path("demo.toml"), None) == find(None, launch.folder) == launch
    other = Launch.of("slurm", request(name="other"), folder_for("other", None))
    other.folder.mkdir()
    other.write()
    with pytest.raises(ConfigError, match="2: demo, other"):
        find(None, None)
    assert find(Path("demo.toml"), None).with_ids(home="7").ids == find(Path("demo.toml"), None).ids == {"home": "7"}


def test_a_run_that_is_there_goes_on_as_it_was_asked_for(tmp_path: Path) -> None:
    def launch(*data: str, lr: float) -> Launch:
        sections = {"run": {"tokens": 5}, "task": {"lr": lr, "data": data}}
        return Launch.of("slurm", request(sections=sections, chosen=frozenset({"task.lr"})), tmp_path)

    launch("a", lr=0.1).write()
    (tmp_path / "run").mkdir()
    _check_same(launch("a", lr=0.2), "Launching")
    with pytest.raises(ConfigError, match=r"expected task.data = \['a'\]"):
        _check_same(launch("b", lr=0.1), "Launching")


def test_a_damaged_note_is_told(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text('{"engine": "slurm"}')
    with pytest.raises(ConfigError, match="KeyError"):
        Launch.read(tmp_path)


def test_a_secret_file_is_never_readable_by_others(tmp_path: Path) -> None:
    (tmp_path / "home.key").write_text("old")
    _write([PrintedFile("home.key", "secret", is_secret=True), PrintedFile("run.toml", "")], tmp_path)
    assert stat.S_IMODE((tmp_path / "home.key").stat().st_mode) == 0o600
    assert (tmp_path / "home.key").read_text() == "secret"


def test_every_engine_has_a_command() -> None:
    assert ENGINES.keys() == launch_commands.ENGINES.keys()


@pytest.mark.parametrize("name", list(ENGINES))
def test_what_an_engine_prints_for_two_islands_is_short(name: str) -> None:
    files = engine_of(name).files(request(table=LaunchTable(cpus=2, memory="4G", devices="gpu:4")))
    assert 10 < sum(len(file.text.splitlines()) for file in files) <= 80
    assert engine_of(name).by_hand(request())
