"""Hosts whose home is not heard: for how long they go on without it, and what their machines know of it.

It decides nothing about another home of a run (`failover`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from isthmus.programs.engine.cluster.handover import Sites
from isthmus.programs.engine.request import spec
from isthmus.programs.program_graph import REGION
from isthmus.runtime.daemon import home_daemon
from isthmus.runtime.ids import LEARNER, Replica, leader


class HomeView(NamedTuple):
    """A machine's knowledge of a run's home: name, term, whether it is heard; '', 0, False if it has no part."""

    home: str
    term: int
    is_heard: bool


REGION_SECONDS: Final = 30 * 86_400
"""So long a region that is cut off goes on alone: it merges at its own syncer, and stops at its share of the budget."""


def lonely_seconds(run: spec.Spec) -> float:
    """The seconds for which the hosts of a run go on without a word of its home."""
    return REGION_SECONDS if REGION in run.roles else run.settings.home_away_seconds


LATE: Final = 1.5
"""Beats of a busy daemon come late, and so does the end of hosts that count them."""


def alone_ns(folder: Path) -> int:
    """For how many nanoseconds learners elsewhere may have lived without the home in a folder; 0 where none was.

    Which machines had any is what its journal says, or else its first placement.
    """
    sites, run_spec, journal = Sites.load(folder), spec.load(folder), home_daemon.journal_of(folder)
    where, retired, away = {str(replica): name for replica, name in sites.placement.items()}, set[str](), set[str]()
    if journal is not None:
        where |= dict(journal.machines)
        retired, away = {replica for replica, _ in journal.retired}, set(journal.away)
    is_elsewhere = any(
        leader(Replica.parse(replica)).role == LEARNER and name not in (sites.home, *away) and replica not in retired
        for replica, name in where.items()
    )
    return round(LATE * lonely_seconds(run_spec) * 1e9) if is_elsewhere else 0
