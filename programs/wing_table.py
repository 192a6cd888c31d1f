"""The wings: features that nothing else needs, a row each.

A wing is a folder of `programs.wings`, with its tests in a folder of the same name. What it adds to the rest, its row
names by text, and only where it is used is it loaded. Nothing outside of the wings may import one: without the folder
and the row everything else works (`make wings`).

To add a wing: its folder, and a row here. No wing may be named outside of its folder but by that row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

ROOM: Final = "isthmus.programs.wings"
"""The package of all wings."""


class Wing(NamedTuple):
    """A wing, by the name of its folder.

    Attributes:
        needs: the wings that it stands on: without one of these there is none of it.
        commands: its commands, by name, and the module of the folder that offers them: it has `offer(app)`.
        last_writer: the function, MODULE:NAME, that writes a file of it into the folder of a run that is over.
    """

    name: str
    needs: tuple[str, ...] = ()
    commands: Mapping[str, str] = MappingProxyType({})
    last_writer: str = ""


WINGS: Final = (
    Wing("why", commands={"why": "past_commands", "replay": "past_commands"}),
    Wing("report", commands={"report": "report_commands"}, last_writer="page:write_report"),
    Wing("borders", commands={"borders": "borders_commands"}),
    Wing("dashboard", needs=("report",), commands={"dashboard": "dashboard_commands"}),
    Wing("doctor", commands={"doctor": "doctor_commands"}),
    Wing("launch", commands={"launch": "launch_commands"}),
    Wing("simulation", needs=("report",), commands={"simulate": "simulate_commands"}),
    Wing("compare", needs=("report", "simulation"), commands={"compare": "compare_commands"}),
    Wing("chaos", needs=("report",), commands={"chaos": "chaos_commands"}),
    Wing("plan", needs=("report", "simulation"), commands={"plan": "plan_commands"}),
)


def loaded(wing: Wing, module: str) -> Any:
    """A module of a wing."""
    return import_module(f"{ROOM}.{wing.name}.{module}")


def commands_of(name: str | None) -> Iterator[Any]:
    """What offers the command of this name, if a wing has it; for None what offers those of all wings."""
    for wing in WINGS:
        modules = dict.fromkeys(module for each, module in wing.commands.items() if name in (None, each))
        yield from (loaded(wing, module) for module in modules)


def write_last(folder: Path) -> None:
    """Have each wing write its file into the folder of a run that is over. OSError where the disk does not take one."""
    for wing in WINGS:
        if wing.last_writer:
            module, _, name = wing.last_writer.partition(":")
            getattr(loaded(wing, module), name)(folder)
