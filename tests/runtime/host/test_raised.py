"""What a body raised becomes a record: type, message in one line, and the line that its author has to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.host.contract import LENGTH_MAX, raised, untold
from isthmus.runtime.supervision.incidents import Raised, raised_of

HERE = str(Path(__file__))


def caught(function: Any) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def wrong() -> None:
    raise ValueError("row 31\n  is corrupt")


def in_a_library() -> None:
    json.loads("{")


def test_the_line_is_where_it_was_raised() -> None:
    line = wrong.__code__.co_firstlineno + 1
    assert raised("data", caught(wrong)) == Raised("data", "ValueError", "row 31 is corrupt", HERE, line)


def test_lines_of_a_key_are_no_escapes() -> None:
    assert raised("data", KeyError("row 31\n  is missing")).message == "'row 31 is missing'"
    assert [raised("data", KeyError(*key)).message for key in ((), (3,), ("w",))] == ["", "3", "'w'"]


def test_the_line_is_the_last_that_is_no_librarys() -> None:
    found = raised("data", caught(in_a_library))
    assert (found.exception, found.file, found.line) == (
        "JSONDecodeError",
        HERE,
        in_a_library.__code__.co_firstlineno + 1,
    )


def test_where_all_is_a_librarys_it_is_the_last_of_all() -> None:
    error = caught(in_a_library)
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert "json" in raised("data", error).file


def test_a_syntax_error_is_where_the_syntax_is() -> None:
    error = SyntaxError("bad", ("mine.py", 3, 1, "x ="))
    assert (raised("data", error).file, raised("data", error).line) == ("mine.py", 3)


@pytest.mark.parametrize("error", [ValueError("x" * 9999), ValueError("\ud800 \x00"), KeyError("\n"), None])
def test_whatever_it_is_it_can_be_said(error: BaseException | None) -> None:
    found = raised("data", error)
    assert len(found.message) <= LENGTH_MAX
    found.message.encode()
    assert (found.file, found.line) == ("", 0)


def test_a_story_without_an_exception_is_its_last_line() -> None:
    assert untold("", "first\nlast line\n") == Raised("", "", "last line", "", 0)
    assert untold("", "").message == "unknown"


@pytest.mark.parametrize("told", [None, "boom", {}, {"node": 1}, ["data", "ValueError", "boom", "mine.py", 12]])
def test_what_is_no_record_is_refused(told: Any) -> None:
    with pytest.raises(ValueError, match="not a raised error"):
        raised_of(told)
