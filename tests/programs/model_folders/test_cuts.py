"""Long texts are read in pieces, which are the text."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from isthmus.programs.model_folders import cuts, texts
from isthmus.programs.model_folders.cuts import PIECE_BYTES, pieces_of
from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.programs.reading.found import FoundFiles
from isthmus.programs.reading.table import DataTable, DataTally
from isthmus.runtime.errors import ConfigError

END = 255
COLUMN = {"task.column": "text"}


def long_text(size: int) -> bytes:
    rng = random.Random(size)
    words = ["a", "word", "höchstens", "7", "\N{SNOWMAN}", "x.", "\n", "  ", "東京"]
    return " ".join(rng.choices(words, k=size)).encode()


def blocks(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def test_pieces_are_the_text_and_end_before_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "PIECE_BYTES", 100)
    text = long_text(5000)
    for size in (1, 7, 64, 1000, 10**6):
        pieces = list(pieces_of(blocks(text, size)))
        assert b"".join(pieces) == text
        assert all(piece[:1] == b" " and piece[1:2].isalpha() for piece in pieces[1:])
        assert all(piece[-1:].isalpha() for piece in pieces[:-1])
        assert len(pieces) > (100 if size < 1000 else 1) or size == 10**6


def test_a_text_without_a_place_to_cut_stays_whole() -> None:
    text = "東京、".encode() * PIECE_BYTES
    assert list(pieces_of(blocks(text, 1 << 16))) == [text]
    assert list(pieces_of([])) == []


def table_of(path: Path) -> tuple[bytes, DataTable]:
    tally = DataTally(decode=ByteTokens().decode)
    ids = list(blocks_of(path, COLUMN, ByteTokens(), END, "Reading it", tally))
    return np.concatenate(ids).astype(np.uint8).tobytes(), tally.table(FoundFiles(()))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md"])
def test_a_long_text_is_read_as_a_short_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = long_text(20_000)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    whole = table_of(tmp_path / name)
    monkeypatch.setattr(texts, "LONG_BYTES", 1000)
    monkeypatch.setattr(cuts, "PIECE_BYTES", 1000)
    calls: list[int] = []
    real = ByteTokens.encode_all
    monkeypatch.setattr(ByteTokens, "encode_all", lambda self, some: calls.extend(map(len, some)) or real(self, some))
    assert table_of(tmp_path / name) == whole
    assert whole[0] == text + bytes([END])
    assert len(calls) > 1


def test_json_under_the_name_of_a_text_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b'\n{"text": "' + b"a word of it " * 500 + b'"}')
    monkeypatch.setattr(texts, "LONG_BYTES", 1000)
    assert table_of(tmp_path / "a.txt")[1].json_share == 1.0


def test_the_place_of_what_is_no_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LONG_BYTES", 1000)
    monkeypatch.setattr(cuts, "PIECE_BYTES", 1000)
    (tmp_path / "a.txt").write_bytes(b"a word of it " * 200_000 + b"\xff")
    with pytest.raises(ConfigError) as caught:
        table_of(tmp_path / "a.txt")
    assert "2,600,000" in caught.value.faults[0].found
    assert str(tmp_path / "a.txt") in caught.value.faults[0].expected
