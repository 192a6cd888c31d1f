"""Replays every tape of a run folder: which core each needs, and what is refused before any is fed.

Plans come from the run's spec, which names the program; neither its task nor jax is imported. What is wrong is told at
once: a run that goes on, a graph that is no more what it was, tapes that are damaged, cut short, or of another run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.programs.cluster.handover import Sites
from isthmus.programs.replay import tape_files
from isthmus.programs.replay.cores import Core, again, strange
from isthmus.programs.replay.outcome import Replay, Replayed
from isthmus.programs.replay.tape_files import HOME, Read, TapeFile
from isthmus.programs.request import spec
from isthmus.programs.request.run_lock import user_of
from isthmus.runtime.errors import ConfigError, Fault, RequestError
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.scheduler.core import Scheduler
from isthmus.runtime.supervision.home.core import Home
from isthmus.runtime.supervision.home.events import HomeBegan, Places
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import StationBegan

_WHOLE: Final = "Fetch the folder again; without its tapes as they were written a run cannot be replayed."
_DAEMON_NS: Final = 1_000_000_000
"""The cores of one daemon begin within that; the next daemon needs longer to come."""


@dataclass(frozen=True, slots=True)
class _Cast:
    """What cores of this run are made from; `formers` are those of the run before it was resumed in another way, with
    the names of the tapes that there were then."""

    told: spec.Spec
    plans: Mapping[str, Plan]
    places: Places
    formers: tuple[tuple[_Cast, frozenset[str]], ...] = ()

    def of(self, file: TapeFile) -> _Cast:
        """The one under which a tape was written."""
        return next((former for former, names in self.formers if file.path.name in names), self)


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
        faults.append(Fault(doing, f"tapes in {folder / tape_files.FOLDER}", "none", _WHOLE))
    read: list[tuple[TapeFile, Read]] = []
    for file in files:
        try:
            read.append((file, tape_files.read(file)))
        except (OSError, ValueError) as error:
            faults.append(Fault(f"Reading {file.path.name}", "a tape", str(error), _WHOLE))
    faults += _faults(folder, cast, read)
    if faults:
        raise ConfigError.of(faults)
    return Replay(str(folder), [_replayed(file, tape, cast.of(file)) for file, tape in read], _absent(cast, files))


def _cast(folder: Path, doing: str) -> _Cast:
    try:
        told, formers = spec.load(folder), list(spec.formers(folder))
        places = Sites.load(folder).places() if (folder / spec.CLUSTER).exists() else Places(home="local")
    except FileNotFoundError:
        do = "Only a folder that a run of this version of isthmus has made can be replayed."
        raise ConfigError(doing, f"a {spec.SPEC}", "none", do) from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(doing, f"a run's {spec.SPEC}", f"{type(error).__name__}: {error}", _WHOLE) from None
    try:
        before = tuple((_Cast(each, each.plans(), places), names) for each, names in formers)
        return _Cast(told, told.plans(), places, before)
    except RequestError as error:
        do = "Replay with the sources with which it was trained: those of isthmus, and the file of its program."
        found = error.faults[0]
        raise ConfigError(doing, f"the graph that was trained, {found.expected}", found.found, do) from None


def _faults(folder: Path, cast: _Cast, read: Sequence[tuple[TapeFile, Read]]) -> list[Fault]:
    """What is wrong with tapes whose records can be read."""
    faults = []
    broken_off, is_over = tape_files.broken_off(folder), (folder / "summary.json").exists()
    newest = max((tape.records[0].at for file, tape in read if file.kind != "host" and tape.records), default=0)
    for file, tape in read:
        doing = f"Reading {file.path.name}"
        if wrong := _wrong(file, tape, cast.of(file)):
            faults.append(Fault(doing, "the tape of such a host in this run", wrong, _WHOLE))
        elif tape.torn_bytes and is_over and not _may_be_torn(file, tape, broken_off, newest):
            found = f"{tape.torn_bytes} bytes of an unfinished one, of a host that was not killed"
            faults.append(Fault(doing, "whole records", found, _WHOLE))
    return faults


def _wrong(file: TapeFile, tape: Read, cast: _Cast) -> str:
    """Why a tape cannot be what its name says, in words; empty where it may be."""
    if file.member is not None:
        role = file.member.replica.role
        if role not in cast.plans:
            return f"one of a role {role!r}, which the graph does not have"
        return strange(tape.records, cast.plans[role], file.member, is_alone=cast.told.transport != spec.INPROC)
    if tape.records and not _begins(tape) and not file.older.exists():
        return f"one that begins with {type(tape.records[0].event).__name__}"
    return ""


def _may_be_torn(file: TapeFile, tape: Read, broken_off: frozenset[tuple[str, int]], newest: int) -> bool:
    """Whether whoever wrote a tape was killed, as far as is known: a host by events.jsonl, a daemon by the next."""
    if file.member is not None:
        return (str(file.member.replica), file.member.incarnation) in broken_off
    return not tape.records or tape.records[0].at < newest - _DAEMON_NS


def _begins(tape: Read) -> bool:
    return isinstance(tape.records[0].event, HomeBegan | StationBegan)


def _replayed(file: TapeFile, tape: Read, cast: _Cast) -> Replayed:
    member, zero_ns = file.member, 0 if file.member is not None else cast.told.zero_ns
    host = file.kind if member is None else str(member.replica)
    number = file.pid if member is None else member.incarnation
    if member is None and tape.records and not _begins(tape):
        begins = tape.records[0].at - zero_ns
        return Replayed(file.path.name, host, number, 0, 0, 0, tape.torn_bytes, begins)
    plan = None if member is None else cast.plans[member.replica.role]
    done = again(_core(file, plan, cast), tape.records, plan, zero_ns)
    counts = done.records, done.commands, done.merges
    return Replayed(file.path.name, host, number, *counts, tape.torn_bytes, None, done.difference)


def _core(file: TapeFile, plan: Plan | None, cast: _Cast) -> Core:
    """A fresh core for a tape."""
    if plan is not None and file.member is not None:
        return Scheduler(plan, file.member)
    return Home(cast.told.cast, cast.places) if file.kind == HOME else Station(is_at_home=True)


def _absent(cast: _Cast, files: Sequence[TapeFile]) -> list[str]:
    """The hosts that the run began with, and whose tapes stayed on other machines."""
    there: set[Any] = {str(file.member.replica) for file in files if file.member is not None}
    began = [f"{role}/{slot}" for role, count in cast.told.roles.items() for slot in range(count)]
    return [host for host in began if host not in there]
