"""Gossip that stops once the loss on held-out data is low enough.

    isthmus train early_stop.py:build --task mine.py:task --tokens 10000000 --set program.below=0.01

What a body emits on a port that is declared as `stop` ends the run as `isthmus stop` does: learners finish, the model
is written. Here the evaluator is the graph's own, so that what it finds may lead anywhere; gossip.py is given one.
"""

from functools import partial

from gossip import build as gossip

from isthmus import EvaluateMean, Every, Graph, Job, Latest, milliseconds


class EarlyStop:
    """Evaluations in; at the first loss below `below`, the reason to stop out."""

    outputs = ("stop",)

    def __init__(self, below: float) -> None:
        self.below = below

    def __call__(self, evaluation):
        """The newest evaluation."""
        if evaluation["loss"] >= self.below:
            return None
        return {"stop": {"reason": f"the loss is {evaluation['loss']:.3g}, below {self.below:g}"}}


def build(job: Job, *, interval: int = 24, below: float = 0.01) -> Graph:
    """The graph of gossip.py, and an evaluator with an opinion."""
    graph = gossip(job, interval=interval)
    step = next(node for node in graph.nodes if node.name == "inner-step")
    evaluator = graph.role("evaluator", replicas=(1, 1))
    period = Every(milliseconds(200))
    mean = partial(EvaluateMean, job.task, roles=("learner",), tokens=job.tokens, times=100)
    evaluate = evaluator.node("evaluate", mean, fires=period)
    stop = evaluator.node("early-stop", partial(EarlyStop, below))
    graph.edge(step["parameters"], evaluate["parameters"], Latest(), to=evaluator.all)
    graph.edge(step["progress"], evaluate["progress"], Latest(), to=evaluator.all)
    graph.edge(evaluate["evaluation"], stop["evaluation"], Latest())
    graph.train(
        evaluation=evaluate["evaluation"], model=evaluate["final"], control=evaluate["control"], stop=stop["stop"]
    )
    return graph
