"""The bench of a GPU, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "bench_gpu.py"


@pytest.mark.process
def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, str(BENCH)], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr == (
        "Measuring on a GPU: expected an NVIDIA GPU, and jax with its plugin for CUDA, found none that jax can use. "
        "Run it on a machine that has one, after: pip install 'jax[cuda12]'.\n"
    )
