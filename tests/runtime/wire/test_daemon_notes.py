"""The socket of a run's daemon: processes of its user reach it, others do not, and nothing of it is left."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import uvloop

from isthmus.runtime.system.files import write_json
from isthmus.runtime.wire import daemon_notes
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.daemon_notes import HERE, PRIVATE, DaemonNote, forget, note_of, private_endpoint, publish

STRANGER = 65534
"""The user `nobody`."""
REFUSED = 3
AS_STRANGER = f"""
import os, socket, sys
stranger, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([])
os.setgid(stranger)
os.setuid(stranger)
try:
    socket.socket(socket.AF_UNIX).connect(path)
except PermissionError:
    sys.exit({REFUSED})
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlServer]:
    monkeypatch.setattr(daemon_notes.tempfile, "tempdir", "/tmp")  # That of a test may be too long for a socket.
    loop = uvloop.new_event_loop()
    server = ControlServer(loop, PRIVATE, lambda peer, message: None)
    yield server
    server.close()
    loop.close()


def path_of(endpoint: str) -> Path:
    return Path(endpoint.removeprefix("ipc://"))


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except PermissionError:
            return False
    return True


def test_only_its_user_passes_to_the_socket(server: ControlServer) -> None:
    path = path_of(server.endpoint)
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.parent.stat().st_uid == os.geteuid()
    assert connects(path)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stranger_is_refused(server: ControlServer) -> None:
    command = [sys.executable, "-I", "-c", AS_STRANGER, str(STRANGER), str(path_of(server.endpoint))]
    assert subprocess.run(command, check=False, timeout=60).returncode == REFUSED


def test_nothing_is_left(server: ControlServer) -> None:
    folder = path_of(server.endpoint).parent
    assert folder.is_dir()
    server.close()
    assert not folder.exists()


@pytest.mark.parametrize("what", ["socket", "folder", "nothing"])
def test_a_deleted_socket_is_made_again_at_the_same_path_for_its_user_alone(server: ControlServer, what: str) -> None:
    path = path_of(server.endpoint)
    before = path.stat().st_ino
    if what == "folder":
        forget(server.endpoint)
    elif what == "socket":
        path.unlink()
    server.restore()
    assert connects(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert what != "nothing" or path.stat().st_ino == before
    server.close()
    assert not path.parent.exists()


def test_no_socket_is_made_in_a_folder_that_others_may_enter(server: ControlServer) -> None:
    path = path_of(server.endpoint)
    path.unlink()
    path.parent.chmod(0o777)
    server.restore()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("is_dead", [True, False])
def test_the_socket_of_a_daemon_that_was_killed_is_removed_by_the_next(tmp_path: Path, is_dead: bool) -> None:
    """One that lives is that of a run of whose folder this is a copy."""
    former, endpoint = private_endpoint(), private_endpoint()
    note = replace(DaemonNote.mine(former, "local"), **({"started": 1} if is_dead else {}))
    write_json(tmp_path / HERE, asdict(note))
    publish(tmp_path, endpoint, "local")
    assert note_of(tmp_path) == DaemonNote.mine(endpoint, "local")
    assert path_of(former).parent.exists() == (not is_dead)
    for each in (former, endpoint):
        forget(each)
        assert not path_of(each).parent.exists()


@pytest.mark.parametrize("form", ["ipc://{}/isthmus-a/other", "ipc://{}/b/daemon", "tcp://127.0.0.1:7400", "ipc://"])
def test_what_is_no_private_endpoint_is_left_alone(tmp_path: Path, form: str) -> None:
    for name in ("isthmus-a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "isthmus-b").symlink_to(tmp_path / "b")
    forget(form.format(tmp_path))
    forget(f"ipc://{tmp_path}/isthmus-b/daemon")
    assert {path.name for path in tmp_path.iterdir()} == {"isthmus-a", "isthmus-b", "b"}
    assert (tmp_path / "b").is_dir()


@pytest.mark.parametrize("wrong", ["mode", "parent", "contents", "no socket"])
def test_a_folder_that_is_not_as_ours_are_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A run folder is somebody's word: the note in it may name any folder."""
    monkeypatch.setattr(daemon_notes.tempfile, "tempdir", "/tmp")
    endpoint = private_endpoint()
    path = path_of(endpoint)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    if wrong == "mode":
        path.parent.chmod(0o755)
    elif wrong == "parent":
        (tmp_path / path.parent.name).mkdir(mode=0o700)
        path = path.parent.rename(tmp_path / path.parent.name / path.parent.name) / path.name
        endpoint = f"ipc://{path}"
    elif wrong == "contents":
        (path.parent / "mine").write_bytes(b"mine")
    else:
        path.unlink()
        path.write_bytes(b"mine")
    forget(endpoint)
    assert path.parent.is_dir()
    assert wrong == "contents" or path.exists()
    shutil.rmtree(path.parent)


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(daemon_notes.tempfile, "tempdir", str(deep))
    with pytest.raises(OSError, match="Set TMPDIR"):
        private_endpoint()
    assert list(deep.iterdir()) == []
