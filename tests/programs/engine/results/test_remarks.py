"""What happened and is no absence: learners that are slow, and who waits for them."""

from __future__ import annotations

import pytest

from isthmus.programs.engine.results.absences import Fact, Waiting, Works, remark
from isthmus.runtime.cores.membership_messages import KeepsUp, Pace, SlowHost
from isthmus.runtime.supervision.incidents import Restarted
from tests.programs.engine.results.event_lines import KILLED, silent

FREE, RING = Waiting("go on", False), Waiting("wait", False)
SLOW = "learner 2 is slow: 410 ms a step, the others 42.0 ms"


@pytest.mark.parametrize(
    ("waiting", "text"),
    [(None, SLOW), (FREE, f"{SLOW}; nobody waits for it"), (RING, f"{SLOW}; the others wait for it")],
)
def test_who_is_slow_is_said_to_be_waited_for_as_the_graph_has_it(waiting: Waiting | None, text: str) -> None:
    assert remark(Fact(10, "learner/2", 1, SlowHost(Pace(410e6, 42e6, 3))), waiting) == (10, "pace", "odd", text)


def test_who_keeps_up_again_is_told_of() -> None:
    told = "learner 2 keeps up again: 45.5 ms a step, the other 42.0 ms"
    assert remark(Fact(20, "learner/2", 1, KeepsUp(Pace(45.5e6, 42e6, 1))), RING) == (20, "pace", "good", told)


@pytest.mark.parametrize("what", [KILLED, silent(2), Restarted(), Works()])
def test_of_what_makes_an_absence_there_is_no_remark(what: object) -> None:
    assert remark(Fact(10, "learner/2", 1, what)) is None  # type: ignore[arg-type]
