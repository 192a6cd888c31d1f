from functools import partial
from isthmus import Batches, Graph, InnerStep, Job, Latest, Queue, tree_mean

def average(mine, neighbour=None):              # required; sampled: the newest, or None
    return mine if neighbour is None else tree_mean(mine, neighbour)

def build(job: Job, *, interval: int = 24) -> Graph:
    graph = Graph("gossip")
    learner = graph.role("learner", replicas=(2, 64))
    data = learner.node("data", partial(Batches, job.task, learners=job.learners, slots=job.slots_max))
    step = learner.node("inner-step", partial(InnerStep, job.task, emit_every=interval), never_waits=True)
    mean = learner.node("average", average)
    graph.edge(data["batch"], step["batch"], Queue(capacity=2))
    graph.edge(step["parameters"], mean["mine"], Queue(capacity=1))
    graph.edge(step["parameters"], mean["neighbour"], Latest(), to=learner.next)      # replica i -> i + 1
    graph.edge(mean["result"], step["update"], Latest())
    graph.train(reports=step["report"], mean_of=step["parameters"], control=step["control"])
    return graph
