"""Keys as text, in files and on a ring; and which endpoints need them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.security_keys import KeyPair, Keyring


def test_a_key_is_read_as_it_was_written(tmp_path: Path) -> None:
    pair = KeyPair.make()
    secret, public = pair.write(tmp_path, "alpha")
    assert (secret.name, public.name) == ("alpha.key", "alpha.pub")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert public.read_text() == f"{pair.public}\n"
    assert security_keys.read_pair(secret) == pair
    assert (
        security_keys.read_public("alpha.pub", tmp_path, "")
        == security_keys.read_public(pair.public, tmp_path, "")
        == pair.public
    )
    assert pair.secret not in repr(pair)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    KeyPair.make().write(tmp_path, "alpha")
    before = (tmp_path / "alpha.key").read_text()
    (tmp_path / "alpha.pub").unlink()
    with pytest.raises(
        ConfigError, match=r"expected neither alpha.key nor alpha.pub in this folder, found .*alpha.key\."
    ):
        KeyPair.make().write(tmp_path, "alpha")
    assert (tmp_path / "alpha.key").read_text() == before
    assert not (tmp_path / "alpha.pub").exists()


def test_a_public_key_needs_no_quotes() -> None:
    for _ in range(3):
        public = KeyPair.make().public
        assert shlex.quote(public) == public
        assert not public.startswith("-")
        assert security_keys.is_key(public)


@pytest.mark.parametrize("text", ["", "a" * 39, "a" * 41, "a" * 39 + " ", "a" * 39 + "~", "#" * 40, "ä" * 40])
def test_what_is_no_key(text: str) -> None:
    assert not security_keys.is_key(text)


PUBLIC = KeyPair.make()


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("secret {0.secret}", 0o640, "found one with mode 0640"),
        ("secret {0.secret}", 0o604, "found one with mode 0604"),
        ("{0.public}", 0o600, "found a public key"),
        ("secret something", 0o600, "found 16 characters that are none"),
        ("", 0o600, "found nothing"),
    ],
)
def test_a_secret_key_that_is_none(tmp_path: Path, text: str, mode: int, told: str) -> None:
    path = tmp_path / "alpha.key"
    path.write_text(text.format(KeyPair.make()))
    path.chmod(mode)
    with pytest.raises(ConfigError) as error:
        security_keys.read_pair(path)
    assert told in str(error.value)
    assert PUBLIC.secret not in str(error.value)


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found no file"):
        security_keys.read_pair(tmp_path / "alpha.key")
    with pytest.raises(ConfigError, match="found no file"):
        security_keys.read_public("alpha.pub", tmp_path, "")
    (tmp_path / "folder.pub").mkdir()
    with pytest.raises(ConfigError, match="expected a file that can be read"):
        security_keys.read_public("folder.pub", tmp_path, "")


def test_a_secret_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    pair = KeyPair.make()
    pair.write(tmp_path, "alpha")
    with pytest.raises(ConfigError, match=r"found a secret one.*\n.*Name alpha.pub") as error:
        security_keys.read_public("alpha.key", tmp_path, "")
    assert pair.secret not in str(error.value)


A, B, C = "a" * 40, "b" * 40, "c" * 40


def test_a_ring_admits_until_it_expels() -> None:
    ring = Keyring(PUBLIC, {A: "beta"}, "alpha")
    assert (ring.name_of(A), ring.name_of(B), ring.name_of(None), ring.name_of(PUBLIC.public)) == (
        "beta", None, None, "alpha",
    )  # fmt: skip
    ring.admit("gamma", B)
    ring.admit("gamma", B)
    assert ring.admitted == {A: "beta", B: "gamma", PUBLIC.public: "alpha"}
    assert (ring.expel("beta"), ring.expel("beta"), ring.expel("alpha")) == (True, False, False)
    assert (ring.admits("beta"), ring.admits("alpha"), ring.name_of(A)) == (False, True, None)
    ring.admit("beta", C)
    assert (ring.name_of(A), ring.name_of(C)) == (None, "beta")
    ring.replace({A: "delta"})
    assert ring.admitted == {A: "delta", PUBLIC.public: "alpha"}


def test_a_key_has_one_name_and_a_name_one_key() -> None:
    ring = Keyring(PUBLIC, {A: "beta"}, "alpha")
    for name, key, told in (
        ("gamma", A, "found the key of 'beta'"),
        ("beta", B, "found another key for 'beta'"),
        ("beta", PUBLIC.public, "found the key of 'alpha'"),
        ("alpha", B, "found another key for 'alpha'"),
    ):
        with pytest.raises(ConfigError, match=told):
            ring.admit(name, key)
    assert ring.admitted == {A: "beta", PUBLIC.public: "alpha"}


@pytest.mark.parametrize(
    ("endpoint", "is_loopback"),
    [
        ("tcp://127.0.0.1:7400", True),
        ("tcp://127.9.9.9:*", True),
        ("tcp://[::1]:7400", True),
        ("tcp://localhost:7400", True),
        ("inproc://here", True),
        ("tcp://0.0.0.0:7400", False),
        ("tcp://*:7400", False),
        ("tcp://[::]:7400", False),
        ("tcp://10.0.0.7:7400", False),
        ("tcp://127.0.0.1.example:7400", False),
        ("tcp://eth0:7400", False),
        ("tcp://eth0;127.0.0.1:7400", False),
    ],
)
def test_off_loopback_needs_keys(endpoint: str, is_loopback: bool) -> None:
    assert security_keys.is_loopback(endpoint) == is_loopback
    security_keys.check_open(endpoint, Keyring(PUBLIC), "Listening")
    if is_loopback:
        security_keys.check_open(endpoint, None, "Listening")
    else:
        with pytest.raises(ConfigError, match="isthmus keygen"):
            security_keys.check_open(endpoint, None, "Listening")
    with pytest.raises(ConfigError, match="expected the public key of the machine that listens there, found none"):
        security_keys.check_server(endpoint, Keyring(PUBLIC), "", "Dialling")
