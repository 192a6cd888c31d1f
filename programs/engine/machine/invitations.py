"""Invitations: a file by which a machine is admitted to a home without anything typed there, and who may use it.

Decides the form of NAME.invite, what `isthmus invite` writes, and how a machine that has the file is admitted by it.
Which invitations a home knows, and which are used, is in its file of admissions.

Theory of operation. The file has the address and the public key of a home, and a key pair of its own; it is a secret,
of mode 0600. The home has the public half. With that key one can connect to the home's daemon and send one message, the
claim: a name, and the public key that a machine of that name has made. The daemon writes both down before it answers;
from then on the machine is admitted with its own key, like any other, and the invitation's key does nothing more for
it. A claim that is repeated, by the same machine with the same key, is answered alike. While the home is away the claim
is repeated, to the address that the file has by then.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, final

import msgspec
import zmq

from isthmus.programs import settings
from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.placement import home_of
from isthmus.programs.engine.machine import admissions, invitation_forms
from isthmus.programs.engine.machine.admissions import AWAY_SECONDS, EXPELLED, ISLANDS, Invitation, Register
from isthmus.programs.engine.machine.invitation_forms import DO_COPY
from isthmus.programs.engine.machine.links import (
    FAR_REDIAL_BEATS,
    LINK_SECONDS,
    REDIAL_BEATS,
    UP_SECONDS,
    HomeAddress,
)
from isthmus.programs.engine.machine.names import living
from isthmus.programs.settings import Schema, Setting, collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import ITS_OWN, LIVES_MAX, MachineOwner
from isthmus.runtime.system.files import put_bytes
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.system.shared_loop import Loop
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.control_client import CUTS_MAX, ControlClient, check_greeting
from isthmus.runtime.wire.control_messages import Message, version_of
from isthmus.runtime.wire.control_server import CLAIM
from isthmus.runtime.wire.security_curve import CUT, KEYLESS, UNADMITTED
from isthmus.runtime.wire.security_keys import KeyPair, Keyring

ENDING: Final = ".invite"
STANDARD_INPUT: Final = Path("-")
COUNT_MAX: Final = 4096
"""Names that one invitation admits at most: each has a line in a file that is read as a whole."""
DO_INVITE: Final = "Name a file that `isthmus invite` has written."


class HomeTable(msgspec.Struct, kw_only=True):
    """The keys of [home]."""

    name: Annotated[str, Setting("The name of the machine.")]
    address: Annotated[str, Setting("tcp://HOST:PORT, where its daemon listens; read again while it is away.")]
    public_key: Annotated[str, Setting("Its public key.")]


class InvitationTable(msgspec.Struct, kw_only=True):
    """The keys of [invitation]."""

    secret: Annotated[str, Setting("The secret key of the invitation itself.")]
    check: Annotated[str | None, Setting("The CRC-32 of keys and name, in hex, which tells a damaged copy.")] = None
    name: Annotated[str | None, Setting("The name of the machine that is invited.")] = None
    prefix: Annotated[str | None, Setting("How the names of those begin that are invited.")] = None


_TABLES: Final[dict[str, type[msgspec.Struct]]] = {"home": HomeTable, "invitation": InvitationTable}


@final
class GivenText(NamedTuple):
    """The text of an invitation that came `where`, such as in a variable."""

    where: str
    content: bytes

    @classmethod
    def on_standard_input(cls) -> GivenText:
        """What comes there until its end, as far as an invitation can be long."""
        return cls("standard input", sys.stdin.buffer.read(invitation_forms.TEXT_BYTES_MAX + 1))


@final
@dataclass(frozen=True, slots=True)
class InvitationFile:
    """The contents of NAME.invite: the home, the invitation's own pair, and the name or the prefix that it is for."""

    home: HomeAddress
    pair: KeyPair
    name: str | None
    prefix: str | None

    def text(self) -> str:
        """The text of the file."""
        tables: dict[str, dict[str, Any]] = {
            "home": {"name": self.home.name, "address": self.home.address, "public_key": self.home.public_key},
            "invitation": {
                "name": self.name,
                "prefix": self.prefix,
                "secret": self.pair.secret,
                "check": self._check(),
            },
        }
        return "# Whoever has this file may join as it says: keep it secret, and `isthmus join --invite` it.\n" + (
            settings.document(tables)
        )

    def line(self) -> str:
        """The same in one line, of letters, digits, - and _."""
        return invitation_forms.line_of(self.text())

    def _check(self) -> str:
        """Of what must be copied without a change; the address may be corrected."""
        said = self.home.public_key, self.pair.secret, self.name or "", self.prefix or ""
        return f"{zlib.crc32(chr(0).join(said).encode()):08x}"

    @classmethod
    def read(cls, path: Path) -> InvitationFile:
        """The contents of a file; ConfigError if it is none, or if others may read it."""
        doing = f"Reading the invitation {path}"
        try:
            with path.open("rb") as file:
                given, status = file.read(invitation_forms.TEXT_BYTES_MAX + 1), os.fstat(file.fileno())
        except OSError as error:
            do = remedy(error, DO_INVITE)
            raise ConfigError(doing, "a file that can be read", error.strerror or "none", do) from None
        security_keys.check_owned(status, path, doing)
        if (mode := stat.S_IMODE(status.st_mode)) & security_keys.OTHERS:
            do = f"Type `chmod 600 {path}`; and have a new one made if somebody may have read this one."
            raise ConfigError(doing, "a file that only its owner can read", f"one with mode {mode:04o}", do)
        return cls._of(given, doing)

    @classmethod
    def named(cls, path: Path) -> InvitationFile:
        """The contents of a file, or of standard input, whose name is -."""
        return cls.given(GivenText.on_standard_input()) if path == STANDARD_INPUT else cls.read(path)

    @classmethod
    def given(cls, text: GivenText) -> InvitationFile:
        """The contents of a file that came otherwise; ConfigError if it is none."""
        return cls._of(text.content, f"Reading the invitation in {text.where}")

    @classmethod
    def _of(cls, content: bytes, doing: str) -> InvitationFile:
        document = invitation_forms.document_of(content, doing)
        if document.keys() != _TABLES.keys():
            raise ConfigError(doing, "the sections [home] and [invitation]", repr(list(document)), DO_COPY)
        home, own = (Schema.of(name, table).read(document[name]) for name, table in _TABLES.items())
        if not (security_keys.is_key(own["secret"]) and security_keys.is_key(home["public_key"])):
            raise ConfigError(doing, "two keys of 40 characters", "other text", DO_COPY)
        if (own["name"] is None) == (own["prefix"] is None):
            raise ConfigError(doing, "a name or a prefix", "both or neither", DO_INVITE)
        address = cluster_file.checked_address(home["address"], doing, has_keys=True)
        pair = KeyPair(zmq.curve_public(own["secret"].encode()).decode(), own["secret"])
        read = cls(HomeAddress(home["name"], address, home["public_key"]), pair, own["name"], own["prefix"])
        if own["check"] not in (None, read._check()):
            raise ConfigError(doing, f"keys and a name whose CRC-32 is {own['check']}", read._check(), DO_COPY)
        return read

    def name_for(self, name: str | None, host: str) -> str:
        """The name of a machine that joins by it: `name`, if given, that of the invitation, or that of the `host`,
        behind the prefix unless it begins with it; ConfigError for one that it is not for."""
        doing, prefix = "Choosing the name of this machine", self.prefix or ""
        if self.name is not None and name not in (None, self.name):
            do = f"Leave --name out, or have {name!r} invited."
            raise ConfigError(doing, f"{self.name!r}, for whom the invitation is", repr(name), do)
        if name is not None and not name.startswith(prefix):
            do = f"Choose another one, for example --name {prefix}{name}."
            raise ConfigError(doing, f"a name that begins with {prefix!r}", repr(name), do)
        chosen = self.name or name or (host if host.startswith(prefix) else f"{prefix}{host}")
        return cluster_file.checked_name(chosen, doing, "it with --name")


# -- at the home -------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class InviteRequest:
    """What `isthmus invite` was asked for: the one `name`, or `count` names that begin with `prefix`."""

    name: str | None = None
    count: int | None = None
    prefix: str | None = None
    cluster: Path | None = None
    address: str | None = None
    machine: str | None = None
    expires: str | None = None
    to: Path | None = None
    owner: str | None = None
    weight_share_max: float | None = None
    islands: int | None = None

    @property
    def subject(self) -> str:
        return self.name or self.prefix or ""

    @property
    def path(self) -> Path:
        return self.to or Path(f"{self.subject}{ENDING}")

    def faults(self) -> list[Fault]:
        """What is wrong with it by itself."""
        faults, doing = list[Fault](), "Writing an invitation"
        if (self.name is None) == (self.prefix is None) or (self.prefix is None) != (self.count is None):
            do = "Type `isthmus invite NAME`, or `isthmus invite --count N --for PREFIX`."
            given = {"NAME": self.name, "--count": self.count, "--for": self.prefix}
            found = ", ".join(each for each, value in given.items() if value is not None) or "neither"
            return [Fault(doing, "a NAME, or --count and --for", found, do)]
        with collecting(faults):
            cluster_file.checked_name(self.subject, doing, "for example `isthmus invite beta`")
        if self.count is not None and not 1 <= self.count <= COUNT_MAX:
            do = "Give the number of machines that may have such a name."
            faults.append(Fault("Reading --count", f"1 to {COUNT_MAX}", str(self.count), do))
        if self.islands is not None and not 1 <= self.islands <= LIVES_MAX:
            do = "Give the number of islands that each of its machines may offer."
            faults.append(Fault("Reading --islands", f"1 to {LIVES_MAX}", str(self.islands), do))
        if self.owner is not None:
            with collecting(faults):
                cluster_file.checked_name(self.owner, "Reading --owner", "for example --owner lab-b")
        if self.weight_share_max is not None and not 0 < self.weight_share_max <= 1:
            do = "1 is no limit."
            share = f"{self.weight_share_max:g}"
            faults.append(Fault("Reading --weight-share-max", "a share above 0 and at most 1", share, do))
        return faults


class Invited(NamedTuple):
    """An invitation that was written: what to print of it, and the `line` that says all that the file does."""

    text: str
    line: str


def invite(request: InviteRequest) -> Invited:
    """Write an invitation to a home on this computer.

    A file that is there, and an invitation of that home for the same, keeps its key: what else it has is written anew.
    ConfigError with all faults.
    """
    faults = request.faults()
    until, home = None, HomeAddress("", "")
    with collecting(faults):
        if request.expires is not None:
            until = int(time.time()) + cluster_file.duration_seconds(request.expires, "Reading --expires")
    with collecting(faults):
        home = _home(request)
    if faults:
        raise ConfigError.of(faults)
    doing, path = f"Inviting {request.subject!r} to {home.name!r}", request.path
    owner = MachineOwner(request.owner or "", request.weight_share_max)
    islands = ISLANDS if request.islands is None else request.islands
    terms = Invitation(request.subject, request.count, until, owner, islands)
    is_there = path.exists()
    try:
        with admissions.changing(home.name, doing) as register:
            if is_there:
                file = _renewed(path, register.invitations, terms, home, doing)
            else:
                if request.name in admissions.admitted(register.machines).values():
                    do = f"It needs none. If its key is lost, type first: isthmus expel {request.name}"
                    raise ConfigError(doing, "a machine that is not admitted yet", "one that is", do)
                file = InvitationFile(home, KeyPair.draw(), request.name, request.prefix)
            _check_owner(register, file.pair.public, terms.owner, doing)
            register.invitations[file.pair.public] = terms
            used = len(register.names_by(file.pair.public))
            _write(path, file.text(), doing)
    except BaseException:
        with suppress(OSError):
            if not is_there:
                path.unlink()
        raise
    expires = "" if request.expires is None else f", within {request.expires}"
    expires += f", of {_words(owner)}" if owner != ITS_OWN else ""
    text = (
        f"{path}: an invitation to {home.name} at {home.address}, for {terms.words}{expires}"
        f"{f'; used by {used} so far' if used else ''}. It is a secret. There, type:\n    isthmus join --invite {path}"
    )
    return Invited(text, file.line())


def _check_owner(register: Register, invitation: str, owner: MachineOwner, doing: str) -> None:
    """ConfigError if the machines of this invitation have another owner, or its owner another share elsewhere."""
    admitted = [entry for entry in register.machines.values() if entry.way != EXPELLED]
    own = [entry.owner for entry in admitted if entry.by == invitation]
    if any(each != owner for each in own):
        do = "Expel them, or write another invitation with --to FILE."
        raise ConfigError(doing, f"{_words(own[0])}, as its machines have", _words(owner), do)
    others = [each.owner for key, each in register.invitations.items() if key != invitation]
    others += [entry.owner for entry in admitted if entry.by != invitation]
    shares = {each.weight_share_max for each in others if owner.name and each.name == owner.name}
    if shares - {owner.weight_share_max}:
        do = "An owner has one share for all of its machines: give the same, or another --owner."
        said = ", ".join(_words(MachineOwner(owner.name, share)) for share in sorted(shares, key=str))
        raise ConfigError(doing, f"{said}, as another invitation says", _words(owner), do)


def _words(owner: MachineOwner) -> str:
    """An owner and its share, as options."""
    share = "" if owner.weight_share_max is None else f" --weight-share-max {owner.weight_share_max:g}"
    return f"--owner {owner.name}{share}" if owner.name else share[1:] or "no owner"


def _renewed(
    path: Path, known: dict[str, Invitation], terms: Invitation, home: HomeAddress, doing: str
) -> InvitationFile:
    """A file that is there, with the home's present address; ConfigError if it is another one."""
    former = InvitationFile.read(path)
    of = known.get(former.pair.public)
    is_same = of is not None and (of.subject, of.count is None) == (terms.subject, terms.count is None)
    if not is_same or former.home.public_key != home.public_key:
        do = "Name another file with --to, or take that one away."
        expected = f"no file {path}, or an invitation that {home.name!r} knows for {terms.words}"
        raise ConfigError(doing, expected, "another one", do)
    return replace(former, home=home)


def _write(path: Path, text: str, doing: str) -> None:
    """Write a file that nobody but its owner ever can read; ConfigError if that fails."""
    try:
        put_bytes(path, text.encode(), mode=0o600, is_durable=True)
    except OSError as error:
        raise ConfigError(doing, f"to write {path}", str(error), "Name another file with --to.") from None


def _home(request: InviteRequest) -> HomeAddress:
    """The home of a request, whose daemon is, or will be, on this computer."""
    doing = "Writing an invitation"
    if request.cluster is not None:
        home = home_in(request.cluster, request.machine, doing)
        own = admissions.own_key(home.name)
        if own not in (None, home.public_key):
            do = f"Correct public_key in {request.cluster}: it is {own}"
            raise ConfigError(doing, f"the key of the daemon {home.name!r}", home.public_key, do)
    else:
        name = admissions.machine_here(request.machine, doing)
        own, entry = admissions.own_key(name), living().get(name)
        if own is None:
            do = f"Start it with a machine.toml: {security_keys.DO_KEYS} Before that, give --cluster FILE."
            raise ConfigError(doing, f"a daemon {name!r} with keys", "none so far", do)
        home = HomeAddress(name, "" if entry is None else entry.note.endpoint, own)
    if request.address is not None:
        address = cluster_file.checked_address(request.address, "Reading --address", has_keys=True)
        home = replace(home, address=address)
    if not home.address or cluster_file.is_everywhere(home.address):
        found = f"one that listens at {home.address}" if home.address else "one that is not running"
        do = "Say where others reach it: --address tcp://HOST:PORT."
        raise ConfigError(doing, f"the address of the daemon {home.name!r}", found, do)
    # A daemon that has started with this state folder has noted its key there; the folder may be shared by computers.
    if admissions.own_key(home.name) != home.public_key and cluster_file.is_listening(home.address):
        found = f"one at {home.address} that has another state folder"
        raise ConfigError(doing, f"the daemon {home.name!r} here", found, "Type it where that one runs, as its user.")
    return home


def home_in(file: Path, machine: str | None, doing: str) -> HomeAddress:
    """The machine of a cluster file that is the home of its runs, or the one of that name."""
    cluster = cluster_file.read(file)
    named = next((each for each in cluster.machines if each.name == machine), None)
    home = home_of(cluster.topology) if machine is None else named
    if home is None or home.address is None or home.public_key is None:
        found = (
            "none" if home is None else f"{home.name!r}, without {'an address' if home.address is None else 'a key'}"
        )
        do = "Give it address, public_key and, in [keys], a secret key; or give --address instead of --cluster."
        raise ConfigError(doing, f"the home of the runs of {file}, with an address and a key", found, do)
    return HomeAddress(home.name, home.address, home.public_key)


# -- on a machine that joins -------------------------------------------------------------------------------------------


ANOTHER_KEY: Final = (
    "a machine with another key: not the home of this invitation",
    "Have one made by its home",
)
GREETING_SECONDS_MAX: Final = 3.0
"""For the greeting of what hangs up before keys are shown."""


@final
class InvitationClaim:
    """Has this machine admitted by an invitation; dials until it is. `waiting` says in words what it waits for, if not
    for the home, and `unanswered` why no daemon is where the home's address leads: a tunnel may be there before it.

    Arguments:
        loop: where it dials.
        invitation: that which it has.
        name: this machine.
        own: its public key.
        locate: returns the address to dial, each time.
        on_admitted: called once.
        on_refused: called once, with the reason, where that can never be.
        is_far: the home is behind a bucket.
    """

    def __init__(
        self,
        loop: Loop,
        invitation: InvitationFile,
        name: str,
        own: str,
        *,
        locate: Callable[[], str],
        on_admitted: Callable[[], None],
        on_refused: Callable[[ConfigError], None],
        is_far: bool = False,
    ) -> None:
        self.waiting = self.unanswered = ""
        self._is_far, self._is_looking, self._is_greeted = is_far, False, False
        self.is_heard = False
        self._loop, self._locate, self._home = loop, locate, invitation.home
        self._on_admitted, self._on_refused = on_admitted, on_refused
        self._claim = {"type": CLAIM, "name": name, "key": own}
        self._doing = f"Joining {invitation.home.name!r} as {name!r} by invitation"
        self._beats = self._silent_beats = self._cuts = 0
        self._rival_since: float | None = None
        self._is_over = False
        self._client = ControlClient(
            loop,
            locate(),
            self._answered,
            keys=Keyring(invitation.pair),
            server_key=invitation.home.public_key,
            is_far=is_far,
            on_refused=self._cut_off,
            on_stranger=self._other_version,
        )
        self._beat()

    def close(self) -> None:
        """Hang up."""
        if not self._is_over:
            self._is_over = True
            self._client.close()

    def _beat(self) -> None:
        if self._is_over:
            return
        self._silent_beats += 1
        if self._silent_beats % (FAR_REDIAL_BEATS if self._is_far else REDIAL_BEATS) == 0:
            self._client.dial(self._locate())
        self._client.send(self._claim)
        self._loop.call_later(LINK_SECONDS, self._beat)

    def _answered(self, message: Message) -> None:
        if self._is_over:
            return
        self._silent_beats, self._cuts, self.is_heard, self.unanswered = 0, 0, True, ""
        self._is_greeted = False
        if message["type"] == "admitted":
            self._end(self._on_admitted)
        elif message["type"] == "refused":
            self._refuse(ConfigError.of([Fault(*map(str, fault)) for fault in message["faults"]]))
        elif message["type"] == "wait":
            self._wait(float(message["seconds"]))

    def _wait(self, seconds: float) -> None:
        """Another machine has the name, and may be gone; one that is there is heard of again and again."""
        now = time.monotonic()
        if seconds < AWAY_SECONDS - UP_SECONDS:
            self._rival_since = None
        elif self._rival_since is None:
            self._rival_since = now
        elif now - self._rival_since > 2 * UP_SECONDS:
            do = "Give each machine a --name of its own, or end the other one."
            self._refuse(ConfigError(self._doing, "one machine of that name", "two", do))
            return
        self.waiting = f"until the machine that had its name was silent for {AWAY_SECONDS:.0f} s"

    def _cut_off(self, reason: str) -> None:
        """A connection attempt failed; a single one that was cut proves nothing."""
        if self._is_far and reason == CUT:
            return  # Of a passage; what the home's key is, its seal has shown.
        self._cuts += reason == CUT
        if self._is_over or (reason == CUT and self._cuts < CUTS_MAX):
            return
        if reason == CUT:
            self._cuts = 0
            self._look_behind()
            return
        if reason == UNADMITTED:
            found, do = "one that is not known there: withdrawn, or of another home", "Have another one made there"
        elif reason == KEYLESS:
            found, do = "a daemon without keys", "Start it with a machine.toml that has [keys] secret"
        else:
            found, do = ANOTHER_KEY
        self._turn_away(found, do)

    def _turn_away(self, found: str, do: str) -> None:
        at = f"an invitation of the home at {self._client.endpoint}"
        self._refuse(ConfigError(self._doing, at, found, f"{do}: isthmus invite."))

    def _look_behind(self) -> None:
        """See, apart from the loop, who hangs up: a daemon that has another key, or what has no daemon behind it."""
        endpoint = self._client.endpoint

        def look() -> None:
            found = ""
            try:
                check_greeting(endpoint, GREETING_SECONDS_MAX)
            except OSError as error:
                found = str(error)
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._seen, found)

        if not self._is_looking:
            self._is_looking = True
            threading.Thread(target=look, name="isthmus-greeting", daemon=True).start()

    def _seen(self, found: str) -> None:
        self._is_looking, self.unanswered = False, found
        was_greeted, self._is_greeted = self._is_greeted, not found
        if was_greeted and self._is_greeted and not self._is_over:  # What was cut before may have had nobody behind it.
            self._turn_away(*ANOTHER_KEY)

    def _other_version(self, message: Message) -> None:
        do = "Install the same isthmus on both."
        self._refuse(ConfigError(self._doing, f"{version_of()}, as here", version_of(message), do))

    def _refuse(self, error: ConfigError) -> None:
        self._end(lambda: self._on_refused(error))

    def _end(self, then: Callable[[], Any]) -> None:
        """Hang up from the loop, where no socket of the client is in use, and go on with `then`."""
        self._is_over = True

        def end() -> None:
            self._client.close()
            then()

        self._loop.call_soon(end)
