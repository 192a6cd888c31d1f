"""The room that the snapshots of a run take on a disk, and whether it is there before the run starts.

Decides how many bytes there may be at once, by shapes: of the fragments of a snapshot each version is a file of its own
(`snapshots.snapshots`), and those of the newest snapshot, of the one before it and of the one that is being written are
there together; with a store, one more, as long as it is brought there. Versions that did not change between two
snapshots are one file, so this is the most. A file is written beside the one that it replaces, which is a part of that.
What learners keep of their own moments is on the same disk, each copy beside the one that it replaces, and so is the
final model.

A version has the values in float32 and, of its shard, the momentum, where there is one, and the exact values, where
updates are coded. In lock-step each learner adds its state, elsewhere, where `run.moments_every` says so, its moments;
and without a syncer a state is the snapshot.

A run where not even one snapshot and the final model fit cannot keep anything, and is refused. Where there is less room
than the most, with a tenth to spare, that is a warning: a snapshot that does not fit waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, final

from isthmus.programs.engine.recorder.graph_parts import fragment_sizes
from isthmus.programs.engine.request.model_sizes import FLOAT32_BYTES, learner_bytes, parameter_count
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import size
from isthmus.programs.program_graph import held_model_of, kept_state_of
from isthmus.runtime.errors import ConfigError, Fault

AT_ONCE: Final = 3
"""The newest, the one before, and the one that is being written, in a run folder and in a store."""
SPARE: Final = 1.1
"""For headers of files, manifests, and the lines of a run."""
PLENTY: Final = 64
"""Times the values, for each learner: where so much is free nothing has to be computed. The state of a learner is at
most some times its values, and AT_ONCE + 1 of these are there."""
FILE: Final = "file://"


@final
@dataclass(frozen=True, slots=True)
class SnapshotNeeds:
    """Bytes of one snapshot, at least and at most, of the final model, and of what a learner keeps beside."""

    least: int
    most: int
    model: int
    local: int = 0

    @classmethod
    def of(cls, request: Request) -> SnapshotNeeds | None:
        """Those of a request; None where its graph keeps nothing."""
        graph, learners = request.graph, request.job.learners
        values = _values_bytes(request)
        held = held_model_of(graph)
        if held is not None:
            momentum = held.state.node.keywords.get("momentum")  # None: a body of the user's own.
            exact = values if held.state.node.keywords.get("update", "float32") != "float32" else 0
            state = learner_bytes(request)
            local = max(0, state - 2 * values)
            own = (
                learners * state if held.restored is not None else learners * local if request.job.moments_every else 0
            )
            least, most = values * (1 + bool(momentum)), values * (1 + (momentum != 0))
            return cls(least, most + exact + own, values, local)
        if kept_state_of(graph) is not None:
            return cls(values, learner_bytes(request), values)
        return None


class DiskNeeds(NamedTuple):
    """What a run needs of a disk: bytes without which it is refused, and with which nothing waits. `what` says for
    what."""

    least: int
    most: int


def of_folder(needs: SnapshotNeeds, learners: int, *, has_store: bool) -> DiskNeeds:
    """What a run needs in its folder, with so many learners on the same machine."""
    most = (AT_ONCE + has_store) * needs.most + 2 * learners * needs.local + needs.model
    return DiskNeeds(needs.least + needs.model, round(SPARE * most))


def of_store(needs: SnapshotNeeds) -> DiskNeeds:
    """What a run needs in a store that is a folder."""
    return DiskNeeds(needs.least, round(SPARE * AT_ONCE * needs.most))


def store_folder(request: Request) -> Path | None:
    """The folder of the request's store of snapshots, if it has one that is on a disk."""
    text = request.run.snapshots.removeprefix(FILE)
    return Path(text) if text and "://" not in text else None


def with_room(request: Request, *, has: int = 0) -> Request:
    """This request, with a warning for each disk on which its snapshots are tight; ConfigError with those on which not
    one fits.

    `has`: bytes that the run has in its folder already, which are a part of what it needs.
    """
    places = [request.run_dir, *filter(None, [store_folder(request)])]
    free = [_free_bytes(place) for place in places]
    plenty = PLENTY * (1 + request.job.learners) * _values_bytes(request)
    if all(each is None or each >= plenty for each in free):
        return request
    needs = SnapshotNeeds.of(request)
    if needs is None:
        return request
    wanted = [of_folder(needs, request.job.learners, has_store=bool(request.run.snapshots))]
    wanted += [of_store(needs)] * (len(places) - 1)
    rows = zip(places, wanted, free, strict=True)
    disks = [_Disk(place, need, room) for place, need, room in rows if room is not None]
    disks = [disk.with_more(has) if disk.place == request.run_dir else disk for disk in disks]
    faults = [fault for disk in _joined(disks) if (fault := disk.fault()) is not None]
    if wrong := [fault for fault, is_wrong in faults if is_wrong]:
        raise ConfigError.of(wrong)
    return replace(request, warnings=(*request.warnings, *(fault for fault, _ in faults)))


class _Disk(NamedTuple):
    """What is needed at a place, and how many bytes are there for it."""

    place: Path
    need: DiskNeeds
    room: int

    def with_more(self, size: int) -> _Disk:
        return self._replace(room=self.room + size)

    def fault(self) -> tuple[Fault, bool] | None:
        """That it is too small, and whether for anything; None if it is not."""
        if self.room >= self.need.most:
            return None
        doing, found = f"Looking for room for snapshots in {self.place}", f"{size(self.room)}"
        do = "Make room there, or take another folder: --run-dir, or run.snapshots for a store."
        if self.room < self.need.least:
            what = f"{size(self.need.least)}, for one snapshot of this model and the final one"
            return Fault(doing, what, found, do), True
        what = f"{size(self.need.most)} for all that may be there at once"
        return Fault(doing, what, found, f"{do} A snapshot that does not fit waits."), False


def _joined(disks: list[_Disk]) -> Iterator[_Disk]:
    """The needs of places on one file system together."""
    by_device: dict[int, _Disk] = {}
    for disk in disks:
        device = _device(disk.place)
        other = by_device.get(device)
        if other is not None:
            need = DiskNeeds(*(map(sum, zip(other.need, disk.need, strict=True))))
            disk = _Disk(other.place, need, max(other.room, disk.room))
        by_device[device] = disk
    yield from by_device.values()


def _values_bytes(request: Request) -> int:
    """The merged values in float32: of all modules of a model that has some."""
    return FLOAT32_BYTES * (sum(fragment_sizes(request.graph)) or parameter_count(request))


def _free_bytes(place: Path) -> int | None:
    """The room at a place that may not be there yet; None where that cannot be told."""
    try:
        found = os.statvfs(_existing(place))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _device(place: Path) -> int:
    return _existing(place).stat().st_dev


def _existing(place: Path) -> Path:
    """The folder, or the one to make it in."""
    path = place.absolute()
    return next(each for each in (path, *path.parents) if each.exists())
