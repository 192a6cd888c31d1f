"""`isthmus train --verbose`: when each process of a run reached the phases of its start, in seconds from that of the
command, which devices and cores it has, and what was compiled for it, once all learners step.

The instants are those that the processes have written (`phases`); what none has written is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.islands.kept_programs import (
    CACHE_BYTES_MAX,
    CompiledProgram,
    KeptPrograms,
    kept_programs,
    read_compiled,
)
from isthmus.programs.engine.results.words import size
from isthmus.programs.engine.run.in_processes import COMMAND
from isthmus.programs.engine.run.seats import Seat, ranges, read_seats
from isthmus.programs.engine.run.watch_loop import Watch
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.system.phases import Phase, PhaseReached, read

_WORDS: Final[Mapping[Phase, str]] = {
    "begun": "begins",
    "forked": "has forked the daemon and what prepares the request",
    "prepared": "has read, traced and checked the request",
    "written": "has written the run folder",
    "waiting": "has imported, and waits for the run",
    "serving": "serves the run",
    "ready": "has prepared what its hosts need, and can fork them",
    "open": "has compiled and loaded what it calls",
    "step": "begins its first step",
}


def lines(reached: Iterable[PhaseReached], learners: Sequence[str]) -> list[str]:
    """The table, by time; of each process its first life. `learners` without a first step are named at its end."""
    first: dict[tuple[str, Phase], int] = {}
    for each in reached:
        if each.life <= 1:
            first.setdefault((each.process, each.phase), each.at_ns)
    begun = first.get((COMMAND, "begun"))
    if begun is None:
        return ["start: not known, because no process has written when it began"]
    rows = sorted((at, process, phase) for (process, phase), at in first.items())
    table = [f"{(at - begun) / 1e9:8.2f} s  {process:17} {_WORDS[phase]}" for at, process, phase in rows]
    missing = [name for name in learners if (name, "step") not in first]
    unknown = [f"{'not known':>10}  {name:17} {_WORDS['step']}" for name in missing]
    return ["start, in seconds from that of the command", *table, *unknown]


@final
class StartView:
    """A view beside which the phases of the start are printed, by `tell`, once all learners have begun a step."""

    def __init__(self, view: Watch, folder: Path, tell: Any) -> None:
        self._view, self._folder, self._tell = view, folder, tell
        self._is_told = False
        self._learners: list[str] = []

    def update(self, status: dict[str, Any]) -> None:
        """Take the newest status."""
        self._view.update(status)
        self._learners = _learners(status) or self._learners
        if not self._is_told and self._learners:
            reached = list(read(self._folder))
            if {each.process for each in reached if each.phase == "step"}.issuperset(self._learners):
                self._print(reached)

    def close(self, summary: dict[str, Any]) -> None:
        """The run is over."""
        if not self._is_told:
            self._print(list(read(self._folder)))
        self._view.close(summary)

    def _print(self, reached: list[PhaseReached]) -> None:
        self._is_told = True
        programs = list(read_compiled(self._folder))
        seats = seat_lines(list(read_seats(self._folder)), programs)
        compiled = compiled_lines(programs, kept_programs(programs))
        self._tell("\n".join([*lines(reached, self._learners), *seats, *compiled]))


def seat_lines(seats: Sequence[Seat], programs: Sequence[CompiledProgram]) -> list[str]:
    """Which devices and cores each process of the first lives has, and what jax finds there."""
    found = {(each.process, each.life): each.device for each in programs}
    table = []
    for each in sorted(seats):
        if each.life <= 1:
            devices, finds = ", ".join(each.devices) or "-", found.get((each.process, each.life), "-")
            table.append(f"{each.process:17} {devices:17} {finds:17} {ranges(each.cores)}")
    return [f"{'process':17} {'claimed devices':17} {'jax finds':17} cores", *table] if table else []


def compiled_lines(programs: Sequence[CompiledProgram], kept: KeptPrograms | None) -> list[str]:
    """What the processes of the first lives have compiled, with seconds, and read; and what is kept of other jax and
    devices, which is left aside."""
    first = [each for each in programs if each.life <= 1]
    table = [line for process in sorted({each.process for each in first}) for line in _compiled_by(process, first)]
    if not table:
        return []
    if kept is not None:
        bound = f"{size(kept.bytes)} of at most {size(CACHE_BYTES_MAX)}"
        table.append(f"kept in {kept.folder}: {kept.programs} programs, {bound}")
        table += [f"of these left aside: {count} of jax {jax} for {device}" for (jax, device), count in kept.others]
    return ["compiled programs, in seconds", *table]


PROGRAMS_MAX: Final = 5
"""Of a process that have a line each: the step, and what else takes long."""


def _compiled_by(process: str, programs: Sequence[CompiledProgram]) -> Iterator[str]:
    own = [each for each in programs if each.process == process]
    made = sorted((each for each in own if each.way == "compiled"), key=lambda each: -each.seconds)
    rest, kept = made[PROGRAMS_MAX:], [each for each in own if each.way == "read"]
    rows = [(each.seconds, f"compiled {each.function}") for each in made[:PROGRAMS_MAX]]
    rows += [(sum(each.seconds for each in rest), f"compiled {len(rest)} others")] if rest else []
    rows += [(sum(each.seconds for each in kept), f"read {len(kept)} that were kept")] if kept else []
    for by in sorted({each.by for each in own if each.by}):
        rows.append((max(each.awaited_seconds for each in own if each.by == by), f"waited for what {by} compiled"))
    for seconds, text in rows:
        yield f"{seconds:8.2f} s  {process:17} {text}"


def _learners(status: Mapping[str, Any]) -> list[str]:
    """The names of the learners in a status."""
    names = [str(host["name"]) for host in status.get("hosts", ())]
    return [name for name in names if Replica.parse(name).role == LEARNER]
