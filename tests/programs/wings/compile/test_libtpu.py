"""The compiler of TPUs itself, where it is installed: the optional extra `tpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed: pip install '.[tpu]'"),
]

SECONDS_MAX = 300
SETTINGS = ("--set", "task.layers=1", "--set", "program.fragments=2")


def compiled(folder: Path, status: int, *arguments: str) -> dict[str, object]:
    """The island that `isthmus compile --json` tells of."""
    (folder / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    command = [str(Path(sys.executable).parent / "isthmus"), "compile", "--data", "text.txt", "--json", *arguments]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == status, done.stderr
    (island,) = json.loads(done.stdout)["islands"]
    return dict(island)


@pytest.mark.timeout(SECONDS_MAX)
def test_an_island_that_is_not_here_is_compiled_for_once(tmp_path: Path) -> None:
    first = compiled(tmp_path, 0, *SETTINGS, "--island", "v6e:2x2")
    assert (first["device_kind"], first["devices"], first["hosts"], first["fits"]) == ("TPU v6 lite", 4, 1, True)
    limit = first["memory_limit_bytes"]
    assert isinstance(limit, int)
    assert 31 << 30 < limit < 32 << 30  # libtpu keeps some for itself: 31.25 GiB with 0.0.42, 31.24 with 0.0.50.
    assert first["is_kept"] is False
    second = compiled(tmp_path, 0, *SETTINGS, "--island", "v6e:2x2")
    assert second["is_kept"] is True
    assert second["memory_bytes"] == first["memory_bytes"]


@pytest.mark.timeout(SECONDS_MAX)
def test_a_model_that_is_too_large_does_not_fit(tmp_path: Path) -> None:
    large = {"task.layers": 3, "task.width": 12288, "program.fragments": 24}
    settings = [word for name, value in large.items() for word in ("--set", f"{name}={value}")]
    island = compiled(tmp_path, 1, *settings, "--island", "v6e:1x1")
    assert (island["fits"], island["devices"], island["helps"]) == (False, 1, ["more-devices"])
    assert island["memory_bytes"] > island["memory_limit_bytes"]  # type: ignore[operator]
