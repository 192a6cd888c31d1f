"""The first merges of a run: the syncer and all learners die before anybody else has looked at one. (Seed 202994.)"""

from __future__ import annotations

import pytest

from isthmus import Program
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.programs.wings.simulation.searches import deadly
from isthmus.programs.wings.simulation.seeds import shape_of
from isthmus.programs.wings.simulation.universe import outcome_of
from isthmus.runtime.cores.scheduler_events import HostRecord
from isthmus.runtime.sim.faults import Cut, Fault, Kill
from isthmus.runtime.tape.reading import read
from tests.effort import soaked
from tests.programs.family import ADAM

LEARNERS = 2
PROGRAMS = [
    Program("decoupled-diloco", fragments=2, interval=4),
    Program("streaming-diloco", fragments=2, interval=4),
    Program("diloco", interval=4),
]
"""In the last two learners wait for each merge, and report nothing meanwhile."""
NAMES = [program.reference for program in PROGRAMS]


def run(world: Worlds, program: Program, *faults: Fault) -> tuple[WorldResult, list[float]]:
    """A run, and the milliseconds at which a fragment of it was published: first its first version, then each merge."""
    result = world.run(program, task=ADAM, learners=LEARNERS, steps=60, faults=faults)
    steps = [each for each in result.spans if (each.host, each.name, each.peer) == ("syncer/0", "outer-step", "")]
    return result, [each.ended / 1e6 for each in steps]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
@pytest.mark.parametrize("milliseconds", [740, 780, soaked(820), soaked(860), 900, soaked(940), soaked(980)])
def test_a_model_that_was_merged_is_not_begun_anew(world: Worlds, program: Program, milliseconds: int) -> None:
    hosts = ("syncer/0", *(f"learner/{slot}" for slot in range(LEARNERS)))
    result, published = run(world, program, *(Kill(host, at=milliseconds / 1e3) for host in hosts))
    assert result.faults == {"kill": len(hosts)}
    fragments = 1 if program.reference == "diloco" else 2
    is_merged = sum(at < milliseconds for at in published) > fragments
    assert is_merged == (milliseconds > 850), "the first merge waits until a hold node has looked, at 820 ms"
    events = [record.event for record in read(result.tapes["syncer/0#2"], HostRecord).records]
    told = [output.fields or {} for event in events for output in getattr(event, "outputs", ())]
    kinds = {fields["kind"] for fields in told if fields.keys() >= {"kind", "version"}}
    assert ("initial" in kinds) == (milliseconds < 750), (
        "before 754 ms there is no version; then somebody else has it at once"
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS[1:], ids=NAMES[1:])
def test_holders_that_are_cut_off_are_waited_for_a_second(world: Worlds, program: Program) -> None:
    """They live, and neither their reports nor a word of the recorder, which is on their machine, arrive."""
    _, published = run(world, program, Cut("home", None, 4.0, at=0.76))
    fragments = 1 if program.reference == "diloco" else 2
    waited = published[fragments] - published[fragments - 1]
    assert 1000 <= waited < 1250


@pytest.mark.long
def test_a_first_version_of_which_only_the_digest_is_left_is_made_anew() -> None:
    """Everything but the recorder dies, which has one of three on its disk, and of the others the books."""
    assert outcome_of(shape_of(20007, "dipaco")).violation is None


@pytest.mark.long
def test_a_first_version_is_asked_of_a_shard_that_has_the_fragment() -> None:
    """Those of both regions that have it have died, before they gave it; others of these regions live."""
    assert outcome_of(deadly(308, "regional-diloco")).violation is None
