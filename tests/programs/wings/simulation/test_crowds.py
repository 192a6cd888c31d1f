"""Universes with many learners: deaths and joins in proportion, within the bounds of a run."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from isthmus.programs.wings.simulation import simulating
from isthmus.programs.wings.simulation.seeds import DYING, JOINING, run, shape_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNERS_MAX
from isthmus.runtime.sim.faults import Join, Kill
from tests.effort import soaked


def test_some_die_and_some_join_beside_the_faults_of_the_seed() -> None:
    crowd = shape_of(3, learners=1024)
    assert len(crowd.speeds) == crowd.learners == 1024
    kinds = Counter(type(fault) for fault in crowd.faults)
    assert kinds[Kill] >= 1024 // DYING
    assert kinds[Join] >= 1024 // JOINING
    joining = [fault.host for fault in crowd.faults if isinstance(fault, Join)]
    assert len(set(joining)) == len(joining)
    assert shape_of(3, learners=shape_of(3).learners) == shape_of(3)


@pytest.mark.parametrize("learners", [1, LEARNERS_MAX + 1])
def test_a_number_out_of_bounds_is_refused_with_the_name_of_the_bound(learners: int) -> None:
    with pytest.raises(ConfigError, match="LEARNERS_MAX"):
        simulating.world(0, 1, "decoupled-diloco", learners=learners, as_json=True)


def test_parties_have_learners_of_their_own() -> None:
    with pytest.raises(ConfigError, match="--liars"):
        simulating.world(0, 1, "decoupled-diloco", beside=["liars"], learners=24, as_json=True)


@pytest.mark.long
def test_the_command_that_runs_a_crowd_again_names_its_learners(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulating.world(3, 1, "decoupled-diloco", learners=24, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["violations"]) == (1, 0)
    assert told["faults"]["kill"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("learners", [64, soaked(256), soaked(1024)])
def test_a_crowd_breaks_nothing(learners: int) -> None:
    outcome = run(3, learners=learners)
    assert outcome.violation is None, outcome.violation
