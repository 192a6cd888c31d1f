"""cluster.toml, machine.toml and addresses: what is wrong with them is told at once, and starts nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isthmus.programs.command import config
from isthmus.programs.engine.cluster import cluster_file, machine_file
from isthmus.programs.engine.cluster.devices import Device, find
from isthmus.programs.engine.cluster.machine_file import SiteRules
from isthmus.runtime.errors import ConfigError
from tests.command_line import app

MACHINE = '[[machine]]\nname = "alpha"\naddress = "tcp://127.0.0.1:7400"\n'
OTHER = MACHINE.replace("alpha", "beta").replace("7400", "7401")
KEY = "yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
OTHER_KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
KEYED = f"public_key = '{KEY}'\n"
KEYS = "[keys]\nsecret = 'home.key'\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected at least one [[machine]], found none"),
        ("[machine]\nname = 'alpha'\n", "expected [[machine]], found another `machine`"),
        ("[[machine]]\nname = 'alpha'\n", "expected a machine with an address, which all hosts can dial, found alpha"),
        ("[[machine]]\naddress = 'tcp://127.0.0.1:7400'\n", "machine 1: expected `name`, found nothing"),
        (MACHINE + "isslands = 3\n", "Did you mean 'islands'?"),
        (MACHINE + "islands = '3'\n", "file.toml, machine 1): expected an integer, found '3'"),
        (MACHINE + "islands = 0\n", "expected 1 or more, found 0"),
        (MACHINE + "roles = ['learners']\n", "Did you mean 'learner'?"),
        (MACHINE + "roles = ['learner']\n", "Placing role 'syncer': expected a machine that takes 'syncer'"),
        (MACHINE + "device = 'TPU v6'\n", "The nearest: TPU v6e"),
        (MACHINE + "devices = 0\n", "expected 1 or more, found 0"),
        (MACHINE + "bandwidth = '2 GB'\n", "expected bits a second, such as 2 Gbit/s, found '2 GB'"),
        (MACHINE + "bandwidth = '0 Gbit/s'\n", "and above 0"),
        (MACHINE + f"public_key = '{KEY}'\n", "expected [keys] beside a public_key, found none"),
        (MACHINE + "public_key = 'no.pub'\n[keys]\nsecret = 'x'\n", "no file"),
        (MACHINE + "[keys]\nsecret = 'x'\n", "expected a `public_key`, because there are [keys]"),
        (MACHINE + "[keys]\nsecrets = 'x'\n", "expected the file of a secret key"),
        (MACHINE + KEYED + OTHER + KEYED + KEYS, f"each public_key once, found {KEY} for 'alpha', 'beta'"),
        ("[device]\nkind = 'x'\n" + MACHINE, "expected [[device]], found another `device`"),
        ("[[device]]\nteraflops = 3\n" + MACHINE, "device 1: expected `kind`, found nothing"),
        ("[[device]]\nkind = 'x'\nteraflops = 0\n" + MACHINE, "expected a number above 0, found 0.0"),
        ("[[device]]\nkind = 'x'\nmemory = '3 TB/s'\n" + MACHINE, "expected a size, such as 80 GB"),
        (MACHINE.replace("127.0.0.1", "10.0.0.7"), "Keys come first"),
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
    first = MACHINE + "islands = -1\ndevice = 'TPU v9'\nbandwidth = 'much'\ndomain = 3\n"
    second = OTHER.replace("beta", "alpha") + "colour = 1\n[[device]]\nmemory = '3'\n[keys]\n"
    with pytest.raises(ConfigError) as error:
        cluster_file.read(write(tmp_path, first + second))
    told = [fault.found for fault in error.value.faults]
    assert sorted(told) == sorted(
        ["-1", "'TPU v9'", "'much'", "3 (int)", "none", "'colour'", "none", "nothing", "'3'", "{}", "2 named 'alpha'"]
    )


def test_a_cluster_file_holds_the_machine_and_the_keys_of_the_configuration(tmp_path: Path) -> None:
    text = f'{MACHINE}islands = 3\n[run]\ntokens = 12\ntask = "mine.py:task"\n[program]\ninterval = 6\n'
    found = cluster_file.read(write(tmp_path, text.replace("127.0.0.1", "localhost")))
    assert found.machines == (cluster_file.Machine("alpha", "tcp://127.0.0.1:7400", islands=3),)
    assert found.secret is None
    sections, faults = config.read(None, None, {("run", "tokens"): ("--tokens", 99)}, (), found)
    assert not faults
    assert (sections.run, sections.program) == ({"learners": 3, "tokens": 99}, {"interval": 6})
    assert sections.task_reference == f"{tmp_path / 'mine.py'}:task"
    fewer, _ = config.read(None, None, {}, ["run.learners=2"], found)
    assert fewer.run["learners"] == "2"


def test_a_machine_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "beta.pub").write_text(f"{KEY}\n")
    text = f"""
        [[device]]
        kind = "TPU v6e"
        price_per_hour = 2.7
        [[device]]
        kind = "Own chip"
        names = ["own"]
        teraflops = 12.5
        memory = "24 GiB"
        memory_bandwidth = "1.5 TB/s"
        interconnect = "100 GB/s"
        [[machine]]
        name = "alpha"
        address = "tcp://10.0.0.7:7400"
        public_key = "{OTHER_KEY}"
        roles = ["learner", "stage"]
        islands = 2
        device = "TPU v6 lite"
        devices = 8
        domain = "building-a"
        bandwidth = "2.5 Gbit/s"
        [[machine]]
        name = "beta"
        public_key = "beta.pub"
        device = "OWN"
        bandwidth = "1 GB/s"
        [[machine]]
        name = "gamma"
        device = "cpu"
        [keys]
        secret = "keys/home.key"
    """
    found = cluster_file.read(write(tmp_path, text))
    assert found.secret == tmp_path / "keys" / "home.key"
    alpha, beta, gamma = found.machines
    known = find("TPU v6e", "")
    assert alpha == cluster_file.Machine(
        "alpha",
        "tcp://10.0.0.7:7400",
        OTHER_KEY,
        ("learner", "stage"),
        2,
        replace(known, price_per_hour=2.7),
        8,
        "building-a",
        2_500_000_000,
    )
    own = Device("Own chip", ("own",), 12.5e12, 24 << 30, 1_500_000_000_000, 800_000_000_000, source="the cluster file")
    assert beta == cluster_file.Machine("beta", public_key=KEY, device=own, islands=1, bandwidth_bits=8_000_000_000), (
        "An accelerator is one island where nothing is said."
    )
    assert (gamma.islands, gamma.address) == (None, None)
    assert found.topology.learners_max is None


def test_learners_are_as_many_as_there_are_islands(tmp_path: Path) -> None:
    text = f"{MACHINE}islands = 3\n{OTHER}roles = ['syncer']\n[[machine]]\nname = 'c'\nislands = 2\n"
    found = cluster_file.read(write(tmp_path, text))
    assert config.read(None, None, {}, (), found)[0].run["learners"] == 5
    many = config.read(None, None, {}, (), cluster_file.read(write(tmp_path, f"{MACHINE}islands = 40\n")))[0].run
    assert many == {"learners": 40, "slots_max": 40}
    found = cluster_file.read(write(tmp_path, text + "[[machine]]\nname = 'd'\n"))
    assert "learners" not in config.read(None, None, {}, (), found)[0].run


@pytest.mark.parametrize(
    ("text", "size"), [("1 B", 1), ("80 GB", 80 * 10**9), ("1.5KiB", 1536), ("2 TiB", 2 << 40), ("800 Mbit", 10**8)]
)
def test_a_size(text: str, size: int) -> None:
    assert cluster_file.size_bytes(text, "") == size


@pytest.mark.parametrize("text", ["80", "80 GB/s", "80 G", "-1 GB", "80 iB", "1 Gibit", "0.4 B", "1e9 B", ""])
def test_no_size(text: str) -> None:
    with pytest.raises(ConfigError):
        cluster_file.size_bytes(text, "Reading")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[keys]\nsecret = 'x'\n", "expected a key, or a file that holds one, found no file"),
        ("[keys]\nadmitted = []\n", "expected the file of a secret key, found nothing"),
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


def test_all_that_is_wrong_with_a_machine_file_is_told_at_once(tmp_path: Path) -> None:
    text = "colour = 1\n[keys]\nsecret = 'x'\nadmitted = ['y', 'z']\n[programs]\nmodules = 3\n[runs]\nfolder = 'none'\n"
    with pytest.raises(ConfigError) as error:
        machine_file.read(write(tmp_path, text))
    told = [fault.found for fault in error.value.faults]
    assert [found.rpartition("/")[2] for found in told] == [
        "'colour'", "3 (int)", "x", "y", "z", "none, nothing there"
    ]  # fmt: skip


def test_a_machine_says_where_texts_of_errors_stay(tmp_path: Path) -> None:
    assert machine_file.read(write(tmp_path, "")).error_texts is None
    assert machine_file.read(write(tmp_path, '[runs]\nerror_texts = "home"\n')).error_texts == "home"
    with pytest.raises(ConfigError, match=r"one of 'local', 'home'"):
        machine_file.read(write(tmp_path, '[runs]\nerror_texts = "here"\n'))


def test_a_machine_says_what_its_learners_train_on_and_what_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "ours.txt").write_text("abc")
    text = '[runs]\ndata = ["ours.txt"]\n'
    ours = str(tmp_path / "ours.txt")
    assert machine_file.read(write(tmp_path, "")).site == SiteRules()
    assert machine_file.read(None, [ours]).site == SiteRules((ours,))
    assert machine_file.read(write(tmp_path, text)).site == SiteRules((ours,))
    more = f'{text}evaluate = "local"\nkeep_own = true\n'
    assert machine_file.read(write(tmp_path, more)).site == SiteRules((ours,), is_told=False, keeps_own=True)
    assert machine_file.read(write(tmp_path, more), [str(tmp_path)]).site.data == (str(tmp_path),)
    for wrong, found in (
        ("keep_own = true", "none"),
        ('evaluate = "local"', "none"),
        ('data = ["missing"]', "nothing"),
    ):
        with pytest.raises(ConfigError) as error:
            machine_file.read(write(tmp_path, f"[runs]\n{wrong}\n"))
        assert found in error.value.faults[0].found


def test_a_machine_loads_what_is_shipped_and_what_its_file_lists(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    found = machine_file.read(write(tmp_path, '[programs]\nmodules = ["mine.py", "package.part"]\n'))

    def refused(program: str, task: str) -> list[str]:
        return [fault.found for fault in found.faults(program, task, "alpha")]

    shipped = "isthmus.programs.language_model:task(layers = 2)"
    assert refused("decoupled-diloco", shipped) == []
    assert refused(f"{tmp_path}/mine.py:build", f"{tmp_path}/link/mine.py:task") == []
    assert refused("package.part:build", "package.part.inner:task") == []
    for other in ("package.partly:build", "package:build", f"{tmp_path}/other.py:build", "os:system(command = 'x')"):
        assert refused(other, other) == [repr(other), repr(other)]
    assert refused("isthmus.programs.decoupled:other", shipped) == ["'isthmus.programs.decoupled:other'"]


@pytest.mark.parametrize("listed", ["mine.py", "package.part", "package"])
def test_a_module_that_others_could_have_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    (tmp_path / "package").mkdir()
    for name in ("mine.py", "package/__init__.py", "package/part.py"):
        (tmp_path / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(tmp_path, f'[programs]\nmodules = ["{listed}"]\n')
    assert machine_file.read(path).modules
    changed = {"mine.py": "mine.py", "package.part": "package/part.py", "package": "package"}[listed]
    (tmp_path / changed).chmod(0o777)
    with pytest.raises(ConfigError, match=rf"(?s)a file that only you can write, found .*{changed}.*chmod go-w"):
        machine_file.read(path)
    assert not {"mine", "package", "package.part"} & set(sys.modules), "it is looked at, and not imported"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tcp://0.0.0.0:7400", "Keys come first"),
        ("tcp://*:7400", "Keys come first"),
        ("tcp://192.168.1.2:7400", "Keys come first"),
        ("tcp://machine.example:7400", "Keys come first"),
        ("tcp://[2001:db8::1]:7400", "Keys come first"),
        ("tcp://::1:7400", "expected tcp://ADDRESS:PORT"),
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
    assert cluster_file.checked_address("tcp://localhost:0", "", may_choose=True) == "tcp://127.0.0.1:*"
    assert cluster_file.checked_address("tcp://[::1]:7461", "") == "tcp://[::1]:7461"
    with pytest.raises(ConfigError):
        cluster_file.checked_address("tcp://127.0.0.1:0", "")


@pytest.mark.parametrize(
    "host", ["[2001:db8::1]", "home.example", "home-0.home", "[::ffff:10.0.0.1]", "10.0.0.1", "[::]"]
)
def test_an_address_may_be_of_either_kind_or_a_name(host: str) -> None:
    address = f"tcp://{host}:7400"
    assert cluster_file.checked_address(address, "", has_keys=True) == address


@pytest.mark.parametrize("host", ["[:::]", "[10.0.0.1]", "[home]", "10.0.0.256", "10.0.1", "a b", "*", "[::1", "::1"])
def test_an_address_that_nobody_can_dial_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="ADDRESS:PORT"):
        cluster_file.checked_address(f"tcp://{host}:7400", "", has_keys=True)


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
