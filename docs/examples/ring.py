"""Lock-step averaging around a ring: each learner waits for its neighbour, and says so.

    isthmus graph ring.py:build       isthmus train ring.py:build --task mine.py:task

The edge to the next learner is a Queue in a cycle, so it needs an initial item: without it nobody could ever begin.
"""

from functools import partial

from isthmus import Batches, Graph, InnerStep, Job, Latest, Queue, tree_mean

NOTHING_YET = 0


def average(mine, neighbour):
    """Both required: the mean of this learner's parameters and those that the one before it passed on."""
    return mine if isinstance(neighbour, int) else tree_mean(mine, neighbour)


def build(job: Job, *, interval: int = 24) -> Graph:
    """Every `interval` steps each learner averages with what its neighbour had one round before."""
    graph = Graph("ring")
    learner = graph.role("learner", replicas=(2, 64))
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node("inner-step", partial(InnerStep, job.task, emit_every=interval))
    mean = learner.node("average", average)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(step["parameters"], mean["mine"], Queue(capacity=1))
    graph.edge(mean["result"], mean["neighbour"], Queue(capacity=2, initial=(NOTHING_YET,)), to=learner.next)
    graph.edge(mean["result"], step["update"], Latest())
    loans = step["moments"], step["loan"]
    graph.train(reports=step["report"], mean_of=step["parameters"], control=step["control"], loans=loans)
    return graph
