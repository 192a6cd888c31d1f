"""Where the prompt of `isthmus sample` comes from, and what stands behind the text."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus.programs.command import model_commands
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


class Output(io.TextIOWrapper):
    """Standard output, which may be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), "utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Writer:
    """A model that has written some text."""

    def __init__(self, model: object, doing: str) -> None:
        self.model = model

    def continuation(self, prompt: bytes, count: int, *, temperature: float, seed: int) -> Iterator[str]:
        yield from (" times", " 7 is\x1b[2J", "\n4")

    answer = continuation


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("is_chat", [True, False])
def test_a_text_ends_with_a_newline_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, is_chat: bool
) -> None:
    output = Output(is_terminal=is_terminal)
    monkeypatch.setattr("isthmus.programs.trained.sample.Writer", Writer)
    monkeypatch.setattr("isthmus.programs.trained.text_model.text_model", lambda *given: given)
    monkeypatch.setattr(sys, "stdout", output)
    model_commands.sample(Path("it"), "1", is_chat, 9)
    text = output.buffer.getvalue().decode()  # type: ignore[attr-defined]
    prompt = "" if is_chat else "1"
    assert text == prompt + (" times 7 is\\x1b[2J\n4\n" if is_terminal else " times 7 is\x1b[2J\n4")
