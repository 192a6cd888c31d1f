"""Reading the file of a launch, and the numbers of a request: no engine is needed."""

from __future__ import annotations

import fcntl
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from isthmus.programs.wings.launch import engine, launch_commands, launching, user_files
from isthmus.programs.wings.launch.engine import ENGINES, LaunchedMachine, LaunchState, PrintedFile, engine_of
from isthmus.programs.wings.launch.folder import LOCK, Launch, find, folder_for
from isthmus.programs.wings.launch.launch_file import LaunchFile, LaunchTable, modules_of, name_of
from isthmus.programs.wings.launch.launching import _check_same, _write
from isthmus.runtime.errors import ConfigError
from tests.programs.wings.launch.launch_request import request


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


@pytest.mark.parametrize("name", ["image", "partition", "namespace", "memory", "time"])
@pytest.mark.parametrize("value", ["a b", "a\\n#SBATCH --x", "a;b", "$(a)", "`a`", "a'", '\\"', "-x", "é"])
def test_what_becomes_a_word_of_a_script_is_one(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"Reading launch.{name}: expected a word"):
        LaunchFile.read(written(tmp_path, f'[launch]\n{name} = "{value}"\n'))


@pytest.mark.parametrize("value", ["64G", "1-12:00:00", "registry.example:5000/a_b/isthmus:1@sha256:0a", "gpu,long"])
def test_words_of_engines_are_taken(tmp_path: Path, value: str) -> None:
    assert LaunchFile.read(written(tmp_path, f'[launch]\nimage = "{value}"\n')).table.image == value


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
    assert find(Path("demo.toml"), None).with_islands(3) == find(Path("demo.toml"), None) != launch


def test_a_folder_is_known_by_its_path_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has no other of a job's folder; by another one `down` found nothing."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    launch = Launch.of("slurm", request(), tmp_path / "link")
    launch.write()
    assert {launch.folder, Launch.read(tmp_path / "link").folder, folder_for("x", tmp_path / "link")} == {real}
    monkeypatch.chdir(tmp_path)
    assert folder_for("demo", None) == tmp_path / "launches" / "demo"


class Watched:
    """An engine that has one home, if it `works`, and notes what it is asked while the launch folder is locked."""

    def __init__(self, folder: Path, *, works: bool) -> None:
        self.folder, self.works, self.asked = folder, works, list[str]()

    def _note(self, what: str) -> None:
        with (self.folder / LOCK).open("ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.asked.append(what)

    def faults(self, *_: object) -> Sequence[object]:
        return ()

    def files(self, _: object) -> Sequence[PrintedFile]:
        return [PrintedFile("home.sh", "")]

    def state(self, _: object) -> LaunchState:
        self._note("state")
        return LaunchState([LaunchedMachine("home", "1", "RUNNING")] if self.works else ())

    def submit(self, launch: Launch) -> None:
        with launch.busy() as lock:
            assert lock > 2
        self._note("submit")

    def scale(self, *_: object) -> None:
        self._note("scale")


def test_what_is_seen_of_a_launch_holds_until_it_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or two launchers at once begin two homes in one folder, and islands outlive `down`."""
    for works, asked in ((False, ["state", "submit"]), (True, ["state", "scale"])):
        folder = tmp_path / f"{works}"
        watched = Watched(folder, works=works)
        monkeypatch.setattr(engine, "engine_of", lambda _, watched=watched: watched)
        if works:
            launch = Launch.of("slurm", request(), folder)
            folder.mkdir()
            launching.scale(launch, 3)
        else:
            launching.launch("slurm", request(), folder)
        assert watched.asked == asked
        with (folder / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_for_a_folder_that_is_taken_away_makes_it_anew(tmp_path: Path) -> None:
    launch = Launch.of("slurm", request(), tmp_path / "demo")
    with launch.busy():
        (launch.folder / LOCK).unlink()
    with launch.busy():
        assert (launch.folder / LOCK).exists()


def test_a_refused_launch_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "engine_of", lambda _: Watched(tmp_path / "new", works=True))
    with pytest.raises(ConfigError, match="nothing of that name"):
        launching.launch("slurm", request(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_commands_that_are_told_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = launching.show("slurm", request(), Path("-a $(touch x)"))
    assert "cd './-a $(touch x)' && sbatch" in told


@pytest.mark.parametrize("name", ["home.key", "launch.json", "island-0", "home", "run", "theirs.py"])
def test_your_own_files_take_no_name_of_the_launch(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    asked = request(table=LaunchTable(files=(str(tmp_path / name),)))
    assert len(list(user_files.faults(asked, 100, ["theirs.py"]))) == 1


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
def test_every_engine_prints_what_is_typed_by_hand(name: str) -> None:
    image = "i" if name == "kubernetes" else ""
    files = engine_of(name).files(request(table=LaunchTable(image=image, cpus=2, memory="4G", devices="gpu:4")))
    assert any(file.name in engine_of(name).by_hand(request()) for file in files)


def test_folders_of_machines_alone_are_whole_paths(tmp_path: Path) -> None:
    table = LaunchFile.read(written(tmp_path, '[launch]\non_machines = ["/data/", "/a/../models"]\n')).table
    assert table.on_machines == ("/data", "/models")
    assert [table.is_there_only(path) for path in ("/data", "/data/x", "/models/m", "/database", "/")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(ConfigError) as refused:
        LaunchFile.read(written(tmp_path, '[launch]\non_machines = ["data"]\n'))
    assert actions(refused.value) == [("Reading launch.on_machines", "'data'")]
