"""A user's script whose processes are the learners, as the reference of its task names it.

Decides what is started for it. The task of such a script, and what the script tells of its model, is `loop_task`:
daemons and hosts read the reference of a run's task, and of most runs it names no script.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, final

from isthmus.runtime.system import rank_processes

LOOP: Final = "isthmus.programs.loop_task:loop"
"""The reference by which hosts find the task; its keywords are those of `loop`."""

OPEN: Final = "isthmus.programs.loop_task:open_loop"
"""Likewise, where no daemon starts a script: learners are processes that join with a loop of their own."""


@final
@dataclass(frozen=True, slots=True)
class LoopScript:
    """A script, its arguments, the folder in which it runs, and in how many ranks each island does."""

    script: str
    arguments: tuple[str, ...]
    folder: str
    ranks: int = 1

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        command = [sys.executable, self.script, *self.arguments]
        return command if self.ranks == 1 else rank_processes.command_of(self.ranks, command)

    @property
    def names(self) -> list[str]:
        """By what tasks of scripts differ."""
        return [self.script, *self.arguments]
