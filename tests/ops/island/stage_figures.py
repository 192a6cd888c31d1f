"""What a learner does on stages of CPU devices, as JSON; a process of its own, because jax counts devices once."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import numpy as np
import optax

from isthmus.ops import transformer
from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.gang.mesh_sharding import AXES_DEFAULT, Axes
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.optimizer import adamw, muon
from isthmus.ops.island.recipe import Recipe, of_loss
from isthmus.ops.island.schedule import RateSchedule
from isthmus.ops.model_config import ModelConfig, Routing
from isthmus.runtime.host.contract import IslandDevices
from tests.ops.bodies import Spec
from tests.ops.island import mesh_figures
from tests.ops.island.mesh_figures import COMPILED, arrays, bytes_on, codes_agree, note_compilation, part_bytes

STEPS: Final = 20
CONFIG: Final = ModelConfig(layers=4, stacked=True, microbatches=4)
RATES: Final = {"peak": 0.006, "schedule": RateSchedule(0.2), "weight_decay": 0.1, "clip": 1.0}
OPTIMIZERS: Final[dict[str, Any]] = {
    "sgd": optax.sgd(0.1, momentum=0.9),
    "adamw": adamw(**RATES),
    "muon": muon(**RATES, is_hidden=transformer.is_hidden),
}
MESHES: Final[dict[str, Axes]] = {
    "1": AXES_DEFAULT,
    "2 stages": (("data", -1), ("stage", 2)),
    "4 stages": (("data", -1), ("stage", 4)),
    "2 x 2": (("data", 2), ("stage", 2)),
    "2 stages x 2 of matrices": (("data", -1), ("stage", 2), ("model", 2)),
}
DEVICES: Final = {"1": 1, "2 stages": 2}
EXCHANGES: Final = 4


class StagedTask(NamedTuple):
    """nano with 4 layers on random tokens."""

    optimizer: str
    mesh: Axes
    config: ModelConfig = CONFIG

    def recipe(self) -> Recipe:
        loss = transformer.loss if self.config.routing is None else transformer.balanced_loss
        rules = (("embedding", "average"), ("head", "average"), ("**", "rda"))
        bare = of_loss(
            partial(transformer.init, self.config), partial(loss, self.config), OPTIMIZERS[self.optimizer], rules
        )
        shard = {"layers/*/gate": ("stage", None, "model"), "layers/*/down": ("stage", "model")}
        rules_of_shard = tuple(shard.items()) if "model" in dict(self.mesh) else ()
        return replace(bare, mesh=self.mesh, shard=rules_of_shard, stacked=("layers/**",))

    def batch(self, at: At) -> Any:
        return {"tokens": at.rng().integers(0, 64, (8, self.config.context + 1)).astype(np.uint8)}


def fragments_of(task: StagedTask, count: int) -> tuple[Fragment, ...]:
    leaves = task.recipe().leaves()
    shapes = [Spec(leaf.name, leaf.shape.shape, "float32", leaf.kind, leaf.is_stacked) for leaf in leaves]  # type: ignore[arg-type]
    return partition(shapes, count)  # type: ignore[arg-type]


def learner_on(task: StagedTask, fragments: tuple[Fragment, ...], devices: int) -> Learner:
    learner = Learner(task, fragments, life=LearnerLife(0, 0, 1), island=IslandDevices(("cpu",), devices, 0))
    learner.compile(task.batch(At(0, 0, 0)))
    learner.begin()
    return learner


def losses_of(learner: Learner, task: StagedTask) -> list[float]:
    return [float(learner.step(task.batch(At(0, 0, n)), n / STEPS)["loss"]) for n in range(STEPS)]


def figures(mesh: str) -> dict[str, Any]:
    """All of a mesh with AdamW, and what the state weighs."""
    fragments = fragments_of(StagedTask("adamw", AXES_DEFAULT), 2)
    task = StagedTask("adamw", MESHES[mesh])
    learner = learner_on(task, fragments, DEVICES.get(mesh, 4))
    COMPILED.clear()
    payloads = [np.asarray(learner.extract(p)) for p in range(len(fragments))]
    losses = losses_of(learner, task)
    codes = [codes_agree(learner, part, payloads[part.index], "int4") for part in fragments]
    COMPILED.clear()
    shardings = [leaf.sharding for leaf in arrays(learner)]
    taken = []
    for n in range(EXCHANGES):
        p = n % len(fragments)
        given = np.asarray(learner.extract(p), np.float32) + np.float32(1 / 64)
        learner.adopt(p, given)
        taken.append(bool(np.array_equal(np.asarray(learner.extract(p)), given)))
        learner.step(task.batch(At(0, 0, STEPS + n)), 1.0)["loss"].block_until_ready()
    leaves = arrays(learner)
    return {
        "losses": losses,
        "payloads": [hashlib.sha256(payload.tobytes()).hexdigest() for payload in payloads],
        "taken": taken,
        "codes_agree": codes,
        "state_bytes": sum(leaf.nbytes for leaf in leaves),
        "device_bytes": max(sum(size for device, size in bytes_on(leaves) if device == d) for d in range(4)),
        "replicated_bytes": sum(leaf.nbytes for leaf in leaves if leaf.sharding.is_fully_replicated),
        "executables": learner._functions.step._cache_size(),
        "compiled": len(COMPILED),
        "kept": [before == leaf.sharding for before, leaf in zip(shardings, leaves, strict=True)],
        "widest": max(part_bytes(learner.extract(p)) for p in range(len(fragments))),
    }


def losses_on(mesh: str, optimizer: str, config: ModelConfig = CONFIG) -> list[float]:
    """The losses of 20 steps."""
    task = StagedTask(optimizer, MESHES[mesh], config)
    return losses_of(learner_on(task, (), DEVICES.get(mesh, 4)), task)


def averaged(mesh: str) -> list[float]:
    """The losses of a learner that steps along its own gradients."""
    return mesh_figures.averaged(StagedTask("adamw", MESHES[mesh]), DEVICES.get(mesh, 4))


EXPERTS: Final = replace(CONFIG, routing=Routing(4))
PARTS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "exchanges": lambda: {mesh: figures(mesh) for mesh in ("1", "2 stages", "2 x 2")},
    "losses": lambda: {
        "adamw": {"4 stages": losses_on("4 stages", "adamw")},
        "sgd": {mesh: losses_on(mesh, "sgd") for mesh in ("1", "4 stages")},
        "muon": {mesh: losses_on(mesh, "muon") for mesh in ("1", "2 stages")},
        "experts": {mesh: losses_on(mesh, "adamw", EXPERTS) for mesh in ("1", "2 stages")},
    },
    "all": lambda: {
        **{mesh: figures(mesh) for mesh in MESHES},
        **{optimizer: {mesh: losses_on(mesh, optimizer) for mesh in MESHES} for optimizer in OPTIMIZERS},
        "experts": {mesh: losses_on(mesh, "adamw", EXPERTS) for mesh in MESHES},
        "averaged": {mesh: averaged(mesh) for mesh in MESHES},
    },
}


def main() -> None:
    jax.monitoring.register_event_duration_secs_listener(note_compilation)
    jax.config.update("jax_num_cpu_devices", 4)
    print(json.dumps(PARTS[sys.argv[1]]()))


if __name__ == "__main__":
    main()
