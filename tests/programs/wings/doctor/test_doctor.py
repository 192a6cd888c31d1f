"""`isthmus doctor` on this machine: its options, its measurements, and one whole examination beside a daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from isthmus.programs.engine.machine.invitations import InvitationFile
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.wings.doctor import others, this_machine
from isthmus.runtime.system.processes import signal_masks, started_at
from isthmus.runtime.wire.security_keys import KeyPair
from tests.patience import wait_for
from tests.programs.engine.machine.daemon_place import Place

CLUSTER = """
[[machine]]
name = "alpha"
address = "{address}"
[[machine]]
name = "beta"
address = "tcp://127.0.0.1:{closed}"
roles = ["learner"]
[run]
learners = 2
"""


def test_the_machine_that_is_meant_has_to_be_in_the_file(tmp_path: Path, typed: Callable[..., Result]) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(address="tcp://127.0.0.1:7400", closed=7401))
    both = ("--cluster", "cluster.toml", "--invite", "cluster.toml")
    for words in (
        both,
        ("--invite", "cluster.toml"),
        ("--for", "alpha"),
        ("--cluster", "cluster.toml", "--for", "alpa"),
        ("--cluster", "no.toml"),
    ):
        refused = typed(tmp_path, "doctor", *words)
        assert refused.exit_code == 2, words
        assert not refused.stdout
    assert os.listdir(tmp_path) == ["cluster.toml"]


def test_a_way_is_open_or_refused_and_an_address_is_own_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        way = others.way_to("127.0.0.1", port)
        assert way.seconds is not None
        assert way.is_open
    closed = others.way_to("127.0.0.1", port)
    assert (closed.seconds, closed.is_refused, closed.is_open) == (None, True, True)
    assert others.is_own("127.0.0.1")
    assert not others.is_own("192.0.2.1")  # TEST-NET-1 (RFC 5737).
    assert others.resolved("127.0.0.1") == (("127.0.0.1",), "")
    assert others.resolved("nowhere.invalid")[0] == ()


def test_signals_that_a_parent_left_are_named() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        masks = signal_masks()
    finally:
        signal.signal(signal.SIGHUP, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert "SIGTERM" in masks.blocked
    assert "SIGHUP" in masks.ignored
    assert "SIGTERM" not in signal_masks().blocked


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    facts = this_machine.disk(tmp_path / "runs" / "new")
    assert facts.folder == str(tmp_path)
    assert facts.free_bytes
    assert facts.bytes_per_second
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the number of a process that opens devices, which never opens."""
    number = tmp_path / "number"
    text = f"import os, time\nopen({str(number)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
    tmp_path.joinpath("jax.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return number


@pytest.mark.process
def test_devices_that_do_not_open_are_given_up(stuck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "JAX_SECONDS_MAX", 0.1)
    opening = this_machine.OpeningDevices()
    wait_for(lambda: stuck.exists() and bool(stuck.read_text()))
    assert opening.facts().refusal == "no device within 0 s"
    assert started_at(int(stuck.read_text())) is None


@pytest.mark.process
def test_a_doctor_that_is_killed_leaves_no_process_that_opens_devices(stuck: Path) -> None:
    of = "isthmus.programs.wings.doctor.this_machine"
    doctor = subprocess.Popen([sys.executable, "-c", f"import {of} as it, time; it.OpeningDevices(); time.sleep(1000)"])
    try:
        wait_for(lambda: stuck.exists() and bool(stuck.read_text()))
    finally:
        doctor.kill()
        doctor.wait()
    wait_for(lambda: started_at(int(stuck.read_text())) is None)


@pytest.mark.further
@pytest.mark.process
def test_a_machine_is_examined_beside_its_daemon(tmp_path: Path, typed: Callable[..., Result]) -> None:
    place = Place(tmp_path)
    try:
        place.begin("daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:*", stdout=None)
        notes = tmp_path / "state" / "isthmus" / "daemons" / "machines" / "alpha.json"
        address = json.loads(place.wait_for(lambda: notes.exists() and notes.read_text()))["endpoint"]
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed = server.getsockname()[1]
        (tmp_path / "cluster.toml").write_text(CLUSTER.format(address=address, closed=closed))
        answer = typed(tmp_path, "doctor", "--cluster", "cluster.toml", "--json")
        document = json.loads(answer.stdout)
        assert list(document) == ["checks"]
        checks = {check["name"]: check for check in document["checks"]}
        assert all(list(check) == ["name", "state", "found", "expected", "do"] for check in document["checks"])
        assert checks["alpha"]["state"] == "ok"
        assert checks["beta"]["state"] == "note"  # Nothing listens yet.
        assert checks["devices"]["state"] == "ok"
        assert "request" not in checks
        assert answer.exit_code == any(check["state"] == "fails" for check in document["checks"])
        pair = KeyPair.make()
        home = HomeAddress("alpha", address, pair.public)
        (tmp_path / "beta.invite").write_text(InvitationFile(home, pair, "beta", None).text())
        (tmp_path / "beta.invite").chmod(0o600)
        answer = typed(tmp_path, "doctor", "--invite", "beta.invite", "--json")
        checks = {check["name"]: check["state"] for check in json.loads(answer.stdout)["checks"]}
        assert checks["alpha"] == "ok"
    finally:
        place.close()
