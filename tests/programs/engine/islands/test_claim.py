"""Islands are taken once, and are free again when whoever had one has let go."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.programs.engine.islands.claims import claim
from isthmus.runtime.errors import ConfigError

ISLANDS = (("cuda-0", "cuda-1"), ("cuda-2", "cuda-3"))


def test_the_first_free_island_is_taken(tmp_path: Path) -> None:
    first, second = claim(ISLANDS, tmp_path), claim(ISLANDS, tmp_path)
    assert (first.island, second.island) == (0, 1)
    with pytest.raises(ConfigError, match="one of 2 that is free, found all of them taken"):
        claim(ISLANDS, tmp_path)
    first.close()
    again = claim(ISLANDS, tmp_path)
    assert again.island == 0
    for each in (second, again):
        each.close()


def test_islands_of_another_size_do_not_overlap_those_that_are_taken(tmp_path: Path) -> None:
    taken = claim((("cuda-1",),), tmp_path)
    found = claim(ISLANDS, tmp_path)
    assert found.island == 1
    for each in (taken, found):
        each.close()
