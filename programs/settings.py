"""Settings: declared once, where the code that takes them is, and read from files, options and Python alike.

A section of the configuration is a function, whose keywords are its keys, or a msgspec Struct, whose fields are. A
key's type is the annotation and its default the keyword's. `Annotated[int, Setting("...", ge=1)]` adds help, a valid
range, and what depends on both; a builder of a user's needs none of it. Rules between settings, and defaults that
depend on other settings, are functions beside the declaration; `checked` calls them.

This is the form of settings, whole; no section, key or default is named here.

Conversion is strict: 1 is a number, but "1" is none, and true is no integer. A value from the command line has no type
yet and is `Text`: it is read as a TOML value first, so that `true`, `12` and `[1, 2]` mean what they mean in a file,
and then as plain text.

TOML is read whole or refused with a message, and written with the values that settings have: text, numbers, true and
false, lists, tables. None has no form in TOML: a key whose value is None is left out, which means its default.
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
from functools import cache, wraps
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    cast,
    final,
    get_args,
    get_origin,
)

import msgspec

from isthmus.runtime.errors import ConfigError, Fault, RequestError, nearest
from isthmus.runtime.system.refusals import remedy

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
        raise ConfigError(
            doing, "a file that can be read", f"{type(error).__name__}: {error}", remedy(error, do)
        ) from error
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
    """What is declared of a setting beside its type and default, within `Annotated`. `ge`, `gt`, `le` and `lt` are its
    range, of finite numbers.
    """

    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    expected: str = ""
    """The range in words, where the bounds alone do not say it."""
    remedy: str = ""
    """What to do about a value out of range."""
    option: str = ""
    """The option of the command line that stands for it, as "--tokens N"."""
    resumes: bool = False
    """A resumed run may have another value."""
    alters: bool = False
    """It may if its user accepts what has changed since it was begun."""
    sweeps: str = ""
    """Why `isthmus compare` cannot sweep it, and what to do instead."""
    is_place: bool = False
    """It is a path, which is absolute from the folder of the file that has it, or a URL."""

    def holds(self, value: Any) -> bool:
        """Whether a value is in the range; what is no number, such as 'auto', is in every range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    @property
    def range(self) -> str:
        """The range in words."""
        if self.expected:
            return self.expected
        if self.ge is not None and self.le is not None:
            return f"from {self.ge} to {self.le}"
        return " and ".join(
            f"{words} {bound}"
            for words, bound in (("at least", self.ge), ("above", self.gt), ("at most", self.le), ("below", self.lt))
            if bound is not None
        )


@final
@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section: its type as an annotation, its default, and what is declared of it."""

    name: str
    annotation: Any
    default: Any

    @property
    def declared(self) -> Setting:
        """The declaration; an empty one if there is none."""
        metadata = getattr(self.annotation, "__metadata__", ())
        return next((item for item in metadata if isinstance(item, Setting)), _UNDECLARED)

    @property
    def type(self) -> Any:
        """The type without what is declared of it."""
        return self.annotation.__origin__ if self.declared is not _UNDECLARED else self.annotation

    def fault(self, value: Any, subject: str, remedy: str) -> Fault | None:
        """The fault of a value that is of another type or out of range, of what `subject` names."""
        declared = self.declared
        try:
            if declared.holds(msgspec.convert(value, self.type)):
                return None
        except msgspec.ValidationError:
            return Fault(
                subject, declared.expected or describe(self.annotation), repr(value), declared.remedy or remedy
            )
        return Fault(subject, declared.range, repr(value), declared.remedy or remedy)


_UNDECLARED: Final = Setting("")


class GoneSetting(NamedTuple):
    """A setting of an earlier version, which files of that may still have: its one value that changes nothing, and what
    to do about another one."""

    value: Any
    remedy: str


GONE: Final[Mapping[tuple[str, str], GoneSetting]] = {
    ("program", "anchor"): GoneSetting("adopted", "Leave it out: it gained nothing, and is gone."),
    ("program", "alpha"): GoneSetting(
        0.0, "Leave it out: here an update always replaced the fragment. streaming-diloco mixes."
    ),
}
"""By section and name, where a schema does not have it."""


@final
@dataclass(frozen=True, slots=True)
class Schema:
    """The keys of a section; `is_open`: other keys are accepted as they are."""

    section: str
    keys: Mapping[str, Key]
    is_open: bool = False

    @classmethod
    def of(cls, section: str, function: Callable[..., Any], *, skip: int = 0) -> Self:
        """The fields of a Struct, or the parameters of a function after the first `skip`.

        ConfigError if an annotation means nothing.
        """
        if isinstance(function, type) and issubclass(function, msgspec.Struct):
            fields = msgspec.structs.fields(function)
            return cls(section, {item.name: Key(item.name, item.type, _default(item.default)) for item in fields})
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
        keys = {item.name: Key(item.name, _annotation(section, function, item), item.default) for item in named}
        return cls(section, keys, any(item.kind is item.VAR_KEYWORD for item in parameters))

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Every key with its value in `values` or its default, in the order of the declarations.

        ConfigError with every key that is unknown or missing and every value of another type.
        """
        faults = list(self._unknown(values))
        result: dict[str, Any] = {}
        for name, key in self.keys.items():
            with collecting(faults):
                result[name] = self._one(key, values)
        if faults:
            raise ConfigError.of(faults)
        others = {name: _plain(value) for name, value in values.items() if name not in result}
        return result | {name: value for name, value in others.items() if self.is_open or not self._is_gone(name)}

    def out_of_range(self, values: Mapping[str, Any], subject: str = "", remedy: str = "") -> Iterator[Fault]:
        """The faults of the values that are of another type or out of range.

        `subject`: what is named as faulty, with {} for the key; `remedy` for keys that declare none, likewise.
        """
        subject = subject or f"Reading {self.section}.{{}}"
        for name, key in self.keys.items():
            if name in values and (
                fault := key.fault(values[name], subject.replace("{}", name), remedy.replace("{}", name))
            ):
                yield fault

    def _unknown(self, values: Mapping[str, Any]) -> Iterator[Fault]:
        if self.is_open:
            return
        for name, value in values.items():
            subject, gone = f"Reading {self.section}.{name}", GONE.get((self.section, name))
            if name in self.keys or (gone is not None and _plain(value) == gone.value):
                continue
            if gone is None:
                yield Fault(subject, f"a key of section [{self.section}]", repr(name), nearest(name, self.keys))
            else:
                yield Fault(subject, f"none, or {gone.value!r}", repr(_plain(value)), gone.remedy)

    def _is_gone(self, name: str) -> bool:
        return (self.section, name) in GONE and name not in self.keys

    def _one(self, key: Key, values: Mapping[str, Any]) -> Any:
        subject, expected = f"Reading {self.section}.{key.name}", describe(key.type)
        if key.name not in values:
            if key.default is REQUIRED:
                remedy = f"Give it: --set {self.section}.{key.name}=VALUE."
                raise ConfigError(subject, expected, "nothing", remedy)
            return key.default
        value = values[key.name]
        for candidate in _candidates(value):
            try:
                return msgspec.convert(candidate, key.type)
            except (msgspec.ValidationError, TypeError):
                continue
        default = "" if key.default is None else f" for {key.default!r}"
        default = "" if key.default is REQUIRED else f", or leave it out{default}"
        form = ' = {NAME = "TEXT"}' if expected == describe(Mapping[str, str]) else ""
        change = f"Write {self.section}.{key.name}{form}" if form else f"Change {self.section}.{key.name}"
        value_text = repr(str(value)) if isinstance(value, str) else f"{value!r} ({type(value).__name__})"
        raise ConfigError(subject, expected, value_text, f"{change}{default}.")


def _default(default: Any) -> Any:
    return REQUIRED if default is msgspec.NODEFAULT else default


_P = ParamSpec("_P")
_R = TypeVar("_R")


def checked(
    subject: str, rules: Callable[..., Iterator[Fault]] | None = None, *, remedy: str = ""
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function whose keywords are checked before it is called: ConfigError with every fault.

    `subject` names what is faulty, with {} for the keyword, as `remedy` does for keywords that declare none.
    `rules(*arguments, values)` gives the faults of settings that depend on others; `values` are those of all keywords,
    and may be out of range.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        parameters = inspect.signature(function).parameters.values()
        skip = sum(item.kind is not item.KEYWORD_ONLY for item in parameters)
        schema = cache(lambda: Schema.of("", function, skip=skip))  # Annotations are read when they are needed first.

        @wraps(function)
        def call(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
            values = {name: key.default for name, key in schema().keys.items()} | keywords
            faults = list(schema().out_of_range(values, subject, remedy))
            if rules is not None:
                faults += rules(*arguments, values)
            if faults:
                raise ConfigError.of(faults)
            return function(*arguments, **keywords)

        return cast("Callable[_P, _R]", call)

    return decorate


def settings_of(function: Callable[..., Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function of a job and `**settings`, which are the keywords of another function, as these are declared there."""

    def decorate(taker: Callable[_P, _R]) -> Callable[_P, _R]:
        own, given = inspect.signature(taker), inspect.signature(function).parameters.values()
        first = [item for item in own.parameters.values() if item.kind is not item.VAR_KEYWORD]
        keywords = [item for item in given if item.kind is item.KEYWORD_ONLY]
        as_any = cast(Any, taker)
        as_any.__signature__ = own.replace(parameters=[*first, *keywords])
        as_any.__wrapped__ = function  # Where annotations are evaluated.
        return taker

    return decorate


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
        error_text = f"{annotation!r} ({type(error).__name__}: {error})"
        do = f"Correct the annotation, or import what it names where {function.__name__!r} is defined."
        raise ConfigError(doing, "an annotation that can be evaluated", error_text, do) from error


def _candidates(value: Any) -> Iterator[Any]:
    """The possible meanings of a value, the likeliest first."""
    if not isinstance(value, Text):
        yield value
        return
    try:
        parsed = parse(value)
    except ValueError:
        pass
    else:
        yield parsed
        if isinstance(parsed, float) and parsed.is_integer():
            yield int(parsed)  # 1e6 is a fine number of tokens.
    yield str(value)


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
    if origin is Mapping and arguments:
        return f"a table, each value of it {describe(arguments[1])}"
    return _NAMES.get(origin) or str(getattr(annotation, "__name__", annotation))
