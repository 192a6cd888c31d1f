"""The record of items that a host has refused, by their sender.

It decides nothing. It travels in a host's heartbeat (`supervision.messages`), and is stored with the incident that it
leads to.
"""

from __future__ import annotations

import msgspec

from isthmus.runtime.ids import Member


class Refusal(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """`count` items of `member` violated the schema that the body at the end of `edge` declares.

    The first was wrong at `field` ('' for the whole item): `expected` and `found` describe the difference. `is_vote`:
    rounds wait for such items.
    """

    member: Member
    edge: str
    field: str
    expected: str
    found: str
    count: int = 1
    is_vote: bool = False
