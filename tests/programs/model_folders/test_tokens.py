"""A tokenizer whose library fails, of which its user gets one message."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isthmus.programs.model_folders import tokens
from isthmus.programs.model_folders.folders import TOKENIZER
from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.runtime.errors import ConfigError


class PanicException(BaseException):
    """As pyo3 makes one for each of its libraries."""


class Failing:
    """A tokenizer that fails by `error` in the call `at`."""

    model = None

    def __init__(self, at: str, error: BaseException) -> None:
        self._at, self._error = at, error

    def _fail(self, at: str) -> None:
        if at == self._at:
            raise self._error

    def from_file(self, path: str) -> Failing:
        self._fail("from_file")
        return self

    def no_truncation(self) -> None:
        self._fail("no_truncation")

    def no_padding(self) -> None:
        self._fail("no_padding")

    def get_vocab(self, **options: Any) -> dict[str, int]:
        self._fail("get_vocab")
        return {"a": 0}

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def encode(self, text: str, **options: Any) -> Any:
        self._fail("encode")
        return SimpleNamespace(ids=[0], offsets=[(0, 1)], sequence_ids=[0])

    def encode_batch(self, texts: list[str], **options: Any) -> list[Any]:
        self._fail("encode_batch")
        return [SimpleNamespace(ids=[0]) for _ in texts]

    def decode(self, ids: list[int], **options: Any) -> str:
        self._fail("decode")
        return "a"


def use(folder: Path) -> None:
    """Everything that is asked of a tokenizer."""
    found = FolderTokens(folder, 10, "Trying it")
    found.encode(b"a")
    found.prompt(b"a")
    found.bytes_after_first(b"a")
    found.encode_all([b"a", b"b"])
    found.decode(np.asarray([0], np.int32))


CALLS = ["from_file", "no_truncation", "no_padding", "get_vocab", "encode", "encode_batch", "decode"]


@pytest.mark.parametrize("error", [PanicException("index out of bounds"), ValueError("odd")])
@pytest.mark.parametrize("at", CALLS)
def test_what_it_raises_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, error: BaseException
) -> None:
    (tmp_path / TOKENIZER).write_text("{}")
    monkeypatch.setattr(tokens, "_library", lambda doing: SimpleNamespace(Tokenizer=Failing(at, error)))
    with pytest.raises(ConfigError) as caught:
        use(tmp_path)
    assert caught.value.faults[0].found == str(error)


def test_a_press_of_ctrl_c_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / TOKENIZER).write_text("{}")
    failing = Failing("encode", KeyboardInterrupt())
    monkeypatch.setattr(tokens, "_library", lambda doing: SimpleNamespace(Tokenizer=failing))
    with pytest.raises(KeyboardInterrupt):
        use(tmp_path)
