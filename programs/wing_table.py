"""The wings: features that nothing else needs, a row each.

A wing is a folder of `programs.wings`, with its tests in a folder of the same name. What it adds to the rest, its row
names by text, and only where it is used is it loaded. Nothing below the wings may import one: without the folder, the
row, and the wings that need it everything else works (`make wings`).

To add a wing: its folder, and a row here. No wing may be named outside of its folder but by that row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from isthmus.runtime.errors import ConfigError

ROOM: Final = "isthmus.programs.wings"
"""The package of all wings."""


class WingService(NamedTuple):
    """A service of a machine's daemon, which is loaded with the first of its messages (`engine.machine.services`).

    Attributes:
        made_by: its class.
        messages: what it answers, with what an operator's key permits there in words; '' where none is needed.
        home_messages: what it answers of homes that its machine is linked to.
        seconds: how long an answer may take that needs other machines, or a snapshot fetched.
    """

    made_by: str
    messages: Mapping[str, str]
    home_messages: tuple[str, ...] = ()
    seconds: Mapping[str, float] = MappingProxyType({})


class Wing(NamedTuple):
    """A wing, by the name of its folder. Classes and functions are named as MODULE:NAME of that folder.

    Attributes:
        needs: the wings that it stands on: without one of these there is none of it.
        commands: its commands, by name, and the module of the folder that offers them: it has `offer(app)`.
        services: what a machine's daemon has of it.
        programs: the builders of its programs, by name.
        island_kinds: by name, what makes a host's part in an island of a kind, of (member, processes, address).
        compiled_needs: the function of a request that finds what a compiler said of its learners' needs
            (`engine.cluster.placing.Find`).
        door: what makes a door of a daemon that leads to the hosts of its machine (`engine.machine.doors.MakeDoor`).
        last_writer: the function that writes a file of it into the folder of a run that is over.
    """

    name: str
    needs: tuple[str, ...] = ()
    commands: Mapping[str, str] = MappingProxyType({})
    services: tuple[WingService, ...] = ()
    programs: Mapping[str, str] = MappingProxyType({})
    island_kinds: Mapping[str, str] = MappingProxyType({})
    compiled_needs: str = ""
    door: str = ""
    last_writer: str = ""

    def reference(self, name: str) -> str:
        """PACKAGE.MODULE:NAME of a MODULE:NAME of this wing."""
        return f"{ROOM}.{self.name}.{name}"


WINGS: Final = (
    Wing("why", commands={"why": "past_commands", "replay": "past_commands"}),
    Wing("report", needs=("why",), commands={"report": "report_commands"}, last_writer="page:write_report"),
    Wing("compile", commands={"compile": "compile_commands"}, compiled_needs="compiling:kept_needs"),
    Wing("borders", commands={"borders": "borders_commands"}),
    Wing("dashboard", needs=("report",), commands={"dashboard": "dashboard_commands"}),
    Wing(
        "doctor",
        commands={"doctor": "doctor_commands"},
        services=(
            WingService("trial_ports:TrialPorts", {"open-port": "", "dial-port": "to dial a port"}),
            WingService(
                "link_trials:LinkTrials",
                {"open-link-trial": "", "measure-link": "to measure a link"},
                ("measure-link",),
                {"measure-link": 20.0},
            ),
        ),
    ),
    Wing(
        "failover",
        commands={"resume": "resume_commands"},
        services=(
            WingService(
                "next_home:NextHome",
                {"resume": "to be the home of a run", "restore": "to be the home of a run from its store"},
                seconds={"resume": 90.0, "restore": 600.0},
            ),
        ),
    ),
    Wing("one_port", door="porter:Porter"),
    Wing("elastic", island_kinds={"elastic": "elastic_host:ElasticHost"}),
    Wing("regions", programs={"regional-diloco": "regional:build"}),
    Wing(
        "data_parallel",
        programs={"data-parallel": "data_parallel:build", "elastic-data-parallel": "elastic_data_parallel:build"},
    ),
    Wing("launch", commands={"launch": "launch_commands"}),
    Wing("simulation", needs=("report",), commands={"simulate": "simulate_commands"}),
    Wing("compare", needs=("report", "simulation"), commands={"compare": "compare_commands"}),
    Wing("chaos", needs=("report",), commands={"chaos": "chaos_commands"}),
    Wing("plan", needs=("compile", "report", "simulation"), commands={"plan": "plan_commands"}),
)


def _loaded(wing: Wing, name: str) -> Any:
    module, _, attribute = wing.reference(name).partition(":")
    return getattr(import_module(module), attribute) if attribute else import_module(module)


def commands_of(name: str | None) -> Iterator[Any]:
    """What offers the command of this name, if a wing has it; for None what offers those of all wings."""
    for wing in WINGS:
        modules = dict.fromkeys(module for each, module in wing.commands.items() if name in (None, each))
        yield from (_loaded(wing, module) for module in modules)


def answer_seconds() -> dict[str, float]:
    """How long the answers to messages may take that wings answer, where that is long."""
    return {kind: most for wing in WINGS for each in wing.services for kind, most in each.seconds.items()}


def programs() -> dict[str, str]:
    """The programs of wings: name -> reference of the builder."""
    return {name: wing.reference(builder) for wing in WINGS for name, builder in wing.programs.items()}


def island_kind(name: str) -> Any:
    """What makes a host's part in an island of this kind; ConfigError where there is no such kind."""
    made = (_loaded(wing, wing.island_kinds[name]) for wing in WINGS if name in wing.island_kinds)
    return _there(next(made, None), "Taking an island", f"islands of the kind {name!r}")


def has_door() -> bool:
    """Whether a wing has what `door` makes."""
    return any(wing.door for wing in WINGS)


def door() -> Any:
    """What makes a door of a daemon that leads to the hosts of its machine; ConfigError where there is none."""
    made = (_loaded(wing, wing.door) for wing in WINGS if wing.door)
    return _there(next(made, None), "Opening the port of a daemon", "one that leads to the hosts of its machine")


def _there(found: Any, doing: str, expected: str) -> Any:
    """What a wing adds, which this installation must have for what it was asked."""
    if found is None:
        raise ConfigError(doing, expected, "an installation without that wing", "Install isthmus as it is.")
    return found


def compiled_needs() -> Any:
    """What finds what a compiler said of the needs of a request's learners; None where nothing does."""
    return next((_loaded(wing, wing.compiled_needs) for wing in WINGS if wing.compiled_needs), None)


def write_last(folder: Path) -> None:
    """Have each wing write its file into the folder of a run that is over.

    OSError where the disk does not take one; those after it are not written.
    """
    for wing in WINGS:
        if wing.last_writer:
            _loaded(wing, wing.last_writer)(folder)
