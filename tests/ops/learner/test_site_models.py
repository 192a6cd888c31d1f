"""The models that a learner leaves for its site: which they are, and that they are whole or not there."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from isthmus.ops.data.site_folders import GLOBAL, NOTE, OWN, folder_of
from isthmus.ops.learner.boundary import Boundary, Companion
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.learner.site_models import SiteModels
from isthmus.runtime.system.disk import KernelDisk
from tests.ops.bodies import Context, SmallTask, fragments_of, pull, update
from tests.ops.learner.test_inner_step import batch, drive


class Disk(KernelDisk):
    """A disk whose writes take place at once, and which has `room` for so many files."""

    room = 99

    def create(self, path: Path) -> Any:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "no room")
        return super().create(path)


@dataclass(frozen=True)
class SiteTask(SmallTask):
    """The small task on data of a site that keeps the models."""

    def companions(self, boundary: Boundary) -> list[Companion]:
        return [SiteModels(boundary)]


class Site:
    """A learner in slot 3, which has adopted first versions and made two steps."""

    def __init__(self, folder: Path) -> None:
        self.task = SiteTask()
        self.parts = fragments_of(self.task, 2)
        self.context = Context(slot=3)
        self.disk = self.context.disk = Disk()  # type: ignore[attr-defined]
        self.context.folder = folder
        self.body = InnerStep(self.task, fragments=self.parts, report_every=2, run=RunTerms(tokens=1000))
        self.body.open(self.context)
        self.adopt(0, 0.5)
        for position in range(2):
            drive(self.body, batch=batch(self.task, position))

    def adopt(self, count: int, value: float, **terms: Any) -> None:
        drive(self.body, update={("syncer/0", part.index): update(part, count, value, **terms) for part in self.parts})

    @property
    def values(self) -> list[Any]:
        """The present parameters, by fragment."""
        return [np.array(self.body._learner.extract(part.index)) for part in self.parts]

    def left(self, model: str) -> list[Any]:
        """The values of a model that was left, by fragment."""
        self.body.close()
        folder = folder_of(self.context.folder, 3)
        assert (folder / NOTE).exists()
        files = [load_file(folder / model / f"fragment-{part.index}.safetensors") for part in self.parts]
        return [
            np.concatenate([file[unit.name].ravel() for unit in part.units])
            for part, file in zip(self.parts, files, strict=True)
        ]

    def note(self) -> Any:
        return json.loads((folder_of(self.context.folder, 3) / NOTE).read_text())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def same(found: list[Any], expected: list[Any]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_own_last_model_is_that_before_the_first_adoption_behind_the_last_step(site: Site) -> None:
    before = site.values
    first, second = site.parts
    final = {"kind": "final"}
    drive(site.body, update={("syncer/0", 0): update(first, 1, 7.0)}, pull={("syncer/0", 1): pull(1, 2, **final)})
    drive(site.body, update={("syncer/0", 1): update(second, 1, 7.0, **final)})
    assert not folder_of(site.context.folder, 3).exists()
    drive(site.body, update={("syncer/0", 0): update(first, 2, 8.0, **final)})
    assert same(site.left(OWN), before)
    assert same(site.left(GLOBAL), [np.full(first.size, 8.0), np.full(second.size, 7.0)])
    assert site.note() == {
        "learner": 3,
        "incarnation": 1,
        "steps": 2,
        "tokens": 16,
        "has_own": True,
        "is_final": True,
        "versions": [[1, 2], [1, 1]],
    }


def test_what_is_adopted_on_the_way_is_no_end(site: Site) -> None:
    site.adopt(1, 3.0)
    drive(site.body, batch=batch(site.task, 2))
    before = site.values
    site.adopt(2, 4.0, kind="final")
    assert same(site.left(OWN), before)
    assert site.note()["steps"] == 3


@pytest.mark.parametrize("adopts", [True, False])
def test_a_learner_that_leaves_leaves_what_it_had_itself(site: Site, *, adopts: bool) -> None:
    before = site.values
    site.context.is_leaving = True
    if adopts:
        site.adopt(1, 3.0)
    assert same(site.left(OWN), before)
    assert same(site.left(GLOBAL), [np.full(part.size, 3.0 if adopts else 0.5) for part in site.parts])
    assert site.note()["is_final"] is False


def test_parameters_that_are_not_finite_are_no_model(site: Site) -> None:
    bad = {name: np.full_like(values, np.nan) for name, values in batch(site.task, 0).items()}
    drive(site.body, batch=bad)
    site.adopt(1, 3.0, kind="final")
    assert same(site.left(GLOBAL), [np.full(part.size, 3.0) for part in site.parts])
    assert site.note()["has_own"] is False
    assert not (folder_of(site.context.folder, 3) / OWN).exists()


def test_of_an_island_of_several_processes_only_what_was_read_in_time_is_known(site: Site) -> None:
    site.context.island = type("Island", (), {"size": 2})()  # type: ignore[assignment]
    assert same(site.left(GLOBAL), [np.full(part.size, 0.5) for part in site.parts])
    assert site.note()["has_own"] is False


def test_a_learner_without_a_step_leaves_nothing(tmp_path: Path) -> None:
    task, context = SiteTask(), Context()
    context.disk, context.folder = Disk(), tmp_path  # type: ignore[attr-defined]
    body = InnerStep(task, fragments=fragments_of(task, 2), report_every=2, run=RunTerms(tokens=1000))
    body.close()  # Of a host that was never opened.
    body.open(context)
    body.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("room", range(5))
def test_a_disk_that_is_full_leaves_no_part_that_counts(site: Site, room: int) -> None:
    site.disk.room = room
    site.adopt(1, 3.0, kind="final")
    site.body.close()
    assert not (folder_of(site.context.folder, 3) / NOTE).exists()
    assert not list(site.context.folder.rglob(".*")), "nothing is left beside"


def test_those_of_a_later_life_replace_those_of_a_former_one(site: Site, tmp_path: Path) -> None:
    site.adopt(1, 3.0, kind="final")
    site.body.close()
    later = Site(tmp_path)
    before = later.values
    later.adopt(4, 9.0, kind="final")
    assert same(later.left(OWN), before)
    assert later.note()["versions"] == [[1, 4], [1, 4]]
