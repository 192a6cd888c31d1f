"""Invariants of every universe about the model, the snapshots and the run folder; and the guards that a search has to
see at work.

Decides what counts as a violation, for any faults, at any moment at which everything dies: the files after a power
failure match what was reported, versions grow and have the same bytes on every host, and a merged model is not
initialized again.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.exchange.formats import CODE_BLOCK, FORMATS
from isthmus.ops.recovery.hold import HOLDERS
from isthmus.ops.syncer.merge_books import NOT_FINITE
from isthmus.ops.syncer.outer_step import KeyFrames
from isthmus.programs import DEFAULT
from isthmus.programs.engine.recorder.roles import PERIOD
from isthmus.runtime.cores.membership_messages import Refused
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import LEARNER, ONE_RECORDER, Member, Replica
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.faults import Forge
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.machine import SimulatedDisk
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import (
    Condemned,
    GangMemberLost,
    Happened,
    ProcessBack,
    ProcessLost,
    ProcessMissing,
    RecorderFailed,
    Reformed,
    TooFewProcesses,
)
from isthmus.runtime.supervision.rosters import Row
from isthmus.runtime.system.files import encoded


def _has_left(life: Life) -> bool:
    """Whether a recorder was to leave amid a run: the lines of its last moment are counted by the next one."""
    return life.host.leave_requested


DISK_FAULTS: Final = {"full disk", "broken disk", "no room"}
"""Kinds of faults by which the home's disk may have refused what the recorder would hold."""


class FilesChecker(Checker):
    """The final model exists, complete and as it was sent; so do the lines of each file.

    A recorder wrote every line of a file; each end of a recorder tears at most one line; the lines that the last
    recorder counts as written exist, and the rest are counted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[int, set[int]] = {}
        self._states: dict[tuple[Member, int], bytearray] = {}
        """What has come of states, by the life that takes them and the number of the transfer."""
        self._last: set[int] = set()
        """Fragments whose last version has come."""

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the final fragments that reach a recorder, and the states of which it makes some."""
        if life.member.replica != ONE_RECORDER:
            return
        if edge.target_port == "final":
            self._last.add(item["fragment"])
            self._models.setdefault(item["fragment"], set()).add(zlib.crc32(encoded(item["tensors"])))
        elif edge.target_port == "state" and item.get("number"):
            data = self._states.setdefault((life.member, item["number"]), bytearray())
            if len(data) == item["at"]:
                data += item["data"].tobytes()
            if item.get("books", {}).get("kind") == "final":
                self._last.add(item["fragment"])
            if len(data) == item["size"]:
                fragments = next(node.keywords["fragments"] for node in life.plan.nodes if node.name == "hold-recorder")
                of_it = fragments[item["fragment"]]
                values = np.frombuffer(bytes(data[-4 * of_it.size :]), np.float32)  # The last of its arrays, by name.
                cuts = zip(of_it.units, of_it.offsets, of_it.offsets[1:], strict=False)
                tensors = {unit.name: values[begin:end].reshape(unit.values_shape) for unit, begin, end in cuts}
                self._models.setdefault(item["fragment"], set()).add(zlib.crc32(encoded(tensors)))

    def ended(self, universe: Universe) -> None:
        """Check all files, and again after a power failure."""
        disk, recorder = universe.disks[universe.home], universe.last(ONE_RECORDER)
        nothing: dict[str, Any] = {"files": {}, "error": None}
        status = nothing if recorder is None else recorder.host.published.get("record", nothing)
        # A killed recorder may have written a line that it had not counted; later disk failures removed some.
        is_accurate = recorder is not None and recorder.failures_at_end == disk.failures and not _has_left(recorder)
        counts = {name: file_counts if is_accurate else None for name, file_counts in status["files"].items()}
        recorders = [life for life in universe.lives if life.member.replica == ONE_RECORDER]
        deaths = sum(life.was_killed or _has_left(life) for life in recorders)
        deaths += recorder is not None and not is_accurate  # A power failure after its end may tear the last line.
        for name in sorted(counts):
            file_counts = counts[name]
            self._check_lines(disk, name, deaths + (file_counts is not None and _has_unwritten(file_counts)))
            if recorder is not None and file_counts is not None:
                self._check_counts(disk, name, str(recorder.member), file_counts)
        disk.troubles.clear()
        disk.lose_power()
        for name in sorted(counts):
            self._check_lines(disk, name, deaths + 1)
        if universe.outcome != "failed":
            self._check_model(disk.files(), is_done=universe.outcome == "done")

    def _check_model(self, files: Mapping[Path, bytes], *, is_done: bool) -> None:
        for fragment, digests in sorted(self._models.items()):
            path = self._folder / "snapshots" / "final" / f"fragment-{fragment}.safetensors"
            if path not in files:
                if not (is_done or fragment in self._last):
                    continue  # A run that was stopped early: a first version had come, and its shard has ended.
                raise ViolationError(f"{path.name} is not there: it was not written, or was lost with the power")
            if zlib.crc32(files[path]) not in digests:
                raise ViolationError(f"{path.name} is not what was sent: {len(files[path])} bytes")

    def _check_lines(self, disk: SimulatedDisk, name: str, deaths: int) -> None:
        """Compare a file with the lines written into it."""
        path = self._folder / f"{name}.jsonl"
        written = {line for writing in disk.written.get(path, []) for line in _lines(writing.data)}
        lines = _lines(disk.files().get(path, b""))
        torn = [line for line in lines if not _is_whole(line)]
        if len(torn) > deaths:
            raise ViolationError(
                f"{path.name} has {len(torn)} torn lines after {deaths} ends of its writers: {torn[0]!r}"
            )
        for line in lines:
            if line not in written and line not in torn:
                raise ViolationError(f"{path.name} has a line that nobody has written: {line!r}")

    def _check_counts(self, disk: SimulatedDisk, name: str, recorder: str, counts: Mapping[str, Any]) -> None:
        """Compare the last recorder's counts with the lines it wrote, which the file ends in.

        A recorder that booted late, and learned that it is not the current life, may have opened the file after it.
        """
        path = self._folder / f"{name}.jsonl"
        own = [writing.data for writing in disk.written.get(path, []) if writing.writer == recorder]
        last = [line for data in own for line in _lines(data)]
        if len(last) - counts["written"] not in (0, _has_unwritten(counts)):
            raise ViolationError(f"{path.name}: {counts} is said where {len(last)} lines were written")
        lines = _lines(disk.files().get(path, b""))
        if last and lines[-len(last) :] != last:
            raise ViolationError(f"{path.name} does not end in the {len(last)} lines of its last writer")


def _lines(data: bytes | bytearray) -> list[bytes]:
    return [line for line in bytes(data).split(b"\n") if line]


def _has_unwritten(counts: Mapping[str, Any]) -> bool:
    """Whether the disk rejected a line, or took only a part of it."""
    return bool(counts["waiting"] or counts["lost"])


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


WIRE: Final = ("stale", "refused_connection", "refused_stranger", "refused_crossed")
"""Channel counters of refused messages that a sound peer sent too late, or to a life that is over."""
VOTES: Final = ("vote refused: ", "opening ")
"""Prefixes of the reasons for which the rounds of a Quorum node drop an item."""
KEPT: Final = "work of a killed life kept"
OF_ALL: Final = (
    "orders that came late",
    "too early",
    "not the present life",
    "wire: refused_connection",
    "wire: refused_stranger",
)
"""Guards of stations and connections, in runs of every program."""
OF_DECOUPLED: Final = (
    "answer: stale",
    "answer: unknown base",
    "answer: already merged",
    "vote refused: duplicate",
    "vote refused: late",
    "vote refused: not live",
    "opening renewed",
    "copy given",
    "moments lent",
    KEPT,
)
"""Guards of syncers and holders."""
OF_ISLANDS: Final = (GangMemberLost, TooFewProcesses, ProcessLost, ProcessBack, ProcessMissing, Reformed)
"""Incidents of islands of several processes."""
JUDGED: Final = "answers judged"
OF_FORGERIES: Final = ("not finite", "norms of other values", "out of proportion", NOT_FINITE)
"""Why a shard refuses the answer of a learner that is not sound; no answer of a sound one is refused for it."""


class HonestChecker(Checker):
    """No answer of a learner that forges nothing is refused as one of a learner that does."""

    def __init__(self) -> None:
        self._liars: Mapping[Replica, Sequence[Forge]] = {}

    def began(self, universe: Universe, member: Member) -> None:
        """Keep the injector's record of forgeries."""
        self._liars = universe.injector.forgeries

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check the refusals of merges."""
        if edge.source_port == "merged":
            for slot, why in item["refused"]:
                if why in OF_FORGERIES and Replica(LEARNER, slot) not in self._liars:
                    raise ViolationError(f"{life.member} refused an answer of the sound learner {slot}: {why}")


class GuardsWitness(Checker):
    """Counts by the name of the guard.

    Answers that shards judged and refused, copies that holders gave, items that learners forged, and, at the end, all
    refusals of channels, rounds and stations.

    A guard that never fires in a search was not tested by it: where the code refuses what must not count (the answer of
    a former life, an order that comes late), faults have to bring it about. It objects to nothing; `guards_of` returns
    the guards that a search of a program has to see, `searches.idle` those that it did not. Guards against hosts that
    send nonsense are not among them: those of a universe are sound.
    """

    def __init__(self) -> None:
        self._fired: Counter[str] = Counter()
        self._seen: set[tuple[Member, int | str, int | None]] = set()

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count judged and refused answers, copies and loans."""
        if edge.source_port == "merged":
            for slot, why in item["refused"]:
                if (life.member, item["round"], slot) not in self._seen:
                    self._seen.add((life.member, item["round"], slot))
                    self._fired[f"answer: {why}"] += 1
            if (life.member, item["round"], None) not in self._seen:
                self._seen.add((life.member, item["round"], None))
                self._fired[JUDGED] += len(item["voters"]) + len(item["refused"])
        elif edge.source_port == "copy" and item["version"][0]:
            self._fired["copy given"] += 1
        elif edge.source_port == "loan" and item["by"] is not None:
            self._fired["moments lent"] += 1
        elif edge.source_port == "report" and item["began"] is not None and item["began"][0] == "memory":
            self._fired[KEPT] += (life.member, KEPT, None) not in self._seen
            self._seen.add((life.member, KEPT, None))

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Look at hosts that are no members, and at processes of islands."""
        incident = happened.incident
        if isinstance(incident, Refused):
            self._fired[f"member: {incident.refusal}"] += 1
        verdict = incident.verdict if isinstance(incident, Condemned) else incident
        if isinstance(verdict, OF_ISLANDS):
            self._fired[f"island: {verdict.__struct_config__.tag}"] += 1

    def fired(self, universe: Universe) -> Counter[str]:
        """Counts of each guard's firings so far."""
        fired = Counter(self._fired)
        for life in universe.lives:
            fired.update({f"forged: {name}": count for name, count in life.forgeries.items()})
            statistics = life.channel.statistics()
            fired.update({f"wire: {name}": statistics[name] for name in WIRE if statistics.get(name)})
            dropped = life.host.scheduler.statistics()
            fired.update({name: count for name, count in dropped.items() if name.startswith(VOTES)})
        for daemon in universe.daemons:
            fired.update(daemon.refused)
        return fired


def guards_of(program: str) -> tuple[str, ...]:
    """The guards that a search of a program has to see at work."""
    return OF_ALL + OF_DECOUPLED if program == DEFAULT else OF_ALL


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
            self._note_version((*place, item["fragment"]), item["version"])
        elif edge.source_port == "answer" and item["base"] is not None:
            self._note_version((*place, item["fragment"]), item["base"])
        elif edge.source_port == "progress":
            for fragment, epoch in enumerate(item["epochs"]):
                self._note_version((*place, fragment), (epoch, 0))
        elif edge.source_port == "report":
            for fragment, version in enumerate(item["versions"]):
                self._note_version((*place, fragment), version)

    def _note_version(self, of: tuple[Member, Member, int, int], version_numbers: Sequence[int]) -> None:
        version, before = (version_numbers[0], version_numbers[1]), self._newest.get(of, (0, 0))
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
                steps = ("outer-step", "regional-step")
                fragments = next(node.arguments[0] for node in life.plan.nodes if node.name in steps)
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
    codes, entry = item["values"], FORMATS[item["format"]]
    if not entry.levels:
        return codes.astype(np.float32)
    blocks, at, scales = [], 0, iter(item["scales"])
    bits = entry.code_bits
    middle = np.float32(0 if entry.values == 1 else (1 << bits - 1) - entry.by_mean / 2)
    for unit in fragment.units:
        for begin in range(0, unit.size, CODE_BLOCK):
            size = min(CODE_BLOCK, unit.size - begin)
            length = -(-size // entry.values)
            block, at = codes[at : at + length], at + length
            if entry.values > 1:
                parts = [block >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
                block = np.concatenate(parts)[:size]
            blocks.append((block.astype(np.float32) - middle) * next(scales))
    return np.concatenate(blocks)


class ModelChecker(Checker):
    """A merged model is never initialized again while it is known, and lost only with all its holders.

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
        is_told = edge.source_port in ("update", "version", "state", "published", *KeyFrames.outputs)
        is_held = is_told and life.member.replica.role in HOLDERS
        if is_held and "fragment" in item:  # Not the state of a program without fragments.
            for heard in [self._shown] + [self._heard] * (item.get("kind") in ("merge", "final")):
                heard.setdefault(item["fragment"], {}).setdefault(life, (life.true_now(), source))

    def rostered(self, life: Life, rows: Sequence[Row]) -> None:
        """Forget items that a life will never sample, because their sender is gone."""
        present = {(name, incarnation) for name, incarnation, *_ in rows}
        for heard in [*self._heard.values(), *self._shown.values()]:
            at, source = heard.get(life, (-SAMPLED_NS, life.member))
            if life.true_now() - at < SAMPLED_NS and (str(source.replica), source.incarnation) not in present:
                del heard[life]

    def polled(self, universe: Universe) -> None:
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
            knowing = [str(each.member) for each in hearers if not each.is_dead]
            if fragment in self._noted or knowing:
                raise ViolationError(
                    f"{life.member} begins fragment {fragment} anew, which was merged; known to {knowing}"
                )

    def finished(self, universe: Universe, home: Home) -> None:
        """Check the claim that the model is lost."""
        failure = home.failure
        if isinstance(failure, RecorderFailed) and failure.error.startswith("the model is lost"):
            holders = [Replica(role, 0) for role in HOLDERS]
            kept = [each for each in holders if sum(life.member.replica == each for life in universe.lives) == 1]
            if DISK_FAULTS & set(universe.injector.counts):  # The recorder has what its disk has taken.
                kept = [each for each in kept if each != ONE_RECORDER]
            merged = sorted(self._told_of | self._heard.keys())
            hearers = [{life.member.replica for life in self._heard.get(fragment, ())} for fragment in merged]
            # A fragment without a known merge is not initialized again either, and may be the lost one.
            others = sorted(self._published.difference(merged))
            hearers += [{life.member.replica for life in self._shown.get(fragment, ())} for fragment in others]
            if all(heard & set(kept) for heard in hearers):
                raise ViolationError(
                    f"{failure.error} But {list(map(str, kept))} never ended, and heard of all merges of {merged}"
                )


class SnapshotsChecker(Checker):
    """The next life of a recorder reads a snapshot that was reported as taken, or a newer one.

    A model with a snapshot is never lost.
    """

    def __init__(self) -> None:
        self._number_max = 0
        self._lives_seen: set[Life] = set()

    def polled(self, universe: Universe) -> None:
        """Check the recorders' status of snapshots: the first number of a life is the one it has read, or the next."""
        for life in universe.living():
            is_home = life.member.replica == ONE_RECORDER and life.machine == universe.home
            snapshots = _snapshots_of(life) if is_home else None
            if snapshots is None or snapshots["error"] is not None:
                continue
            if life not in self._lives_seen:
                self._lives_seen.add(life)
                if snapshots["number"] < self._number_max:
                    actual = f"snapshot {snapshots['number']}, and {self._number_max} had been taken"
                    raise ViolationError(f"{life.member} goes on from {actual}: {snapshots['faults']}")
            self._number_max = max(self._number_max, snapshots["number"])

    def finished(self, universe: Universe, home: Home) -> None:
        """Check the claim that the model is lost."""
        failure = home.failure
        is_lost = isinstance(failure, RecorderFailed) and failure.error.startswith("the model is lost")
        if is_lost and self._number_max and not universe.disks[universe.home].troubles:
            raise ViolationError(f"the model is lost, of which snapshot {self._number_max} was taken")


def _snapshots_of(life: Life) -> dict[str, Any] | None:
    """A recorder's status of its snapshots, once it has listed them; else None."""
    shown = [each for each in life.host.published.values() if "taken_at" in each]
    return dict(shown[0]) if shown else None
