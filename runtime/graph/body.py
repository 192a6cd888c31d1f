"""What a body declares of itself: its ports, what comes to them, and what hosts, tapes and islands make of it.

It decides which input and output ports a body has, from its signature and its class attributes, and what holds where it
says nothing. Nothing is called here. A violation of what a body allows raises `GraphError`, on the line that adds the
node.

A function is a body: its parameters are input ports (*required* without a default, *sampled* with one), its result
leaves by port `result`. A class is a body whose instances are called: the parameters of `__call__` are its inputs, the
class attribute `outputs` names its outputs. Neither derives from anything: `Body` and `IslandBody` list all that one
may declare beside its call, with the value that holds otherwise, and `trait` is how everybody reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, get_args

from isthmus.runtime.errors import GraphError, nearest


class Body(Protocol):
    """What a body may declare beside its call, with the defaults.

    Of the class:

    - `outputs`: the names of its output ports; a function has one, `result`.
    - `collects`: the input ports at which a call is given {(replica, key): item}, of all that has come; at every other
      port it is given one item. It is so whatever the edges are: a port that takes one item accepts no edge that could
      bring several.
    - `schemas`: the types of what comes to its input ports (`items.schemas`), or a static method that makes them of the
      arguments of the node.
    - `noted`: by output port, the fields of its items that are noted on the tape.
    - `calls_user`: whether its calls are the user's own code, which may last as long as it likes.

    Of the instance, read after it is opened and after each call:

    - `is_idle`: call it again when something sampled is new, with None for its required inputs.
    - `is_finished`: never call it again.
    - `is_engaged`: a host that leaves waits: it has work here that another host is to take.
    - `take_early`: called with each vote of a Quorum that waits for its round to close, in the thread of the node,
      between calls: for what can be done ahead. No call may depend on it, and the vote may come to none. Of the
      instance, read once after it is opened.
    """

    outputs: ClassVar[tuple[str, ...]] = ()
    collects: ClassVar[tuple[str, ...]] = ()
    schemas: ClassVar[Mapping[str, Any] | Callable[..., Mapping[str, Any]]] = MappingProxyType({})
    noted: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    calls_user: ClassVar[bool] = False
    is_idle: bool = False
    is_finished: bool = False
    is_engaged: bool = False
    take_early: Callable[[Any], None] | None = None

    def open(self, context: Any) -> None:
        """Called once before the first call, with the `Context` of the host."""
        return

    def close(self) -> None:
        """Called once at the end."""
        return


class IslandBody(Protocol):
    """What a body may declare beside that computes on the devices of an island, with the defaults.

    `follower`: the body of a process that repeats the calls of this one, on an island of several processes; None where
    an island must have one process. `prepare` and `computes` are called on instances that are never opened.
    """

    follower: ClassVar[Callable[..., Any] | None] = None

    def prepare(self) -> None:
        """Do what all hosts would repeat (imports, tracing), in the process from which they are forked: without a
        thread, a device, or an effect on the object itself."""
        return

    def calls_on(self, devices: tuple[Any, ...] | None, seed: int, slot: int) -> Iterator[Any]:
        """The functions that a learner in this slot calls on these devices, for compilation ahead of time."""
        return iter(())

    def computes(self, seed: int, slot: int) -> Any:
        """What processes that compute for the host of this body need: on islands whose hosts do not compute."""
        return


class _Defaults(Body, IslandBody):
    """A body that declares nothing."""


Trait: TypeAlias = Literal[
    "outputs", "collects", "schemas", "noted", "calls_user", "is_idle", "is_finished", "is_engaged", "take_early",
    "open", "close", "follower", "prepare", "calls_on", "computes",
]  # fmt: skip
"""The members of `Body` and `IslandBody`."""

_DEFAULTS: Final = {name: getattr(_Defaults(), name) for name in get_args(Trait)}


def trait(body: Any, name: Trait) -> Any:
    """What a body, a class or an instance, declares as `name`, or else the default."""
    return getattr(body, name, _DEFAULTS[name])


@lru_cache(maxsize=1024)
def has(body: Hashable, name: Trait) -> bool:
    """Whether a body, a class or a function, declares `name` itself."""
    return hasattr(body, name)


def schemas_of(body: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas that a body declares for a node with these arguments, by input port."""
    declared = trait(body, "schemas")
    schemas: Mapping[str, Any] = declared(*arguments, **keywords) if callable(declared) else declared
    return schemas


@dataclass(frozen=True, slots=True)
class Input:
    """An input port of a body. `has_default`: the body can be called without it. `collects`: a call is given
    {(replica, key): item} there, and otherwise one item."""

    name: str
    has_default: bool
    collects: bool = False


def ports_of(where: str, body: Callable[..., Any]) -> tuple[tuple[Input, ...], tuple[str, ...]]:
    """Input and output ports of a body, from its signature and what it declares."""
    is_class = inspect.isclass(body)
    outputs: Any = trait(body, "outputs") if is_class else ("result",)
    if isinstance(outputs, str):
        raise GraphError(where, "a tuple of names in `outputs`", repr(outputs), f"Write outputs = ({outputs!r},).")
    try:
        _ = body.__qualname__  # Instances have no name by which a reference could name them.
        call: Any = body
        if inspect.isclass(body):  # Not getattr: every class has the __call__ of `type`.
            call = next((vars(base)["__call__"] for base in body.__mro__ if "__call__" in vars(base)), None)
        parameters = list(inspect.signature(call).parameters.values())[1 if is_class else 0 :]
    except (TypeError, ValueError, AttributeError):
        raise GraphError(
            where,
            "a function, or a class whose instances can be called",
            repr(body),
            "Give the body itself: node(name, function), node(name, Class) or node(name, partial(Class, arguments)).",
        ) from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise GraphError(
                where,
                "a body whose parameters are its input ports, by name",
                f"parameter {parameter}",
                "Name every input port as a parameter of its own.",
            )
    names = [parameter.name for parameter in parameters]
    collects = _collected(where, trait(body, "collects"), names)
    inputs = [Input(each.name, each.default is not each.empty, each.name in collects) for each in parameters]
    return tuple(inputs), tuple(outputs)


def _collected(where: str, collects: Any, names: list[str]) -> tuple[str, ...]:
    """The input ports that collect; GraphError where one is no input port."""
    if isinstance(collects, str):
        raise GraphError(where, "a tuple of names in `collects`", repr(collects), f"Write collects = ({collects!r},).")
    for name in collects:
        if name not in names:
            raise GraphError(where, "input ports of the body in `collects`", repr(name), nearest(name, names))
    return tuple(collects)


@lru_cache(maxsize=256)  # Builders make the same classes nodes again and again; more are none.
def _signature(body: type) -> inspect.Signature:
    return inspect.signature(body)


def check_arguments(where: str, body: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raise GraphError if `body` does not take the arguments of its node."""
    if not inspect.isclass(body):
        if arguments or keywords:
            raise GraphError(
                where,
                "no arguments: the parameters of a function are its input ports",
                f"{len(arguments) + len(keywords)} arguments",
                "Write a class with __init__ and __call__.",
            )
        return
    kind: Any = body  # To mypy a class is not hashable.
    signature = _signature(kind)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise GraphError(
            where,
            f"the arguments of {body.__qualname__}{signature}",
            str(error),
            f"Give the body what it takes: partial({body.__qualname__}, ...).",
        ) from None
