"""Errors, sorted by whose fault they are.

Three are about a request and are raised before anything starts, with every fault that was found (`GraphError`,
`PlacementError`, `ConfigError`). Three are about a running host: `LocalProtocolError` is our own bug and stops the
host, `RemoteProtocolError` is a peer's and costs that peer its connection, `InvariantError` means that this machine can
no longer be trusted; what cores raise (`CoreError`) says what it is about. `RunError`: a run that had started could not
be finished.

The errors that any room may raise, or tell apart, are here. Nothing here knows who raises one, or what becomes of it,
and nothing of ours is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple, Self


def printable(text: str, keeping: str = "\n\t") -> str:
    """A text for a terminal, unprintable characters but those of `keeping` escaped.

    Parts of what is shown come from tasks and from other machines, and must move no cursor.
    """
    return "".join(each if each.isprintable() or each in keeping else ascii(each)[1:-1] for each in text)


def log_entry(text: str) -> str:
    """A text as one entry of a log: printable, with further lines indented, so that none passes for another entry."""
    # As wide as the time before an entry.
    return printable(text).replace("\n", "\n         ")


def shortened(text: str, length_max: int, rest: str = "") -> str:
    """A text for people, of at most `length_max` characters. A longer one ends with a whole word, and says that it is
    cut, and where the `rest` is, such as "the log has all of it"; without that, how long it was.

    One without a blank near there, such as an array or a path, is cut where it has to be.
    """
    if len(text) <= length_max:
        return text
    mark = f" ... ({rest or f'cut: it has {len(text)} characters'})"
    room = max(0, length_max - len(mark))
    words = max(text.rfind(blank, 0, room + 1) for blank in (" ", "\n"))
    return f"{text[: words if words > room // 2 else room].rstrip()}{mark}"[:length_max]


class Fault(NamedTuple):
    """One thing wrong with a request: what was being done, what was expected, what was found, what to do."""

    action: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.action}: expected {self.expected}, found {self.found}.\n  {self.remedy}"


class RequestError(Exception):
    """A request that cannot be carried out; `faults` holds everything that is wrong with it, never empty."""

    def __init__(self, action: str, expected: str, found: str, remedy: str) -> None:
        self.faults: tuple[Fault, ...] = (Fault(action, expected, found, remedy),)
        super().__init__(str(self.faults[0]))

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> Self:
        """One error that shows all `faults`; ValueError if there are none."""
        collected = tuple(faults)
        if not collected:
            raise ValueError("an error needs at least one fault")
        error = cls(*collected[0])
        error.faults = collected
        error.args = ("\n".join(str(fault) for fault in collected),)
        return error


class GraphError(RequestError):
    """The graph breaks a rule."""


class PlacementError(RequestError):
    """The graph cannot be placed on the available machines."""


class ConfigError(RequestError):
    """An option, a configuration, a reference, data or a task is wrong."""


class CoreSubject(NamedTuple):
    """What an error of a core is about: a `value`, by the `name` that fields of events and commands have for it."""

    name: str
    value: object


class CoreError(Exception):
    """A core cannot go on: it was given what cannot be, or has become what it cannot be."""

    def __init__(self, message: str, about: Iterable[CoreSubject] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.about: tuple[CoreSubject, ...] = tuple(about)
        """What it is about; empty where that is all of the core, or what the event names at which it was raised."""
        self.last_events: tuple[str, ...] = ()
        """The last events of that, a line each, the newest last: added by the shell, which has the tape."""

    def __str__(self) -> str:
        return "\n  ".join([self.message, *self.last_events])


class LocalProtocolError(CoreError):
    """This host did something illegal: a bug of ours or of a body. The host stops."""


class RemoteProtocolError(Exception):
    """A peer sent something illegal. Its connection is dropped, and the host goes on."""


class InvariantError(CoreError):
    """Something that must always hold does not. The host stops at once."""


def demand(core: str, holds: bool, about: Iterable[CoreSubject], broken: str, *of: object) -> None:
    """Raise InvariantError of a core, with `broken`, a format of `of`, unless `holds`. Made only then: most hold."""
    if not holds:
        raise InvariantError(f"{core}: {broken.format(*of)}", about)


class RunError(Exception):
    """A run that had started could not be finished."""


INTERRUPTED_STATUS: Final = 75
"""The exit status of a process that a signal has ended, and that is to be started again: EX_TEMPFAIL."""


class InterruptedRunError(RunError):
    """A run was set aside by a signal: it goes on at its next start."""


class UnfinishedScriptsError(RunError):
    """A run is done, and its model is whole, but scripts of its user's did not come to their own end."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The hint for a mistyped `name`: the nearest of `names`, or all of them."""
    candidates = sorted(names)
    match = get_close_matches(name, candidates, n=1)
    if match:
        return f"Did you mean {match[0]!r}?"
    return f"There is: {', '.join(candidates)}." if candidates else "There is none."
