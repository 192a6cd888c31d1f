"""What targets are called, and the least time of a step there."""

from __future__ import annotations

import pytest

from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.wings.compile.figures import roofline_seconds, target
from isthmus.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [("v5p:2x2x1", "TPU v5p", 4), ("v6e:2x2", "TPU v6e", 4), ("v6e:16x16", "TPU v6e", 256), ("v4:2x2x1", "TPU v4", 8)],
)
def test_a_target_is_a_kind_and_a_topology(text: str, kind: str, count: int) -> None:
    found = target(text)
    assert (found.name, found.device.kind, found.count) == (text, kind, count)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("v5p:2x2x1", (2, 2, 1)), ("v6e:1x1", (1, 1, 1)), ("v6e:2x4", (2, 4, 1)), ("v6e:4x4", ()), ("v5p:2x2x2", ())],
)
def test_an_island_lies_on_one_machine_where_that_has_as_many_chips(text: str, bounds: tuple[int, ...]) -> None:
    assert target(text).host_bounds == bounds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v5p", "KIND:TOPOLOGY"),
        ("v5p-8", "KIND:TOPOLOGY"),
        ("v9:2x2", "v4, v5e, v5p, v6e"),
        ("v5p:2x2", "3 dimensions for v5p"),
        ("v6e:2x2x2", "2 dimensions for v6e"),
        ("v6e:0x2", "at least 1"),
    ],
)
def test_what_is_no_target_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        target(text)


def test_the_least_time_of_a_step_is_that_of_what_limits_it() -> None:
    device = find("v5p", "testing")
    assert roofline_seconds(device, 459e12, 1e9) == pytest.approx(1.0)
    assert roofline_seconds(device, 1e9, 2 * 2765e9) == pytest.approx(2.0)
    assert roofline_seconds(find("v4", "testing"), 0.0, 0.0) == 0.0
