"""Whether what participants have of a merge is bounded: not while all learners are of one, against whom is nobody.

Decides what a home says of the shares of machines, and when that changes. Shards bound by it (`InfluenceCap`); the
runtime passes it on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from isthmus.runtime.daemon.home_daemon import DirectoryTerms
from isthmus.runtime.ids import MachineOwner
from isthmus.runtime.supervision.fleet import Fleet
from isthmus.runtime.supervision.incidents import Incident, SharesBounded, SharesUnbounded
from isthmus.runtime.supervision.messages import Directory


@final
class MergeShares(DirectoryTerms):
    """The shares of one run, of which a participant has at most `share_max` by its program."""

    def __init__(self, share_max: float) -> None:
        self._share_max, self._is_unbounded = share_max, False

    def told(self, directory: Directory, fleet: Fleet) -> tuple[Directory, Incident | None]:
        """The directory, with no bound of a share of a merge where nobody is to be bounded against another."""
        is_bounding = self._share_max < 1 or any(each.weight_share_max for each in directory.owners.values())
        is_unbounded = is_bounding and fleet.is_of_one_party
        machines = tuple(dict.fromkeys(map(fleet.name, fleet.learners)))
        incident: Incident | None = None
        if is_unbounded and not self._is_unbounded:
            incident = SharesUnbounded(len(machines))
        elif self._is_unbounded and is_bounding and not is_unbounded and machines:
            incident = SharesBounded(len(fleet.parties.named(machines)))
        self._is_unbounded = is_unbounded
        return _unbounded(directory, machines) if is_unbounded else directory, incident


def _unbounded(directory: Directory, machines: Collection[str]) -> Directory:
    """The same, where these machines may have any share of a merge."""
    whose = {name: directory.owners.get(name, MachineOwner(name)) for name in machines}
    unbounded = {name: owner._replace(weight_share_max=1.0) for name, owner in whose.items()}
    return Directory(directory.keys, {**directory.owners, **unbounded})
