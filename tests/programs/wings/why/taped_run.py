"""A run folder with tapes, of a run in virtual time: what `replay` and `why` read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Program, Task
from isthmus.programs.engine.request import new_spec, spec
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.sim.faults import Fault

TOKENS = 32


INTERVALS = Program("decoupled-diloco", interval=24)


def _loss(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def _batch(at: object) -> dict[str, np.ndarray]:
    x = at.rng().normal(size=(TOKENS, 8)).astype(np.float32)  # type: ignore[attr-defined]
    return {"x": x, "y": x.sum(1, keepdims=True)}


TASK = Task(
    lambda key: {"w": jax.random.normal(key, (8, 1)), "b": jnp.zeros(1)},
    _loss,
    _batch,
    tokens_per_batch=TOKENS,
    optimizer=optax.adamw(1e-2),
)
"""A task at hand, which no other process could import: neither command may try."""


def taped_run(
    world: Worlds,
    program: Program | str = INTERVALS,
    *,
    learners: int = 3,
    steps: int = 60,
    speeds: Sequence[float] = (),
    faults: Sequence[Fault] = (),
) -> Path:
    """The folder of a run that is over, as one in one process leaves it, but for the trace."""
    result = world.run(program, task=TASK, learners=learners, steps=steps, speeds=speeds, faults=faults)
    budget = {"learners": learners, "tokens": learners * steps * TOKENS, "seed": 0}
    request = prepare(program, TASK, run=budget, run_dir=result.folder.parent / "unused")
    spec.write(result.folder, new_spec.of(request, zero_ns=0, cpu_seconds=0.0, transport=spec.INPROC))
    (result.folder / "summary.json").write_text(json.dumps(result.summary))
    (result.folder / "tape").mkdir(exist_ok=True)
    for name, data in result.tapes.items():
        replica, _, life = name.partition("#")
        if not replica.endswith(("home", "station")):
            (result.folder / "tape" / f"{replica.replace('/', '-')}-{life or 1}.1.tape").write_bytes(data)
    return result.folder
