"""The record of items that a host has refused, in the name of their sender.

It decides nothing. It travels with what a host says of itself (`supervision.messages`), and is written down with the
incident that it leads to.
"""

from __future__ import annotations

import msgspec

from isthmus.runtime.ids import Member


class Refusal(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """`count` items of `member` on one edge were not what the body at the end of `edge` declares: the first of them at
    `field` ('' for the whole item), where one was `expected` and another `found`. `is_vote`: rounds
    wait for them."""

    member: Member
    edge: str
    field: str
    expected: str
    found: str
    count: int = 1
    is_vote: bool = False
