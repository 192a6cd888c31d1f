"""Keys of a machine: machine.toml, the file beside its daemon, and the commands that change it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from typer.testing import CliRunner

from isthmus.programs.engine.cluster import machine_file
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import admissions, joining, serve
from isthmus.programs.engine.machine.admissions import Admissions
from isthmus.programs.engine.machine.joining import JoinRequest
from isthmus.programs.engine.machine.names import NameClaim
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.command_line import app
from tests.loops import run_until

ALPHA, BETA, GAMMA, DELTA = (KeyPair.make() for _ in range(4))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type commands in, and a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def typed(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def read(folder: Path, text: str) -> MachineConfig:
    (folder / "machine.toml").write_text(text)
    return machine_file.read(folder / "machine.toml")


def ring_of(config: MachineConfig) -> Keyring:
    ring = admissions.keyring("alpha", config)
    assert ring is not None
    return ring


def test_the_own_key_among_those_that_are_admitted_stays_the_own_key(place: Path) -> None:
    """All machines may share one list of those that they admit."""
    admissions.admit("alpha", "former", ALPHA.public)  # And what it was before it was the own one is over.
    config = MachineConfig(pair=ALPHA, admitted={ALPHA.public: "alpha", BETA.public: "beta"})
    for _ in range(2):
        ring = ring_of(config)
        assert admissions.own_key("alpha") == ALPHA.public
        assert ring.admitted == {ALPHA.public: "alpha", BETA.public: "beta"}
        assert "alpha" in ring.operators
    with pytest.raises(ConfigError):
        ring_of(MachineConfig(pair=ALPHA, admitted={ALPHA.public: "another"}))


# -- machine.toml ------------------------------------------------------------------------------------------------------


def test_a_machine_file_names_its_key_and_those_it_admits(place: Path) -> None:
    (place / "keys").mkdir()
    ALPHA.write(place / "keys", "alpha")
    BETA.write(place, "beta")
    config = read(
        place,
        f'[keys]\nsecret = "keys/alpha.key"\nadmitted = ["beta.pub", "gamma {GAMMA.public}", "{DELTA.public}"]\n',
    )
    assert config.pair == ALPHA
    assert config.admitted == {BETA.public: "beta", GAMMA.public: "gamma", DELTA.public: DELTA.public}
    assert read(place, "").pair is None


def test_all_that_is_wrong_with_keys_is_told_at_once(place: Path) -> None:
    ALPHA.write(place, "alpha")
    (place / "alpha.key").chmod(0o644)
    with pytest.raises(ConfigError) as error:
        read(
            place,
            f'[keys]\nsecret = "alpha.key"\nadmitted = ["beta.pub", "alpha.key", "x", "b {BETA.public}", '
            f'"c {BETA.public}", "b {GAMMA.public}", "no;name {DELTA.public}"]\n',
        )
    assert [fault.found for fault in error.value.faults] == [
        "one with mode 0644",
        f"no file {place}/beta.pub",
        f"a secret one in {place}/alpha.key",
        f"no file {place}/x",
        "the key of 'b'",
        "another key for 'b'",
        "'no;name'",
    ]


@pytest.mark.parametrize(
    ("said", "texts"), [("", "local"), ('error_texts = "home"', "home"), ('error_texts = "local"', "local")]
)
def test_a_machine_that_joins_keeps_texts_of_errors_unless_its_file_says_home(
    place: Path, monkeypatch: pytest.MonkeyPatch, said: str, texts: str
) -> None:
    begun: list[MachineConfig] = []
    monkeypatch.setattr(serve, "run", lambda name, endpoint, permitted, *more: begun.append(permitted) or 0)
    read(place, f'[runs]\nfolder = "."\n{said}\n')
    request = JoinRequest("tcp://127.0.0.1:7400", "beta", 1, ALPHA.public, place / "machine.toml")
    assert joining.join(request) == 0
    (config,) = begun
    assert (config.error_texts, config.runs) == (texts, place)
    assert config.secret == place / "beta.key"


def test_a_machine_file_names_its_operators(place: Path) -> None:
    ALPHA.write(place, "alpha")
    BETA.write(place, "beta")
    config = read(
        place,
        f'[keys]\nsecret = "alpha.key"\nadmitted = ["beta.pub", "gamma {GAMMA.public}"]\n'
        f'operators = ["beta.pub", "delta {DELTA.public}"]\n',
    )
    assert config.admitted == {BETA.public: "beta", GAMMA.public: "gamma", DELTA.public: "delta"}
    assert config.operators == {BETA.public, DELTA.public}
    assert ring_of(config).operators == {"alpha", "beta", "delta"}


@pytest.mark.parametrize("name", ["machine.toml", "alpha.key", "beta.pub", "owner.pub"])
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(place: Path, name: str, mode: int) -> None:
    for each, pair in (("alpha", ALPHA), ("beta", BETA), ("owner", GAMMA)):
        pair.write(place, each)
    text = '[keys]\nsecret = "alpha.key"\nadmitted = ["beta.pub"]\noperators = ["owner.pub"]\n'
    (place / "machine.toml").write_text(text)
    assert machine_file.read(place / "machine.toml").operators == {GAMMA.public}
    (place / name).chmod(mode)
    command = ["daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:0", "--config", "machine.toml"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert f"{place / name if name != 'machine.toml' else name} with mode {mode:04o}" in result.stderr
    assert "chmod go-w" in result.stderr
    assert not (place.parent / "state").exists()


def test_a_file_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ALPHA.write(place, "alpha")
    found = (place / "alpha.key").stat()
    security_keys.check_owned(found, place / "alpha.key", "Reading")
    other = os.stat_result((found.st_mode, *found[1:4], found.st_uid + 4711, *found[5:]))
    with pytest.raises(ConfigError, match=f"belongs to the user {other.st_uid}"):
        security_keys.check_owned(other, place / "alpha.key", "Reading")
    monkeypatch.setattr(os, "geteuid", lambda: other.st_uid)
    security_keys.check_owned(other, place / "alpha.key", "Reading")


# -- the file beside the daemon ----------------------------------------------------------------------------------------


def test_what_commands_change_outlives_the_daemon_and_machine_toml_is_followed() -> None:
    both = MachineConfig((), ALPHA, {BETA.public: "beta", GAMMA.public: "gamma"})
    assert set(ring_of(both).admitted.values()) == {"alpha", "beta", "gamma"}
    assert admissions.admit("alpha", "delta", DELTA.public)
    assert not admissions.admit("alpha", "delta", DELTA.public)
    assert not admissions.admit("alpha", "beta", BETA.public)
    assert admissions.expel("alpha", "beta")
    assert not admissions.expel("alpha", "beta")
    assert set(ring_of(both).admitted.values()) == {"alpha", "gamma", "delta"}
    only_beta = MachineConfig((), ALPHA, {BETA.public: "beta"})
    assert set(ring_of(only_beta).admitted.values()) == {"alpha", "delta"}
    assert admissions.admit("alpha", "beta", BETA.public)
    assert set(ring_of(MachineConfig((), ALPHA)).admitted.values()) == {"alpha", "beta", "delta"}
    assert admissions.expel("alpha", "delta")
    assert set(ring_of(MachineConfig((), ALPHA)).admitted.values()) == {"alpha", "beta"}


def test_a_command_makes_an_operator_and_none_again_and_its_word_stands() -> None:
    assert ring_of(MachineConfig((), ALPHA)).operators == {"alpha"}
    assert admissions.admit("alpha", "beta", BETA.public)
    assert admissions.admit("alpha", "beta", BETA.public, is_operator=True)
    assert not admissions.admit("alpha", "beta", BETA.public, is_operator=True)
    assert ring_of(MachineConfig((), ALPHA)).operators == {"alpha", "beta"}
    assert admissions.admit("alpha", "beta", BETA.public)
    assert ring_of(MachineConfig((), ALPHA)).operators == {"alpha"}
    listed = MachineConfig((), ALPHA, {GAMMA.public: "gamma"}, None, frozenset({GAMMA.public}))
    assert ring_of(listed).operators == {"alpha", "gamma"}
    assert admissions.admit("alpha", "gamma", GAMMA.public)
    assert ring_of(listed).operators == {"alpha"}
    assert ring_of(listed).admits("gamma")
    # One that machine.toml lists, and a command has changed, stays away once it is expelled.
    assert admissions.expel("alpha", "gamma")
    assert not ring_of(listed).admits("gamma")
    assert admissions.admit("alpha", "gamma", GAMMA.public, is_operator=True)
    assert ring_of(listed).operators == {"alpha", "gamma"}
    assert not admissions.admit("alpha", "alpha", ALPHA.public)
    assert ring_of(listed).operators == {"alpha", "gamma"}


def test_a_file_of_admissions_that_others_may_write_is_refused() -> None:
    admissions.admit("alpha", "beta", BETA.public)
    path = admissions.path_of("alpha")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o660)
    with pytest.raises(ConfigError, match="a file that only you can write"):
        admissions.read("alpha")


def test_a_machine_gets_a_new_key() -> None:
    ring_of(MachineConfig((), ALPHA, {BETA.public: "beta"}))
    with pytest.raises(ConfigError, match="found another key for 'beta'"):
        admissions.admit("alpha", "beta", GAMMA.public)
    admissions.expel("alpha", "beta")
    admissions.admit("alpha", "beta", GAMMA.public)
    assert ring_of(MachineConfig((), ALPHA)).admitted == {ALPHA.public: "alpha", GAMMA.public: "beta"}
    assert ring_of(MachineConfig((), DELTA)).admitted == {DELTA.public: "alpha", GAMMA.public: "beta"}


def test_a_command_and_machine_toml_that_contradict_each_other() -> None:
    admissions.admit("alpha", "beta", BETA.public)
    with pytest.raises(ConfigError, match="found another key for 'beta'"):
        admissions.keyring("alpha", MachineConfig((), ALPHA, {GAMMA.public: "beta"}))
    ring_of(MachineConfig((), ALPHA))
    with pytest.raises(ConfigError, match="found another key for 'alpha'"):
        admissions.admit("alpha", "alpha", GAMMA.public)


def test_a_machine_does_not_expel_itself() -> None:
    ring_of(MachineConfig((), ALPHA))
    with pytest.raises(ConfigError, match="expected another machine"):
        admissions.expel("alpha", "alpha")


def test_a_damaged_file_is_named() -> None:
    admissions.admit("alpha", "beta", BETA.public)
    admissions.path_of("alpha").write_text(f"beta {BETA.public}\n")
    with pytest.raises(ConfigError, match="Correct the line"):
        admissions.read("alpha")


# -- the daemon --------------------------------------------------------------------------------------------------------


class Followed:
    """A keyring that follows the file, on a loop."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.ring = ring_of(MachineConfig((), ALPHA, {BETA.public: "beta"}))
        self.said: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.admissions = Admissions()
        who = SimpleNamespace(
            readmit=lambda name: self.told.append(("admitted", name)),
            expel=lambda name: self.told.append(("expelled", name)),
        )
        machine = SimpleNamespace(name="alpha", loop=self.loop, keys=self.ring, tell=self.said.append, neighbours=who)
        self.admissions.start(cast(Any, machine))

    def until(self, holds: Callable[[], bool]) -> None:
        run_until(self.loop, holds)


@pytest.fixture
def followed() -> Iterator[Followed]:
    followed = Followed()
    yield followed
    followed.admissions.close()
    followed.loop.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_keyring_follows_its_file_while_the_daemon_lives(followed: Followed) -> None:
    admissions.admit("alpha", "gamma", GAMMA.public)
    followed.until(lambda: followed.ring.name_of(GAMMA.public) == "gamma")
    admissions.expel("alpha", "beta")
    followed.until(lambda: not followed.ring.admits("beta"))
    assert followed.told == [("admitted", "gamma"), ("expelled", "beta")]
    admissions.admit("alpha", "gamma", GAMMA.public, is_operator=True)
    followed.until(lambda: "gamma" in followed.ring.operators)
    admissions.admit("alpha", "gamma", GAMMA.public)
    followed.until(lambda: "gamma" not in followed.ring.operators)
    assert followed.told == [("admitted", "gamma"), ("expelled", "beta")]
    assert followed.said[2:] == ["has gamma as an operator", "has gamma as an operator no longer"]
    admissions.path_of("alpha").write_text("nonsense")
    followed.until(lambda: len(followed.said) == 5)
    assert "goes on with the keys that it knows" in followed.said[-1]
    assert set(followed.ring.admitted.values()) == {"alpha", "gamma"}


# -- commands ----------------------------------------------------------------------------------------------------------


def test_keygen_makes_a_pair_once(place: Path) -> None:
    made = typed("keygen", "alpha")
    assert made.exit_code == 0
    pair = security_keys.read_pair(place / "alpha.key")
    assert f"isthmus admit alpha {pair.public}" in made.stdout
    assert pair.secret not in made.stdout
    again = typed("keygen", "alpha")
    assert again.exit_code == 2
    assert "neither alpha.key nor alpha.pub" in again.stderr
    assert security_keys.read_pair(place / "alpha.key") == pair
    assert typed("keygen", "../alpha").exit_code == 2
    assert sorted(os.listdir(place)) == ["alpha.key", "alpha.pub"]


def test_admit_takes_a_key_or_a_file(place: Path) -> None:
    GAMMA.write(place, "gamma")
    ring_of(MachineConfig((), ALPHA))
    assert "admits beta" in typed("admit", "beta", BETA.public).stdout
    assert "admits gamma" in typed("admit", "gamma", "gamma.pub").stdout
    assert "already" in typed("admit", "gamma", "gamma.pub").stdout
    assert "gamma as an operator from" in typed("admit", "--operator", "gamma", "gamma.pub").stdout
    assert "already" in typed("admit", "gamma", GAMMA.public, "--operator").stdout
    assert ring_of(MachineConfig((), ALPHA)).operators == {"alpha", "gamma"}
    assert set(ring_of(MachineConfig((), ALPHA)).admitted.values()) == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("beta", "nowhere.pub"), "found no file"),
        (("beta", "alpha.key"), "found a secret one"),
        (("b/c", BETA.public), "letters, digits"),
        (("alpha", BETA.public), "found another key for 'alpha'"),
        (("beta", ALPHA.public), "found the key of 'alpha'"),
        (("beta", BETA.public, "--machine", "a b"), "letters, digits"),
    ],
)
def test_what_admit_refuses(place: Path, words: tuple[str, ...], told: str) -> None:
    ALPHA.write(place, "alpha")
    ring_of(MachineConfig((), ALPHA))
    result = typed("admit", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert set(ring_of(MachineConfig((), ALPHA)).admitted.values()) == {"alpha"}


def test_which_daemon_admits() -> None:
    none = typed("admit", "beta", BETA.public)
    assert none.exit_code == 2
    assert "expected one daemon on this computer, found none" in none.stderr
    assert "from its next start" in typed("admit", "beta", BETA.public, "--machine", "alpha").stdout
    assert typed("admit", "gamma", GAMMA.public).exit_code == 0
    typed("admit", "beta", BETA.public, "--machine", "omega")
    several = typed("admit", "delta", DELTA.public)
    assert "found 2: alpha, omega" in several.stderr
    claim = NameClaim("omega")
    claim.write("tcp://127.0.0.1:1", [])
    try:
        assert "expected a daemon 'omega' with keys, found one without" in typed("admit", "delta", DELTA.public).stderr
        admissions.keyring("omega", MachineConfig((), ALPHA))
        assert "omega admits delta from now on" in typed("admit", "delta", DELTA.public).stdout
        admissions.keyring("omega", MachineConfig())
        assert typed("admit", "delta", DELTA.public).exit_code == 2
    finally:
        claim.close(forget=True)
    assert set(admissions.admitted(admissions.read("omega").machines).values()) == {"beta", "delta"}
