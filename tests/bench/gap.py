"""What closes the gap between decoupled learners and data-parallel: variants of both, in one loop, a first look.

    python -m tests.bench.gap [VARIANT ...] [--program decoupled|data-parallel] [--tokens 1020000] [--seed 100]
                              [--learners 4] [--model nano]

Learners of the shipped task in lock-step, one after another, one step of overlap, eight fragments, equal weights;
batches, first parameters, schedule and evaluation are those of `isthmus train` with the same seed. It knows what the
programs do not: settings that were tried and not kept. `bench_line.py` is the same for a GPU, with all learners in one
computation; what is pure here is shared with it, and so imports nothing but jax and numpy. A variant is
KEY=VALUE[,KEY=VALUE...]:

    optimizer=adamw|muon lr warm b1 b2 (of AdamW) mu (of Muon) rms (of its update)     the inner optimizer
    eta omu (momentum) merge=rda|average emb=average|rda (embedding, head) eta_emb     the outer step
    eta_end=X: the outer rate goes from eta to this, linearly over the run
    H P batch one=1 (data-parallel along one learner's batch)                          the exchange
    grow=1 / shrink=1: H / 2, H, 2 H in a third of the run each, or the reverse
    levels=7|3|1: outer gradients in codes of -levels to levels, that is 4, 3 or 2 bits, scaled as int4 is
    tail=1: the mean of the last 2, 4, 8, 16 versions, and the learners' own models, evaluated as well
    share=24: every so many steps all learners get the mean of Adam's second moments
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops import transformer

EVALUATION_BATCH, EVALUATIONS = 8, 32
EMBEDDING_LIKE = ("embedding", "head")
# The shipped optimizers and merge have their own copies of the following: the reference does not read them from there,
# and `tests/test_bench_line.py` compares.
FINAL_SHARE, EPSILON, WEIGHT_DECAY, CLIP, CANCELLED_SHARE = 0.05, 1e-8, 0.1, 1.0, 0.2
DEFAULTS = {
    "optimizer": "adamw", "lr": 0.006, "warm": 0.2, "b1": 0.9, "b2": 0.95, "mu": 0.95, "rms": 0.2, "eta": 0.7,
    "omu": 0.3, "merge": "rda", "emb": "average", "eta_emb": 0.0, "eta_end": 0.0, "H": 24, "P": 8, "batch": 8, "one": 0,
    "grow": 0, "shrink": 0, "tail": 0, "share": 0, "levels": 0,
}  # fmt: skip


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def is_hidden(name: str) -> bool:
    """Whether Muon steps this tensor."""
    return name.startswith("layers/") and not name.endswith("norm")


def loss(config: transformer.ModelConfig, flat: dict[str, Any], tokens: Any) -> Any:
    return transformer.loss(config, nested(flat), {"tokens": tokens})


def orthogonal(x: Any) -> Any:
    """Five iterations of Newton and Schulz, of a stack of matrices."""
    if x.shape[-2] > x.shape[-1]:
        return jnp.swapaxes(orthogonal(jnp.swapaxes(x, -1, -2)), -1, -2)
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8)
    for _ in range(5):
        a = x @ jnp.swapaxes(x, -1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def turned(updates: dict[str, Any]) -> dict[str, Any]:
    shapes: dict[Any, list[str]] = {}
    for name, update in updates.items():
        shapes.setdefault(update.shape, []).append(name)
    stacks = {shape: orthogonal(jnp.stack([updates[name] for name in names])) for shape, names in shapes.items()}
    return {name: stacks[shape][i] for shape, names in shapes.items() for i, name in enumerate(names)}


def inner_step(
    config: transformer.ModelConfig, w: Any, moments: Any, tokens: Any, lr: Any, of: Any, *, muon: bool
) -> Any:
    """(parameters, moments) after a step of AdamW, or of Muon for the hidden matrices."""
    grads = jax.grad(partial(loss, config))(w, tokens)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    grads = {name: g * jnp.minimum(1.0, CLIP / norm) for name, g in grads.items()}
    first, second, count = moments
    count = count + 1
    by_muon = [name for name in w if muon and is_hidden(name)]
    rate = {name: of["mu"] if name in by_muon else of["b1"] for name in w}
    first = {name: rate[name] * first[name] + (1 - rate[name]) * grads[name] for name in w}
    second = {name: of["b2"] * second[name] + (1 - of["b2"]) * grads[name] ** 2 for name in w}
    ahead = turned({name: of["mu"] * first[name] + (1 - of["mu"]) * grads[name] for name in by_muon})
    stepped = {}
    for name in w:
        if name in by_muon:
            update = ahead[name] * of["rms"] * math.sqrt(max(w[name].shape))
        else:
            mean, square = first[name] / (1 - of["b1"] ** count), second[name] / (1 - of["b2"] ** count)
            update = mean / (jnp.sqrt(square) + EPSILON)
        decay = WEIGHT_DECAY * w[name] if w[name].ndim >= 2 else 0.0
        stepped[name] = w[name] - lr * (update + decay)
    return stepped, (first, second, count)


def fresh(w: Any) -> Any:
    zeros = {name: jnp.zeros_like(leaf) for name, leaf in w.items()}
    return zeros, {name: jnp.zeros_like(leaf) for name, leaf in w.items()}, jnp.zeros(())


def hyperparameters(of: Mapping[str, Any]) -> dict[str, Any]:
    """What `inner_step` reads of the settings, as float32."""
    return {name: jnp.float32(of[name]) for name in ("b1", "b2", "mu", "rms")}


def learning_rate(of: Mapping[str, Any], progress: float) -> float:
    warm: float = of["warm"]
    cosine = FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * (progress - warm) / (1 - warm))) / 2
    return float(of["lr"] * (progress / warm if progress < warm else cosine))


def partition(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """The names of each of so many fragments of about one size."""
    parts: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(parts, key=lambda part: sum(sizes[each] for each in part)).append(name)
    return parts


def due_before_steps(of: Mapping[str, Any], steps: int) -> Iterator[list[int]]:
    """The fragments that are merged before each step: each of them every H steps, evenly apart."""

    def interval(at: int) -> float:
        third = min(2, 3 * at // steps)
        power = third - 1 if of["grow"] else 1 - third if of["shrink"] else 0
        return float(of["H"] * 2.0**power)

    count = int(of["P"])
    due = [p * interval(0) / count for p in range(count)]
    due[0] += interval(0)
    for at in range(steps):
        ready = [p for p in range(count) if at > 0 and due[p] <= at]
        for p in ready:
            due[p] = max(due[p], at - interval(at) + 1) + interval(at)
        yield ready


def coded(gradient: Any, levels: int) -> Any:
    """What codes of -levels to levels stand for, in blocks of 256 values with their largest magnitude as scale."""
    if not levels:
        return gradient
    blocks = np.pad(gradient.ravel(), (0, -gradient.size % 256)).reshape(-1, 256)
    scales = np.maximum(np.abs(blocks).max(axis=1, keepdims=True) / levels, 1e-36)
    return (np.rint(blocks / scales) * scales).ravel()[: gradient.size].reshape(gradient.shape)


def merged(given: list[Any], method: str, levels: int) -> Any:
    """The average, or radial-directional averaging, with equal weights, and norms from before coding."""
    norms = [float(np.linalg.norm(g)) for g in given]
    gradients = [coded(g, levels) for g in given]
    if levels and method == "rda":
        gradients = [g * n / max(float(np.linalg.norm(g)), 1e-36) for g, n in zip(gradients, norms, strict=True)]
    direction = sum(g / n if n else g for g, n in zip(gradients, norms, strict=True)) / len(gradients)
    length = float(np.linalg.norm(direction))
    if method == "average" or length < CANCELLED_SHARE / math.sqrt(len(gradients)):
        return sum(gradients) / len(gradients)
    return sum(norms) / len(norms) * direction / length


class Run:
    """One run of one variant: `model` has the shape, and other settings of the task than batch and optimizer."""

    def __init__(
        self,
        tokens: int,
        seed: int,
        of: Mapping[str, Any],
        *,
        learners: int = 4,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        from isthmus.ops.data.batches import At
        from isthmus.ops.exchange.parameter_trees import named_leaves
        from isthmus.programs.language_model import task

        model, batch = dict(model or {}), int(of["batch"])
        shape = {key: value for key, value in model.items() if key != "data"}
        self.of, self.learners, self.config = of, learners, transformer.ModelConfig(**shape)
        self.steps = math.ceil(tokens / (learners * batch * self.config.context))
        given = task(batch=batch, **model)
        places = [[At(seed, slot, at) for at in range(self.steps)] for slot in range(learners)]
        self.batches = np.stack([[given.batch(at)["tokens"] for at in row] for row in places])
        evaluation = task(batch=EVALUATION_BATCH, **model).batch
        held_out = [evaluation(At(0, 0, at, "evaluation"))["tokens"] for at in range(EVALUATIONS)]
        self.held_out = np.concatenate(held_out)
        self.first = {name: jnp.asarray(leaf) for name, leaf in named_leaves(given.init(jax.random.key(seed)))}
        muon = of["optimizer"] == "muon"
        self.inner_step = jax.jit(partial(inner_step, self.config, muon=muon), donate_argnums=(0, 1))
        self.loss = jax.jit(partial(loss, self.config))
        self.hyper = hyperparameters(of)

    def step(self, w: Any, moments: Any, tokens: Any, at: int) -> Any:
        return self.inner_step(w, moments, tokens, learning_rate(self.of, at / self.steps), self.hyper)

    def evaluated(self, w: Any) -> float:
        return float(self.loss({name: jnp.asarray(leaf) for name, leaf in w.items()}, self.held_out))

    def data_parallel(self) -> dict[str, float]:
        w, moments = {name: jnp.array(leaf) for name, leaf in self.first.items()}, fresh(self.first)
        for at in range(self.steps):
            tokens = self.batches[0, at] if self.of["one"] else self.batches[:, at].reshape(-1, self.config.context + 1)
            w, moments = self.step(w, moments, tokens, at)
        return {"loss": self.evaluated(w)}

    def decoupled(self) -> dict[str, float]:
        of, count = self.of, self.learners
        theta = {name: np.array(leaf) for name, leaf in self.first.items()}
        velocity = {name: np.zeros_like(leaf) for name, leaf in theta.items()}
        learners = [({n: jnp.array(x) for n, x in self.first.items()}, fresh(self.first)) for _ in range(count)]
        anchors = [dict(theta) for _ in range(count)]
        parts = partition({name: leaf.size for name, leaf in theta.items()}, int(of["P"]))
        published: list[tuple[int, dict[str, Any]]] = []
        tail: list[dict[str, Any]] = []

        def outer_step(names: list[str], progress: float) -> None:
            change = (of["eta_end"] - of["eta"]) * progress if of["eta_end"] else 0.0
            for name in names:
                like = name in EMBEDDING_LIKE
                gradients = [anchors[m][name] - np.asarray(learners[m][0][name]) for m in range(count)]
                g = merged(gradients, of["emb"] if like else of["merge"], of["levels"])
                velocity[name] = of["omu"] * velocity[name] + g
                eta = of["eta_emb"] if like and of["eta_emb"] else of["eta"] + change
                theta[name] = (theta[name] - eta * (g + of["omu"] * velocity[name])).astype(np.float32)

        for at, due in enumerate(due_before_steps(of, self.steps)):
            for when, values in published:
                if when <= at:
                    for anchor, (w, _) in zip(anchors, learners, strict=True):
                        anchor |= values
                        w |= {name: jnp.array(leaf) for name, leaf in values.items()}
            published = [each for each in published if each[0] > at]
            for p in due:
                outer_step(parts[p], at / self.steps)
                published.append((at + 1, {name: theta[name] for name in parts[p]}))
            for m, (w, moments) in enumerate(learners):
                learners[m] = self.step(w, moments, self.batches[m, at], at)
            if of["share"] and at % of["share"] == 0:
                mean = {n: sum(np.asarray(each[1][1][n]) for each in learners) / count for n in theta}
                learners = [(w, (m, {n: jnp.array(x) for n, x in mean.items()}, t)) for w, (m, _, t) in learners]
            if of["tail"] and (self.steps - 1 - at) % of["H"] == 0:
                tail.append(dict(theta))
        outer_step(list(theta), 1.0)
        told = {"loss": self.evaluated(theta)}
        if of["tail"]:
            told["learners"] = float(np.mean([self.evaluated(w) for w, _ in learners]))
            tail.append(theta)
            for number in (2, 4, 8, 16):
                last = tail[-number:]
                told[f"last {number}"] = self.evaluated({n: sum(each[n] for each in last) / len(last) for n in theta})
        return told


def settings(variant: str) -> dict[str, Any]:
    given = dict(pair.split("=") for pair in variant.split(",") if pair)
    if unknown := set(given) - set(DEFAULTS):
        raise SystemExit(f"reading {variant!r}: expected keys among {', '.join(DEFAULTS)}, found {', '.join(unknown)}")
    return DEFAULTS | {key: type(DEFAULTS[key])(value) for key, value in given.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=[""])
    parser.add_argument("--program", choices=("decoupled", "data-parallel"), default="decoupled")
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--model", default="nano", help="a shape of `isthmus train --model`; the rate is the variant's")
    given = parser.parse_args()
    from isthmus.programs.command.config import MODELS
    from isthmus.runtime.system.processes import XLA_FLAGS

    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if given.model not in MODELS:
        raise SystemExit(f"reading --model: expected one of {', '.join(MODELS)}, found {given.model!r}")
    model = {key: value for key, value in MODELS[given.model].items() if key not in ("lr", "optimizer", "batch")}
    for variant, of in [(variant, settings(variant)) for variant in given.variants]:
        begun = time.process_time()
        run = Run(given.tokens, given.seed, of, learners=given.learners, model=model)
        told = run.decoupled() if given.program == "decoupled" else run.data_parallel()
        figures = "  ".join(f"{name} {value:.4f}" for name, value in told.items())
        print(f"{given.program} {variant or 'defaults'}: {figures}  [{time.process_time() - begun:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
