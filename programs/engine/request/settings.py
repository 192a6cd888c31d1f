"""Typed settings: the keywords of a function are the keys of a section of the configuration.

A setting's type is the keyword's annotation, and its default the keyword's. Conversion is strict: 1 is a number, but
"1" is none, and true is no integer. A value from the command line has no type yet and is `Text`: it is read as a TOML
value first, so that `true`, `12` and `[1, 2]` mean what they mean in a file, and then as plain text.

TOML: files of the user, read whole or refused with a message; values as text, for configuration and references.

The meaning of keys is for the readers. It writes the values of settings (text, numbers, true and false, lists, tables)
and nothing else. None has no form in TOML: a key whose value is None is left out, which means its default.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, Union, final, get_args, get_origin

import msgspec

from isthmus.runtime.errors import ConfigError, Fault, RequestError, nearest

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str) -> Any:
    """The TOML value that `text` is; ValueError if it is none."""
    document = tomllib.loads(f"value = {text}")
    if len(document) != 1:
        raise ValueError(f"one TOML value was expected, not {text!r}")
    return document["value"]


def value(item: Any) -> str:
    """`item` as a TOML value on one line; TypeError if it has no such form."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return repr(item) if math.isfinite(item) else str(item)
    if isinstance(item, str):
        # JSON escapes are TOML escapes, but JSON leaves DEL unescaped.
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, list | tuple):
        return f"[{', '.join(value(element) for element in item)}]"
    if isinstance(item, Mapping):
        return f"{{{inline(item)}}}"
    raise TypeError(f"{type(item).__name__} has no form in TOML")


def inline(table: Mapping[str, Any]) -> str:
    """The pairs of an inline table, without its braces."""
    return ", ".join(f"{_key(name)} = {value(item)}" for name, item in table.items() if item is not None)


def document(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A document of one table per section."""
    parts = []
    for name, table in sections.items():
        lines = [f"{_key(key)} = {value(item)}" for key, item in table.items() if item is not None]
        parts.append("\n".join([f"[{_key(name)}]", *lines, ""]))
    return "\n".join(parts)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else value(name)


def read_file(file: Path, what: str, do: str) -> dict[str, Any]:
    """The document in `file`, which is `what` ('the configuration'); ConfigError, with `do`, if there is none."""
    doing = f"Reading {what} {file}"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(doing, "a file", "nothing there", do) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(doing, "a file that can be read", f"{type(error).__name__}: {error}", do) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(doing, "TOML", str(error), "Correct the file there.") from error


REQUIRED: Final = inspect.Parameter.empty
"""The default of a setting that has to be given."""


@contextmanager
def collecting(faults: list[Fault]) -> Iterator[None]:
    """Add the faults of a RequestError to `faults`, and go on after the block."""
    try:
        yield
    except RequestError as error:
        faults += error.faults


class Text(str):
    """A value as it was typed on the command line."""

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its type as an annotation, and its default."""

    name: str
    annotation: Any
    default: Any


@final
@dataclass(frozen=True, slots=True)
class Schema:
    """The settings of a section; `is_open`: other keys are accepted as they are."""

    section: str
    settings: Mapping[str, Setting]
    is_open: bool = False

    @classmethod
    def of(cls, section: str, function: Callable[..., Any], *, skip: int = 0) -> Self:
        """The parameters of `function` after the first `skip`; ConfigError if an annotation means nothing."""
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
        settings = {item.name: Setting(item.name, _annotation(section, function, item), item.default) for item in named}
        return cls(section, settings, any(item.kind is item.VAR_KEYWORD for item in parameters))

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting with its value in `values` or its default, in the order of the function's keywords.

        ConfigError with every key that is unknown or missing and every value of another type.
        """
        faults = list(self._unknown(values))
        result: dict[str, Any] = {}
        for name, setting in self.settings.items():
            with collecting(faults):
                result[name] = self._one(setting, values)
        if faults:
            raise ConfigError.of(faults)
        return result | {name: _plain(value) for name, value in values.items() if name not in result}

    def _unknown(self, values: Mapping[str, Any]) -> Iterator[Fault]:
        if self.is_open:
            return
        for name in values:
            if name not in self.settings:
                what = f"a key of section [{self.section}]"
                yield Fault(f"Reading {self.section}.{name}", what, repr(name), nearest(name, self.settings))

    def _one(self, setting: Setting, values: Mapping[str, Any]) -> Any:
        doing, expected = f"Reading {self.section}.{setting.name}", describe(setting.annotation)
        if setting.name not in values:
            if setting.default is REQUIRED:
                do = f"Give it: --set {self.section}.{setting.name}=VALUE."
                raise ConfigError(doing, expected, "nothing", do)
            return setting.default
        given = values[setting.name]
        for candidate in _candidates(given):
            try:
                return msgspec.convert(candidate, setting.annotation)
            except (msgspec.ValidationError, TypeError):
                continue
        default = (
            ""
            if setting.default is REQUIRED
            else ", or leave it out" + ("" if setting.default is None else f" for {setting.default!r}")
        )
        found = repr(str(given)) if isinstance(given, str) else f"{given!r} ({type(given).__name__})"
        raise ConfigError(doing, expected, found, f"Change {self.section}.{setting.name}{default}.")


def _annotation(section: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    annotation = parameter.annotation
    if annotation is REQUIRED:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))
    except Exception as error:
        doing = f"Reading the type of {section}.{parameter.name}"
        found = f"{annotation!r} ({type(error).__name__}: {error})"
        do = f"Correct the annotation, or import what it names where {function.__name__!r} is defined."
        raise ConfigError(doing, "an annotation that can be evaluated", found, do) from error


def _candidates(given: Any) -> Iterator[Any]:
    """The possible meanings of a value, the likeliest first."""
    if not isinstance(given, Text):
        yield given
        return
    try:
        parsed = parse(given)
    except ValueError:
        pass
    else:
        yield parsed
        if isinstance(parsed, float) and parsed.is_integer():
            yield int(parsed)  # 1e6 is a fine number of tokens.
    yield str(given)


def _joined(kinds: Sequence[Any]) -> list[Any]:
    """The members of a union but for None, all literals as one."""
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    others = [kind for kind in kinds if kind is not types.NoneType and get_origin(kind) is not Literal]
    return [*others, Literal[tuple(literals)]] if literals else others


def _plain(value: Any) -> Any:
    return next(_candidates(value))


_NAMES: Final[Mapping[Any, str]] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
    Any: "any value",
    types.NoneType: "nothing",
}
_BOUNDS: Final = (("ge", "of at least"), ("gt", "above"), ("le", "of at most"), ("lt", "below"))


def describe(annotation: Any) -> str:
    """A type in words: 'an integer', 'true or false', "one of 'rda', 'average'", 'a list of texts'."""
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [
            f"{words} {getattr(meta, name)}"
            for meta in arguments[1:]
            for name, words in _BOUNDS
            if getattr(meta, name, None) is not None
        ]
        return " ".join([describe(arguments[0]), " and ".join(bounds)]).strip()
    if origin is Literal:
        words = ", ".join(map(repr, arguments))
        return words if len(arguments) == 1 else f"one of {words}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe(item) for item in _joined(arguments))
    if origin in (list, tuple):
        elements = {describe(item) for item in arguments if item is not Ellipsis}
        return f"a list, each of it {elements.pop()}" if len(elements) == 1 else "a list"
    return _NAMES.get(origin) or str(getattr(annotation, "__name__", annotation))
