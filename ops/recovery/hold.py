"""What outlives a shard: who holds a fragment, which of the versions that learners claim is true, and how many tokens
each life has trained.

Decides which claims a shard that comes back believes, when learners get a copy of a fragment from a host that only
holds it, and whether a fragment may be initialized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, cast, final

import ml_dtypes
import msgspec
import numpy as np
import xxhash

from isthmus.ops.exchange.messages import Control, Held, Progress, Update, copied, withdrawn
from isthmus.ops.exchange.token_accounts import Totals


class Claim(NamedTuple):
    """A learner's claim to hold a version, [epoch, count], with the digest of its contents.

    A shard that comes back can continue only from versions of learners, and one learner may be wrong. Hosts that only
    hold the model have it from the shard itself, so a version that they know is believed from any learner with the same
    bytes, and from no other. A version that they do not know, because it was published last, is believed where at least
    half of those that answer claim it or a newer one: of three no single one is believed, and of two one is, because
    either may be wrong. Of different bytes for it the largest agreeing group is believed.
    """

    version: tuple[int, int]
    digest: str
    slot: int


def digest_of(values: Any, clock: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> str:
    """The digest of a version: of its values, float32, and of the clock and positions of the work in them."""
    sources = msgspec.msgpack.encode([[list(row) for row in clock], [list(row) for row in positions]])
    return xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(memoryview(values).cast("B")) + sources)


def is_denied(claim: Claim, digests: Mapping[tuple[int, int], str]) -> bool:
    """Whether holders of the model know the claimed version, with another digest."""
    return digests.get(claim.version, claim.digest) != claim.digest


def believed(claims: Sequence[Claim], digests: Mapping[tuple[int, int], str]) -> Claim | None:
    """The claim to continue from; None if all are denied. `digests` are digests by version."""
    sound = [claim for claim in claims if not is_denied(claim, digests)]
    if not sound:
        return None
    versions = sorted((claim.version for claim in sound), reverse=True)
    credible = max(versions[(len(versions) - 1) // 2], max(digests, default=(0, 0)))
    agreeing = Counter((claim.version, claim.digest) for claim in sound)
    return max(
        (claim for claim in sound if claim.version <= credible),
        key=lambda claim: (claim.version, agreeing[claim.version, claim.digest], -claim.slot),
    )


LIVES_MAX: Final = 1 << 14
"""Lives known only from others, one for each learner that a run may have: a learner can make up any number."""


def is_majority(count: int, of: int) -> bool:
    """Whether `count` is more than half of all."""
    return 2 * count > of


class RelayedTotals:
    """Believed tokens by (slot, incarnation) (`totals`).

    A life that reports is the only source about itself. About a life that this shard has never heard of, the recorder
    is a source, and so are learners, which know it from the shard before. One learner may be wrong, so what learners
    say about others counts as far as more than half of the live ones report at least as much. A learner that is alone
    is believed: it is the whole run.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self._own: set[tuple[int, int]] = set()
        self._claims: dict[tuple[int, int], dict[int, int]] = {}
        """Tokens of lives that have not reported, by the slot of the claiming learner."""

    def add_learner(self, report: Progress, live: Callable[[], Collection[int]], learners: int) -> None:
        """Add the report of one of `learners` live learners, about itself and others.

        `live()` returns the slots of those that have reported; it is called only for claims about others.
        """
        life = report["slot"], report["incarnation"]
        self._own.add(life)
        self._claims.pop(life, None)
        self.totals.raise_to([[*life, report["tokens"]]])
        for slot, incarnation, tokens in report["totals"]:
            if (slot, incarnation) not in self._own and tokens > self.totals.of(slot, incarnation):
                self._add_claim((slot, incarnation), report["slot"], tokens, live, learners)

    def add_recorder(self, rows: Iterable[Sequence[int]]) -> None:
        """Add the recorder's numbers of lives that have not reported themselves."""
        self.totals.raise_to(each for each in rows if (each[0], each[1]) not in self._own)

    def slots(self) -> set[int]:
        """All slots that any source has mentioned, believed or not."""
        return {slot for slot, *_ in self.totals.rows()} | {slot for slot, _ in self._claims}

    def _add_claim(
        self, life: tuple[int, int], by: int, tokens: int, live: Callable[[], Collection[int]], learners: int
    ) -> None:
        if life not in self._claims and len(self._claims) >= LIVES_MAX:
            return
        claims = self._claims.setdefault(life, {})
        claims[by] = max(tokens, claims.get(by, 0))
        slots = live()
        amounts = sorted((each for slot, each in claims.items() if slot in slots), reverse=True)
        needed = max(learners, len(slots)) // 2
        if len(amounts) > needed:
            self.totals.raise_to([[*life, amounts[needed]]])


HOLDERS: Final = ("evaluator", "recorder")
"""The roles that hold a model beside shards and learners."""
NEIGHBOUR: Final = "neighbour"
"""What a shard calls itself as the holder of the shard before it."""


@final
class HeldShards:
    """The shards of a role, to whoever holds something of them: which of them live, and what they were told of it.
    Fragment p belongs to the replica p mod `shards`."""

    def __init__(self, role: str, shards: int) -> None:
        self._role, self._shards = role, shards
        self._members: frozenset[Any] | None = None
        self._lives: dict[int, int] = {}
        self._told: Held | None = None

    def open(self, context: Any) -> None:
        """Keep the context, for the live members."""
        self._context = context

    def lives(self) -> dict[int, int]:
        """The live ones, by slot."""
        members = self._context.members()
        if members is not self._members:
            self._members = members
            shards = [each for each in members if each.replica.role == self._role]
            self._lives = {each.replica.slot: each.incarnation for each in shards}
        return self._lives

    def shard(self, fragment: int) -> int:
        """The shard of a fragment."""
        return fragment % self._shards

    def life(self, fragment: int) -> int:
        """The live life of the shard of a fragment; 0 where none is."""
        return self.lives().get(self.shard(fragment), 0)

    def news(self, **fields: Any) -> list[tuple[str, Held]]:
        """The report of what is held, with these fields beside who lives, if it has changed."""
        lives = [[shard, life] for shard, life in sorted(self.lives().items())]
        report = held_by(self._context.member.replica.role, lives=lives, **fields)
        if report == self._told:
            return []
        self._told = report
        return [("held", report)]


@final
class Hold:
    """Updates in, copies of them out, on a timer.

    Learners get a copy when the shard that published a fragment is gone and its next life is there. A learner that
    holds that version, or a newer one, ignores it; one that holds none adopts it, and the shard then asks it like any
    other. So a merged model is never initialized again as long as one host of any role has it. Once the shard has
    published under its new epoch, the copies are withdrawn, because learners that join later would get them, too.
    """

    outputs: ClassVar[tuple[str, ...]] = ("copy", "held")
    collects: ClassVar[tuple[str, ...]] = ("update",)
    schemas: ClassVar[dict[str, Any]] = {"update": Update}

    def __init__(self, *, role: str, shards: int) -> None:
        self._owners = HeldShards(role, shards)
        self.held: dict[int, Update] = {}
        """The newest version of each fragment."""
        self._copies_sent: dict[int, tuple[int, list[Any]]] = {}
        """Fragment -> the life of its shard for which copies were sent, and its row in `Held.given`."""

    def open(self, context: Any) -> None:
        """Keep the context, for the live members."""
        self._owners.open(context)

    def __call__(self, update: Mapping[Any, Update] | None = None) -> list[tuple[str, Any]] | None:
        """Store new updates; emit the copies to send, those to withdraw, and the held versions, if they changed."""
        self.accept((update or {}).values())
        return [*(("copy", copy) for copy in self.copies()), *self.news()] or None

    def accept(self, updates: Iterable[Update]) -> None:
        """Store new updates."""
        for item in updates:
            newest = self.held.get(item["fragment"])
            if newest is None or item["version"] >= newest["version"]:
                self.held[item["fragment"]] = item

    def copies(self) -> list[Update]:
        """The copies to send now, and the withdrawals of those that are not needed any more."""
        copies: list[Update] = []
        for fragment, held in sorted(self.held.items()):
            life, life_given = self._owners.life(fragment), self._copies_sent.get(fragment, (0,))[0]
            if held["version"][0] < life and life_given < life:
                digest = digest_of(held["values"], held["clock"], held["positions"])
                row = [fragment, *held["version"], digest, cast(dict[str, Any], held).get("lengths", [])]
                self._copies_sent[fragment] = life, row
                copies.append(copied(held))
            elif life_given and held["version"][0] >= life_given:
                del self._copies_sent[fragment]
                copies.append(withdrawn(fragment))
        return copies

    def news(self, **others: Any) -> list[tuple[str, Held]]:
        """The report of what is held, with these fields beside it or in place of its own, if it has changed."""
        return self._owners.news(
            fragments=sorted(self.held),
            merged=sorted(fragment for fragment, held in self.held.items() if held["version"][1]),
            given=[row for _, (_, row) in sorted(self._copies_sent.items())],
            **others,
        )


def held_by(holder: str, /, **fields: Any) -> Held:
    """The report of a role that has nothing but these fields."""
    nothing: dict[str, Any] = {name: [] for name in Held.__annotations__} | {"error": None, "store": None}
    return cast(Held, {**nothing, "holder": holder, **fields})


Form: TypeAlias = tuple[str, list[int]]
"""The type of a leaf, by name, and its shape."""
_PLAIN: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def form_of(leaf: np.ndarray[Any, Any]) -> Form:
    """The form of a leaf."""
    return leaf.dtype.name, list(leaf.shape)


def flat(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a leaf."""
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)


def type_of(name: str) -> np.dtype[Any]:
    """The type of that name; ValueError for one that is not numeric."""
    if name not in _PLAIN + _SMALL:
        raise ValueError(f"expected a type of numbers, found {name[:40]!r}")
    return np.dtype(getattr(ml_dtypes, name) if name in _SMALL else name)


def formed(data: np.ndarray[Any, np.dtype[np.uint8]], name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The leaf of a form with these bytes; ValueError if they do not fit."""
    return data.view(type_of(name)).reshape(shape)


def packed(leaf: np.ndarray[Any, Any]) -> list[Any]:
    """A leaf as it travels: its form, and its bytes."""
    return [*form_of(leaf), flat(leaf)]


def unpacked(leaf: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The packed leaf; ValueError if it is invalid."""
    name, shape, data = leaf
    return formed(np.asarray(data), name, shape)


KEPT_WAIT: Final = 1_000_000_000
"""Nanoseconds for which the first merge waits for a holder: holders check every 0.2 s, unless they are cut off."""


class ShardContext(Protocol):
    """The fields used of the context with which a host opens a body."""

    @property
    def member(self) -> Any:
        """This shard."""

    def now(self) -> int:
        """The clock of the host, nanoseconds."""

    def members(self) -> frozenset[Any]:
        """The live members of every role."""


class ShardMemory:
    """A shard life's knowledge of earlier ones.

    All fragments may begin in the first life of a shard; later as long as neither the recorder nor any holder of the
    model knows of a merged fragment, once each live one has checked since it knows of this life: an earlier report may
    be older than what reached it from the life before. A fragment whose first version a holder has does not begin anew
    either. No fragment is merged before one holder has reported all first versions (`is_kept`). Once a merge is known,
    fragments without a version come from their holders: beside merged fragments one that begins anew would make a model
    of two. Where the hosts that knew of a merge have died since, this life reports it to the recorder, which reports a
    model as lost once no host holds it.
    """

    def __init__(self, *, is_of_modules: bool = False, neighbours: int = 0) -> None:
        """`is_of_modules`: fragments have not all the same learners, so that one may be merged while another has no
        version yet. That one begins, as long as no merge of it is known. `neighbours`: how many shards there are, where
        the next one is a holder, too."""
        self._is_of_modules, self._neighbours = is_of_modules, neighbours
        self._merged: set[int] = set()
        self._heard: dict[Any, Held] = {}
        self._recorded: set[int] = set()
        self._has_recorder = False
        self._reported: set[int] = set()
        self._kept_by: int | None = None
        self._is_kept = False

    def add_recorder(self, control: Control) -> None:
        """Add the recorder's knowledge."""
        self._has_recorder = True
        self._recorded.update(fragment for fragment, _, _ in control["published"])
        self._merged |= self._recorded

    def add_holders(self, held: Mapping[Any, Held] | None) -> None:
        """Add the versions that others hold, by (replica, key)."""
        for (replica, _), item in (held or {}).items():
            self._heard[replica] = item
            self._merged.update(item["merged"])

    def fresh(self, unborn: Iterable[int], context: ShardContext) -> list[int]:
        """Those of the fragments without a version that may begin now."""
        has_heard = self._has_recorder and self.has_heard_holders(context)
        has_begun = bool(self._merged) and not self._is_of_modules
        if context.member.incarnation > 1 and (has_begun or not has_heard):
            return []
        kept = {fragment for item in self._living(context) for fragment in item["fragments"]}
        return [fragment for fragment in unborn if fragment not in self._merged | kept]

    def is_kept(self, fragments: Iterable[int], context: ShardContext) -> bool:
        """Whether these fragments may be merged: a live holder has reported all of them, now or before; or no holder is
        live, or KEPT_WAIT has passed since the first call."""
        if not self._is_kept:
            now, wanted = context.now(), set(fragments)
            self._kept_by = now + KEPT_WAIT if self._kept_by is None else self._kept_by
            is_held = any(wanted <= set(item["fragments"]) for item in self._living(context))
            self._is_kept = is_held or not self._holders(context) or now >= self._kept_by
        return self._is_kept

    def news(self, context: ShardContext) -> list[tuple[str, Held]]:
        """A later life's reports to the recorder (port `held`): merged fragments that the recorder does not know.

        No report as long as the recorder is silent, and each only once.
        """
        unknown = self._merged - self._recorded
        if context.member.incarnation == 1 or not self._has_recorder or unknown <= self._reported:
            return []
        self._reported |= unknown
        return [("held", held_by(context.member.replica.role, merged=sorted(self._reported)))]

    def has_heard_holders(self, context: ShardContext) -> bool:
        """Whether all live holders of the model have checked their versions for this life of the shard."""
        own = [context.member.replica.slot, context.member.incarnation]
        looked = {replica for replica, item in self._heard.items() if own in item["lives"]}
        return self._holders(context) <= looked

    def _living(self, context: ShardContext) -> list[Held]:
        """The reports of live holders."""
        return [self._heard[holder] for holder in sorted(self._holders(context)) if holder in self._heard]

    def totals(self) -> list[list[int]]:
        """The progress of the run in the versions held for this life of the shard, [slot, incarnation, tokens]."""
        return [row for _, item in sorted(self._heard.items()) for row in item["totals"]]

    def known(self, fragment: int) -> list[list[Any]]:
        """The held versions of a fragment, as [epoch, count, digest of the values, lengths]."""
        rows = [row[1:] for _, item in sorted(self._heard.items()) for row in item["given"] if row[0] == fragment]
        return [row for index, row in enumerate(rows) if row not in rows[:index]]

    def is_held(self, fragment: int, context: ShardContext) -> bool:
        """Whether a live host that only holds the model has a version of a fragment: of some it knows the digest alone,
        from books."""
        return any(fragment in item["fragments"] for item in self._living(context))

    def given(self, fragment: int, context: ShardContext) -> list[int] | None:
        """The version of a fragment that the neighbour, which lives, gives this life; None where it gives none."""
        own = [context.member.replica.slot, context.member.incarnation]
        for item in self._living(context):
            if item["holder"] == NEIGHBOUR and own in item["lives"]:
                return next((row[1:3] for row in item["given"] if row[0] == fragment), None)
        return None

    def _holders(self, context: ShardContext) -> set[Any]:
        """The live holders of what this shard has."""
        replicas = [member.replica for member in context.members()]
        holders = {each for each in replicas if each.role in HOLDERS}
        if self._neighbours < 2:
            return holders
        own = context.member.replica
        after = own.role, (own.slot + 1) % self._neighbours
        return holders | {each for each in replicas if (each.role, each.slot) == after}
