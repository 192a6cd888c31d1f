"""What a row is: a text, perhaps behind a prompt; a prompt and its completion; or a chat.

By the fields of a row. One that has the field of `task.column` is what stands there: a text, or a list of messages.
Else `messages` are a chat, `conversations`, their older form with `from` and `value`, too, and `prompt` and
`completion` are what their names say, as texts or as lists of messages. Rows of one file have one form, that of the
first: else one that is broken would be read as something else.

What a message has is what a template is given, with these differences: a content in parts is the text of its parts,
nulls are left out, since tables fill up with them, and the `weight` of an answer, 0 or 1, is whether it is learned.
What would be left out of a chat without a word, such as images, is refused here; what a template leaves out, in
`model_folders.chats`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import msgspec

from isthmus.runtime.errors import ConfigError, nearest, shortened

TEXTS: Final = "texts"
COMPLETIONS: Final = "completions"
CHATS: Final = "chats"
CHAT_COMPLETIONS: Final = "completions of chats"
"""A prompt and a completion that are messages both."""
ONE_OF: Final = {
    TEXTS: "text",
    COMPLETIONS: "completion",
    CHATS: "chat",
    CHAT_COMPLETIONS: "completion of a chat",
}
"""How one document of a form is called."""

ASSISTANT: Final = "assistant"
MESSAGES: Final = "messages"
CONVERSATIONS: Final = "conversations"
COMPLETION: Final = ("prompt", "completion")
_ROLES: Final = {"human": "user", "gpt": ASSISTANT}
"""Roles of conversations that have another name in messages."""
_TOOLS: Final = "tools"
_OPTIONS: Final = "chat_template_kwargs"
_SYSTEM: Final = "system"
_FUNCTIONS: Final = "functions"
_LABEL: Final = "label"
_DOCUMENTS: Final = "documents"
_SEEN: Final = ("image", "images", "video", "videos", "audio", "audios")
_BESIDE: Final = (_TOOLS, _OPTIONS, _DOCUMENTS, _SYSTEM, _FUNCTIONS, _LABEL, *_SEEN)
"""Columns that say something about the others."""
OPTION_OF: Final = {"task.column": "--column", "task.prompt": "--prompt"}
"""The options of the commands that name a column without a run, by the settings that name it of a run."""
_AS_MESSAGES: Final = "Write a list of objects, each with role and content."


@final
class TextRow(NamedTuple):
    """A text, the last of `texts`; those before it are prompts, which are not to be predicted."""

    texts: tuple[bytes, ...]
    form: str = TEXTS


@final
class ChatRow(NamedTuple):
    """The messages of a chat, as its template gets them, and what else it gets (`options`).

    `where`: its line or row, and file. `prompts`: how many of them are not to be predicted, where the row says so by
    itself. `unlearned`: the numbers, from 0, of answers whose weight is 0.
    """

    where: str
    messages: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    prompts: int | None = None
    unlearned: frozenset[int] = frozenset()

    @property
    def form(self) -> str:
        """Its form, a constant of this module."""
        return CHATS if self.prompts is None else CHAT_COMPLETIONS

    @property
    def text(self) -> bytes:
        """What is said in it."""
        return "\n".join(str(each.get("content", "")) for each in self.messages).encode(errors="replace")


Row: TypeAlias = TextRow | ChatRow


@final
class RowForms:
    """Says what the rows of a file are. ConfigError for what is no such row, with its place.

    `fields`: the columns of texts, by the setting that names each; that of the text comes last.
    """

    def __init__(self, path: Path, fields: Mapping[str, str], doing: str) -> None:
        self._path, self._fields, self._doing = path, fields, doing
        self._form = ""
        self._first = ""

    def columns(self, names: Sequence[str], where: str, *, has_lists: bool) -> tuple[str, ...]:
        """Those of some columns that a row is read from, of which the first are the texts, or messages.

        `has_lists`: the columns may have lists, so that any may have messages.
        """
        texts = self._columns_of_texts(names, where)
        beside = _BESIDE if has_lists or texts != tuple(self._fields.values()) else ()
        return (*texts, *(name for name in beside if name in names and name not in texts))

    def is_row(self, fields: Mapping[str, Any]) -> bool:
        """Whether an object has fields of a row."""
        names = {*self._fields.values(), MESSAGES, CONVERSATIONS}
        return not names.isdisjoint(fields) or all(column in fields for column in COMPLETION)

    def row(self, fields: Any, where: str) -> Row:
        """The row that has these fields, or is something else."""
        if not isinstance(fields, dict):
            do = "Write a list of objects into a file named .json, or one object a line into one named .jsonl."
            raise ConfigError(self._doing, f"an object in {where}", f"a {type(fields).__name__}", do)
        columns = self._columns_of_texts(fields, where)
        found = self._row(fields, columns, where)
        if not self._form:
            self._form, self._first = found.form, where
            self._refuse_hidden_messages(found, columns[-1], where)
        elif found.form != self._form:
            do = "Keep rows of one form in a file; files of several forms may be read together."
            expected = f"{self._form} in {self._path}, as in {self._first}"
            raise ConfigError(self._doing, expected, f"{found.form} in {where}", do)
        return found

    def _columns_of_texts(self, names: Iterable[str], where: str) -> tuple[str, ...]:
        """The columns that have the texts, or messages, of a row."""
        wanted, there = tuple(self._fields.values()), names if isinstance(names, dict) else set(names)
        if wanted[-1] in there or any(column in there for column in wanted[:-1]):
            for setting, column in self._fields.items():
                if column not in there:
                    raise self._no_column(where, setting, column, names)
            return wanted
        if MESSAGES in there:
            return (MESSAGES,)
        if CONVERSATIONS in there:
            return (CONVERSATIONS,)
        if all(column in there for column in COMPLETION):
            return COMPLETION
        raise self._no_column(where, *list(self._fields.items())[-1], names)

    def _no_column(self, where: str, setting: str, column: str, names: Iterable[str]) -> ConfigError:
        there = sorted(map(str, names))
        hint = nearest(column, there)
        if {"instruction", "output"} <= set(there):
            hint = (
                "Rows of instruction and output: set task.prompt=instruction and task.column=output; write instruction "
                "and input as one prompt where rows have an input."
            )
        and_prompt = ", and what comes before it with task.prompt" if setting == "task.column" else ""
        options = ""
        if setting in OPTION_OF:
            options = f" (`isthmus data`: {OPTION_OF[setting]}{', --prompt' if and_prompt else ''})"
        do = f"Name another with {setting}{and_prompt}{options}. {hint}".rstrip()
        others = f"(or {MESSAGES}, or {' and '.join(COMPLETION)})"
        return ConfigError(
            self._doing, f"a text in {column!r} of {where} {others}", ", ".join(there) or "no fields", do
        )

    def _row(self, fields: Mapping[str, Any], columns: tuple[str, ...], where: str) -> Row:
        is_named = columns == tuple(self._fields.values())
        values = [self._value(fields[column], column, where, is_named=is_named) for column in columns]
        if not any(isinstance(value, tuple) for value in values):
            if columns == COMPLETION and not is_named:
                self._refuse_beside(fields, where, _SYSTEM, _LABEL, *_SEEN)
                return TextRow(tuple(values), COMPLETIONS)  # type: ignore[arg-type]
            return TextRow(tuple(values))  # type: ignore[arg-type]
        for column, value in zip(columns, values, strict=True):
            if not isinstance(value, tuple):
                do = f"Write {' and '.join(columns)} both as texts, or both as messages."
                raise ConfigError(self._doing, f"messages in {column!r} of {where}, as beside it", "a text", do)
        self._refuse_beside(fields, where, _SYSTEM, _FUNCTIONS, *_SEEN, *([_LABEL] if len(columns) > 1 else []))
        chats = [value for value in values if isinstance(value, tuple)]
        prompts = None if len(chats) == 1 else sum(map(len, chats[:-1]))
        return self._chat(tuple(message for chat in chats for message in chat), fields, where, prompts)

    def _value(self, value: Any, column: str, where: str, *, is_named: bool) -> bytes | tuple[Mapping[str, Any], ...]:
        """A text, or messages, in a column. Messages may be in JSON, where no text is expected."""
        place = f"{column!r} of {where}"
        if isinstance(value, str) and not is_named and column in (MESSAGES, CONVERSATIONS):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                raise ConfigError(self._doing, f"messages in {place}", "a text that is no JSON", _AS_MESSAGES) from None
            if not isinstance(value, list):
                raise ConfigError(self._doing, f"messages in {place}", "JSON that is no list", _AS_MESSAGES)
        if isinstance(value, str):
            return self._whole(value, where)
        is_of_objects = isinstance(value, list) and all(isinstance(each, dict) for each in value)
        if is_of_objects and value:
            return tuple(value)
        if not is_named and column not in COMPLETION:
            found = "an empty list" if value == [] else "null" if value is None else f"a {type(value).__name__}"
            raise ConfigError(self._doing, f"messages in {place}", found, _AS_MESSAGES)
        do = "Leave rows without a text out." if value is None else "Name a column of texts, or of messages."
        found = "null" if value is None else f"a {type(value).__name__}"
        raise ConfigError(self._doing, f"a text in {place}", found, do)

    def _whole(self, text: str, where: str) -> bytes:
        """A text in UTF-8; ConfigError for half of a character, which some programs write into JSON."""
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            do = "Write whole characters: a surrogate alone, such as \\ud83d, is none."
            raise ConfigError(self._doing, f"characters in {where}", shortened(str(error), 200), do) from None

    def _refuse_beside(self, fields: Mapping[str, Any], where: str, *names: str) -> None:
        """Refuse fields that say something of a chat that no template is given."""
        ways = {
            _SYSTEM: "Write it as the first message, with the role system, or rename the field.",
            _FUNCTIONS: "Write them as tools.",
            _LABEL: "Leave rows out that are not to be learned, and the field; or rename it.",
            **dict.fromkeys(_SEEN, "Leave rows with anything but text out, or rename the field."),
        }
        for name in names:
            value = without_nulls(fields.get(name))
            says = str(value).lower() in ("true", "false", "0", "1") if name == _LABEL else bool(value)
            if says:
                raise ConfigError(
                    self._doing, f"no {name!r} beside messages in {where}", shortened(repr(value), 60), ways[name]
                )

    def _chat(
        self, messages: tuple[Mapping[str, Any], ...], fields: Mapping[str, Any], where: str, prompts: int | None
    ) -> ChatRow:
        made: list[Mapping[str, Any]] = []
        unlearned = set()
        for number, each in enumerate(messages):
            message = self._message(each, f"message {number + 1} of {where}")
            if message.pop("weight", 1) == 0:
                unlearned.add(number)
            made.append(message)
            if prompts is not None and number >= prompts and message["role"] != ASSISTANT:
                do = f"Write the whole as {MESSAGES}, of which the answers are learned."
                found = f"{message['role']!r} in message {number + 1 - prompts}"
                raise ConfigError(self._doing, f"a completion by the {ASSISTANT} in {where}", found, do)
        lists = {name: self._option(fields.get(name), list, f"{name!r} of {where}") for name in (_TOOLS, _DOCUMENTS)}
        options = self._option(fields.get(_OPTIONS), dict, f"{_OPTIONS!r} of {where}")
        return ChatRow(where, tuple(made), {**(options or {}), **lists}, prompts, frozenset(unlearned))

    def _option(self, value: Any, kind: type[list[Any] | dict[str, Any]], place: str) -> Any:
        """What a template gets beside messages, perhaps as JSON; None where there is nothing."""
        if isinstance(value, str) and value.strip():
            with suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                value = msgspec.json.decode(value)
        if not value and not isinstance(value, int):
            return None
        is_list = kind is list
        if not isinstance(value, kind) or (is_list and not all(isinstance(each, dict) for each in list(value))):
            what = "a list of objects" if is_list else "an object"
            found = f"a {type(value).__name__}"
            raise ConfigError(self._doing, f"{what} in {place}", found, f"Write {what}, or leave the field out.")
        return value

    def _message(self, message: Mapping[str, Any], place: str) -> dict[str, Any]:
        doing = self._doing
        made = {key: value for key, value in message.items() if value is not None}
        if "from" in made and "role" not in made:
            made["role"] = made.pop("from")
            made["content"] = made.pop("value", None)
            if made["role"] not in (*_ROLES, *_ROLES.values(), "system"):
                do = "Write them as messages, with role and content."
                found = shortened(repr(made["role"]), 60)
                raise ConfigError(doing, f"'human', 'gpt' or 'system' in 'from' of {place}", found, do)
            made["role"] = _ROLES.get(made["role"], made["role"])
        if not isinstance(role := made.get("role"), str) or not role:
            found = shortened(repr(role), 60) if "role" in made else ", ".join(sorted(map(str, made))) or "no fields"
            raise ConfigError(doing, f"a text in 'role' of {place}", found, _AS_MESSAGES)
        if unlearned := [key for key in ("train", "loss") if made.get(key) is False]:
            do = 'Write "weight": 0 in its place.'
            raise ConfigError(doing, f"a weight in {place}", f"{unlearned[0]!r}: false", do)
        if "function_call" in made:
            raise ConfigError(doing, f"tool_calls in {place}", "function_call", "Write it as one of tool_calls.")
        weight = made.get("weight", 1)
        if weight not in (0, 1) or (weight and "weight" in made and role != ASSISTANT):
            do = f"Give answers, messages of the {ASSISTANT}, the weight 0 or 1, or none."
            found = shortened(f"{weight!r} of a message of the {role}", 60)
            raise ConfigError(doing, f"0 or 1 as the weight of an answer in {place}", found, do)
        content = made.get("content")
        if isinstance(content, list):
            made["content"] = content = self._joined(content, place)
        elif not isinstance(content, str) and not (content is None and made.get("tool_calls")):
            found = "none" if content is None else f"a {type(content).__name__}"
            do = "Write what is said there, if nothing an empty text, or leave the message out."
            raise ConfigError(doing, f"a text in 'content' of {place}", found, do)
        if isinstance(content, str):
            self._whole(content, place)
        return made

    def _joined(self, parts: list[Any], place: str) -> str:
        """The text of a content in parts."""
        texts = []
        for part in parts:
            kind = part.get("type", "text") if isinstance(part, dict) else None
            text = part.get("text") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(text, str):
                found = (
                    shortened(repr(kind), 60)
                    if kind not in (None, "text")
                    else f"a {type(part).__name__} without a text"
                )
                do = "Leave chats with anything but text out."
                raise ConfigError(self._doing, f"parts of the type 'text' in 'content' of {place}", found, do)
            texts.append(text)
        return "".join(texts)

    def _refuse_hidden_messages(self, row: Row, column: str, where: str) -> None:
        """Refuse a text that is a list of messages in JSON: it would be learned with its braces."""
        if not isinstance(row, TextRow) or not row.texts[-1].lstrip().startswith(b"["):
            return
        try:
            value = msgspec.json.decode(row.texts[-1])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        keys = ({"role", "content"}, {"from", "value"})
        if isinstance(value, list) and value and isinstance(value[0], dict) and any(k <= value[0].keys() for k in keys):
            do = f"Name the field {MESSAGES}, or write the messages as a list and not as its JSON."
            raise ConfigError(self._doing, f"a text in {column!r} of {where}", "messages in JSON", do)


def without_nulls(value: Any) -> Any:
    """The same without fields that are null, with which tables fill up objects."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value
