"""Runs of a model folder read their texts once on a machine, and go on where the cache of tokens cannot help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs import folder_task
from isthmus.programs.engine.request.request import find_task
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.reading import found, token_files
from isthmus.programs.reading.token_files import FOUND, MADE, NOT_KEPT
from tests.bench.long.bench_corpus import words_of, write_folder, write_rows
from tests.torch_tasks.test_data_tables import SETTINGS

pytestmark = [pytest.mark.torch]

ISTHMUS = str(Path(sys.executable).with_name("isthmus"))
HOOK = Path(__file__).parents[1] / "bench" / "tokenized"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer, and rows beside it."""
    where = tmp_path_factory.mktemp("model")
    words = words_of(0)[:500]
    write_folder(where / "it", words)
    write_rows(where / "rows.jsonl", words, 200_000)
    return where / "it"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    token_files._held.clear()
    return tmp_path / "cache" / "isthmus" / "tokens"


def data_of(folder: Path, **environment: str) -> dict[str, Any]:
    """What `isthmus data` says."""
    command = [ISTHMUS, "data", str(folder.with_name("rows.jsonl")), "--model", str(folder), "--json"]
    told = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True).stdout
    table: dict[str, Any] = json.loads(told)
    return table


@pytest.mark.process
def test_a_run_of_two_islands_makes_tokens_once_and_the_next_none(folder: Path, tmp_path: Path, cache: Path) -> None:
    counted = tmp_path / "counted"
    counted.touch()
    environment = {**os.environ, "PYTHONPATH": str(HOOK), "TOKENIZED": str(counted)}
    command = [ISTHMUS, "train", "--model", str(folder), "--data", str(folder.with_name("rows.jsonl"))]
    command += ["--learners", "2", "--tokens", "8000", "--set", "task.context=32", "--set", "task.batch=4", "--quiet"]
    losses, tables = [], []
    for name in ("first", "second"):
        run = tmp_path / name
        subprocess.run([*command, "--run-dir", str(run)], env=environment, check=True)
        table = json.loads((run / "data.json").read_text())
        assert table["cache"] == (MADE if name == "first" else FOUND)
        losses.append(json.loads((run / "summary.json").read_text())["eval_loss_initial"])
        tables.append({key: value for key, value in table.items() if key != "cache"})
    assert [line.partition(" ")[2] for line in counted.read_text().splitlines()] == [
        str(folder.with_name("rows.jsonl"))
    ]
    assert losses[0] == losses[1]
    assert tables[0] == tables[1]
    assert len(list(cache.iterdir())) == 1
    # Its own held-out text is in the same file, by the tokenizer that the run folder has.
    subprocess.run([ISTHMUS, "evaluate", str(tmp_path / "second")], env=environment, check=True)
    assert len(counted.read_text().splitlines()) == 1


@pytest.mark.process
def test_the_command_tells_whether_the_tokens_lay_in_the_cache(folder: Path, cache: Path, tmp_path: Path) -> None:
    first, second = data_of(folder), data_of(folder)
    assert (first.pop("cache"), second.pop("cache")) == (MADE, FOUND)
    assert first == second
    assert first["tokens"] > 20_000
    kept = sum(512 * path.stat().st_blocks for path in cache.iterdir())
    told = subprocess.run([ISTHMUS, "data", "--clear", "--json"], stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(told) == {"folder": str(cache), "files": 1, "bytes": kept, "in_use": 0, "in_use_bytes": 0}
    (tmp_path / "none").write_text("")
    without = data_of(folder, XDG_CACHE_HOME=str(tmp_path / "none"))
    assert (without["cache"], without["tokens"]) == (NOT_KEPT, first["tokens"])
    assert without["cache_reason"]


def test_a_request_looks_for_files_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    real = found._find
    monkeypatch.setattr(found, "_find", lambda *asked: looks.append(asked) or real(*asked))
    settings = {"folder": str(folder), "data": (str(folder.with_name("rows.jsonl")),), "context": 16, "batch": 2}
    find_task(None, settings, RunSettings(tokens=8000, learners=2))
    assert len(looks) == 1
    folder_task.data_table(SETTINGS.read(settings))
    assert len(looks) == 2
