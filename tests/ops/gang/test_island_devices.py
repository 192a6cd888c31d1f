"""A learner refuses devices that are not what it was placed on."""

from __future__ import annotations

import pytest

from isthmus.ops.gang.mesh_devices import IslandError, devices_of
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.runtime.host.contract import IslandDevices
from tests.ops.bodies import SmallTask


@pytest.mark.parametrize(
    ("island", "told"),
    [
        (
            IslandDevices(("NVIDIA H100", "H100"), 1),
            "expected devices of kind 'NVIDIA H100'.* found 'cpu'.* Correct `device`",
        ),
        (IslandDevices(("CPU",), 64), "expected 64 devices, found [0-9]+ of kind 'cpu'"),
        (IslandDevices(refusal="all of them taken"), "all of them taken"),
    ],
)
def test_another_kind_or_too_few_are_refused_by_name(island: IslandDevices, told: str) -> None:
    with pytest.raises(IslandError, match=told):
        Learner(SmallTask(), (), life=LearnerLife(0, 0, 1), island=island)


def test_the_declared_kind_is_found_in_any_case() -> None:
    assert len(devices_of(IslandDevices(("CPU", "cpu"), 1))) == 1
