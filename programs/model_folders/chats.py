"""Chats as a model folder has them: its template, which makes one text of messages, and the tokens of it to be learned.

The template is rendered as transformers renders it: in jinja2's immutable sandbox, with the tag `generation`, within
which is what the assistant says, and with what templates call: `raise_exception`, `strftime_now`, `tojson`. The time
is that of now, or the beginning of the day that a run has, whose processes and lives read alike. A template comes with
its folder, so it gets nothing but the messages and the names of special tokens, and the sandbox refuses the rest. Chats
are rendered by one thread.

Which tokens are the assistant's is said by the marks of the template, as transformers reads them; else by prefixes: an
answer is what the chat up to it has more than the chat before it with the header of an answer, but for an eos token
that stands at the end of any chat. A template that rewrites earlier turns has no such prefixes, and is refused. What
completes a prompt is all that the chat has more than the prompt with that header, marked or not.

Nothing is put before a chat or behind it: the template says it all, as in transformers and trl. What a template leaves
out in silence is refused where it is what the assistant says or was told, such as tools; a JSON text that a template
writes as JSON of JSON, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from isthmus.programs.model_folders.folders import TOKENIZER_CONFIG, template_names_in, text_in, tokenizer_config_in
from isthmus.programs.model_folders.tokens import FolderTokens, Ids
from isthmus.programs.reading.row_forms import ASSISTANT, ChatRow
from isthmus.runtime.errors import ConfigError, shortened

CHAT_TEMPLATE: Final = "chat_template.jinja"
TEMPLATES: Final = "additional_chat_templates"
DEFAULT: Final = "default"
FOR_TOOLS: Final = "tool_use"
"""The names of templates that transformers looks for, where a folder has several."""
_MARK: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SAID: Final = ("tool_calls", "reasoning_content", "reasoning", "thinking")
"""What a message has beside its content that is said, too."""
Message: TypeAlias = Mapping[str, Any]
Span: TypeAlias = tuple[int, int]
By: TypeAlias = Literal["marks", "prefixes"]
"""How it is known which tokens of a chat are the assistant's."""


@final
class Chat(NamedTuple):
    """The tokens of a chat, int32[length], and which are to be learned, bool[length]: the assistant's, by the
    template's `marks`, or by `prefixes`. `answer_bytes`: those of their text."""

    ids: Ids
    is_answer: npt.NDArray[np.bool_]
    by: By
    answer_bytes: int


@final
class ChatTemplate:
    """The chat templates of a folder; ConfigError where it has none, or one that is no template.

    `day`: what templates take for today, as ISO 8601 has it; empty for the time of now.
    """

    def __init__(self, folder: Path, doing: str, day: str = "") -> None:
        self._doing, self.folder, self._day = doing, folder, day
        self._sources = _sources_in(folder, doing)
        self._names = template_names_in(folder, doing)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text after which the assistant answers."""
        return self._text(ChatRow("the chat", tuple(messages), {}), messages, is_asked=True)

    def chats(self, rows: Sequence[ChatRow], tokens: FolderTokens) -> list[Chat]:
        """The tokens of whole chats; ConfigError for one that the template refuses or leaves something out of, or that
        has no answer."""
        said = [self._said(row) for row in rows]
        encoded = tokens.rendered_all([text for text, _, _ in said])
        chats = []
        for row, (text, spans, by), (ids, offsets) in zip(rows, said, encoded, strict=True):
            is_answer = _within(offsets, spans)
            if not is_answer.any():
                do = f"Leave it out, or give it a message whose role is {ASSISTANT}."
                expected = f"a chat in which the assistant answers in {row.where}"
                roles = ", ".join(dict.fromkeys(str(each.get("role")) for each in row.messages))
                raise ConfigError(self._doing, expected, f"none of its tokens, in messages of {roles}", do)
            answer_bytes = sum(len(text[begin:end].encode()) for begin, end in spans)
            chats.append(Chat(ids, is_answer, by, answer_bytes))
        return chats

    def _said(self, row: ChatRow) -> tuple[str, list[Span], By]:
        """The text of a chat, and the places of what is to be learned."""
        source = self._source(row.options.get("tools"))
        self._check_whole(row, source)
        if row.prompts is not None:
            text, spans = self._completed(row, row.prompts)
            by: By = "prefixes"
        else:
            has_marks = _MARK.search(source) is not None
            text, spans = self._marked(row) if has_marks else self._prefixed(row)
            by = "marks" if has_marks else "prefixes"
        for message in row.messages:
            self._check_calls(message, text, row.where)
        # No tokenizer takes halves of letters, of which JSON may have some.
        return text.encode(errors="replace").decode(), spans, by

    def _source(self, tools: Any) -> str:
        name = FOR_TOOLS if tools is not None and FOR_TOOLS in self._sources else DEFAULT
        return self._sources[name]

    def _check_whole(self, row: ChatRow, source: str) -> None:
        """Refuse what the template does not name."""
        there = {key for message in row.messages for key in _SAID if message.get(key)}
        there |= {key for key in ("tools", "documents") if row.options.get(key)}
        if lacks := sorted(key for key in there if key not in source):
            do = f"Leave {' and '.join(lacks)} out of the rows, or take a template that writes {lacks[0]}."
            expected = f"a template in {self.folder} that writes all that is in {row.where}"
            raise ConfigError(self._doing, expected, f"none of {', '.join(lacks)}", do)

    def _check_calls(self, message: Message, text: str, where: str) -> None:
        """Refuse arguments that are JSON already, if the template makes JSON of them once more."""
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function", call) if isinstance(call, dict) else {}
            arguments = function.get("arguments") if isinstance(function, dict) else None
            forms = [json.dumps(arguments, ensure_ascii=each) for each in (True, False)]
            if isinstance(arguments, str) and any(form in text for form in forms):
                do = "Write the arguments as an object, and not as its JSON."
                expected = f"arguments of tool_calls in {where} that the template writes as they are"
                raise ConfigError(self._doing, expected, "JSON of their JSON", do)

    def _text(self, row: ChatRow, messages: Sequence[Message], *, is_asked: bool = False) -> str:
        with self._rendering(row.where):
            return str(self._template(row).render(**self._given(row, messages, is_asked=is_asked)))

    def _template(self, row: ChatRow) -> Any:
        return _compiled(self._source(row.options.get("tools")))

    def _given(self, row: ChatRow, messages: Sequence[Message], *, is_asked: bool) -> dict[str, Any]:
        given = {"messages": [dict(each) for each in messages], "add_generation_prompt": is_asked}
        clock = {"strftime_now": datetime.fromisoformat(self._day).strftime} if self._day else {}
        return {**self._names, **clock, "tools": None, "documents": None, **row.options, **given}

    def _marked(self, row: ChatRow) -> tuple[str, list[Span]]:
        """The text, and the places of what the template marks."""
        blocks: list[str] = []
        spans: list[Span] = []
        with self._rendering(row.where):
            template = self._template(row)
            with template.environment.marking(blocks, spans):
                for block in template.generate(**self._given(row, row.messages, is_asked=False)):
                    blocks.append(block)  # The marks look at what is there so far.
        if row.unlearned:
            answers = [number for number, each in enumerate(row.messages) if each.get("role") == ASSISTANT]
            if len(answers) != len(spans):
                do = "Leave weight out, or the chat."
                expected = f"a template that marks each answer once, for weights in {row.where}"
                raise ConfigError(self._doing, expected, f"{len(spans)} marks of {len(answers)} answers", do)
            spans = [span for number, span in zip(answers, spans, strict=True) if number not in row.unlearned]
        return "".join(blocks), spans

    def _prefixed(self, row: ChatRow) -> tuple[str, list[Span]]:
        """The text, and the places of what each answer adds to it."""
        messages, whole = row.messages, self._text(row, row.messages)
        eos, spans = self._names.get("eos_token", ""), []
        for number, message in enumerate(messages):
            if message.get("role") == ASSISTANT:
                before = self._text(row, messages[:number], is_asked=True)
                after = self._text(row, messages[: number + 1])
                if not whole.startswith(after) and eos:
                    after = after.removesuffix(eos)
                if not (after.startswith(before) and whole.startswith(after)):
                    do = "Put {% generation %} and {% endgeneration %} around what the assistant says, in the template."
                    expected = (
                        "a template that leaves earlier turns as they are, or marks what the assistant says, for "
                        f"{row.where}"
                    )
                    raise ConfigError(self._doing, expected, f"another text before message {number + 1}", do)
                if number not in row.unlearned:
                    spans.append((len(before), len(after)))
        return whole, spans

    def _completed(self, row: ChatRow, prompts: int) -> tuple[str, list[Span]]:
        """The text, and the place of what completes the prompt."""
        before, whole = self._text(row, row.messages[:prompts], is_asked=True), self._text(row, row.messages)
        if not whole.startswith(before):
            do = "Write them as messages, or take a template that leaves earlier turns as they are."
            expected = f"a template that writes a prompt as it is before its completion, for {row.where}"
            raise ConfigError(self._doing, expected, "another text", do)
        return whole, [(len(before), len(whole))]

    @contextmanager
    def _rendering(self, where: str) -> Iterator[None]:
        """ConfigError for what a template raises, which may be anything."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            do = "Correct the chat, or the template."
            found = shortened(f"{type(error).__name__}: {error}", 300)
            expected = f"a chat that the template in {self.folder} takes in {where}"
            raise ConfigError(self._doing, expected, found, do) from None


def _within(offsets: Sequence[Span], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Which tokens, whose places are in order, have a character of a span: as transformers has it."""
    found = np.zeros(len(offsets), bool)
    at = 0
    for number, (begin, end) in enumerate(offsets):
        while at < len(spans) and begin >= spans[at][1]:
            at += 1
        if at == len(spans):
            break
        found[number] = end > spans[at][0]
    return found


def _sources_in(folder: Path, doing: str) -> dict[str, str]:
    """The templates of a folder, by name: of their own files, else of tokenizer_config.json."""
    named: dict[Any, Any] = {}
    if (folder / CHAT_TEMPLATE).is_file():
        named[DEFAULT] = text_in(folder / CHAT_TEMPLATE, doing)
        if (folder / TEMPLATES).is_dir():
            named |= {path.stem: text_in(path, doing) for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    else:
        found = tokenizer_config_in(folder, doing).get("chat_template")
        several = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
        named = {each.get("name"): each.get("template") for each in several if isinstance(each, dict)}
    sources = {name: source for name, source in named.items() if isinstance(name, str) and isinstance(source, str)}
    if DEFAULT not in sources:
        do = "Take the folder of a model that was tuned on chats, or put its template there."
        raise ConfigError(doing, f"{CHAT_TEMPLATE}, or chat_template in {TOKENIZER_CONFIG}, in {folder}", "neither", do)
    return sources


@lru_cache(maxsize=4)
def _compiled(source: str) -> Any:
    return _environment().from_string(source)


def _environment() -> Any:
    """The sandbox of templates, with what those of transformers have."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around what the assistant says, whose places are noted while `marking`."""

        tags = {"generation"}  # noqa: RUF012  # As jinja2 has it.

        def __init__(self, environment: Any) -> None:
            super().__init__(environment)
            environment.extend(marking=self.marking)
            self._noted: tuple[list[str], list[Span]] | None = None

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

        def _note(self, caller: Any) -> str:
            said: str = caller()
            if self._noted is not None:
                blocks, spans = self._noted
                begin = sum(map(len, blocks))
                spans.append((begin, begin + len(said)))
            return said

        @contextmanager
        def marking(self, blocks: list[str], spans: list[Span]) -> Iterator[None]:
            self._noted = (blocks, spans)
            try:
                yield
            finally:
                self._noted = None

    def refuse(message: str) -> Any:
        raise jinja2.TemplateError(message)

    def as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    def now(form: str) -> str:
        return datetime.now().strftime(form)  # Of this place, as transformers has it.

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": now}
    return environment
