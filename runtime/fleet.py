"""All hosts of a run, wherever they are: on this machine by its supervisor, on the others by a post for each.

It decides on which machine the next life of a replica is started: where the replica was placed, and, once that machine
is lost or has been taken away, for a role that others offer on one of those. A learner belongs to the islands of its
machine, and waits for it. Where each replica is, is noted in the ledger for the next daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from isthmus.runtime.control import Message, decode, encode
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.ledger import Ledger
from isthmus.runtime.lives import Life
from isthmus.runtime.post import Owner, Post
from isthmus.runtime.presence import Excuse
from isthmus.runtime.supervisor import Supervisor
from isthmus.runtime.topology import LEARNER


@final
@dataclass(frozen=True, slots=True)
class Places:
    """Where a run is: on machine `home`, with these replicas elsewhere; `offers` gives, for each other machine, the
    roles that may be moved there; `send` takes a message to a machine; `keys` tells whose public keys are admitted."""

    home: str
    machines: Mapping[Replica, str] = field(default_factory=dict)
    offers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    home_offers: Sequence[str] = ()
    send: Callable[[str, Message], None] = lambda machine, message: None
    keys: Callable[[], Mapping[str, str]] = dict


class Fleet:
    """The hosts of one run. `machines` says where every replica is that is not at home; `away` which machines take part
    no more, `retired` which learners have gone with theirs, and how."""

    def __init__(self, supervisor: Supervisor, ledger: Ledger, owner: Owner, places: Places) -> None:
        self.lives = supervisor.lives
        self.away: set[str] = set()
        self.retired: dict[Replica, str] = {}
        self.machines: dict[Replica, str] = dict(places.machines)
        self._supervisor, self._ledger, self._owner, self._places = supervisor, ledger, owner, places
        self._offers = dict(places.offers)
        self._posts: dict[str, Post] = {}
        self._recall()
        for name in [*self._offers, *self.machines.values()]:
            self.add_post(name)

    def machine(self, replica: Replica) -> str:
        """Where a replica is."""
        return self.machines.get(replica, self._places.home)

    @property
    def others(self) -> list[str]:
        """The other machines that take part, but for those that were taken away."""
        return [name for name in self._posts if name not in self.away]

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, and none is being started."""
        return self._supervisor.is_idle and all(post.is_idle for post in self._posts.values())

    def keys(self) -> dict[str, str]:
        """The public keys of all machines that take part, by name; empty without keys."""
        mine = (self._places.home, *self.others)
        return {name: key for name, key in self._places.keys().items() if name in mine}

    def is_reached(self, name: str) -> bool:
        """Whether a machine is this one, or one that is heard of."""
        return name not in self._posts or not self._posts[name].is_lost

    def add_post(self, name: str) -> None:
        """Have a machine take part from now on."""
        if name not in self._posts and name != self._places.home:
            send = partial(self._places.send, name)
            self._posts[name] = Post(name, self.lives, self._owner, count=self._supervisor.count, send=send)

    def join(self, name: str, replicas: Sequence[Replica]) -> None:
        """Have a machine take part from now on, with replicas of its own; it may have been here before."""
        self.away.discard(name)
        self.add_post(name)
        self.machines |= dict.fromkeys(replicas, name)
        self._note()

    def take_away(self, name: str, how: str) -> None:
        """Have a machine take no part any more, because it was `how` ('expelled', say); its lives count as ended."""
        self.away.add(name)
        gone = [replica for replica, where in self.machines.items() if where == name and replica.role == LEARNER]
        self.retired |= {replica: how for replica in gone if replica not in self.retired}
        self._note()
        if name in self._posts:
            self._posts[name].order(over=True)
            self._posts[name].give_up(f"{how} with its machine {name}")

    def retire(self, replica: Replica, how: str) -> None:
        """A replica is not to be had back."""
        self.retired[replica] = how
        self._note()

    # -- lives ---------------------------------------------------------------------------------------------------------

    def adopt(self, replica: Replica) -> bool:
        """Take on the life that a daemon before this one has started, if it is there or its machine will tell."""
        post = self._posts.get(self.machine(replica))
        if post is None:
            return self._supervisor.adopt(replica)
        newest = self._ledger.last(replica)
        if newest and replica not in self.retired and self.machine(replica) not in self.away:
            post.start(Member(replica, newest))
        return bool(newest)

    def in_order(self, wanted: Sequence[Replica]) -> list[Replica]:
        """These are about to be started; the result is the order that loses least time."""
        here = [replica for replica in wanted if self.machine(replica) not in self._posts]
        return [replica for replica in wanted if replica not in here] + self._supervisor.prepare(here)

    def start(self, replica: Replica, endpoint: str) -> None:
        """Start the next life of a replica that has none; OSError if this machine has no room for it."""
        post = self._posts.get(self.machine(replica))
        if post is None:
            self._supervisor.start(replica, endpoint)
        elif replica not in self.lives and not post.is_starting(replica):
            post.start(Member(replica, self._ledger.next(replica)))

    def kill(self, life: Life) -> None:
        """Kill one, which ends it soon."""
        post = self._posts.get(self.machine(life.member.replica))
        if post is not None and life.watch is None:
            post.kill(life)
        elif life.watch is not None:
            self._supervisor.kill(life)

    def excuse(self, life: Life) -> tuple[Excuse, str] | None:
        """Why the silence of a life is not its own doing, if that is so, and in words that follow 'it is'."""
        machine = self.machine(life.member.replica)
        if life.watch is None and machine in self._posts and self._posts[machine].is_silent:
            return "unheard", f"unheard, because its machine {machine} does not answer"
        if not (life.is_stopped if life.watch is None else self._supervisor.is_stopped(life)):
            return None
        where = f" on {machine}" if life.watch is None else ""
        how = f"`kill -CONT {life.pid}`{where} lets it go on, `kill -KILL {life.pid}` has it replaced"
        return "stopped", f"stopped by a signal or a debugger; {how}"

    def delay(self, former: Life) -> float | None:
        """Seconds to wait before the next life of a replica; None if lives of it end again and again."""
        if not self.is_reached(self.machine(former.member.replica)):
            return 0.0  # It is not the program that is at fault.
        return self._supervisor.delay(former)

    def relocate(self, replica: Replica) -> bool:
        """Move a replica whose machine is lost or taken away to one that offers its role; whether it has a place."""
        where = self.machine(replica)
        if self.is_reached(where) and where not in self.away:
            return True
        if replica.role == LEARNER:
            return replica not in self.retired
        able = [name for name in self.others if replica.role in self._offers.get(name, ()) and self.is_reached(name)]
        if replica.role in self._places.home_offers:
            able.append(self._places.home)
        if able:
            load = {name: sum(self.machine(other) == name for other in self.machines) for name in able}
            self.machines[replica] = min(able, key=lambda name: load[name])
            self._note()
        return bool(able) or where not in self.away

    # -- the other machines --------------------------------------------------------------------------------------------

    def hear(self, machine: str, report: Mapping[str, Any]) -> None:
        """Take what an outpost says; KeyError, TypeError or ValueError for what none of ours says."""
        if machine not in self.away:
            self._posts[machine].hear(report)

    def order(self, **everybody: Any) -> None:
        """Tell the outposts which lives there are to be, and what all hosts are to know."""
        for name, post in self._posts.items():
            post.order(over=name in self.away, **everybody)

    def beat(self) -> None:
        """Note that time has passed."""
        for name, post in self._posts.items():
            if name not in self.away:
                post.beat()

    def condemn(self) -> None:
        """Want no life on the other machines any more, also none that has not been heard of."""
        for post in self._posts.values():
            post.condemn()

    def give_up(self) -> None:
        """Count every life on other machines as ended, whatever becomes of it there."""
        for post in self._posts.values():
            post.give_up(f"its machine {post.name} does not answer")

    def dismiss(self) -> None:
        """The outposts are needed no more."""
        for post in self._posts.values():
            post.order(over=True)

    # -- what the next daemon has to know ------------------------------------------------------------------------------

    def _note(self) -> None:
        machines = {str(replica): name for replica, name in self.machines.items()}
        retired = {str(replica): how for replica, how in self.retired.items()}
        told = {"machines": machines, "away": sorted(self.away), "retired": retired}
        self._ledger.note("fleet", encode({"type": "fleet", **told}))

    def _recall(self) -> None:
        noted = self._ledger.noted("fleet")
        if noted is not None:
            told = decode(noted)
            self.machines = {Replica.parse(text): str(name) for text, name in told["machines"].items()}
            self.away = set(told["away"])
            self.retired = {Replica.parse(text): str(how) for text, how in told["retired"].items()}
