"""Which part of an island a machine is, by its options or its scheduler, and when an island of several is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from isthmus.programs.engine.machine.island_parts import SIZE_MAX, IslandPart, IslandParts, host_towards, part_of
from isthmus.runtime.errors import ConfigError

SLURM = {"SLURM_NODEID": "1", "SLURM_NNODES": "4"}
WORLD = {"RANK": "3", "WORLD_SIZE": "8"}


def found(rank: int | None = None, size: int | None = None, **variables: str) -> IslandPart:
    return part_of("pod", rank, size, variables, lambda: "10.0.0.2")


@pytest.mark.parametrize(
    ("options", "variables", "rank", "size", "source"),
    [
        ((0, 2), SLURM, 0, 2, ""),
        ((), {**WORLD, **SLURM}, 1, 4, "SLURM_NODEID and SLURM_NNODES"),
        ((), {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2"}, 0, 2, "LWS_WORKER_INDEX and LWS_GROUP_SIZE"),
        ((), {**WORLD, "SLURM_NODEID": "1"}, 3, 8, "RANK and WORLD_SIZE"),
    ],
)
def test_a_part_is_that_of_the_options_or_of_the_first_scheduler(
    options: tuple[int, ...], variables: dict[str, str], rank: int, size: int, source: str
) -> None:
    assert found(*options, **variables) == IslandPart("pod", rank, size, "10.0.0.2", source)


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ((2, 2), {}, "from 0 to 1, in an island of 2"),
        ((-1, 2), {}, "from 0 to 1, in an island of 2"),
        ((0, 0), {}, f"from 1 to {SIZE_MAX}"),
        ((0, None), SLURM, "--rank and --size, or neither"),
        ((), {"RANK": "8", "WORLD_SIZE": "8"}, "from 0 to 7, in an island of 8"),
        ((), {"RANK": "first", "WORLD_SIZE": "8"}, "the rank of this machine, or SLURM_NODEID/SLURM_NNODES"),
    ],
)
def test_a_rank_outside_of_its_island_is_refused(
    options: tuple[int, ...], variables: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError) as error:
        found(*options, **variables)
    (fault,) = error.value.faults
    assert fault.expected.startswith(expected)


def test_wrong_options_start_nothing(tmp_path: Path, typed: Callable[..., Result]) -> None:
    joining = ("join", "tcp://127.0.0.1:9", "--name", "beta")
    for words in (
        ("--rank", "0", "--size", "2"),
        ("--island", "pod", "--rank", "2", "--size", "2"),
        ("--island", "two words", "--rank", "0", "--size", "2"),
        ("--island", "pod", "--rank", "0", "--size", "2", "--islands", "2"),
    ):
        refused = typed(tmp_path, *joining, *words)
        assert refused.exit_code == 2, words
    assert list(tmp_path.iterdir()) == []


def test_an_island_is_whole_once_every_rank_is_linked() -> None:
    up = {"b", "c", "d"}
    parts = IslandParts(up.__contains__)
    parts.record("d", IslandPart("other", 0, 2, "h"))
    parts.record("c", IslandPart("pod", 1, 2, "h"))
    assert parts.whole("c") == ()
    parts.record("b", IslandPart("pod", 0, 2, "10.0.0.2"))
    assert parts.whole("b") == parts.whole("c") == parts.together("c") == ("b", "c")
    assert parts.host("b") == "10.0.0.2"
    up.remove("b")
    assert parts.whole("c") == ()
    assert parts.together("c") == ("b", "c")  # What leaves together.
    parts.record("e", IslandPart("pod", 0, 2, "h"))  # In the place of one that is gone.
    up.add("e")
    assert parts.whole("c") == ("e", "c")
    assert parts.together("x") == ("x",)
    parts.record("c", None)
    assert parts.host("c") == ""


def test_two_machines_of_one_rank_and_of_two_sizes_are_refused() -> None:
    parts = IslandParts(lambda name: name != "gone")
    parts.record("b", IslandPart("pod", 0, 2, "h"))
    parts.record("b", IslandPart("pod", 0, 2, "h"))  # Its next announcement.
    for part, actual in ((IslandPart("pod", 0, 2, "h"), "two, with 'b'"), (IslandPart("pod", 1, 3, "h"), "one of 3")):
        with pytest.raises(ConfigError) as error:
            parts.record("c", part)
        assert error.value.faults[0].found == actual


def test_parts_on_the_loopback_of_two_machines_are_no_island() -> None:
    parts = IslandParts(lambda name: True)
    parts.record("b", IslandPart("pod", 0, 3, "127.0.0.1", loopback="one"))
    parts.record("c", IslandPart("pod", 1, 3, "127.0.0.1", loopback="one"))
    with pytest.raises(ConfigError) as error:
        parts.record("d", IslandPart("pod", 2, 3, "127.0.0.1", loopback="other"))
    assert error.value.faults[0].found == "loopback, 127.0.0.1, of another machine"
    parts.record("d", IslandPart("pod", 2, 3, "10.0.0.2"))


def test_a_part_says_whose_loopback_it_is_reached_at() -> None:
    here = [part_of("pod", 0, 2, {}, lambda host=host: host) for host in ("127.0.0.1", "::1", "10.0.0.2")]  # type: ignore[misc]
    assert [bool(part.loopback) for part in here] == [True, True, False]
    assert IslandPart.read(here[0].as_data()) == here[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"rank": 2},
        {"rank": -1},
        {"size": SIZE_MAX + 1},
        {"island": "../x"},
        {"host": ""},
        {"host": "a\nb"},
        {"rank": "x"},
    ],
)
def test_what_another_machine_announces_is_bounded(changed: dict[str, Any]) -> None:
    sound = {"island": "pod", "rank": 1, "size": 2, "host": "10.0.0.2"}
    assert IslandPart.read(sound).rank == 1
    assert IslandPart.read(IslandPart.read(sound).as_data()) == IslandPart.read(sound)
    with pytest.raises((ValueError, LookupError, TypeError)):
        IslandPart.read({**sound, **changed})


def test_the_others_reach_a_part_at_its_address_towards_the_home() -> None:
    assert host_towards("tcp://127.0.0.1:7400") == "127.0.0.1"
