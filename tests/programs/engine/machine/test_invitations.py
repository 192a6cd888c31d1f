"""Invitations: what the command writes, what the home admits by one, and what a machine does that has one.

The home is a real daemon, in a thread of this process; claims come over a socket with keys.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typer.testing import CliRunner, Result

from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import admissions, invitations, links, serve
from isthmus.programs.engine.machine.admissions import (
    ADMITTED,
    AWAY_SECONDS,
    Admission,
    Admissions,
    Invitation,
    Register,
)
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.invitations import InvitationClaim, InvitationFile
from isthmus.programs.engine.machine.links import REDIAL_BEATS, HomeAddress
from isthmus.programs.loop_script import INVITE
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import ITS_OWN, LIVES_MAX, MachineOwner, Party
from isthmus.runtime.wire.control_client import HUNG_UP, ask
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.command_line import app
from tests.loops import run_until
from tests.programs.engine.machine.owner import Owner
from tests.programs.engine.machine.tunnel import Tunnel

ALPHA, BETA, GAMMA, OWN, SINGLE, MANY = (KeyPair.draw() for _ in range(6))
NOW = 1_800_000_000.0
CLUSTER = f'[keys]\nsecret = "a.key"\n[[machine]]\nname = "alpha"\naddress = "ADDRESS"\npublic_key = "{ALPHA.public}"\n'
NOWHERE = "tcp://127.0.0.1:9"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type commands in, and a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


# -- what a home admits ------------------------------------------------------------------------------------------------


def register(**invited: Invitation) -> Register:
    keys = {"single": SINGLE.public, "many": MANY.public}
    own = {ALPHA.public: Admission("alpha", admissions.OWN, is_operator=True)}
    return Register(own, {keys[name]: each for name, each in invited.items()})


def claim(held: Register, by: KeyPair, name: str, key: str, away: float = 0.0) -> float:
    """The seconds to wait, 0.0 if it is admitted."""
    return held.claim(by.public, name, key, away, NOW).wait_seconds


def refusal(held: Register, by: KeyPair, name: str, key: str, away: float = 99.0) -> str:
    before = held.text()
    with pytest.raises(ConfigError) as error:
        claim(held, by, name, key, away)
    assert held.text() == before
    return error.value.faults[0].found


def test_an_invitation_for_a_name_is_used_up_once_whatever_becomes_of_its_machine() -> None:
    held = register(single=Invitation("beta"))
    assert refusal(held, SINGLE, "gamma", BETA.public) == "'gamma'"
    assert claim(held, SINGLE, "beta", BETA.public) == 0.0
    assert held.machines[BETA.public] == Admission("beta", ADMITTED, by=SINGLE.public)
    assert claim(held, SINGLE, "beta", BETA.public) == 0.0  # The answer was lost, or the machine has its disk still.
    assert refusal(held, SINGLE, "beta", GAMMA.public) == "one that was used by beta"
    assert refusal(held, SINGLE, "gamma", GAMMA.public) == "'gamma'"


def test_one_for_many_admits_so_many_names_and_a_name_again_once_its_machine_is_away() -> None:
    held = register(many=Invitation("pod-", 2))
    keys = [KeyPair.draw().public for _ in range(4)]
    assert claim(held, MANY, "pod-a", keys[0]) == claim(held, MANY, "pod-b", keys[1]) == 0.0
    assert refusal(held, MANY, "pod-c", keys[2]) == "one that was used by pod-a, pod-b"
    assert claim(held, MANY, "pod-a", keys[2], away=12.0) == AWAY_SECONDS - 12.0
    assert keys[2] not in held.machines
    assert claim(held, MANY, "pod-a", keys[2], away=AWAY_SECONDS) == 0.0
    assert keys[0] not in held.machines
    assert claim(held, MANY, "pod-a", keys[3], away=float("inf")) == 0.0
    assert held.names_by(MANY.public) == ["pod-b", "pod-a"]
    assert refusal(held, MANY, "pod-c", keys[0]) == "one that was used by pod-b, pod-a"


def test_what_it_says_of_an_owner_holds_for_its_machines_as_long_as_they_are_admitted(place: Path) -> None:
    lab, own = MachineOwner("lab-b", 0.3), MachineOwner("", 0.25)
    assert admissions.keyring("alpha", MachineConfig((), ALPHA)) is not None
    with admissions.changing("alpha", "Testing") as held:
        held.invitations[SINGLE.public] = Invitation("beta", None, int(NOW) + 9, lab)
        held.invitations[MANY.public] = Invitation("pod-", 2, None, own)
        assert claim(held, SINGLE, "beta", BETA.public) == claim(held, MANY, "pod-a", GAMMA.public) == 0.0
        written = held.text()
    assert admissions.read("alpha").text() == written
    assert admissions.read("alpha").invitations[SINGLE.public].owner == lab
    assert admissions.expel("alpha", "pod-")  # The invitation is withdrawn, and its machine stays.
    ring = admissions.keyring("alpha", MachineConfig((), ALPHA))  # As at the next start.
    assert ring is not None
    assert ring.owners == {"beta": lab, "pod-a": own}
    admissions.admit("alpha", "beta", BETA.public, is_operator=True)
    admissions.expel("alpha", "pod-a")
    assert admissions.owners(admissions.read("alpha").machines) == {"beta": lab}


def test_all_machines_of_an_invitation_or_of_an_owner_are_one_party() -> None:
    lab = MachineOwner("lab-b", 0.3)
    held = register(many=Invitation("pod-", 3, None, ITS_OWN, 2), single=Invitation("beta", owner=lab))
    other = KeyPair.draw()
    held.invitations[other.public] = Invitation("lab-", 2, owner=lab)
    for by, name in ((MANY, "pod-a"), (MANY, "pod-b"), (SINGLE, "beta"), (other, "lab-x")):
        assert claim(held, by, name, KeyPair.draw().public) == 0.0
    held.machines[GAMMA.public] = Admission("gamma", ADMITTED)
    pod, of_lab = Party(f"invitation {MANY.public}", 3 * 2), Party("owner lab-b", 3 * admissions.ISLANDS)
    assert admissions.parties(held) == {"pod-a": pod, "pod-b": pod, "beta": of_lab, "lab-x": of_lab}
    del held.invitations[MANY.public]  # Withdrawn: for the names that it was used for.
    assert admissions.parties(held)["pod-a"] == Party(pod.name, 2 * admissions.ISLANDS)
    held.invitations[SINGLE.public] = Invitation("beta", owner=MachineOwner("lab-c"))  # Another's by now.
    assert admissions.parties(held)["beta"] == Party("owner lab-b", 3 * admissions.ISLANDS)


def test_an_invitation_takes_no_name_that_was_admitted_otherwise_and_makes_no_operator() -> None:
    held = register(many=Invitation("a", 9), single=Invitation("ab"))
    held.machines[BETA.public] = Admission("abc", ADMITTED, is_operator=True)
    assert refusal(held, MANY, "alpha", GAMMA.public) == "another key for 'alpha'"
    assert refusal(held, MANY, "abc", GAMMA.public) == "another key for 'abc'"
    assert refusal(held, MANY, "abcd", BETA.public) == "the key of 'abc'"
    assert claim(held, SINGLE, "ab", GAMMA.public) == 0.0
    assert refusal(held, MANY, "ab", OWN.public) == "another key for 'ab'"
    assert refusal(held, MANY, "ax", MANY.public) == repr(MANY.public)
    assert refusal(held, MANY, "ax", "x") == "'x'"
    assert admissions.operators(held.machines) == {ALPHA.public, BETA.public}


def test_an_expired_one_admits_none_but_those_that_it_has_admitted() -> None:
    held = register(single=Invitation("beta", None, int(NOW) + 1), many=Invitation("pod-", 2, int(NOW)))
    assert claim(held, SINGLE, "beta", BETA.public) == 0.0
    assert refusal(held, MANY, "pod-a", GAMMA.public) == "one that expired 0 s ago"
    held.machines[GAMMA.public] = Admission("pod-a", ADMITTED, by=MANY.public)
    assert claim(held, MANY, "pod-a", GAMMA.public) == 0.0


def test_an_expelled_machine_needs_another_invitation_and_its_name_stays_used(place: Path) -> None:
    ring = admissions.keyring("alpha", MachineConfig((), ALPHA))
    with admissions.changing("alpha", "Testing") as held:
        held.invitations[MANY.public] = Invitation("pod-", 1)
        assert claim(held, MANY, "pod-a", BETA.public) == 0.0
    assert admissions.expel("alpha", "pod-a")
    ring = admissions.keyring("alpha", MachineConfig((), ALPHA))  # As at the next start.
    assert ring is not None
    assert ring.invitations == {MANY.public}
    assert not ring.admits("pod-a")
    held = admissions.read("alpha")
    for key in (BETA.public, GAMMA.public):
        assert refusal(held, MANY, "pod-a", key) == "one that was"
    assert refusal(held, MANY, "pod-b", GAMMA.public) == "one that was used by pod-a"
    with admissions.changing("alpha", "Testing") as held:
        held.invitations[SINGLE.public] = Invitation("pod-a")
        assert claim(held, SINGLE, "pod-a", GAMMA.public) == 0.0
    assert "withdrawn the invitation for pod-" in typed("expel", "pod-").stdout  # Who is in stays in.
    held = admissions.read("alpha")
    assert list(held.invitations) == [SINGLE.public]
    assert "pod-a" in admissions.admitted(held.machines).values()


# -- isthmus invite ----------------------------------------------------------------------------------------------------


def test_an_invitation_is_written_before_any_daemon_runs_and_is_a_secret(place: Path) -> None:
    OWN.write(place, "a")
    (place / "cluster.toml").write_text(CLUSTER.replace("ADDRESS", "tcp://[::1]:9"))
    result = typed("invite", "beta", "--cluster", "cluster.toml", "--expires", "12h")
    assert result.exit_code == 0, result.stderr
    path = place / "beta.invite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file = InvitationFile.read(path)
    assert (file.home.name, file.home.address, file.home.public_key) == ("alpha", "tcp://[::1]:9", ALPHA.public)
    assert (file.name, file.prefix) == ("beta", None)
    assert file.pair.secret not in result.stdout
    (found,) = admissions.read("alpha").invitations.items()
    assert found[0] == file.pair.public
    assert found[1].count is None
    assert abs((found[1].until or 0) - time.time() - 12 * 3600) < 60
    assert file.pair.secret not in admissions.path_of("alpha").read_text()
    ring = admissions.keyring("alpha", MachineConfig((), ALPHA))
    assert ring is not None
    assert ring.invitations == {file.pair.public}


def test_typed_again_it_keeps_its_key_and_has_the_new_address(place: Path) -> None:
    ring = admissions.keyring("alpha", MachineConfig((), ALPHA))
    assert ring is not None
    words = "invite", "--count", "3", "--for", "pod-", "--to", "many", "--islands", "2"
    for address in (NOWHERE, "tcp://home.example:7400"):
        assert typed(*words, "--address", address).exit_code == 0
        file = InvitationFile.read(place / "many")
        assert file.home.address == address
        assert list(admissions.read("alpha").invitations) == [file.pair.public]
    assert admissions.read("alpha").invitations[file.pair.public] == Invitation("pod-", 3, islands=2)
    assert typed("invite", "beta", "--to", "many", "--address", NOWHERE).exit_code == 2
    assert InvitationFile.read(place / "many") == file
    assert stat.S_IMODE((place / "many").stat().st_mode) == 0o600


def test_an_owner_has_one_share_and_an_invitation_one_owner(place: Path) -> None:
    assert admissions.keyring("alpha", MachineConfig((), ALPHA)) is not None
    lab = "--owner", "lab-b", "--weight-share-max", "0.3", "--address", NOWHERE
    result = typed("invite", "beta", *lab)
    assert result.exit_code == 0, result.stderr
    assert "of --owner lab-b --weight-share-max 0.3" in result.stdout
    assert typed("invite", "gamma", *lab).exit_code == 0
    file = InvitationFile.read(place / "beta.invite")
    assert admissions.read("alpha").invitations[file.pair.public].owner == MachineOwner("lab-b", 0.3)
    with admissions.changing("alpha", "Testing") as held:
        assert claim(held, file.pair, "beta", BETA.public) == 0.0
    before = admissions.path_of("alpha").read_text()
    for name, *words in (
        ("delta", "--owner", "lab-b"),
        ("delta", "--owner", "lab-b", "--weight-share-max", "0.5"),
        ("delta", "--owner", "lab b"),
        ("delta", "--weight-share-max", "0"),
        ("delta", "--weight-share-max", "nan"),
        ("beta", "--owner", "lab-c"),
    ):
        refused = typed("invite", name, *words, "--address", NOWHERE)
        assert refused.exit_code == 2, words
        assert not (place / "delta.invite").exists()
    assert admissions.path_of("alpha").read_text() == before


def test_an_invitation_is_not_written_where_the_home_would_not_find_it(place: Path) -> None:
    OWN.write(place, "a")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        address = f"tcp://127.0.0.1:{elsewhere.getsockname()[1]}"
        (place / "cluster.toml").write_text(CLUSTER.replace("ADDRESS", address))
        refused = typed("invite", "beta", "--cluster", "cluster.toml")
        assert (refused.exit_code, "another state folder" in refused.stderr) == (2, True)
        assert not (place / "beta.invite").exists()
        assert admissions.keyring("alpha", MachineConfig((), ALPHA)) is not None  # As the daemon does when it starts.
        assert typed("invite", "beta", "--cluster", "cluster.toml").exit_code == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "found neither"),
        (("beta", "--count", "2", "--for", "b"), "found NAME, --count, --for"),
        (("--for", "b"), "found --for"),
        (("beta", "--count", "2"), "found NAME, --count"),
        (("a/b",), "found 'a/b'"),
        (("--count", "0", "--for", "b"), "found 0"),
        (("beta", "--islands", "0"), "found 0"),
        (("beta", "--expires", "soon"), "found 'soon'"),
        (("beta", "--expires", "0 s"), "found '0 s'"),
        (("beta", "--address", "home"), "found 'home'"),
        (("beta", "--address", "tcp://0.0.0.0:7400"), "found one that listens at tcp://0.0.0.0:7400"),
        (("beta",), "found one that is not running"),
        (("gamma", "--address", NOWHERE), "found one that is"),
        (("beta", "--address", NOWHERE, "--machine", "omega"), "found none so far"),
        (("beta", "--address", NOWHERE, "--to", "no/folder"), "No such file"),
        (("beta", "--address", NOWHERE, "--to", "/dev/null/file"), "Not a directory"),
        (("beta", "--address", NOWHERE, "--to", "."), "the invitation"),
    ],
)
def test_what_invite_refuses_leaves_nothing(place: Path, words: tuple[str, ...], found: str) -> None:
    assert admissions.keyring("alpha", MachineConfig((), ALPHA, {GAMMA.public: "gamma"})) is not None
    before = admissions.path_of("alpha").read_text()
    result = typed("invite", *words)
    assert result.exit_code == 2
    assert found in " ".join(result.stderr.split())
    assert os.listdir(place) == []
    assert admissions.path_of("alpha").read_text() == before


# -- isthmus join --invite ---------------------------------------------------------------------------------------------


def written(place: Path, address: str = NOWHERE, *, home: str = ALPHA.public, **kind: str) -> Path:
    """An invitation of alpha in a file."""
    path = place / "an.invite"
    for_whom = {"name": "beta", **kind} if "prefix" not in kind else kind
    lines = "".join(f'{key} = "{value}"\n' for key, value in {**for_whom, "secret": SINGLE.secret}.items())
    path.touch(0o600)
    path.write_text(f'[home]\nname = "alpha"\naddress = "{address}"\npublic_key = "{home}"\n[invitation]\n{lines}')
    return path


@pytest.mark.parametrize(
    ("change", "words", "found"),
    [
        (lambda path: path.chmod(0o640), (), "found one with mode 0640"),
        (lambda path: path.chmod(0o604), (), "found one with mode 0604"),
        (lambda path: path.unlink(), (), "an.invite"),
        (lambda path: path.write_text("[home]\n"), (), "found ['home']"),
        (lambda path: path.write_text(path.read_text().replace("secret", "public")), (), "public"),
        (lambda path: path.write_text(path.read_text() + 'prefix = "b"\n'), (), "found both or neither"),
        (lambda path: path.write_text(path.read_text().replace("tcp:", "udp:")), (), "found 'udp:"),
        (lambda path: None, ("--name", "gamma"), "found 'gamma'"),
        (lambda path: None, ("--server-key", "alpha.pub"), "expected none beside --invite"),
        (lambda path: None, (NOWHERE,), "found tcp://HOME:PORT, --invite"),
        (lambda path: None, ("--cluster", "cluster.toml"), "found --invite, --cluster"),
        (lambda path: None, ("--wait", "0"), "found 0"),
        (lambda path: None, ("--islands", "0"), "found 0"),
        (lambda path: None, ("--islands", f"{LIVES_MAX + 1}"), f"LIVES_MAX, found {LIVES_MAX + 1}"),
    ],
)
def test_what_join_refuses_starts_and_leaves_nothing(
    place: Path, change: Callable[[Path], Any], words: tuple[str, ...], found: str
) -> None:
    change(written(place))
    before = sorted(os.listdir(place))
    result = typed("join", "--invite", "an.invite", *words)
    assert result.exit_code == 2
    assert found in " ".join(result.stderr.split())
    assert SINGLE.secret not in result.stderr
    assert sorted(os.listdir(place)) == before
    assert not (place.parent / "state").exists()


@pytest.mark.parametrize("is_admitted", [False, True])
def test_a_machine_that_was_not_admitted_leaves_no_key_that_it_made(
    place: Path, monkeypatch: pytest.MonkeyPatch, is_admitted: bool
) -> None:
    def end(name: str, endpoint: str, permitted: MachineConfig, services: Any, metrics: Any) -> int:
        assert admissions.keyring(name, permitted) is not None
        services[-1].is_admitted = is_admitted
        raise ConfigError("Joining", "an invitation", "one that is used", "Have one made.")

    monkeypatch.setattr(serve, "run", end)
    written(place)
    assert typed("join", "--invite", "an.invite").exit_code == 2
    assert sorted(os.listdir(place)) == ["an.invite", *(["beta.key", "beta.pub"] if is_admitted else [])]
    assert admissions.path_of("beta").exists() == is_admitted
    if not is_admitted:
        BETA.write(place, "beta")
    assert typed("join", "--invite", "an.invite").exit_code == 2
    assert (place / "beta.key").exists()  # It was there before.


def test_an_invitation_in_the_environment_counts_where_no_home_is_named_and_no_child_inherits_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Any, bool]] = []

    def run(name: str, endpoint: str, permitted: MachineConfig, services: Any, metrics: Any) -> int:
        joining = services[-1]
        seen.append((name, joining._located(), INVITE in os.environ))
        return 0

    monkeypatch.setattr(serve, "run", run)
    text = written(place, "tcp://127.0.0.1:7").read_text()
    written(place)
    for words in ([], ["--invite", "an.invite"], [NOWHERE, "--name", "gamma"]):
        monkeypatch.setenv(INVITE, text)
        assert typed("join", *words).exit_code == 0
    assert seen == [
        ("beta", "tcp://127.0.0.1:7", False),
        ("beta", NOWHERE, False),
        ("gamma", NOWHERE, False),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "found nothing"), ("beta.invite", "Expected '=' after a key"), ("home = 1", "found ['home']")],
)
def test_what_is_no_invitation_in_the_environment_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: str
) -> None:
    monkeypatch.setenv(INVITE, text)
    result = typed("join")
    assert result.exit_code == 2
    words = " ".join(result.stderr.split())
    assert f"the invitation in {INVITE}" in words
    assert found in words
    assert os.listdir(place) == []


def test_the_name_of_a_machine_is_that_of_its_invitation_or_given_or_its_own(place: Path) -> None:
    one, many = InvitationFile.read(written(place)), InvitationFile.read(written(place, prefix="pod-"))
    assert one.name_for(None, "host") == one.name_for("beta", "host") == "beta"
    assert many.name_for(None, "pod-7") == "pod-7"
    assert many.name_for(None, "host") == "pod-host"
    assert many.name_for("pod-x", "host") == "pod-x"
    for name, host in (("host", ""), (None, "a b")):
        with pytest.raises(ConfigError, match="Choosing the name"):
            many.name_for(name, host)


class Home:
    """The daemon of alpha, which follows its file of admissions."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.loop = uvloop.new_event_loop()
        ring = admissions.keyring("alpha", MachineConfig((), ALPHA))
        assert ring is not None
        self.admissions = Admissions()
        self.daemon = MachineDaemon(
            self.loop,
            "alpha",
            "tcp://127.0.0.1:*",
            MachineConfig((), ALPHA, runs=folder),
            ring,
            folder,
            Owner(self.lines),
            [self.admissions],
        )
        self.replaced = list[str]()
        self._replace, self.daemon.neighbours.replace = self.daemon.neighbours.replace, self.replace  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def replace(self, name: str) -> None:
        self.replaced.append(name)
        self._replace(name)

    def do(self, call: Callable[[], Any]) -> Any:
        """What a call gives on the loop of the daemon."""
        done: Future[Any] = Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result(call()))
        return done.result(20)

    def invite(self, pair: KeyPair, terms: Invitation) -> None:
        """Have it know an invitation."""

        def known() -> None:
            with admissions.changing("alpha", "Testing") as held:
                held.invitations[pair.public] = terms
            self.admissions._look()

        self.do(known)

    def answer(self, pair: KeyPair, message: dict[str, Any], seconds_max: float = 20.0) -> Any:
        """The answer to whoever has these keys."""
        return ask(self.daemon.endpoint, message, seconds_max, keys=Keyring(pair), server_key=ALPHA.public)

    def close(self) -> None:
        self.do(self.admissions.close)
        self.do(self.daemon.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


CLAIM = {"type": "claim", "name": "beta", "key": BETA.public}
LINK = {"type": "link", "name": "beta", "instance": "1", "runs": [], "follows": [], "islands": 1}


def test_what_an_invitation_admits_is_durable_and_followed_when_it_is_answered(home: Home) -> None:
    home.invite(SINGLE, Invitation("beta", owner=MachineOwner("lab-b")))
    assert home.answer(SINGLE, CLAIM)["type"] == "admitted"
    assert home.do(lambda: home.daemon.keys.owners) == {"beta": MachineOwner("lab-b")}
    assert admissions.admitted(admissions.read("alpha").machines)[BETA.public] == "beta"
    assert home.answer(BETA, LINK)["type"] == "linked"  # At once, not a quarter of a second later.
    refused = home.answer(SINGLE, {**CLAIM, "key": GAMMA.public})
    assert (refused["type"], refused["faults"][0][2]) == ("refused", "one that was used by beta")
    with pytest.raises(ConfigError, match="found that this key is not"):
        home.answer(GAMMA, LINK)


def test_what_could_not_be_made_durable_is_refused_and_admits_nobody(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError("No space left on device")

    home.invite(SINGLE, Invitation("beta"))
    with monkeypatch.context() as patch:
        patch.setattr(admissions, "write_bytes", full)
        assert "No space left" in home.answer(SINGLE, CLAIM)["faults"][0][2]
    assert not home.do(lambda: home.daemon.keys.admits("beta"))
    assert home.answer(SINGLE, {**CLAIM, "key": GAMMA.public})["type"] == "admitted"


def test_an_invitation_may_claim_and_nothing_else_used_or_not(home: Home) -> None:
    home.invite(SINGLE, Invitation("beta"))
    for _ in range(2):
        for kind in ("link", "leave", "report", "response", "machine", "take", "stop", "end", "expel", "call", "x"):
            assert home.answer(SINGLE, {**LINK, "type": kind}, 0.02) is None
        assert home.answer(SINGLE, CLAIM)["type"] == "admitted"
    assert home.do(lambda: home.daemon._server.refused["invitation"]) >= 11
    assert not home.do(lambda: home.daemon.neighbours.links.is_up("beta"))
    # An admitted machine, even the home's own key, has no claim.
    assert home.answer(BETA, CLAIM)["type"] == "refused"
    assert home.answer(ALPHA, CLAIM)["type"] == "refused"


@pytest.mark.parametrize("message", [{}, {"name": 7, "key": None}, {"name": "a\nb", "key": "x"}, {"name": "beta"}])
def test_an_absurd_claim_is_refused_and_the_daemon_goes_on(home: Home, message: dict[str, Any]) -> None:
    home.invite(SINGLE, Invitation("beta"))
    before = admissions.path_of("alpha").read_text()
    assert home.answer(SINGLE, {"type": "claim", **message})["type"] == "refused"
    assert admissions.path_of("alpha").read_text() == before
    assert home.answer(SINGLE, CLAIM)["type"] == "admitted"


def test_of_claims_at_once_exactly_one_wins(home: Home) -> None:
    home.invite(SINGLE, Invitation("beta"))
    keys, answers = [KeyPair.draw().public for _ in range(8)], list[Any]()
    claims = [{**CLAIM, "key": key} for key in keys]
    threads = [threading.Thread(target=lambda each=each: answers.append(home.answer(SINGLE, each))) for each in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each["type"] for each in answers) == ["admitted", *["refused"] * 7]
    assert len(set(keys) & admissions.admitted(admissions.read("alpha").machines).keys()) == 1


def test_a_name_comes_back_with_another_key_and_the_former_one_is_expelled(home: Home) -> None:
    home.invite(MANY, Invitation("b", 1))
    home.do(lambda: setattr(home.daemon.neighbours.links, "_opened_at", time.monotonic() - AWAY_SECONDS))
    assert home.answer(MANY, CLAIM)["type"] == "admitted"
    again = {**CLAIM, "key": GAMMA.public}
    assert home.answer(MANY, again)["type"] == "wait"  # It has not linked itself yet.
    assert home.answer(BETA, LINK)["type"] == "linked"
    waits = home.answer(MANY, again)
    assert waits["type"] == "wait"
    assert AWAY_SECONDS - 5 < waits["seconds"] <= AWAY_SECONDS
    home.do(lambda: home.daemon.neighbours.links.drop("beta"))  # As when it leaves.
    assert home.answer(MANY, again)["type"] == "admitted"
    assert home.replaced == ["beta"]
    assert home.answer(GAMMA, {**LINK, "instance": "2"})["type"] == "linked"
    with pytest.raises(ConfigError, match="found that this key is not"):
        home.answer(BETA, LINK)


def test_a_machine_that_is_called_by_a_home_that_does_not_admit_it_tells_so(home: Home, tmp_path: Path) -> None:
    lines: list[str] = []
    loop = uvloop.new_event_loop()
    gamma = MachineDaemon(
        loop,
        "gamma",
        "tcp://127.0.0.1:*",
        MachineConfig((), GAMMA),
        Keyring(GAMMA, {ALPHA.public: "alpha"}, "gamma"),
        tmp_path / "gamma",
        Owner(lines),
    )
    gamma.neighbours.link(HomeAddress("alpha", home.daemon.endpoint, ALPHA.public))
    run_until(loop, lambda: bool(lines))
    assert lines[0].endswith(f"isthmus admit gamma {GAMMA.public}")
    gamma.close()
    loop.close()


def test_a_home_that_has_come_up_elsewhere_is_the_same_home(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has its former address, as the note of a daemon before this one, means the same link."""
    monkeypatch.setattr(links, "LINK_SECONDS", 0.02)
    home.do(lambda: admissions.admit("alpha", "beta", BETA.public))
    home.do(home.admissions._look)
    loop = uvloop.new_event_loop()
    beta = MachineDaemon(
        loop,
        "beta",
        "tcp://127.0.0.1:*",
        MachineConfig((), BETA),
        Keyring(BETA, {}, "beta"),
        tmp_path / "beta",
        Owner(),
    )
    former = HomeAddress("alpha", NOWHERE, ALPHA.public)
    link = beta.neighbours.join(former, 1)
    link.locate_by(lambda: home.daemon.endpoint)
    link._silent_beats = REDIAL_BEATS - 1
    run_until(loop, lambda: link.is_up)
    assert link.home.address == home.daemon.endpoint
    assert beta.neighbours.link(former) is link
    assert beta.neighbours._described(link.home)["islands"] == 1
    beta.neighbours._part_from(link)
    assert beta.neighbours._homes == {}
    beta.close()
    loop.close()


class Machine:
    """A machine that claims, on a loop of its own; `outcome` is True once it is admitted, or why it was refused."""

    def __init__(self, path: Path, name: str = "beta", own: str = BETA.public) -> None:
        self.loop = uvloop.new_event_loop()
        self.outcome: Any = None
        self.claim = InvitationClaim(
            self.loop,
            InvitationFile.read(path),
            name,
            own,
            locate=lambda: InvitationFile.read(path).home.address,
            on_admitted=lambda: setattr(self, "outcome", True),
            on_refused=lambda error: setattr(self, "outcome", error.faults[0].found),
        )

    def until_over(self) -> Any:
        run_until(self.loop, lambda: self.outcome is not None)
        return self.outcome

    def close(self) -> None:
        self.claim.close()
        self.loop.close()


@pytest.fixture
def machine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    monkeypatch.setattr(invitations, "LINK_SECONDS", 0.02)
    monkeypatch.setattr(invitations, "REDIAL_BEATS", 2)
    machines: list[Machine] = []

    def make(path: Path, *more: str) -> Machine:
        machines.append(Machine(path, *more))
        return machines[-1]

    yield make
    for each in machines:
        each.close()


def test_a_machine_waits_for_its_home_and_finds_it_where_its_file_says_by_then(
    home: Home, machine: Callable[..., Machine], place: Path
) -> None:
    home.invite(SINGLE, Invitation("beta"))
    joining = machine(written(place))
    run_until(joining.loop, lambda: joining.claim._silent_beats > 3)
    assert joining.outcome is None
    written(place, home.daemon.endpoint.replace("127.0.0.1", "localhost"))
    assert joining.until_over() is True


def test_a_machine_waits_at_a_tunnel_that_leads_nowhere_yet(
    home: Home, machine: Callable[..., Machine], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitations, "CUTS_MAX", 1)
    home.invite(SINGLE, Invitation("beta"))
    with closing(Tunnel()) as tunnel:
        joining = machine(written(place, tunnel.address))
        run_until(joining.loop, lambda: joining.claim.unanswered == HUNG_UP)
        assert joining.outcome is None
        tunnel.target = home.daemon.endpoint
        assert joining.until_over() is True
        assert joining.claim.unanswered == ""


def test_a_home_that_comes_up_while_the_machine_looks_who_hangs_up_is_no_other_home(
    home: Home, machine: Callable[..., Machine], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitations, "CUTS_MAX", 1)
    home.invite(SINGLE, Invitation("beta"))
    with closing(Tunnel()) as tunnel:
        look = invitations.check_greeting

        def after_it_came_up(endpoint: str, seconds_max: float) -> None:
            tunnel.target = home.daemon.endpoint
            look(endpoint, seconds_max)

        monkeypatch.setattr(invitations, "check_greeting", after_it_came_up)
        assert machine(written(place, tunnel.address)).until_over() is True


@pytest.mark.parametrize(
    ("of", "terms", "found"),
    [
        ("alpha", None, "one that is not known there: withdrawn, or of another home"),
        ("gamma", Invitation("beta"), "a machine with another key: not the home of this invitation"),
        ("alpha", Invitation("gamma"), "'beta'"),
        ("alpha", Invitation("beta", None, 1), "one that expired"),
    ],
)
def test_a_machine_is_told_why_it_is_refused(
    home: Home,
    machine: Callable[..., Machine],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    of: str,
    terms: Invitation | None,
    found: str,
) -> None:
    monkeypatch.setattr(invitations, "CUTS_MAX", 1)
    if terms is not None:
        home.invite(SINGLE, terms)
    key = {"alpha": ALPHA, "gamma": GAMMA}[of].public
    assert machine(written(place, home.daemon.endpoint, home=key)).until_over().startswith(found)


def test_a_machine_waits_for_a_silent_namesake_and_gives_up_beside_a_live_one(
    home: Home, machine: Callable[..., Machine], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitations, "UP_SECONDS", 0.1)
    home.invite(SINGLE, Invitation("b", 1))
    assert home.answer(SINGLE, CLAIM)["type"] == "admitted"
    path = written(place, home.daemon.endpoint, prefix="b")
    waiting = machine(path, "beta", GAMMA.public)
    run_until(waiting.loop, lambda: bool(waiting.claim.waiting))
    home.do(lambda: home.daemon.neighbours.links._signs.update(beta=time.monotonic() - AWAY_SECONDS + 0.2))
    assert waiting.until_over() is True
    rival = machine(path, "beta", OWN.public)
    beats = threading.Event()

    def beat() -> None:
        while not beats.wait(0.02):
            home.answer(GAMMA, LINK)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert rival.until_over() == "two"
    finally:
        beats.set()
        thread.join()
