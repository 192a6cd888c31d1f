"""The machines of a run, the place of each replica, and the replicas that were retired.

It decides on which machine the next life of a replica begins: where the replica was placed or, once that machine is
lost or removed, on the machine with the fewest replicas among those that offer its role. A learner belongs to the
islands of its machine, and waits for it. The core decides which replica has a next life, and when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, get_args

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.errors import CoreSubject, demand
from isthmus.runtime.ids import (
    LEARNER,
    Member,
    Party,
    Replica,
    follower,
    gang_number,
    island_in,
    leader,
    leads_island,
    takes_island,
)
from isthmus.runtime.supervision.home_events import Places, RunRoles, Taken, is_offered
from isthmus.runtime.supervision.messages import Wanted
from isthmus.runtime.supervision.parties import Parties

LOST_BEATS: Final = 40
"""Twenty seconds. Until then its silence excuses that of its hosts."""
FAR_TIMES: Final = 9
"""Three minutes for a machine that is far: its store may be away for one, and its learners lose nothing meanwhile."""
SILENT_BEATS: Final = 2
"""Beats without a report after which a machine is silent."""


@dataclass(slots=True)
class MachineLives:
    """The lives on one machine, by replica, and its beats of silence.

    After LOST_BEATS beats of silence the machine is lost: its lives count as ended, even if they still run there, and
    are no longer wanted if it comes back.
    """

    name: str
    tracked: dict[Replica, int] = field(default_factory=dict)
    """Lives, from when they are wanted until their ends are known."""
    condemned: set[Replica] = field(default_factory=set)
    """Those of them that are to be killed."""
    fresh: set[Replica] = field(default_factory=set)
    """Those that were numbered by this daemon."""
    silent_beats: int = 0
    is_lost: bool = False
    is_away: bool = False
    """The machine no longer takes part."""
    is_leaving: bool = False
    """No life begins on it."""
    epoch: int = 0
    """Orders for it are of this one, if it is later than the home's: a home whose journal was lost learns it there."""
    refused_at: Instant | None = None
    """When a refused report of it was recorded last."""
    is_far: bool = False
    """Its last report says so."""
    rostered: int = 0
    """The mark of the roster that it holds, likewise."""

    @property
    def is_silent(self) -> bool:
        """Whether the machine has been silent for long enough to excuse the silence of its hosts."""
        return self.silent_beats >= SILENT_BEATS

    @property
    def is_reached(self) -> bool:
        """Whether lives may be begun here."""
        return not self.is_lost and not self.is_away

    def has(self, member: Member) -> bool:
        """Whether a life is tracked here."""
        return self.tracked.get(member.replica) == member.incarnation

    def track(self, member: Member, *, is_new: bool = False) -> None:
        """Track a life as wanted from now on."""
        self.tracked[member.replica] = member.incarnation
        if is_new:
            self.fresh.add(member.replica)

    def forget(self, member: Member) -> None:
        """Stop tracking a life, whose end is known."""
        del self.tracked[member.replica]
        self.condemned.discard(member.replica)
        self.fresh.discard(member.replica)

    def members(self) -> list[Member]:
        """All tracked members, sorted."""
        return [Member(replica, incarnation) for replica, incarnation in sorted(self.tracked.items())]

    def wanted(self) -> tuple[Wanted, ...]:
        """The lives that its orders list."""
        return tuple(
            Wanted(member, member.replica in self.condemned, member.replica in self.fresh) for member in self.members()
        )

    def heard(self) -> None:
        self.silent_beats, self.is_lost = 0, False

    def beat(self, *, is_awaited: bool = False) -> bool:
        """Count a beat; returns whether the machine is lost from now on, which one that `is_awaited` never is."""
        self.silent_beats += 1
        limit = LOST_BEATS * (FAR_TIMES if self.is_far else 1)
        if self.silent_beats < limit or self.is_lost or is_awaited:
            return False
        self.is_lost = True
        return True


class Fleet:
    """The machines of one run, and its `replicas`; `retired` maps replicas that have no next life to the reason, in the
    order in which they were retired."""

    def __init__(self, cast: RunRoles, places: Places) -> None:
        self.home, self.term, self.former = places.home, places.term, places.former
        self.edges, self.exit, self.user = cast.edges, seconds(cast.exit_seconds), cast.user
        self.slots_max = {**cast.roles, **cast.slots_max}
        self.replicas = [Replica(role, slot) for role in cast.roles for slot in range(cast.roles[role])]
        self._processes = dict(enumerate(cast.processes))
        self.group_role, self._groups, self._period = cast.group_role, cast.groups, cast.period
        self._elastic = {slot: sizes for slot, sizes in enumerate(cast.elastic) if sizes}
        for learner in [each for each in self.replicas if leads_island(each)]:
            for each in self.gang(learner)[1:]:
                self.replicas.append(each)
                self.slots_max[each.role] = self.islands_max
        self.machines: dict[str, MachineLives] = {}
        self.retired: dict[Replica, str] = {}
        self._least = {**cast.roles, **cast.least}
        self.parties = Parties(places.home)
        self._offers, self._home_offers = places.offers, places.home_offers
        self._where = dict(places.machines)
        for name in [places.home, *places.offers, *places.machines.values()]:
            self.machines.setdefault(name, MachineLives(name))
        if places.former:  # The former home is lost, until it is heard.
            lost = self.machines.setdefault(places.former, MachineLives(places.former))
            lost.silent_beats, lost.is_lost = LOST_BEATS, True

    # -- queries -------------------------------------------------------------------------------------------------------

    def name(self, replica: Replica) -> str:
        """The machine of a replica."""
        return self._where.get(replica, self.home)

    def of(self, replica: Replica) -> MachineLives:
        """The same, as a Machine."""
        return self.machines[self.name(replica)]

    def gang(self, replica: Replica) -> list[Replica]:
        """The processes of a replica's island, the leader first; itself, if it is alone."""
        first = leader(replica)
        count = self._processes.get(first.slot, 1) if leads_island(first) else 1
        return [first, *(follower(first, number) for number in range(1, count))]

    @property
    def islands_max(self) -> int:
        """The number of slots, of which each is for one island."""
        return self.slots_max.get(LEARNER, 0)

    @property
    def processes(self) -> tuple[int, ...]:
        """The number of processes of each learner's island, by slot; of slots beyond the end, one."""
        slots = range(1 + max(self._processes, default=-1))
        return tuple(self._processes.get(slot, 1) for slot in slots)

    @property
    def gangs(self) -> list[list[Replica]]:
        """The islands of several processes that live and end together."""
        gangs = [self.gang(island_in(slot)) for slot in self._processes if slot not in self._elastic]
        return [gang for gang in gangs if len(gang) > 1]

    @property
    def elastic(self) -> dict[Replica, tuple[int, ...]]:
        """Elastic islands, by their leaders: the numbers of processes that may train together."""
        return {island_in(slot): sizes for slot, sizes in self._elastic.items()}

    def may_have(self, name: str, replica: Replica) -> bool:
        """Whether a life of a replica may be on a machine: because that is its place, or offers its role."""
        if replica.slot >= self.slots_max.get(replica.role, 0):
            return False
        offered = self._home_offers if name == self.home else self._offers.get(name, ())
        return name == self.name(replica) or (not takes_island(replica) and is_offered(replica, offered))

    def accuser(self, replica: Replica) -> str:
        """The party whose word the word of a host is: the home's, where the home has placed it.

        Whoever placed a syncer or a recorder on a machine trusts it with the model; and learners would wait for a round
        whose vote it refuses.
        """
        is_entrusted = not takes_island(replica)
        return self.home if is_entrusted else self.parties.of(self.name(replica)).name

    def may_condemn(self, accusers: Collection[str], machine: str) -> bool:
        """Whether these parties together may have a host on a machine ended."""
        training = {self.name(each) for each in self.learners}
        return self.parties.may_condemn(accusers, machine, self.parties.named({*self.others, *training}))

    @property
    def is_of_one_party(self) -> bool:
        """Whether all learners are of one party, though the run has several machines."""
        parties = self.parties.named(map(self.name, self.learners))
        return len(parties) == 1 and len(self.machines) > 1

    def speak_for_all(self, learners: Iterable[Replica]) -> bool:
        """Whether what these learners met may be taken for what all do."""
        return self.parties.speak_for(map(self.name, learners), map(self.name, self.learners))

    def together(self, replica: Replica) -> list[Replica]:
        """The replicas that begin and end with one: its gang, unless that is elastic."""
        is_elastic = takes_island(replica) and replica.slot in self._elastic
        return [replica] if is_elastic else self.gang(replica)

    def lead(self, replica: Replica) -> Replica:
        """The replica that counts lives for this one: its leader, where both live and end together."""
        return self.together(replica)[0]

    @property
    def others(self) -> list[str]:
        """The machines that take part, apart from home."""
        return [name for name, machine in self.machines.items() if name != self.home and not machine.is_away]

    @property
    def away(self) -> tuple[str, ...]:
        """The machines that no longer take part."""
        return tuple(name for name, machine in self.machines.items() if machine.is_away)

    @property
    def is_idle(self) -> bool:
        """Whether no life is tracked."""
        return not any(machine.tracked for machine in self.machines.values())

    def is_tracked(self, replica: Replica) -> bool:
        return any(replica in machine.tracked for machine in self.machines.values())

    def is_retired(self, replica: Replica) -> bool:
        """Whether a replica has no next life; an island is retired as a whole."""
        return leader(replica) in self.retired or replica in self.retired

    def is_expected(self, replica: Replica) -> bool:
        return not self.is_retired(replica) and not self.of(replica).is_away

    def is_spare(self, replica: Replica) -> bool:
        """Whether the run can go on without a replica; a follower of an elastic island is always spare."""
        if gang_number(replica):
            return True
        alike = [each for each in self.replicas if each.role == replica.role]
        left = [each for each in alike if each not in self.retired or self.may_return(each)]
        return len(left) - 1 >= self._least.get(replica.role, 1)

    def may_return(self, replica: Replica) -> bool:
        """Whether a learner's machine has left and may come back, as one does that had notice: the run awaits it.

        Not a loop of a user's: one that has left may have come to its end.
        """
        is_left = self.retired.get(replica) == "left" and self.of(replica).is_away
        return is_left and not self.user.has_guests and replica.role not in self.user.scripts

    def needed(self) -> list[Replica]:
        """The required replicas on machines that are heard, except learners, which wait for their machines."""
        return [
            replica
            for replica in self.replicas
            if not takes_island(replica)
            and self.is_expected(replica)
            and not self.is_spare(replica)
            and (self.name(replica) == self.home or not self.of(replica).is_silent)
        ]

    @property
    def has_learners(self) -> bool:
        """Whether some learner is not retired, or the run has none at all."""
        learners = [each for each in self.replicas if leads_island(each)]
        return not learners or any(each not in self.retired for each in learners)

    @property
    def learners(self) -> list[Replica]:
        return [each for each in self.replicas if leads_island(each) and self.is_expected(each)]

    def learners_on(self, name: str) -> list[Replica]:
        """The processes of learners on a machine."""
        return [each for each in self.replicas if takes_island(each) and self.name(each) == name]

    def taken_on(self, name: str) -> list[Replica]:
        """Those whose slots are not over."""
        return [each for each in self.learners_on(name) if not self.is_retired(each)]

    def wanted(self) -> dict[str, tuple[Wanted, ...]]:
        """The lives that each machine should have."""
        return {name: machine.wanted() for name, machine in self.machines.items()}

    # -- changes -------------------------------------------------------------------------------------------------------

    def know(self, replicas: Iterable[Replica]) -> None:
        """Add replicas that a former daemon knew."""
        added = sorted({*self._where, *replicas} - set(self.replicas))
        self.replicas += added
        for replica in added:
            if number := gang_number(replica):  # Of an island that joined: the cast has those that were listed.
                self._processes[replica.slot] = max(number + 1, self._processes.get(replica.slot, 1))
                self.slots_max[replica.role] = self.islands_max

    def place(self, replica: Replica, name: str) -> None:
        """Put a replica on a machine."""
        self.machines.setdefault(name, MachineLives(name))
        self._where[replica] = name

    def place_joined(self, replica: Replica, name: str) -> None:
        """Put a replica that joined on its machine, if this is not known yet."""
        if replica not in self.replicas and replica.slot < self.slots_max.get(leader(replica).role, 0):
            self.know([replica])
            self.place(replica, name)

    def join(self, name: str, islands: int) -> list[Replica]:
        """Admit a machine, new or back again, with learners in the slots that it had, or the next free ones; returns
        these, as many as its party may have.

        Once every slot was taken, those of machines that no longer take part are free again, the longest free first.
        Where not all learners train alike (`RunRoles.period`), the next slot is of the kind with the fewest.
        """
        islands = self._within_bound(name, islands)
        slots = self.left_by(name)[:islands]
        known = {replica.slot for replica in self.replicas if leads_island(replica)}
        free = [island_in(slot) for slot in range(self.islands_max) if slot not in known]
        free += [each for each in self.retired if self._is_free(each) and each not in slots]
        hands = [0] * self._period
        there = {slot for slot in known if not self.is_retired(island_in(slot))}
        for slot in there | {each.slot for each in slots}:
            hands[slot % self._period] += 1
        while free and len(slots) < islands:
            taken = min(free, key=lambda each: hands[each.slot % self._period])
            hands[taken.slot % self._period] += 1
            free.remove(taken)
            slots.append(taken)
        for replica in slots:
            self.retired.pop(replica, None)
        machine = self.machines.setdefault(name, MachineLives(name))
        machine.is_away = False
        machine.heard()
        for replica in slots:
            self.place(replica, name)
        self.know(slots)
        return slots

    def _within_bound(self, name: str, islands: int) -> int:
        """How many islands a machine may bring, as its party's others have slots already."""
        party = self.parties.of(name)
        if party.slots is None:
            return islands
        elsewhere = [self.name(each) for each in self.learners if self.name(each) != name]
        taken = sum(self.parties.of(machine).name == party.name for machine in elsewhere)
        return max(0, min(islands, party.slots - taken))

    def join_island(self, names: Sequence[str]) -> list[Replica]:
        """Admit machines, new or back again, that are one island together, the leader's first; returns its processes.

        It gets the slot that the same machines left, or the next free one or, once every slot was taken, one that
        another island of as many processes left. None without one, or where its party has all that it may have: then no
        machine is admitted.
        """
        if not self._within_bound(names[0], 1):
            return []
        slot = 1 + max((replica.slot for replica in self.replicas if leads_island(replica)), default=-1)
        left = [each for each, how in self.retired.items() if how in get_args(Taken)]
        alike = [each for each in left if len(self.gang(each)) == len(names)]
        own = [each for each in alike if {self.name(process) for process in self.gang(each)} == set(names)]
        if again := own or ([] if slot < self.islands_max else alike):
            del self.retired[again[0]]
            slot = again[0].slot
        elif slot >= self.islands_max:
            return []
        first = island_in(slot)
        gang = [first, *(follower(first, number) for number in range(1, len(names)))]
        for replica, name in zip(gang, names, strict=True):
            machine = self.machines.setdefault(name, MachineLives(name))
            machine.is_away = False
            machine.heard()
            self.place(replica, name)
        self.know(gang)
        return gang

    def left_by(self, name: str) -> list[Replica]:
        """The slots of a machine that took no part any more, as long as no other has them."""
        return [each for each in self.retired if self.name(each) == name and self._is_free(each)]

    def returning(self, names: Iterable[str]) -> list[Replica]:
        """The learners that may return with machines that have left; none where the others of an island's are away."""
        back = {*names}
        left = [each for each in self.retired if self.may_return(each)]
        return [each for each in left if back >= {self.name(process) for process in self.gang(each)}]

    def _is_free(self, replica: Replica) -> bool:
        """Whether a slot is free because its machine takes no part any more."""
        return self.retired.get(replica) in get_args(Taken) and len(self.gang(replica)) == 1

    def take_away(self, name: str, how: Taken) -> None:
        """Remove a machine; its learners are retired."""
        self.machines[name].is_away = True
        for replica in self.learners_on(name):
            self.retired.setdefault(self.lead(replica), how)

    def relocate(self, replica: Replica) -> bool:
        """Move a replica from a lost or removed machine to one that offers its role; returns whether it has a place."""
        where = self.of(replica)
        if where.is_reached:
            return True
        if takes_island(replica):
            return not self.is_retired(replica)
        names = [name for name in self.others if is_offered(replica, self._offers.get(name, ()))]
        able = [name for name in names if self.machines[name].is_reached]
        if is_offered(replica, self._home_offers):
            able.append(self.home)
        if able:
            load = {name: sum(self.name(other) == name for other in self.replicas) for name in able}
            self._where[replica] = min(able, key=lambda name: load[name])
        return bool(able) or not where.is_away

    def beat(self) -> list[MachineLives]:
        """Count a beat; returns the machines that are lost from now on: none of a group that is silent as a whole.

        Such a group is cut off and goes on alone: its learners have a leader of their own, and it is awaited.
        """
        others = [each for each in self.machines.values() if each.name != self.home and not each.is_away]
        groups = {name: self._groups_on(name) for name in self.machines}
        # With this beat.
        present = [name for name, each in self.machines.items() if each.silent_beats + 1 < LOST_BEATS]
        heard = set[int]().union(*(groups[name] for name in present))
        alone = {name for name, own in groups.items() if own and own.isdisjoint(heard)}
        return [each for each in others if each.beat(is_awaited=each.name in alone)]

    def _groups_on(self, name: str) -> set[int]:
        """The groups of the hosts whose place a machine is; none in a run without groups."""
        groups = self._groups or sum(each.role == self.group_role for each in self.replicas)
        if not groups:
            return set()
        own = [leader(each) for each in self.replicas if self.name(each) == name and not self.is_retired(each)]
        return {each.slot % groups for each in own if leads_island(each) or each.role == self.group_role}

    # -- the journal ---------------------------------------------------------------------------------------------------

    def recall(
        self,
        places: Iterable[tuple[str, str]],
        away: Iterable[str],
        retired: Iterable[tuple[str, str]],
        parties: Iterable[tuple[str, str, int | None]] = (),
    ) -> None:
        """Load what a former daemon recorded."""
        self.parties.know({machine: Party(party, slots) for machine, party, slots in parties})
        for text, name in places:
            replica = Replica.parse(text)
            if name != self.former or takes_island(replica):  # The rest of it is this home's now.
                self.place(replica, name)
        for name in away:
            self.machines.setdefault(name, MachineLives(name)).is_away = True
        self.retired = {Replica.parse(text): how for text, how in retired}

    def placed(self) -> tuple[tuple[str, str], ...]:
        """(replica, machine) of those that are not at home, or were moved there."""
        return tuple((str(replica), name) for replica, name in sorted(self._where.items()))

    def check(self) -> None:
        """Raise InvariantError unless every replica has at most one life, and only on machines that take part."""
        machine_of: dict[Replica, str] = {}
        for name, machine in self.machines.items():
            about = (CoreSubject("machine", name),)
            _demand(machine.condemned <= set(machine.tracked), about, "{}: condemned, and not tracked", name)
            _demand(machine.fresh <= set(machine.tracked), about, "{}: fresh, and not tracked", name)
            _demand(not machine.is_away or not machine.tracked, about, "{} takes no part, and has lives", name)
            for replica in machine.tracked:
                about, there = (CoreSubject("replica", replica),), machine_of.setdefault(replica, name)
                _demand(there == name, about, "{} is on {} and on {}", replica, name, there)


_demand: Final = partial(demand, "supervision")
