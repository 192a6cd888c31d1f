"""The key-frames node: sends whole values to receivers that lack a code between their version and the incoming ones.

Decides the receivers: one that reports missing codes (`Need`) is sent the newest version, once; one that lacks none, or
holds a version newer than any here, is sent nothing. A need that arrives before there is a version is kept until then.

The outer-step node: Nesterov on the merged outer gradient, and the publication of the result.

Holds Theta and the momentum of this shard's fragments in float32. It publishes Theta bit for bit, in a new buffer each
time; where updates are coded it publishes B (`publication`), which is the fragment for all other nodes: the codes go to
`receive` of every host. A fragment is published again, unchanged, where an answer to it was refused: its learner may
have missed the version before, or hold unusable values, and begins again from this one, which names it; the others
ignore it. It is published once more as final at the end. A shard that comes back begins with the version that learners
hold; it publishes that version for learners that hold an older one or none, and its holders ignore it.

The hold node of the run's home has, beside the published values, the momentum (port `state`) and, where updates are
coded, Theta, and sends them to a shard that comes back (port `kept`). The momentum counts if it is of the version that
the shard began with, or of an older one of the same epoch: it is linear in its past, so a momentum that is n outer
steps late, or old, is added as mu^n of itself. Theta counts if it is of that version and arrives before a step;
otherwise it begins at B.

A shard's published values where updates may be coded: B beside Theta, and the codes from one B to the next.

Decides B, once a version, for all receivers: q = Q(Theta_v - B_(v-1)), B_v = B_(v-1) + D(q). The coding error stays in
Theta - B, and is in the next difference: no other feedback is needed. A version that results from no step (the first,
and the one from which a shard that came back continues) is sent whole, and Theta is B then; so is a version that is to
be published as float32, where the format follows the links.

Mailboxes keep the newest item of a key, so each version of a fragment has a key for itself (`place`) until CHAIN
versions later: a slow receiver gets the last CHAIN codes, each once, and no receiver gets a code twice. Whole versions
of a fragment, where there may be many, share a key: a slow receiver needs only the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import FinalFragment as FinalItem
from isthmus.ops.exchange.messages import (
    Format,
    Gradient,
    Kept,
    Merging,
    Need,
    ShardState,
    Update,
    Vector,
    Version,
    WantedCut,
    copied,
)
from isthmus.ops.exchange.schemas import KEPT, WANTED
from isthmus.ops.syncer.merge import KEPT_MAX

if TYPE_CHECKING:
    from types import ModuleType

    from isthmus.ops.kernels.coding import Coded


class KeyFrames:
    """States of fragments and needs in; whole values out, on the port of the receiver's role, for its `slot`.

    `frame` is the key of a fragment's mailbox.
    """

    outputs = ("learner", "evaluator")
    collects = ("state", "need")
    schemas: ClassVar = {"need": schemas.NEED}

    def __init__(self) -> None:
        self._newest: dict[int, Update] = {}
        self._needs: dict[tuple[Any, int], Need] = {}

    def __call__(
        self, state: Mapping[Any, ShardState] | None = None, need: Mapping[Any, Need] | None = None
    ) -> list[tuple[str, Any]] | None:
        """The whole values to send now."""
        for item in (state or {}).values():
            self._newest[item["fragment"]] = copied(item)
        for (replica, fragment), asked in (need or {}).items():
            self._needs.pop((replica, fragment), None)
            if asked["lacks"] and replica.role in self.outputs:
                self._needs[replica, fragment] = asked
        given: list[tuple[str, Any]] = []
        for (replica, fragment), asked in list(self._needs.items()):
            newest = self._newest.get(fragment)
            if newest is not None and newest["version"] > asked["version"]:
                del self._needs[replica, fragment]
                # A text, because numbers are the keys of codes from the same shard.
                given.append((replica.role, {**newest, "slot": replica.slot, "frame": str(fragment)}))
        return given or None


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


class OuterStep:
    """Gradient in; Update to all hosts, State to the hold node of the home, Merging to pacer and recorder; once, Final.

    `update` is the format of updates; "auto" takes the one that the round asks for. The State of a version that is
    `wanted` leaves a second time (`cut`), on a port where no later one replaces it. Final leaves at the end.
    """

    outputs = ("update", "state", "merged", "final", "cut")
    collects = ("kept", "wanted")
    determined: ClassVar = ("update", "state", "final")
    schemas: ClassVar = {"kept": KEPT, "wanted": WANTED}
    noted: ClassVar = {"merged": ("kind", "epoch", "round", "version", "voters")}

    def __init__(
        self,
        fragments: Sequence[Fragment],
        *,
        lr: float,
        momentum: float,
        update: Format | Literal["auto"] = "float32",
    ) -> None:
        self._fragments = fragments
        self._format = update
        self._publications: dict[int, Publication] = {}
        self._lr, self._momentum = lr, momentum
        self._theta: dict[int, Vector] = {}
        self._velocity: dict[int, Vector] = {}
        self._begun: dict[int, Version] = {}
        """Fragment -> the version with which this life recovered, as long as its momentum may yet arrive."""
        self._gone_on: dict[int, Version] = {}
        """Fragment -> the version whose momentum this life continues with."""
        self._kept: dict[int, Kept] = {}
        self._wanted: list[int] = []
        """The counts of the versions that are wanted for a cut, by fragment."""
        self._now: Any = None

    def open(self, context: Any) -> None:
        """Load the kernel before the first gradient arrives."""
        from isthmus.ops.kernels import coding, nesterov

        nesterov.warm()
        if self._format != "float32":
            coding.warm_updates()
        self._is_finite, self._largest = coding.is_finite, coding.largest
        self._nesterov: ModuleType = nesterov
        self._now = context.now

    def __call__(
        self,
        gradient: Gradient,
        kept: Mapping[Any, Kept] | None = None,
        wanted: Mapping[Any, WantedCut] | None = None,
    ) -> dict[str, Any]:
        """Step, and publish; where there is nothing to merge only that fact is reported."""
        p = gradient["fragment"]
        for item in (wanted or {}).values():
            self._wanted = item["counts"]
        self._kept |= {item["fragment"]: item for item in (kept or {}).values() if self._is_sound(item)}
        merged = gradient["direction"] is not None
        if merged:
            self._step(gradient)
        gone_on = self._gone_on.get(p)
        merging: Merging = {**gradient["merging"], "published_at": self._now(), "momentum": gone_on}
        emitted: dict[str, Any] = {"merged": merging}
        if merged or (p in self._theta and (gradient["kind"] == "final" or merging["refused"])):
            slots = {slot for slot, _ in merging["refused"]}
            update = self._update(gradient, [life for life in gradient["lives"] if life[0] in slots])
            published = self._publications.get(p)
            emitted["update"] = update if published is None else published.item(update)
            emitted["state"] = ShardState(**update, tensors=self._tensors(p), lengths=gradient["lengths"])
            if self._wanted[p : p + 1] == [update["version"][1]]:
                emitted["cut"] = emitted["state"]
            if gradient["kind"] == "final":
                emitted["final"] = self._final(p, update)
        return emitted

    def _step(self, gradient: Gradient) -> None:
        """Perform the outer step of a gradient.

        ArithmeticError if the result is not finite: the merge has booked it, so this life ends, and the next one goes
        on from the version that learners hold.
        """
        p, direction, scale = gradient["fragment"], gradient["direction"], gradient["scale"]
        assert direction is not None
        assert scale is not None
        if gradient["kind"] in ("initial", "recover"):
            self._theta[p] = direction
            if self._format != "float32":
                assert gradient["version"] is not None
                # Beyond the keys of codes.
                place = CHAIN * len(self._fragments) + p if self._format == "auto" else None
                version = gradient["version"]
                self._publications[p] = Publication(self._fragments[p], version, direction, whole_place=place)
            if self._momentum:
                self._velocity[p] = np.zeros(self._fragments[p].size, np.float32)
            if gradient["kind"] == "recover" and self._tensors(p) and gradient["version"] is not None:
                self._begun[p] = gradient["version"]
                self._go_on(p, gradient["version"])
            return
        assert gradient["version"] is not None
        self._go_on(p, [gradient["version"][0], gradient["version"][1] - 1])
        theta = self._stepped(p, direction, scale)
        if not self._is_finite(theta):
            odd = np.count_nonzero(~np.isfinite(theta))
            raise ArithmeticError(
                f"the outer step of fragment {p}: expected finite values, found {odd} of {theta.size} that are not. "
                f"The merge should have refused answers of {gradient['merging']['voters']}; report this."
            )
        self._theta[p] = theta
        if p in self._publications:
            assert gradient["version"] is not None
            self._publications[p].step(theta, gradient["version"], self._format_of(gradient))

    def _stepped(self, p: int, direction: Vector, scale: Vector) -> Vector:
        """The values of a fragment after a step; its momentum, where the program has any, is replaced."""
        fragment = self._fragments[p]
        if not self._momentum:
            theta: Vector = self._nesterov.descent(self._theta[p], direction, scale, fragment, self._lr)
            return theta
        theta, self._velocity[p] = self._nesterov.outer_step(
            self._theta[p], self._velocity[p], direction, scale, fragment, self._lr, self._momentum
        )
        return theta

    def _format_of(self, gradient: Gradient) -> Format:
        """The format of the update that results from a gradient."""
        if self._format != "auto":
            return self._format
        asked = gradient["merging"].get("asked")
        return "float32" if asked is None else asked["update"]

    def _go_on(self, p: int, newest: Version) -> None:
        """Take over the former life's momentum and Theta for the `newest` version, if they have arrived."""
        begun, kept = self._begun.get(p), self._kept.pop(p, None)
        if begun is None or kept is None or kept["version"][0] != begun[0] or kept["version"] > begun:
            return
        if self._momentum:
            share = np.float32(self._momentum ** (newest[1] - kept["version"][1]))
            self._velocity[p] = self._velocity[p] + share * kept["tensors"]["momentum"]
            self._gone_on[p] = kept["version"]
        if p in self._publications and kept["version"] == begun and newest[1] == begun[1]:
            self._theta[p] = kept["tensors"]["theta"]
        del self._begun[p]

    def _tensors(self, p: int) -> dict[str, Vector]:
        """The tensors that a new life of this shard needs of a fragment beside its published values."""
        tensors = {"momentum": self._velocity[p]} if self._momentum else {}
        return {**tensors, "theta": self._theta[p]} if p in self._publications else tensors

    def _is_sound(self, kept: Kept) -> bool:
        """Whether its tensors fit its fragment: a file may be damaged in ways that no digest shows."""
        p, found = kept["fragment"], kept["tensors"]
        needed = [*(["momentum"] if self._momentum else []), *(["theta"] if self._format != "float32" else [])]
        if p >= len(self._fragments) or not set(needed) <= set(found):
            return False
        size = self._fragments[p].size
        return all(found[name].shape == (size,) and self._largest(found[name]) <= KEPT_MAX for name in needed)

    def _final(self, p: int, update: Update) -> FinalItem:
        fragment, values = self._fragments[p], update["values"]
        cuts = zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False)
        tensors = {unit.name: values[begin:end].reshape(unit.values_shape) for unit, begin, end in cuts}
        return FinalItem(fragment=p, version=update["version"], tensors=tensors)

    def _published(self, p: int) -> Vector:
        return self._publications[p].values if p in self._publications else self._theta[p]

    def _update(self, gradient: Gradient, refused: list[list[int]]) -> Update:
        assert gradient["version"] is not None
        return Update(
            fragment=gradient["fragment"],
            version=gradient["version"],
            kind=gradient["kind"],
            values=self._published(gradient["fragment"]),
            clock=gradient["clock"],
            positions=gradient["positions"],
            totals=gradient["totals"],
            refused=refused,
        )
