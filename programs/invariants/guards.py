"""Guards: refusals that only faults bring about, and how often each of them fired in a universe.

A guard that never fires in a search was not tested by it: where the code refuses what must not count (the answer of a
former life, an order that comes late), faults have to bring it about. `GuardsWitness` counts, and objects to nothing;
`guards_of` returns the guards that a search of a program has to see at work, `coverage` whether it did. Guards against
hosts that send nonsense are not among them: those of a universe are sound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.ops.syncer.merge import NOT_FINITE
from isthmus.programs.request.program import DEFAULT
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import LEARNER, Member, Replica
from isthmus.runtime.sim import Checker, Forge, Universe, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.supervision.incidents import (
    Bereft,
    Condemned,
    Happened,
    ProcessBack,
    ProcessLost,
    ProcessMissing,
    Reformed,
    Refused,
    Undermanned,
)

WIRE: Final = ("stale", "refused_connection", "refused_stranger", "refused_crossed")
"""Channel counters of refused messages that a sound peer sent too late, or to a life that is over."""
VOTES: Final = ("vote refused: ", "opening ")
"""Prefixes of the reasons for which the rounds of a Quorum node drop an item."""
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
)
"""Guards of syncers and holders."""
OF_ISLANDS: Final = (Bereft, Undermanned, ProcessLost, ProcessBack, ProcessMissing, Reformed)
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
    """

    def __init__(self) -> None:
        self._fired: Counter[str] = Counter()
        self._seen: set[tuple[Member, int, int | None]] = set()

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

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Look at hosts that are no members, and at processes of islands."""
        incident = happened.incident
        if isinstance(incident, Refused):
            self._fired[f"member: {incident.refusal}"] += 1
        found = incident.verdict if isinstance(incident, Condemned) else incident
        if isinstance(found, OF_ISLANDS):
            self._fired[f"island: {found.__struct_config__.tag}"] += 1

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
