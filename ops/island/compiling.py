"""How a process compiles the functions that a learner calls: by itself, or in the way that it was given.

Whoever starts several processes on a machine knows that they compile the same, and gives each a way (`compile_by`) in
which one of them compiles a program, and the others read what it has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from isthmus.ops.island.life import DeviceCall


class LoweredProgram(NamedTuple):
    """A function, lowered for its devices (`jax.stages.Lowered`)."""

    name: str
    lowered: Any


def lowered(calls: Iterable[DeviceCall]) -> Iterator[LoweredProgram]:
    """The functions of some calls, each lowered when it is asked for."""
    return (LoweredProgram(call.name, call.function.lower(*call.arguments)) for call in calls)


Tell: TypeAlias = Callable[[str, str], None]
"""Called with the function that is compiled from now on, and who compiles it where that is awaited, '' otherwise."""


class CompilingWay(Protocol):
    """How the programs of a learner are compiled."""

    def compile(self, programs: Iterable[LoweredProgram], tell: Tell) -> None:
        """Compile all of them, in any order."""
        ...


@final
class ByItself:
    """Each program when it comes: what a process does that knows of no other."""

    def compile(self, programs: Iterable[LoweredProgram], tell: Tell) -> None:
        for program in programs:
            tell(program.name, "")
            program.lowered.compile()


_make: Callable[[], CompilingWay] = ByItself
_tell: ContextVar[Tell | None] = ContextVar("tell", default=None)


def compile_by(make: Callable[[], CompilingWay]) -> None:
    """Have this process compile in a way from now on, which is made once it compiles."""
    global _make
    _make = cache(make)


@contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Tell what this thread compiles meanwhile."""
    before = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(before)


@contextmanager
def published(context: Any) -> Iterator[None]:
    """Publish what the node of a context compiles meanwhile, since which instant of its run; and nothing behind it."""
    with telling(
        lambda function, awaits: context.publish(
            {"compiles": function, "awaits": awaits, "compiles_since": context.now()}
        )
    ):
        yield
    context.publish({})


def compile_all(programs: Iterable[LoweredProgram], *, is_alone: bool = False) -> None:
    """Compile programs in the way of this process; by itself where it `is_alone` with them."""
    way = ByItself() if is_alone else _make()
    way.compile(programs, _tell.get() or _nobody)


def _nobody(function: str, awaits: str) -> None:
    del function, awaits
