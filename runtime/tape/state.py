"""The whole state of a core as bytes, and back: what a segment of a tape begins with.

A core is objects that refer to each other, made by a constructor from its inputs (a plan, options), and changed by
events. `frozen` walks them, field by field as their classes declare, so that no list of fields can be incomplete; an
object with two references stays one object. `thaw` gives that state to a core that was constructed from the same
inputs. Things that never change after the constructor are not part of it: callables, and objects of the classes that
`Kind.arguments` names; where these are needed in objects that the constructor did not make, `Kind.numbered` gives them
by number.

The bytes depend on nothing but the state: dicts and lists in their order, sets sorted, no address and no hash. They are
MessagePack of plain values, in which only classes of the modules of `Kind.rooms` are named: none is imported by name,
no constructor runs, and anything else in them is a ValueError.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgspec

from isthmus.runtime.errors import InvariantError

_TUPLE, _LIST, _DICT, _SET, _FROZENSET, _DEQUE, _COUNTER, _AGAIN, _GIVEN, _NUMBERED, _OBJECT, _UNSET, _CLASS = range(13)
_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
_PREFIX: Final = "isthmus.runtime."


@dataclass(frozen=True)
class Kind:
    """The contents of the state of a kind of core.

    Objects of classes of the modules in `rooms` (packages below isthmus.runtime, with their contents), records of any
    room, as events bring them, and the objects that its constructor gets (classes in `arguments`).
    """

    rooms: tuple[str, ...]
    arguments: tuple[type, ...] = ()
    numbered: Callable[[Any], Mapping[int, Any]] = field(default=lambda core: {})

    def frozen(self, core: Any) -> bytes:
        """The state of a core. InvariantError for a state that contains an object of any other class."""
        return _Freezing(self, self.numbered(core)).run(core)

    def thaw(self, core: Any, data: bytes) -> None:
        """Load the state `data` into a newly constructed core.

        ValueError where these bytes are no state of such a core; the core is unusable then.
        """
        try:
            _Thawing(self, self.numbered(core)).run(core, data)
        except ValueError:
            raise
        except (msgspec.DecodeError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            raise ValueError(f"no state of a {type(core).__name__}: {type(error).__name__}: {error}") from None


class _Freezing:
    """One walk from a core to its bytes. Classes are numbered as they are met, and named at the end."""

    def __init__(self, kind: Kind, numbered: Mapping[int, Any]) -> None:
        self._kind = kind
        self._numbers = {id(each): number for number, each in numbered.items()}
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []  # An id is unique only among objects that are alive.
        self._classes: dict[type, int] = {}

    def run(self, core: Any) -> bytes:
        plain = self._value(core)
        classes = [[_name(each), _fields(each)] for each in self._classes]
        return msgspec.msgpack.encode([classes, plain])

    def _value(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind in _SCALARS:
            return value
        if kind is tuple:
            return [_TUPLE, *map(self._value, value)]
        if id(value) in self._numbers:
            return [_NUMBERED, self._numbers[id(value)]]
        if kind is type(msgspec.Struct):  # Handlers of events are found by their class.
            return [_CLASS, self._class(value)]
        if isinstance(value, self._kind.arguments) or (callable(value) and not _may_be(kind, self._kind.rooms)):
            return [_GIVEN]
        if kind is frozenset:
            return [_FROZENSET, *map(self._value, sorted(value))]
        if _is_value(kind):
            return [_OBJECT, self._class(kind), *(self._value(getattr(value, name)) for name in _fields(kind))]
        number = self._met.get(id(value))
        if number is not None:
            return [_AGAIN, number]
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        return self._changeable(value, kind)

    def _changeable(self, value: Any, kind: type) -> Any:
        if kind is list:
            return [_LIST, *map(self._value, value)]
        if kind is deque:
            return [_DEQUE, *map(self._value, value)]
        if kind is set:
            return [_SET, *map(self._value, sorted(value))]
        if kind is dict or kind is Counter:
            tag = _DICT if kind is dict else _COUNTER
            return [tag, *(self._value(each) for pair in value.items() for each in pair)]
        number = self._class(kind)
        values = [self._value(getattr(value, name)) if hasattr(value, name) else [_UNSET] for name in _fields(kind)]
        more = getattr(value, "__dict__", {})
        return [_OBJECT, number, *values, *(self._value(each) for name in sorted(more) for each in (name, more[name]))]

    def _class(self, kind: type) -> int:
        if not _may_be(kind, self._kind.rooms):
            rooms = ", ".join(self._kind.rooms)
            raise InvariantError(
                f"the state of a core has a {kind.__module__}.{kind.__qualname__}; it may have: {rooms}"
            )
        return self._classes.setdefault(kind, len(self._classes))


class _Thawing:
    """One walk from bytes into a core.

    Where the core has an object of the same class in the same place, that object is changed; so what the constructor
    made of callables and of its inputs stays as it was.
    """

    def __init__(self, kind: Kind, numbered: Mapping[int, Any]) -> None:
        self._kind, self._numbered = kind, numbered
        self._met: list[Any] = []
        self._taken: set[int] = set()
        self._classes: list[tuple[type, list[str]]] = []

    def run(self, core: Any, data: bytes) -> None:
        classes, plain = msgspec.msgpack.decode(data)
        class_of = _known(self._kind.rooms, len(sys.modules))
        for name, fields in classes:
            if name not in class_of:
                raise ValueError(f"it has a {name!r}, which this version of isthmus does not know")
            if fields != list(_fields(class_of[name])):
                raise ValueError(f"its {name} has the fields {fields}, here it has {list(_fields(class_of[name]))}")
            self._classes.append((class_of[name], fields))
        if self._value(plain, core) is not core:
            raise ValueError(f"it is not that of a {type(core).__name__}")

    def _value(self, plain: Any, there: Any) -> Any:
        """The value of `plain`, for the place where the core has `there`."""
        if type(plain) is not list:
            return plain
        tag, rest = plain[0], plain[1:]
        if tag == _TUPLE:
            there = there if type(there) is tuple and len(there) == len(rest) else [None] * len(rest)
            return tuple(self._value(each, other) for each, other in zip(rest, there, strict=True))
        if tag == _GIVEN:
            if there is None or not (callable(there) or isinstance(there, self._kind.arguments)):
                raise ValueError("it refers to something that the core was not given")
            return there
        if tag == _NUMBERED:
            return self._numbered[rest[0]]
        if tag == _CLASS:
            return self._classes[rest[0]][0]
        if tag == _FROZENSET:
            return frozenset(self._value(each, None) for each in rest)
        if tag == _AGAIN:
            return self._met[rest[0]]
        if tag == _OBJECT:
            return self._object(rest, there)
        return self._container(tag, rest, there)

    def _object(self, rest: list[Any], there: Any) -> Any:
        kind, fields = self._classes[rest[0]]
        values = rest[1:]
        if _is_value(kind):
            arguments = [self._value(each, None) for each in values]
            return (
                kind(*arguments)
                if len(arguments) == len(fields)
                else _wrong(f"{len(arguments)} fields of {kind.__name__}")
            )
        target = self._meet(there if self._is_free(there, kind) else object.__new__(kind))
        more = values[len(fields) :]
        names, plains = [*fields, *more[::2]], [*values[: len(fields)], *more[1::2]]
        if len(names) != len(plains) or (target is there and set(getattr(target, "__dict__", ())) != set(more[::2])):
            _wrong(f"other fields of {kind.__name__}: {', '.join(map(str, names))}")
        for name, plain in zip(names, plains, strict=True):
            if plain == [_UNSET]:
                continue
            value = self._value(plain, getattr(target, name, None))
            if name in fields:
                object.__setattr__(target, name, value)
            else:
                vars(target)[str(name)] = value
        return target

    def _container(self, tag: int, rest: list[Any], there: Any) -> Any:
        kind: Any = {_LIST: list, _DICT: dict, _SET: set, _DEQUE: deque, _COUNTER: Counter}[tag]
        target = self._meet(there if self._is_free(there, kind) else kind())
        if tag in (_DICT, _COUNTER):
            before = dict(target)
            target.clear()
            for key_plain, plain in zip(rest[::2], rest[1::2], strict=True):
                key = self._value(key_plain, None)
                target[key] = self._value(plain, before.get(key))
            return target
        old = list(target) if tag != _SET else []
        items = [self._value(each, old[n] if n < len(old) else None) for n, each in enumerate(rest)]
        target.clear()
        target.update(items) if tag == _SET else target.extend(items)
        return target

    def _is_free(self, there: Any, kind: type) -> bool:
        """Whether the object in a place can be reused: it has the right class, and is not used elsewhere."""
        return type(there) is kind and id(there) not in self._taken

    def _meet(self, target: Any) -> Any:
        """Number an object, in the same order as the freezing walk."""
        self._met.append(target)
        self._taken.add(id(target))
        return target


def _wrong(what: str) -> Any:
    raise ValueError(f"it has {what}")


def _may_be(kind: type, rooms: tuple[str, ...]) -> bool:
    """Whether a state may have objects of a class."""
    if not kind.__module__.startswith(_PREFIX):
        return False
    name = kind.__module__.removeprefix(_PREFIX)
    return _is_value(kind) or any(name == room or name.startswith(f"{room}.") for room in rooms)


@cache
def _is_value(kind: Any) -> bool:
    """Whether objects of a class are immutable, so that copies of them are equivalent."""
    return issubclass(kind, tuple) or (issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen)


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The declared fields of every object of a class; those in its `__dict__` come in addition."""
    if issubclass(kind, tuple):
        return tuple(kind._fields)
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    return tuple(dict.fromkeys(name for each in reversed(kind.__mro__) for name in _slots(each)))


def _slots(kind: type) -> Iterator[str]:
    slots = vars(kind).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        if name not in ("__dict__", "__weakref__"):
            yield f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _name(kind: type) -> str:
    return f"{kind.__module__.removeprefix(_PREFIX)}.{kind.__qualname__}"


@cache
def _known(rooms: tuple[str, ...], modules_count: int) -> dict[str, type]:
    """The classes that a state may have, by name, of loaded modules, `modules_count` of them."""
    classes = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX) and module is not None:
            for each in list(vars(module).values()):
                if isinstance(each, type) and each.__module__ == name and _may_be(each, rooms):
                    classes[_name(each)] = each
    return classes
