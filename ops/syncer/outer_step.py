"""The outer-step node (Nesterov on the merged outer gradient), and what receivers get of its result.

Decides when a fragment is published: after each step; again, unchanged, where an answer to it was refused, because that
learner begins again from it (others ignore it); and as final at the end. Theta and the momentum are float32. No version
is written over: the next one lies where its gradient was. Where updates are coded, all other nodes have B instead of
Theta (`Publication`).

A shard that comes back begins with the version that learners hold, and takes over the momentum and Theta that its home
and its neighbour keep of it (ports `state` and `kept`), if they are of that version, or, for the momentum, of an older
one of its epoch: of the newest that fits, and of two of one version the exact one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from isthmus.ops.exchange.formats import FORMATS, STATE_FORMAT
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import (
    FinalFragment,
    Gradient,
    Kept,
    Merging,
    Need,
    ShardState,
    ToldVersion,
    Update,
    Vector,
    Version,
    WantedCut,
    Whole,
    copied,
    passed_on,
)
from isthmus.ops.exchange.requested import Format
from isthmus.ops.kernels.buffers import Lent, taken
from isthmus.ops.syncer.merge_books import KEPT_MAX

if TYPE_CHECKING:
    from types import ModuleType

    from isthmus.ops.kernels.coding import Coded, Values


class KeyFrames:
    """States of fragments and needs in; whole values out, on the port of the receiver's role, for its `slot`.

    A receiver that reports missing codes (`Need`) is sent the newest version once, as soon as there is a newer one than
    its own. `frame` is the key of a fragment's mailbox.
    """

    outputs = ("learner", "region", "evaluator", "syncer")
    collects = ("state", "need")
    schemas: ClassVar = {"need": Need}

    def __init__(self) -> None:
        self._newest: dict[int, Update] = {}
        self._needs: dict[tuple[Any, int], Need] = {}

    def __call__(
        self, state: Mapping[Any, ShardState] | None = None, need: Mapping[Any, Need] | None = None
    ) -> list[tuple[str, Any]] | None:
        """The whole values to send now."""
        for item in (state or {}).values():
            self._newest[item["fragment"]] = copied(item)
        for (replica, fragment), need_of in (need or {}).items():
            self._needs.pop((replica, fragment), None)  # The newest report counts, also one that it lacks none.
            if need_of["lacks"] and replica.role in self.outputs:
                self._needs[replica, fragment] = need_of
        frames: list[tuple[str, Any]] = []
        for (replica, fragment), need_of in list(self._needs.items()):
            newest = self._newest.get(fragment)
            if newest is not None and newest["version"] > need_of["version"]:
                del self._needs[replica, fragment]
                # A text, because numbers are the keys of codes from the same shard.
                frames.append((replica.role, {**newest, "slot": replica.slot, "frame": str(fragment)}))
        return frames or None


SCALES: Final = "_scales"
"""What follows the name of a tensor in that of the scales of its codes."""
CHAIN: Final = 4
"""Versions that a receiver may be behind before it needs a whole one: their codes are half as large as that."""


class Publication:
    """The published values B of one fragment, and the codes of its newest version.

    q = Q(Theta_v - B_(v-1)), B_v = B_(v-1) + D(q), once a version for all receivers: the coding error stays in
    Theta - B, and is in the next difference. A version that results from no step, or is to be float32, is sent whole.
    """

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

        # Mailboxes keep the newest item of a key. Codes of CHAIN versions have a key each: none is lost or comes twice.
        item: Any = {**whole, "place": whole["fragment"] * CHAIN + whole["version"][1] % CHAIN}
        if self._coded is not None:
            item |= {**coding.item_fields("values", self._coded), "base": self._base}
        elif self._whole_place is not None:  # Of whole versions a slow receiver needs only the newest.
            item["place"] = self._whole_place
        return item  # type: ignore[no-any-return]


def _is_exact(kept: Kept) -> bool:
    """Whether its tensors are not coded."""
    return not any(name.endswith(SCALES) for name in kept["tensors"])


def _as_kept(kept: Kept, name: str) -> Values:
    """A tensor as it came, or its codes."""
    from isthmus.ops.kernels import coding

    tensors = kept["tensors"]
    scales = tensors.get(name + SCALES)
    return tensors[name] if scales is None else coding.Coded(tensors[name], scales, STATE_FORMAT)


class OuterStep:
    """Gradient in; Update to learners, its books (`told`) to the evaluator, State to whoever gives it to these two,
    Merging to pacer and recorder; once, Final.

    `update` is the format of updates; "auto" takes the one that the round asks for. The State of a version that is
    `wanted` leaves a second time (`cut`), on a port where no later one replaces it. Final leaves at the end.
    """

    outputs = ("update", "told", "state", "merged", "final", "cut")
    collects = ("kept", "wanted")
    schemas: ClassVar = {"kept": Kept, "wanted": WantedCut}
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
        self._velocity: dict[int, Lent] = {}
        self._behind: dict[int, Vector] = {}
        """The newest version of fragments that go on from other values."""
        self._begun: dict[int, Version] = {}
        """Fragment -> the version with which this life recovered, as long as its momentum may yet arrive."""
        self._gone_on: dict[int, Version] = {}
        """Fragment -> the version whose momentum this life continues with."""
        self._kept: dict[int, dict[bool, Kept]] = {}
        """What came of each fragment, the codes of its neighbour, and the exact one of the home."""
        self._wanted: list[int] = []
        """The counts of the versions that are wanted for a cut, by fragment."""
        self._now: Any = None
        self._life: dict[str, int] = {}

    def open(self, context: Any) -> None:
        """Load the kernel before the first gradient arrives."""
        from isthmus.ops.kernels import coding, nesterov

        nesterov.warm()
        if self._format != "float32" or context.member.incarnation > 1:
            coding.warm_updates()
        self._coding: ModuleType = coding
        self._is_finite, self._largest = coding.is_finite, coding.largest
        self._nesterov: ModuleType = nesterov
        self._now = context.now
        self._life = {"shard": context.member.replica.slot, "incarnation": context.member.incarnation}

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
        # Before the step, which is the last moment for what the home keeps of Theta.
        for had in (kept or {}).values():
            if self._is_sound(had):
                self._kept.setdefault(had["fragment"], {})[_is_exact(had)] = had
        merged = gradient["direction"] is not None
        if merged:
            self._step(gradient)
        # After the step: it may have taken over a momentum, and its duration belongs to the merge.
        gone_on = self._gone_on.get(p)
        merging: Merging = {**gradient["merging"], "published_at": self._now(), "momentum": gone_on}
        emitted: dict[str, Any] = {"merged": merging}
        if merged or (p in self._theta and (gradient["kind"] == "final" or merging["refused"])):
            slots = {slot for slot, _ in merging["refused"]}
            update = self._update(gradient, [life for life in gradient["lives"] if life[0] in slots])
            emitted["update"] = self.item(update)
            emitted["told"] = passed_on(ToldVersion, {**update, **self._life})
            emitted["state"] = ShardState(**update, tensors=self._tensors(p), lengths=gradient["lengths"])
            if self._wanted[p : p + 1] == [update["version"][1]]:
                emitted["cut"] = emitted["state"]
            if gradient["kind"] == "final":
                emitted["final"] = self._final(p, update)
        return emitted

    def values(self, fragment: int) -> Vector | None:
        """The present values of a fragment, float32[size]; None before it begins."""
        return self._theta.get(fragment)

    def begin(self, fragment: int, values: Vector, version: Version) -> None:
        """Begin a fragment from values of elsewhere, which are published as that version; as of `replace`."""
        self.replace(fragment, values)
        self._publish_from(fragment, version, values)

    def item(self, update: Update) -> Update:
        """The message to receivers of the newest version, as it was published."""
        published = self._publications.get(update["fragment"])
        return update if published is None else published.item(update)

    def replace(self, fragment: int, values: Vector) -> None:
        """Go on from other values, with the same momentum; of a fragment that has none, begin with these.

        The next step is from these; until then the newest version is published again as it was. Raises ArithmeticError
        where one is not finite.
        """
        if not self._is_finite(values):
            raise ArithmeticError(f"going on with fragment {fragment}: expected finite values.")
        if self._momentum and fragment not in self._velocity:
            self._velocity[fragment] = self._still(fragment)
        if fragment in self._theta:
            self._behind.setdefault(fragment, self._theta[fragment])
        self._theta[fragment] = values

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
            assert self._format == "float32" or gradient["version"] is not None
            self._publish_from(p, gradient["version"] or [0, 0], direction)
            if self._momentum:
                self._velocity[p] = self._still(p)
            # After Theta, B and a momentum of zeros are set: what the home keeps replaces or adds to them.
            if gradient["kind"] == "recover" and self._tensors(p) and gradient["version"] is not None:
                self._begun[p] = gradient["version"]  # `_go_on` takes over only what fits this version.
                self._go_on(p, gradient["version"])
            return
        assert gradient["version"] is not None
        # Before the step, as of the version before: the step then decays a late momentum once more.
        self._go_on(p, [gradient["version"][0], gradient["version"][1] - 1])
        theta = self._stepped(p, direction, scale)
        # Before it is kept or published: no receiver may see it.
        if not self._is_finite(theta):
            odd = np.count_nonzero(~np.isfinite(theta))
            raise ArithmeticError(
                f"the outer step of fragment {p}: expected finite values, found {odd} of {theta.size} that are not. "
                f"The merge should have refused answers of {gradient['merging']['voters']}; report this."
            )
        self._theta[p] = theta
        self._behind.pop(p, None)
        if p in self._publications:
            assert gradient["version"] is not None
            self._publications[p].step(theta, gradient["version"], self._format_of(gradient))

    def _publish_from(self, p: int, version: Version, values: Vector) -> None:
        """Begin the published values of a fragment, where they are coded."""
        if self._format != "float32":
            # Beyond the keys of codes.
            place = CHAIN * len(self._fragments) + p if self._format == "auto" else None
            self._publications[p] = Publication(self._fragments[p], version, values, whole_place=place)

    def _still(self, p: int) -> Lent:
        """A momentum of zeros."""
        lent = Lent(self._fragments[p].size)
        lent.array.fill(0.0)
        return lent

    def _stepped(self, p: int, direction: Vector, scale: Vector) -> Vector:
        """The values of a fragment after a step; its momentum, where the program has any, is replaced.

        The values before are left as they are: learners, and messages to these, have them. The new ones are in the
        memory of the direction, where the merge gave it away, and the momentum stays in its own, if nobody has the one
        before.
        """
        fragment, theta, stepped = self._fragments[p], self._theta[p], taken(direction)
        if not self._momentum:
            self._nesterov.descend_over(theta, stepped, scale, fragment, self._lr)
            return stepped
        momentum = self._velocity[p] = self._velocity[p].changing()
        self._nesterov.step_over(theta, momentum.array, stepped, scale, fragment, self._lr, self._momentum)
        return stepped

    def _format_of(self, gradient: Gradient) -> Format:
        """The format of the update that results from a gradient."""
        if self._format != "auto":
            return self._format
        settings = gradient["merging"].get("asked")
        return "float32" if settings is None else settings["update"]

    def _go_on(self, p: int, newest: Version) -> None:
        """Take over the former life's momentum and Theta for the `newest` version, if they have arrived.

        A newer momentum may come later than an older one, from the other host that keeps it; until the first step it
        takes the place of that.
        """
        begun, kept, before = self._begun.get(p), self._fitting(p), self._gone_on.get(p)
        if begun is None or kept is None:
            return
        has_stepped = newest[1] != begun[1]
        if before is not None and (has_stepped or kept["version"] <= before):
            return
        if self._momentum:
            # A momentum is linear in its past: one that is n outer steps old counts as mu^n of itself.
            share = np.float32(self._momentum ** (newest[1] - kept["version"][1]))
            lent, momentum = Lent(self._fragments[p].size), self._kept_tensor(kept, "momentum")
            np.multiply(share, momentum, out=lent.array)
            if before is None:  # What this life has made since it began is added; one that came before is replaced.
                np.add(self._velocity[p].array, lent.array, out=lent.array)
            self._velocity[p] = lent
            self._gone_on[p] = kept["version"]
        if p in self._publications and kept["version"] == begun and not has_stepped:
            self._theta[p] = self._kept_tensor(kept, "theta", to=self._publications[p].values)
        if has_stepped or kept["version"] == begun:
            del self._begun[p]

    def _fitting(self, p: int) -> Kept | None:
        """The newest of what is kept of a fragment that is of the version with which this life recovered, or of an
        older one of its epoch; what came is looked at once."""
        begun, came = self._begun.get(p), self._kept.pop(p, {})
        if begun is None:
            return None
        fitting = [(kept["version"], is_exact) for is_exact, kept in came.items() if kept["version"][0] == begun[0]]
        fitting = [each for each in fitting if each[0] <= begun]
        return came[max(fitting)[1]] if fitting else None

    def _kept_tensor(self, kept: Kept, name: str, *, to: Vector | None = None) -> Vector:
        """A tensor of what is kept; what is coded is added `to` these values, or is all there is."""
        coded, fragment = _as_kept(kept, name), self._fragments[kept["fragment"]]
        if isinstance(coded, np.ndarray):
            return coded
        base = np.zeros(fragment.size, np.float32) if to is None else to
        values: Vector = self._coding.add(base, coded, fragment)
        return values

    def _tensors(self, p: int) -> dict[str, Vector]:
        """The tensors that a new life of this shard needs of a fragment beside its published values."""
        tensors = {"momentum": self._velocity[p].array} if self._momentum else {}
        return {**tensors, "theta": self._theta[p]} if p in self._publications else tensors

    def _is_sound(self, kept: Kept) -> bool:
        """Whether its tensors fit its fragment: a file may be damaged in ways that no digest shows."""
        p, tensors = kept["fragment"], kept["tensors"]
        needed = [*(["momentum"] if self._momentum else []), *(["theta"] if self._format != "float32" else [])]
        # Before the sizes: there may be no such fragment, or tensor.
        if p >= len(self._fragments) or not set(needed) <= set(tensors):
            return False
        return all(self._is_kept(_as_kept(kept, name), self._fragments[p]) for name in needed)

    def _is_kept(self, values: Values, fragment: Fragment) -> bool:
        """Whether a tensor, or its codes, may be gone on with."""
        if isinstance(values, np.ndarray):
            return values.shape == (fragment.size,) and values.dtype == np.float32 and self._largest(values) <= KEPT_MAX
        is_whole = self._coding.is_whole(values, fragment) and self._is_finite(values)
        return is_whole and FORMATS[STATE_FORMAT].levels * values.scales.max(initial=0.0) <= KEPT_MAX

    def _final(self, p: int, update: Update) -> FinalFragment:
        fragment, values = self._fragments[p], update["values"]
        cuts = zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False)
        tensors = {unit.name: values[begin:end].reshape(unit.values_shape) for unit, begin, end in cuts}
        return FinalFragment(fragment=p, version=update["version"], tensors=tensors)

    def _published(self, p: int) -> Vector:
        return self._publications[p].values if p in self._publications else self._behind.get(p, self._theta[p])

    def _update(self, gradient: Gradient, refused: list[list[int]]) -> Update:
        update: Update = passed_on(Whole, gradient, values=self._published(gradient["fragment"]), refused=refused)
        return update
