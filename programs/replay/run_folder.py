"""Replays every tape of a run folder: the core that each needs, and the checks before any is fed.

Plans come from the run's spec, which names the program; neither its task nor jax is imported. Faults are reported at
once: a run in progress, a graph that has changed, tapes that are damaged, cut short, or of another run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from isthmus.programs.cluster.handover import Sites
from isthmus.programs.replay.cores import Core, again, strange
from isthmus.programs.replay.merges import fault, merges_again
from isthmus.programs.replay.outcome import Replay, Replayed
from isthmus.programs.request import spec
from isthmus.programs.request.run_lock import user_of
from isthmus.programs.tapes import tape_files
from isthmus.programs.tapes.tape_files import HOME, TapeFile
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.errors import ConfigError, Fault, RequestError
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import HomeBegan, Places
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import StationBegan
from isthmus.runtime.tape.reading import FOLDER, Reading

_WHOLE: Final = "Fetch the folder again; without its tapes as they were written a run cannot be replayed."
_SAME: Final = "Replay with the isthmus with which it was trained."
_DAEMON_NS: Final = 1_000_000_000
"""The cores of one daemon begin within that; the next daemon needs longer to start."""


@dataclass(frozen=True, slots=True)
class _Cast:
    """The material of this run's cores; `formers` are those from before a resume with changes, with the names of their
    tapes."""

    told: spec.Spec
    plans: Mapping[str, Plan]
    places: Places
    formers: tuple[tuple[_Cast, frozenset[str]], ...] = ()

    def of(self, file: TapeFile) -> _Cast:
        """The cast under which a tape was written."""
        return next((former for former, names in self.formers if file.name in names), self)


def replay(folder: Path) -> Replay:
    """Replay the run in `folder`. ConfigError, with all that is wrong, for one that goes on, and for tapes that cannot
    be those of its graph."""
    doing = f"Replaying the run {folder}"
    if user := user_of(folder):
        do = "Wait for its end, or stop it with: isthmus stop."
        raise ConfigError(doing, "a run that is over", f"one that goes on, of process {user}", do)
    cast = _cast(folder, doing)
    files, others = tape_files.found(folder)
    faults = [Fault(f"Reading {name}", "a tape of a host or a daemon", "another name", _WHOLE) for name in others]
    if not files:
        faults.append(Fault(doing, f"tapes in {folder / FOLDER}", "none", _WHOLE))
    read: list[tuple[TapeFile, Reading]] = []
    for file in files:
        try:
            read.append((file, tape_files.read(file)))
        except (OSError, ValueError) as error:
            faults.append(Fault(f"Reading {file.name}", "a tape", str(error), _WHOLE))
    faults += _faults(folder, cast, read)
    if faults:
        raise ConfigError.of(faults)
    done = []
    for file, tape in read:
        try:
            replayed = _replayed(file, tape, cast.of(file))
        except ValueError as error:
            faults.append(Fault(f"Reading {file.name}", "segments that begin with the core's state", str(error), _SAME))
            continue
        try:
            done.append(_with_merges(folder, file, replayed, cast.of(file)))
        except (OSError, ValueError) as error:
            assert file.member is not None
            faults.append(fault(file.member, error))
    if faults:
        raise ConfigError.of(faults)
    return Replay(str(folder), done, _absent(cast, files))


def _cast(folder: Path, doing: str) -> _Cast:
    try:
        told, formers = spec.load(folder), list(spec.formers(folder))
        is_cluster = (folder / spec.CLUSTER).exists()
        places = Sites.load(folder).places() if is_cluster else Places(home="local")
        of_formers = [
            Sites.load_former(folder, number).places() if is_cluster else places for number, _ in enumerate(formers, 1)
        ]
    except FileNotFoundError:
        do = "Only a folder that a run of this version of isthmus has made can be replayed."
        raise ConfigError(doing, f"a {spec.SPEC}", "none", do) from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(doing, f"a run's {spec.SPEC}", f"{type(error).__name__}: {error}", _WHOLE) from None
    try:
        before = tuple(
            (_Cast(each, each.plans(), there), names) for (each, names), there in zip(formers, of_formers, strict=True)
        )
        return _Cast(told, told.plans(), places, before)
    except RequestError as error:
        do = "Replay with the sources with which it was trained: those of isthmus, and the file of its program."
        found = error.faults[0]
        raise ConfigError(doing, f"the graph that was trained, {found.expected}", found.found, do) from None


def _faults(folder: Path, cast: _Cast, read: Sequence[tuple[TapeFile, Reading]]) -> list[Fault]:
    """The faults of tapes whose records can be read."""
    faults = []
    broken_off, is_over = tape_files.broken_off(folder), (folder / "summary.json").exists()
    newest = max((tape.records[0].at for file, tape in read if file.kind != "host" and tape.records), default=0)
    for file, tape in read:
        doing = f"Reading {file.name}"
        if wrong := _wrong(file, tape, cast.of(file)):
            faults.append(Fault(doing, "the tape of such a host in this run", wrong, _WHOLE))
        elif tape.rest and not tape.is_unfinished:
            faults.append(Fault(doing, "whole records", tape.rest, _WHOLE))
        elif (torn := _torn(tape)) and is_over and not _may_be_torn(file, tape, broken_off, newest):
            faults.append(Fault(doing, "whole records", f"{torn}, of a host that was not killed", _WHOLE))
    return faults


def _wrong(file: TapeFile, tape: Reading, cast: _Cast) -> str:
    """Why a tape contradicts its name, in words; empty if it does not."""
    if file.member is not None:
        role = file.member.replica.role
        if role not in cast.plans:
            return f"one of a role {role!r}, which the graph does not have"
        return strange(tape, cast.plans[role], file.member, is_alone=cast.told.transport != spec.INPROC)
    if tape.records and not tape.begins and not isinstance(tape.records[0].event, HomeBegan | StationBegan):
        return f"one that begins with {type(tape.records[0].event).__name__}"
    return ""


def _torn(tape: Reading) -> str:
    """What the end of a process or a power failure may have left of a tape, in words; empty if that is whole."""
    return tape.rest or ("" if tape.records else "none, for it is empty")


def _may_be_torn(file: TapeFile, tape: Reading, broken_off: frozenset[tuple[str, int]], newest: int) -> bool:
    """Whether the writer of a tape may have been killed: a host by events.jsonl, a daemon by the next daemon's tape."""
    if file.member is not None:
        return (str(file.member.replica), file.member.incarnation) in broken_off
    return not tape.records or tape.records[0].at < newest - _DAEMON_NS


def _replayed(file: TapeFile, tape: Reading, cast: _Cast) -> Replayed:
    member, zero_ns = file.member, 0 if file.member is not None else cast.told.zero_ns
    host = file.kind if member is None else str(member.replica)
    number = file.pid if member is None else member.incarnation
    plan = None if member is None else cast.plans[member.replica.role]
    done = again(lambda: _core(file, plan, cast), tape.segments, plan, zero_ns)
    begins = tape.records[0].at - zero_ns if tape.begins and tape.records else None
    return Replayed(
        file.name,
        host,
        number,
        done.records,
        done.commands,
        done.merges,
        torn_bytes=tape.rest_bytes,
        before=tape.begins,
        missing=tape.missing - tape.begins,
        begins_ns=begins,
        difference=done.difference,
    )


def _with_merges(folder: Path, file: TapeFile, replayed: Replayed, cast: _Cast) -> Replayed:
    """The same, with the result of computing its merges again."""
    if file.member is None:
        return replayed
    plan = cast.plans[file.member.replica.role]
    return replace(replayed, computed=merges_again(folder, plan, file.member, cast.told.job.seed))


def _core(file: TapeFile, plan: Plan | None, cast: _Cast) -> Core:
    """A fresh core for a tape."""
    if plan is not None and file.member is not None:
        return Scheduler(plan, file.member)
    return Home(cast.told.cast, cast.places) if file.kind == HOME else Station(is_at_home=True)


def _absent(cast: _Cast, files: Sequence[TapeFile]) -> list[str]:
    """The initial hosts of the run whose tapes are not in the folder."""
    there: set[Any] = {str(file.member.replica) for file in files if file.member is not None}
    began = [f"{role}/{slot}" for role, count in cast.told.roles.items() for slot in range(count)]
    return [host for host in began if host not in there]
