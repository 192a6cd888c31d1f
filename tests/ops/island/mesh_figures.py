"""What a learner does on 1, 2, 4 and 8 CPU devices, as JSON; a process of its own, because jax counts devices once."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.optimizer import adamw, muon
from isthmus.ops.island.recipe import Recipe, of_loss
from isthmus.ops.island.schedule import RateSchedule
from isthmus.ops.kernels import coding
from isthmus.ops.learner.fragment_send import norms
from isthmus.programs.wings.data_parallel.jax_gradients import GradientLearner
from isthmus.runtime.host.contract import IslandDevices
from tests.ops.bodies import Spec

STEPS: Final = 20
EXCHANGES: Final = 50
COMPILED: Final[list[float]] = []


def init(key: Any) -> Any:
    keys = jax.random.split(key, 3)
    shapes = {"embedding": (256, 64), "hidden": (64, 128), "head": (128, 256)}
    matrices = {name: 0.1 * jax.random.normal(each, shapes[name]) for each, name in zip(keys, shapes, strict=True)}
    return {**matrices, "norm": jnp.ones(64)}


def loss(params: Any, batch: Any) -> Any:
    tokens = batch["tokens"].astype(jnp.int32)
    hidden = jax.nn.gelu((params["embedding"][tokens[:, :-1]] * params["norm"]) @ params["hidden"])
    scores = hidden @ params["head"]
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - right)


class LanguageTask:
    """A model of the next token by the one before it, on random tokens."""

    optimizer = adamw(peak=0.006, schedule=RateSchedule(0.2), weight_decay=0.1, clip=1.0)

    def recipe(self) -> Recipe:
        optimizer = self.optimizer
        return of_loss(init, loss, optimizer, (("embedding", "average"), ("head", "average"), ("**", "rda")))

    def batch(self, at: At) -> Any:
        return {"tokens": at.rng().integers(0, 64, (8, 33)).astype(np.uint8)}


class MuonTask(LanguageTask):
    """The same, its hidden matrix by Muon."""

    optimizer = muon(
        peak=0.006,
        schedule=RateSchedule(0.2),
        weight_decay=0.1,
        clip=1.0,
        is_hidden=lambda tree: {name: name == "hidden" for name in tree},
    )


def fragments_of(task: LanguageTask, count: int) -> tuple[Fragment, ...]:
    leaves = task.recipe().leaves()
    return partition([Spec(leaf.name, leaf.shape.shape, "float32", leaf.kind) for leaf in leaves], count)  # type: ignore[arg-type]


def learner_on(task: LanguageTask, fragments: tuple[Fragment, ...], devices: int, begin: int = 0) -> Learner:
    learner = Learner(task, fragments, life=LearnerLife(0, 0, 1), island=IslandDevices(("cpu",), devices, begin))
    learner.compile(task.batch(At(0, 0, 0)))
    learner.begin()
    return learner


def arrays(learner: Learner) -> list[jax.Array]:
    return [*learner._leaves, *learner._local]


def bytes_on(leaves: list[jax.Array]) -> Iterator[tuple[int, int]]:
    """(device, bytes) of every part of an array."""
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            yield shard.device.id, shard.data.nbytes


def figures(task: LanguageTask, fragments: tuple[Fragment, ...], devices: int) -> dict[str, Any]:
    learner = learner_on(task, fragments, devices)
    COMPILED.clear()
    payloads = [np.asarray(learner.extract(p)) for p in range(len(fragments))]
    losses = [float(learner.step(task.batch(At(0, 0, n)), n / STEPS)["loss"]) for n in range(STEPS)]
    coded = [codes_agree(learner, part, payloads[part.index], push) for part in fragments for push in CODED]
    COMPILED.clear()
    shardings = [leaf.sharding for leaf in arrays(learner)]
    donated = 0
    for n in range(EXCHANGES):
        p = n % len(fragments)
        learner.adopt(p, np.asarray(learner.extract(p), np.float32))
        before = arrays(learner)
        learner.step(task.batch(At(0, 0, STEPS + n)), 1.0)["loss"].block_until_ready()
        donated += sum(leaf.is_deleted() for leaf in before)
    leaves = arrays(learner)
    return {
        "losses": losses,
        "payloads": [hashlib.sha256(payload.tobytes()).hexdigest() for payload in payloads],
        "codes_agree": coded,
        "state_bytes": sum(leaf.nbytes for leaf in leaves),
        "device_bytes": sum(size for device, size in bytes_on(leaves) if device == 0),
        "replicated_bytes": sum(leaf.nbytes for leaf in leaves if leaf.sharding.is_fully_replicated),
        "executables": learner._functions.step._cache_size(),
        "compiled": len(COMPILED),
        "kept": [before == leaf.sharding for before, leaf in zip(shardings, leaves, strict=True)],
        "donated": donated / (EXCHANGES * len(leaves)),
        "widest": max(part_bytes(learner.extract(p)) for p in range(len(fragments))),
    }


def codes_agree(learner: Learner, fragment: Fragment, anchor: np.ndarray[Any, Any], push: Any) -> bool:
    """Whether the codes that its devices make are those that the host makes of what was extracted."""
    gradient = anchor - np.asarray(learner.extract(fragment.index), np.float32)
    expected = coding.encode(gradient, fragment, push)
    found = learner.code(fragment.index, anchor, push).fetch()
    both = [(each.codes.tobytes(), each.scales.tobytes()) for each in (expected, found)]
    return both[0] == both[1] and bool(np.allclose(found.norms, norms(gradient, fragment), rtol=1e-6, atol=0.0))


def averaged(task: Any, devices: int) -> list[float]:
    """The losses of a learner that steps along its own gradients."""
    learner = GradientLearner(task, 0, task.batch(At(0, 0, 0)), IslandDevices(("cpu",), devices))
    losses = []
    for n in range(3):
        told, gradient = learner.gradient(task.batch(At(0, 0, n)))
        learner.apply(gradient, 0.5)
        losses.append(told["loss"])
    return losses


def part_bytes(extracted: Any) -> int:
    """The most bytes of an extracted fragment that one device holds."""
    units = [extracted] if isinstance(extracted, jax.Array) else extracted._units
    held = Counter[int]()
    for device, size in bytes_on(units):
        held[device] += size
    return max(held.values())


def note_compilation(event: str, seconds: float, **_: Any) -> None:
    if event.endswith("backend_compile_duration"):
        COMPILED.append(seconds)


def main() -> None:
    jax.monitoring.register_event_duration_secs_listener(note_compilation)
    jax.config.update("jax_num_cpu_devices", 8)
    task = LanguageTask()
    fragments = fragments_of(task, 3)
    found = {str(devices): figures(task, fragments, devices) for devices in (1, 2, 4, 8)}
    by_muon = MuonTask()
    found["muon on 1"], found["muon on 4"] = (figures(by_muon, fragments, devices) for devices in (1, 4))
    print(json.dumps({**found, "averaged": [averaged(task, devices) for devices in (1, 4)]}))


if __name__ == "__main__":
    sys.exit(main())
