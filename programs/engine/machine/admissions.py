"""The keys that a machine's daemon admits, and its operators: by machine.toml, and by `isthmus admit` and `expel`.

Decides the contents of NAME.admitted, a file beside the daemon's note in the user's state folder, and of a daemon's
keyring. The consequences for hosts and runs are decided by the callers that are notified.

Theory of operation. A line of the file is a name, its public key, and its origin: `own`, `configured` (machine.toml has
it), `admitted` (by a command) or `expelled` (by a command, and machine.toml may still have it); `operator` behind that
marks a further right of the key. A daemon that starts brings the first two up to date; where a command and machine.toml
differ in whether a machine is an operator, the command wins. Commands change the file under a lock, and it is there
whole or as it was; a daemon reads it four times a second. So a command needs neither the daemon nor its secret key, and
its effect outlives both. Anyone who can write to this user's state folder could run the daemon, too.

`isthmus keygen`, `admit` and `expel`: the commands that let one machine reach another, or no longer.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine.names import living, machines_folder
from isthmus.programs.settings import collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.files import write_bytes
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import DO_KEYS, KeyPair, Keyring

LOOK_SECONDS: Final = 0.25
OWN, CONFIGURED, ADMITTED, EXPELLED = "own", "configured", "admitted", "expelled"
OPERATOR: Final = "operator"
_WAYS: Final = (OWN, CONFIGURED, ADMITTED, EXPELLED)
_MODE: Final = 0o600


@final
@dataclass(frozen=True, slots=True)
class Admission:
    """A machine, how it came to be admitted, or not, and whether it is an operator."""

    name: str
    way: str
    is_operator: bool = False

    def line(self, key: str) -> str:
        """The entry's line in the file."""
        return f"{self.name} {key} {self.way}{f' {OPERATOR}' if self.is_operator else ''}\n"


Entries = dict[str, Admission]
"""Entries by public key."""


def path_of(machine: str) -> Path:
    """The file of the machine whose daemon has this name."""
    return machines_folder() / f"{machine}.admitted"


def read(machine: str) -> Entries:
    """The entries of the file, empty if it is missing; ConfigError if it is damaged."""
    path = path_of(machine)
    doing = f"Reading {path}"
    try:
        with path.open(encoding="ascii") as file:
            lines, status = file.read().splitlines(), os.fstat(file.fileno())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(doing, "a file that can be read", str(error), "Repair it, or take it away.") from None
    security_keys.check_owned(status, path, doing)
    entries: Entries = {}
    for line in lines:
        name, key, way, *more = (*line.split(), "", "", "")[: max(3, len(line.split()))]
        if not security_keys.is_key(key) or way not in _WAYS or more not in ([], [OPERATOR]):
            expected = f"lines of a name, a public key and one of {', '.join(_WAYS)}, perhaps with `{OPERATOR}`"
            raise ConfigError(doing, expected, repr(line[:100]), "Correct the line, or take it away.")
        entries[key] = Admission(name, way, bool(more))
    return entries


def admitted(entries: Entries) -> dict[str, str]:
    """Public key -> name, of those that are admitted."""
    return {key: entry.name for key, entry in entries.items() if entry.way != EXPELLED}


def operators(entries: Entries) -> frozenset[str]:
    """The public keys of those that are admitted as operators."""
    return frozenset(key for key, entry in entries.items() if entry.way != EXPELLED and entry.is_operator)


def has_keys(machine: str) -> bool:
    """Whether the daemon of a machine has keys, or had when it last started."""
    return any(entry.way == OWN for entry in read(machine).values())


def keyring(machine: str, config: MachineConfig) -> Keyring | None:
    """The keyring of a daemon that starts, None without keys; brings its file up to date.

    ConfigError if machine.toml and file contradict each other, or the file cannot be written.
    """
    if config.pair is None:
        if has_keys(machine):
            with _changing(machine, f"Starting the daemon {machine!r}") as entries:
                for key in [key for key, entry in entries.items() if entry.way in (OWN, CONFIGURED)]:
                    del entries[key]
        return None
    with _changing(machine, f"Starting the daemon {machine!r}") as entries:
        kept = {key: entry for key, entry in entries.items() if entry.way in (ADMITTED, EXPELLED)}
        entries.clear()
        entries[config.pair.public] = Admission(machine, OWN, is_operator=True)
        for key, name in config.admitted.items():
            security_keys.check(admitted(entries), name, key, f"Starting the daemon {machine!r}")
            entries[key] = _settled(Admission(name, CONFIGURED, key in config.operators), kept.pop(key, None))
        for key, entry in kept.items():
            if entry.way == ADMITTED:
                security_keys.check(admitted(entries), entry.name, key, f"Reading {path_of(machine)}")
                entries[key] = entry
    return Keyring(config.pair, admitted(entries), machine, operators(entries))


def _settled(configured: Admission, changed: Admission | None) -> Admission:
    """The entry of a machine of machine.toml, overridden by a command's change, if any."""
    if changed is None or changed == replace(configured, way=ADMITTED):
        return configured
    return replace(changed, name=configured.name)


def admit(machine: str, name: str, key: str, *, is_operator: bool = False) -> bool:
    """Let a machine's daemon admit another one from now on, as an operator or not; False if that is so already.

    ConfigError for a key of another name, a name with another key, or a file that cannot be written.
    """
    with _changing(machine, f"Admitting {name!r}") as entries:
        entry = entries.get(key)
        if (
            entry is not None
            and entry.name == name
            and entry.way != EXPELLED
            and (entry.is_operator == is_operator or entry.way == OWN)
        ):
            return False
        security_keys.check(admitted(entries), name, key, f"Admitting {name!r} to {machine!r}")
        entries[key] = Admission(name, ADMITTED, is_operator)
    return True


def expel(machine: str, name: str) -> bool:
    """Have a machine's daemon stop admitting another one; False if it did not admit it.

    ConfigError for the machine itself, or a file that cannot be written.
    """
    if name == machine:
        do = "End its daemon, if that is what you want."
        raise ConfigError(f"Expelling {name!r}", "another machine", f"the one whose daemon {machine!r} is", do)
    with _changing(machine, f"Expelling {name!r}") as entries:
        gone = [key for key, each in admitted(entries).items() if each == name]
        for key in gone:
            entries[key] = Admission(name, EXPELLED)  # The next start forgets it, unless machine.toml lists it.
    return bool(gone)


@contextmanager
def _changing(machine: str, doing: str) -> Iterator[Entries]:
    """The entries of a file, under its lock; written at the end if they have changed."""
    path = path_of(machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".admitted.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = read(machine)
            before = dict(entries)
            yield entries
            if entries != before:
                write_bytes(path, "".join(entry.line(key) for key, entry in entries.items()).encode())
                path.chmod(_MODE)
    except OSError as error:
        do = "Set XDG_STATE_HOME to a folder that may be written to."
        raise ConfigError(doing, f"to write to {path.parent}", str(error), do) from None


@final
class Admissions:
    """Lets a keyring follow its machine's file, on the loop of the daemon.

    `on_admitted(name)` and `on_expelled(name)` are called after the keyring has changed, `tell` with a line for people.
    """

    def __init__(
        self,
        loop: Any,
        machine: str,
        ring: Keyring,
        *,
        tell: Callable[[str], None],
        on_admitted: Callable[[str], None] = lambda name: None,
        on_expelled: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._loop, self._machine, self._ring = loop, machine, ring
        self._tell, self._on_admitted, self._on_expelled = tell, on_admitted, on_expelled
        self._seen = self._stamp()
        self._follow(read(machine))
        self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Stop following."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._follow(read(self._machine))
        except ConfigError as error:
            self._tell(f"goes on with the keys that it knows: {error}")

    def _follow(self, entries: Mapping[str, Admission]) -> None:
        now, before, operated = admitted(dict(entries)), self._ring.admitted, self._ring.operators
        self._ring.replace(now, operators(dict(entries)))
        for name in sorted(set(before.values()) - set(self._ring.admitted.values())):
            self._tell(f"admits {name} no longer")
            self._on_expelled(name)
        for name in sorted(set(self._ring.admitted.values()) - set(before.values())):
            self._tell(f"admits {name}")
            self._on_admitted(name)
        for name in sorted(self._ring.operators ^ operated):
            if self._ring.admits(name):
                self._tell(f"has {name} as an operator{'' if name in self._ring.operators else ' no longer'}")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(path_of(self._machine))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def machine_here(name: str | None, doing: str) -> str:
    """The machine whose daemon a command on this computer addresses: `name`, or the only one.

    ConfigError if there is none, or more than one.
    """
    if name is not None:
        return cluster_file.checked_name(name, doing, "for example --machine alpha")
    names = list(living()) or sorted(path.stem for path in machines_folder().glob("*.admitted"))
    if len(names) != 1:
        actual = f"{len(names)}: {', '.join(names)}" if names else "none"
        do = "Say which one with --machine NAME." if names else "Start it, or say whose it will be: --machine NAME."
        raise ConfigError(doing, "one daemon on this computer", actual, do)
    return names[0]


ANSWER_SECONDS: Final = 5.0


def keygen(name: str) -> str:
    """Make NAME.key and NAME.pub in this folder; returns the text to print. ConfigError if they exist."""
    cluster_file.checked_name(name, f"Making a key for {name!r}", "for example `isthmus keygen alpha`")
    pair = KeyPair.make()
    secret, public = pair.write(Path(), name)
    return (
        f'{secret}: the secret key. It stays on this machine; machine.toml names it: [keys] secret = "{secret}"\n'
        f"{public}: the public key, for everybody. Where {name} shall be let in, type:\n"
        f"    isthmus admit {name} {pair.public}"
    )


def admit_machine(name: str, key: str, machine: str | None, *, is_operator: bool = False) -> str:
    """Let the daemon of a machine on this computer admit another machine, perhaps as an operator.

    Returns the text to print. ConfigError with all faults.
    """
    doing = f"Admitting {name!r}"
    faults: list[Fault] = []
    public = here = ""
    with collecting(faults):
        cluster_file.checked_name(name, doing, "for example `isthmus admit beta KEY`")
    with collecting(faults):
        public = security_keys.read_public(key, Path(), doing)
    with collecting(faults):
        here = machine_here(machine, doing)
    if faults:
        raise ConfigError.of(faults)
    is_living = here in living()
    if is_living and not has_keys(here):
        do = f"Start it again with a machine.toml: {DO_KEYS}"
        raise ConfigError(doing, f"a daemon {here!r} with keys", "one without", do)
    what = f"{name} as an operator" if is_operator else name
    if not admit(here, name, public, is_operator=is_operator):
        return f"{here} admits {what} already."
    return f"{here} admits {what} {'from now on' if is_living else 'from its next start'}."


def expel_machine(name: str, machine: str | None) -> str:
    """Remove the machine `name` from the runs of a daemon on this computer; returns the text to print.

    ConfigError if that daemon neither has it in a run nor admits it.
    """
    doing = f"Expelling {name!r}"
    here = machine_here(machine, doing)
    entry = living().get(here)
    count, was_linked = 0, False
    # A daemon with keys hears only those that it admits; it sees the change of its file itself.
    if entry is not None and not has_keys(here):
        answer = ask(entry.note.endpoint, {"type": "expel", "name": name}, ANSWER_SECONDS)
        if answer is None:
            do = "Look at its log; `isthmus status --all` shows whether it is there."
            raise ConfigError(doing, f"an answer of the daemon {here!r}", "none", do)
        count, was_linked = int(answer["runs"]), bool(answer["was_linked"])
    was_admitted = expel(here, name)
    if not was_admitted and not was_linked:
        do = "`isthmus status` shows the machines of a run."
        raise ConfigError(doing, f"a machine that {here!r} admits or has in a run", repr(name), do)
    runs = f"; it took part in {count} run{'' if count == 1 else 's'}" if count else ""
    return f"{here} has expelled {name}{runs}."
