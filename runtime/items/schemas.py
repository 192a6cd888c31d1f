"""Schemas of the items on edges, which bodies declare as plain data, and the check of an item against its schema.

Decides whether an item may reach its body, and describes the fault of one that may not. `host` and the home's `watch`
decide what becomes of the item and its sender. A body declares `schemas`, a dict of its input ports, or a static method
that makes it from the arguments of the node. A schema is a *rule*:

    "any"                       anything
    "integer"                   an integer of 64 bits; ("integer", least) or ("integer", least, most): in this range
    "number"                    a finite integer or float; ("number", least), ("number", least, most)
    "float"                     an integer or float, also one that is not finite
    "text", "flag"              a text, True or False; ("text", "ready", "final"): one of these
    ("list", rule)              a list, each entry of which follows the rule; ("list", rule, length)
    ("row", rule, rule)         a list of just so many entries, each of which follows its own rule
    ("array", dtype, sizes)     an array of these sizes, None for any size
    ("of", field, (x, y))       in sizes: x where the item's `field` is 0, y where it is 1
    ("optional", rule)          None, or what follows the rule
    ("either", rule, rule)      what follows one of the rules
    ("sender", "slot")          the slot, or the "incarnation", of the host that sent the item
    ("product", field, n)       n times the item's `field`; of a tuple, the number of the sender's slot, or the last;
                                ("product", field, n, start): so much more than the item's `start`
    ("at most", field, n)       an integer from 0 to such a product; ("at most", field, n, start)
    ("firings", rule)           an integer that follows the rule, and is at most the count of firings of the node that
                                emits it: checked where it is emitted, because only that host knows the count
    {"name": rule}              a dict that has these fields at least; "name?": the field may be absent

Fields that `of`, `product` and `at most` name come before them. A check ends at the first fault. It reads no value of
an array, because the loop of the host waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from isthmus.runtime.ids import Member

Rule: TypeAlias = Any
"""Plain data, as described above."""

INTEGER_MOST: Final = (1 << 63) - 1
FOUND_LENGTH_MAX: Final = 60
"""The most characters of a found value in a message."""


class Mismatch(NamedTuple):
    """The fault of an item: its field ('totals[2][0]', '' for the whole item), and the value found there."""

    field: str
    expected: str
    found: str


Check: TypeAlias = Callable[[Any, Mapping[str, Any], Member], Mismatch | None]
"""(value, the item that it is a field of, its sender) -> its fault, or None."""


def compiled(rule: Rule) -> Check:
    """The check of a rule; ValueError for an invalid rule."""
    if isinstance(rule, Mapping):
        return _fields({name: compiled(each) for name, each in rule.items()})
    name, *details = (rule,) if isinstance(rule, str) else rule
    make = _MAKERS.get(name)
    if make is None:
        raise ValueError(f"reading a schema: expected one of {', '.join(_MAKERS)}, found {rule!r}.")
    return make(*details)


def attested(rule: Rule) -> tuple[str, ...]:
    """The fields of an item whose rule is `firings`."""
    if not isinstance(rule, Mapping):
        return ()
    return tuple(name for name, each in rule.items() if isinstance(each, tuple) and each[0] == "firings")


def _found(value: Any) -> str:
    """A found value, in short: an array by its type and sizes, anything else by its `repr`."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        return f"array of {dtype}, sizes {list(shape)}"
    text = repr(value)
    return text if len(text) <= FOUND_LENGTH_MAX else f"{text[: FOUND_LENGTH_MAX - 3]}..."


def _wrong(expected: str, value: Any) -> Mismatch:
    return Mismatch("", expected, _found(value))


def _within(mismatch: Mismatch, place: str) -> Mismatch:
    """The same fault, with `place` before its field."""
    inner = mismatch.field
    joined = place + inner if not inner or inner.startswith("[") else f"{place}.{inner}"
    return mismatch._replace(field=joined)


def _fields(checks: Mapping[str, Check]) -> Check:
    listed = [(name.removesuffix("?"), not name.endswith("?"), each) for name, each in checks.items()]
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


def _any() -> Check:
    return lambda value, item, sender: None


def _integer(least: int = -INTEGER_MOST - 1, most: int = INTEGER_MOST) -> Check:
    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if type(value) is int and least <= value <= most:
            return None
        return _wrong(f"an integer{_range(least, most)}", value)

    return check


def _number(least: float = -math.inf, most: float = math.inf) -> Check:
    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if type(value) in (int, float) and math.isfinite(value) and least <= value <= most:
            return None
        return _wrong(f"a finite number{_range(least, most)}", value)

    return check


def _float() -> Check:
    return lambda value, item, sender: None if type(value) in (int, float) else _wrong("a number", value)


def _text(*choices: str) -> Check:
    expected = f"one of {', '.join(choices)}" if choices else "a text"

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        return None if type(value) is str and (not choices or value in choices) else _wrong(expected, value)

    return check


def _flag() -> Check:
    return lambda value, item, sender: None if type(value) is bool else _wrong("True or False", value)


def _list(rule: Rule, length: int | None = None) -> Check:
    each = compiled(rule)
    expected = "a list" if length is None else f"a list of {length}"

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
            return _wrong(expected, value)
        for at, entry in enumerate(value):
            mismatch = each(entry, item, sender)
            if mismatch is not None:
                return _within(mismatch, f"[{at}]")
        return None

    return check


def _row(*rules: Rule) -> Check:
    checks = [compiled(rule) for rule in rules]

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            return _wrong(f"a list of {len(checks)}", value)
        for at, (each, entry) in enumerate(zip(checks, value, strict=True)):
            mismatch = each(entry, item, sender)
            if mismatch is not None:
                return _within(mismatch, f"[{at}]")
        return None

    return check


def _array(dtype: str, sizes: Sequence[Any]) -> Check:
    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        wanted = [_size(size, item) for size in sizes]
        has = str(getattr(value, "dtype", "")), getattr(value, "shape", None)
        fits = has[0] == dtype and has[1] is not None and len(has[1]) == len(wanted)
        if not fits or any(size not in (None, there) for size, there in zip(wanted, has[1] or (), strict=True)):
            return _wrong(f"an array of {dtype}, sizes {wanted}", value)
        return None

    return check


def _size(size: Any, item: Mapping[str, Any]) -> int | None:
    """The size of an axis; one that depends on a field is -1, which never fits, where the field is out of range."""
    if not isinstance(size, tuple):
        return size  # type: ignore[no-any-return]
    _, name, sizes = size
    at = item.get(name)
    return sizes[at] if type(at) is int and 0 <= at < len(sizes) else -1


def _optional(rule: Rule) -> Check:
    inner = compiled(rule)
    return lambda value, item, sender: None if value is None else inner(value, item, sender)


def _either(*rules: Rule) -> Check:
    checks = [compiled(rule) for rule in rules]

    def check(value: Any, item: Mapping[str, Any], sender: Member) -> Mismatch | None:
        mismatches = []
        for each in checks:
            mismatch = each(value, item, sender)
            if mismatch is None:
                return None
            mismatches.append(mismatch)
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


def _range(least: float, most: float) -> str:
    low, high = least > -INTEGER_MOST, most < INTEGER_MOST
    if low and high:
        return f" from {least} to {most}"
    return f" of at least {least}" if low else f" of at most {most}" if high else ""


_MAKERS: Final[Mapping[str, Callable[..., Check]]] = {
    "any": _any,
    "integer": _integer,
    "number": _number,
    "float": _float,
    "text": _text,
    "flag": _flag,
    "list": _list,
    "row": _row,
    "array": _array,
    "optional": _optional,
    "either": _either,
    "sender": _sender,
    "product": _product,
    "at most": partial(_product, is_bound=True),
    "firings": compiled,
}
