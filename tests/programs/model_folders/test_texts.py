"""Files of texts as tokens: what is read, and what is refused, with the place of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.runtime.errors import ConfigError

END = 255
COLUMN = {"task.column": "text"}


def text_of(path: Path) -> bytes:
    """What a file has, with END behind each document."""
    return b"".join(bytes(ids.astype("uint8")) for ids in blocks_of(path, COLUMN, ByteTokens(), END, "Reading it"))


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.txt", b"ab\0c", b"ab\0c\xff"),
        ("a.txt", "\N{SNOWMAN}".encode(), "\N{SNOWMAN}".encode() + b"\xff"),
        ("a.jsonl", b'{"text":"ab"}\r\n\n{"n":[1],"text":""}\n{"text":"a\\u0000b"}', b"ab\xff\xffa\0b\xff"),
        ("a.jsonl", b'\xef\xbb\xbf{"text":"ab"}\n{"text":"c"}', b"ab\xffc\xff"),
        ("a.jsonl", b"", b""),
    ],
)
def test_a_file_becomes_its_documents(tmp_path: Path, name: str, data: bytes, text: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert text_of(tmp_path / name) == text


GOOD = b'{"text":"ab"}\n'


@pytest.mark.parametrize(
    ("name", "data", "expected", "found"),
    [
        ("a.txt", b"ab\xffc", "in UTF-8 in {}", "byte 0xff in position 2"),
        ("a.jsonl", GOOD + b"ab", "line 2 of {}", "Expecting value"),
        ("a.jsonl", GOOD + b'{"text":"a', "line 2 of {}", "Unterminated"),
        ("a.jsonl", GOOD + b'{"text":"a\0b"}', "line 2 of {}", "control character"),
        ("a.jsonl", GOOD + b'{"text":"\xff"}', "line 2 of {}", "0xff"),
        ("a.jsonl", GOOD + b"[" * 200_000, "line 2 of {}", "recursion"),
        ("a.jsonl", GOOD + b"[1]", "an object in line 2 of {}", "a list"),
        ("a.jsonl", GOOD + b'{"texts":"a"}', "'text' of line 2 of {}", "texts"),
        ("a.jsonl", GOOD + b'{"text":null}', "'text' of line 2 of {}", "null"),
        ("a.jsonl", GOOD + b'{"text":["a"]}', "'text' of line 2 of {}", "a list"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, name: str, data: bytes, expected: str, found: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        text_of(path)
    (fault,) = caught.value.faults
    assert expected.format(path) in fault.expected
    assert found in fault.found
