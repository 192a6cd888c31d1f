"""What a machine that lies can say: every value in every field is refused by name, or harms its own hosts only."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.daemon.outpost import of_report, read_report
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.lies import ANY, CLAIMS, FIELDS, SHOWN_FIELDS, VALUES, Liar, forged
from isthmus.runtime.supervision.flows import EdgeFlow, Flows, NodeFlow
from isthmus.runtime.supervision.home_events import BadReportCame, HomeBeat, Places, ReportCame, SendOrders
from isthmus.runtime.supervision.incidents import CodePlace, DataSpent, Exited, Starved
from isthmus.runtime.supervision.messages import (
    FOUND_LENGTH_MAX,
    Formed,
    Heartbeat,
    ItemRefusal,
    Missing,
    Over,
    Report,
    ReportError,
    ReportFault,
    Seen,
)
from isthmus.runtime.wire.control_messages import Message, decode, encode
from tests.runtime.supervision.supervision_stories import (
    ANSWER,
    BOOM,
    FOUR_LEARNERS,
    UPDATE,
    HomeStory,
    endpoints,
    gone,
    life,
    lives,
    seen,
)

PLACES: Final = Places(home="alpha", machines={Replica("learner", 1): "beta", Replica("learner", 2): "gamma"})
OTHERS: Final = ("learner/0", "learner/2", "learner/3", "syncer/0", "recorder/0")
STARVED: Final = {"kind": "starved", "node": "inner-step", "source": "data", "made_ns": 9, "rest_ns": 9}
PLACE: Final = ["train.py", 9, "evaluate"]
SHOWN: Final = {
    life("learner/1"): {
        "figures": {"steps": 7, "starved": STARVED, "places": [PLACE]},
        "published": {"inner-step": {"step": 7}},
    }
}


def told(beats: int) -> Report:
    """A report of beta with something in every field."""
    refusals = (ItemRefusal(life("syncer/0"), UPDATE, "norms", "a list", "'x'", 1),)
    missing, starved = (Missing(life("learner/0")),), Starved("inner-step", "data", 9, 9)
    flows = Flows((EdgeFlow(0, 1, 2, seconds(3)),), (NodeFlow(0, 1, seconds(2)),))
    heartbeat = Heartbeat("stepping", endpoints("learner/1"), beats, node="inner-step", starved=starved, peers=3,
                          missing=missing, refusals=refusals, formed=Formed(1, 1), flows=flows,
                          spent=DataSpent(9, 9, 1.0))  # fmt: skip
    kept = BOOM.kept_on("beta", "learner/1")
    end = Exited(1, places=(CodePlace("train.py", 9, "evaluate"),))
    ended = msgspec.structs.replace(gone("learner/3", end, kept), flows=flows)
    return Report((Seen(life("learner/1"), 4711, beats, error=kept, heartbeat=heartbeat, over=Over()),),
                  (ended,), lives("learner/1"))  # fmt: skip


class Run(HomeStory):
    """A home of hosts on three machines, of which one sends what it likes."""

    def __init__(self) -> None:
        super().__init__(FOUR_LEARNERS, PLACES)
        self.serve(1)
        self.now = 1.0

    def hears_of_beta(self, message: Message) -> None:
        """A report of beta, and what is honest of the others; a beat passes."""
        self.now += 0.5
        try:
            event: Any = ReportCame("beta", read_report(decode(encode(message)))[0])
        except ReportError as error:
            event = BadReportCame("beta", error.fault)
        commands = self.at(self.now, event)
        beats = round(self.now * 2)
        self.hears(self.now, "alpha", *(seen(each, beats) for each in OTHERS if each != "learner/2"))
        self.hears(self.now, "gamma", seen("learner/2", beats))
        commands += self.at(self.now, HomeBeat())
        for each in commands:
            if isinstance(each, SendOrders):
                encode({"type": "orders", "epochs": [orders.stamp.epoch for _, orders in each.by_machine()]})

    def is_unharmed(self) -> bool:
        """Whether the others have the lives that they had, none is condemned, and the run goes on."""
        core = self.core
        condemned = {each for machine in core.fleet.machines.values() for each in machine.condemned}
        return (
            core.outcome == "running"
            and condemned <= {Replica("learner", 1)}
            and all(core.incarnation(life(each).replica) == 1 for each in OTHERS)
            and all(core._run.liveness.has(Member(life(each).replica, 1)) for each in OTHERS)
        )


def refusal(message: Message) -> ReportFault | None:
    """Why a message is refused; None for one that is read."""
    try:
        read_report(decode(encode(message)))
    except ReportError as error:
        return error.fault
    return None


@pytest.mark.parametrize("top", [FIELDS, SHOWN_FIELDS], ids=["report", "shown"])
def test_a_value_in_a_field_is_refused_under_the_name_of_the_field_or_is_one_of_its_values(top: Any) -> None:
    honest = of_report(told(3), SHOWN)
    for field in top:
        faults = [fault for value in VALUES if (fault := refusal(forged(honest, field, value))) is not None]
        assert faults, f"{field} takes everything"
        for fault in faults:
            named = fault.field.replace("[0]", "").replace("[1]", "").replace("[...]", "")
            assert named.startswith(field) or field.startswith(named), (field, fault)
            assert len(fault.found) <= FOUND_LENGTH_MAX


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_no_value_in_any_field_harms_another_machine_or_makes_the_core_raise(number: int) -> None:
    run = Run()
    for beats, field in enumerate(FIELDS, 2):
        liar = Liar(field, number, "", (ANSWER, UPDATE))
        run.hears_of_beta(liar.lied(of_report(told(beats), SHOWN), run.core._run.roster.rows()))
        assert run.is_unharmed(), (field, VALUES[number])


@pytest.mark.parametrize("claim", [*CLAIMS, ANY])
def test_no_claim_harms_another_machine(claim: str) -> None:
    run, liar = Run(), Liar(claim, 0, "7", (ANSWER, UPDATE))
    for beats in range(2, 40):
        run.hears_of_beta(of_report(told(beats), SHOWN))  # So that its hosts are heard, and may be believed.
        run.hears_of_beta(liar.lied(of_report(told(beats), SHOWN), run.core._run.roster.rows()))
    assert run.is_unharmed(), claim
    assert run.core._run.now == Instant(seconds(run.now))
