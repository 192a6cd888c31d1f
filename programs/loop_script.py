"""A user's script whose processes are the learners: the names by which references and variables tell of it, what is
started for it, and what each of its processes is.

The task of such a script, and what the script tells of its model, is `loop_task`: daemons and hosts read the reference
of a run's task, start its processes, and know nothing of the model.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from isthmus.runtime.ids import Replica

LOOP: Final = "isthmus.programs.loop_task:loop"
"""The reference by which hosts find the task; its keywords are those of `loop`."""
OPEN: Final = "isthmus.programs.loop_task:open_loop"
"""Likewise, where no daemon starts a script: learners are processes that join with a loop of their own."""
OPEN_NAME: Final = "isthmus.island"
"""What a cluster file names as the task of a run whose model the first of these brings."""
ISLAND: Final = "ISTHMUS_ISLAND"
"""The variable of the environment from which a script's process knows what it is, as JSON: the fields of a `LoopLife`,
or of a `LoopAhead`."""
INVITE: Final = "ISTHMUS_INVITE"
"""Has the text of an invitation's file where machines share none."""


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
        if self.ranks == 1:
            return command
        from isthmus.programs import rank_processes  # Few scripts have several ranks.

        return rank_processes.command_of(self.ranks, command)

    @property
    def names(self) -> list[str]:
        """By what tasks of scripts differ."""
        return [self.script, *self.arguments]


class LoopLife(NamedTuple):
    """One life of a slot: the run folder, the learner as 'learner/0', its incarnation, and its daemon's endpoint."""

    run: str
    replica: str
    incarnation: int
    daemon: str


class LoopAhead(NamedTuple):
    """A process of a script that has no life yet: once it has made a step it tells of its model, and waits for its
    life; or it ends, if there are no pipes.
    """

    asks: int
    """The descriptor into which it tells, as JSON."""
    tells: int = -1
    """The pipe into which it then writes a byte."""
    waits: int = -1
    """The pipe on which it waits for its life."""
    replica: str = ""
    """The learner that it will be, 'learner/0'; empty if it ends."""
    slots: int = 1
    """How many the run has."""
    seed: int = 0
    """The run's."""

    @property
    def is_only_asked(self) -> bool:
        """Whether it ends once it has told."""
        return not self.replica

    @property
    def slot(self) -> int:
        """That of the learner."""
        return 0 if self.is_only_asked else Replica.parse(self.replica).slot


class LoopHome(NamedTuple):
    """The home that a loop joins by itself: its `address`, the path of an `invitation`, or the text of one; and what
    this machine is to be called, if that was said."""

    address: str | None = None
    invitation: str | None = None
    invitation_text: str | None = None
    name: str | None = None
