"""A home and three stations whose daemons, disks, processes and messages fail at any point, and what must come of it.

No life becomes a process twice, and every core stays sound. Once nothing fails any more, every replica that the run
expects has one process, every host is told of all of them, and after the end none is left.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isthmus.runtime.clock import milliseconds
from isthmus.runtime.ids import Replica, gang_number
from isthmus.runtime.supervision.home_events import (
    EndAsked,
    MachineJoined,
    MachineTakenAway,
    Places,
    RunRoles,
    StopAsked,
)
from isthmus.runtime.supervision.incidents import Exited, Ordered
from isthmus.runtime.supervision.rosters import MetRoles
from tests.effort import examples
from tests.runtime.supervision.supervised_world import Computer, World
from tests.runtime.supervision.supervision_stories import KILLED

CAST: Final = RunRoles(roles={"learner": 3, "syncer": 1, "recorder": 1}, slots_max={"learner": 5}, least={"learner": 1})
PLACES: Final = Places(
    home="alpha",
    machines={Replica("learner", 1): "beta", Replica("learner", 2): "gamma", Replica("syncer", 0): "beta"},
    offers={"beta": ("syncer",), "gamma": ("syncer",)},
    home_offers=("syncer",),
)
HEALED_BEATS: Final = 200
"""A machine is lost after 40, a process that says nothing is replaced after 120; nothing takes longer."""
ENDED_BEATS: Final = 60
"""Hosts have ten seconds to end, then five more; a new daemon that is unsure waits for eleven."""
NAMES: Final = st.sampled_from(("alpha", "beta", "gamma"))
OTHERS: Final = st.sampled_from(("beta", "gamma"))
STEPS: Final = st.sampled_from(
    ("fork", "speak", "see ends", "beat", "report", "orders", "report again", "orders again", "lose report")
)
REQUESTS: Final = ("stop", "over", "end", "leave", "join", *20 * ("nothing",))
"""Most of what comes to a run's end would come too early to see anything of it."""


class Runs(RuleBasedStateMachine):
    """One run, from when its daemons begin."""

    cast, places = CAST, PLACES

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.cast, self.places)
        self.lost: set[str] = set()

    @initialize(beats=st.integers(0, 6))
    def begins(self, beats: int) -> None:
        self.world.live(beats)

    # -- what goes well ------------------------------------------------------------------------------------------------

    @rule(beats=st.integers(1, 12))
    def all_goes_well(self, beats: int) -> None:
        for computer in self.world.computers.values():
            computer.start_daemon()
        self.world.live(beats)

    @rule(name=OTHERS, beats=st.integers(1, 60), number=st.none() | st.integers(0, 3))
    def machine_is_apart(self, name: str, beats: int, number: int | None) -> None:
        if number is not None:
            self.host_dies(name, number, KILLED)
        self.world.live(beats, without=name)

    @rule(name=NAMES, steps=st.lists(st.tuples(STEPS, st.integers(0, 3)), min_size=1, max_size=8))
    def little_happens(self, name: str, steps: list[tuple[str, int]]) -> None:
        for what, number in steps:
            self.step(self.world.computers[name], what, number)

    @rule(ms=st.sampled_from([1, 600, 5_000, 12_000]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(milliseconds(ms))

    # -- what does not -------------------------------------------------------------------------------------------------

    @rule(name=NAMES, number=st.integers(0, 3), end=st.sampled_from([KILLED, Exited(1)]))
    def host_dies(self, name: str, number: int, end: Exited) -> None:
        computer = self.world.computers[name]
        if computer.processes:
            computer.end_process(chosen(computer, number), end)

    @rule(name=NAMES, number=st.integers(0, 3), is_stopped=st.booleans())
    def host_stops(self, name: str, number: int, is_stopped: bool) -> None:
        computer = self.world.computers[name]
        if computer.processes:
            computer.processes[chosen(computer, number)].is_stopped = is_stopped

    @rule(name=NAMES, number=st.integers(0, 3), count=st.integers(1, 9))
    def host_misses_messages(self, name: str, number: int, count: int) -> None:
        computer = self.world.computers[name]
        if computer.processes:
            computer.processes[chosen(computer, number)].misses = count

    @rule(name=NAMES, commands=st.integers(0, 12))
    def daemon_is_killed_soon(self, name: str, commands: int) -> None:
        daemon = self.world.computers[name].daemon
        if daemon is not None:
            daemon.commands_left = commands

    @rule(name=NAMES)
    def daemon_comes_back(self, name: str) -> None:
        self.world.computers[name].start_daemon()

    @rule(name=NAMES)
    def ledger_is_lost(self, name: str) -> None:
        if name not in self.lost:
            self.lost.add(name)
            self.world.computers[name].lose_disk()

    @rule(name=NAMES, is_full=st.booleans())
    def disk_is_full(self, name: str, is_full: bool) -> None:
        self.world.computers[name].is_full = is_full

    # -- what is asked -------------------------------------------------------------------------------------------------

    @rule(request=st.sampled_from(REQUESTS), name=OTHERS)
    def somebody_asks(self, request: str, name: str) -> None:
        if request == "stop":
            self.world.tell_home(StopAsked())
        elif request == "end":
            self.world.tell_home(EndAsked(Ordered("enough")))
        elif request == "over":
            self.world.is_over = True
        elif request == "leave":
            self.world.tell_home(MachineTakenAway(name, "left"))
        elif request == "join" and not self.world.computers[name].is_closed:
            self.world.tell_home(MachineJoined(name, 1))

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def is_finished_once_at_most(self) -> None:
        daemon = self.world.home.daemon
        assert daemon is None or daemon.finished <= 1

    def teardown(self) -> None:
        world = self.world
        world.heal()
        world.live(HEALED_BEATS)
        assert world.home.daemon is not None
        home = world.home.daemon.home
        if not home.is_ending and not home.is_stopping:
            closed = {name for name, computer in world.computers.items() if computer.is_closed}
            expected = [each for each in home.fleet.replicas if not home.fleet.is_retired(each)]
            expected = [each for each in expected if home.fleet.name(each) not in closed]
            assert world.living() == sorted(home.lives[each].member for each in expected)
            for life in world.living():
                together = home.fleet.together(life.replica)
                gang = [each.incarnation for each in world.living() if each.replica in together]
                assert gang == [life.incarnation] * len(together)
            leaders = [each for each in world.living() if not gang_number(each.replica)]
            for process in (process for each in world.computers.values() for process in each.processes.values()):
                met = [each for each in leaders if process.meets is None or is_among(each.replica, process.meets)]
                rows = sorted((str(each.replica), each.incarnation) for each in met)
                assert sorted(row[:2] for row in process.roster.rows()) == rows
        world.is_over = True
        world.live(ENDED_BEATS)
        assert world.living() == []
        assert home.is_finished
        assert world.home.daemon.finished == 1

    def step(self, computer: Computer, what: str, number: int) -> None:
        """The least that can happen on a computer."""
        if what == "fork":
            computer.fork()
        elif what == "speak" and computer.processes:
            computer.speak(chosen(computer, number))
        elif what == "see ends":
            computer.see_ends()
        elif what == "beat":
            computer.beat()
        elif "report" in what:
            self.world.deliver_report(computer.name, is_lost="lose" in what, is_kept="again" in what)
        elif "orders" in what:
            self.world.deliver_orders(computer.name, is_kept="again" in what)


def chosen(computer: Computer, number: int) -> int:
    """The pid of a process."""
    return sorted(computer.processes)[number % len(computer.processes)]


def is_among(replica: Replica, met: MetRoles) -> bool:
    """Whether a host that meets these is told of a replica."""
    return any(each.holds(replica) for each in met)


class Gangs(Runs):
    """The same, where the islands of two learners are of several processes, on several machines."""

    cast = msgspec.structs.replace(CAST, processes=(2, 1, 3))
    places = msgspec.structs.replace(
        PLACES,
        machines={
            **PLACES.machines,
            **{
                Replica.parse(each): name
                for each, name in (("learner.1/0", "gamma"), ("learner.1/2", "gamma"), ("learner.2/2", "beta"))
            },
        },
    )


class Elastic(Gangs):
    """The same, where these islands go on without some of their processes."""

    cast = msgspec.structs.replace(Gangs.cast, elastic=((1, 2), (), (2, 3)))


Runs.TestCase.settings = settings(max_examples=examples(66, least=10), stateful_step_count=40)
TestRuns = Runs.TestCase
Gangs.TestCase.settings = settings(max_examples=examples(33, least=5), stateful_step_count=25)
TestGangs = pytest.mark.long(Gangs.TestCase)
Elastic.TestCase.settings = Gangs.TestCase.settings
TestElastic = pytest.mark.long(Elastic.TestCase)
