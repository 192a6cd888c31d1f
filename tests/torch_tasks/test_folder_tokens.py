"""A folder's tokenizer here, against transformers' reading of the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from isthmus import At
from isthmus.programs.engine.request.request import as_begun, find_task, prepare
from isthmus.programs.model_folders.folder_data import FolderData, marks_of
from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.programs.trained.sample import Writer
from isthmus.programs.trained.text_model import text_model
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.folder_tokenizers import TEXTS, VOCABULARY, begins_by, byte_level, sentencepiece, theirs, write

pytestmark = [pytest.mark.torch]

MADE = {"byte_level": byte_level, "sentencepiece": sentencepiece}
BOS, EOS = 1, 2
DOING = "Reading it"


@pytest.mark.parametrize("name", MADE)
def test_a_tokenizer_neither_cuts_nor_fills_a_text(tmp_path: Path, name: str) -> None:
    made = MADE[name]()
    made.enable_truncation(8)
    made.enable_padding(pad_id=3, pad_token="<pad>", length=12)
    folder = write(tmp_path / "it", made)
    assert len(made.encode(TEXTS[0]).ids) == 12, "it would have cut and filled"
    expected = [theirs(folder, text, add_special_tokens=False, split_special_tokens=True) for text in TEXTS]
    ours = FolderTokens(folder, VOCABULARY, DOING)
    for text, ids in zip(TEXTS, expected, strict=True):
        assert ours.encode(text.encode()).tolist() == ids
        assert ours.bytes_after_first(text.encode()) < max(len(text.encode()), 1)
    for ids, one in zip(expected, ours.encode_all([text.encode() for text in TEXTS]), strict=True):
        np.testing.assert_array_equal(one, ids)


BEGINNINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("", {}),
    "post-processor": ("<s> $A", {}),
    "at the end alone": ("$A </s>", {}),
    "both": ("<s> $A </s>", {}),
    "two before": ("<s> <|im_start|> $A", {}),
    "config says so": ("", {"add_bos_token": True}),
    "config says not": ("<s> $A", {"add_bos_token": False}),
    "config speaks of the end alone": ("<s> $A", {"add_eos_token": True}),
    "config names none": ("<s> $A", {"bos_token": None}),
    "config names another": ("<s> $A", {"add_bos_token": True, "bos_token": "<|im_start|>"}),
}


@pytest.mark.parametrize("form", BEGINNINGS)
@pytest.mark.parametrize("name", MADE)
def test_a_text_begins_as_transformers_begins_it(tmp_path: Path, name: str, form: str) -> None:
    single, config = BEGINNINGS[form]
    made = MADE[name]()
    folder = write(tmp_path / "it", begins_by(made, single) if single else made, config)
    ours = FolderTokens(folder, VOCABULARY, DOING)
    for text in [*TEXTS, "a"]:
        ids = theirs(folder, text, split_special_tokens=True)
        found = [*ours.begin, *ours.encode(text.encode()).tolist()]
        assert ids in (found, [*found, EOS])
        ids = theirs(folder, text)
        assert ids[: len(ids) - (ids[-1:] == [EOS])] == ours.prompt(text.encode()).tolist()
    assert FolderTokens(folder, VOCABULARY, DOING, bos="off").begin == ()


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tokenizer_class": None},
        {"tokenizer_class": "TokenizersBackend"},
        {"tokenizer_class": "LlamaTokenizerFast"},
        {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
        {"tokenizer_class": "LlamaTokenizer", "legacy": True},
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_prefix_space": True},
        {"tokenizer_class": "Qwen2TokenizerFast"},
        {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": True},
    ],
)
@pytest.mark.parametrize("name", MADE)
def test_a_tokenizer_is_made_by_the_class_that_transformers_chooses(
    tmp_path: Path, name: str, kind: str, config: dict[str, Any]
) -> None:
    check_class(write(tmp_path / "it", MADE[name](), config), kind)


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma2", "gpt2", "opt", "phi3"])
@pytest.mark.parametrize(
    "config",
    [
        {"unk_token": "<unk>", "tokenizer_class": None},
        {"unk_token": "<unk>"},
        {"unk_token": "<unk>", "tokenizer_class": "GemmaTokenizerFast"},
        {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
    ],
)
@pytest.mark.parametrize("name", MADE)
def test_so_is_one_of_gemma_and_of_gpt_2(tmp_path: Path, name: str, kind: str, config: dict[str, Any]) -> None:
    made = MADE[name]()
    if name == "sentencepiece":
        made.normalizer = None  # Which the class makes.
    check_class(write(tmp_path / "it", made, config), kind)


def check_class(folder: Path, kind: str) -> None:
    """A folder's ids and texts are those of transformers, whose class is of an architecture."""
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "model_type": kind}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = FolderTokens(folder, VOCABULARY, DOING)
    for text in [*TEXTS, " a", "12345 e\N{COMBINING ACUTE ACCENT}'S"]:
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text.encode()).tolist() == ids, type(tokenizer)
        assert ours.decode(np.asarray(ids, np.int32)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_bos_may_be_asked_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", byte_level())
    assert FolderTokens(folder, VOCABULARY, DOING, bos="on").begin == (BOS,)
    two = write(tmp_path / "two", begins_by(byte_level(), "<s> <|im_start|> $A"))
    assert FolderTokens(two, VOCABULARY, DOING, bos="on").begin == (BOS, 4)
    none = write(tmp_path / "none", byte_level(), {"bos_token": None})
    with pytest.raises(ConfigError) as caught:
        FolderTokens(none, VOCABULARY, DOING, bos="on")
    assert "bos_token" in caught.value.faults[0].expected
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>", "special": True}}))
    assert FolderTokens(folder, VOCABULARY, DOING, bos="on").begin == (BOS,)


@pytest.mark.parametrize("name", MADE)
def test_a_text_that_spells_a_special_token_is_text(tmp_path: Path, name: str) -> None:
    made = MADE[name]()
    made.add_tokens(["<|plain|>"])  # Which tokenizer_config.json alone says is special.
    made.add_tokens(["<|also|>", "<|extra|>"])
    also = {"content": "<|also|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    added = {str(made.token_to_id("<|also|>")): {**also, "single_word": False}}
    more = {"extra_special_tokens": ["<|extra|>"], "added_tokens_decoder": added, "eos_token": "<|plain|>"}
    folder = write(tmp_path / "it", made, more)
    text = TEXTS[-1] + "<|plain|>.<|also|>!<|extra|>?"
    split = theirs(folder, text, add_special_tokens=False, split_special_tokens=True)
    joined = theirs(folder, text, add_special_tokens=False)
    assert {BOS, EOS} < set(joined)
    assert not {BOS, EOS} & set(split)
    assert FolderTokens(folder, VOCABULARY, DOING).encode(text.encode()).tolist() == split
    assert FolderTokens(folder, VOCABULARY, DOING).encode_all([text.encode()])[0].tolist() == split
    read = FolderTokens(folder, VOCABULARY, DOING, special_in_text=True)
    assert read.encode(text.encode()).tolist() == joined
    assert read.decode(read.encode(text.encode())) == read.decode(np.asarray(joined, np.int32))


# -- documents ---------------------------------------------------------------------------------------------------------


def folder_of(to: Path, *, single: str = "<s> $A", eos: Any = EOS, generation: Any = None) -> Path:
    folder = write(to, begins_by(byte_level(), single) if single else byte_level())
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "eos_token_id": eos}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    return folder


def ids_of(folder: Path, rows: list[dict[str, str]], **settings: Any) -> list[int]:
    """The ids of rows of which all but the held-out are one after the other, in order."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompt, marks = settings.get("prompt"), marks_of(settings)
    corpus, _ = FolderData(folder, VOCABULARY, (str(data),), "text", prompt, "uint16", marks).read()
    return [int(each) for part in (corpus.train, corpus.evaluation) for one in part.segments for each in one]


NOW = {"bos": "folder", "eos": "folder", "special_in_text": False}
ROW = "7 is <s>7</s>."


@pytest.mark.parametrize(
    ("settings", "around", "splits"),
    [
        (NOW, ([BOS], [EOS]), True),
        ({**NOW, "bos": "off"}, ([], [EOS]), True),
        ({**NOW, "eos": "off"}, ([BOS], []), True),
        ({**NOW, "special_in_text": True}, ([BOS], [EOS]), False),
        ({}, ([], [EOS]), False),
        ({"bos": "on"}, ([BOS], [EOS]), False),
    ],
)
def test_documents_begin_and_end_by_the_settings(
    tmp_path: Path, settings: dict[str, Any], around: tuple[list[int], list[int]], splits: bool
) -> None:
    folder = folder_of(tmp_path / "it")
    begin, end = around
    text = theirs(folder, ROW, add_special_tokens=False, split_special_tokens=splits)
    assert ids_of(folder, [{"text": ROW}] * 3, **settings) == [*begin, *text, *end] * 3


def test_what_begins_a_document_comes_before_its_prompt(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "it")
    prompt, text = (theirs(folder, each, add_special_tokens=False) for each in ("1 times", " 7"))
    found = ids_of(folder, [{"p": "1 times", "text": " 7"}] * 2, prompt="p", **NOW)
    assert found == [*(~each for each in [BOS, *prompt]), *text, EOS] * 2


@pytest.mark.parametrize(
    ("eos", "generation", "now", "before"),
    [
        (2, None, 2, 2),
        (2, 5, 5, 2),
        (2, [5, 2], 5, 2),
        ([2, 5], None, 2, 2),
        (None, 5, 5, None),
        (None, None, None, None),
    ],
)
def test_the_end_of_a_document_is_that_of_generation(
    tmp_path: Path, eos: Any, generation: Any, now: int | None, before: int | None
) -> None:
    folder = folder_of(tmp_path / "it", eos=eos, generation=generation)
    assert marks_of(NOW).end(folder, VOCABULARY, DOING) == now
    assert marks_of({}).end(folder, VOCABULARY, DOING) == before
    if now is None:
        with pytest.raises(ConfigError) as caught:
            marks_of({**NOW, "eos": "on"}).end(folder, VOCABULARY, DOING)
        assert "eos_token_id" in caught.value.faults[0].expected


@pytest.mark.parametrize(
    ("generation", "config"),
    [(None, True), ({}, True), ({"eos_token_id": 399}, True), ({"eos_token_id": [399, "it"]}, False), (None, False)],
)
def test_a_model_stops_where_generate_stops(tmp_path: Path, generation: Any, config: bool) -> None:
    folder = folder_of(tmp_path / "it", eos=None)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("7 times", return_tensors="pt")["input_ids"]

    def written() -> list[int]:
        read = transformers.AutoModelForCausalLM.from_pretrained(folder)
        ids: list[int] = read.generate(prompt, max_new_tokens=12, do_sample=False)[0].tolist()
        return ids

    stop = written()[prompt.shape[1] + 4]
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "eos_token_id": stop if config else None}))
    if generation is None:
        (folder / "generation_config.json").unlink()
    else:
        text = json.dumps(generation).replace('"it"', str(stop))
        (folder / "generation_config.json").write_text(text)
    ids = written()
    assert (ids[-1] == stop) == (len(ids) < prompt.shape[1] + 12)
    theirs = tokenizer.decode(ids[:-1] if ids[-1] == stop else ids, skip_special_tokens=True)
    ours = Writer(text_model(folder, DOING), DOING).continuation(b"7 times", 12, temperature=0.0)
    assert "7 times" + "".join(ours) == theirs


def test_the_tokenizer_of_a_former_run_reads_all_that_its_file_says(tmp_path: Path) -> None:
    made = byte_level()
    made.enable_truncation(8)
    made.enable_padding(pad_id=3, pad_token="<pad>", length=12)
    folder = write(tmp_path / "it", made, {"tokenizer_class": "Qwen2Tokenizer"})
    before = [made.encode(text, add_special_tokens=False).ids for text in TEXTS]
    tokens = marks_of({}).tokens(folder, VOCABULARY, DOING)
    assert [each.tolist() for each in tokens.encode_all([text.encode() for text in TEXTS])] == before
    now = marks_of(NOW).tokens(folder, VOCABULARY, DOING)
    assert [each.tolist() for each in now.encode_all([text.encode() for text in TEXTS])] != before


def test_a_run_begun_before_these_settings_goes_on_as_it_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "it")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    model.config.eos_token_id = EOS
    model.save_pretrained(folder)
    (folder / "rows.jsonl").write_text('{"text": "7 is 7."}\n' * 60)
    given = {"folder": str(folder), "data": [str(folder / "rows.jsonl")], "context": 8, "batch": 2}
    chosen = prepare(task_settings=given, run={"tokens": 1000}, run_dir=tmp_path / "run", computes=False)
    keys = ("bos", "eos", "special_in_text")
    assert [chosen.config["task"][key] for key in keys] == ["folder", "folder", False]
    written = {key: value for key, value in chosen.config["task"].items() if value is not None and key not in keys}
    again = prepare(task_settings=as_begun(written), run={"tokens": 1000}, run_dir=tmp_path / "run", computes=False)
    assert [again.config["task"].get(key) for key in keys] == [None, None, None]
    tokens = [find_task(None, each.config["task"]).task.batch(At(0, 0, 0))["tokens"] for each in (chosen, again)]
    assert BOS in tokens[0]
    assert BOS not in tokens[1]
