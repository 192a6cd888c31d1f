"""A pipeline of two stages on two machines: activations go forth, gradients come back, and so many are under way.

    isthmus graph pipeline.py:build        isthmus train pipeline.py:build --task mine.py:task --tokens 100000

The stages form a cycle of Queues. Its initial items are the micro-batches that may be under way at once: with one, the
stages take turns; with more, both are busy. Plain NumPy; the first stage is a linear layer, the second another one.
The second reports what is trained, and nobody gives a model: such a run ends as soon as its budget is spent.
"""

from functools import partial

import numpy as np

from isthmus import Graph, Job, Queue

WIDTH = 8
UNDER_WAY = 3


class First:
    """Takes a gradient for an activation that it sent, learns from it, and sends the next activation."""

    outputs = ("activation",)

    def __init__(self, lr: float) -> None:
        rng = np.random.default_rng(0)
        self.rng, self.lr, self.weights = rng, lr, rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5

    def __call__(self, gradient):
        """Each gradient holds the input, so this stage keeps nothing in between; the first ones are empty."""
        if gradient:
            self.weights = self.weights - self.lr * gradient["input"].T @ gradient["activation"]
        x = self.rng.normal(size=(16, WIDTH))
        return {"activation": {"input": x, "activation": x @ self.weights}}


class Second:
    """Takes an activation, learns to make it the sum of the inputs, and sends the gradient back."""

    outputs = ("gradient", "progress")

    def __init__(self, lr: float) -> None:
        self.lr, self.weights, self.tokens = lr, np.ones((WIDTH, 1)) / WIDTH, 0

    def __call__(self, activation):
        """One micro-batch."""
        error = activation["activation"] @ self.weights - activation["input"].sum(1, keepdims=True)
        back = error @ self.weights.T / len(error)
        self.weights = self.weights - self.lr * activation["activation"].T @ error / len(error)
        self.tokens += len(error)
        report = {"tokens": self.tokens, "loss": float(np.mean(error**2))}
        return {"gradient": {"input": activation["input"], "activation": back}, "progress": report}


def build(job: Job, *, lr: float = 0.05) -> Graph:
    """Two roles, one cycle."""
    graph = Graph("pipeline")
    front = graph.role("front", replicas=(1, 1))
    back = graph.role("back", replicas=(1, 1))
    first = front.node("first", partial(First, lr))
    second = back.node("second", partial(Second, lr))
    graph.edge(first["activation"], second["activation"], Queue(capacity=UNDER_WAY), to=back.all)
    under_way = Queue(capacity=UNDER_WAY, initial=({},) * UNDER_WAY)
    graph.edge(second["gradient"], first["gradient"], under_way, to=front.all)
    graph.train(reports=second["progress"])
    return graph
