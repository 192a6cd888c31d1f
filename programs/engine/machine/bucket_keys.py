"""Seals of what lies in a bucket: NaCl boxes between an island's key for one passage and the key of the home.

It decides who may begin a passage, and with which keys its objects are sealed. Keys are those of CURVE, which are of
the same kind (curve25519).

Theory of operation. Whoever may write into the bucket is not trusted. An island draws a pair for each passage and puts
the public half into a *hello*, a box from a key that the home knows, of an invitation or of a machine, to the home's
key. The home takes it if it admits that key. Objects of the passage are boxes between the two, so machines that share
an invitation cannot read each other's. A hello that is put there again begins a passage that nobody can go on with: the
pair is known to the island alone. Who learns the home's secret key can read what was kept of old objects, but what is
inside has the sessions' own encryption (CURVE), whose keys are never stored.

PyNaCl is an extra, `isthmus[bucket]`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, final

from zmq.utils import z85

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.security_keys import KeyPair

if TYPE_CHECKING:
    from nacl.public import Box

HELLO_BYTES_MAX: Final = 512
_VERSION: Final = b"isthmus bucket 1\n"
_KEY_BYTES: Final = 32


def check_installed(doing: str) -> None:
    """ConfigError if PyNaCl is missing."""
    try:
        import nacl.public  # noqa: F401
    except ImportError:
        do = "Install it beside isthmus: in a clone, pip install -e '.[bucket]'."
        raise ConfigError(doing, "the package pynacl", "none installed", do) from None


@final
class BoxSeal:
    """A box between the holder of `secret` and the holder of the secret half of `public`, both as Z85."""

    def __init__(self, secret: str, public: str) -> None:
        self._box = _box(secret, public)

    def seal(self, plain: bytes) -> bytes:
        return bytes(self._box.encrypt(plain))

    def open(self, sealed: bytes) -> bytes:
        """What was sealed; ValueError if the holder of the other key did not seal it."""
        from nacl.exceptions import CryptoError

        try:
            return bytes(self._box.decrypt(sealed))
        except CryptoError as error:
            raise ValueError(str(error)) from None


class HelloContents(NamedTuple):
    """What an island says when it begins a passage: the key that the home knows it by, and the key of the passage."""

    sender: str
    key: str


def hello_of(identity: bytes, sender: KeyPair, home: str, key: str) -> bytes:
    """The hello of the passage `identity`, whose objects will be sealed with `key` (public), to the key `home`."""
    box = BoxSeal(sender.secret, home)
    return z85.decode(sender.public) + box.seal(_VERSION + identity + z85.decode(key))


def read_hello(identity: bytes, data: bytes, secret: str) -> HelloContents:
    """The contents of the hello of the passage `identity` to the holder of `secret`; ValueError if it is none."""
    if len(data) > HELLO_BYTES_MAX or len(data) <= _KEY_BYTES:
        raise ValueError(f"a hello of {len(data)} bytes")
    sender = z85.encode(data[:_KEY_BYTES]).decode()
    plain = BoxSeal(secret, sender).open(data[_KEY_BYTES:])
    if not plain.startswith(_VERSION + identity) or len(plain) != len(_VERSION + identity) + _KEY_BYTES:
        raise ValueError("a hello of another passage, or of another version")
    return HelloContents(sender, z85.encode(plain[-_KEY_BYTES:]).decode())


def digest_of(key: str) -> str:
    """A name for what belongs to the holder of a public key, which stores and file systems take: 16 characters."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def _box(secret: str, public: str) -> Box:
    from nacl.public import Box, PrivateKey, PublicKey

    return Box(PrivateKey(z85.decode(secret)), PublicKey(z85.decode(public)))
