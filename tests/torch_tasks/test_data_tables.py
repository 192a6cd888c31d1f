"""The table of data for a model folder: special ids, what a tokenizer loses, and what is refused before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from typer.testing import CliRunner

from isthmus.programs import folder_task
from isthmus.programs.reading.table import DataTable, LongestDocument
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError
from tests.command_line import app
from tests.torch_tasks.folder_tokenizers import begins_by, byte_level, write
from tests.torch_tasks.test_model_folders import folder_of

pytestmark = [pytest.mark.torch]

PAD, UNKNOWN, END = 93, 92, 91
SETTINGS = Schema.of("task", folder_task.task)
OBJECT = json.dumps({"text": "a" * 88})
assert len(OBJECT) == 100


def marked_folder(to: Path, **config: Any) -> Path:
    """A folder whose tokens are the printable letters, the last three of which are pad, unknown and end."""
    folder_of("llama, tied, grouped", to, "float32")
    vocabulary = {chr(33 + i): i for i in range(91)} | {"<end>": END, "<unk>": UNKNOWN, "<pad>": PAD}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>", "<unk>", "<pad>"])
    tokenizer.save(str(to / "tokenizer.json"))
    document = json.loads((to / "config.json").read_text())
    ids = {"eos_token_id": END, "pad_token_id": PAD, **config}
    (to / "config.json").write_text(json.dumps({**document, **ids}))
    (to / "generation_config.json").unlink(missing_ok=True)  # Its end would come first.
    return to


def table_of(folder: Path, *data: Path, **more: Any) -> DataTable:
    given = {**folder_task.READS, "folder": str(folder), "data": tuple(map(str, data)), **more}
    return folder_task.data_table(SETTINGS.read(given))


def test_rows_are_counted_by_the_tokenizer(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "it")
    rows = [{"text": "Some words.", "ask": "Why?"}, {"text": "", "ask": "And?"}, {"text": "x" * 40, "ask": "!!"}]
    (tmp_path / "rows.csv").write_text("ask,text\n" + "".join(f"{row['ask']},{row['text']}\n" for row in rows))
    found = table_of(folder, tmp_path / "rows.csv")
    sizes = [10 + 1, 0 + 1, 40 + 1]  # The letters, and the end.
    assert (found.documents, found.tokens, found.without_text) == (3, sum(sizes), 1)
    assert found.longest == LongestDocument(str(tmp_path / "rows.csv"), 3, 41)
    assert (found.pad_share, found.unknown_share, found.lost_share) == (0.0, 0.0, 0.0)
    assert found.ends_with == ("<end>",)
    assert [text.replace(" ", "") for text in found.beginnings] == ["Somewords.", "", "x" * 30]
    asked = table_of(folder, tmp_path / "rows.csv", prompt="ask")
    assert asked.tokens == sum(sizes) + 4 + 4 + 2


def test_pads_in_token_files_are_refused(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "it")
    ids = np.tile(np.array([5, 6, 7, PAD], np.uint16), 500)
    np.save(tmp_path / "ids.npy", ids)
    found = table_of(folder, tmp_path / "ids.npy")
    assert (found.documents, found.tokens, found.pad_share) == (None, 2000, 0.25)
    assert len(list(found.faults())) == 1
    # Where the token that pads ends texts too, no count tells pads.
    same = marked_folder(tmp_path / "same", pad_token_id=END)
    assert table_of(same, tmp_path / "ids.npy").pad_share is None


def test_a_tokenizer_that_loses_characters_is_refused(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "it")
    text = tmp_path / "text.txt"
    text.write_text("a" * 985 + "\N{SNOWMAN}" * 15)
    found = table_of(folder, text)
    assert found.unknown_share == pytest.approx(15 / 1001)
    assert found.lost_share == pytest.approx(0.015)
    assert len(list(found.faults())) == 1
    text.write_text("a" * 995 + "\N{SNOWMAN}" * 5)
    assert table_of(folder, text).lost_share == pytest.approx(0.005)
    assert not list(table_of(folder, text).faults())


def test_what_the_normalizer_changes_is_not_lost(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "it")
    document = json.loads((folder / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}]}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "text.txt").write_text("\N{LATIN SMALL LETTER E WITH ACUTE}" * 500)
    assert table_of(folder, tmp_path / "text.txt").lost_share == 0


def test_what_the_normalizer_of_its_class_changes_is_not_lost_either(tmp_path: Path) -> None:
    """That of Qwen2Tokenizer joins accents to their letters, and stands in no file."""
    folder = write(tmp_path / "it", byte_level(), {"tokenizer_class": "Qwen2Tokenizer"})
    (tmp_path / "text.txt").write_text("e\N{COMBINING ACUTE ACCENT} is one letter. " * 50)
    found = table_of(folder, tmp_path / "text.txt")
    assert found.lost_share == 0
    assert json.loads((folder / "tokenizer.json").read_text())["normalizer"] is None


def test_unknown_letters_of_a_unigram_are_counted(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "it")
    model = tokenizers.models.Unigram([("a", -1.0), ("<unk>", -9.0)], unk_id=1)
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("abab")
    assert table_of(folder, tmp_path / "text.txt").unknown_share == pytest.approx(2 / 5)


def ids(*share: int) -> Any:
    """Two hundred ids in this proportion: of text, of pads, and of zeros."""
    kinds = np.repeat(np.array([5, PAD, 0], np.uint16), np.array(share) * 200 // sum(share))
    assert len(kinds) == 200
    return kinds


def text(letters: int, unknown: int) -> str:
    return "a" * letters + "\N{SNOWMAN}" * unknown


LIMITS: dict[str, tuple[Any, str, float, bool]] = {
    "a fifth of pads": (ids(80, 20, 0), "pad_share", 0.2, False),
    "more than a fifth of pads": (ids(158, 42, 0), "pad_share", 0.21, True),
    "less than half zeros": (ids(101, 0, 99), "zero_share", 0.495, False),
    "half zeros": (ids(1, 0, 1), "zero_share", 0.5, True),
    "half zeros of few": (ids(1, 0, 1)[93:108], "zero_share", 8 / 15, False),
    "half JSON": ({"a.txt": OBJECT, "b.txt": "b" * 100}, "json_share", 0.5, False),
    "more than half JSON": ({"a.txt": OBJECT, "b.txt": "b" * 99}, "json_share", 100 / 199, True),
    "an object that is text": (
        {"a.json": OBJECT.replace("text", "none"), "b.py": "b" * 99},
        "json_share",
        100 / 199,
        True,
    ),
    "objects that are rows": ({"a.json": OBJECT, "b.py": "b" * 99}, "json_share", 0.0, False),
    "a hundredth lost": ({"a.txt": text(990, 10)}, "lost_share", 0.01, False),
    "more than a hundredth lost": ({"a.txt": text(989, 11)}, "lost_share", 0.011, True),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_command_refuses_at_the_limits(tmp_path: Path, name: str) -> None:
    """On a terminal and as JSON alike, behind the table; a run of the same data is refused before it starts."""
    from isthmus.programs.engine.request.request import prepare

    made, key, share, is_refused = LIMITS[name]
    folder, data = marked_folder(tmp_path / "model"), tmp_path / "data"
    data.mkdir()
    if isinstance(made, dict):
        for file, content in made.items():
            (data / file).write_text(content)
    else:
        np.save(data / "ids.npy", made)
    words = ["data", str(data), "--model", str(folder)]
    plain, as_json = (CliRunner().invoke(app, [*words, *more], catch_exceptions=False) for more in ([], ["--json"]))
    assert plain.exit_code == as_json.exit_code == (2 if is_refused else 0)
    assert plain.stdout
    assert json.loads(as_json.stdout)[key] == pytest.approx(share)
    settings = {"folder": str(folder), "data": (str(data),), "context": 2, "batch": 1}
    if is_refused:
        assert plain.stderr
        with pytest.raises(ConfigError):
            prepare(task_settings=settings, run={"tokens": 1000, "learners": 1})
    assert bool(list(table_of(folder, data).faults())) is is_refused


@pytest.mark.parametrize(("passes", "is_warned"), [(100, False), (101, True)])
def test_the_command_warns_of_many_passes(tmp_path: Path, passes: int, is_warned: bool) -> None:
    folder = marked_folder(tmp_path / "model")
    (tmp_path / "a.txt").write_text("a" * 199)
    words = ["data", str(tmp_path / "a.txt"), "--model", str(folder), "--tokens", str(200 * passes), "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (result.exit_code, json.loads(result.stdout)["epochs"]) == (0, passes)
    assert bool(result.stderr) is is_warned


def test_the_command_reads_as_a_run_that_begins_now(tmp_path: Path) -> None:
    """Not as those that were begun before there were settings of it."""
    made = begins_by(byte_level())
    made.enable_truncation(8)
    folder = folder_of("llama, tied, grouped", tmp_path / "it", "float32")
    write(folder, made)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "vocab_size": 420}))
    (tmp_path / "a.txt").write_text("7 times 7 is 49.\n" * 50)
    words = ["data", str(tmp_path / "a.txt"), "--model", str(folder), "--json"]
    shown = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert shown["begins_with"] == ["<s>"]
    assert shown["tokens"] > 100
    trained = table_of(folder, tmp_path / "a.txt", **folder_task.READS)
    assert json.loads(json.dumps(trained.as_dict())) == shown


@pytest.mark.parametrize("make", ["json", "pads", "zeros"])
def test_a_run_of_data_that_cannot_be_meant_is_refused_before_it_starts(tmp_path: Path, make: str) -> None:
    from isthmus.programs.engine.request.request import prepare

    folder, data = marked_folder(tmp_path / "it"), tmp_path / "data.npy"
    if make == "json":
        data = tmp_path / "data.txt"
        data.write_text(json.dumps([{"text": "words"}] * 500))
    else:
        np.save(data, np.tile(np.array([5, PAD if make == "pads" else 0], np.uint16), 4000))
    settings = {"folder": str(folder), "data": (str(data),), "context": 16, "batch": 2}
    with pytest.raises(ConfigError):
        prepare(task_settings=settings, run={"tokens": 1000, "learners": 1})
    faults = list(table_of(folder, data).faults())
    assert all(fault.remedy for fault in faults)
    expected = {"json": str(data), "pads": "50.0%", "zeros": "50.0%"}
    assert expected[make] in faults[0].found
