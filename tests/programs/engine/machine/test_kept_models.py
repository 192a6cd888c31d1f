"""The models that a run of another home leaves on a site: folders that commands read as those of any run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import isthmus
from isthmus.ops.data.site_folders import FOLDER, GLOBAL, NOTE, OWN, folder_of
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.learner.site_models import encoded
from isthmus.programs.command import beginning
from isthmus.programs.engine.machine import kept_models
from isthmus.programs.engine.recorder.graph_parts import fragments_in
from isthmus.programs.engine.request import new_spec, reference, spec
from isthmus.programs.engine.request.own_data import OwnData
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.weights import weights_of
from isthmus.programs.trained.text_model import settings_of

TERMS = SiteTerms("0" * 32, 4000, 4000, keeps_own=True)


class Part:
    """The part that a site has in a run of two learners, whose models have a number each as their values."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        (folder / "theirs.txt").write_text("xyz " * 1000)
        self.data = folder / "ours.txt"
        self.data.write_text("abc " * 1000)
        sizes = {"layers": 1, "width": 16, "heads": 2, "context": 16}
        request = prepare(
            run={"tokens": 20_000, "learners": 2, "snapshots": str(folder / "store")},
            task_settings={"data": [str(folder / "theirs.txt")], "batch": 4, **sizes},
        )
        self.fragments = fragments_in(request.graph)
        fields = new_spec.of(request, zero_ns=0, cpu_seconds=0.0)
        own = asdict(OwnData((str(self.data),), TERMS))
        self.folder.mkdir()
        here = {**fields["here"], "own_data": own, "secret": "/x/key"}
        spec.write(self.folder, {**fields, "here": here})
        self.spec = spec.load(self.folder)

    def leave(self, slot: int, value: float, count: int = 3, *, has_own: bool = True, is_final: bool = True) -> None:
        """What the learner in a slot leaves: `value` as its own model, and 1 more as that of all."""
        left = folder_of(self.folder, slot)
        for name, number in (*([(OWN, value)] if has_own else []), (GLOBAL, value + 1)):
            (left / name).mkdir(parents=True, exist_ok=True)
            for each in self.fragments:
                data = encoded(each, np.full(each.size, number, np.float32))
                (left / name / f"fragment-{each.index}.safetensors").write_bytes(data)
        note = {"learner": slot, "has_own": has_own, "is_final": is_final, "versions": [[1, count]]}
        (left / NOTE).write_text(json.dumps(note))

    def keep(self) -> kept_models.KeptModels:
        kept_models.begin(self.folder, self.spec)
        return kept_models.keep_left(self.folder)


@pytest.fixture
def part(tmp_path: Path) -> Part:
    return Part(tmp_path)


def value_of(folder: Path) -> float:
    """The one value of all parameters of a model, as `load` reads it."""
    leaves = [np.asarray(leaf) for _, leaf in named_leaves(isthmus.load(folder))]
    values = np.unique(np.concatenate([leaf.ravel() for leaf in leaves]))
    assert len(values) == 1
    return float(values[0])


def test_they_are_read_as_the_models_of_any_run_and_others_begin_from_them(part: Part) -> None:
    part.leave(0, 1.0)
    part.leave(1, 5.0, count=4)
    kept = part.keep()
    assert [each.name for each in kept.own] == ["learner-0", "learner-1"]
    assert kept.of_all is not None
    assert [value_of(each) for each in (*kept.own, kept.of_all)] == [1.0, 5.0, 6.0]
    weights = weights_of(kept.of_all, part.fragments)
    assert (weights.missing, weights.more) == ([], [])
    assert json.loads((kept.own[1] / NOTE).read_text())["is_own"] is True
    settings = settings_of(kept.of_all, "Testing")
    assert settings is not None
    assert (settings["layers"], settings["data"]) == (1, (str(part.data),))
    assert beginning.of_model(kept.of_all)["task", "width"] == 16


def test_nothing_of_the_machine_or_of_its_home_is_in_them(part: Part) -> None:
    part.leave(0, 1.0)
    (kept,) = part.keep().own
    here = json.loads((kept / spec.SPEC).read_text())["here"]
    assert (here["secret"], here["reaches"]) == ("", [])
    assert "store" not in (kept / "config.toml").read_text()
    text = reference.parse(part.spec.job.task.text, "Testing").keywords or {}
    assert str(text["data"][0]) not in (kept / "config.toml").read_text()


def test_the_final_model_of_all_comes_before_a_newer_version_of_one_that_has_left(part: Part) -> None:
    part.leave(0, 1.0, count=9, is_final=False)
    part.leave(1, 5.0, count=4)
    kept = part.keep()
    assert kept.of_all is not None
    assert value_of(kept.of_all) == 6.0


def test_what_is_not_whole_does_not_count_and_what_there_is_is_told(part: Part) -> None:
    part.leave(0, 1.0)
    part.leave(1, 5.0, has_own=False)
    (folder_of(part.folder, 0) / NOTE).unlink()  # It is written last.
    kept = part.keep()
    assert (kept.own, kept.of_all is None) == ([], False)
    assert sum(str(kept.of_all) in line for line in kept.lines) == 2
    nothing = kept_models.keep_left(part.folder.parent)
    assert (nothing.own, nothing.of_all, list(nothing.lines)) == ([], None, [])


def test_those_of_a_run_that_went_on_replace_those_before(part: Part) -> None:
    for value in (1.0, 2.0):
        part.leave(0, value)
        (kept,) = part.keep().own
        assert value_of(kept) == value
    assert kept_models.bytes_kept(part.folder.parent)[0] == 2
    assert not [path for path in (part.folder / kept_models.MODELS).iterdir() if path.name.startswith(".")]


def test_a_daemon_that_ended_while_it_kept_them_keeps_them_once_more(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    part.leave(0, 1.0)

    def ended(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", ended)
        with pytest.raises(KeyboardInterrupt):
            part.keep()
    assert not (part.folder / kept_models.MODELS / "learner-0").exists()
    (kept,) = part.keep().own
    assert value_of(kept) == 1.0
    assert (part.folder / FOLDER).is_dir()
