"""Where the prompt of `isthmus sample` comes from."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from isthmus.programs.command.model_commands import _prompt
from isthmus.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "is_terminal", "prompt"),
    [("a", True, b"a"), ("", False, b""), ("-", True, b"in\n"), ("-", False, b"in\n"), (None, False, b"in\n")],
)
def test_a_prompt_is_given_or_read(
    monkeypatch: pytest.MonkeyPatch, given: str | None, is_terminal: bool, prompt: bytes
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: is_terminal, buffer=io.BytesIO(b"in\n")))
    assert _prompt(given, "Trying it") == prompt


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(ConfigError) as caught:
        _prompt(None, "Trying it")
    assert caught.value.faults[0].expected == "a prompt"
