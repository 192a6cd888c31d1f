"""A user's script whose processes are the learners: the names by which references and variables tell of it, what is
started for it, and what each of its processes is.

The task of such a script, and what the script tells of its model, is `loop_task`: daemons and hosts read the reference
of a run's task, start its processes, and know nothing of the model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import msgspec

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

FILE: Final = "file"
MODULE: Final = "module"
PROGRAM: Final = "program"
"""What a script is (`LoopScript.form`)."""


@final
@dataclass(frozen=True, slots=True)
class LoopScript:
    """A script, its arguments, the folder in which it runs, and in how many ranks each island does.

    - `script`: the path of a file, or the name of a module.
    - `form`: FILE, a file of Python; MODULE, as behind `python -m`; or PROGRAM, which is run as it is, such as the
      console script of a package.
    - `python`: the interpreter of a file or module; empty for that of isthmus.
    """

    script: str
    arguments: tuple[str, ...]
    folder: str
    ranks: int = 1
    form: str = FILE
    python: str = ""

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> LoopScript:
        """That of the keywords of a reference, which another machine may have sent; ValueError for others."""
        return msgspec.convert(dict(keywords), cls)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of its reference: those that are not the defaults, beside the first three."""
        found: dict[str, Any] = {"script": self.script, "arguments": list(self.arguments), "folder": self.folder}
        found |= {} if self.ranks == 1 else {"ranks": self.ranks}
        found |= {} if self.form == FILE else {"form": self.form}
        return found | ({"python": self.python} if self.python else {})

    @property
    def name(self) -> str:
        """What it is called."""
        return self.script if self.form == MODULE else os.path.basename(self.script)

    @property
    def interpreter(self) -> str:
        """What runs a file or module."""
        return self.python or sys.executable

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        before = {FILE: [self.interpreter], MODULE: [self.interpreter, "-m"], PROGRAM: []}[self.form]
        command = [*before, self.script, *self.arguments]
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
