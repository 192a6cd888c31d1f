"""What a shard publishes where updates are coded: B beside Theta, and the codes of the step from one B to the next.

Decides B, once a version, for all receivers: q = Q(Theta_v - B_(v-1)), B_v = B_(v-1) + D(q). What a code loses stays in
Theta - B, and is in the next difference: no other feedback is needed. A version that no step has made (the first, and
the one that a shard which came back goes on from) is sent whole, and Theta is B then.

Mailboxes keep the newest item of a key, so each version of a fragment has a key for itself (`place`) until CHAIN
versions later: who is slow gets the last CHAIN codes, each once, and nobody gets a code that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Update, Vector, Version

if TYPE_CHECKING:
    from isthmus.ops.kernels.coding import Coded, CodeFormat

CHAIN: Final = 4
"""Versions that a receiver may be behind before it needs a whole one: their codes are half as large as that."""


class Publication:
    """The published values of one fragment, and the codes of its newest version."""

    def __init__(self, fragment: Fragment, code_format: CodeFormat, version: Version, values: Vector) -> None:
        self.values = values
        self._fragment, self._format = fragment, code_format
        self._version, self._base = version, version
        self._coded: Coded | None = None

    def step(self, theta: Vector, version: Version) -> None:
        """Publish what a step has made of the fragment."""
        from isthmus.ops.kernels import coding

        self._coded, self.values = coding.advance(theta, self.values, self._fragment, self._format)
        self._base, self._version = self._version, version

    def item(self, whole: Update) -> Update:
        """What goes to receivers of the version that `whole` has: the codes, where there are some."""
        from isthmus.ops.kernels import coding

        told: Any = {**whole, "place": whole["fragment"] * CHAIN + whole["version"][1] % CHAIN}
        if self._coded is not None:
            told |= {**coding.told("values", self._coded), "base": self._base}
        return told  # type: ignore[no-any-return]
