"""What was compiled for an island is found again by who places the same run, and by nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.cluster.placing import CompiledNeeds
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.wings.compile import compiling
from isthmus.programs.wings.compile.compiling import keep, kept_needs
from isthmus.programs.wings.compile.figures import CountedIsland, summed, target
from tests.programs.wings.compile.made import EXTRACT, LIMIT, MEGA, STEP, answer

TARGET = target("v6e:2x2")
CHIPS = Machine("chips", device=find("v6e", ""), devices=4)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    return str(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "isthmus" / "ahead" / "islands"


def request_of(text: str, **task: Any) -> Request:
    return prepare("decoupled-diloco", run={"learners": 2}, task_settings={"data": [text], **task})


def island() -> CountedIsland:
    return summed(TARGET, 1, answer(STEP, EXTRACT))


@pytest.mark.slow
def test_it_is_found_by_the_same_run_slot_and_kind_of_island_alone(text: str, cache: Path) -> None:
    request = request_of(text)
    assert kept_needs(request)(CHIPS, 1) is None
    keep(spec.of(request, zero_ns=0, cpu_seconds=0.0), {1: (TARGET, island())})
    found = CompiledNeeds(406 * MEGA, LIMIT, island().predicted_products_seconds, island().predicted_step_seconds)
    assert kept_needs(request)(CHIPS, 1) == found
    assert kept_needs(request)(CHIPS, 0) == found, "its batch is the same"
    assert kept_needs(request)(replace(CHIPS, devices=8), 1) is None
    assert kept_needs(request)(replace(CHIPS, device=find("v5p", "")), 1) is None
    assert kept_needs(request)(replace(CHIPS, device=None), 1) is None
    assert kept_needs(request_of(text, batch=16))(CHIPS, 1) is None
    assert kept_needs(request_of(text, width=32))(CHIPS, 1) is None


def test_other_sources_or_data_are_another_run(text: str) -> None:
    request = request_of(text)
    keep(spec.of(request, zero_ns=0, cpu_seconds=0.0), {0: (TARGET, island())})
    Path(text).write_text("Another text. " * 2000)
    assert kept_needs(request)(CHIPS, 0) is None


@pytest.mark.slow
def test_what_cannot_be_read_is_as_good_as_nothing(text: str, cache: Path) -> None:
    request = request_of(text)
    keep(spec.of(request, zero_ns=0, cpu_seconds=0.0), {0: (TARGET, island())})
    [path] = cache.iterdir()
    for torn in (b"", b"{", path.read_bytes()[:-5], b'{"memory_bytes": "much"}'):
        path.write_bytes(torn)
        assert kept_needs(request)(CHIPS, 0) is None


def test_all_islands_of_a_run_are_kept_for_one_reading_of_its_sources(
    text: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, read = request_of(text), list[str]()
    monkeypatch.setattr(compiling, "digest", lambda program, task: read.append(program) or program)
    keep(spec.of(request, zero_ns=0, cpu_seconds=0.0), {0: (TARGET, island()), 1: (target("v5p:2x2x1"), island())})
    assert len(list(cache.iterdir())) == 2
    assert read == ["decoupled-diloco"]
