"""What rows are, by their fields: texts, completions and chats, and what is refused, with the place of it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.programs.reading.found import FoundFiles
from isthmus.programs.reading.row_forms import CHAT_COMPLETIONS, CHATS, COMPLETIONS, TEXTS, ChatRow, Row, TextRow
from isthmus.programs.reading.rows import documents_of, texts_of
from isthmus.programs.reading.table import DataTally
from isthmus.runtime.errors import ConfigError, Fault

DOING = "Reading it"
USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
CHAT = [USER, ANSWER]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
NOTHING = {"tools": None, "documents": None}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"default": None}}}]


def rows_in(path: Path, column: str = "text", prompt: str | None = None) -> list[Row]:
    fields = {**({} if prompt is None else {"task.prompt": prompt}), "task.column": column}
    return list(documents_of(path, fields, DOING))


def lines(to: Path, *rows: Any) -> Path:
    path = to / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat_in(to: Path, row: Any, **settings: Any) -> ChatRow:
    [found] = rows_in(lines(to, row), **settings)
    assert isinstance(found, ChatRow)
    return found


def fault_of(to: Path, *rows: Any, **settings: Any) -> Fault:
    with pytest.raises(ConfigError) as caught:
        rows_in(lines(to, *rows), **settings)
    [fault] = caught.value.faults
    assert str(to / "rows.jsonl") in fault.expected
    assert fault.remedy
    return fault


@pytest.mark.parametrize(
    ("row", "settings", "form"),
    [
        ({"text": "a", "messages": CHAT, "prompt": "b", "completion": "c"}, {}, TEXTS),
        ({"messages": CHAT, "prompt": "b", "completion": "c"}, {}, CHATS),
        ({"prompt": "b", "completion": "c", "id": 7}, {}, COMPLETIONS),
        ({"prompt": [USER], "completion": [ANSWER]}, {}, CHAT_COMPLETIONS),
        ({"a": "b", "text": "c"}, {"prompt": "a"}, TEXTS),
        ({"prompt": "b", "completion": "c"}, {"prompt": "prompt", "column": "completion"}, TEXTS),
        ({"dialog": CHAT, "messages": "no"}, {"column": "dialog"}, CHATS),
        ({"ask": [USER], "say": [ANSWER]}, {"prompt": "ask", "column": "say"}, CHAT_COMPLETIONS),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, {}, CHATS),
        ({"messages": json.dumps(CHAT)}, {}, CHATS),
    ],
)
def test_the_fields_of_a_row_say_its_form(tmp_path: Path, row: Any, settings: Any, form: str) -> None:
    [found] = rows_in(lines(tmp_path, row), **settings)
    assert found.form == form


def test_a_completion_is_learned_and_its_prompt_is_read(tmp_path: Path) -> None:
    path, tally = lines(tmp_path, {"prompt": "ab", "completion": "c"}, {"prompt": "", "completion": ""}), DataTally()
    ids = np.concatenate(list(blocks_of(path, {"task.column": "text"}, ByteTokens(), 255, DOING, tally)))
    assert ids.tolist() == [~97, ~98, 99, 255, 255]
    assert not tally.table(FoundFiles(())).is_all_predicted
    assert DataTally().table(FoundFiles(())).is_all_predicted


def test_a_chat_is_what_its_template_is_given(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL], "name": None}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]}
    row = {"messages": [parts, called, {"role": "tool", "content": "2"}, ANSWER], "tools": TOOLS}
    found = chat_in(tmp_path, {**row, "chat_template_kwargs": {"thinks": False}})
    expected = [{"role": "user", "content": "a b"}, {"role": "assistant", "tool_calls": [CALL]}, *row["messages"][2:]]
    assert list(found.messages) == expected
    assert found.options == {"tools": TOOLS, "documents": None, "thinks": False}
    documents = [{"title": "a"}]
    assert chat_in(tmp_path, {**row, "documents": documents}).options["documents"] == documents
    assert chat_in(tmp_path, {**row, "tools": json.dumps(TOOLS)}).options["tools"] == TOOLS
    assert chat_in(tmp_path, {"messages": CHAT, "tools": []}).options == NOTHING


def test_weights_say_which_answers_are_learned(tmp_path: Path) -> None:
    row = {"messages": [USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]}
    found = chat_in(tmp_path, row)
    assert found.unlearned == {1}
    assert not any("weight" in message for message in found.messages)


def test_older_conversations_have_the_roles_of_messages(tmp_path: Path) -> None:
    names = [("system", "s"), ("human", "u"), ("gpt", "a")]
    found = chat_in(tmp_path, {"conversations": [{"from": name, "value": text} for name, text in names]})
    expected = [("system", "s"), ("user", "u"), ("assistant", "a")]
    assert [(each["role"], each["content"]) for each in found.messages] == expected


@pytest.mark.torch  # There is pyarrow.
def test_tables_have_chats_too(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    called = {"role": "assistant", "content": "c", "tool_calls": [{"function": {"name": "f"}}]}
    table = pyarrow.table({"messages": [CHAT, [USER, called]], "n": [1, 2], "tools": [None, [{"name": "f"}]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    first, second = rows_in(tmp_path / "a.parquet")
    assert isinstance(first, ChatRow)
    assert isinstance(second, ChatRow)
    assert (list(first.messages), first.options) == (CHAT, NOTHING)  # Without the nulls that fill it up.
    assert (list(second.messages), second.options) == ([USER, called], {**NOTHING, "tools": [{"name": "f"}]})
    with pyarrow.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    assert [each.form for each in rows_in(tmp_path / "b.arrow")] == [CHATS, CHATS]
    parquet.write_table(pyarrow.table({"said": [CHAT], "label": [True]}), tmp_path / "c.parquet")
    assert [each.form for each in rows_in(tmp_path / "c.parquet", column="said")] == [CHATS]


def test_separated_values_have_messages_in_json(tmp_path: Path) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerows([["messages", "tools", "n"], [json.dumps(CHAT), json.dumps(TOOLS), 1], [json.dumps(CHAT), "", 2]])
    (tmp_path / "a.csv").write_text(file.getvalue())
    first, second = rows_in(tmp_path / "a.csv")
    assert isinstance(first, ChatRow)
    assert isinstance(second, ChatRow)
    assert (list(first.messages), first.options, second.options) == (CHAT, {**NOTHING, "tools": TOOLS}, NOTHING)
    (tmp_path / "b.csv").write_text(f'messages\n"{CHAT!r}"\n')  # As a table of Python's is written.
    with pytest.raises(ConfigError) as caught:
        rows_in(tmp_path / "b.csv")
    assert "line 2" in caught.value.faults[0].expected
    (tmp_path / "c.csv").write_text("prompt,completion\na,b\n")
    assert rows_in(tmp_path / "c.csv") == [TextRow((b"a", b"b"), COMPLETIONS)]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {**ANSWER, **fields}]}


@pytest.mark.parametrize(
    ("row", "settings", "expected", "found"),
    [
        ({"instruction": "a", "input": "b", "output": "c"}, {}, "'text' of line 1", "input, instruction, output"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {}, "'text'", "chosen"),
        ({"input_ids": [1]}, {}, "'text'", "input_ids"),
        ({"ask": "a", "messages": CHAT}, {"prompt": "ask"}, "'text' of line 1", "ask, messages"),
        ({"text": "a"}, {"prompt": "ask"}, "'ask' of line 1", "text"),
        ({"messages": []}, {}, "'messages' of line 1", "empty"),
        ({"messages": None}, {}, "'messages'", "null"),
        ({"messages": {"role": "user"}}, {}, "'messages'", "a dict"),
        ({"messages": ["a"]}, {}, "'messages'", "a list"),
        ({"messages": "Why?"}, {}, "'messages'", "no JSON"),
        ({"messages": '"Why?"'}, {}, "'messages'", "no list"),
        ({"prompt": "a", "completion": None}, {}, "'completion'", "null"),
        ({"prompt": [USER], "completion": "a"}, {}, "'completion'", "a text"),
        ({"prompt": "a", "completion": [ANSWER]}, {}, "'prompt'", "a text"),
        ({"prompt": [USER], "completion": [ANSWER, USER]}, {}, "assistant", "message 2"),
        ({"prompt": "a", "completion": "b", "label": False}, {}, "'label'", "False"),
        ({"prompt": [USER], "completion": [ANSWER], "label": True}, {}, "'label'", "True"),
        ({"prompt": "a", "completion": "b", "system": "c"}, {}, "'system'", "c"),
        ({"messages": CHAT, "system": "be"}, {}, "'system'", "be"),
        ({"messages": CHAT, "functions": [{}]}, {}, "'functions'", "[{}]"),
        ({"messages": CHAT, "images": ["a.png"]}, {}, "'images'", "a.png"),
        ({"prompt": "a", "completion": "b", "image": "a.png"}, {}, "'image'", "a.png"),
        (message(train=False), {}, "weight in message 2", "'train'"),
        (message(loss=False), {}, "weight in message 2", "'loss'"),
        ({"messages": CHAT, "tools": [1]}, {}, "'tools'", "a list"),
        ({"messages": CHAT, "tools": "add"}, {}, "'tools'", "a str"),
        ({"messages": CHAT, "chat_template_kwargs": [1]}, {}, "'chat_template_kwargs'", "a list"),
        ({"messages": [{"content": "a"}]}, {}, "'role' of message 1", "content"),
        ({"messages": [{**USER, "role": 1}]}, {}, "'role' of message 1", "1"),
        ({"conversations": [{"from": "observation", "value": "a"}]}, {}, "'from' of message 1", "observation"),
        (message(content=None), {}, "'content' of message 2", "none"),
        (message(content={"a": 1}), {}, "'content' of message 2", "a dict"),
        (message(content=["a"]), {}, "'text'", "a str"),
        (message(content=[{"type": "image_url", "image_url": {}}]), {}, "'text'", "image_url"),
        (message(content=[{"type": "text", "text": "a"}, {"type": "input_audio"}]), {}, "'text'", "input_audio"),
        (message(function_call={"name": "f"}), {}, "tool_calls in message 2", "function_call"),
        (message(weight=0.5), {}, "weight", "0.5"),
        (message(weight="0"), {}, "weight", "'0'"),
        ({"messages": [{**USER, "weight": 1}, ANSWER]}, {}, "weight", "user"),
        ({"text": json.dumps(CHAT)}, {}, "'text' of line 1", "JSON"),
        ({"text": json.dumps([{"from": "human", "value": "a"}])}, {}, "'text' of line 1", "JSON"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, row: Any, settings: Any, expected: str, found: str) -> None:
    fault = fault_of(tmp_path, row, **settings)
    assert expected in fault.expected
    assert found in fault.found


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({"text": "a"}, {"messages": CHAT}, CHATS),
        ({"messages": CHAT}, {"text": "a"}, TEXTS),
        ({"messages": CHAT}, {"prompt": "a", "completion": "b"}, COMPLETIONS),
        ({"prompt": "a", "completion": "b"}, {"prompt": [USER], "completion": [ANSWER]}, CHAT_COMPLETIONS),
    ],
)
def test_rows_of_one_file_have_one_form(tmp_path: Path, first: Any, second: Any, found: str) -> None:
    fault = fault_of(tmp_path, first, second)
    assert "line 1" in fault.expected
    assert found in fault.found
    assert "line 2" in fault.found


def test_empty_fields_beside_messages_say_nothing(tmp_path: Path) -> None:
    chat_in(tmp_path, {"messages": CHAT, "system": "", "images": [], "image": None, "functions": []})
    chat_in(tmp_path, {"messages": CHAT, "label": True})  # Of a chat that has no prompt of its own.
    [found] = rows_in(lines(tmp_path, {"prompt": "a", "completion": "b", "label": "good"}))
    assert found.form == COMPLETIONS
    [found] = rows_in(lines(tmp_path, {"text": "a", "label": False, "system": "b", "images": ["c"]}))
    assert found.form == TEXTS


def test_alpaca_rows_are_told_the_settings(tmp_path: Path) -> None:
    assert "task.prompt=instruction" in fault_of(tmp_path, {"instruction": "a", "output": "c"}).remedy
    row = {"instruction": "a", "output": "c"}
    [found] = rows_in(lines(tmp_path, row), prompt="instruction", column="output")
    assert found == TextRow((b"a", b"c"))


@pytest.mark.parametrize("row", [{"messages": CHAT}, {"prompt": "a", "completion": "b"}])
def test_what_takes_texts_alone_refuses_the_rest(tmp_path: Path, row: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        list(texts_of(lines(tmp_path, row), {"--column": "text"}, DOING))
    assert "--column" in caught.value.faults[0].remedy


def test_a_model_of_bytes_has_no_template(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        list(blocks_of(lines(tmp_path, {"messages": CHAT}), {"task.column": "text"}, ByteTokens(), 255, DOING))
    assert caught.value.faults[0].found == CHATS
