"""The keys that a machine's daemon admits, and its operators: by machine.toml, and by `isthmus admit` and `expel`.

Decides the contents of NAME.admitted, a file beside the daemon's note in the user's state folder, and of a daemon's
keyring. The consequences for hosts and runs are decided by the callers that are notified.

Theory of operation. A line of the file is a name, its public key, and its origin: `own`, `configured` (machine.toml has
it), `admitted` (by a command) or `expelled` (by a command, and machine.toml may still have it); `operator` behind that
marks a further right of the key, `by KEY` the invitation that it was admitted by. An invitation has a line, too: the
name, or the prefix of names, that it is for, its public key, and `invitation`, then the number of names where it is for
a prefix, `each` and a number where it says how many islands each may offer, and `until` a Unix time if it expires.
`owner NAME` and `share X` end the lines of machines that have them, and those of the invitations that say so. Whether
it is used follows from the lines of machines that it has admitted, so that both are written at once. A daemon that
starts brings the first two origins up to date; where a command and machine.toml differ in whether a machine is an
operator, the command wins. Commands change the file under a lock, and it is there whole or as it was; a daemon reads it
four times a second. So a command needs neither the daemon nor its secret key, and its effect outlives both. Anyone who
can write to this user's state folder could run the daemon, too.

`isthmus keygen`, `admit` and `expel`: the commands that let one machine reach another, or no longer.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine.names import admitted_path, living, machines_folder
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.run.held_run import LEAVING_SHARE
from isthmus.programs.settings import collecting
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.ids import ITS_OWN, MachineOwner, Party, owner_party
from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import write_bytes
from isthmus.runtime.system.locks import FileLock
from isthmus.runtime.system.refusals import is_absent, reason, remedy
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import LEAVE_RUN, Message
from isthmus.runtime.wire.daemon_notes import note_of
from isthmus.runtime.wire.security_keys import DO_KEYS, KeyPair, Keyring

LOOK_SECONDS: Final = 0.25
OWN, CONFIGURED, ADMITTED, EXPELLED = "own", "configured", "admitted", "expelled"
OPERATOR, BY = "operator", "by"
OWNER, SHARE = "owner", "share"
INVITATION, EACH, UNTIL = "invitation", "each", "until"
ISLANDS: Final = 8
"""Islands that a machine may offer where its invitation says nothing: the devices of a usual machine."""
AWAY_SECONDS: Final = 30.0
"""A machine that was silent for so long may be replaced by one of its name that has an invitation for many."""
NAMES_SHOWN: Final = 3
"""Names in a refusal, which a holder of the invitation gets."""
_WAYS: Final = (OWN, CONFIGURED, ADMITTED, EXPELLED)
_MODE: Final = 0o600


@final
@dataclass(frozen=True, slots=True)
class Admission:
    """A machine, how it came to be admitted, or not, whether it is an operator, and the public key of its invitation.

    `by` is empty where it needed none; `owner` is what the invitation says.
    """

    name: str
    way: str
    is_operator: bool = False
    by: str = ""
    owner: MachineOwner = ITS_OWN

    def line(self, key: str) -> str:
        """The entry's line in the file."""
        rights = f" {OPERATOR}" if self.is_operator else ""
        by = f" {BY} {self.by}" if self.by else ""
        return f"{self.name} {key} {self.way}{rights}{by}{_owner_words(self.owner)}\n"


def _owner_words(owner: MachineOwner) -> str:
    """What a line says of an owner; of one without a name, that each machine has the share."""
    share = "" if owner.weight_share_max is None else f" {SHARE} {owner.weight_share_max!r}"
    return f"{f' {OWNER} {owner.name}' if owner.name else ''}{share}"


@final
@dataclass(frozen=True, slots=True)
class Invitation:
    """Admits one machine, named `subject`, or, where `count` is a number, as many names that begin with `subject`.

    `until` is the Unix time at which it expires, None if it does not. `owner` is whose its machines are, without a name
    each its own. Each machine may offer so many `islands`, where others of the invitation leave it theirs.
    """

    subject: str
    count: int | None = None
    until: int | None = None
    owner: MachineOwner = ITS_OWN
    islands: int = ISLANDS

    @property
    def slots(self) -> int:
        """How many slots of a run its machines may have together."""
        return (self.count or 1) * self.islands

    def line(self, key: str) -> str:
        """Its line in the file."""
        count = "" if self.count is None else f" {self.count}"
        islands = "" if self.islands == ISLANDS else f" {EACH} {self.islands}"
        until = "" if self.until is None else f" {UNTIL} {self.until}"
        return f"{self.subject} {key} {INVITATION}{count}{islands}{until}{_owner_words(self.owner)}\n"

    def is_for(self, name: str) -> bool:
        """Whether a machine may have this name by it."""
        return name == self.subject if self.count is None else name.startswith(self.subject)

    @property
    def words(self) -> str:
        """Whom it is for."""
        return repr(self.subject) if self.count is None else f"{self.count} names that begin with {self.subject!r}"


Entries = dict[str, Admission]
"""Entries by public key."""


@final
@dataclass(slots=True)
class Register:
    """The contents of the file: machines and invitations by public key."""

    machines: Entries = field(default_factory=dict)
    invitations: dict[str, Invitation] = field(default_factory=dict)

    def text(self) -> str:
        """The text of the file."""
        lines = [entry.line(key) for key, entry in self.machines.items()]
        return "".join([*lines, *(each.line(key) for key, each in self.invitations.items())])

    def names_by(self, invitation: str) -> list[str]:
        """The names that an invitation was used for, those of expelled machines included."""
        return list(dict.fromkeys(entry.name for entry in self.machines.values() if entry.by == invitation))

    def claim(self, invitation: str, name: str, key: str, away_seconds: float, unix_seconds: float) -> Claimed:
        """Admit a machine by an invitation, or not; ConfigError if that can never be.

        The machine `name`, which asks to be admitted with `key`, was last linked `away_seconds` ago.
        """
        doing, entry = f"Admitting {name!r} by invitation", self.machines.get(key)
        if entry is not None and entry.name == name and entry.way != EXPELLED:
            return Claimed()
        terms, names = self.invitations[invitation], self.names_by(invitation)
        if not terms.is_for(name):
            do = "Take such a name with --name, or have it invited: isthmus invite NAME."
            raise ConfigError(doing, f"a name of the invitation, which is for {terms.words}", repr(name), do)
        if not security_keys.is_key(key) or key in self.invitations:
            raise ConfigError(
                doing, "a key that the machine has made", shortened(repr(key), 100), "Use one version everywhere."
            )
        former = [each for each, it in self.machines.items() if it.name == name and it.by == invitation]
        expelled = [it for each, it in self.machines.items() if it.way == EXPELLED and (it.name == name or each == key)]
        is_full = bool(names) if terms.count is None else name not in names and len(names) >= terms.count
        do = "Have another one made there: isthmus invite"
        if terms.until is not None and unix_seconds >= terms.until:
            expired = f"one that expired {unix_seconds - terms.until:.0f} s ago"
            raise ConfigError(doing, "an invitation that has not expired", expired, f"{do}.")
        if expelled and terms.count is not None:
            raise ConfigError(doing, "a machine that was not expelled", "one that was", f"{do} {name}.")
        if is_full:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            used = f"one that was used by {', '.join(names[:NAMES_SHOWN])}{more}"
            raise ConfigError(doing, f"an invitation that is not used up, for {terms.words}", used, f"{do}.")
        if former and away_seconds < AWAY_SECONDS:
            return Claimed(wait_seconds=AWAY_SECONDS - away_seconds)
        for each in former:
            del self.machines[each]
        security_keys.check(admitted(self.machines), name, key, doing)
        self.machines[key] = Admission(name, ADMITTED, by=invitation, owner=terms.owner)
        return Claimed(is_new=True)


@final
@dataclass(frozen=True, slots=True)
class Claimed:
    """The outcome of a claim: admitted, unless there are `wait_seconds` until the key of that name may be replaced.

    `is_new` unless the machine was admitted before.
    """

    wait_seconds: float = 0.0
    is_new: bool = False


def path_of(machine: str) -> Path:
    """The file of the machine whose daemon has this name."""
    return admitted_path(machine)


def read(machine: str) -> Register:
    """The contents of the file, empty if it is missing; ConfigError if it is damaged."""
    path = path_of(machine)
    doing = f"Reading {path}"
    try:
        with path.open(encoding="ascii") as file:
            lines, status = file.read().splitlines(), os.fstat(file.fileno())
    except FileNotFoundError:
        return Register()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(doing, "a file that can be read", str(error), "Repair it, or take it away.") from None
    security_keys.check_owned(status, path, doing)
    register = Register()
    for line in lines:
        form = _LINE.fullmatch(line)
        if form is None or not security_keys.is_key(form["key"]):
            expected = f"lines of a name, a public key and one of {', '.join((*_WAYS, INVITATION))}"
            raise ConfigError(doing, expected, shortened(repr(line), 100), "Correct the line, or take it away.")
        name, key = form["name"], form["key"]
        owner = MachineOwner(form["owner"] or "", None if form["share"] is None else float(form["share"]))
        if form["way"] is None:
            count, each, until = (None if text is None else int(text) for text in form.group("count", "each", "until"))
            register.invitations[key] = Invitation(name, count, until, owner, ISLANDS if each is None else each)
        else:
            register.machines[key] = Admission(name, form["way"], form["operator"] is not None, form["by"] or "", owner)
    return register


_LINE: Final = re.compile(
    rf"(?P<name>\S+) (?P<key>\S+) (?:(?P<way>{'|'.join(_WAYS)})(?: (?P<operator>{OPERATOR}))?(?: {BY} (?P<by>\S+))?"
    rf"|{INVITATION}(?: (?P<count>\d+))?(?: {EACH} (?P<each>\d+))?(?: {UNTIL} (?P<until>\d+))?)"
    rf"(?: {OWNER} (?P<owner>\S+))?(?: {SHARE} (?P<share>[\d.e-]+))?"
)


def admitted(entries: Entries) -> dict[str, str]:
    """Public key -> name, of those that are admitted."""
    return {key: entry.name for key, entry in entries.items() if entry.way != EXPELLED}


def owners(entries: Entries) -> dict[str, MachineOwner]:
    """Whose the admitted machines are, by name, of those whose invitation says more than nothing."""
    return {it.name: it.owner for it in entries.values() if it.way != EXPELLED and it.owner != ITS_OWN}


def parties(register: Register) -> dict[str, Party]:
    """Who brought the admitted machines, by name, of those that came by an invitation.

    An owner brought all that its invitations did. A machine has the usual slots by itself whose invitation was
    withdrawn, or is another owner's by now.
    """
    slots = Counter[str]()
    for key, terms in register.invitations.items():
        slots[_party_name(key, terms.owner)] += terms.slots
    came = {it.name: it for it in register.machines.values() if it.by and it.way != EXPELLED}
    invited = {name: _party_name(it.by, it.owner) for name, it in came.items()}
    for name, it in came.items():
        terms_now = register.invitations.get(it.by)
        slots[invited[name]] += 0 if terms_now is not None and terms_now.owner == it.owner else ISLANDS
    return {machine: Party(party, slots[party]) for machine, party in invited.items()}


def _party_name(invitation: str, owner: MachineOwner) -> str:
    return owner_party(owner.name) if owner.name else f"{INVITATION} {invitation}"


def operators(entries: Entries) -> frozenset[str]:
    """The public keys of those that are admitted as operators."""
    return frozenset(key for key, entry in entries.items() if entry.way != EXPELLED and entry.is_operator)


def has_keys(machine: str) -> bool:
    """Whether the daemon of a machine has keys, or had when it last started."""
    return own_key(machine) is not None


def own_key(machine: str) -> str | None:
    """The public key with which the daemon of a machine last started; None if that had none, or none has started."""
    return next((key for key, entry in read(machine).machines.items() if entry.way == OWN), None)


def keyring(machine: str, config: MachineConfig) -> Keyring | None:
    """The keyring of a daemon that starts, None without keys; brings its file up to date.

    ConfigError if machine.toml and file contradict each other, or the file cannot be written.
    """
    if config.pair is None:
        if has_keys(machine):
            with changing(machine, f"Starting the daemon {machine!r}") as register:
                for key in [key for key, entry in register.machines.items() if entry.way in (OWN, CONFIGURED)]:
                    del register.machines[key]
        return None
    with changing(machine, f"Starting the daemon {machine!r}") as register:
        entries = register.machines
        kept = {key: entry for key, entry in entries.items() if entry.way in (ADMITTED, EXPELLED)}
        kept.pop(config.pair.public, None)  # Whatever it was: from now on it is the own key.
        entries.clear()
        entries[config.pair.public] = Admission(machine, OWN, is_operator=True)
        for key, name in config.admitted.items():
            security_keys.check(admitted(entries), name, key, f"Starting the daemon {machine!r}")
            if key == config.pair.public:
                continue  # A list that all machines share has it, too.
            entries[key] = _settled(Admission(name, CONFIGURED, key in config.operators), kept.pop(key, None))
        for key, entry in kept.items():
            if entry.way == ADMITTED:
                security_keys.check(admitted(entries), entry.name, key, f"Reading {path_of(machine)}")
            if entry.way == ADMITTED or entry.by in register.invitations:  # An expelled name stays used.
                entries[key] = entry
    ring = Keyring(config.pair, admitted(entries), machine, operators(entries))
    _note_invited(ring, register)
    return ring


def _note_invited(ring: Keyring, register: Register) -> None:
    """Have a keyring know the invitations, and who has come by them."""
    ring.invited = {key: each.count or 1 for key, each in register.invitations.items()}
    ring.owners, ring.parties = owners(register.machines), parties(register)


def _settled(configured: Admission, changed: Admission | None) -> Admission:
    """The entry of a machine of machine.toml, overridden by a command's change, if any."""
    if changed is None or changed == replace(configured, way=ADMITTED):
        return configured
    return replace(changed, name=configured.name)


def admit(machine: str, name: str, key: str, *, is_operator: bool = False) -> bool:
    """Let a machine's daemon admit another one from now on, as an operator or not; False if that is so already.

    ConfigError for a key of another name, a name with another key, or a file that cannot be written.
    """
    with changing(machine, f"Admitting {name!r}") as register:
        entries = register.machines
        entry = entries.get(key)
        if (
            entry is not None
            and entry.name == name
            and entry.way != EXPELLED
            and (entry.is_operator == is_operator or entry.way == OWN)
        ):
            return False
        security_keys.check(admitted(entries), name, key, f"Admitting {name!r} to {machine!r}")
        former = Admission(name, ADMITTED) if entry is None else entry
        entries[key] = replace(former, name=name, way=ADMITTED, is_operator=is_operator)
    return True


def expel(machine: str, name: str) -> bool:
    """Have a machine's daemon stop admitting another one, and withdraw invitations for that name or prefix.

    False if there was neither.

    ConfigError for the machine itself, or a file that cannot be written.
    """
    if name == machine:
        do = "End its daemon, if that is what you want."
        raise ConfigError(f"Expelling {name!r}", "another machine", f"the one whose daemon {machine!r} is", do)
    with changing(machine, f"Expelling {name!r}") as register:
        entries, invitations = register.machines, register.invitations
        gone = [key for key, each in admitted(entries).items() if each == name]
        withdrawn = [key for key, each in invitations.items() if each.subject == name]
        for key in withdrawn:
            del invitations[key]
        for key in gone:
            # The next start forgets it, unless machine.toml lists it, or its invitation might admit it again.
            entries[key] = replace(entries[key], way=EXPELLED, is_operator=False)
    return bool(gone or withdrawn)


@contextmanager
def changing(machine: str, doing: str) -> Iterator[Register]:
    """The contents of a file, under its lock; written at the end, durably, if they have changed."""
    path = path_of(machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened_at_end(path.with_suffix(".admitted.lock")) as lock:
            held = FileLock(lock.fileno(), Path(lock.name))
            held.take(waits=True)
            try:
                register = read(machine)
                before = register.text()
                yield register
                if register.text() != before:
                    write_bytes(path, register.text().encode())
                    path.chmod(_MODE)
            finally:
                held.release()
    except OSError as error:
        do = "Set XDG_STATE_HOME to a folder that may be written to."
        raise ConfigError(doing, f"to write to {path.parent}", reason(error), remedy(error, do)) from None


@final
class Admissions(DaemonService):
    """Lets the keyring of a daemon with keys follow its machine's file, and answers the holders of invitations."""

    def start(self, machine: ServedMachine) -> None:
        """Follow the file from now on."""
        assert machine.keys is not None
        self._machine, self._name, self._ring = machine, machine.name, machine.keys
        self._seen: tuple[int, int, int] | None = None
        self._seen = self._stamp()
        self._follow(read(self._name))
        self._timer = machine.loop.call_later(LOOK_SECONDS, self._look)

    def claim(self, invitation: str, message: Message, away_seconds: float) -> Message:
        """The answer to a holder of an invitation; what it changes is durable, and followed, when this returns.

        ConfigError for a refusal, or if the file cannot be written.
        """
        name, key = str(message["name"]), str(message["key"])
        cluster_file.checked_name(name, "Admitting a machine by invitation", "another --name")
        with changing(self._name, f"Admitting {name!r}") as register:
            if invitation not in register.invitations:
                do = "Have another one made there: isthmus invite."
                raise ConfigError(f"Admitting {name!r}", "an invitation of this home", "one that was withdrawn", do)
            claimed = register.claim(invitation, name, key, away_seconds, time.time())
        if claimed.wait_seconds:
            return {"type": "wait", "seconds": claimed.wait_seconds}
        if claimed.is_new:
            self._machine.tell(f"{name} comes by invitation")
            self._look()
        return {"type": "admitted", "name": self._name}

    def close(self) -> None:
        """Stop following."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer.cancel()
        self._timer = self._machine.loop.call_later(LOOK_SECONDS, self._look)
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._follow(read(self._name))
        except ConfigError as error:
            self._machine.tell(f"goes on with the keys that it knows: {error}")

    def _follow(self, register: Register) -> None:
        before, operated = self._ring.admitted, self._ring.operators
        self._ring.replace(admitted(register.machines), operators(register.machines))
        _note_invited(self._ring, register)
        now = self._ring.admitted
        for name in sorted(set(before.values()) - set(now.values())):
            self._machine.tell(f"admits {name} no longer")
            self._machine.neighbours.expel(name)
        for key, name in before.items():
            if key not in now and self._ring.admits(name):
                self._machine.tell(f"admits {name} with another key; the former one is expelled")
                self._machine.neighbours.replace(name)
        for name in sorted(set(now.values()) - set(before.values())):
            self._machine.tell(f"admits {name}")
            self._machine.neighbours.readmit(name)
        for name in sorted(self._ring.operators ^ operated):
            if self._ring.admits(name):
                self._machine.tell(f"has {name} as an operator{'' if name in self._ring.operators else ' no longer'}")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(path_of(self._name))
        except OSError as error:
            return None if is_absent(error) else self._seen
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


LEFT_LOOK_SECONDS: Final = 0.1


def _ask_leave(name: str, folders: Sequence[Path], grace: float) -> None:
    """Ask a machine to leave runs that have their home here, and wait until none of its hosts is there, or the grace is
    over."""
    until = time.monotonic() + grace
    notes = [note for folder in folders if (note := note_of(folder)) is not None]
    for note in notes:
        message = {"type": LEAVE_RUN, "machine": name, "seconds": grace * LEAVING_SHARE}
        ask(note.endpoint, message, ANSWER_SECONDS)
    while time.monotonic() < until and any(_has_hosts_on(note.endpoint, name) for note in notes):
        time.sleep(LEFT_LOOK_SECONDS)


def _has_hosts_on(endpoint: str, name: str) -> bool:
    """Whether a run has a living host on a machine, as its daemon says."""
    status = ask(endpoint, {"type": "status"}, ANSWER_SECONDS)
    return status is not None and any(host["machine"] == name and host["pid"] for host in status["hosts"])


def expel_machine(name: str, machine: str | None, grace: float = 0.0) -> str:
    """Remove the machine `name` from the runs of a daemon on this computer, and withdraw invitations for it.

    Within `grace` seconds its learners may answer once more, and leave by themselves.

    Returns the text to print. ConfigError if that daemon neither has it in a run nor admits it, nor invites it.
    """
    doing = f"Expelling {name!r}"
    here = machine_here(machine, doing)
    entry = living().get(here)
    count, was_linked = 0, False
    if entry is not None and grace:
        _ask_leave(name, [Path(run.folder) for run in entry.runs], grace)
    # A daemon with keys hears only those that it admits; it sees the change of its file itself.
    if entry is not None and not has_keys(here):
        answer = ask(entry.note.endpoint, {"type": "expel", "name": name}, ANSWER_SECONDS)
        if answer is None:
            do = "Look at its log; `isthmus status --all` shows whether it is there."
            raise ConfigError(doing, f"an answer of the daemon {here!r}", "none", do)
        count, was_linked = int(answer["runs"]), bool(answer["was_linked"])
    is_invited = any(each.subject == name for each in read(here).invitations.values())
    is_machine = was_linked or name in admitted(read(here).machines).values()
    expel(here, name)
    if is_invited and not is_machine:
        return f"{here} has withdrawn the invitation for {name}."
    if not is_machine:
        do = "`isthmus status` shows the machines of a run."
        raise ConfigError(doing, f"a machine that {here!r} admits or has in a run", repr(name), do)
    runs = f"; it took part in {count} run{'' if count == 1 else 's'}" if count else ""
    return f"{here} has expelled {name}{runs}{' and withdrawn its invitation' if is_invited else ''}."
