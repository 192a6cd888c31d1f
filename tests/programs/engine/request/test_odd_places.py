"""Tasks in odd places, and tasks that change the process that imports them: paths, names, folder and umask."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus import Task
from isthmus.programs.engine.machine.names import machines_folder
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.engine.request.new_folder import choose
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.run.room_for_hosts import COMPILER, check_compiler, check_loopback
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import cache_folder

SOURCE = """
import os
import jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jnp.ones((4, 1))}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"]) ** 2)
def batch(at): return {"x": at.rng().normal(size=(8, 4)).astype(np.float32)}
task = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.sgd(0.1))
"""


@pytest.fixture
def kept() -> Iterator[None]:
    """Puts back what a task changes."""
    folder, umask = Path.cwd(), os.umask(0o022)
    yield
    os.chdir(folder)
    os.umask(umask)


@pytest.mark.parametrize(
    ("text", "where", "rest"),
    [
        ("mine.py:task", "mine.py", "task"),
        ("/a:b/mine.py:task", "/a:b/mine.py", "task"),
        ("/a (b): c.py:d/mine.py:make(lr = 0.1)", "/a (b): c.py:d/mine.py", "make(lr = 0.1)"),
        ('mine.py:make(file = "other.py:task")', "mine.py", 'make(file = "other.py:task")'),
        ("package.module:task", "package.module", "task"),
        ("nothing", "nothing", ""),
    ],
)
def test_a_colon_in_a_folder_is_part_of_the_path(text: str, where: str, rest: str) -> None:
    assert reference.split(text) == (where, rest)


def test_a_task_below_a_folder_with_a_colon_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "below_a_colon.py").write_text(SOURCE)
    text = reference.absolute("below_a_colon.py:task", folder)
    assert isinstance(reference.load(text, "Loading"), Task)


@pytest.mark.usefixtures("kept")
def test_what_a_task_does_to_folder_and_umask_does_not_touch_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "wanderer.py").write_text(f"{SOURCE}\nos.chdir({str(there)!r}); os.umask(0o777)\n")
    monkeypatch.chdir(here)
    folder = prepare(task="wanderer.py:task", run={"tokens": 10_000}).to_train().with_folder().run_dir
    assert Path.cwd() == there
    assert folder.parent == here / "runs"
    assert (here / "runs" / "latest").resolve() == folder
    assert not list(there.iterdir())
    assert [path.stat().st_mode & 0o777 for path in (here / "runs", folder / "config.toml")] == [0o755, 0o644]


def test_a_path_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xff")
    with pytest.raises(ConfigError, match="a path in UTF-8"):
        choose(folder, "program", None)  # type: ignore[arg-type]
    folder.mkdir()
    (folder / "in_bad.py").write_text(SOURCE)
    with pytest.raises(ConfigError, match="a path in UTF-8"):
        reference.load(f"{folder}/in_bad.py:task", "Loading")


def test_a_user_without_a_home_has_no_cache_and_a_state_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(uid: int) -> Any:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", none)
    assert cache_folder("xla") is None
    assert f"isthmus-state-{os.getuid()}" in machines_folder().parts


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("__metadata__",), "which safetensors has for itself"),
        (("w", "w[0:128]"), "which would be rows of another tensor"),
        ((os.fsdecode(b"bad\xff"),), "which is not Unicode text"),
    ],
)
def test_a_name_under_which_no_model_could_be_read_back_is_refused(names: tuple[str, ...], why: str) -> None:
    def init(key: Any) -> Any:
        return {name: jnp.ones((4, 1)) for name in names}

    def loss(params: Any, batch: Any) -> Any:
        return sum(jnp.mean((batch["x"] @ params[name]) ** 2) for name in names)

    task = Task(
        init,
        loss,
        lambda at: {"x": at.rng().normal(size=(8, 4)).astype(np.float32)},
        tokens_per_batch=8,
        optimizer=optax.sgd(0.1),
    )
    with pytest.raises(ConfigError, match="stored and read back") as caught:
        layout(task)
    assert why in str(caught.value)


def test_a_machine_without_loopback_is_told_so_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_loopback("Starting x")

    def unreachable(*where: Any, **options: Any) -> socket.socket:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(ConfigError, match=r"Starting x: expected a loopback interface.*Network is unreachable"):
        check_loopback("Starting x")


def test_a_machine_without_a_compiler_of_kernels_begins_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check_compiler("Starting x")
    monkeypatch.setitem(sys.modules, COMPILER, None)  # As if it were not installed.
    with pytest.raises(ConfigError) as refused:
        check_compiler("Starting x")
    assert refused.value.faults[0].expected.startswith(COMPILER)
    assert "isthmus join" in refused.value.faults[0].remedy


def test_a_machine_without_room_for_a_socket_is_told_so_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"(?s)Starting x: expected room for the daemon's socket.*Set TMPDIR"):
        check_loopback("Starting x")
