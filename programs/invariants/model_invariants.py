"""The invariants of the model in every universe: its versions grow, one version is the same bytes on every host.

And a model that was merged is not begun anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from isthmus.ops.exchange.schemas import CODE_BLOCK
from isthmus.ops.recovery.hold import HOLDERS
from isthmus.ops.syncer.outer_step import KeyFrames
from isthmus.programs.recorder.roles import PERIOD
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.host.own_process import Row
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim import Checker, Forge, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import RecorderFailed

NOTED_NS: Final = 4_000_000_000
"""Nanoseconds after which a recorder has certainly written what it heard, on a working disk: it writes once a
second."""
SAMPLED_NS: Final = 2 * PERIOD + 50_000_000
"""Between two looks of a hold node, and a little more for a clock that drifts."""
Version = tuple[int, int]


class VersionsChecker(Checker):
    """Versions only grow: of a fragment as one life of a shard publishes it, and as one life of a learner holds it.

    By edge and receiver: a host that joins is sent the last item again.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Member, int, int], Version] = {}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check the versions of updates, of learners' reports, and of the bases of answers."""
        place = (life.member, target, edge.index)
        if edge.source_port == "update":
            self._take((*place, item["fragment"]), item["version"])
        elif edge.source_port == "answer" and item["base"] is not None:
            self._take((*place, item["fragment"]), item["base"])
        elif edge.source_port == "progress":
            for fragment, epoch in enumerate(item["epochs"]):
                self._take((*place, fragment), (epoch, 0))
        elif edge.source_port == "report":
            for fragment, version in enumerate(item["versions"]):
                self._take((*place, fragment), version)

    def _take(self, of: tuple[Member, Member, int, int], told: Sequence[int]) -> None:
        version, before = (told[0], told[1]), self._newest.get(of, (0, 0))
        if version < before:
            raise ViolationError(f"{of[0]} tells {of[1]} of version {version} of fragment {of[3]} after {before}")
        self._newest[of] = version


class BytesChecker(Checker):
    """Equal version means equal bytes.

    This holds for published updates and, where these are coded, for the decoded values that learners, holders of the
    model and shards send whole. Where at least half of the learners that gave a version to a shard that came back forge
    answers, the shard may believe them (`ops.recovery.hold`).
    """

    def __init__(self) -> None:
        self._digests: dict[tuple[int, Version, bool], int] = {}
        self._values: dict[tuple[int, Version], Any] = {}
        self._liars: Mapping[Replica, Sequence[Forge]] = {}
        self._givers: dict[tuple[Member, int, Version], set[Replica]] = {}
        """Learners that gave a version of a fragment to a life of a shard."""
        self._doubtful: set[tuple[int, Version]] = set()

    def began(self, universe: Universe, member: Member) -> None:
        """Keep the injector's record of forgeries."""
        self._liars = universe.injector.forgeries

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the givers of versions to a shard that came back."""
        if edge.source_port == "answer" and item["kind"] == "recover" and item["base"] is not None:
            held = life.member, item["fragment"], (item["base"][0], item["base"][1])
            self._givers.setdefault(held, set()).add(source.replica)

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check updates, whole values of any version, and the values that learners give a shard that came back."""
        is_told = edge.source_port in ("update", "state", "copy", *KeyFrames.outputs) and "version" in item
        if is_told and item["version"][0]:  # In a program without fragments a state has no version.
            p, version = item["fragment"], (item["version"][0], item["version"][1])
            if "base" not in item:
                self._compare(life, (p, version, False), item["values"])
                return
            self._compare(life, (p, version, True), item["values"])
            base = self._values.get((p, (item["base"][0], item["base"][1])))
            if base is not None:
                fragments = next(node.arguments[0] for node in life.plan.nodes if node.name == "outer-step")
                self._compare(life, (p, version, False), base + _decoded(item, fragments[p]))
        elif edge.source_port == "answer" and item["kind"] == "recover" and item["base"] is not None:
            self._compare(life, (item["fragment"], (item["base"][0], item["base"][1]), False), item["gradient"])

    def _compare(self, life: Life, key: tuple[int, Version, bool], values: Any) -> None:
        p, version, is_coded = key
        digest = zlib.crc32(np.asarray(values).tobytes())
        if self._digests.setdefault(key, digest) != digest and (p, version) not in self._doubtful:
            givers = self._givers.get((life.member, p, version), set())
            if givers and 2 * len(givers & self._liars.keys()) >= len(givers):
                self._doubtful.add((p, version))
                return
            raise ViolationError(f"{life.member} has other bytes as version {version} of fragment {p}")
        if not is_coded:
            self._values[p, version] = values


def _decoded(item: Any, fragment: Any) -> Any:
    """The values that the codes of an update represent, one block after the other."""
    codes = item["values"]
    if "scales" not in item:
        return codes.astype(np.float32)
    blocks, at, scales = [], 0, iter(item["scales"])
    for unit in fragment.units:
        for begin in range(0, unit.size, CODE_BLOCK):
            size = min(CODE_BLOCK, unit.size - begin)
            taken = size if codes.dtype == np.int8 else -(-size // 2)
            block, at = codes[at : at + taken], at + taken
            if codes.dtype != np.int8:
                block = np.concatenate([block & 15, block >> 4])[:size].astype(np.float32) - np.float32(8)
            blocks.append(block.astype(np.float32) * next(scales))
    return np.concatenate(blocks)


class ModelChecker(Checker):
    """A merged model is never begun anew while it is known, and lost only with all its holders.

    It is known to a live evaluator or recorder that has heard of it, or of its initial version, and to a recorder that
    has had time to write it down. It is lost only where, for some fragment, all its holders (shards, learners,
    evaluator and recorder) have ended at once.

    A holder samples its inputs once every SAMPLED_NS: it has not seen an item that arrived within that time before the
    news that the sender is gone.
    """

    def __init__(self) -> None:
        self._heard: dict[int, dict[Life, tuple[int, Member]]] = {}
        """Fragment -> lives that have heard of a merge of it, with the time and the sender."""
        self._shown: dict[int, dict[Life, tuple[int, Member]]] = {}
        """Like `_heard`, for any version of a fragment, the initial one included."""
        self._published: set[int] = set()
        self._merged: set[int] = set()
        self._told_of: set[int] = set()
        self._noted: set[int] = set()
        self._begun: set[tuple[Member, int]] = set()
        self._was_in_trouble = False
        self._troubled_at = -NOTED_NS
        """The latest time at which the disk of the home may have been in trouble."""

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note merges that evaluator and recorder hear of: the report of one may arrive before its values."""
        if edge.source_port == "merged" and item["version"] is not None and item["kind"] in ("merge", "final"):
            self._told_of.add(item["fragment"])
        if edge.source_port == "held" and item["merged"]:
            self._told_of.update(item["fragments"])
        if edge.source_port == "report" and life.member.replica.role == "recorder":
            versions = enumerate(item.get("versions", ()))
            self._told_of.update(fragment for fragment, version in versions if version[1])
        is_held = edge.source_port in ("update", "state", *KeyFrames.outputs) and life.member.replica.role in HOLDERS
        if is_held and "fragment" in item:  # Not the state of a program without fragments.
            for heard in [self._shown] + [self._heard] * (item.get("kind") in ("merge", "final")):
                heard.setdefault(item["fragment"], {}).setdefault(life, (life.true_now(), source))

    def told(self, life: Life, rows: Sequence[Row]) -> None:
        """Forget items that a life will never sample, because their sender is gone."""
        known = {(name, incarnation) for name, incarnation, *_ in rows}
        for heard in [*self._heard.values(), *self._shown.values()]:
            at, source = heard.get(life, (-SAMPLED_NS, life.member))
            if life.true_now() - at < SAMPLED_NS and (str(source.replica), source.incarnation) not in known:
                del heard[life]

    def asked(self, universe: Universe) -> None:
        """Note fragments that recorders have had time to write down since the disk last was in trouble."""
        is_in_trouble = bool(universe.disks[universe.home].troubles)
        if is_in_trouble or self._was_in_trouble:
            self._troubled_at = universe.clock.now()
        self._was_in_trouble = is_in_trouble
        for fragment, lives in self._heard.items():
            for life, (at, _) in lives.items():
                is_there = life.member.replica.role == "recorder" and not life.is_dead and not life.clock.is_paused
                if is_there and life.true_now() - max(at, self._troubled_at) > NOTED_NS:
                    self._noted.add(fragment)

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Look at first versions."""
        if edge.source_port == "update":
            self._published.add(item["fragment"])
            if item["kind"] in ("merge", "final"):
                self._merged.add(item["fragment"])
        if edge.source_port == "update" and item["kind"] == "initial":
            fragment = item["fragment"]
            if (life.member, fragment) in self._begun:
                return  # A host that joins is sent the items again, the first version included, under codes.
            self._begun.add((life.member, fragment))
            shown = self._shown if fragment in self._merged else self._heard
            hearers = {**self._heard.get(fragment, {}), **shown.get(fragment, {})}
            known = [str(each.member) for each in hearers if not each.is_dead]
            if fragment in self._noted or known:
                raise ViolationError(
                    f"{life.member} begins fragment {fragment} anew, which was merged; known to {known}"
                )

    def finished(self, universe: Universe, home: Home) -> None:
        """Check the claim that the model is lost."""
        failure = home.failure
        if isinstance(failure, RecorderFailed) and failure.error.startswith("the model is lost"):
            holders = [Replica(role, 0) for role in HOLDERS]
            kept = [each for each in holders if sum(life.member.replica == each for life in universe.lives) == 1]
            merged = sorted(self._told_of | self._heard.keys())
            hearers = [{life.member.replica for life in self._heard.get(fragment, ())} for fragment in merged]
            # A fragment without a known merge is not begun anew either, and may be the lost one.
            others = sorted(self._published.difference(merged))
            hearers += [{life.member.replica for life in self._shown.get(fragment, ())} for fragment in others]
            if all(heard & set(kept) for heard in hearers):
                raise ViolationError(
                    f"{failure.error} But {list(map(str, kept))} never ended, and heard of all merges of {merged}"
                )
