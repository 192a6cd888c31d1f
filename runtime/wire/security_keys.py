"""Keys: a machine's own pair, and the keys of those that it admits.

Decides the form of a key, as text and in a file, which machine it belongs to, what it permits, and that no traffic
leaves a machine without one. It does not open sockets: `security_curve` admits connections by a keyring, and gives
sockets their keys.

Theory of operation. A machine has one pair for CURVE, which its daemon and its hosts use. NAME.pub is one line, the
public key in Z85 (40 characters). NAME.key is one line, the word `secret` and the secret key, so that one file cannot
be mistaken for the other; the public key follows from it. Public keys are drawn until one has only characters that a
shell leaves alone, and begins with a letter or digit: they can be pasted into a command without quotes. About one in a
thousand is like that, so a secret key has some 10 bits less than its 256.

The *user id* of a connection is its public key; the keyring maps it to a machine at the moment of each message. So
messages of an expelled machine are dropped from the next one on, also when its name is admitted again with another key.

A machine that is admitted offers islands. An *operator* is one that may also control runs; a machine with a name is its
own operator. The key of an *invitation* belongs to no machine: it may connect to a daemon, where it can have a
machine's key admitted, and nothing else. A file from which keys, or their owners, are read is refused where another
user could have written it (`check_owned`): any user who can write it could become an operator.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import string
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, final

import zmq
from zmq.utils import z85

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import MachineOwner, Party
from isthmus.runtime.system.disk import open_regular

KEY_CHARACTERS: Final = 40
_ALPHABET: Final = frozenset(string.ascii_letters + string.digits + ".-:+=^!/*?&<>()[]{}@%$#")
_PASTABLE: Final = frozenset(string.ascii_letters + string.digits + ".-:+=/@%")
_SECRET: Final = "secret "
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""The mode bits of a file that are 0 where it has a secret."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ENDPOINT: Final = re.compile(r"tcp://(?P<host>\[[^]]*\]|[^:]*)(:.*)?")
DO_KEYS: Final = "Make a key with `isthmus keygen NAME`, and name it where the machine is described: [keys] secret."


@final
@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public and a secret key, as Z85 text. The secret one is never shown."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def draw(cls) -> Self:
        """A new pair, whose public key nobody has to type."""
        return cls(*(half.decode() for half in zmq.curve_keypair()))

    @classmethod
    def make(cls) -> Self:
        """A new pair, whose public key needs no quotes in a shell."""
        while True:
            pair = cls.draw()
            if _PASTABLE.issuperset(pair.public) and pair.public[0].isalnum():
                return pair

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.key, which only its owner can read, and NAME.pub; returns their paths.

        ConfigError if one of them exists already, or cannot be written. Nothing is overwritten.
        """
        paths = folder / f"{name}.key", folder / f"{name}.pub"
        doing = f"Making a key for {name!r}"
        there = [str(path) for path in paths if path.exists()]
        if there:
            do = "Use the key that there is, or take another name: a key that is overwritten is lost for ever."
            expected = f"neither {name}.key nor {name}.pub in this folder"
            raise ConfigError(doing, expected, f"{' and '.join(there)}", do)
        try:
            for path, text, mode in zip(paths, (f"{_SECRET}{self.secret}", self.public), (0o600, 0o644), strict=True):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with open(handle, "w", encoding="ascii") as file:
                    file.write(f"{text}\n")
        except OSError as error:
            raise ConfigError(doing, f"to write into {folder}", str(error), "Go to another folder.") from None
        return paths


def is_key(text: str) -> bool:
    """Whether `text` is a key: 40 characters of Z85 that encode 32 bytes."""
    if len(text) != KEY_CHARACTERS or not _ALPHABET.issuperset(text):
        return False
    try:
        z85.decode(text)
    except struct.error:
        # Five characters can encode more than 32 bits.
        return False
    return True


def read_pair(path: Path) -> KeyPair:
    """The pair whose secret key is in a file; ConfigError if it has none, or if others may read it."""
    doing, expected = f"Reading the secret key {path}", "a secret key that only its owner can read"
    line, mode = _line(path, doing, "Name the NAME.key that `isthmus keygen NAME` made.")
    if is_key(line):
        raise ConfigError(doing, expected, "a public key", f"Name {path.with_suffix('.key').name}, which is beside it.")
    secret = line.removeprefix(_SECRET)
    if not line.startswith(_SECRET) or not is_key(secret):
        do = "Name the NAME.key that `isthmus keygen NAME` made."
        raise ConfigError(doing, expected, _shown(line), do)
    if mode & OTHERS:
        do = f"Type `chmod 600 {path}`; and make a new key if somebody may have read this one."
        raise ConfigError(doing, expected, f"one with mode {mode:04o}", do)
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


def read_public(text: str, folder: Path, doing: str) -> str:
    """The public key that `text` is, or that is in the file it names, relative to `folder`; ConfigError if neither."""
    if is_key(text):
        return text
    path = folder / os.path.expanduser(text)
    do = f"Give a public key of {KEY_CHARACTERS} characters, or the path of a NAME.pub."
    line, _ = _line(path, doing, do)
    if line.startswith(_SECRET) and is_key(line.removeprefix(_SECRET)):
        do = f"Name {path.with_suffix('.pub').name}; the secret key stays on the machine that it was made on."
        raise ConfigError(doing, "a public key", f"a secret one in {path}", do)
    if not is_key(line):
        raise ConfigError(doing, f"a public key in {path}, {KEY_CHARACTERS} characters of Z85", _shown(line), do)
    return line


def check_owned(status: os.stat_result, path: Path, doing: str) -> None:
    """ConfigError if another user of this machine, except root, owns the file or may write it."""
    expected = "a file that only you can write"
    if status.st_uid not in (os.geteuid(), 0):
        do = f"Look at what it says, and make it yours: `chown {os.geteuid()} {path}`."
        raise ConfigError(doing, expected, f"{path}, which belongs to the user {status.st_uid}", do)
    if status.st_mode & _OTHERS_WRITE:
        do = f"Look at what it says, and type `chmod go-w {path}`."
        raise ConfigError(doing, expected, f"{path} with mode {stat.S_IMODE(status.st_mode):04o}", do)


def _line(path: Path, action: str, remedy: str) -> tuple[str, int]:
    """The one line of a small text file, and the file's mode; ConfigError if others could have written it."""
    try:
        with open_regular(path) as file:
            data, status = file.read(1024), os.fstat(file.fileno())
    except FileNotFoundError:
        raise ConfigError(action, "a key, or a file that holds one", f"no file {path}", remedy) from None
    except OSError as error:
        raise ConfigError(action, "a file that can be read", f"{type(error).__name__}: {error}", remedy) from None
    check_owned(status, path, action)
    return data.decode("ascii", "replace").strip(), stat.S_IMODE(status.st_mode)


def _shown(line: str) -> str:
    """Describes what a file contains instead of a key, without showing what may be a secret."""
    return f"{len(line)} characters that are none" if line else "nothing"


@final
class Keyring:
    """The pair of a machine, and the keys that it admits, public key -> name; some of these are operators'.

    It may change while sockets use it. A machine with a `name` always admits itself, as an operator: its hosts
    authenticate to each other with its own key.
    """

    def __init__(
        self,
        pair: KeyPair,
        admitted: Mapping[str, str] | None = None,
        name: str | None = None,
        operators: Iterable[str] = (),
    ) -> None:
        self.pair = pair
        self.invited: dict[str, int] = {}
        """How many machines may come by an invitation, by its public key; used ones and expired ones included, because
        their holders are told so."""
        self.owners: dict[str, MachineOwner] = {}
        """Whose machines are, by name, where their invitation says it."""
        self.parties: dict[str, Party] = {}
        """Who brought machines, by name, those that came by an invitation."""
        self._own = {} if name is None else {pair.public: name}
        self.replace(admitted or {}, operators)

    @property
    def admitted(self) -> Mapping[str, str]:
        """Public key -> name, of all admitted machines."""
        return dict(self._admitted)

    @property
    def invitations(self) -> frozenset[str]:
        """The public keys of invitations."""
        return frozenset(self.invited)

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(self._admitted[key] for key in self._operators)

    def name_of(self, key: object) -> str | None:
        """The name of the admitted machine with this key; None if there is none."""
        return self._admitted.get(key) if isinstance(key, str) else None

    def connects(self, key: str) -> bool:
        """Whether a holder of this key may connect to the daemon: an admitted machine, or one with an invitation."""
        return key in self._admitted or key in self.invitations

    def key_of(self, name: str) -> str:
        """The public key that is admitted under a name; empty if none is."""
        return next((key for key, each in self._admitted.items() if each == name), "")

    def admits(self, name: str) -> bool:
        """Whether a machine of this name is admitted."""
        return name in self._names

    def replace(self, admitted: Mapping[str, str], operators: Iterable[str] = ()) -> None:
        """Admit exactly these machines; some of their keys are `operators`."""
        self._admitted = {**admitted, **self._own}
        self._names = frozenset(self._admitted.values())
        self._operators = frozenset(operators) & frozenset(admitted) | frozenset(self._own)

    def admit(self, name: str, key: str) -> None:
        """Admit one more. ConfigError if the key belongs to another machine, or the name has another key."""
        check(self._admitted, name, key, f"Admitting {name!r}")
        self.replace({**self._admitted, key: name}, self._operators)

    def expel(self, name: str) -> bool:
        """Stop admitting a machine, from now on; False if it was not admitted. A machine never expels itself."""
        before = len(self._admitted)
        self.replace({key: each for key, each in self._admitted.items() if each != name}, self._operators)
        return len(self._admitted) < before


def check(admitted: Mapping[str, str], name: str, key: str, doing: str) -> None:
    """ConfigError if a machine cannot be admitted beside those that are: two names for a key, two keys for a name.

    A key that is its own name has no name yet, and may get one.
    """
    owner = admitted.get(key, name)
    if owner not in (name, key):
        do = f"Each machine makes a key of its own. Expel {owner!r} first if it is the same machine."
        raise ConfigError(doing, "a key of its own", f"the key of {owner!r}", do)
    if name in admitted.values() and key not in admitted:
        do = f"Expel {name!r} first if it has a new key; otherwise take another name."
        raise ConfigError(doing, "one key for each name", f"another key for {name!r}", do)


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint cannot be reached from another machine: 127.0.0.0/8, ::1, localhost, or no TCP at all."""
    form = _ENDPOINT.fullmatch(endpoint)
    if form is None:
        return not endpoint.startswith("tcp:")
    host = form["host"].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


def is_loopback_name(host: str) -> bool:
    """Whether the Host header of an HTTP request names this machine by loopback.

    One that does not comes from a page of elsewhere whose name leads here, and is to be refused by a server that is on
    loopback only.
    """
    return re.sub(r":\d*$", "", host).lower() in _LOOPBACK_NAMES


def check_open(endpoint: str, keys: Keyring | None, doing: str) -> None:
    """ConfigError if an endpoint is off loopback, and there are no keys."""
    if keys is None and not is_loopback(endpoint):
        expected = "keys: what leaves a machine is encrypted, and everybody says who they are"
        raise ConfigError(doing, expected, f"{endpoint} without keys", DO_KEYS)


def check_server(endpoint: str, keys: Keyring | None, server_key: str, doing: str) -> None:
    """The same for dialling, where the server's public key must be known, too."""
    check_open(endpoint, keys, doing)
    if keys is not None and not is_key(server_key):
        do = "Write `public_key` into the cluster file, or give --server-key: it is in the NAME.pub of that machine."
        raise ConfigError(doing, "the public key of the machine that listens there", server_key or "none", do)
