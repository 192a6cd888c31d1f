"""What a system that is not Linux is told: one message, before anything is imported that it does not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import isthmus
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.processes import check_linux


@pytest.fixture(params=["darwin", "freebsd14"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of another system, which Python gives for its own."""
    name: str = request.param
    monkeypatch.setattr(sys, "platform", name)
    return name


@pytest.mark.parametrize("words", [("train",), ("graph",), ("join", "--invite", "beta.invite"), ("status",)])
def test_a_command_is_refused_and_leaves_nothing(
    typed: Callable[..., Result], system: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    result = typed(tmp_path, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"isthmus {words[0]}" in result.stderr
    assert "Linux" in result.stderr
    assert repr(system) in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("system")
def test_help_and_version_are_there(typed: Callable[..., Result], tmp_path: Path) -> None:
    assert [typed(tmp_path, *words).exit_code for words in ((), ("--help",), ("--version",))] == [0, 0, 0]


def test_names_of_the_face_are_refused_by_name(system: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _ = isthmus.train
    (fault,) = refused.value.faults
    assert (fault.action, fault.found) == ("Importing isthmus.train", f"the system {system!r}")
    assert isthmus.__version__


def test_linux_is_taken() -> None:
    check_linux("Testing")
