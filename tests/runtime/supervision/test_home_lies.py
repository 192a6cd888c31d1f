"""The core of a home: what a machine that lies says costs its own hosts, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import COUNT_MAX, Party, Replica
from isthmus.runtime.supervision.home_events import (
    DAEMON,
    BadReportCame,
    HomeBeat,
    Places,
    ReportCame,
    RunRoles,
    SendOrders,
    WriteIncident,
)
from isthmus.runtime.supervision.incidents import BodyRaised, Condemned, ReportRefused, SameData
from isthmus.runtime.supervision.messages import Heartbeat, ItemRefusal, Over, Report, ReportFault, Seen, Stamp
from isthmus.runtime.supervision.watch import REFUSALS_MAX, REFUSED_EVERY
from tests.runtime.supervision.supervision_stories import (
    ANSWER,
    BOOM,
    FOUR_LEARNERS,
    UPDATE,
    HomeStory,
    endpoints,
    gone,
    life,
    said,
    seen,
)

PLACES: Final = Places(
    home="alpha",
    machines={Replica("learner", slot): name for slot, name in ((0, "beta"), (1, "beta"), (2, "gamma"), (3, "delta"))},
)
FAULT: Final = ReportFault("report.lives[0].pid", "`int` >= 0", "-1")


def began(
    cast: RunRoles = FOUR_LEARNERS, places: Places = PLACES, parties: Mapping[str, Party] = MappingProxyType({})
) -> HomeStory:
    story = HomeStory(cast, places)
    story.serve(1)
    story.core.fleet.parties.know(parties)
    return story


def refusing(by: str, accused: str, edge: str, *, count: int = REFUSALS_MAX) -> Seen:
    """A host that says that it has refused items."""
    refusals = (ItemRefusal(life(accused), edge, "norms", "a list", "'x'", count),)
    return Seen(life(by), 4711, 2, heartbeat=Heartbeat("serving", endpoints(by), refusals=refusals))


def condemned(story: HomeStory) -> set[str]:
    return {str(each) for machine in story.core.fleet.machines.values() for each in machine.condemned}


def test_the_end_is_told_by_the_recorder_and_by_no_other_host() -> None:
    story = began()
    story.hears(2, "beta", seen("learner/0", 2, "final", over=Over()))
    assert story.core.outcome == "running"
    story.hears(3, "alpha", seen("recorder/0", 2, "final", over=Over()))
    assert story.core.outcome == "done"


@pytest.mark.parametrize(
    ("by", "accused", "edge", "is_killed"),
    [
        ("learner/0", "syncer/0", UPDATE, False),  # One other machine.
        ("learner/0", "learner/1", ANSWER, False),  # Its own machine, and no such edge.
        ("syncer/0", "learner/2", ANSWER, True),  # Of home.
        ("syncer/0", "learner/2", UPDATE, False),  # That edge goes the other way.
        ("syncer/0", "learner/2", "dance.floor -> dance.hall", False),
    ],
)
def test_one_machine_condemns_no_host_of_another(by: str, accused: str, edge: str, is_killed: bool) -> None:
    story = began()
    story.hears(2, story.core.fleet.name(life(by).replica), refusing(by, accused, edge))
    assert condemned(story) == ({accused.partition("#")[0]} if is_killed else set())


ELSEWHERE: Final = msgspec.structs.replace(PLACES, machines={**PLACES.machines, Replica("syncer", 0): "gamma"})
"""The syncer is on the machine of a learner."""
ONE_PARTY: Final = {name: Party("invitation 1") for name in ("beta", "delta")}


def test_two_parties_together_condemn_and_two_hosts_of_one_do_not() -> None:
    story = began(places=ELSEWHERE)
    story.hears(2, "beta", refusing("learner/0", "syncer/0", UPDATE), refusing("learner/1", "syncer/0", UPDATE))
    assert condemned(story) == set()
    story.hears(3, "delta", refusing("learner/3", "syncer/0", UPDATE))
    assert condemned(story) == {"syncer/0"}


def test_two_machines_of_one_invitation_condemn_nobody_else() -> None:
    story = began(places=ELSEWHERE, parties=ONE_PARTY)
    story.hears(2, "beta", refusing("learner/0", "syncer/0", UPDATE), refusing("learner/1", "syncer/0", UPDATE))
    story.hears(3, "delta", refusing("learner/3", "syncer/0", UPDATE))
    assert condemned(story) == set()
    story.hears(4, "gamma", refusing("learner/2", "syncer/0", UPDATE))
    assert condemned(story) == {"syncer/0"}, "a party is believed about its own"


def test_a_host_at_home_is_condemned_by_the_homes_own_alone() -> None:
    story = began()
    for name, by in (("beta", "learner/0"), ("gamma", "learner/2"), ("delta", "learner/3")):
        story.hears(2, name, *(refusing(by, accused, UPDATE) for accused in ("syncer/0", "recorder/0")))
    assert condemned(story) == set()


def test_a_machine_that_is_entrusted_with_a_syncer_condemns_by_it_and_not_by_its_learners() -> None:
    places = msgspec.structs.replace(PLACES, machines={**PLACES.machines, Replica("syncer", 0): "beta"})
    story = began(places=places)
    story.hears(2, "beta", refusing("learner/0", "syncer/0", UPDATE), refusing("syncer/0", "learner/2", ANSWER))
    assert condemned(story) == {"learner/2", "syncer/0"}, "a machine is believed about its own hosts"
    assert not condemned(began()), "nobody without a refusal"


def test_a_bad_report_is_recorded_once_a_minute_and_its_machine_is_silent_until_a_good_one() -> None:
    story = began()
    bad, incident = BadReportCame("beta", FAULT), WriteIncident(DAEMON, ReportRefused("beta", "report.lives[0].pid",
                                                                                     "`int` >= 0", "-1"))  # fmt: skip
    beta = story.core.fleet.machines["beta"]
    assert not beta.is_silent
    assert story.does(2, bad) == [incident]
    assert beta.is_silent
    assert story.does(3, bad, bad) == []
    story.hears(4, "beta", seen("learner/0", 3))
    assert not beta.is_silent
    minute = 2 + REFUSED_EVERY / 1e9
    assert story.does(minute - 0.1, bad) == []
    assert incident in story.does(minute, bad)
    assert story.does(minute, BadReportCame("omega", FAULT)) == [], "it takes no part"


def test_a_machine_that_sends_bad_reports_only_is_lost_with_its_hosts_alone() -> None:
    story = began()
    for number in range(60):
        now = 2 + number / 2
        for name, text in (("alpha", "syncer/0 recorder/0"), ("gamma", "learner/2"), ("delta", "learner/3")):
            story.hears(now, name, *(seen(each, 2 + number) for each in text.split()))
        story.at(now, BadReportCame("beta", FAULT), HomeBeat())
    assert story.core.fleet.machines["beta"].is_lost
    assert {str(member.replica) for member in story.core._run.liveness.members()} == {
        "learner/2", "learner/3", "recorder/0", "syncer/0"}  # fmt: skip
    assert story.core.outcome == "running"


def test_a_stamp_from_the_end_of_time_counts_for_its_machine_alone() -> None:
    story = began()
    lie = ReportCame("beta", Report(obeyed=Stamp(1, COUNT_MAX, COUNT_MAX)))
    commands = story.at(2, lie, HomeBeat())
    orders = [each for each in commands if isinstance(each, SendOrders)][-1]
    epochs = {name: each.stamp.epoch for name, each in orders.by_machine()}
    assert epochs == {"alpha": 1, "beta": COUNT_MAX, "gamma": 1, "delta": 1}
    assert story.does(3, lie) == []  # Repeated, it is no news: orders to all would follow each of its reports.


def test_the_end_is_near_when_home_or_most_parties_say_so() -> None:
    story = began(parties=ONE_PARTY)
    finals = [("beta", "learner/0"), ("beta", "learner/1"), ("delta", "learner/3")]
    for name, host in finals:
        story.hears(2, name, seen(host, 2, "final"))
    assert not story.core._run.is_coming_to_its_end, "two machines of one party"
    story = began()
    story.hears(2, "beta", seen("learner/0", 2, "final"), seen("learner/1", 2, "final"))
    assert not story.core._run.is_coming_to_its_end
    story.hears(3, "gamma", seen("learner/2", 2, "final"))
    assert story.core._run.is_coming_to_its_end
    story = began()
    story.hears(2, "alpha", seen("recorder/0", 2, "final"))
    assert story.core._run.is_coming_to_its_end


def test_an_error_that_only_one_machine_repeats_is_not_the_programs() -> None:
    story = began()
    story.hears(2, "gamma", gone("learner/2", error=BOOM))
    story.hears(2, "delta", gone("learner/3", error=BOOM))
    story.hears(2, "beta", *(gone(f"learner/{slot}", error=BOOM) for slot in (0, 1)))
    story.hears(3, "beta", *(gone(f"learner/{slot}#2", error=BOOM) for slot in (0, 1)))
    assert story.core.outcome == "running"
    story.hears(4, "gamma", gone("learner/2#2", error=BOOM))
    assert story.core.outcome == "failed"


def test_an_error_that_one_party_repeats_on_two_machines_is_not_the_programs() -> None:
    story = began(parties=ONE_PARTY)
    story.hears(2, "gamma", gone("learner/2", error=BOOM))
    for life_number in ("", "#2"):
        story.hears(3, "beta", *(gone(f"learner/{slot}{life_number}", error=BOOM) for slot in (0, 1)))
        story.hears(3, "delta", gone(f"learner/3{life_number}", error=BOOM))
    assert story.core.outcome == "running"
    story.hears(4, "gamma", gone("learner/2#2", error=BOOM))
    assert story.core.outcome == "failed"


def test_what_toggles_in_each_report_is_written_once() -> None:
    story = began()
    story.hears(2, "gamma", Seen(life("learner/2"), 4711, 2, heartbeat=said("learner/2", data_digest="7f")))
    told = []
    for beat in range(3, 41):
        heartbeat = said("learner/0", data_digest="7f" if beat % 2 else "")
        error = BOOM if beat % 2 else None
        told += story.hears(beat, "beta", Seen(life("learner/0"), 4711, beat, error=error, heartbeat=heartbeat))
    kinds = [type(each.incident) for each in told if isinstance(each, WriteIncident)]
    assert (kinds.count(BodyRaised), kinds.count(SameData)) == (1, 1)


def test_no_life_ends_by_what_a_machine_says_of_lives_elsewhere() -> None:
    story = began()
    others = ("learner/2", "learner/3", "syncer/0", "recorder/0")
    claims = Report(tuple(seen(each, 9, "gone") for each in others), tuple(map(gone, others)),
                    tuple(life(f"{each}#7") for each in others))  # fmt: skip
    told = story.does(2, ReportCame("beta", claims))
    assert not [each for each in told if isinstance(each, WriteIncident)]
    assert condemned(story) == set()
    assert all(story.core.incarnation(life(each).replica) == 1 for each in others)
    assert not any(isinstance(each, Condemned) for each in told)
    assert Instant(seconds(2)) == story.core._run.now
