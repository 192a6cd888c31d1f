"""A task that brings its own learner, in plain NumPy: least squares, by gradients with momentum.

isthmus train --task numpy_task.py:task --tokens 1000000
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from isthmus.learners import Assembled, ModelLeaf, OwnTask

SHAPES = {"bias": (4,), "weights": (32, 4)}


def first_leaves(seed):
    rng = np.random.default_rng(seed)
    return {name: 0.1 * rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def residuals(leaves, batch):
    return batch["x"] @ leaves["weights"] + leaves["bias"] - batch["y"]


class Learner:
    """One life of a slot: the merged leaves, and the momentum, which is local. Nothing is random after the start."""

    device_kind = "cpu"

    def __init__(self, fragments, life, alpha):
        self.fragments, self.life, self.alpha = fragments, life, alpha
        self.leaves = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        self.restart()

    def begin(self):
        self.leaves = first_leaves(self.life.seed)
        self.restart()

    def compile(self, batch):
        pass

    def step(self, batch, progress):
        error = residuals(self.leaves, batch)
        gradients = {"bias": error.mean(0), "weights": batch["x"].T @ error / len(error)}
        for name, gradient in gradients.items():
            self.momentum[name] = np.float32(0.9) * self.momentum[name] + gradient
            self.leaves[name] = self.leaves[name] - np.float32(0.02 * (1 - progress)) * self.momentum[name]
        return {"loss": float((error**2).mean())}

    # What travels: a fragment is some rows of some leaves, one after the other in one vector.

    def parts(self, fragment, values):
        cut = self.fragments[fragment]
        for unit, (begin, end) in zip(cut.units, pairwise(cut.offsets), strict=True):
            yield self.leaves[unit.tensor][unit.start : unit.stop], values[begin:end].reshape(unit.values_shape)

    def extract(self, fragment):
        values = np.empty(self.fragments[fragment].size, np.float32)
        for rows, part in self.parts(fragment, values):
            part[...] = rows
        return values

    def adopt(self, fragment, values):
        for rows, part in self.parts(fragment, values):
            rows[...] = self.alpha * rows + (1 - self.alpha) * part

    def replace(self, fragment, values):
        for rows, part in self.parts(fragment, values):
            rows[...] = part

    def copy(self):
        return {name: leaf.copy() for name, leaf in self.leaves.items()}

    def tree(self, leaves):
        return {name: leaf.copy() for name, leaf in leaves.items()}

    def adopt_tree(self, tree):
        self.leaves = self.tree(tree)

    # What stays: read for the next life, and lent to a slot that begins.

    def restart(self):
        self.momentum = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}

    def count_from(self, steps):
        self.restart()

    def local(self):
        return [leaf.copy() for leaf in self.momentum.values()]

    def take_local(self, leaves):
        if [leaf.shape for leaf in leaves] != list(SHAPES.values()):
            return False
        self.momentum = {name: np.array(leaf) for name, leaf in zip(SHAPES, leaves, strict=True)}
        return True

    def lend(self):
        return self.local()

    def borrow(self, leaves):
        return self.take_local(leaves)

    def own(self, *, whole):
        return [np.array(self.life), *self.local(), *(self.copy().values() if whole else ())]

    def take_own(self, leaves):
        merged = leaves[1 + len(SHAPES) :]
        if not self.take_local(leaves[1 : 1 + len(SHAPES)]):
            return False
        if merged:
            self.leaves = {name: np.array(leaf) for name, leaf in zip(SHAPES, merged, strict=True)}
        return True


class Evaluation:
    def __init__(self, batches):
        self.batches = batches

    def metrics(self, tensors):
        return {"loss": float(np.mean([(residuals(tensors, batch) ** 2).mean() for batch in self.batches]))}

    def assemble(self, fragments, values):
        return Assembled(fragments, values, first_leaves(0))


@dataclass(frozen=True, slots=True)
class LeastSquares(OwnTask):
    def batch(self, at):
        x = at.rng().standard_normal((64, 32), np.float32)
        return {"x": x, "y": x[:, :4] + x[:, 4:8]}

    def prepare(self):
        pass

    def learner(self, fragments, *, life, alpha):
        return Learner(fragments, life, np.float32(alpha))

    def evaluator(self, seed):
        return Evaluation(list(self.evaluation_batches(seed)))

    def leaves(self, seed):
        return [ModelLeaf(name, shape, "float32", "rda") for name, shape in SHAPES.items()]

    def check_first_step(self, batch, seed, *, computes):
        return ()

    def learner_bytes(self):
        return sum(3 * leaf.nbytes for leaf in first_leaves(0).values())

    def digests(self, seed):
        return {}

    def model(self, tensors, seed):
        return dict(tensors)


task = LeastSquares(tokens_per_batch=64)
