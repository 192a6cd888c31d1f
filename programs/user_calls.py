"""Calls of a user's functions, whose errors are reported with the file and line that they come from."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Final

from isthmus.runtime.errors import ConfigError, shortened

_MESSAGE_LENGTH_MAX: Final = 1000


def call(
    name: str, function: Callable[..., Any], run: Callable[[], Any], expected_errors: type[Exception] | tuple[()] = ()
) -> Any:
    """The result of `run`, which calls the user's `function`; ConfigError with file and line for its errors.

    Errors of types `expected_errors`, which have a clear message already, are raised as they are.
    """
    try:
        return run()
    except expected_errors:
        raise
    except Exception as error:
        message = shortened(" ".join(str(error).split()), _MESSAGE_LENGTH_MAX, "cut: call it alone to read all")
        error_text = f"{type(error).__name__}: {message} ({_place(function, error)})"
        raise ConfigError(f"Running {name}", "a result", error_text, "Correct the function there.") from error


def _place(function: Callable[..., Any], error: Exception) -> str:
    """file:line of the error in the user's function, else of its definition, else of the last line that was run."""
    frames = traceback.extract_tb(error.__traceback__)
    code = _code(function)
    if code is None:
        return f"{frames[-1].filename}:{frames[-1].lineno}"
    inside = [frame.lineno for frame in frames if Path(frame.filename) == Path(code.co_filename)]
    return f"{code.co_filename}:{inside[-1] if inside else code.co_firstlineno}"


def _code(function: Any) -> CodeType | None:
    """The code of a function, behind decorators, `partial`, methods and callable objects; None if it is not Python."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    for holder in (getattr(function, "__func__", function), type(function).__call__):
        if isinstance(code := getattr(holder, "__code__", None), CodeType):
            return code
    return None
