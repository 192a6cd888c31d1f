"""What people are told of a disk that does not take everything: while a run goes on, at its end, and afterwards."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from isthmus.programs.engine.recorder.summary import lines_missing
from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.results.reading import load
from isthmus.programs.engine.run import finish
from isthmus.programs.engine.run.finish import leave_behind
from isthmus.programs.study.terminal import figures
from isthmus.programs.study.terminal import status as status_view
from isthmus.programs.study.terminal.figures import FullDisk
from isthmus.programs.study.terminal.live import NoticeFeed
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import ConfigError, RunError
from isthmus.runtime.supervision.incidents import Delayed
from isthmus.runtime.system import files as store

FULL = "No space left on device"


def counts(**more: Any) -> dict[str, Any]:
    return {"written": 5, "waiting": 0, "lost": 0, "torn": 0, "error": None, **more}


def test_a_status_says_what_waits_and_what_is_lost_and_nothing_where_nothing_is() -> None:
    assert figures.disk({}) == ""
    assert figures.disk({"files": {"metrics": counts()}, "unsaved": {"fragments": 0, "error": None}}) == ""
    files = {"metrics": counts(waiting=12, error=FULL), "merges": counts(waiting=1, lost=1, error=FULL)}
    assert figures.disk({"files": files}) == f"{FULL}: 13 lines wait, 1 line is lost"
    unsaved = {"fragments": 2, "error": FULL}
    assert figures.disk({"files": {"metrics": counts()}, "unsaved": unsaved}) == f"{FULL}: the final model waits"
    assert figures.disk({"snapshots": {"faults": [], "error": FULL}}) == f"{FULL}: the next snapshot waits"
    assert ("disk", f"{FULL}: 1 line waits") in list(
        figures.merge_figures({"files": {"metrics": counts(waiting=1, error=FULL)}}, 2)
    )


def test_a_full_disk_is_named_by_where_it_is_and_on_which_machine() -> None:
    hosts = [
        {"name": "learner/0", "machine": "alpha", "full": ["/data"]},
        {"name": "learner/1", "machine": "beta", "full": ["/scratch"]},
        {"name": "learner/2", "machine": "beta", "full": ["/scratch"]},
        {"name": "learner/3", "machine": "gamma"},
    ]
    status: dict[str, Any] = {"daemon": "alpha", "full": ["/data"], "hosts": hosts}
    assert figures.full_disks(status) == [FullDisk("/data"), FullDisk("/scratch", "beta")]
    assert figures.full_disks({}) == []
    waiting = {"metrics": counts(waiting=12, error=FULL)}
    shown = figures.disk({**status, "files": waiting})
    assert shown == "the disk at /data, /scratch of beta is full: 12 lines wait"
    assert ("disk", shown) in list(figures.merge_figures({**status, "files": waiting}, 2))


def test_it_is_told_once_a_minute_and_that_it_has_room_again(tmp_path: Path) -> None:
    clock = [0.0]
    feed = NoticeFeed(tmp_path, lambda: round(clock[0] * 1e9))
    told: list[tuple[float, str]] = []
    for second in range(160):
        clock[0] = float(second)
        status = {"time": clock[0], "full": ["/data"] if second < 130 else []}
        told += [(second, notice.tone) for notice in feed.update(status)]
    assert told == [(0, "bad"), (60, "bad"), (120, "bad"), (134, "good")]
    assert [notice.at for notice in feed.notices] == [120.0, 134.0]  # A table shows the newest of one disk.
    quiet = NoticeFeed(tmp_path, lambda: 0, tells_disks=False)
    assert quiet.update({"time": 1.0, "full": ["/data"]}) == []


def test_a_store_that_takes_nothing_is_told_by_status_and_report(tmp_path: Path) -> None:
    store = {"url": "s3://bucket/run", "number": 0, "error": "Forbidden"}
    told = "snapshots do not reach s3://bucket/run: Forbidden; there is none there yet"
    assert ("snapshots", told) in list(figures.merge_figures({"snapshots": {"store": store}}, 2))
    there = {"snapshots": {"store": {**store, "number": 4, "error": None}}}
    assert ("snapshots", "4 at s3://bucket/run") in list(figures.merge_figures(there, 2))
    (tmp_path / "summary.json").write_text(json.dumps({"snapshot_store": store}))
    assert f"At the end, {told}." in load(tmp_path).problems


def test_a_summary_counts_what_still_waits_as_lost() -> None:
    files = {"metrics": counts(waiting=3, lost=2, error=FULL), "merges": counts(torn=1)}
    assert lines_missing(files) == {"lines_lost": 5, "lines_torn": 1, "disk_error": FULL}
    assert lines_missing({}) == {"lines_lost": 0, "lines_torn": 0, "disk_error": None}


def test_readers_leave_out_a_torn_line_and_say_so(tmp_path: Path) -> None:
    line = {"time": 1.0, "tokens": 10, "eval_loss": 2.0, "kind": "during"}
    whole = [json.dumps({**line, "time": time}) for time in (1.0, 2.0)]
    (tmp_path / "evaluations.jsonl").write_text(f'{whole[0]}\n{{"time": 1.5, "tok\n{whole[1]}\n{{"time": 3')
    (tmp_path / "summary.json").write_text(json.dumps({"lines_lost": 7, "disk_error": FULL}))
    record = load(tmp_path)
    assert [evaluation.time for evaluation in record.evaluations] == [1.0, 2.0]
    assert "evaluations.jsonl: 2 of 4 lines cannot be read and are left out." in record.problems
    assert f"7 lines were not written: the disk said '{FULL}'." in record.problems


def test_a_summary_is_tried_again_and_in_vain_only_for_so_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(FULL)

    store.insist(write, 10.0, pause=0.0)
    assert len(tries) == 3
    monkeypatch.setattr(finish, "SUMMARY_SECONDS_MAX", 0.0)
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(RunError, match=r"training is over \(done\), but .*summary.json could not be written for 0 s"):
        leave_behind(tmp_path, {"outcome": "done", "fragments": 0}, [], Instant(0))
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_status_says_why_a_host_is_not_started() -> None:
    error = "noting learner/1#2: daemon.sqlite cannot be written: disk I/O error"
    reason = msgspec.to_builtins(Delayed(error))
    host = {"name": "learner/1", "role": "learner", "pid": None, "phase": "gone", "state": "gone", "incarnation": 1}
    status = {"run": "runs/a", "outcome": "running", "training": {}, "hosts": [{**host, "reason": reason}]}
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(status_view.table(status, [], 160))
    assert f"learner/1  not started yet: {error}" in console.export_text()


def test_a_run_does_not_start_on_a_disk_that_does_not_take_its_first_files(tmp_path: Path) -> None:
    def prepare() -> None:
        with new_folder.prepared(tmp_path):
            (tmp_path / "config.toml").write_text("[run]\n")
            raise OSError(errno.ENOSPC, FULL)

    refused = f"Preparing the run folder {tmp_path}: expected a disk that takes its files, found {FULL}"
    with pytest.raises(ConfigError, match=refused):
        prepare()
    assert list(tmp_path.iterdir()) == []
