"""A real run of a site that keeps its models, and of a machine that the run is to go without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from isthmus.ops.data.site_folders import NOTE
from isthmus.programs.trained.run_model import opened
from tests.patience import PATIENCE, wait_for
from tests.programs.engine.machine.cluster_place import Machines
from tests.programs.engine.machine.daemon_place import Place

SIZES = ("--set", "task.layers=1", "--set", "task.width=16", "--set", "task.heads=2", "--set", "task.context=16")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.slow
def test_a_site_keeps_its_own_last_model_and_that_of_all_and_goes_on_from_it(place: Place) -> None:
    folder = place.folder
    for name in ("alpha", "beta", "gamma"):
        (folder / f"{name}-data").mkdir()
        for number in range(3):
            (folder / f"{name}-data" / f"{number}.txt").write_text(f"{name} says {number}. " * 400)
    machines = Machines(place)
    machines.start("alpha")
    (folder / "machine.toml").write_text("[runs]\nkeep_own = true\n")  # Of those that join, who have data.
    joined = {name: machines.join("alpha", name, 1, "--data", f"{name}-data") for name in ("gamma", "beta")}
    wait_for(lambda: all("linked to alpha" in machines.lines(name) for name in joined))
    machines.here("alpha")
    asked = ("--learners", "0", "--tokens", "12000", "--data", "alpha-data", *SIZES, "--run-dir", "run")
    cluster = machines.cluster({})
    trained = place.call("train", "--cluster", cluster, "--set", 'run.leaves_out=["gamma"]', *asked)
    assert trained.returncode == 0, trained.stderr
    wait_for(lambda: "finished its part" in machines.lines("beta"))
    assert "takes part" not in machines.lines("gamma")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [row["learner"] for row in summary["per_learner"]] == [0]

    (models,) = (folder / "state-beta").glob("isthmus/runs/beta/*/models")
    assert sorted(os.listdir(models)) == ["global", "learner-0"]
    assert not list((folder / "state-gamma").rglob("models"))
    note = json.loads((models / "learner-0" / NOTE).read_text())
    assert (note["is_own"], note["is_final"], note["steps"]) == (True, True, summary["per_learner"][0]["steps"])
    final, of_all, own = (tensors(each) for each in (folder / "run", models / "global", models / "learner-0"))
    assert final.keys() == of_all.keys() == own.keys()
    assert all(np.array_equal(final[name], of_all[name]) for name in final)
    assert any(not np.array_equal(final[name], own[name]) for name in final)

    alone = ("--data", "beta-data", "--learners", "1", "--tokens", "3000", "--run-dir", "alone", "--quiet")
    went_on = place.call("train", "--from", str(models / "global"), *alone)
    assert went_on.returncode == 0, went_on.stderr
    told = json.loads((folder / "alone" / "summary.json").read_text())
    assert (told["begins_from"], told["program"]) == (str(models / "global"), "streaming-diloco")
    assert None not in (told["eval_loss_initial"], told["eval_loss_final"])
    for each in joined.values():
        each.terminate()
        each.wait(PATIENCE)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.slow
def test_a_home_whose_own_learners_train_on_data_of_its_owner_keeps_their_models_too(place: Place) -> None:
    folder = place.folder
    (folder / "texts").mkdir()
    for number in range(3):
        (folder / "texts" / f"{number}.txt").write_text(f"alpha says {number}. " * 400)
    (folder / "machine.toml").write_text('[runs]\ndata = ["texts"]\nkeep_own = true\n')
    machines = Machines(place)
    alpha = machines.start("alpha")
    asked = ("--learners", "1", "--tokens", "3000", *SIZES, "--run-dir", "run", "--quiet")
    trained = place.call("train", "--cluster", machines.cluster({}), *asked)
    assert trained.returncode == 0, trained.stderr
    alpha.wait_for_line("keeps the model of all")
    final, of_all, own = (tensors(folder / each) for each in ("run", "run/models/global", "run/models/learner-0"))
    assert final.keys() == of_all.keys() == own.keys()
    assert all(np.array_equal(final[name], of_all[name]) for name in final)
    assert alpha.end() == 0


def tensors(folder: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return opened(folder, "Testing").tensors
