"""The wings: features that nothing else needs, a row each.

A wing is a folder of `programs.wings`, with its tests in a folder of the same name. What it adds to the rest, its row
names by text, and only where it is used is it loaded. Nothing outside of the wings may import one: without the folder
and the row everything else works (`make wings`).

To add a wing: its folder, and a row here. No wing may be named outside of its folder but by that row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

ROOM: Final = "isthmus.programs.wings"
"""The package of all wings."""


class Wing(NamedTuple):
    """A wing, by the name of its folder.

    Attributes:
        needs: the wings that it stands on: without one of these there is none of it.
        commands: its commands, by name, and the module of the folder that offers them: it has `offer(app)`.
    """

    name: str
    needs: tuple[str, ...] = ()
    commands: Mapping[str, str] = MappingProxyType({})


WINGS: Final = (Wing("launch", commands={"launch": "launch_commands"}),)


def loaded(wing: Wing, module: str) -> Any:
    """A module of a wing."""
    return import_module(f"{ROOM}.{wing.name}.{module}")


def commands_of(name: str | None) -> Iterator[Any]:
    """What offers the command of this name, if a wing has it; for None what offers those of all wings."""
    for wing in WINGS:
        modules = dict.fromkeys(module for each, module in wing.commands.items() if name in (None, each))
        yield from (loaded(wing, module) for module in modules)
