"""The first merges of a run: the syncer and all learners die before anybody else has looked at one. (Seed 202994.)"""

from __future__ import annotations

import pytest

from isthmus.programs import Program
from isthmus.programs.simulation.pytest_plugin import Worlds
from isthmus.runtime.scheduler.tape import Record
from isthmus.runtime.sim import Kill
from isthmus.runtime.tape.reading import read
from tests.effort import soaked
from tests.programs.family import ADAM

LEARNERS, FRAGMENTS = 2, 2


@pytest.mark.parametrize("milliseconds", [800, soaked(820), soaked(860), 900, soaked(940), 980])
def test_a_model_that_was_merged_is_not_begun_anew(world: Worlds, milliseconds: int) -> None:
    hosts = ("syncer/0", *(f"learner/{slot}" for slot in range(LEARNERS)))
    faults = [Kill(host, at=milliseconds / 1e3) for host in hosts]
    program = Program("decoupled-diloco", fragments=FRAGMENTS, interval=4)
    result = world.run(program, task=ADAM, learners=LEARNERS, steps=60, faults=faults)
    assert result.faults == {"kill": len(hosts)}
    steps = [each for each in result.spans if (each.host, each.name, each.peer) == ("syncer/0", "outer-step", "")]
    is_merged = sum(each.ended < milliseconds * 1e6 for each in steps) > FRAGMENTS
    assert is_merged == (milliseconds > 840), "the first merge waits until a hold node has looked, at 820 ms"
    events = [record.event for record in read(result.tapes["syncer/0#2"], Record).records]
    told = [output.fields or {} for event in events for output in getattr(event, "outputs", ())]
    kinds = {fields["kind"] for fields in told if fields.keys() >= {"kind", "version"}}
    assert ("initial" in kinds) == (milliseconds == 800), "nobody else had the first version"
