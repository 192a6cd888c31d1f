"""The busy time of one host, and the time in which the user's own code has a thread of it.

Decides what counts as a firing that makes no progress, and when a host is *away*. User's code runs in two places: the
loop of a user, between two calls of ours, and the node that makes the batches. Neither has a usual duration: between
two steps a loop evaluates, and at the end of an epoch a loader starts its workers. So such a firing is never called too
long, and a host whose steps wait for it longer than for any step is away: its measured times, and what follows from
them, leave that out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.graph.body import trait
from isthmus.runtime.graph.plans import Plan

AWAY_STEPS: Final = 5
"""A host is away once the user's code has lasted as long as so many of its usual steps: the code between two calls of a
loop includes the step itself."""
AWAY_MIN: Final = seconds(3)
"""No host is away before: steps of milliseconds have pauses of a second or two, for a page that is read or a core."""


class Firings(NamedTuple):
    """`busy`: the time in which any firing was under way so far; `oldest`: the age of the oldest one now that is not in
    the user's code, of `node`; 0 and '' without any. `outside`: how long the user's code has kept this host from
    its next step, 0 while it does not, and whether it is therefore `is_away`."""

    busy: Duration
    oldest: Duration
    node: str
    outside: Duration = Duration(0)
    is_away: bool = False


def user_nodes(plan: Plan) -> dict[str, frozenset[str]]:
    """The nodes of a host that call the user's code, with the nodes that wait for their items."""
    names = {node.index: node.name for node in plan.nodes}
    return {
        node.name: frozenset(
            names[edge.target]
            for edge in plan.edges.values()
            if edge.source == node.index and edge.route == "local" and edge.target in names
        )
        for node in plan.nodes
        if trait(node.body, "calls_user")
    }


class Busy:
    """The firings of one host. Any thread may report them, and query.

    `users` are nodes whose firings are the user's code, with those that wait for them: while one of these fires, the
    host makes a step. `usual_step` returns the usual duration of a step, 0 where none is known. `was_away` is called
    with each absence that has ended, and `away` is the sum of them: of each the time but that of one step, which the
    user's code has made in it.
    """

    def __init__(
        self,
        users: Mapping[str, frozenset[str]] = MappingProxyType({}),
        *,
        usual_step: Callable[[], Duration] = lambda: Duration(0),
        was_away: Callable[[Instant, Instant], None] = lambda since, until: None,
    ) -> None:
        self.away = Duration(0)
        self._lock = threading.RLock()  # Of a lent node its user's thread reports, of others those of the nodes.
        self._users, self._usual_step, self._was_away = users, usual_step, was_away
        self._begun: dict[str, Instant] = {}
        self._before = 0
        self._since = Instant(0)
        self._left: dict[str, Instant] = {}
        """Node -> since when the user's code has its thread."""

    def began(self, node: str, now: Instant) -> None:
        """A firing of a node begins."""
        with self._lock:
            if not self._begun:
                self._since = now
            if self._left:  # Before it counts as firing: its step may have waited for the user's code until now.
                for user in self._awaited_by(node):
                    self._count(user, now)
            self._begun[node] = now
            if node in self._users:
                self._left[node] = now

    def ended(self, node: str, now: Instant) -> None:
        """The firing of a node has ended."""
        with self._lock:
            self.back(node, now)
            for user in self._awaited_by(node):  # The next step waits for the user's code from now on.
                self._left[user] = now
            if self._begun.pop(node, None) is not None and not self._begun:
                self._before += now - self._since

    def left(self, node: str, now: Instant) -> None:
        """The user's code has the thread of a firing from now on."""
        with self._lock:
            self._left[node] = now

    def back(self, node: str, now: Instant) -> None:
        """The user's code has given the thread of a firing back."""
        with self._lock:
            if node in self._left:
                self._count(node, now)
                del self._left[node]

    def suspended(self, duration: Duration, now: Instant) -> None:
        """This process did not run for `duration` up to `now`: that is no time in which a firing made no progress."""
        with self._lock:
            for begun in (self._begun, self._left):
                for node, since in begun.items():
                    begun[node] = min(now, Instant(since + duration))
            self._since = min(now, Instant(self._since + duration))

    def firings(self, now: Instant) -> Firings:
        """The firings under way at `now`."""
        with self._lock:
            outside = max((now - since for node, since in self._left.items() if self._keeps(node)), default=0)
            under_way = sorted((since, node) for node, since in self._begun.items() if node not in self._left)
            busy = Duration(self._before + (max(0, now - self._since) if self._begun else 0))
        outside_now = Duration(max(0, outside))
        oldest, node = (Duration(max(0, now - under_way[0][0])), under_way[0][1]) if under_way else (Duration(0), "")
        return Firings(busy, oldest, node, outside_now, self._is_away(outside_now))

    def _awaited_by(self, node: str) -> list[str]:
        """The nodes in the user's code for whose items a node waits between its firings."""
        return [user for user in self._left if node in self._users.get(user, ())]

    def _keeps(self, user: str) -> bool:
        """Whether the next step waits for the user's code in this node: nothing that takes its items fires."""
        return not any(node in self._begun for node in self._users.get(user, ()))

    def _is_away(self, outside: Duration) -> bool:
        return outside >= AWAY_MIN and outside >= AWAY_STEPS * self._usual_step()

    def _count(self, user: str, now: Instant) -> None:
        """Count an absence, if there was one: the user's code, or the wait for it, ends."""
        since = self._left[user]
        outside = Duration(max(0, now - since))
        if self._keeps(user) and self._is_away(outside):
            self.away = Duration(self.away + outside - min(outside, self._usual_step()))
            self._was_away(since, now)
