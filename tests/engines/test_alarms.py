"""The alarms of docs/examples, by the promtool of Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.process]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize(
    "words", [["check", "rules", "prometheus-alarms.yml"], ["test", "rules", "prometheus-alarms-test.yml"]]
)
def test_the_alarms_fire_on_what_they_are_for(words: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    done = subprocess.run([promtool, *words], cwd=EXAMPLES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
