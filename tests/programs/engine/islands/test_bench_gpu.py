"""The bench of a GPU, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.process
def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    bench = [sys.executable, "-m", "tests.bench.long.bench_gpu"]
    done = subprocess.run(bench, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr == (
        "Measuring on a GPU: expected an NVIDIA GPU, and jax with its plugin for CUDA, found none that jax can use. "
        "Run it on a machine that has one, after: pip install 'jax[cuda12]'.\n"
    )
