"""What a user is shown of data before anything starts, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.programs import language_model
from isthmus.programs.engine.results.data_words import brief, lines
from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.programs.reading.found import HIDDEN, FoundFiles, LeftOutFiles, find
from isthmus.programs.reading.table import DataTable, DataTally, LongestDocument, SpecialIds, is_json, lost_share
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError

END = 7
SHIPPED = Schema.of("task", language_model.task)


def table_of(path: Path, special: SpecialIds | None = None) -> DataTable:
    """The table of a file or folder, by a tokenizer of bytes."""
    found = find([str(path)], are_texts=True, are_rows=True)
    tally = DataTally(special or SpecialIds(), ByteTokens().decode, ends_with=("<7>",))
    for file in found.files:
        for _ in blocks_of(Path(file.path), {"task.column": "text"}, ByteTokens(), END, "Reading it", tally):
            pass
    return tally.table(found)


def bytes_of(*paths: Path, **settings: Any) -> DataTable:
    return language_model.data_table(SHIPPED.read({"data": tuple(map(str, paths)), **settings}))


def test_documents_and_tokens_are_counted_by_kind(tmp_path: Path) -> None:
    rows = ["first row", "", "  ", "the longest row of all", "last"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    (tmp_path / "b.TXT").write_text("text")
    (tmp_path / "none").write_text("0123456789")
    (tmp_path / ".hidden").write_text("hidden")
    found = table_of(tmp_path)
    sizes = {".jsonl": sum(map(len, rows)) + 5, ".txt": 5, "no suffix": 11}
    assert (found.files, found.documents, found.tokens) == (3, 7, sum(sizes.values()))
    assert found.bytes == sum((tmp_path / name).stat().st_size for name in ("rows.jsonl", "b.TXT", "none"))
    assert found.tokens_by_kind == sizes
    assert found.without_text == 2
    assert found.longest == LongestDocument(str(tmp_path / "rows.jsonl"), 4, 23)
    assert found.beginnings == ("text", "0123456789", "first row")
    assert found.left_out == (LeftOutFiles(HIDDEN, 1, (str(tmp_path / ".hidden"),)),)
    assert found.for_budget(90).epochs == pytest.approx(90 / found.tokens)
    assert not list(found.faults())
    document = json.loads(json.dumps(found.as_dict()))
    keys = ("files", "bytes", "documents", "tokens", "epochs", "left_out", "pad_share", "unknown_share", "zero_share")
    assert set(keys) <= set(document)
    assert document["left_out"] == [{"reason": HIDDEN, "files": 1, "first": [str(tmp_path / ".hidden")]}]
    assert (document["epochs"], document["pad_share"], document["zero_share"]) == (None, None, 0.0)


def test_a_document_behind_many_is_found_to_be_the_longest(tmp_path: Path) -> None:
    rows = ["short"] * 3000
    rows[2500] = "x" * 99
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join(rows) + "\n")
    assert table_of(tmp_path).longest == LongestDocument(str(tmp_path / "rows.csv"), 2501, 100)


def test_what_has_a_loss_is_read_back_where_that_is_not_all(tmp_path: Path) -> None:
    tally = DataTally(decode=ByteTokens().decode)
    whole, marked = np.array([65, 66], np.int32), np.array([~65, 66, 67, ~68, 69], np.int32)
    tally.add_form("texts", whole)
    for _ in range(5):
        tally.add_form("chats", marked, "marks")
    found = tally.table(FoundFiles(()))
    assert found.learned == ("BCE",) * 3
    assert DataTable.read(json.loads(json.dumps(found.as_dict()))) == found
    assert any("'BCE'" in line for line in lines(found))


def test_one_of_each_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    assert list(brief(table_of(tmp_path))) == ["data: 1 file, 1 document, 6 tokens"]


def test_a_row_that_names_no_text_is_refused_with_the_setting_and_the_option(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"words": "a"}\n')
    with pytest.raises(ConfigError) as caught:
        table_of(tmp_path)
    remedy = caught.value.faults[0].remedy
    assert "task.column" in remedy
    assert "--column" in remedy


@pytest.mark.parametrize(("broken", "character", "shown"), [('{"text": wrong}', 10, "'wrong}'"), ('{"text"', 9, "")])
def test_a_line_that_is_no_json_is_shown_where_it_breaks(
    tmp_path: Path, broken: str, character: int, shown: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"text": "a"}}\n{broken}\n{{"text": "b"}}\n')
    with pytest.raises(ConfigError) as caught:
        table_of(tmp_path)
    [fault] = caught.value.faults
    assert "line 2" in fault.expected
    assert shown in fault.found
    assert f"character {character} " in fault.found
    assert "line 2" not in fault.found, "a line has no lines"


def test_shares_are_of_all_ids(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"pp" + b"u" + b"\x01" * 5 + b"..")
    found = table_of(tmp_path, SpecialIds(pad=ord("p"), unknown=ord("u")))
    assert found.tokens == 11
    assert (found.pad_share, found.unknown_share) == (pytest.approx(2 / 11), pytest.approx(1 / 11))
    prompts = DataTally(SpecialIds(pad=3))
    prompts.add_file("a.jsonl", np.array([~3, ~0, 3, 4], np.int32))
    counted = prompts.table(FoundFiles(()))
    assert (counted.pad_share, counted.zero_share) == (0.5, 0.25)


TABLE = DataTable(files=1, bytes=100, documents=1, tokens=100, tokens_by_kind={".txt": 100}, predicted=100)


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"pad_share": 0.2}, False),
        ({"pad_share": 0.21}, True),
        ({"zero_share": 0.49}, False),
        ({"zero_share": 0.5}, True),
        ({"zero_share": 1.0, "tokens": 15}, False),
        ({"lost_share": 0.01}, False),
        ({"lost_share": 0.011}, True),
        ({"json_share": 0.5, "json_path": "a.txt"}, False),
        ({"json_share": 0.51, "json_path": "a.txt"}, True),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], refused: bool) -> None:
    faults = list(DataTable(**{**{name: getattr(TABLE, name) for name in TABLE.__slots__}, **values}).faults())
    assert len(faults) == refused
    assert all(fault.remedy for fault in faults)


def test_many_passes_are_warned_of() -> None:
    assert not list(TABLE.warnings())
    assert not list(TABLE.for_budget(10_000).warnings())
    assert len(list(TABLE.for_budget(10_001).warnings())) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', True),
        (' [1, {"a": 2}]\n', True),
        ('{"a": 1}\n{"a": 2}\n', True),
        ("{braces} in a text", False),
        ("[link](page)\n[other](page)", False),
        ('{"a": 1} and words', False),
        ("12", False),
        ("words", False),
        ("", False),
    ],
)
def test_json_is_told_from_text(text: str, expected: bool) -> None:
    assert is_json(text.encode()) is expected


def test_json_under_the_name_of_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("".join(json.dumps({"text": "a" * 50}) + "\n" for _ in range(9)))
    (fault,) = table_of(tmp_path).faults()
    assert str(tmp_path / "rows.txt") in fault.found
    (tmp_path / "book.txt").write_text("a book " * 1000)
    assert not list(table_of(tmp_path).faults())


def test_a_folder_of_json_with_its_braces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"text": "words " * 50}]}))
    (fault,) = table_of(tmp_path).faults()
    assert str(tmp_path / "squad.json") in fault.found
    (tmp_path / "code.py").write_text("a = 1\n" * 200)
    assert not list(table_of(tmp_path).faults())
    (tmp_path / "squad.json").write_text(json.dumps([{"text": '{"json": "in a text"}'}] * 500))
    assert not list(table_of(tmp_path).faults())


def test_characters_that_do_not_come_back_are_lost() -> None:
    assert lost_share([]) is None
    assert lost_share([("one two", "one  two"), ("three", "three")]) == 0
    assert lost_share([("abcde", "abc"), ("fghij", "hgjif")]) == pytest.approx(0.2)


def test_the_table_of_bytes_and_of_ids(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"# Title\n" * 20)
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a"}\n')
    found = bytes_of(tmp_path)
    assert (found.files, found.documents, found.tokens, found.zero_share) == (2, 2, 174, 0.0)
    assert found.tokens_by_kind == {".md": 160, ".jsonl": 14}  # Read with its braces, and told.
    assert found.longest == LongestDocument(str(tmp_path / "a.md"), 1, 160)
    assert found.beginnings == ("# Title\n" * 7 + "# Ti", '{"text": "a"}\n')
    np.save(tmp_path / "ids.npy", np.arange(100) % 50)
    ids = bytes_of(tmp_path / "ids.npy", vocabulary=50)
    assert (ids.documents, ids.tokens, ids.zero_share, ids.beginnings) == (None, 100, 0.02, ())


def test_the_command_shows_the_table_and_starts_nothing(tmp_path: Path, typed: Callable[..., Any]) -> None:
    (tmp_path / "text.txt").write_text("words " * 100)
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    result = typed(tmp_path, "data", "text.txt", ".", "--tokens", "1e6", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["files"], document["tokens"]) == (1, 600)
    assert document["epochs"] == pytest.approx(1e6 / 600)
    assert sum(each["files"] for each in document["left_out"]) == 2
    assert result.stderr  # It warns of so many passes.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "text.txt"]
    assert "600" in typed(tmp_path, "data", "text.txt").stdout
    (tmp_path / "rows.jsonl").write_text('{"text": "words"}\n')
    assert "--model" in typed(tmp_path, "data", "rows.jsonl").stdout, "it says that rows are read as bytes"
    assert "--model" not in typed(tmp_path, "data", "text.txt").stdout


def test_the_command_refuses_behind_the_table_what_train_refuses(tmp_path: Path, typed: Callable[..., Any]) -> None:
    (tmp_path / "wide.txt").write_bytes(("words " * 100).encode("utf-16-le"))
    result = typed(tmp_path, "data", "wide.txt", "--json")
    assert (result.exit_code, json.loads(result.stdout)["zero_share"]) == (2, 0.5)
    for wrong in (("nowhere",), ("wide.txt", "--column", "a"), ("wide.txt", "--token-dtype", "int8")):
        result = typed(tmp_path, "data", *wrong)
        assert (result.exit_code, result.stdout) == (2, "")


def test_a_run_of_data_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    from isthmus.programs.engine.request.request import prepare

    (tmp_path / "wide.txt").write_bytes(("words " * 1000).encode("utf-16-le"))
    with pytest.raises(ConfigError) as caught:
        prepare(task_settings={"data": (str(tmp_path / "wide.txt"),)}, run={"tokens": 1000, "learners": 1})
    assert "token_dtype" in caught.value.faults[0].remedy


@pytest.mark.slow
def test_a_request_has_the_table_and_warns_of_many_passes(tmp_path: Path) -> None:
    from isthmus.programs.engine.request.request import prepare

    (tmp_path / "a.txt").write_bytes(b"words " * 1000)
    settings, run = {"data": (str(tmp_path / "a.txt"),)}, {"tokens": 700_000, "learners": 2}
    request = prepare(task_settings=settings, run=run, run_dir=tmp_path / "run")
    assert request.data is not None
    assert (request.data.tokens, request.data.epochs) == (6000, pytest.approx(700_000 / 6000))
    assert set(request.data.warnings()) <= set(request.warnings)
