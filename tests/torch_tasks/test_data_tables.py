"""The table of data for a model folder: special ids, what a tokenizer loses, and what is refused before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from isthmus.programs import folder_task
from isthmus.programs.reading.table import DataTable, LongestDocument
from isthmus.programs.settings import Schema
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.folder_tokenizers import byte_level, write
from tests.torch_tasks.test_model_folders import folder_of

pytestmark = [pytest.mark.torch]

PAD, UNKNOWN, END = 93, 92, 91
SETTINGS = Schema.of("task", folder_task.task)


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
    return to


def table_of(folder: Path, *data: Path, **more: Any) -> DataTable:
    return folder_task.data_table(SETTINGS.read({"folder": str(folder), "data": tuple(map(str, data)), **more}))


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
