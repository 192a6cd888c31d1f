"""What a run that is done keeps to go on from, and what is left of it where it is not to be kept."""

from __future__ import annotations

from pathlib import Path

from isthmus.programs.engine.run.finish import drop_kept, kept
from isthmus.programs.engine.snapshots.snapshot_files import has_snapshot


def test_snapshots_and_local_state_are_kept_and_dropped_and_the_final_model_stays(tmp_path: Path) -> None:
    kept_names = ("snapshots/manifest.json", "snapshots/fragment-0-1-3.safetensors", "local/learner-0/1-8.safetensors")
    others = ("snapshots/final/fragment-0.safetensors", "metrics.jsonl")
    for name in (*kept_names, *others):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
    assert {str(path.relative_to(tmp_path)) for path in kept(tmp_path)} == {*kept_names}
    assert has_snapshot(tmp_path)
    drop_kept(tmp_path)
    assert kept(tmp_path) == []
    assert not has_snapshot(tmp_path)
    assert all((tmp_path / name).exists() for name in others)


def test_a_run_without_any_keeps_nothing(tmp_path: Path) -> None:
    assert kept(tmp_path) == []
    drop_kept(tmp_path)
