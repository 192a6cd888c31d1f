"""The command, with real runs in virtual time: what it makes, what it makes again, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from isthmus.programs.wings.why.replay import replay
from tests.patience import PATIENCE
from tests.programs.wings.compare.comparing import written

ISTHMUS = Path(sys.executable).with_name("isthmus")


@pytest.fixture
def compare(tmp_path: Path, typed: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Types `isthmus compare` of a small task; its runs have processes of their own."""

    def command(*arguments: str, status: int = 0, platforms: str = "cpu") -> Result:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        options = ["--task", written(tmp_path), "--learners", "2", "--tokens", "6400", "--set", "program.interval=12"]
        done = typed(tmp_path, "compare", *arguments, *options)
        assert done.exit_code == status, done.stderr
        return done

    return command


@pytest.mark.long
@pytest.mark.process
def test_a_comparison_goes_on_where_it_was_broken_off(compare: Callable[..., Result]) -> None:
    given = ("decoupled-diloco", "--seeds", "1", "--speeds", "1,0.5", "--margin", "0.1", "--json")
    compared = compare(*given)
    assert compared.stderr.startswith("Computing on what JAX_PLATFORMS names, ")
    first = json.loads(compared.stdout)
    assert first["devices"] == ["cpu"]
    one, alone = first["sides"]
    assert (one["name"], alone["name"]) == ("decoupled-diloco", "alone on 3,200 tokens")
    assert (first["clock"], first["speeds"], first["missing"]) == ("virtual", [1.0, 0.5], 0)
    assert one["finals"]["loss"]["mean"] == one["runs"][0]["finals"]["loss"]
    assert one["gain"]["mean"] == pytest.approx(alone["finals"]["loss"]["mean"] - one["finals"]["loss"]["mean"])
    assert one["finals"]["largest"]["mean"] > 0
    # 100 steps at 1.5 steps in 10 virtual ms, and the end of it.
    assert 0.6 < one["seconds"]["mean"] < 1.0
    assert one["runs"][0]["places"][-1]["bytes"] > one["runs"][0]["places"][0]["bytes"]
    folder = Path(first["folder"])
    run = folder / one["runs"][0]["folder"]
    assert all((run / name).exists() for name in ("config.toml", "graph.json", "trace.json", "report.html"))
    assert replay(run).is_identical

    (run / "summary.json").unlink()
    again = compare(*given)
    assert again.stderr.count("of 2") == 1  # The other one is not made again.
    second = json.loads(again.stdout)
    assert second["sides"][0]["runs"][0]["folder"].endswith("seed-0-2")
    assert second["sides"][0]["finals"] == one["finals"]  # Virtual time: the same bits.


@pytest.mark.long
@pytest.mark.process
def test_a_platform_that_jax_cannot_use_is_a_failure_and_never_a_silent_cpu(compare: Callable[..., Result]) -> None:
    done = compare("diloco", "--seeds", "1", "--speeds", "1", "--json", status=1, platforms="cuda")
    told = json.loads(done.stdout)
    assert (told["failed"], told["missing"], told["devices"]) == (2, 2, [])
    assert done.stderr.count("seed 0 failed") == 2


@pytest.mark.soak
@pytest.mark.process
def test_ctrl_c_ends_a_real_run_and_the_next_call_makes_it_again(tmp_path: Path) -> None:
    given = ["diloco", "--task", written(tmp_path), "--learners", "2", "--tokens", "640000", "--seeds", "1", "--json"]
    command = [str(ISTHMUS), "compare", *given, "--sweep", "program.interval=12,24", "--dir", "there"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "there" / "00-diloco-interval=12" / "seed-0" / "metrics.jsonl"
        while not (metrics.exists() and b"stepping" in metrics.read_bytes()):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    assert "0 of 3 runs are done; the same command goes on" in said
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [side["runs"][0]["folder"] for side in found["sides"]] == [
        "00-diloco-interval=12/seed-0-2",
        "01-diloco-interval=24/seed-0",
        "02-alone-on-320-000-tokens/seed-0",
    ]
    assert found["clock"] == "real"
    assert (tmp_path / "there" / "compare.html").exists()


def test_what_is_wrong_starts_nothing(tmp_path: Path, compare: Callable[..., Result]) -> None:
    given: tuple[Any, ...] = ("decopled", "--sweep", "program.interval", "--margin", "-1", "--seeds", "0")
    told = compare(*given, status=2).stderr
    for part in ("'decopled'", "section.key=value", "--margin", "--seeds"):
        assert part in told
    assert not (tmp_path / "runs").exists()
