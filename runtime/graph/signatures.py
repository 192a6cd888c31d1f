"""The ports and arguments of a body, read from its signature.

Nothing is called here. A violation of what a body allows raises `GraphError`, on the line that adds the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isthmus.runtime.errors import GraphError


@dataclass(frozen=True, slots=True)
class Input:
    """An input port of a body; `has_default`: the body can be called without it."""

    name: str
    has_default: bool


def ports_of(where: str, body: Callable[..., Any]) -> tuple[tuple[Input, ...], tuple[str, ...]]:
    """Input and output ports of a body, from its signature."""
    is_class = inspect.isclass(body)
    outputs: Any = getattr(body, "outputs", ()) if is_class else ("result",)
    if isinstance(outputs, str):
        raise GraphError(where, "a tuple of names in `outputs`", repr(outputs), f"Write outputs = ({outputs!r},).")
    try:
        _ = body.__qualname__  # Instances and partials have no name by which a reference could name them.
        call: Any = body
        if inspect.isclass(body):  # Not getattr: every class has the __call__ of `type`.
            call = next((vars(base)["__call__"] for base in body.__mro__ if "__call__" in vars(base)), None)
        parameters = list(inspect.signature(call).parameters.values())[1 if is_class else 0 :]
    except (TypeError, ValueError, AttributeError):
        raise GraphError(
            where,
            "a function, or a class whose instances can be called",
            repr(body),
            "Give the body itself: node(name, function) or node(name, Class, arguments).",
        ) from None
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise GraphError(
                where,
                "a body whose parameters are its input ports, by name",
                f"parameter {parameter}",
                "Name every input port as a parameter of its own.",
            )
    return tuple(Input(item.name, item.default is not item.empty) for item in parameters), tuple(outputs)


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
    try:
        inspect.signature(body).bind(*arguments, **keywords)
    except TypeError as error:
        raise GraphError(
            where,
            f"the arguments of {body.__qualname__}{inspect.signature(body)}",
            str(error),
            "Give the node what its body takes.",
        ) from None
