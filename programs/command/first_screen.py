"""The help of `isthmus` itself: all commands in their groups, a line each, so that it fits on a small terminal.

The help of a command has tables with frames, from typer; here frames would take more lines than commands do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SHORT_MAX: Final = 200
"""Letters; a command says what it does in its first sentence, which is never cut."""


def first_screen(name: str, about: str, commands: Mapping[str, Any]) -> str:
    """What `name` is, and its commands by their groups, in the order in which they were written."""
    groups: dict[str, list[str]] = {}
    width = max(map(len, commands), default=0)
    for command_name, command in commands.items():
        does = command.get_short_help_str(_SHORT_MAX)
        groups.setdefault(str(command.rich_help_panel), []).append(f"  {command_name.ljust(width)}  {does}")
    lines = [f"Usage: {name} COMMAND ...", "", about]
    for group, rows in groups.items():
        lines += ["", group, *rows]
    return "\n".join([*lines, "", f"`{name} COMMAND --help` tells more; `{name} --version` prints the version.", ""])
