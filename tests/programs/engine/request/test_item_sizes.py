"""A fragment that does not fit into an item is refused before anything starts."""

from __future__ import annotations

import pytest

from isthmus.programs.engine.request.faults import item_faults
from isthmus.programs.engine.request.program import Program
from isthmus.programs.job import TensorSpec
from isthmus.programs.wings.simulation.toy_task import Toy, graph_of

LARGE = Toy("LARGE", (TensorSpec("embedding", (1000, 8), "float32"), TensorSpec("stack", (600_000, 1000), "float32")))


def faults(**settings: object) -> list[str]:
    graph = graph_of(Program("decoupled-diloco", **settings), learners=2, steps=8, seed=0, task=LARGE)
    return [str(fault) for fault in item_faults(graph)]


@pytest.mark.parametrize(
    ("settings", "vectors", "size"),
    [({"outer_momentum": 0.9}, 2, "4.5"), ({"outer_momentum": 0.0, "update": "int4"}, 2, "4.5")],
)
def test_what_travels_with_a_fragment_counts(settings: dict[str, object], vectors: int, size: str) -> None:
    (fault,) = faults(fragments=2, **settings)
    assert fault.startswith("fragment 1 (stack): expected at most 4 GiB in one item, 536870912 values, found 600000000")
    assert f"whose state of {vectors} float32 vectors takes {size} GiB" in fault
    assert "at least 3 fragments" in fault


def test_values_alone_may_be_twice_as_large() -> None:
    assert faults(fragments=2, outer_momentum=0.0) == []
