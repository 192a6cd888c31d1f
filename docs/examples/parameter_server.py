"""A parameter server: workers send gradients when they have them, and take the newest parameters when they are there.

    isthmus train parameter_server.py:build --task mine.py:task --tokens 200000 --learners 4

Nobody waits for anybody: a gradient may be of parameters that are a few steps old. The server alone knows the model, so
it is the server that reports: a token counts once its gradient is in.
"""

from functools import partial

import jax
import numpy as np
import optax

from isthmus import AnyOf, Batches, Graph, Job, Latest, Queue


class Worker:
    """Batches and parameters in; gradients out."""

    outputs = ("gradient",)

    def __init__(self, task) -> None:
        self.task, self.parameters = task, None

    def open(self, context) -> None:
        """Begin with the parameters that the server begins with: they follow from the seed."""
        self.parameters = self.task.init(jax.random.key(context.seed))
        self.gradient = jax.jit(jax.value_and_grad(self.task.loss))

    def __call__(self, batch, parameters=None):
        """The newest parameters, if there are new ones: of the one server, so they come as they are."""
        if parameters is not None:
            self.parameters = parameters
        loss, gradient = self.gradient(self.parameters, batch)
        return {"gradient": {"tree": jax.tree.map(np.asarray, gradient), "loss": float(loss)}}


class Server:
    """Gradients in; parameters and reports out, until it is told of the end."""

    outputs = ("parameters", "progress")
    collects = ("gradient",)  # {(replica, key): item}, of all workers that sent one

    def __init__(self, task) -> None:
        self.task, self.tokens, self.step, self.is_finished = task, 0, 0, False

    def open(self, context) -> None:
        """Make the parameters, and the optimizer's moments."""
        self.parameters = self.task.init(jax.random.key(context.seed))
        self.moments = self.task.optimizer.init(self.parameters)
        self.update = jax.jit(self.task.optimizer.update)

    def __call__(self, gradient=None, control=None):
        """`control` is from the recorder, which keeps the budget."""
        for sent in (gradient or {}).values():
            change, self.moments = self.update(sent["tree"], self.moments, self.parameters)
            self.parameters = optax.apply_updates(self.parameters, change)
            self.step, self.tokens, self.loss = self.step + 1, self.tokens + self.task.tokens_per_batch, sent["loss"]
        self.is_finished = control is not None and control["stop"]
        if not (gradient or self.is_finished):
            return None
        phase = "final" if self.is_finished else "stepping"
        report = {"tokens": self.tokens, "step": self.step, "phase": phase}
        report |= {"loss": self.loss} if self.step else {}
        return {"parameters": jax.tree.map(np.asarray, self.parameters), "progress": report}


def build(job: Job) -> Graph:
    """One server; the workers are the learners, of which there may be any number, and more at any time."""
    graph = Graph("parameter-server")
    learner = graph.role("learner", replicas=(1, 64))
    central = graph.role("server", replicas=(1, 1))
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    worker = learner.node("work", partial(Worker, job.task))
    server = central.node("serve", partial(Server, job.task), fires=AnyOf("gradient", "control"))
    graph.edge(data["batch"], worker["batch"], Queue(capacity=2))
    graph.edge(worker["gradient"], server["gradient"], Queue(capacity=2), to=central.all)
    graph.edge(server["parameters"], worker["parameters"], Latest(), to=learner.all)
    graph.train(reports=server["progress"], mean_of=server["parameters"], control=server["control"])
    return graph
