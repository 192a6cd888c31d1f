"""The requests that each caller may send to a machine's daemon.

A machine that is admitted offers its islands: it links itself, reports, answers and leaves, each for itself. All other
requests, which decide what runs here or report on it, are for an operator: the machine's own key, one that was admitted
with `--operator`, and, at a daemon without keys, which listens on loopback only, any caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.security_keys import Keyring

TOLD_MAX: Final = 256
OPERATORS: Final = {
    "machine": "to tell of its runs",
    "call": "to take part in runs of another home",
    "check": "to check a run",
    "take": "to take a run",
    "resume": "to be the home of a run",
    "restore": "to be the home of a run from its store",
    "watch": "to show a run",
    "log": "to show the log of a run",
    "stop": "to stop a run",
    "end": "to end a run",
    "expel": "to expel a machine",
}
"""Requests that need an operator's key: message type, and its meaning in words."""


@final
class Authority:
    """Checks messages to the daemon of `machine` against its current keys.

    `tell` gets one line for people about each machine and request type that is refused.
    """

    def __init__(self, machine: str, keys: Keyring | None, tell: Callable[[str], None]) -> None:
        self._machine, self._keys, self._tell = machine, keys, tell
        self._told: set[tuple[str | None, str]] = set()

    def check(self, kind: str, caller: str | None) -> None:
        """ConfigError if the machine `caller` may not send a message of this type."""
        keys = self._keys
        if kind not in OPERATORS or keys is None or (caller is not None and caller in keys.operators):
            return
        key = keys.key_of(caller or "") or "KEY"
        do = f"Type on that machine: isthmus admit --operator {caller} {key}"
        if (caller, kind) not in self._told and len(self._told) < TOLD_MAX:
            self._told.add((caller, kind))
            self._tell(f"refused the machine {caller}, which asked it {OPERATORS[kind]}: it is no operator")
        expected, found = "an operator's key", f"that of {caller!r}, which may offer islands and nothing else"
        raise ConfigError(f"Asking the daemon {self._machine!r} {OPERATORS[kind]}", expected, found, do)
