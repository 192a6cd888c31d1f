"""A run whose snapshots are at a URL: everything is killed, its folder is gone, and it goes on elsewhere; a store that
is cut off in the middle of a write costs nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.stored import StoreTerm, UrlStore
from tests.programs.engine.run.process_run import ISTHMUS, Run
from tests.programs.engine.snapshots.s3_server import BUCKET, Way, environment, serving

pytestmark = pytest.mark.process

URL = f"s3://{BUCKET}/run"
SETTINGS = ("run.snapshot_every_seconds=0.2", "program.interval=8", "program.outer_momentum=0.5")


@pytest.mark.long
def test_a_run_goes_on_from_a_url_in_another_folder_and_its_accounts_add_up(tmp_path: Path) -> None:
    with serving() as port:
        way = Way(port)
        with environment(way.port):
            sets = [part for each in (*SETTINGS, f"run.snapshots={URL}") for part in ("--set", each)]
            run = Run(tmp_path, *sets)
        store = UrlStore(URL)  # By itself, whatever becomes of the way there.
        try:
            run.wait_for(lambda: run.status()["training"].get("snapshots", {}).get("store", {}))
            run.wait_for(lambda: told(run)["number"] > 1 and told(run)["error"] is None)
            way.room = 700  # Of the next write.
            run.wait_for(lambda: told(run)["error"])
            merged = run.merges()
            run.wait_for_merges(10)
            way.room = None
            number = told(run)["number"]
            run.wait_for(lambda: told(run)["number"] > number + 1 and told(run)["error"] is None)
            kinds = [json.loads(line)["kind"] for line in (run.folder / "snapshots.jsonl").read_text().splitlines()]
            assert {"stored", "refused"} == set(kinds)
            alive = subprocess.run(
                [str(ISTHMUS), "train", "--resume", URL], cwd=run.here, capture_output=True, text=True, check=False
            )
            assert (alive.returncode, alive.stdout) == (2, "")
            assert "found one that goes on" in alive.stderr
            run.kill_all()
            merged = run.merges()
            shutil.rmtree(run.folder)
            assert merged
            run.folder = tmp_path / "elsewhere"
            command = [str(ISTHMUS), "train", "--resume", URL, "--run-dir", "elsewhere", "--learners", "1"]
            pipe = subprocess.PIPE
            run.command = subprocess.Popen(
                command, cwd=run.here, stdout=pipe, stderr=pipe, text=True, start_new_session=True
            )
            run.wait_for(lambda: run.merges() and run.epochs()[-1:] == [2])
            assert run.command.stdout is not None
            told_first = run.command.stdout.readline()
            assert told_first.startswith("goes on from snapshot ")
            assert " old: " in told_first
            assert "undone" not in told_first  # The store does not know what was trained after it.
            first = json.loads((run.folder / "merges.jsonl").read_text().splitlines()[0])
            assert first["momentum"] == first["origin"]
            assert first["origin"][1] > 0
            run.wait_for(lambda: any(name.startswith("snapshot-0002-") for name in store.names()))
            summary = run.stop()
        finally:
            run.close()
            way.close()
    assert [told for told in summary["books"]["differences"] if told["kind"] != "merges"] == []
    lives = {(life["learner"], life["incarnation"]) for life in summary["books"]["lives"]}
    assert lives == {(0, 1), (0, 2), (1, 1)}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".resume")]
    assert StoreTerm.parse((run.folder / FOLDER / "term").read_text().strip()).number == 2


def told(run: Run) -> dict[str, object]:
    """What the status says of the store."""
    found: dict[str, object] = run.status()["training"]["snapshots"]["store"]
    return found
