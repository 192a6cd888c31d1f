"""Stacked tensors: each layer is a unit, so that a rule of merging takes one norm a layer."""

from __future__ import annotations

import numpy as np

from isthmus.ops.exchange.fragments import partition, units, units_max
from isthmus.ops.learner.fragment_send import norms
from tests.ops.bodies import Spec

LAYOUT = [Spec("layers/w", (3, 4, 2), is_stacked=True), Spec("norm", (4,))]


def test_each_row_is_a_unit_in_order() -> None:
    assert [unit.name for unit in units(LAYOUT, 1)] == ["layers/w[0:1]", "layers/w[1:2]", "layers/w[2:3]", "norm"]
    assert units_max(LAYOUT) == 4
    assert [fragment.size for fragment in partition(LAYOUT, 4)] == [8, 8, 8, 4]


def test_a_layer_is_a_row_of_all_that_is_stacked() -> None:
    layout = [*LAYOUT, Spec("layers/b", (3, 4), is_stacked=True), Spec("head/Dense_0/kernel", (2, 2))]
    layout.append(Spec("head/Dense_0/bias", (2,)))
    named = [[unit.name for unit in part.units] for part in partition(layout, "layer")]
    rows = [[f"layers/b[{row}:{row + 1}]", f"layers/w[{row}:{row + 1}]"] for row in range(3)]
    assert named == [["head/Dense_0/bias", "head/Dense_0/kernel"], *rows, ["norm"]]


def test_there_is_a_norm_a_layer() -> None:
    (whole,) = partition(LAYOUT, 1)
    payload = np.concatenate([np.full(8, layer + 1.0) for layer in range(3)] + [np.zeros(4)]).astype(np.float32)
    np.testing.assert_allclose(norms(payload, whole), [8**0.5, 2 * 8**0.5, 3 * 8**0.5, 0.0], rtol=1e-6)
