"""A mesh that does not fit the devices of an island is found before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.programs.cluster.placing import placed
from isthmus.programs.request.request import Request, prepare
from isthmus.runtime.errors import PlacementError
from isthmus.runtime.graph.devices import find
from isthmus.runtime.graph.topology import Machine, Topology


@pytest.fixture(scope="module")
def request_of_nano(tmp_path_factory: pytest.TempPathFactory) -> Request:
    folder: Path = tmp_path_factory.mktemp("request")
    (folder / "text.txt").write_text("two seas and a narrow land between them, " * 200)
    settings = {"data": (str(folder / "text.txt"),), "layers": 1, "batch": (8, 12)}
    run = {"tokens": 10_000, "learners": 2}
    return prepare(run=run, task_settings=settings, run_dir=folder / "run")


def machines(devices: int) -> Topology:
    device = find("v5e", "Testing")
    return Topology((Machine("alpha", "tcp://127.0.0.1:7400", islands=2, device=device, devices=devices),))


def test_batches_that_divide_are_placed(request_of_nano: Request) -> None:
    assert placed(request_of_nano, machines(4)).of_role("learner") == ("alpha", "alpha")


def test_a_batch_that_does_not_divide_is_refused_once_with_its_machine(request_of_nano: Request) -> None:
    with pytest.raises(PlacementError) as caught:
        placed(request_of_nano, machines(8))
    (fault,) = caught.value.faults
    assert fault.doing == "Cutting 'tokens' of a batch (an island of 'alpha')"
    assert (fault.expected[:27], fault.found) == ("a batch that divides by 8, ", "12 rows")
