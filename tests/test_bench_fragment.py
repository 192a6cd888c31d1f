"""The bench that takes a large fragment all the way round reaches into the runtime: what breaks where it cannot."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from isthmus import Task
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife

BENCH = Path(__file__).parent / "bench"
STAGES = {"extract", "answer", "way to the shard", "merge", "outer step", "way back", "adopt", "round"}


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_function_that_is_timed_exists() -> None:
    for name, patches in module(BENCH / "fragment" / "sitecustomize.py")._PATCHES.items():
        for owner, function, _, _ in patches:
            assert callable(getattr(getattr(importlib.import_module(name), owner), function))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_learner_holds_is_what_it_adopted(dtype: str) -> None:
    """Rounded to the dtype of its leaf; and the digests differ where a value does."""
    told = module(BENCH / "fragment" / "sitecustomize.py")
    told.PART_SIZE = 1500
    task: Task = module(BENCH / "memory" / "plain.py").task(values=4000, tensors=1, dtype=dtype)
    units = (Unit("sample", 0, 1000, (1000,), dtype=dtype), Unit("tensor0", 0, 4, (4, 1000), dtype=dtype))
    learner = Learner(task, (Fragment(0, units),), life=LearnerLife(0, 0, 1))
    learner.begin()
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    learner.replace(0, values.copy())
    found = told._adopted(None, learner, 0, values)
    assert found["held"] == found["expected"]
    assert (found["given"] == found["expected"]) == (dtype == "float32")
    values[4321] += 1.0
    assert told._adopted(None, learner, 0, values)["expected"] != found["held"]


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("code", ["float32", "int4"])
def test_a_small_fragment_goes_all_the_way_round(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.long.bench_fragment", "--values", "1_000_000", "--codes", code]
    command += ["--folder", str(tmp_path), "--json"]
    done = subprocess.run(command, cwd=BENCH.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["adoptions_equal"] >= 4
    assert set(found["seconds"]) >= STAGES | ({"decode"} if code == "int4" else set())
    assert {"learner-0", "learner-1", "syncer-0"} == set(found["peaks"])
    assert 0 < found["together"] < found["needed"]
