"""Homes of one run, a term after the other: which one a station follows, and what becomes of the others."""

from __future__ import annotations

from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import (
    DAEMON,
    EndAsked,
    HomeBegan,
    Journal,
    Places,
    ReportCame,
    SendOrders,
    TurnedAway,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import HomeTaken, NumbersLost, Ordered, Superseded, SupersededHome
from isthmus.runtime.supervision.lives import NUMBERS_OF_TERM
from isthmus.runtime.supervision.messages import LONELY_BEATS, Orders, Report, Stamp
from isthmus.runtime.supervision.station_events import (
    FollowHome,
    HomeCalled,
    HostSpoke,
    KillProcess,
    LivesNoted,
    NoteLives,
    OrdersCame,
    ProcessStarted,
    SendReport,
    StationBeat,
    StationBegan,
    TurnAway,
)
from tests.runtime.supervision.station_stories import StationStory
from tests.runtime.supervision.supervision_stories import (
    CAST,
    HomeStory,
    gone,
    journal,
    life,
    lives,
    said,
    seen,
    wanted,
)

ON_ALPHA = StationBegan(home="alpha", term=1)
LEARNER = life("learner/0")
FROM_ALPHA = OrdersCame(Orders(wanted("learner/0"), stamp=Stamp(1, 1, 1), home="alpha"))
NEXT = Places(
    home="beta",
    machines={Replica("learner", 0): "alpha", Replica("learner", 1): "gamma"},
    offers={"alpha": ("syncer",), "gamma": ()},
    home_offers=("syncer",),
    term=2,
    former="alpha",
)


def serving(lonely_beats: int = LONELY_BEATS) -> StationStory:
    """A station of alpha's whose learner lives."""
    story = StationStory(began=ON_ALPHA, lonely_beats=lonely_beats)
    story.tell(FROM_ALPHA, LivesNoted((LEARNER,)), ProcessStarted(LEARNER, 4711))
    story.tell(HostSpoke(LEARNER, 4711, said("learner/0")))
    return story


def test_a_station_follows_the_home_of_a_later_term_and_its_hosts_go_on() -> None:
    story = serving()
    told = story.tell(HomeCalled("beta", 2))
    assert told[0] == FollowHome("beta", 2)
    assert isinstance(told[1], SendReport)
    assert [each.member for each in told[1].report.lives] == [LEARNER]
    assert story.tell(HomeCalled("beta", 2)) == []
    kept = OrdersCame(Orders(wanted("learner/0~"), stamp=Stamp(2, 1, 1), home="beta"))
    assert not [each for each in story.tell(kept) if isinstance(each, KillProcess | FollowHome)]


def test_orders_of_a_later_term_are_followed_without_a_call() -> None:
    story = serving()
    told = story.tell(OrdersCame(Orders((), stamp=Stamp(2, 1, 1), home="beta")))
    assert told[0] == FollowHome("beta", 2)
    assert KillProcess(LEARNER) in told


def test_a_former_home_is_turned_away_whatever_it_orders() -> None:
    story = serving()
    story.tell(HomeCalled("beta", 2))
    away = [TurnAway("alpha", "beta", 2)]
    assert story.tell(HomeCalled("alpha", 1)) == away
    assert story.tell(OrdersCame(Orders((), stamp=Stamp(1, 9, 9), home="alpha"))) == away
    assert story.tell(OrdersCame(Orders(is_over=True, stamp=Stamp(1), home="alpha"))) == away
    assert story.core.refused["orders of a former home"] == 2
    assert story.tell(HomeCalled("gamma", 2)) == [TurnAway("gamma", "beta", 2)]  # Of two of one term, the first.


def test_the_next_daemon_of_a_machine_follows_whom_the_one_before_has_noted() -> None:
    story = StationStory(began=StationBegan(home="beta", term=2))
    assert story.tell(HomeCalled("alpha", 1)) == [TurnAway("alpha", "beta", 2)]


def test_a_station_at_home_tells_its_home_of_a_later_one_and_follows_no_other() -> None:
    story = StationStory(at_home=True, began=ON_ALPHA)
    assert story.tell(HomeCalled("beta", 2)) == [TurnAway("alpha", "beta", 2)]
    assert story.tell(HomeCalled("beta", 1)) == [TurnAway("beta", "alpha", 1)]


def test_hosts_go_on_without_a_home_for_as_long_as_the_run_says() -> None:
    for beats in (10, LONELY_BEATS):
        story = serving(lonely_beats=beats)
        for _ in range(beats):
            assert not [each for each in story.tell(StationBeat()) if isinstance(each, KillProcess)]
        story.tell(HomeCalled("beta", 2))  # Then it counts anew.
        assert not [each for each in story.tell(StationBeat()) if isinstance(each, KillProcess)]
        for _ in range(beats - 1):
            story.tell(StationBeat())
        assert KillProcess(LEARNER) in story.tell(StationBeat())


def test_a_home_of_a_later_term_believes_stations_and_gives_numbers_of_its_own() -> None:
    known = Journal(machines=(("learner/1", "gamma"), ("syncer/0", "alpha")), epoch=7, term=1)
    story = HomeStory(
        CAST, NEXT, began=HomeBegan(lives("learner/0 learner/1 syncer/0 recorder/0"), known, is_lost=True)
    )
    assert WriteIncident(DAEMON, HomeTaken("beta", 2, "alpha")) in story.begun
    assert not [each for each in story.begun if isinstance(each, SendOrders | NoteLives)]
    story.hears(1, "gamma", seen("learner/1#3"))
    told = story.fire(11)
    numbers = [member for each in told if isinstance(each, NoteLives) for member in each.members]
    assert {str(each) for each in numbers} == {
        f"{name}#{NUMBERS_OF_TERM + 1}" for name in ("learner/0", "syncer/0", "recorder/0")
    }
    given = [each for each in told if isinstance(each, SendOrders)][-1]
    assert (given.stamp.term, given.home) == (2, "beta")
    assert [str(each.member) for each in given.wanted["gamma"]] == ["learner/1#3"]
    assert [each.member.replica.role for each in given.wanted["beta"]] == ["recorder", "syncer"]  # And none of alpha's.
    assert not [each for each in told if isinstance(each, WriteIncident) and isinstance(each.incident, NumbersLost)]


def test_the_learners_of_a_former_home_wait_for_their_machine() -> None:
    story = HomeStory(CAST, NEXT, began=HomeBegan((), None, is_lost=True))
    story.fire(11)
    assert story.core.fleet.machines["alpha"].has(life(f"learner/0#{NUMBERS_OF_TERM + 1}"))
    assert story.core.fleet.machines["alpha"].is_lost
    story.at(12, ReportCame("alpha", Report()))
    assert not story.core.fleet.machines["alpha"].is_lost


def test_a_home_that_is_told_of_a_later_one_ends_its_hosts_and_says_so() -> None:
    story = HomeStory()
    story.serve(1)
    told = story.does(2, TurnedAway("beta", 2))
    why = SupersededHome("beta", 2, 1)
    assert told[0] == journal(outcome="failed", failure=why)
    assert WriteIncident(DAEMON, Superseded("beta", 2, 1)) in told
    assert story.core.failure == why
    given = next(each for each in told if isinstance(each, SendOrders))
    assert all(each.is_condemned for each in given.wanted["alpha"])
    assert story.does(3, TurnedAway("beta", 2)) == []


def test_a_home_whose_run_was_over_already_gives_way_once() -> None:
    """Or every machine that turns its orders away had it give orders to all of them: each time so many more."""
    story = HomeStory()
    story.serve(1)
    story.does(2, EndAsked(Ordered("somebody said so")))
    told = story.does(3, TurnedAway("beta", 2))
    assert WriteIncident(DAEMON, Superseded("beta", 2, 1)) in told
    assert story.core.failure == Ordered("somebody said so")
    assert story.does(3, TurnedAway("beta", 2)) == []


def test_a_home_does_not_give_way_to_itself_nor_to_a_former_one() -> None:
    story = HomeStory(CAST, NEXT)
    story.serve(1)
    for by, term in (("beta", 5), ("alpha", 1)):
        assert story.does(2, TurnedAway(by, term)) == []
    assert story.core.outcome == "running"


def test_the_next_daemon_of_a_home_that_gave_way_ends_what_is_left() -> None:
    noted = Journal(outcome="failed", failure=SupersededHome("beta", 2, 1), epoch=3, term=1)
    story = HomeStory(began=HomeBegan(lives("learner/0 learner/1 syncer/0 recorder/0"), noted))
    assert story.core.is_ending
    assert not [each for each in (*story.begun, *story.fire(30)) if isinstance(each, NoteLives)]
    story.hears(31, "alpha", gone("learner/0"), gone("recorder/0"))
    story.hears(31, "beta", gone("learner/1"), gone("syncer/0"))
    assert story.core.is_finished


def test_the_terms_of_stamps_come_first() -> None:
    assert Stamp(2, 1, 1) > Stamp(1, 9, 999) > Stamp(1, 9, 998)
    story = HomeStory(CAST, NEXT)
    story.serve(1)
    before = story.stamp
    story.hears(2, "gamma")
    story.at(2, ReportCame("gamma", Report(obeyed=Stamp(1, 99, 1))))
    assert story.core.term == 2
    story.beat(3)
    assert story.stamp.epoch == before.epoch  # Orders of a former home say nothing of this one's.
