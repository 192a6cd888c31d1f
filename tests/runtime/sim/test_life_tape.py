"""Tapes of simulated lives: a power failure leaves a beginning of each, and what is anything else is found."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import NodesNudged
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.host import LifeTape
from isthmus.runtime.sim.machine import SimulatedDisk

MEMBER = Member(Replica("learner", 0), 1)


def written(disk: SimulatedDisk, records: int = 3000) -> LifeTape:
    """A tape of several segments, some of which the files do not have yet."""
    life = LifeTape(MEMBER, disk)
    life.tape.begin(lambda: b"state")
    for at in range(records):
        life.tape.append(Instant(at), NodesNudged(), [])
        if at % 100 == 50:
            life.flush()
    return life


def test_files_are_behind_the_tape_and_are_sound_after_power_failures() -> None:
    sizes = []
    for number in range(20):
        disk = SimulatedDisk(f"seed {number}")
        life = written(disk)
        whole = life.check()
        disk.lose_power()
        life.end()
        life.flush()
        sizes.append(life.check() / whole)
    assert min(sizes) < 0.5
    assert len(set(sizes)) > 5


def spoilt(content: Any) -> None:
    content.data[100] ^= 1


def cut_in_the_middle(content: Any) -> None:
    del content.data[60:80]


@pytest.mark.parametrize("spoil", [spoilt, cut_in_the_middle])
def test_files_with_other_bytes_are_found(spoil: Any) -> None:
    disk = SimulatedDisk("seed")
    life = written(disk)
    path = next(path for path in disk.files() if path.name == "learner-0-1.2.tape")
    spoil(disk.content(path))
    with pytest.raises(InvariantError, match=r"learner-0-1.2.tape has other bytes than segment 2 of the tape"):
        life.check()
