"""A shard's published values where updates may be coded: B beside Theta, and the codes from one B to the next.

Decides B, once a version, for all receivers: q = Q(Theta_v - B_(v-1)), B_v = B_(v-1) + D(q). The coding error stays in
Theta - B, and is in the next difference: no other feedback is needed. A version that results from no step (the first,
and the one from which a shard that came back continues) is sent whole, and Theta is B then; so is a version that is to
be published as float32, where the format follows the links.

Mailboxes keep the newest item of a key, so each version of a fragment has a key for itself (`place`) until CHAIN
versions later: a slow receiver gets the last CHAIN codes, each once, and no receiver gets a code twice. Whole versions
of a fragment, where there may be many, share a key: a slow receiver needs only the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import Format, Update, Vector, Version

if TYPE_CHECKING:
    from isthmus.ops.kernels.coding import Coded

CHAIN: Final = 4
"""Versions that a receiver may be behind before it needs a whole one: their codes are half as large as that."""


class Publication:
    """The published values of one fragment, and the codes of its newest version."""

    def __init__(self, fragment: Fragment, version: Version, values: Vector, *, whole_place: int | None = None) -> None:
        """Begin with a version; `whole_place` is the key of whole ones, if they have one of their own."""
        self.values = values
        self._fragment, self._whole_place = fragment, whole_place
        self._version, self._base = version, version
        self._coded: Coded | None = None

    def step(self, theta: Vector, version: Version, code_format: Format) -> None:
        """Publish the result of a step, in a format."""
        from isthmus.ops.kernels import coding

        if code_format == "float32":
            self._coded, self.values = None, theta
        else:
            self._coded, self.values = coding.advance(theta, self.values, self._fragment, code_format)
        self._base, self._version = self._version, version

    def item(self, whole: Update) -> Update:
        """The message to receivers of the version in `whole`: the codes, where there are some."""
        from isthmus.ops.kernels import coding

        told: Any = {**whole, "place": whole["fragment"] * CHAIN + whole["version"][1] % CHAIN}
        if self._coded is not None:
            told |= {**coding.told("values", self._coded), "base": self._base}
        elif self._whole_place is not None:
            told["place"] = self._whole_place
        return told  # type: ignore[no-any-return]
