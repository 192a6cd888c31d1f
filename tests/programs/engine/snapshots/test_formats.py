"""Run folders of each format of snapshots and books that can be read are read, reported, and gone on with.

A test here that fails for a new format says that the folder of it is missing, or that the reader of the one before has
gone: see `keep_format`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes
from isthmus.programs.engine.request import sources, spec
from isthmus.programs.engine.results.reading import load
from isthmus.programs.engine.results.run_files import check_files
from isthmus.programs.engine.run.resume import check_cut_off, resumed
from isthmus.programs.engine.snapshots import snapshots, stored
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER, MANIFEST
from isthmus.programs.engine.snapshots.snapshots import FORMAT, READABLE, Snapshots
from isthmus.programs.training import again
from isthmus.programs.wings.report.page import page
from isthmus.runtime.daemon.home_daemon import journal_of
from isthmus.runtime.system.disk import DISK
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import ISTHMUS
from tests.programs.engine.snapshots.keep_format import KEPT, PROGRAMS, SIZE_MAX, copied

KINDS = [(number, program) for number in READABLE for program in PROGRAMS]
of_each = pytest.mark.parametrize(("number", "program"), KINDS)


def test_there_is_a_folder_of_this_format_and_of_the_one_before() -> None:
    assert READABLE == (FORMAT - 1, FORMAT) == stored.READABLE
    assert [int(path.name) for path in sorted(KEPT.iterdir())] == list(READABLE)
    for number, program in KINDS:
        folder = KEPT / str(number) / program
        assert json.loads((folder / "run" / FOLDER / MANIFEST).read_text())["format"] == number
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= SIZE_MAX


@of_each
def test_it_is_read_and_reported(number: int, program: str, tmp_path: Path) -> None:
    folder = copied(number, program, tmp_path)
    check_files(folder, "Reading it")
    check_cut_off(folder, "Reading it")
    found = Snapshots(folder / FOLDER, None, DISK).read()
    assert found.manifest is not None
    assert not found.faults
    assert sorted(found.held) == [0, 1]
    assert all(np.isfinite(item["values"]).all() and item["version"][1] for item in found.held.values())
    assert bool(found.states) is (program == "streaming-diloco")
    assert bool(found.manifest.moments) is (program == "decoupled-diloco" and number >= 3)
    memory = books.load(folder, DISK)
    assert memory is not None
    trained = sum(tokens for _, _, tokens in memory.trained)
    assert trained > 0
    assert memory.shards.mergings()
    assert spec.load(folder).job.program == program
    assert (sources.load(folder) is None) is (number < 3)
    journal = journal_of(folder)
    assert journal is not None
    assert journal.used
    record = load(folder)
    assert [each for each in record.problems if "trace.json" not in each] == []  # That is left out of what is kept.
    assert record.text("outcome") == "interrupted"
    assert (record.number("tokens_total") or 0) >= trained
    assert len(page(record)) > 10_000


@pytest.mark.slow
@of_each
def test_it_may_go_on(number: int, program: str, tmp_path: Path) -> None:
    """Up to the start of its processes. Its sources are those of then."""
    folder = copied(number, program, tmp_path)
    before = Snapshots(folder / FOLDER, None, DISK).read().manifest
    assert before is not None
    submitted = resumed(str(folder), None, again, accepts=True)
    try:
        assert submitted.resumption is not None
        assert submitted.resumption.snapshot == before.number
        assert submitted.altered
        run_spec, [former] = spec.load(folder), list(spec.formers(folder))
        assert run_spec.graph().name  # Of sources of now.
        assert former.spec.run == run_spec.run
        memory = books.load(folder, DISK)
        assert memory is not None
        [alteration] = memory.alterations
        assert alteration.versions == [(entry.fragment, *entry.version) for entry in before.fragments]
        assert alteration.is_of_sources
        taken = Snapshots(folder / FOLDER, fragment_sizes(run_spec.graph()), DISK, life=9)
        found = taken.read()
        counted = {p: {**item, "version": [9, item["version"][1] + 1]} for p, item in found.held.items()}
        written = taken.write(counted, found.states)
        assert (written.format, written.number) == (snapshots.FORMAT, before.number + 1)
        assert Snapshots(folder / FOLDER, None, DISK).read().manifest == written
    finally:
        assert submitted.lock is not None
        submitted.lock.close()


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(("number", "program"), KINDS[:3])
def test_it_goes_on_to_its_end(number: int, program: str, tmp_path: Path) -> None:
    folder = copied(number, program, tmp_path)
    if number >= 3:  # Of learners in no lock-step the snapshot has the moments then.
        shutil.rmtree(folder / "local")
    before = json.loads((folder / "summary.json").read_text())
    total = str(before["tokens_total"] + 20_000)
    command = [str(ISTHMUS), "train", "--resume", "run", "--accept-changes", "--tokens", total, "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["tokens_budget"]) == ("done", int(total))
    assert [told for told in summary["books"]["differences"] if told["kind"] != "merges"] == []
    assert len(summary["alterations"]) == 1
    began = [json.loads(line).get("began") for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert ("snapshot" if program == "streaming-diloco" else "copy") in {each[0] for each in began if each}
