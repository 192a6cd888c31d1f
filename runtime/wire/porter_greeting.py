"""The words of SOCKS5 (RFC 1928) without a password, which who dials a porter and who answers at its port both speak.

The side that dials is `porter_relay`; what becomes of a connection is decided where one is accepted, by the programs.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 5
GREETED: Final = b"\x05\x00"
UNACCEPTABLE: Final = b"\x05\xff"
CONNECTED: Final = b"\x05\x00\x00\x01" + bytes(6)
FORBIDDEN: Final = b"\x05\x02\x00\x01" + bytes(6)
UNREACHABLE: Final = b"\x05\x05\x00\x01" + bytes(6)
