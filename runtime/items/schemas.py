"""Schemas of the items on edges, which bodies declare as types, and the check of an item against its schema.

Decides whether an item may reach its body, and describes the fault of one that may not. `host` and the home's `watch`
decide what becomes of the item and its sender. A body declares `schemas`, a dict of its input ports, or a static method
that makes it from the arguments of the node. A schema is a type; `Annotated` adds *rules* as plain data, because bodies
import nothing from here (docs/reference/schemas.md lists both). A check ends at the first fault. It reads no value of
an array, because the loop of the host waits for it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from types import GenericAlias
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, Required, TypeAlias, get_args, get_origin

import msgspec
import numpy as np

from isthmus.runtime.errors import shortened
from isthmus.runtime.ids import Member

INTEGER_MOST: Final = (1 << 63) - 1
FOUND_LENGTH_MAX: Final = 60
"""The most characters of a found value in a message."""
MANY_MIN: Final = 16
"""Entries of a list from which on one call of C costs less."""
_FIELDS: Final = "fields"
"""The name of the rule that is a dict."""


class Mismatch(NamedTuple):
    """The fault of an item: its field ('totals[2][0]', '' for the whole item), and the value found there."""

    field: str
    expected: str
    found: str


Check: TypeAlias = Callable[[Any, Mapping[str, Any], Member], Mismatch | None]
"""(value, the item that it is a field of, its sender) -> its fault, or None."""
_Rules: TypeAlias = Mapping[str, Any]


def compiled(schema: Any) -> Check:
    """The check of a schema; ValueError for an invalid one."""
    try:
        hash(schema)
    except TypeError:  # It replaces fields, by a dict.
        return _compiled(schema)
    return _shared(schema)


def _compiled(schema: Any) -> Check:
    kind, rules = _parted(schema)
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if typing.is_typeddict(kind):
        origin, inner = typing.TypedDict, (kind,)
    if not isinstance(origin, Hashable) or origin not in _KINDS:
        raise ValueError(f"reading a schema: expected one of {_known(_KINDS)}, found {schema!r}.")
    make, *names = _KINDS[origin]
    if not set(rules) <= set(names):
        raise ValueError(f"reading a schema: expected rules among {_known(names)}, found {schema!r}.")
    check: Check = make(inner, rules)
    return check


# Hosts of one process, and messages, have most schemas in common.
_shared: Final = lru_cache(maxsize=1024)(_compiled)


def attested(schema: Any) -> tuple[str, ...]:
    """The fields of an item with the rule `firings`."""
    kind, rules = _parted(schema)
    if not typing.is_typeddict(kind):
        return ()
    return tuple(name for name, (each, _) in _declared(kind, rules).items() if "firings" in _parted(each)[1])


def _parted(schema: Any) -> tuple[Any, dict[str, Any]]:
    """A type, and its rules by name."""
    rules: dict[str, Any] = {}
    while True:
        origin = get_origin(schema) or schema
        if origin is Annotated:
            schema, *metadata = get_args(schema)
            inner: dict[str, Any] = {}
            for each in metadata:
                if type(each) is tuple:
                    inner[each[0]] = each[1:]
                elif isinstance(each, str):
                    inner[each] = ()
                elif isinstance(each, Mapping):
                    inner[_FIELDS] = each
                else:
                    schema = each
            rules = inner | rules
        elif hasattr(origin, "__value__"):  # A `type` statement, as NumPy's NDArray is one since Python 3.12.
            schema = origin.__value__[get_args(schema)] if get_args(schema) else origin.__value__
        else:
            return schema, rules


@cache
def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        wanted = "annotations whose names are those of its module"
        raise ValueError(f"reading a schema: expected {wanted} in {kind.__name__}, found {error.name}.") from None


def _declared(kind: Any, rules: _Rules) -> dict[str, tuple[Any, bool]]:
    """The type of each field of a TypedDict, and whether it must be there."""
    declared, others, needs = {}, rules.get(_FIELDS, {}), rules.get("needs")
    for name, each in _hints(kind).items():
        # Not of `__required_keys__`: Python does not see a NotRequired in an annotation that is a text.
        is_needed = get_origin(each) is not NotRequired and name not in kind.__optional_keys__
        inner = get_args(each)[0] if get_origin(each) in (Required, NotRequired) else each
        declared[name] = (others.get(name, inner), is_needed if needs is None else name in needs)
    if unknown := [name for name in (*others, *(needs or ())) if name not in declared]:
        raise ValueError(f"reading a schema: expected fields of {kind.__name__}, found {', '.join(unknown)}.")
    # Those of other types last: their rules may name other fields, whose own faults come first.
    return {name: declared[name] for name in (*(name for name in declared if name not in others), *others)}


def _known(names: Any) -> str:
    return ", ".join(getattr(name, "__name__", str(name)) for name in names)


def _found(value: Any) -> str:
    """A found value, in short: an array by its type and sizes, anything else by its `repr`."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        return f"array of {dtype}, sizes {list(shape)}"
    return shortened(repr(value), FOUND_LENGTH_MAX)


def _wrong(expected: str, value: Any) -> Mismatch:
    return Mismatch("", expected, _found(value))


def _within(mismatch: Mismatch, place: str) -> Mismatch:
    """The same fault, with `place` before its field."""
    inner = mismatch.field
    joined = place + inner if not inner or inner.startswith("[") else f"{place}.{inner}"
    return mismatch._replace(field=joined)


def _fields(inner: Any, rules: _Rules) -> Check:
    declared = _declared(inner[0], rules)
    listed = [(name, is_needed, compiled(each)) for name, (each, is_needed) in declared.items()]
    expected = f"fields {', '.join(name for name, is_needed, _ in listed if is_needed)}"

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if type(value) is not dict:
            return _wrong(expected, value)
        for name, is_needed, each in listed:
            if name not in value:
                if is_needed:
                    return Mismatch(name, "a value", "none")
                continue
            mismatch = each(value[name], value, sender)
            if mismatch is not None:
                return _within(mismatch, name)
        return None

    return check


def _any(inner: Any, rules: _Rules) -> Check:
    return lambda value, item, sender: None


def _integer(inner: Any, rules: _Rules) -> Check:
    for name, make in (("sender", _sender), ("times", _product), ("at most times", partial(_product, is_bound=True))):
        if name in rules:
            return make(*rules[name])
    least, most = _limits(rules, -INTEGER_MOST - 1, INTEGER_MOST)
    expected = f"an integer{_range(least, most)}"

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        return None if type(value) is int and least <= value <= most else _wrong(expected, value)

    return check


def _number(inner: Any, rules: _Rules) -> Check:
    if "range" not in rules:
        return lambda value, item, sender: None if type(value) in (int, float) else _wrong("a number", value)
    least, most = _limits(rules, -math.inf, math.inf)
    expected = f"a finite number{_range(least, most)}"

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        is_right = type(value) in (int, float) and math.isfinite(value) and least <= value <= most
        return None if is_right else _wrong(expected, value)

    return check


def _text(choices: Any, rules: _Rules) -> Check:
    if not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"reading a schema: expected texts in Literal, found {choices!r}.")
    expected = f"one of {', '.join(choices)}" if choices else "a text"

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        return None if type(value) is str and (not choices or value in choices) else _wrong(expected, value)

    return check


def _flag(inner: Any, rules: _Rules) -> Check:
    return lambda value, item, sender: None if type(value) is bool else _wrong("True or False", value)


def _list(inner: Any, rules: _Rules) -> Check:
    each = compiled(*inner or (Any,))
    (length,) = rules.get("length", (None,))
    expected = "a list" if length is None else f"a list of {length}"
    plain = _plain(inner[0]) if inner else None

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
            return _wrong(expected, value)
        if plain is not None and len(value) >= MANY_MIN:
            with suppress(msgspec.ValidationError):  # Which entry is wrong, and how, is found below.
                msgspec.convert(value, plain)
                return None
        for at, entry in enumerate(value):
            mismatch = each(entry, item, sender)
            if mismatch is not None:
                return _within(mismatch, f"[{at}]")
        return None

    return check


def _plain(schema: Any) -> Any:
    """The type of lists whose entries have a schema of integers alone, as msgspec has it; None of others.

    Rounds of a thousand learners name each of them; in C they are checked twenty times as fast.
    """
    each = _integers(schema)
    return None if each is None else GenericAlias(list, (each,))


def _integers(schema: Any) -> Any:
    kind, rules = _parted(schema)
    if get_origin(kind) is tuple:
        inner = [_integers(each) for each in get_args(kind)]
        return None if not inner or None in inner else GenericAlias(tuple, tuple(inner))
    if kind is not int or not set(rules) <= {"range"}:
        return None
    least, most = _limits(rules, -INTEGER_MOST - 1, INTEGER_MOST)
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


def _row(inner: Any, rules: _Rules) -> Check:
    checks = [compiled(each) for each in inner]

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            return _wrong(f"a list of {len(checks)}", value)
        for at, (each, entry) in enumerate(zip(checks, value, strict=True)):
            mismatch = each(entry, item, sender)
            if mismatch is not None:
                return _within(mismatch, f"[{at}]")
        return None

    return check


def _dict(inner: Any, rules: _Rules) -> Check:
    of_key, of_value = (compiled(each) for each in inner or (Any, Any))

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if type(value) is not dict:
            return _wrong("a dict", value)
        for key, entry in value.items():
            mismatch = of_key(key, item, sender) or of_value(entry, item, sender)
            if mismatch is not None:
                return _within(mismatch, f"[{_found(key)}]")
        return None

    return check


@lru_cache(maxsize=64)
def _name_of(dtype: Hashable) -> str:
    """The name of a type of numbers, which numpy puts together anew at each call: longer than all else of a check."""
    return str(dtype)


def _array(inner: Any, rules: _Rules) -> Check:
    (scalar,) = get_args(inner[-1]) if inner else (Any,)
    dtype, sizes = None if scalar is Any else _name_of(np.dtype(scalar)), rules.get("sizes")

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        shape = getattr(value, "shape", None)
        wanted = [_size(size, item) for size in sizes or ()]
        fits = (
            shape is not None
            and dtype in (None, _name_of(value.dtype))
            and (sizes is None or len(shape) == len(wanted))
        )
        if fits and all(size in (None, there) for size, there in zip(wanted, shape or (), strict=False)):
            return None
        return _wrong(f"an array of {dtype or 'any dtype'}, sizes {'any' if sizes is None else wanted}", value)

    return check


def _size(size: Any, item: Mapping[str, Any]) -> int | None:
    """The size of an axis; one that depends on a field is -1, which never fits, where the field is out of range."""
    if not isinstance(size, tuple):
        return size  # type: ignore[no-any-return]
    _, name, sizes = size
    at = item.get(name)
    return sizes[at] if type(at) is int and 0 <= at < len(sizes) else -1


def _either(inner: Any, rules: _Rules) -> Check:
    checks = [compiled(each) for each in inner if each is not types.NoneType]
    is_optional = len(checks) < len(inner)

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if value is None and is_optional:
            return None
        mismatches = []
        for each in checks:
            mismatch = each(value, item, sender)
            if mismatch is None:
                return None
            mismatches.append(mismatch)
        if len(mismatches) == 1:
            return mismatches[0]
        return _wrong(" or ".join(mismatch.expected for mismatch in mismatches), value)

    return check


def _sender(what: str) -> Check:
    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        own = sender.replica.slot if what == "slot" else sender.incarnation
        return None if type(value) is int and value == own else _wrong(f"{own}, the {what} of its sender", value)

    return check


def _product(field: str, numbers: int | Sequence[int], start: str | None = None, *, is_bound: bool = False) -> Check:
    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        slot = sender.replica.slot
        number = numbers if isinstance(numbers, int) else numbers[min(slot, len(numbers) - 1)]
        times, since = item.get(field), 0 if start is None else item.get(start)
        if type(value) is int and type(times) is int and type(since) is int:
            amount, most = value - since, number * times
            if amount == most or (is_bound and 0 <= amount < most):
                return None
        beside = "" if start is None else f", beside {start}, which is {since}"
        words = "from 0 to " if is_bound else ""
        return _wrong(f"{words}{number} times {field}, which is {times}{beside}", value)

    return check


def _limits(rules: _Rules, *widest: float) -> tuple[float, ...]:
    given = rules.get("range", ())
    return (*given, *widest[len(given) :])


def _range(least: float, most: float) -> str:
    low, high = least > -INTEGER_MOST, most < INTEGER_MOST
    if low and high:
        return f" from {least} to {most}"
    return f" of at least {least}" if low else f" of at most {most}" if high else ""


_KINDS: Final[Mapping[Any, tuple[Any, ...]]] = {
    Any: (_any,),
    int: (_integer, "range", "sender", "times", "at most times", "firings"),
    float: (_number, "range"),
    str: (_text,),
    bool: (_flag,),
    Literal: (_text,),
    list: (_list, "length"),
    dict: (_dict,),
    tuple: (_row,),
    np.ndarray: (_array, "sizes"),
    typing.TypedDict: (_fields, _FIELDS, "needs"),
    typing.Union: (_either,),
    types.UnionType: (_either,),
}
"""What makes the check of a type, and the names of its rules."""
