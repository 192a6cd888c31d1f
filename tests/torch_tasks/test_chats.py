"""Chats by a folder's template, against transformers' rendering of the same folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isthmus.programs.model_folders.chats import Chat, ChatTemplate
from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.programs.reading.row_forms import ChatRow
from isthmus.runtime.errors import ConfigError
from tests.patience import PATIENCE
from tests.torch_tasks.folder_tokenizers import VOCABULARY, begins_by, byte_level, sentencepiece, write

pytestmark = [pytest.mark.torch]

DOING = "Reading it"
PLAIN = """{%- for message in messages %}
    {%- if message.role == "robot" %}{{ raise_exception("no role " + message.role) }}{% endif %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}
"""
MARKED = """{{ bos_token }}{% for message in messages %}
{% if message["role"] == "assistant" %}
<|im_start|>assistant
{% generation %}{{ message["content"] | trim }}<|im_end|>{% endgeneration %}

{% else %}
<|im_start|>{{ message["role"] }}
{{ message["content"] | trim }}<|im_end|>
{% endif %}
{% if loop.last and message.tags %}{{ message.tags | tojson }}{% continue %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
FORGETS = PLAIN.replace("message.content", "(message.content if loop.last else 'gone')")
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "1 times 7?"}, {"role": "assistant", "content": "7, höchstens."}],
    [
        {"role": "system", "content": " Count.  "},
        {"role": "user", "content": "\N{SNOWMAN}?"},
        {"role": "assistant", "content": "東京\n"},
        {"role": "user", "content": "and </s> <|im_end|>?"},
        {"role": "assistant", "content": " no ", "tags": {"ä": [1, None]}},
    ],
    [{"role": "assistant", "content": ""}],
]
MADE = {"byte_level": byte_level, "sentencepiece": sentencepiece}


def folder_of(to: Path, template: Any, name: str = "byte_level", *, is_file: bool = True) -> Path:
    made = begins_by(MADE[name]())
    folder = write(to, made, {} if is_file else {"chat_template": template})
    if is_file:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def chat_of(folder: Path, messages: list[dict[str, Any]], **options: Any) -> Chat:
    row = ChatRow("line 1 of it", tuple(messages), options)
    [chat] = ChatTemplate(folder, DOING).chats([row], FolderTokens(folder, VOCABULARY, DOING))
    return chat


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("template", [PLAIN, MARKED])
@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_has_the_tokens_of_transformers(tmp_path: Path, name: str, template: str, chat: Any) -> None:
    folder = folder_of(tmp_path / "it", template, name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = ChatTemplate(folder, DOING)
    asked = tokenizer.apply_chat_template(chat[:-1] or chat, add_generation_prompt=True, tokenize=False)
    assert ours.prompt(chat[:-1] or chat) == asked
    theirs = tokenizer.apply_chat_template(
        chat, return_dict=True, return_assistant_tokens_mask="generation" in template
    )
    found = chat_of(folder, chat)
    assert found.ids.tolist() == theirs["input_ids"]
    if template == MARKED:
        assert found.by == "marks"
        assert found.is_answer.tolist() == [bool(each) for each in theirs["assistant_masks"]]
        assert found.is_answer.any()
    else:
        assert found.by == "prefixes"
        said = [message["content"] + "<|im_end|>\n" for message in chat if message["role"] == "assistant"]
        expected = [each for text in said for each in tokenizer(text, add_special_tokens=False)["input_ids"]]
        if name == "byte_level":  # Whose tokens of a part are those of the whole.
            assert found.ids[found.is_answer].tolist() == expected
        assert (
            FolderTokens(folder, VOCABULARY, DOING).decode(found.ids[found.is_answer]).split()
            == "".join(text.replace("<|im_end|>", "") for text in said).split()
        )


def test_templates_come_from_where_transformers_takes_them(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": PLAIN}]
    for number, (template, is_file) in enumerate([(PLAIN, True), (PLAIN, False), (several, False)]):
        folder = folder_of(tmp_path / str(number), template, is_file=is_file)
        theirs = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(CHATS[0], tokenize=False)
        assert ChatTemplate(folder, DOING).prompt(CHATS[0]) == theirs + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "chat", "found"),
    [
        (PLAIN, [{"role": "robot", "content": "a"}], "no role robot"),
        (PLAIN, [{"role": "user", "content": "a"}], "none of its tokens"),
        (FORGETS, CHATS[1], "another text before"),
        ("{{ messages.__class__.__mro__ }}", CHATS[0], "unsafe"),
        ("{% if %}", CHATS[0], "Expected"),
        ("{{ messages.append(1) }}", CHATS[0], "unsafe"),
    ],
)
def test_what_a_template_does_not_take_is_refused(tmp_path: Path, template: str, chat: Any, found: str) -> None:
    folder = folder_of(tmp_path / "it", template)
    with pytest.raises(ConfigError) as caught:
        chat_of(folder, chat)
    assert found in caught.value.faults[0].found


def test_a_folder_without_a_template_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", byte_level())
    with pytest.raises(ConfigError) as caught:
        ChatTemplate(folder, DOING)
    assert "chat_template" in caught.value.faults[0].expected


# -- sample ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chats end."""
    folder = folder_of(tmp_path_factory.mktemp("chat") / "it", MARKED)
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    made.generation_config = transformers.GenerationConfig()
    made.save_pretrained(folder)
    ids = answer_of(folder, "7 times")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [399, ids[5]]}))
    return folder


def answer_of(folder: Path, message: str) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    read = transformers.AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": message}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = read.generate(**prompt, max_new_tokens=20, do_sample=False)[0]
    return [int(each) for each in ids[prompt["input_ids"].shape[1] :]]


def sampled(model: Path, *arguments: str, given: bytes = b"", status: int = 0) -> tuple[bytes, str]:
    command = [str(Path(sys.executable).with_name("isthmus")), "sample", str(model), "--temperature", "0", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout, done.stderr.decode()


@pytest.mark.process
def test_a_chat_is_answered_as_generate_answers_it_and_ends(model: Path) -> None:
    ids = answer_of(model, "7 times")
    assert len(ids) < 20, "it stops"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    expected = tokenizer.decode(ids[:-1], skip_special_tokens=True).encode()
    more = ("--chat", "--tokens", "20")
    assert sampled(model, *more, "--prompt", "7 times")[0] == expected
    assert sampled(model, *more, "--prompt", "-", given=b"7 times")[0] == expected
    assert sampled(model, *more, given=b"7 times")[0] == expected
    plain = sampled(model, "--tokens", "3", given=b"7 times")[0]
    assert plain.startswith(b"7 times")
    assert plain == sampled(model, "--tokens", "3", "--prompt", "7 times")[0]
    assert "at least one token" not in sampled(model, "--chat", given=b"\xff", status=2)[1]
