"""The hold node of a run's home where shards keep what they go on from: it has the books of every version, and on the
disk the states that it has taken.

Decides which state is taken when: the first version of each fragment and the last one at once, and those that are newer
than what is on the disk at the pace of snapshots, one after the other. A version that is replaced before its turn comes
is never taken. In memory is one part of a state that comes, and, while a shard comes back, the fragments that are on
their way to its learners, COPIES_BYTES or one.

For shards and learners it is a holder like any other (`ops.recovery.hold`), whose values may be older than what it
knows: a shard that comes back hears of the digest of the newest version, and, where no host has that any more, goes on
from the one on the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, final

import msgspec

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import (
    CopyPart,
    FinalFile,
    Kept,
    NewVersion,
    StatePart,
    WantedState,
    copied,
    passed_on,
    withdrawn,
)
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.recovery.hold import HeldShards, digest_of
from isthmus.programs.engine.snapshots.keeping import Keeper
from isthmus.programs.engine.snapshots.moments import MomentsFetch
from isthmus.programs.engine.snapshots.snapshots import FragmentEntry
from isthmus.programs.engine.snapshots.stored import StorePlace, words
from isthmus.programs.engine.snapshots.taking import Taking
from isthmus.runtime.ids import LEARNER

COPIES_BYTES: Final = 64 << 20
RETRY_NS: Final = 500_000_000
"""After a disk has refused a first or a last version, which are not left for the next snapshot; then twice as long, and
so on."""
RETRY_NS_MAX: Final = 8_000_000_000
SILENT_NS: Final = 3_000_000_000
"""For the next part of a state, where another shard has a state, too: one that cannot be reached keeps no other waiting
until it is given up. Twice as long each time, so that a slow link brings a part in the end."""


def tick() -> dict[str, Any]:
    """Lets a hold node notice that time has passed, and who lives."""
    return {}


@final
class TakenHold:
    """Books of versions in, and parts of states; copies, and what is held, out.

    Arguments:
        folder: that of the run.
        seconds: the interval of snapshots.
        place: the store, if there is one.
        role: that of the shards. Fragment p belongs to the replica p mod `shards`.
        shards: how many there are.
        fragments: those of the model.
        moments_seconds: how often the copy of each learner's local leaves is fetched, 0 for never.
    """

    outputs: ClassVar[tuple[str, ...]] = ("copy", "held", "kept", "wanted_state", "wanted_part", "final")
    collects: ClassVar[tuple[str, ...]] = ("published", "state", "part")
    schemas: ClassVar[dict[str, Any]] = {"published": NewVersion, "state": StatePart, "part": CopyPart}

    def __init__(
        self,
        folder: Path,
        seconds: float,
        place: StorePlace | None,
        *,
        role: str,
        shards: int,
        fragments: Sequence[Fragment],
        moments_seconds: float = 0.0,
    ) -> None:
        self._where, self._fragments = (folder, seconds, place), fragments
        self._owners = HeldShards(role, shards)
        self._moments_every = round(moments_seconds * 1e9)
        self._moments: MomentsFetch | None = None
        self._newest: dict[int, NewVersion] = {}
        """What the newest life of its shard has told last of each fragment."""
        self._entries: dict[int, FragmentEntry] = {}
        """The state of each fragment that is on the disk."""
        self._due: set[int] | None = None
        """What is still to be taken for the next snapshot; None where none is due."""
        self._retry_at, self._pause = 0, RETRY_NS
        self._final: dict[int, FragmentEntry] = {}
        """The last versions, as the recorder was told."""
        self._given: dict[int, int] = {}
        """Fragment -> the life of its shard that was given its state."""
        self._copies: dict[int, int] = {}
        """Fragment -> the life of its shard for which learners have a copy."""
        self._digests: dict[str, str] = {}
        """Those of versions that were not taken from a shard, by file."""
        self._heard_at = 0
        """When the last part came, or a state was asked for."""
        self._patience: dict[int, int] = {}
        """By shard that was silent, how long it is waited for next time."""
        self._asked: int | None = None
        """The fragment that was asked for last, as long as its shard may still keep what it has sent."""
        self.is_engaged = False
        """Whether a host that leaves waits: a shard has what the disk has not."""
        self._is_last_due = False
        """Whether the snapshot is due, or was, for which a host that leaves waits."""
        self._recalled = Totals()
        """The progress of the run, from the snapshot that it began with, and the states it gave to shards."""

    def open(self, context: Any) -> None:
        """Look for the last snapshot."""
        self._context = context
        self._owners.open(context)
        sizes = [fragment.size for fragment in self._fragments]
        life = context.member.incarnation
        self._keeper = Keeper(*self._where, sizes, context)
        self._taking = Taking(self._where[0], context.disk, life, sizes)
        if self._moments_every:
            self._moments = MomentsFetch(self._where[0], context.disk, self._moments_every, life)
        self._recall()

    def __call__(
        self,
        published: Mapping[Any, NewVersion] | None = None,
        state: Mapping[Any, StatePart] | None = None,
        part: Mapping[Any, CopyPart] | None = None,
        tick: Any = None,
    ) -> list[tuple[str, Any]] | None:
        """Take what comes, and ask for what is next; the rest only by the clock."""
        now = self._context.now()
        for told in (published or {}).values():
            self._hear(told)
        emitted: list[tuple[str, Any]] = []
        for came in (state or {}).values():
            emitted += self._take(came, now)
        if tick is not None or part:
            emitted += self._look(list((part or {}).values()), now)
            self._make_due(now)
        emitted += self._begin(now)
        self._name(now)
        emitted += self._last()
        self.is_engaged = self._has_to_take(now)
        return emitted or None

    def close(self) -> None:
        """Take the last snapshot, of what is on the disk."""
        self._taking.give_up()
        if self._is_whole:
            self._keeper.name(self._listed, self._context.now(), self._fetched)
        self._keeper.close()

    # -- what is known -------------------------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Hold the last snapshot, as soon as the disk can be read."""
        recalled = self._keeper.recall(is_whole=False)
        if recalled is None or recalled.manifest is None:
            return
        self._entries = {entry.fragment: entry for entry in recalled.manifest.fragments} | self._entries
        for entry in recalled.manifest.fragments:
            self._recalled.raise_to(entry.totals)
        if self._moments is not None:
            self._moments.recall(recalled.manifest.moments)

    def _hear(self, told: NewVersion) -> None:
        newest = self._newest.get(told["fragment"])
        if told["fragment"] < len(self._fragments) and (newest is None or _age(told) >= _age(newest)):
            self._newest[told["fragment"]] = told

    def _version(self, fragment: int) -> list[int]:
        """The newest version of a fragment that is known."""
        entry, newest = self._entries.get(fragment), self._newest.get(fragment)
        known = [[*entry.version]] if entry is not None else []
        return max([*known, newest["version"]] if newest is not None else known)

    @property
    def _known(self) -> list[int]:
        return sorted(self._entries.keys() | self._newest.keys())

    @property
    def _is_whole(self) -> bool:
        """Whether the disk has a state of every fragment."""
        return len(self._entries) == len(self._fragments)

    @property
    def _listed(self) -> list[FragmentEntry]:
        return [entry for _, entry in sorted(self._entries.items())]

    @property
    def _fetched(self) -> Any:
        return [] if self._moments is None else self._moments.entries

    def _living(self) -> list[tuple[int, int]]:
        """The live learners."""
        learners = [each for each in self._context.members() if each.replica.role == LEARNER]
        return sorted((each.replica.slot, each.incarnation) for each in learners)

    # -- taking --------------------------------------------------------------------------------------------------------

    def _take(self, came: StatePart, now: int) -> list[tuple[str, Any]]:
        """Write a part; ask for the next one of the same state."""
        asked = self._taking.under_way
        try:
            got = self._taking.accept(came)
        except (OSError, ValueError) as error:
            assert asked is not None
            return self._refused(asked, error if isinstance(error, OSError) else OSError(str(error)), now)
        if got is not None:
            self._heard_at = now
        if isinstance(got, FragmentEntry):
            self._pause = RETRY_NS
            self._patience.pop(came["shard"], None)
            self._keeper.note(got)
            self._entries[got.fragment] = got
            (self._due or set()).discard(got.fragment)
            return []
        return [] if got is None else [("wanted_state", got)]

    def _refused(self, asked: NewVersion, error: OSError, now: int) -> list[tuple[str, Any]]:
        """Try again later; the recorder waits for a last version that the disk does not take."""
        self._keeper.refused(error)
        if self._due is not None:
            self._keeper.put_off(now)
        self._due, self._retry_at = None, now + self._pause
        self._pause = min(2 * self._pause, RETRY_NS_MAX)
        if asked["kind"] != "final":
            return []
        p, version = asked["fragment"], asked["version"]
        return [("final", FinalFile(fragment=p, version=version, error=words(error), file="", units=[]))]

    def _begin(self, now: int) -> list[tuple[str, Any]]:
        """Ask for the next state that is to be taken; nothing, once all of them are there."""
        if self._taking.under_way is not None or not self._keeper.has_recalled:
            return []
        # One that was silent comes last.
        for p in sorted(self._wished(now), key=lambda p: self._patience.get(self._newest[p]["shard"], 0)):
            if self._is_there(told := self._newest[p]):
                self._asked, self._heard_at = p, now
                return [("wanted_state", self._taking.begin(told))]
        self._due = None if self._due is None else set()  # Of shards that are gone the states before stay.
        return []

    def _wished(self, now: int) -> list[int]:
        """The fragments of which another state is to be taken now, in order."""
        if now < self._retry_at:
            return []
        old = [p for p, told in sorted(self._newest.items()) if not self._has(told)]
        at_once = [p for p in old if p not in self._entries or self._newest[p]["kind"] == "final"]
        # Not what has begun anew, before it was given what is on the disk.
        due = self._due or ()
        return at_once + [p for p in old if p in due and p not in at_once and not self._is_awaited(p)]

    def _is_there(self, told: NewVersion) -> bool:
        """Whether the life of a shard that has told of a version is live."""
        return self._owners.lives().get(told["shard"]) == told["incarnation"]

    def _has_to_take(self, now: int) -> bool:
        """Whether a live shard has a version that is not on the disk, which takes it; or a snapshot is under way."""
        if now < self._retry_at or not self._keeper.has_recalled:
            return False
        if self._context.leave_requested():  # Once: learners elsewhere may go on, and there is always something newer.
            return self._due is not None or (self._is_whole and not self._is_last_due)
        return any(not self._has(told) and self._is_there(told) for told in self._newest.values())

    def _has(self, told: NewVersion) -> bool:
        """Whether the disk has this version; that it is the last one may be heard later."""
        entry = self._entries.get(told["fragment"])
        return entry is not None and [*entry.version] == told["version"]

    def _make_due(self, now: int) -> None:
        """Have what is newer than on the disk be taken, where a snapshot is due; the first one has what is there."""
        is_last = self._context.leave_requested() and not self._is_last_due
        if self._due is not None or not self._is_whole or not (is_last or self._keeper.is_due(now)):
            return
        self._is_last_due |= is_last
        if self._keeper.is_still_writer(now):
            newer = {p for p, told in self._newest.items() if not self._has(told)}
            self._due = newer if self._keeper.has_taken else set()

    def _name(self, now: int) -> None:
        """Take a snapshot, once all that is to be in it is there."""
        if self._is_whole and self._due is not None and not self._due and self._taking.under_way is None:
            self._due = None
            self._keeper.name(self._listed, now, self._fetched)

    def _last(self) -> list[tuple[str, Any]]:
        """The files of last versions that the recorder has not been told of."""
        emitted: list[tuple[str, Any]] = []
        for p, entry in sorted(self._entries.items()):
            told = self._newest.get(p)
            if told is not None and told["kind"] == "final" and self._has(told) and entry.kind != "final":
                self._entries[p] = entry = msgspec.structs.replace(entry, kind="final")
            if entry.kind == "final" and self._final.get(p) != entry:
                self._final[p] = entry
                emitted.append(("final", self._final_file(entry)))
        return emitted

    def _final_file(self, entry: FragmentEntry) -> FinalFile:
        units = [[unit.name, list(unit.values_shape)] for unit in self._fragments[entry.fragment].units]
        return FinalFile(fragment=entry.fragment, version=[*entry.version], error="", file=entry.file, units=units)

    # -- by the clock --------------------------------------------------------------------------------------------------

    def _look(self, parts: Collection[CopyPart], now: int) -> list[tuple[str, Any]]:
        """Give copies, and say what is held; bring a snapshot to its store, and fetch moments."""
        self._recall()
        taken = self._taking.under_way
        emitted: list[tuple[str, Any]] = []
        if taken is not None and not self._is_there(taken):
            self._taking.give_up()
        elif taken is not None and self._is_silent(taken, now):
            self._patience[taken["shard"]] = 2 * self._patience.get(taken["shard"], SILENT_NS)
            self._taking.give_up()
        elif taken is None and self._asked is not None:
            emitted.append(("wanted_state", WantedState(fragment=self._asked, number=0, at=0)))
            self._asked = None
        emitted += [*self._withdrawn(), *self._gifts(), *self._news()]
        self._keeper.store(now)
        if self._moments is not None and self._keeper.has_recalled:
            wanted = self._moments.step(parts, self._living(), now)
            emitted += [] if wanted is None else [("wanted_part", wanted)]
        return emitted

    def _is_silent(self, asked: NewVersion, now: int) -> bool:
        """Whether nothing has come of a state for so long that other shards are to be asked, if any has one."""
        if now - self._heard_at <= self._patience.get(asked["shard"], SILENT_NS):
            return False
        wished = [self._newest[p] for p in self._wished(now)]
        return any(told["shard"] != asked["shard"] and self._is_there(told) for told in wished)

    def _is_awaited(self, fragment: int) -> bool:
        """Whether the shard of a fragment has begun anew, and is still to be given the state on the disk."""
        entry, life = self._entries.get(fragment), self._owners.life(fragment)
        return entry is not None and entry.version[0] < life and self._given.get(fragment, 0) < life

    def _has_published(self, fragment: int, life: int) -> bool:
        """Whether this life of its shard, or a later one, has published a fragment."""
        newest = self._newest.get(fragment)
        return newest is not None and newest["incarnation"] >= life

    def _withdrawn(self) -> list[tuple[str, Any]]:
        """Withdrawals of copies whose fragments the next life of their shard has published, if only as they were.

        Whoever joins has that from the shard. Learners without other fragments do not step: there may be no merge.
        """
        over = [p for p, life in sorted(self._copies.items()) if self._has_published(p, life)]
        for p in over:
            del self._copies[p]
        return [("copy", withdrawn(p)) for p in over]

    def _gifts(self) -> list[tuple[str, Any]]:
        """For each shard that has begun anew, once: copies for learners of what it has not published yet, and for the
        shard the rest of its state."""
        on_their_way = [p for p, life in self._copies.items() if life == self._owners.life(p)]
        size, emitted = sum(4 * self._fragments[p].size for p in on_their_way), list[tuple[str, Any]]()
        for p, entry in sorted(self._entries.items()):
            if not self._is_awaited(p):
                continue
            size += 4 * self._fragments[p].size
            if size > max(COPIES_BYTES, 4 * self._fragments[p].size):
                break
            try:
                state = self._keeper.item(entry)
            except OSError:
                break
            except ValueError:  # It is taken again, as if it had never been there.
                del self._entries[p]
                return emitted
            life = self._given[p] = self._owners.life(p)
            self._recalled.raise_to(entry.totals)
            if not self._has_published(p, life):
                self._copies[p] = life
                emitted.append(("copy", copied(state)))
            if state["tensors"]:
                emitted.append(("kept", passed_on(Kept, state)))
        return emitted

    def _news(self) -> list[tuple[str, Any]]:
        """What is held, if that has changed."""
        disk, under_way = self._keeper.of_disk(), self._taking.version
        saved = {tuple(row) for row in disk.pop("saved")} | {entry.key for entry in self._entries.values()}
        saved |= set() if under_way is None else {tuple(under_way)}
        return self._owners.news(
            fragments=sorted(self._entries),
            merged=[p for p in self._known if self._version(p)[1]],
            given=[row for p in self._known if self._version(p)[0] < self._owners.life(p) for row in self._rows(p)],
            saved=[list(row) for row in sorted(saved)],
            totals=self._recalled.rows(),
            **disk,
        )

    def _rows(self, fragment: int) -> list[list[Any]]:
        """What a shard that has begun anew is told of the versions of a fragment: digests, and lengths."""
        entry, newest, rows = self._entries.get(fragment), self._newest.get(fragment), list[list[Any]]()
        if entry is not None and (digest := self._digest(entry)):
            rows.append([fragment, *entry.version, digest, list(entry.lengths)])
        if newest is not None and not self._has(newest):
            rows.append([fragment, *newest["version"], newest["digest"], newest["lengths"]])
        return rows

    def _digest(self, entry: FragmentEntry) -> str:
        """The digest of the version; '' where the disk does not say it."""
        if not entry.values_digest and entry.file not in self._digests:
            with suppress(OSError, ValueError):
                state = self._keeper.item(entry)
                self._digests[entry.file] = digest_of(state["values"], state["clock"], state["positions"])
        return entry.values_digest or self._digests.get(entry.file, "")


def _age(told: NewVersion) -> tuple[int, list[int]]:
    """What is told later by a shard is newer; a life that goes on from an older version has undone the others."""
    return told["incarnation"], told["version"]
