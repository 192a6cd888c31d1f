"""Which host of a program of two levels has which part: the regions of learners, the shards of each region, and the
global shards.

Decides it by numbers alone, so that every host has the same answer. Nothing of what a part does is here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from isthmus.runtime.graph.template import Role, Route


@final
@dataclass(frozen=True, slots=True)
class RegionParts:
    """Replica i of the role of regions is shard i // `regions` of region i mod `regions`, each of which has `shards`.

    Learner s is in region s mod `regions`. Shard q of a region has the fragments p with p mod `shards` = q, and a
    global one those with p mod `shards_global` = g.
    """

    regions: int
    shards: int = 1
    shards_global: int = 1

    @property
    def hosts(self) -> int:
        """The replicas of the role of regions."""
        return self.regions * self.shards

    @property
    def gives_copies(self) -> bool:
        """As `FragmentHolders` says: a region comes back, and is given copies."""
        return False

    @property
    def is_split(self) -> bool:
        """Whether a level has several shards."""
        return self.shards > 1 or self.shards_global > 1

    @property
    def classes(self) -> int:
        """The number of classes of shards: one of a region and a global one have a fragment in common if they are of
        one class, which their numbers modulo this tell, and in a model of enough fragments only then."""
        return math.gcd(self.shards, self.shards_global)

    def has(self, slot: int, fragment: int) -> bool:
        """Whether a replica of the role of regions has a fragment."""
        return slot // self.regions == fragment % self.shards

    def region_of(self, slot: int) -> int:
        """The region of a replica of the role of regions, or of a learner."""
        return slot % self.regions

    # -- routes --------------------------------------------------------------------------------------------------------

    def to_learners(self, learner: Role) -> Route:
        """From a shard of a region to the learners of it."""
        return learner.group if self.shards == 1 else learner.all.within(self.regions)

    def to_shards(self, region: Role) -> Route:
        """From a learner to all shards of its region."""
        return region.group if self.shards == 1 else region.all.within(self.regions)

    def to_shard(self, region: Role, fragments: Sequence[object]) -> Route:
        """From a learner to the shard of its region that has the fragment of an item."""
        return region.group if self.shards == 1 else self._having(region, fragments).within(self.regions)

    def within_region(self, role: Role) -> Route:
        """Between a learner and the shards of its region; as `to_learners` and `to_shards`, for new edges."""
        return role.all.within(self.regions)

    def to_regions(self, region: Role, fragments: Sequence[object]) -> Route:
        """From a global shard to the one of each region that has the fragment of an item."""
        if self.shards == 1:
            return region.all
        route = self._having(region, fragments)
        return route if self.classes == 1 else route.within(self.classes, receiver=self.regions)

    def to_region(self, region: Role) -> Route:
        """From a global shard to the one of a region that an item names."""
        route = region.at("slot")
        return route if self.classes == 1 else route.within(self.classes, receiver=self.regions)

    def to_global(self, syncer: Role) -> Route:
        """From a shard of a region to all global ones with which it has a fragment in common."""
        return syncer.all if self.classes == 1 else syncer.all.within(self.classes, sender=self.regions)

    def to_global_shard(self, syncer: Role) -> Route:
        """From a shard of a region to the global one that has the fragment of an item."""
        if self.shards_global == 1:
            return syncer.all
        route = syncer.at("fragment")
        return route if self.classes == 1 else route.within(self.classes, sender=self.regions)

    def _having(self, region: Role, fragments: Sequence[object]) -> Route:
        slots = range(self.hosts)
        classes = [[slot for slot in slots if self.has(slot, p)] for p in range(len(fragments))]
        return region.some("fragment", self.hosts, classes)


ONE_REGION: Final = RegionParts(1)
