"""Chats and completions as training data: which tokens have a loss, against transformers and trl's rules."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from isthmus import At
from isthmus.ops.data.batches import tokens_in
from isthmus.ops.island.contract import evaluation_of, first_tensors_of
from isthmus.programs import folder_task
from isthmus.programs.engine.request.batch_checks import check_sets
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.run.resume import changes
from isthmus.programs.evaluations import RunSize
from isthmus.programs.model_folders.folder_data import FolderData
from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.programs.reading.table import DataTable
from isthmus.programs.settings import Schema
from isthmus.programs.trained.evaluate import evaluate
from isthmus.programs.trained.text_model import text_model
from isthmus.runtime.errors import ConfigError, Fault
from tests.torch_tasks.folder_tokenizers import VOCABULARY, begins_by, byte_level, sentencepiece, write
from tests.torch_tasks.test_chats import MARKED
from tests.torch_tasks.test_module_folders import folder_of as model_folder
from tests.torch_tasks.test_module_folders import loaded, nested, task_of

pytestmark = [pytest.mark.torch]

EOS = 2
NOW = {"bos": "folder", "eos": "folder", "special_in_text": False}
SETTINGS = Schema.of("task", folder_task.task)
MADE = {"byte_level": byte_level, "sentencepiece": sentencepiece}

# What an answer adds to a chat stands between [[ and ]]: marks of the twin by which transformers says what has a loss.
TEMPLATES = {
    "chatml": """{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- "<|im_start|>assistant\\n" }}[[{{- message.content + "<|im_end|>\\n" }}]]
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}""",
    "llama 3": """{{- bos_token }}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "<|im_end|>\\n\\n" }}
    {%- if message.role == "assistant" %}[[{{- message.content | trim + eos_token }}]]
    {%- else %}{{- message.content | trim + eos_token }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant<|im_end|>\\n\\n" }}{%- endif %}""",
    "mistral": """{{- bos_token }}
{%- if messages[0].role == "system" %}{%- set system = messages[0].content + "\\n\\n" %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = "" %}{%- set rest = messages %}{%- endif %}
{%- for message in rest %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- if message.role == "user" %}
        {{- "[INST] " + (system if loop.first else "") + message.content + " [/INST]" }}
    {%- else %}[[{{- " " + message.content + eos_token }}]]{%- endif %}
{%- endfor %}""",
    "phi 3": """{%- for message in messages %}
    {%- if message.role == "assistant" %}{{- "<|im_start|>assistant\\n" }}[[{{- message.content + "<|im_end|>\\n" }}]]
    {%- else %}{{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}
{%- elif messages[-1].role == "assistant" %}[[{{- eos_token }}]]
{%- else %}{{- eos_token }}{%- endif %}""",
}
TOOLS = """{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- for message in messages %}{{- message.role + ": " }}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}{{- call.function.name + (call.function.arguments | tojson) }}{%- endfor %}
    {%- else %}{{- message.content }}{%- endif %}{{- "\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "assistant: " }}{%- endif %}"""
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "1 times 7?"}, {"role": "assistant", "content": "7, höchstens."}],
    [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "\N{SNOWMAN} and <|im_end|>?"},
        {"role": "assistant", "content": "東京</s>"},
        {"role": "user", "content": "And 2 times 7?"},
        {"role": "assistant", "content": "14"},
    ],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
]


def unmarked(template: str) -> str:
    return template.replace("[[", "").replace("]]", "")


def marked(template: str) -> str:
    return template.replace("[[", "{%- generation %}").replace("]]", "{%- endgeneration %}")


def folder_of(to: Path, template: str | None, name: str = "byte_level") -> Path:
    folder = write(to, begins_by(MADE[name]()))
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "eos_token_id": EOS}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def lines(to: Path, *rows: Any) -> Path:
    to.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return to


def read(folder: Path, *data: Path) -> list[int]:
    """All ids of data, in order; those that are not predicted are complements."""
    texts = tuple(map(str, data))
    corpus, _ = FolderData(folder, VOCABULARY, texts, "text", None, "uint16", folder_task.marks_of(NOW)).read()
    return [int(each) for part in (corpus.train, corpus.evaluation) for one in part.segments for each in one]


def table_of(folder: Path, *data: Path, **more: Any) -> DataTable:
    settings = {"folder": str(folder), "data": tuple(map(str, data)), **NOW, **more}
    return folder_task.data_table(SETTINGS.read(settings))


def refused(folder: Path, row: Any, rows: Path) -> Fault:
    with pytest.raises(ConfigError) as caught:
        read(folder, lines(rows, row))
    [fault] = caught.value.faults
    assert str(rows) in fault.expected
    assert "line 1" in fault.expected
    return fault


def theirs(folder: Path, chat: Any, **options: Any) -> list[int]:
    """What transformers makes of a chat, with complements of what it says has no loss."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True, **options)
    return [id if mask else ~id for id, mask in zip(made["input_ids"], made["assistant_masks"], strict=True)]


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("template", [*TEMPLATES, "trimmed"])
def test_tokens_with_a_loss_are_those_that_transformers_marks(tmp_path: Path, name: str, template: str) -> None:
    source = TEMPLATES.get(template, MARKED)
    with_marks = folder_of(tmp_path / "marked", marked(source), name)
    data = lines(tmp_path / "rows.jsonl", *({"messages": chat, "id": 1} for chat in CHATS))
    expected = [each for chat in CHATS for each in theirs(with_marks, chat)]
    assert any(each >= 0 for each in expected)
    assert any(each < 0 for each in expected)
    assert read(with_marks, data) == expected, "nothing is put before a chat or behind it"
    table = table_of(with_marks, data)
    assert (table.answers_by, table.documents_by_form) == (("marks",), {"chats": len(CHATS)})
    assert (table.tokens, table.predicted) == (len(expected), sum(each >= 0 for each in expected))
    if template != "trimmed":
        without = folder_of(tmp_path / "unmarked", unmarked(source), name)
        assert read(without, data) == expected
        assert table_of(without, data).answers_by == ("prefixes",)


def test_prompts_and_completions_of_messages_have_the_loss_that_trl_gives_them(tmp_path: Path) -> None:
    """Of all that the whole has more than the prompt with the header of an answer, marked or not."""
    for number, source in enumerate([unmarked(TEMPLATES["chatml"]), marked(TEMPLATES["chatml"]), MARKED]):
        folder = folder_of(tmp_path / str(number), source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        expected = []
        for chat in CHATS[:3]:
            asked = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
            whole = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
            assert whole[: len(asked)] == asked
            expected += [*(~each for each in asked), *whole[len(asked) :]]
        rows = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in CHATS[:3]]
        assert read(folder, lines(tmp_path / "rows.jsonl", *rows)) == expected


def test_prompts_and_completions_of_text_begin_and_end_as_texts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "it", None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [{"prompt": "1 times 7?", "completion": " 7</s>"}, {"prompt": "", "completion": "14"}]
    expected = []
    for row in rows:
        prompt, text = (
            tokenizer(row[key], add_special_tokens=False, split_special_tokens=True)["input_ids"] for key in row
        )
        expected += [~tokenizer.bos_token_id, *(~each for each in prompt), *text, EOS]
    data = lines(tmp_path / "rows.jsonl", *rows)
    assert read(folder, data) == expected
    same = lines(tmp_path / "named.jsonl", *({"q": row["prompt"], "a": row["completion"]} for row in rows))
    table = table_of(folder, data)
    assert (table.documents_by_form, table.predicted) == ({"completions": 2}, sum(each >= 0 for each in expected))
    assert table.predicted == table_of(folder, same, prompt="q", column="a").predicted
    assert table.for_budget(table.predicted).epochs == 1.0


def test_files_of_several_forms_are_read_together(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "it", unmarked(TEMPLATES["chatml"]))
    (tmp_path / "a.txt").write_text("A text.")
    data = [tmp_path / "a.txt", lines(tmp_path / "b.jsonl", {"messages": CHATS[0]})]
    data.append(lines(tmp_path / "c.jsonl", {"prompt": "a", "completion": "b"}))
    table = table_of(folder, *data)
    assert table.documents_by_form == {"texts": 1, "chats": 1, "completions": 1}
    [text] = [table_of(folder, tmp_path / "a.txt")]
    assert text.predicted == text.tokens, "all of a text, with what begins it"
    assert text.answers_by == ()


def test_tools_go_to_the_template_as_transformers_gives_them(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"a": {"default": None}}}}]
    called = [{"type": "function", "function": {"name": "add", "arguments": {"ä": None}}}]
    chat = [{"role": "user", "content": "1?"}, {"role": "assistant", "tool_calls": called}, CHATS[0][1]]
    row = {"messages": chat, "tools": tools}
    folder = folder_of(tmp_path / "it", TOOLS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = tokenizer.apply_chat_template(chat, tools=tools, return_dict=True)["input_ids"]
    data = lines(tmp_path / "rows.jsonl", row)
    assert [each if each >= 0 else ~each for each in read(folder, data)] == expected
    learned = np.array([each for each in read(folder, data) if each >= 0])
    text = FolderTokens(folder, VOCABULARY, "Reading it").decode(learned)
    assert text.split() == ['add{"ä":', "null}", "7,", "höchstens."]
    # A template of its own for tools, where there is one, and the arguments that a row gives a template.
    (folder / "chat_template.jinja").write_text("{%- if deep %}deep{%- endif %}" + unmarked(TEMPLATES["chatml"]))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOLS)
    assert [each if each >= 0 else ~each for each in read(folder, data)] == expected
    deep = {"messages": CHATS[0], "chat_template_kwargs": {"deep": True}}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = tokenizer.apply_chat_template(CHATS[0], deep=True, return_dict=True)["input_ids"]
    plain = tokenizer.apply_chat_template(CHATS[0], return_dict=True)["input_ids"]
    found = read(folder, lines(tmp_path / "deep.jsonl", deep))
    assert [each if each >= 0 else ~each for each in found] == expected != plain


@pytest.mark.parametrize("marks", [True, False])
def test_answers_of_weight_zero_are_read_and_not_learned(tmp_path: Path, marks: bool) -> None:
    source = TEMPLATES["chatml"]
    folder = folder_of(tmp_path / "it", marked(source) if marks else unmarked(source))
    chat = [{**each, "weight": 0} if each["content"] == "14" else each for each in CHATS[1]]
    found = read(folder, lines(tmp_path / "rows.jsonl", {"messages": chat}))
    whole = theirs(folder_of(tmp_path / "marked", marked(source)), CHATS[1])
    last = max(number for number, each in enumerate(whole[:-1]) if each >= 0 and whole[number - 1] < 0)
    assert found == [*whole[:last], *(each if each < 0 else ~each for each in whole[last:])]
    chat = [{**each, "weight": 0} if each["role"] == "assistant" else each for each in CHATS[0]]
    assert "none of its tokens" in refused(folder, {"messages": chat}, tmp_path / "rows.jsonl").found


NO_ORDER = [{"role": "assistant", "content": "First."}, CHATS[0][0], CHATS[0][1]]
TWICE = [CHATS[1][0], CHATS[1][0], *CHATS[0]]
REWRITES = unmarked(TEMPLATES["chatml"]).replace("message.content", "(message.content if loop.last else 'gone')")
CALLED = [{"function": {"name": "add", "arguments": '{"a": 1}'}}]


@pytest.mark.parametrize(
    ("template", "row", "found"),
    [
        ("mistral", {"messages": NO_ORDER}, "alternate"),
        ("mistral", {"messages": TWICE}, "alternate"),
        ("chatml", {"messages": CHATS[0][:1]}, "none of its tokens"),
        ("chatml", {"messages": CHATS[0], "tools": [{"name": "add"}]}, "tools"),
        (
            "chatml",
            {"messages": [CHATS[0][0], {"role": "assistant", "content": "", "tool_calls": CALLED}]},
            "tool_calls",
        ),
        ("chatml", {"messages": CHATS[0], "documents": [{"title": "a"}]}, "documents"),
        ("chatml", {"messages": [{**CHATS[0][0], "role": "User"}]}, "User"),
        ("chatml", {"messages": [CHATS[0][0], {**CHATS[0][1], "reasoning_content": "7"}]}, "reasoning_content"),
        (TOOLS, {"messages": [CHATS[0][0], {"role": "assistant", "tool_calls": CALLED}]}, "JSON of their JSON"),
        (REWRITES, {"messages": CHATS[1]}, "another text"),
        (REWRITES, {"prompt": CHATS[0][:1], "completion": CHATS[0][1:]}, "another text"),
    ],
)
def test_chats_that_a_template_does_not_write_are_refused(tmp_path: Path, template: str, row: Any, found: str) -> None:
    folder = folder_of(tmp_path / "it", unmarked(TEMPLATES.get(template, template)))
    assert found in refused(folder, row, tmp_path / "rows.jsonl").found


def test_answers_that_end_where_no_model_stops_are_counted_and_warned_of(tmp_path: Path) -> None:
    """ChatML in a folder whose eos is another token: a model that has learned it goes on writing."""
    folder = folder_of(tmp_path / "it", unmarked(TEMPLATES["chatml"]))
    data = lines(tmp_path / "rows.jsonl", {"messages": CHATS[0]}, {"messages": CHATS[2]})
    table = table_of(folder, data)
    assert table.chats_without_stop == 2
    assert len(list(table.warnings())) == 1
    assert not list(table.faults())
    end = FolderTokens(folder, VOCABULARY, "Reading it").rendered("<|im_end|>").ids.tolist()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, *end]}))
    assert table_of(folder, data).chats_without_stop == 0
    (tmp_path / "a.txt").write_text("A text.")
    assert table_of(folder, tmp_path / "a.txt").chats_without_stop is None


def test_a_system_twice_is_what_a_template_makes_of_it(tmp_path: Path) -> None:
    source = TEMPLATES["chatml"]
    data = lines(tmp_path / "rows.jsonl", {"messages": TWICE}, {"messages": NO_ORDER})
    expected = [each for chat in (TWICE, NO_ORDER) for each in theirs(folder_of(tmp_path / "a", marked(source)), chat)]
    assert read(folder_of(tmp_path / "b", unmarked(source)), data) == expected


def test_a_folder_without_a_template_refuses_chats(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "it", None)
    with pytest.raises(ConfigError) as caught:
        read(folder, lines(tmp_path / "rows.jsonl", {"messages": CHATS[0]}))
    assert "chat_template" in caught.value.faults[0].expected


# -- a model -----------------------------------------------------------------------------------------------------------


def model_of(to: Path) -> tuple[Path, Path, list[list[dict[str, str]]]]:
    """A model folder whose tokens are letters, with a template, and chats for it."""
    source = model_folder("qwen3", to / "it", "float32")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (source / "chat_template.jinja").write_text(
        "{%- for message in messages %}{{- '<' + message.role[0] + '>' }}{%- if message.role == 'assistant' %}"
        "{%- generation %}{{- message.content + '!' }}{%- endgeneration %}"
        "{%- else %}{{- message.content }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<a>' }}{%- endif %}"
    )
    chats = [
        [{"role": "user", "content": f"{i}x7"}, {"role": "assistant", "content": f"it_is_{7 * i}"}] for i in range(400)
    ]
    return source, lines(to / "rows.jsonl", *({"messages": chat} for chat in chats)), chats


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_model_is_trained_on_answers_and_measured_on_them(tmp_path: Path, framework: str) -> None:
    source, data, _ = model_of(tmp_path)
    task = task_of(source, data, framework=framework)
    batch = task.batch(At(0, 0, 3))
    tokens, weights = batch["tokens"].astype(np.int64), batch["weights"]
    assert weights.sum() == pytest.approx(1.0)
    assert tokens_in(batch, task.tokens_per_batch, 0) == (weights > 0).sum()
    learned, said = weights > 0, tokens[:, 1:]
    ends, question = said == ord("!") - 33, said == ord("x") - 33
    assert ends.any()
    assert question.any()
    assert learned[ends].all()
    assert not learned[question].any()
    labels = torch.tensor(np.where(np.pad(weights, ((0, 0), (1, 0))) > 0, tokens, -100))
    expected = loaded(source)(torch.tensor(tokens), labels=labels).loss.item()
    if framework == "torch":
        ours = task.loss(task.build().eval(), {name: torch.tensor(each) for name, each in batch.items()}).item()
    else:
        leaves = {leaf.name: task.load(leaf.name, leaf) for leaf in task.recipe().leaves()}
        ours = float(task.loss(nested(leaves), batch))
    assert ours == pytest.approx(expected, rel=1e-5)
    whole = list(task.evaluation_batches(0))
    assert sum(each["weights"].sum() for each in whole) / len(whole) == pytest.approx(1.0, rel=1e-5)


def test_a_run_of_few_chats_may_evaluate_on_smaller_batches_than_it_trains_on(tmp_path: Path) -> None:
    """The held-out part of a few dozen chats has few windows, and an evaluation batches of one."""
    source, data, _ = model_of(tmp_path)
    prepared = prepare(
        task_settings={"folder": str(source), "data": (str(data),), "context": 32, "batch": 4, "evaluation_windows": 4},
        run={"tokens": 2000, "learners": 1},
    )
    sizes = [len(prepared.task.batch(At(0, 0, 0, split))["tokens"]) for split in ("train", "evaluation")]
    assert sizes == [4, 1]


def test_an_evaluation_of_chats_measures_answers_alone(tmp_path: Path) -> None:
    source, data, chats = model_of(tmp_path)
    found = evaluate(text_model(source, "Reading it"), data, "Reading it")
    answers = [chat[1]["content"] + "!" for chat in chats]
    assert found.tokens == sum(map(len, answers))  # A letter is a token.
    assert found.bits_per_byte == pytest.approx(found.loss / np.log(2))
    with pytest.raises(ConfigError) as caught:
        evaluate(text_model(source, "Reading it"), lines(tmp_path / "bad.jsonl", {"messages": []}), "Reading it")
    assert str(tmp_path / "bad.jsonl") in caught.value.faults[0].expected


# -- the day, and sets -------------------------------------------------------------------------------------------------


def ids_of(**settings: Any) -> list[int]:
    """All ids that a task with these settings reads."""
    corpus = folder_task.task(**settings).batch.__self__.corpus
    return [int(each) for part in (corpus.train, corpus.evaluation) for one in part.segments for each in one]


def test_a_run_of_chats_reads_the_same_on_every_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, data, _ = model_of(tmp_path)
    template = source / "chat_template.jinja"
    given = {"folder": str(source), "data": (str(data),)}
    assert "day" not in folder_task.chosen(SETTINGS.read(given), RunSize(tokens=10_000, learners=1))
    template.write_text("{{- strftime_now('%d-%b-%Y') }}" + template.read_text())
    today = date.today()
    chosen = folder_task.chosen(SETTINGS.read(given), RunSize(tokens=10_000, learners=1))
    assert chosen["day"] in (today.isoformat(), date.today().isoformat())
    begun = {**given, "context": 16, "batch": 2, **NOW, "day": chosen["day"]}
    first = ids_of(**begun)
    held_out = [each["tokens"].tolist() for each in folder_task.held_out(SETTINGS.read(begun), source)]

    class Later(date):
        @classmethod
        def today(cls) -> Later:
            return cls.fromordinal(today.toordinal() + 40)

    for module in ("folders", "tokens"):
        monkeypatch.setattr(f"isthmus.programs.model_folders.{module}.date", Later)
    assert ids_of(**begun) == first
    assert [each["tokens"].tolist() for each in folder_task.held_out(SETTINGS.read(begun), source)] == held_out
    other = ids_of(**{**begun, "day": Later.today().isoformat()})
    assert other != first
    assert ids_of(**{**begun, "day": None}) == other  # As runs read that are not told.


@pytest.mark.parametrize("day", ["today", "20260331", "2026-02-30", "2026-3-31"])
def test_a_day_that_is_none_is_refused(tmp_path: Path, day: str) -> None:
    source, data, _ = model_of(tmp_path)
    with pytest.raises(ConfigError) as caught:
        folder_task.task(folder=str(source), data=(str(data),), day=day)
    [fault] = caught.value.faults
    assert (fault.action, fault.found) == ("Setting task.day", repr(day))


@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_a_set_of_chats_is_measured_beside_whatever_the_data_are(tmp_path: Path, framework: str, kind: str) -> None:
    source, chats, _ = model_of(tmp_path)
    data = tmp_path / f"data.{'txt' if kind == 'texts' else 'npy'}"
    if kind == "texts":
        data.write_text("so_it_is_said " * 400)
    else:
        np.save(data, np.arange(4000, dtype=np.uint16) % 90)
    more = {"framework": framework, "evaluation_windows": 8, "sets": {"c": str(chats), "t": str(data)}}
    found = []
    for path in (data, chats):
        task = task_of(source, path, **more)
        check_sets(task, 0)
        found.append(evaluation_of(task, 0).metrics(first_tensors_of(task, 0)))
    assert "weights" not in task_of(source, data, **more).batch(At(0, 0, 0))
    for name in ("loss/c", "loss/t"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)
    assert found[0]["loss/c"] != pytest.approx(found[0]["loss/t"], rel=1e-3)


def test_a_resume_with_data_of_another_kind_is_refused_in_few_words(tmp_path: Path) -> None:
    source, data, chats = model_of(tmp_path)
    kept = tmp_path / "answers.jsonl"
    lines(kept, *({"text": chat[1]["content"]} for chat in chats))

    def job() -> Any:
        settings = {"folder": str(source), "data": (str(data),), "context": 32, "batch": 2}
        return prepare(task_settings=settings, run={"tokens": 2000, "learners": 1}).job

    began = SimpleNamespace(job=job())
    assert not changes(began, job(), "Resuming it")  # type: ignore[arg-type]  # Nothing else of it is read.
    kept.rename(data)
    with pytest.raises(ConfigError) as caught:
        changes(began, job(), "Resuming it")  # type: ignore[arg-type]
    [fault] = caught.value.faults
    assert ("64" in fault.expected, fault.found) == (True, "'64'")
    assert len(str(fault)) < 400
    with pytest.raises(ConfigError) as caught:
        changes(began, replace(began.job, layout=began.job.layout[1:]), "Resuming it")  # type: ignore[arg-type]
    [fault] = caught.value.faults
    assert began.job.layout[0].name in fault.expected
    assert began.job.layout[1].name in fault.found
    assert len(str(fault)) < 400


@pytest.mark.parametrize("bad", [-1, 97])
def test_ids_that_a_model_does_not_have_are_refused_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """The beginning alone of a large file of ids is looked at as it is opened."""
    source, _, _ = model_of(tmp_path)
    ids = np.arange(2000, dtype=np.int32) % 90
    ids[1500] = bad
    np.save(tmp_path / "ids.npy", ids)
    monkeypatch.setattr("isthmus.ops.data.corpus.CHECKED_TOKENS_MAX", 100)
    with pytest.raises(ConfigError) as caught:
        evaluate(text_model(source, "Reading it"), tmp_path / "ids.npy", "Reading it")
    [fault] = caught.value.faults
    assert str(bad) in fault.found
