"""The ledger of a simulated machine: the real one, on a disk that fails, over deaths, losses and moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.runtime.daemon.ledger import LedgerError, LedgerRow
from isthmus.runtime.sim.daemons import SimulatedMachine, SimulatedProcess
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from tests.runtime.supervision.supervision_stories import life, lives

LEARNER = life("learner/0#2")


@pytest.fixture
def machines() -> Iterator[tuple[SimulatedMachine, SimulatedMachine]]:
    made = (
        SimulatedMachine("a", "127.0.0.1", SimulatedDisk("a")),
        SimulatedMachine("b", "127.0.0.2", SimulatedDisk("b")),
    )
    for machine in made:
        machine.processes[7] = SimulatedProcess(LEARNER, 7)
    yield made
    for machine in made:
        machine.ledger.close()


def test_what_a_disk_refuses_is_not_noted_or_owed(machines: tuple[SimulatedMachine, SimulatedMachine]) -> None:
    machine, _ = machines
    struck: list[None] = []
    ledger = machine.ledger.open(Mount(machine.disk), machine)
    machine.disk.troubles[1] = Trouble(lambda: struck.append(None), share=1.0)
    with pytest.raises(LedgerError, match="Input/output error"):
        ledger.begin(lives("learner/0#2"))
    ledger.started(LEARNER, 7)
    assert not ledger.settle()
    assert ledger.newest() == []
    machine.disk.troubles.clear()
    assert ledger.settle()
    assert ledger.newest() == [LedgerRow(LEARNER, 7, is_alive=True)]
    assert len(struck) == 3


def test_its_contents_outlive_daemons_and_boots_and_its_loss_is_known(
    machines: tuple[SimulatedMachine, SimulatedMachine],
) -> None:
    machine, _ = machines
    first = machine.ledger.open(Mount(machine.disk), machine)
    first.give(lives("learner/0#2"))
    first.started(LEARNER, 7)
    again = machine.ledger.open(Mount(machine.disk), machine)
    assert (again.numbers(), again.is_lost("home")) == (lives("learner/0#2"), False)
    assert again.newest() == [LedgerRow(LEARNER, 7, is_alive=True)]
    machine.boots += 1
    booted = machine.ledger.open(Mount(machine.disk), machine)
    assert booted.newest() == [LedgerRow(LEARNER, None, is_alive=False)]
    machine.ledger.lose()
    lost = machine.ledger.open(Mount(machine.disk), machine)
    assert (lost.numbers(), lost.is_lost("home"), lost.is_lost("station")) == ((), True, True)
    machine.ledger.forget()
    assert not machine.ledger.open(Mount(machine.disk), machine).is_lost("station")


def test_a_new_home_has_the_numbers_of_the_former_and_its_own_lives(
    machines: tuple[SimulatedMachine, SimulatedMachine],
) -> None:
    former, new = (machine.ledger.open(Mount(machine.disk), machine) for machine in machines)
    former.give(lives("learner/0#2 learner/1#5"))
    former.started(life("learner/1#5"), 7)
    new.started(LEARNER, 7)
    machines[1].ledger.take_over(machines[0].ledger, machines[1])
    home = machines[1].ledger.open(Mount(machines[1].disk), machines[1])
    assert home.numbers() == lives("learner/0#2 learner/1#5")
    assert home.newest() == [LedgerRow(LEARNER, 7, is_alive=True)]
    assert (home.is_lost("home"), home.is_lost("station")) == (True, False)
    assert former.numbers() == lives("learner/0#2 learner/1#5")
