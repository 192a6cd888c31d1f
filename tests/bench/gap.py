"""What closes the gap between decoupled learners and data-parallel: variants of both, in one loop, a first look.

    python tests/bench/gap.py [VARIANT ...] [--program decoupled|data-parallel] [--tokens 1020000] [--seed 100]

Four learners of the shipped task in lock-step, one after another, one step of overlap, eight fragments, equal weights;
batches, first parameters, schedule and evaluation are those of `isthmus train` with the same seed. It knows what the
programs do not: settings that were tried and not kept. A variant is KEY=VALUE[,KEY=VALUE...]:

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
from functools import partial
from typing import Any

from isthmus.runtime.system.one_thread import XLA_FLAGS

os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.optimizer import FINAL_SHARE
from isthmus.ops.language_model import transformer
from isthmus.programs.language_model import task

LEARNERS, EVALUATIONS = 4, 32
CONFIG = transformer.ModelConfig()
NAMES = list(transformer.tensors(CONFIG))
HIDDEN = [name for name in NAMES if name.startswith("layers/") and not name.endswith("norm")]
EMBEDDING_LIKE = ("embedding", "head")
DEFAULTS = {
    "optimizer": "adamw", "lr": 0.006, "warm": 0.2, "b1": 0.9, "b2": 0.95, "mu": 0.95, "rms": 0.2, "eta": 0.7,
    "omu": 0.3, "merge": "rda", "emb": "average", "eta_emb": 0.0, "eta_end": 0.0, "H": 24, "P": 8, "batch": 8, "one": 0,
    "grow": 0, "shrink": 0, "tail": 0, "share": 0, "levels": 0,
}  # fmt: skip
jax.config.update("jax_cpu_enable_async_dispatch", False)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def loss(flat: dict[str, Any], tokens: Any) -> Any:
    return transformer.loss(CONFIG, nested(flat), {"tokens": tokens})


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


@partial(jax.jit, static_argnames="muon", donate_argnums=(0, 1))
def step(w: Any, moments: Any, tokens: Any, lr: Any, of: Any, *, muon: bool) -> Any:
    """(parameters, moments) after a step of AdamW, or of Muon for the hidden matrices."""
    grads = jax.grad(loss)(w, tokens)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    grads = {name: g * jnp.minimum(1.0, 1.0 / norm) for name, g in grads.items()}
    first, second, count = moments
    count = count + 1
    by_muon = HIDDEN if muon else []
    rate = {name: of["mu"] if name in by_muon else of["b1"] for name in NAMES}
    first = {name: rate[name] * first[name] + (1 - rate[name]) * grads[name] for name in NAMES}
    second = {name: of["b2"] * second[name] + (1 - of["b2"]) * grads[name] ** 2 for name in NAMES}
    ahead = turned({name: of["mu"] * first[name] + (1 - of["mu"]) * grads[name] for name in by_muon})
    stepped = {}
    for name in NAMES:
        if name in by_muon:
            update = ahead[name] * of["rms"] * math.sqrt(max(w[name].shape))
        else:
            mean, square = first[name] / (1 - of["b1"] ** count), second[name] / (1 - of["b2"] ** count)
            update = mean / (jnp.sqrt(square) + 1e-8)
        decay = 0.1 * w[name] if w[name].ndim >= 2 else 0.0
        stepped[name] = w[name] - lr * (update + decay)
    return stepped, (first, second, count)


def fresh(w: Any) -> Any:
    zeros = {name: jnp.zeros_like(leaf) for name, leaf in w.items()}
    return zeros, {name: jnp.zeros_like(leaf) for name, leaf in w.items()}, jnp.zeros(())


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
    if method == "average" or length < 0.2 / math.sqrt(len(gradients)):
        return sum(gradients) / len(gradients)
    return sum(norms) / len(norms) * direction / length


class Run:
    """One run of one variant."""

    def __init__(self, tokens: int, seed: int, of: dict[str, Any]) -> None:
        self.of, batch = of, int(of["batch"])
        self.steps = math.ceil(tokens / (LEARNERS * batch * CONFIG.context))
        given = task(batch=batch)
        places = [[At(seed, slot, at) for at in range(self.steps)] for slot in range(LEARNERS)]
        self.batches = np.stack([[given.batch(at)["tokens"] for at in row] for row in places])
        held_out = [task().batch(At(0, 0, at, "evaluation"))["tokens"] for at in range(EVALUATIONS)]
        self.held_out = np.concatenate(held_out)
        self.first = {name: jnp.asarray(leaf) for name, leaf in named_leaves(given.init(jax.random.key(seed)))}
        self.first = {name: self.first[name] for name in NAMES}
        self.hyper = {name: jnp.float32(of[name]) for name in ("b1", "b2", "mu", "rms")}
        self.loss = jax.jit(loss)

    def step(self, w: Any, moments: Any, tokens: Any, at: int) -> Any:
        progress, warm = at / self.steps, self.of["warm"]
        cosine = FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * (progress - warm) / (1 - warm))) / 2
        lr = self.of["lr"] * (progress / warm if progress < warm else cosine)
        return step(w, moments, tokens, lr, self.hyper, muon=self.of["optimizer"] == "muon")

    def evaluated(self, w: Any) -> float:
        return float(self.loss({name: jnp.asarray(leaf) for name, leaf in w.items()}, self.held_out))

    def data_parallel(self) -> dict[str, float]:
        w, moments = dict(self.first), fresh(self.first)
        for at in range(self.steps):
            tokens = self.batches[0, at] if self.of["one"] else self.batches[:, at].reshape(-1, CONFIG.context + 1)
            w, moments = self.step(w, moments, tokens, at)
        return {"loss": self.evaluated(w)}

    def interval(self, at: int) -> float:
        third = min(2, 3 * at // self.steps)
        power = third - 1 if self.of["grow"] else 1 - third if self.of["shrink"] else 0
        return float(self.of["H"] * 2.0**power)

    def decoupled(self) -> dict[str, float]:
        of, fragments = self.of, int(self.of["P"])
        theta = {name: np.array(leaf) for name, leaf in self.first.items()}
        velocity = {name: np.zeros_like(leaf) for name, leaf in theta.items()}
        learners = [({n: jnp.array(x) for n, x in self.first.items()}, fresh(self.first)) for _ in range(LEARNERS)]
        anchors = [dict(theta) for _ in range(LEARNERS)]
        parts: list[list[str]] = [[] for _ in range(fragments)]
        for name in sorted(NAMES, key=lambda name: (-theta[name].size, name)):
            min(parts, key=lambda part: sum(theta[each].size for each in part)).append(name)
        due = [p * self.interval(0) / fragments for p in range(fragments)]
        due[0] += self.interval(0)
        published: list[tuple[int, dict[str, Any]]] = []
        tail: list[dict[str, Any]] = []

        def outer_step(names: list[str], progress: float) -> None:
            change = (of["eta_end"] - of["eta"]) * progress if of["eta_end"] else 0.0
            for name in names:
                like = name in EMBEDDING_LIKE
                gradients = [anchors[m][name] - np.asarray(learners[m][0][name]) for m in range(LEARNERS)]
                g = merged(gradients, of["emb"] if like else of["merge"], of["levels"])
                velocity[name] = of["omu"] * velocity[name] + g
                eta = of["eta_emb"] if like and of["eta_emb"] else of["eta"] + change
                theta[name] = (theta[name] - eta * (g + of["omu"] * velocity[name])).astype(np.float32)

        for at in range(self.steps):
            for when, values in published:
                if when <= at:
                    for anchor, (w, _) in zip(anchors, learners, strict=True):
                        anchor |= values
                        w |= {name: jnp.array(leaf) for name, leaf in values.items()}
            published = [each for each in published if each[0] > at]
            for p, names in enumerate(parts):
                if at > 0 and due[p] <= at:
                    outer_step(names, at / self.steps)
                    due[p] = max(due[p], at - self.interval(at) + 1) + self.interval(at)
                    published.append((at + 1, {name: theta[name] for name in names}))
            for m, (w, moments) in enumerate(learners):
                learners[m] = self.step(w, moments, self.batches[m, at], at)
            if of["share"] and at % of["share"] == 0:
                mean = {n: sum(np.asarray(each[1][1][n]) for each in learners) / LEARNERS for n in NAMES}
                learners = [
                    (w, (m, {n: jnp.array(x) for n, x in mean.items()}, count)) for w, (m, _, count) in learners
                ]
            if of["tail"] and (self.steps - 1 - at) % of["H"] == 0:
                tail.append(dict(theta))
        outer_step(NAMES, 1.0)
        told = {"loss": self.evaluated(theta)}
        if of["tail"]:
            told["learners"] = float(np.mean([self.evaluated(w) for w, _ in learners]))
            tail.append(theta)
            for count in (2, 4, 8, 16):
                last = tail[-count:]
                told[f"last {count}"] = self.evaluated({n: sum(each[n] for each in last) / len(last) for n in NAMES})
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
    given = parser.parse_args()
    for variant, of in [(variant, settings(variant)) for variant in given.variants]:
        begun = time.process_time()
        run = Run(given.tokens, given.seed, of)
        told = run.decoupled() if given.program == "decoupled" else run.data_parallel()
        figures = "  ".join(f"{name} {value:.4f}" for name, value in told.items())
        print(f"{given.program} {variant or 'defaults'}: {figures}  [{time.process_time() - begun:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
