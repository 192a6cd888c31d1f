"""The daemon that a loop which starts itself brings along, as the loop's process sees it.

Decides how that process waits for what the daemon says; what is said is in `loop_guest`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.machine.names import machines_folder
from isthmus.programs.engine.run.logs import opened_log
from isthmus.programs.loop_script import LoopHome, LoopLife
from isthmus.programs.loop_task import ModelFound, leaf_rows
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError, Fault, RunError, shortened
from isthmus.runtime.system.children import Child
from isthmus.runtime.system.refusals import reason, remedy
from isthmus.runtime.wire.control_messages import MESSAGE_BYTES_MAX

TOLD_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (64 << 10)
"""Of a model, beside what else is in the message."""
_PROCESS: Final = "isthmus.programs.engine.machine.loop_daemon"
LOGS_KEPT: Final = 20
"""Of loops that have ended: for whoever looks why the last of them could not join."""
END_SECONDS: Final = 20.0
"""How long the end of a `with` waits for the daemon to have left."""


def keep_newest(folder: Path) -> None:
    """Remove the logs of loops that have ended, but the newest few."""
    ages = dict[Path, float]()
    for path in folder.glob("*.log"):
        with suppress(OSError):  # Another loop has just removed it.
            ages[path] = path.stat().st_mtime
    ended = [path for path in ages if path.stem.isdigit() and not Path("/proc", path.stem).exists()]
    for path in sorted(ended, key=lambda path: ages[path], reverse=True)[LOGS_KEPT:]:
        with suppress(OSError):
            path.unlink()


def check_told(found: ModelFound) -> None:
    """ConfigError for a model that no message to a home can have, or that a home would not take."""
    doing, do = "Telling the home of this model", "Stack the layers of the model into fewer leaves, with shorter names."
    answer = found.answer()
    size = len(json.dumps(answer))  # More than the message has, which is no text.
    if size > TOLD_BYTES_MAX:
        expected = f"names and shapes in at most {TOLD_BYTES_MAX} bytes"
        raise ConfigError(doing, expected, f"{len(found.leaves)} leaves in {size}", do)
    try:
        ModelFound.checked(answer)
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            doing, "leaves with names and rules that a home takes", shortened(str(error), 300), do
        ) from None


@final
class OwnDaemon:
    """A daemon that joins `home` for this process, in a session of its own."""

    def __init__(self, home: LoopHome, leaves: Sequence[ModelLeaf], *, evaluates: bool) -> None:
        """Start it for a loop with these leaves; `evaluates`: whether it can.

        ConfigError if its folder cannot be written.
        """
        folder = machines_folder().parent / "loops"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            do = "Set XDG_STATE_HOME to a folder that it may write to."
            raise ConfigError(
                "Joining with this loop", f"to write to {folder}", reason(error), remedy(error, do)
            ) from None
        keep_newest(folder)
        self.log = folder / f"{os.getpid()}.log"
        with opened_log(self.log) as log:
            self._child = Child(_PROCESS, [os.getpid()], output=log, folder=folder, leads=True)
        self._heard = deque[dict[str, Any]]()
        self._lost, self._evaluates = "", False
        self._send({"home": home._asdict(), "leaves": leaf_rows(leaves), "evaluates": evaluates})

    def wait(self) -> LoopLife | dict[str, int]:
        """The life that this process is in a run, or, where a home waits for a model, the `slots` and the `seed` of
        the run that begins with this one's. ConfigError if it cannot join; RunError if the daemon has ended."""
        while True:
            while self._heard:
                message = self._heard.popleft()
                if "state" in message:
                    sys.stderr.write(f"isthmus: {message['state']}\n")
                elif "faults" in message:
                    raise ConfigError.of([Fault(*fault) for fault in message["faults"]])
                elif "first" in message:
                    return dict(message["first"])
                elif "life" in message:
                    return LoopLife(**message["life"])
            coming = self._child.line.next()
            self._take([] if coming is None else [coming])

    def tell(self, found: ModelFound) -> None:
        """Tell of the model of this loop. ConfigError for one with more leaves than a message can have."""
        check_told(found)
        self._send({"model": found.answer()})

    @property
    def lost(self) -> str:
        """Why this process is no host of the run any more; empty while it is one."""
        self._look()
        return self._lost

    @property
    def evaluates(self) -> bool:
        """Whether this loop is the one that evaluates."""
        self._look()
        return self._evaluates and not self._lost

    def _look(self) -> None:
        """Hear what the daemon has said, without waiting for more."""
        if not self._lost:
            try:
                self._take(self._child.line.hear())
            except RunError as error:
                self._lost = str(error)

    def close(self, status: int, *, is_over: bool) -> None:
        """This process is a host no more, with that exit status: have the daemon leave, and wait a while for that."""
        with suppress(RunError):
            self._send({"ended": status, "is_over": is_over})
        self._child.let_go(END_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._child.line.send(message)
        except OSError:
            raise self._gone() from None

    def _take(self, messages: Sequence[dict[str, Any]]) -> None:
        """Keep what it has said; RunError if it has ended, and that was all."""
        for message in messages:
            self._evaluates = bool(message.get("evaluates", self._evaluates))
            self._lost = self._lost or str(message.get("lost", ""))
            self._heard.append(message)
        if not messages and self._child.line.is_over:
            raise self._gone()

    def _gone(self) -> RunError:
        return RunError(f"the daemon of this loop has ended: {self.log} has the reason")
