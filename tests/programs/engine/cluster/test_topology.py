"""Kinds of devices by all their names, and what follows from what a machine says."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.programs.engine.cluster.devices import CATALOGUE, Device, find
from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("reported", "kind"),
    [
        ("TPU v4", "TPU v4"),
        ("TPU v5", "TPU v5p"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5e", "TPU v5e"),
        ("TPU v6 lite", "TPU v6e"),
        ("TPU v6e", "TPU v6e"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB"),
        ("cpu", "CPU"),
    ],
)
def test_the_names_that_jax_reports(reported: str, kind: str) -> None:
    assert find(reported, "").kind == kind
    assert find(reported.upper(), "").kind == kind


def test_every_name_means_one_kind_and_every_figure_has_a_source() -> None:
    names = [name for device in CATALOGUE for name in {n.casefold() for n in (device.kind, *device.names)}]
    assert len(names) == len(set(names))
    assert all(device.source and device.flops and device.memory_bandwidth_bytes for device in CATALOGUE)
    assert all(device.is_cpu or (device.memory_bytes and device.interconnect_bits) for device in CATALOGUE)
    assert all(device.price_per_hour is None for device in CATALOGUE)


def test_the_documented_figures_are_these() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "devices.md"
    table = page.read_text().split("## ")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:6]] for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == [device.kind for device in CATALOGUE]
    for device, (_, names, teraflops, memory, bandwidth) in zip(CATALOGUE, rows, strict=True):
        assert set(names.replace("`", "").split(", ")) - {device.kind} == set(device.names)
        assert float(teraflops) == pytest.approx((device.flops or 0) / 1e12)
        number, _, unit = bandwidth.partition(" ")
        scale = {"GB/s": 1e9, "TB/s": 1e12}[unit]
        assert float(number) * scale == pytest.approx(device.memory_bandwidth_bytes, rel=0.005)
        if device.memory_bytes is None:
            assert memory == "not known"
        else:
            assert float(memory.removesuffix(" GB")) * 1e9 == pytest.approx(device.memory_bytes, rel=0.005)


def test_the_documented_tokens_that_fill_a_device_are_these() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "devices.md"
    table = page.read_text().split("## ")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines() if line.startswith("| ")][2:]
    filled = [device for device in CATALOGUE if device.tokens_filling is not None]
    assert rows == [
        [device.kind, f"{device.tokens_filling:,}", "measured" if device.tokens_measured else "computed"]
        for device in filled
    ]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("TPU v6", "TPU v6e"),
        ("tpu v5 litte", "TPU v5e"),
        ("H1000", "NVIDIA H100"),
        ("nvidia a100 60gb", "NVIDIA A100 40GB"),
        ("abacus", "There is: TPU v4, TPU v5e, TPU v5p"),
    ],
)
def test_a_kind_that_is_not_known_is_told_with_the_nearest(kind: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        find(kind, "Reading the device")
    assert told in error.value.faults[0].remedy
    assert error.value.faults[0].found == repr(kind)


def test_of_two_kinds_of_one_name_the_first_is_taken() -> None:
    own = Device("mine", ("v6e",))
    assert find("v6e", "", (own, *CATALOGUE)) is own


def test_what_follows_from_what_a_machine_says() -> None:
    nothing = Machine("a")
    assert (nothing.island_flops, nothing.island_memory_bytes, nothing.has_accelerators) == (None, None, False)
    assert nothing.offers("anything")
    chips = Machine("b", roles=("learner",), device=find("v5e", ""), devices=4, domain="a")
    assert (chips.island_flops, chips.island_memory_bytes, chips.has_accelerators) == (788e12, 64_000_000_000, True)
    assert chips.offers("learner")
    assert not chips.offers("syncer")
    assert not Machine("c", device=find("cpu", "")).has_accelerators
    assert Machine("a").failure_domain != Machine("b", domain="a").failure_domain
    with pytest.raises(ValueError, match="'a' has no address"):
        _ = nothing.endpoint


def test_islands_are_counted_where_all_are_known() -> None:
    assert (
        Topology((Machine("a", islands=2), Machine("b", roles=("syncer",)), Machine("c", islands=3))).learners_max == 5
    )
    assert Topology((Machine("a", islands=2), Machine("b"))).learners_max is None
    with pytest.raises(ValueError, match="names of their own"):
        Topology((Machine("a"), Machine("a")))
