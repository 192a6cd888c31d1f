"""The watch of a command over a run, under the run's own daemon or that of a machine: one loop, one rule for Ctrl-C.

The first Ctrl-C asks the daemon to stop the run, the second to end it at once; SIGTERM asks it to set the run aside. A
daemon that is busy, stopped or dead is asked again; the wait is bounded, and shorter after a third Ctrl-C. After a
second signal of any kind nothing of the run lives for longer than ten seconds (`LastResort`).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, final

from isthmus.programs.engine.request.grace import GRACE_SECONDS, SECOND
from isthmus.programs.engine.results.words import counted, scripts_again
from isthmus.programs.engine.run.going_on import going_on
from isthmus.programs.engine.run.interrupts import Interrupts, leave_output
from isthmus.runtime.errors import InterruptedRunError, RunError, UnfinishedScriptsError
from isthmus.runtime.wire.control_messages import SET_ASIDE, Message

STATUS_SECONDS: Final = 0.25
END_SECONDS_MAX: Final = 90.0
"""Time limit for a daemon to kill its hosts and write the last files, for which a full disk has a minute."""
SECOND_SECONDS: Final = 7.0
"""Time limit for a run's own daemon to end it, after a second signal: of the ten seconds until all processes are gone,
the rest is to kill them, and to write the end."""
MARGIN_SECONDS: Final = 30.0
"""Beyond the grace of a notice, until its daemon is given up: a busy machine writes the last files for long."""
BLOCKED_SECONDS: Final = 1.0
"""Beyond SECOND_SECONDS, for a command that is not blocked to give its daemon up itself."""
HURRIED_SECONDS: Final = 5.0
"""Time limit for a daemon to end the run at once, after a third Ctrl-C."""
CUT_OFF: Final = "cut off by a second signal"


class CutOffError(RunError):
    """A notice to leave was not carried out in time, or a second one came: the run is cut off, as by a kill."""


class Watch(Protocol):
    """An observer of a run."""

    def update(self, status: dict[str, Any]) -> None:
        """The newest status; keys may be missing early."""

    def close(self, summary: dict[str, Any]) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run: its figures, and the folder with the rest."""

    summary: dict[str, Any]
    folder: Path


class DetachedError(Exception):
    """Nobody reads the output any more, and the run goes on by itself."""


class WatchedDaemon(Protocol):
    """The daemon of a run, as its command deals with it; `fate`: of a daemon that does not answer, for people."""

    @property
    def fate(self) -> str: ...

    @property
    def is_over(self) -> bool:
        """Whether its run is over."""

    def tend(self) -> None:
        """See to the daemon; RunError if the run cannot go on."""

    def status(self) -> Message | None:
        """The newest status; None if none comes in time, or the run is over. RunError if the run is lost."""

    def confirms(self, message: Message) -> bool:
        """Whether it confirms that it will do this."""

    def detach(self) -> bool:
        """Let it and the run go on without this process; whether that is possible."""


@final
class RunWatch:
    """Watches the run of a daemon, and passes Ctrl-C on."""

    def __init__(
        self,
        daemon: WatchedDaemon,
        interrupted: Interrupts,
        grace: float = GRACE_SECONDS,
        end_seconds: float = END_SECONDS_MAX,
        *,
        is_own: bool = False,
    ) -> None:
        """`is_own`: the daemon is this command's, which ends it if it does not come to the end within `end_seconds`."""
        self._daemon, self._interrupted, self._grace = daemon, interrupted, grace
        self._end_seconds, self._is_own = end_seconds, is_own
        self._heard, self._since = 0, 0.0
        self._has_set_aside = False

    def until_over(self, folder: Path, watch: Watch | None, *, detaches: bool = False) -> None:
        """Show how the run goes until it is over; RunError if it cannot be brought to an end.

        DetachedError if it `detaches`, and nobody reads the output any more, or there is none to read.
        """
        while not self._daemon.is_over:
            self._daemon.tend()
            self._pass_on()
            status = self._daemon.status()
            if status is not None and not _is_read(watch, status, otherwise=not detaches):
                if detaches and self._daemon.detach():
                    raise DetachedError
                if watch is not None:
                    say(f"standard output was closed; the run goes on: isthmus status --watch {folder}")
            time.sleep(STATUS_SECONDS)

    def patience(self) -> float:
        """Seconds to wait for a daemon."""
        if self._is_own and self._interrupted.second_at is not None:
            return max(0.0, min(self._interrupted.second_at + SECOND_SECONDS - time.monotonic(), self._limit()))
        return self._limit()

    def _limit(self) -> float:
        """Seconds for the answer to a request."""
        if self._interrupted.presses > 2:
            return HURRIED_SECONDS
        return self._end_seconds if self._interrupted.presses == 2 else END_SECONDS_MAX

    def _check_left(self) -> None:
        """CutOffError if a notice to leave was not carried out by now, where this command can do it."""
        if not self._is_own or not self._interrupted.is_to_leave:
            return
        now, first, second = time.monotonic(), self._interrupted.first_at, self._interrupted.second_at
        if second is not None and now > second + self._end_seconds:
            raise CutOffError(CUT_OFF)
        if first is not None and now > first + self._grace + MARGIN_SECONDS:
            raise CutOffError(f"cut off: its daemon did not set it aside within {self._grace:g} s")

    def _pass_on(self) -> None:
        """Send the request that is not confirmed yet; RunError if the daemon does not carry it out in time."""
        self._check_left()
        if self._interrupted.is_to_leave and not self._has_set_aside:
            self._has_set_aside = self._daemon.confirms({"type": SET_ASIDE, "seconds": self._grace})
        wanted = min(self._interrupted.presses, 2)
        if wanted and not self._since:
            self._since = time.monotonic()
        kind, fate = "stop" if wanted == 1 else "end", self._daemon.fate
        if wanted > self._heard and self._daemon.confirms({"type": kind, "reason": SECOND}):
            self._heard, self._since = wanted, time.monotonic()
        elif wanted > self._heard and wanted == 2:
            raise RunError(f"{SECOND}; its daemon did not answer, and {fate}")
        limit = self._limit()
        is_late = time.monotonic() > self._since + limit
        if self._heard == 2 and is_late:
            raise RunError(f"{SECOND}; its daemon did not come to the end within {limit:.0f} s, and {fate}")
        if wanted > self._heard and is_late:
            raise RunError(f"ended, because its daemon did not answer for {limit:.0f} s when it was to stop it")


class Endable(Protocol):
    """A daemon that this command can end, with its run."""

    def give_up(self, error: RunError) -> None:
        """End all of its processes; the command finds no daemon any more, and `error` in its place."""


@final
class LastResort:
    """While a run lasts: a thread that ends its processes after a second signal, where the command itself is blocked,
    as by a terminal that takes no output."""

    def __init__(self, daemon: Endable, interrupted: Interrupts) -> None:
        self._daemon, self._interrupted = daemon, interrupted
        self._is_over = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="isthmus-last-resort", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._interrupted.second.set()
        self._thread.join()

    def _watch(self) -> None:
        self._interrupted.second.wait()
        if self._is_over.wait(SECOND_SECONDS + BLOCKED_SECONDS):
            return
        # As RunWatch says it: the command may have asked a daemon that does not answer since before its own limit.
        is_to_leave = self._interrupted.is_to_leave
        self._daemon.give_up(CutOffError(CUT_OFF) if is_to_leave else RunError("ended at once by a second signal"))
        if not self._is_over.wait(BLOCKED_SECONDS):
            leave_output()
            with suppress(ProcessLookupError):
                signal.pthread_kill(self._main, signal.SIGINT)  # What is blocked is tried again, and goes nowhere.


def _is_read(watch: Watch | None, status: Mapping[str, Any], *, otherwise: bool) -> bool:
    """Whether somebody reads what a view shows; `otherwise` without one."""
    if watch is None:
        return otherwise
    try:
        _tell(partial(watch.update, shown(status)))
    except BrokenPipeError:
        return False
    return True


def ended(folder: Path, summary: dict[str, Any] | None, watch: Watch | None) -> RunOutcome:
    """The outcome of a run with this summary; RunError if it failed."""
    if summary is None:
        raise RunError(f"the run ended without a summary; look at {folder / 'logs' / 'daemon.log'}")
    if watch is not None:
        with suppress(BrokenPipeError):
            _tell(partial(watch.close, summary))
    if summary["outcome"] == "failed":
        raise RunError(str(summary["error"]))
    if (way := going_on(folder, summary["outcome"])) is not None:
        raise InterruptedRunError(f"{folder} was set aside by a signal; to go on with it: {way.words()}")
    if unfinished := summary.get("scripts_unfinished_why"):
        why = "; ".join(f"{name}: {reason}; see `isthmus logs {name}`" for name, reason in unfinished.items())
        how = scripts_again(folder)
        scripts = counted(len(unfinished), "script")
        raise UnfinishedScriptsError(f"the model is whole, but {scripts} did not come to the end; {how}. {why}")
    if watch is None and summary["outcome"] == "done" and (names := summary["scripts_dismissed"]):
        say(f"{', '.join(names)}: ended by request, before the end of the script; to go on: --resume {folder}")
    return RunOutcome(summary, folder)


def _tell(show: Callable[[], None]) -> None:
    """Call `show`. A lost terminal, or a full disk under a file, costs the output, not the run.

    BrokenPipeError, once, if whoever read the output is gone.
    """
    try:
        show()
    except BrokenPipeError:
        leave_output()
        raise
    except OSError:
        pass


def say(line: str) -> None:
    """Print a line for people; standard error may be closed."""
    with suppress(OSError):
        sys.stderr.write(f"isthmus: {line}\n")
        sys.stderr.flush()


def shown(status: Mapping[str, Any]) -> dict[str, Any]:
    """A daemon's status as views of a run take it: the recorder's, with hosts and pacers beside."""
    hosts = status["hosts"]
    pacing = {f"{h['name']}/pacer": h["published"].get("pacer", {}) for h in hosts if h.get("published")}
    own = {"daemon": status.get("daemon", ""), "full": status.get("full", [])}
    pacing = {name: values for name, values in pacing.items() if values}
    return {**status["training"], **own, "hosts": hosts, "pacing": pacing, "awaited": status.get("awaited", [])}
