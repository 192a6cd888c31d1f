"""How a run that was interrupted goes on: the command, by how it was begun and what it has kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from isthmus.programs.engine.run.going_on import GoingOn, going_on
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER, MANIFEST
from tests.programs.engine.results import whole_files

RUN = {"tokens": 1, "learners": 1, "slots_max": 1}
BEGUN = ["/venv/bin/isthmus", "train", "--tokens", "1e9"]


def told() -> dict[str, Any]:
    """A spec as data, but for section `run.`."""
    job = {"program": "decoupled-diloco", "task": "", "layout": [], "tokens_per_batch": 1, "settings": {},
           "tokens_by_slot": [], "has_gradients": False}  # fmt: skip
    here = {"address": "127.0.0.1", "learners": 1, "wall_ns": 0}
    return {"run": "run-1", "fingerprint": "", "roles": {}, "most": {}, "least": {}, "computing": [],
            "zero_ns": 0, "cpu_seconds": 0.0, "here": here, "job": job}  # fmt: skip


def folder_of(here: Path, *, argv: list[str] | None = None, home: str = "", is_kept: bool = True) -> Path:
    """The folder of a run that was begun so, with a snapshot if it `is_kept`."""
    folder = here / "my run"
    (folder / FOLDER).mkdir(parents=True)
    (folder / "config.toml").write_text("[run]\n")
    (folder / "summary.json").write_text(json.dumps(whole_files.summary(outcome="interrupted")))
    if argv is not None:
        (folder / "spec.json").write_text(json.dumps({**told(), "settings": {**RUN, "argv": argv}}))
    if home:
        (folder / "cluster.json").write_text(json.dumps({"home": home, "sites": []}))
    if is_kept:
        (folder / FOLDER / MANIFEST).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("made", "way"),
    [
        ({"argv": BEGUN}, GoingOn("resume", "isthmus train --resume 'my run'")),
        (
            {"argv": [*BEGUN, "--run-dir", "my run", "--resume-or-start"]},
            GoingOn("same command", "isthmus train --tokens 1e9 --run-dir 'my run' --resume-or-start"),
        ),
        (
            {"argv": BEGUN, "is_kept": False},
            GoingOn("begin again", "isthmus train --config 'my run/config.toml'"),
        ),
        ({"argv": [*BEGUN, "--cluster", "cluster.toml"], "home": "alpha"}, GoingOn("daemon", home="alpha")),
        ({}, GoingOn("daemon")),
    ],
)
def test_the_way_on_is_that_by_which_a_run_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], way: GoingOn
) -> None:
    folder = folder_of(tmp_path, **made)
    monkeypatch.chdir(tmp_path)
    found = going_on(folder, "interrupted")
    assert found == way
    assert way.command in way.words()
    assert way.home in way.words()
    assert [going_on(folder, outcome) for outcome in ("done", "stopped", "failed")] == [None] * 3


def test_one_that_is_looked_at_from_elsewhere_is_named_by_its_whole_path(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, argv=BEGUN)
    assert going_on(folder, "interrupted") == GoingOn("resume", f"isthmus train --resume '{folder}'")


def test_a_status_has_it(tmp_path: Path, typed: Callable[..., Result]) -> None:
    folder = folder_of(tmp_path, argv=BEGUN)
    done = typed(tmp_path, "status", str(folder), "--json")
    assert json.loads(done.stdout)["go_on"] == {
        "way": "resume",
        "command": "isthmus train --resume 'my run'",
        "home": "",
    }
