"""Commands that take the options of a request.

They are read when typer asks for the signature: whoever names another command does not wait for the declarations of all
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from inspect import Signature
from typing import TYPE_CHECKING, Any, Concatenate

if TYPE_CHECKING:
    from isthmus.programs.command.request_options import Options


class _RequestCommand:
    """A command whose signature, for typer, is read late."""

    def __init__(self, command: Callable[Concatenate[Options, ...], None], without: Sequence[str], *, starts: bool):
        self._command, self._without, self._starts = command, without, starts
        self.__name__, self.__doc__ = command.__name__, command.__doc__

    def __call__(self, **values: Any) -> None:
        from isthmus.programs.command.request_options import taken

        self._command(taken(values), **values)

    @cached_property
    def __signature__(self) -> Signature:
        from isthmus.programs.command.request_options import parameters

        return Signature(parameters(self._command, self._without, starts=self._starts))

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {name: each.annotation for name, each in self.__signature__.parameters.items()}


def takes_options(
    *without: str, starts: bool = False
) -> Callable[[Callable[Concatenate[Options, ...], None]], Callable[..., None]]:
    """A command whose first parameter is made from the options that all commands about runs have.

    `without`: fields of Options that it does not have. `starts`: it starts a run, and has flags of section `run.`, too.
    """
    return lambda command: _RequestCommand(command, without, starts=starts)
