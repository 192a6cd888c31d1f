"""Actors and a learner: actors make experience with parameters that may be old, one learner trains on all of it.

    isthmus train actor_learner.py:build --task mine.py:task --tokens 200000 --set program.actors=3

Here experience is a batch with the loss of the actor's parameters on it; in reinforcement learning it would be a
trajectory. An actor is held up only by its own Queue: two pieces of experience ahead of the learner, and it waits.
"""

from functools import partial

import jax
import numpy as np
import optax

from isthmus import AnyOf, At, Graph, Job, Latest, Queue


class Act:
    """Parameters in, sampled; experience out, as fast as it is taken."""

    outputs = ("experience",)

    def __init__(self, task) -> None:
        self.task, self.position, self.parameters = task, 0, None

    def open(self, context) -> None:
        """Act by the first parameters until others come."""
        self.seed, self.slot = context.seed, context.member.replica.slot
        self.parameters = self.task.init(jax.random.key(context.seed))
        self.loss = jax.jit(self.task.loss)

    def __call__(self, parameters=None):
        """The newest parameters of the one learner, if there are new ones."""
        if parameters is not None:
            self.parameters = parameters
        batch = self.task.batch(At(self.seed, self.slot, self.position))
        self.position += 1
        return {"experience": {"batch": batch, "loss": float(self.loss(self.parameters, batch))}}


class Learn:
    """Experience of all actors in; parameters and reports out."""

    outputs = ("parameters", "progress")
    collects = ("experience",)  # {(replica, key): item}, of all actors that sent some

    def __init__(self, task) -> None:
        self.task, self.tokens, self.is_finished = task, 0, False

    def open(self, context) -> None:
        """Make the parameters, and compile the step."""
        self.parameters = self.task.init(jax.random.key(context.seed))
        self.moments = self.task.optimizer.init(self.parameters)

        def step(parameters, moments, batch):
            change, moments = self.task.optimizer.update(
                jax.grad(self.task.loss)(parameters, batch), moments, parameters
            )
            return optax.apply_updates(parameters, change), moments

        self.step = jax.jit(step)

    def __call__(self, experience=None, control=None):
        """A step for each piece of experience; `control` says when to end."""
        for piece in (experience or {}).values():
            self.parameters, self.moments = self.step(self.parameters, self.moments, piece["batch"])
            self.tokens += self.task.tokens_per_batch
            self.newest = piece["loss"]
        self.is_finished = control is not None and control["stop"]
        if not (experience or self.is_finished):
            return None
        report = {"tokens": self.tokens, "phase": "final" if self.is_finished else "stepping"}
        report |= {"loss": self.newest} if self.tokens else {}
        return {"parameters": jax.tree.map(np.asarray, self.parameters), "progress": report}


def build(job: Job, *, actors: int = 2) -> Graph:
    """One learner; of any role but `learner` a run has the smallest number of replicas that its range allows."""
    graph = Graph("actor-learner")
    actor = graph.role("actor", replicas=(actors, 64))
    learner = graph.role("learner", replicas=(1, 1))
    act = actor.node("act", partial(Act, job.task))
    learn = learner.node("learn", partial(Learn, job.task), fires=AnyOf("experience", "control"))
    graph.edge(act["experience"], learn["experience"], Queue(capacity=2), to=learner.all)
    graph.edge(learn["parameters"], act["parameters"], Latest(), to=actor.all)
    graph.train(reports=learn["progress"], mean_of=learn["parameters"], control=learn["control"])
    return graph
