"""Chats as a model folder has them: its template, which makes one text of messages, and the tokens of it to be learned.

The template is rendered as transformers renders it: in jinja2's immutable sandbox, with the tag `generation`, within
which is what the assistant says, and with what templates call: `raise_exception`, `strftime_now`, `tojson`. A template
comes with its folder, so it gets nothing but the messages and the names of special tokens, and the sandbox refuses the
rest. Chats are rendered by one thread.

Which tokens are the assistant's is said by the marks of the template, as transformers reads them; else by prefixes: an
answer is what the chat up to it has more than the chat before it with the header of an answer. A template that rewrites
earlier turns has no such prefixes, and is refused.
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
from isthmus.runtime.errors import ConfigError

CHAT_TEMPLATE: Final = "chat_template.jinja"
ASSISTANT: Final = "assistant"
_MARK: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
Message: TypeAlias = Mapping[str, Any]
Span: TypeAlias = tuple[int, int]


@final
class Chat(NamedTuple):
    """The tokens of a chat, int32[length], and which are the assistant's, bool[length]; by the template's `marks`, or
    by `prefixes`."""

    ids: Ids
    is_answer: npt.NDArray[np.bool_]
    by: Literal["marks", "prefixes"]


@final
class ChatTemplate:
    """The chat template of a folder; ConfigError where it has none, or one that is no template."""

    def __init__(self, folder: Path, doing: str) -> None:
        self._doing, self.folder = doing, folder
        self._source = _source_in(folder, doing)
        self._names = template_names_in(folder, doing)
        self.has_marks = _MARK.search(self._source) is not None
        with self._rendering():
            self._template = _compiled(self._source)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text after which the assistant answers."""
        return self._text(messages, is_asked=True)

    def chat(self, messages: Sequence[Message], tokens: FolderTokens) -> Chat:
        """The tokens of a whole chat; ConfigError for one that the template refuses, or that has no answer."""
        text, spans = self._marked(messages) if self.has_marks else self._prefixed(messages)
        if not spans:
            do = f"Leave it out, or give it a message whose role is {ASSISTANT}."
            raise ConfigError(self._doing, "a chat in which the assistant answers", "none of its tokens", do)
        ids, offsets = tokens.rendered(text)
        return Chat(ids, _within(offsets, spans), "marks" if self.has_marks else "prefixes")

    def _text(self, messages: Sequence[Message], *, is_asked: bool = False) -> str:
        with self._rendering():
            return str(self._template.render(**self._given(messages, is_asked=is_asked)))

    def _given(self, messages: Sequence[Message], *, is_asked: bool) -> dict[str, Any]:
        given = {"messages": [dict(each) for each in messages], "tools": None, "documents": None}
        return {**self._names, **given, "add_generation_prompt": is_asked}

    def _marked(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text, and the places of what the template marks."""
        blocks: list[str] = []
        spans: list[Span] = []
        with self._rendering(), self._template.environment.marking(blocks, spans):
            for block in self._template.generate(**self._given(messages, is_asked=False)):
                blocks.append(block)  # The marks look at what is there so far.
        return "".join(blocks), spans

    def _prefixed(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The text, and the places of what each answer adds to it."""
        whole = self._text(messages)
        spans = []
        for number, message in enumerate(messages):
            if message.get("role") == ASSISTANT:
                before = self._text(messages[:number], is_asked=True)
                after = self._text(messages[: number + 1])
                if not (after.startswith(before) and whole.startswith(after)):
                    do = "Put {% generation %} and {% endgeneration %} around what the assistant says, in the template."
                    expected = "a template that leaves earlier turns as they are, or marks what the assistant says"
                    raise ConfigError(self._doing, expected, f"another text before answer {number}", do)
                spans.append((len(before), len(after)))
        return whole, spans

    @contextmanager
    def _rendering(self) -> Iterator[None]:
        """ConfigError for what a template raises, which may be anything."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            do = "Correct the chat, or the template."
            found = f"{type(error).__name__}: {error}"[:300]
            raise ConfigError(self._doing, f"a chat that the template in {self.folder} takes", found, do) from None


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


def _source_in(folder: Path, doing: str) -> str:
    """The template of a folder: of its own file, else of tokenizer_config.json, where one of several is "default"."""
    if (folder / CHAT_TEMPLATE).is_file():
        return text_in(folder / CHAT_TEMPLATE, doing)
    found = tokenizer_config_in(folder, doing).get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        do = "Take the folder of a model that was tuned on chats, or put its template there."
        raise ConfigError(doing, f"{CHAT_TEMPLATE}, or chat_template in {TOKENIZER_CONFIG}, in {folder}", "neither", do)
    return found


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
