"""The functions of a run's learner, counted: lowered and compiled for CPU devices, which stand for those of an island.

What is computed by hand holds on any devices: bytes of state and batch, operations of products, payloads of fragments.
Of the compiler's figures only those are asserted that every compiler has to give. `test_libtpu` has the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.language_model import task
from tests.effort import soaked
from tests.patience import PATIENCE
from tests.shipped import TASK_SETTINGS

COUNT = """
    import json, sys
    import jax
    jax.config.update("jax_num_cpu_devices", 4)
    import msgspec
    from pathlib import Path
    from isthmus.programs.wings.compile.worker import counted
    from isthmus.programs.wings.compile.figures import KeptFigures
    from isthmus.programs.wings.compile.figures import Target
    from isthmus.programs.wings.compile.worker import calls
    from isthmus.programs.engine.request import spec
    from isthmus.programs.engine.request.request import Program
    from isthmus.programs.engine.request.request import prepare
    from isthmus.programs.engine.cluster.devices import find

    program, count, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    settings = {"layers": 1, "context": 16, "optimizer": "adamw", "data": (str(folder / "text.txt"),)}
    settings_of = {"decoupled-diloco": {"fragments": 2}, "streaming-diloco": {"fragments": 2, "alpha": 0.5}}
    program = Program(program, **settings_of.get(program, {}))
    request = prepare(program, task_settings=settings)
    told = spec.read(json.loads(json.dumps(spec.of(request, zero_ns=0, cpu_seconds=0.0))))
    devices = tuple(jax.devices()[:count])
    target, kept = Target("cpu", find("cpu", "testing"), count, {}), KeptFigures(folder / "kept")
    rounds = [
        [counted(call, target, kept, {}) for call in calls(told, 0, devices) if call.name in sys.argv[4:]]
        for _ in range(2)
    ]
    print(json.dumps([[msgspec.to_builtins(each) for each in functions] for functions in rounds]))
"""
SEQUENCES, CONTEXT, WIDTH, HIDDEN, VOCABULARY = 8, 16, 64, 172, 256


def counted(folder: Path, program: str, devices: int, *names: str) -> list[dict[str, dict[str, Any]]]:
    """Twice the functions of these names, on so many devices."""
    (folder / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", dedent(COUNT), program, str(devices), str(folder), *names]
    told = subprocess.run(command, env=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert told.returncode == 0, told.stderr
    return [{each["name"]: each for each in functions} for functions in json.loads(told.stdout)]


def products() -> int:
    """Operations of a step, by hand: 6 for each weight of a matrix and token, and 12 T W for a token's attention."""
    weights = 4 * WIDTH**2 + 3 * WIDTH * HIDDEN + WIDTH * VOCABULARY
    tokens = SEQUENCES * CONTEXT
    return 6 * weights * tokens + 12 * CONTEXT * WIDTH * tokens


def parameters(folder: Path) -> int:
    recipe = task(layers=1, context=CONTEXT, data=(str(folder / "text.txt"),)).recipe()
    return sum(prod(leaf.shape.shape) for leaf in recipe.leaves())


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("devices", [1, soaked(4)])
def test_a_learners_functions_are_counted(tmp_path: Path, devices: int) -> None:
    names = ("step", "extract/0", "extract/1", "replace/0")
    first, second = counted(tmp_path, "decoupled-diloco", devices, *names)
    step, size = first["step"], parameters(tmp_path)
    assert set(first) == set(names)
    assert [each["name"] for each in first.values() if each["is_step"]] == ["step"]
    assert (step["products"], step["unbounded"]) == (products(), 0)
    norms = 3 * WIDTH  # Small tensors lie whole on every device.
    assert step["state_bytes"] == 3 * 4 * ((size - norms) // devices + norms) + 4
    memory = step["compiled"]["memory"]
    assert memory["arguments"] >= step["state_bytes"] + step["given_bytes"] - 64  # Of arguments that no step needs.
    assert memory["aliased"] >= step["state_bytes"] - 64  # All of it is donated.
    assert (step["compiled"]["collectives"]["count"] > 0) == (devices > 1)
    assert first["extract/0"]["made_bytes"] + first["extract/1"]["made_bytes"] == 4 * size
    assert first["extract/0"]["products"] == 0
    assert not any(each["is_kept"] for each in first.values())
    assert second == {name: each | {"is_kept": True} for name, each in first.items()}


@pytest.mark.long
@pytest.mark.process
def test_of_what_survives_an_adoption_something_is_computed(tmp_path: Path) -> None:
    (first, _), size = counted(tmp_path, "streaming-diloco", 1, "adopt/0", "adopt/1"), parameters(tmp_path)
    assert first["adopt/0"]["given_bytes"] + first["adopt/1"]["given_bytes"] == 4 * size


@pytest.mark.soak
@pytest.mark.process
def test_a_step_of_averaged_gradients_is_two_functions(tmp_path: Path) -> None:
    (first, _), size = counted(tmp_path, "data-parallel", 4, "gradient", "apply", "moments"), parameters(tmp_path)
    assert [name for name, each in first.items() if each["is_step"]] == ["gradient", "apply"]
    assert first["gradient"]["products"] == products()
    assert first["gradient"]["state_bytes"] == 4 * size
    assert first["apply"]["state_bytes"] == 3 * 4 * size + 4


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(SHIPPED))
def test_in_every_program_one_body_of_a_learner_says_what_it_calls(tmp_path: Path, program: str) -> None:
    (tmp_path / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    settings = {"data": (str(tmp_path / "text.txt"),), **TASK_SETTINGS.get(program, {})}
    plan = prepare(program, task_settings=settings).plans["learner"]
    assert [node.name for node in plan.nodes if hasattr(node.body, "calls_on")] == ["inner-step"]
