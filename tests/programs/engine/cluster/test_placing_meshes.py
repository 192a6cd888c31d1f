"""A mesh that does not fit the devices of an island is found before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.programs.engine.cluster.placing import placed
from isthmus.programs.engine.cluster.prediction import predict
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.runtime.errors import ConfigError, PlacementError


@pytest.fixture(scope="module")
def request_of_nano(tmp_path_factory: pytest.TempPathFactory) -> Request:
    return nano(tmp_path_factory.mktemp("request"), learners=2)


def nano(folder: Path, **run: int) -> Request:
    (folder / "text.txt").write_text("two seas and a narrow land between them, " * 200)
    settings = {"data": (str(folder / "text.txt"),), "layers": 1, "batch": (8, 12)}
    return prepare(run={"tokens": 10_000, **run}, task_settings=settings, run_dir=folder / "run")


def machines(devices: int) -> Topology:
    device = find("v5e", "Testing")
    return Topology((Machine("alpha", "tcp://127.0.0.1:7400", islands=2, device=device, devices=devices),))


def test_batches_that_divide_are_placed(request_of_nano: Request) -> None:
    assert placed(request_of_nano, machines(4)).of_role("learner") == ("alpha", "alpha")


def test_a_batch_that_does_not_divide_is_refused_once_with_its_machine(request_of_nano: Request) -> None:
    with pytest.raises(PlacementError) as caught:
        placed(request_of_nano, machines(8))
    (fault,) = caught.value.faults
    assert fault.action == "Cutting 'tokens' of a batch (an island of 'alpha')"
    assert (fault.expected[:27], fault.found) == ("a batch that divides by 8, ", "12 rows")


def pod(**more: Any) -> str:
    parts = [
        f'[[machine]]\nname = "{name}"\n'
        + "".join(f"{key} = {value}\n" for key, value in {**POD, **more.get(name, {})}.items())
        for name in ("alpha", "beta")
    ]
    return "".join(parts)


POD = {"island": '"pod"', "device": '"v5e"', "devices": 4, "address": '"tcp://127.0.0.1:0"'}


def test_machines_of_one_island_have_one_learner_with_a_process_on_each(
    request_of_nano: Request, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.toml"
    addresses = {name: {"address": f'"tcp://127.0.0.1:740{n}"'} for n, name in enumerate(("alpha", "beta"))}
    file.write_text(pod(**addresses) + '[[machine]]\nname = "gamma"\nislands = 1\ndevice = "v5e"\ndevices = 4\n')
    topology = cluster_file.read(file).topology
    assert topology.learners_max == 2
    placement = placed(request_of_nano, topology)
    assert placement.of_role("learner") == ("alpha", "gamma")
    assert placement.of_role("learner.1") == ("beta",)
    assert placement.processes == (2, 1)
    assert [island.devices for island in predict(request_of_nano, topology, placement).islands] == [8, 4]


def test_machines_that_cannot_be_one_island_are_refused_together(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[[machine]]\nname = "alpha"\nisland = "pod"\ndevices = 4\n'
        '[[machine]]\nname = "beta"\nisland = "pod"\ndevices = 8\nislands = 2\n'
        '[[machine]]\nname = "gamma"\nisland = "rod"\naddress = "tcp://127.0.0.1:7400"\n'
    )
    with pytest.raises(ConfigError) as caught:
        cluster_file.read(file)
    assert [fault.expected for fault in caught.value.faults] == [
        "as many devices of one kind on each machine",
        "islands = 1, or nothing, on each machine",
        "an address of 'alpha', its first machine",
        "two machines or more that are one island",
    ]


@pytest.mark.slow
def test_more_devices_than_an_island_has_are_refused_where_it_is_placed(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(pod(alpha={"address": '"tcp://127.0.0.1:7400"'}, beta={"address": '"tcp://127.0.0.1:7401"'}))
    with pytest.raises(ConfigError, match="at most the 8 devices of the island of learner 0, found 9"):
        placed(nano(tmp_path, learners=1, devices_min=9), cluster_file.read(file).topology)
