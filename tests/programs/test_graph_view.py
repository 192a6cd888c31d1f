"""The views of a graph: a small Decoupled DiLoCo as text, word for word, as Mermaid and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.programs.engine.request.graph_view import WIDTH, as_json, mermaid, text
from isthmus.runtime.clock import milliseconds, seconds
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Latest, Queue, Quorum, Template
from isthmus.runtime.graph.verify import verify
from tests.runtime.graph.example_bodies import collecting


class Batches:
    outputs = ("batch",)

    def __call__(self) -> object: ...


class InnerStep:
    outputs = ("fragment", "progress")
    collects = ("update", "pull")

    def __call__(self, batch: object, update: object = None, pull: object = None) -> object: ...


class Pacer:
    outputs = ("round", "pull")
    collects = ("progress", "merged")

    def __call__(self, progress: object = None, merged: object = None) -> object: ...


class Merge:
    outputs = ("gradient",)
    collects = ("answer",)

    def __call__(self, round: object, answer: object, decision: object) -> object: ...


class OuterStep:
    outputs = ("update", "merged")

    def __call__(self, gradient: object) -> object: ...


@collecting("progress")
def log(progress: object = None) -> None: ...


@collecting("update")
def write(update: object) -> None: ...


@pytest.fixture(scope="module")
def graph() -> Template:
    graph = Graph("small-diloco")
    learner, syncer = graph.role("learner", replicas=(1, 64)), graph.role("syncer", replicas=(1, 1))
    keeper = graph.role("keeper", replicas=(1, 1))
    data, step = learner.node("data", Batches), learner.node("inner-step", InnerStep, never_waits=True)
    pacer = syncer.node("pacer", Pacer, fires=AnyOf("progress", "merged"))
    rule = Quorum("answer", key="round", opened_by="round", count_min=2, grace=milliseconds(50))
    merge, outer = syncer.node("merge", Merge, fires=rule), syncer.node("outer-step", OuterStep)
    keep = keeper.node("log", log, fires=Every(seconds(2)))
    writing = keeper.node("write", write, body_may_wait=True)
    graph.edge(data["batch"], step["batch"], Queue(2))
    graph.edge(step["fragment"], merge["answer"], Latest("fragment"), to=syncer.at("fragment"))
    graph.edge(step["progress"], pacer["progress"], Latest(), to=syncer.all)
    graph.edge(pacer["round"], merge["round"], Queue(4))
    graph.edge(pacer["pull"], step["pull"], Latest("fragment"), to=learner.all)
    graph.edge(merge["gradient"], outer["gradient"], Queue(4, initial=(0,)))
    graph.edge(outer["update"], step["update"], Latest("fragment"), to=learner.all)
    graph.edge(outer["merged"], pacer["merged"], Latest("fragment"))
    graph.edge(step["progress"], keep["progress"], Latest(), to=keeper.all)
    graph.edge(outer["update"], writing["update"], Latest("fragment"), to=keeper.all)
    return graph.freeze()


TEXT = """\
small-diloco: 3 roles, 7 nodes, 10 edges

learner, 1 to 64 replicas
  data        tests.programs.test_graph_view:Batches    fires as often as there is credit
  inner-step  tests.programs.test_graph_view:InnerStep  fires on batch                     declared never_waits

syncer, 1 replica
  pacer       tests.programs.test_graph_view:Pacer      fires on progress or merged
  merge       tests.programs.test_graph_view:Merge      fires on a quorum of 2 on answer, in rounds that come on round
  outer-step  tests.programs.test_graph_view:OuterStep  fires on gradient

keeper, 1 replica
  log    tests.programs.test_graph_view:log    fires every 2 s
  write  tests.programs.test_graph_view:write  fires on update  body_may_wait

edges
  data.batch -> inner-step.batch          Queue(2)             to same learner
  inner-step.fragment -> merge.answer     Latest(fragment)     to syncer at fragment
  inner-step.progress -> pacer.progress   Latest               to every syncer
  pacer.round -> merge.round              Queue(4)             to same syncer
  pacer.pull -> inner-step.pull           Latest(fragment)     to every learner
  merge.gradient -> outer-step.gradient   Queue(4, 1 initial)  to same syncer
  outer-step.update -> inner-step.update  Latest(fragment)     to every learner
  outer-step.merged -> pacer.merged       Latest(fragment)     to same syncer
  inner-step.progress -> log.progress     Latest               to every keeper
  outer-step.update -> write.update       Latest(fragment)     to every keeper

who waits for whom, with every replica on a host of its own
  data        free-running: waits for no other host
  inner-step  free-running: waits for no other host
  pacer       held up by inner-step (learner)
                  waits for any item, such as one from inner-step (learner) on inner-step.progress -> pacer.progress
                      [Latest, every syncer]
  merge       held up by inner-step (learner)
                  waits for an item from inner-step (learner) on inner-step.fragment -> merge.answer [Latest(fragment),
                      syncer at fragment]
  outer-step  held up by inner-step (learner)
                  waits for an item from merge on merge.gradient -> outer-step.gradient [Queue(4, 1 initial)]
  log         free-running: waits for no other host
  write       may wait by itself
              held up by outer-step (syncer); through it by learner
                  waits for an item from outer-step (syncer) on outer-step.update -> write.update [Latest(fragment),
                      every keeper]"""

PLANS = """\


what every learner runs
  data
    gives  batch  to inner-step
  inner-step
    takes  batch     from data                           the item, required
    takes  update    from outer-step (syncer)            a dict (replica, key) -> item, sampled
    takes  pull      from pacer (syncer)                 a dict (replica, key) -> item, sampled
    gives  fragment  to merge (syncer)                   with fragment, round
    gives  progress  to pacer (syncer) and log (keeper)

what every syncer runs
  pacer
    takes  progress  from inner-step (learner)  a dict (replica, key) -> item, any fires it
    takes  merged    from outer-step            a dict (replica, key) -> item, any fires it
    gives  round     to merge                   with round, attempt?, members?, count_min?, grace?, required?, \
deadline?, chain?
    gives  pull      to inner-step (learner)    with fragment
  merge
    takes  round     from pacer                 the item, required
    takes  answer    from inner-step (learner)  a dict (replica, key) -> item, required
    takes  decision  from the runtime           why the round closed
    gives  gradient  to outer-step
  outer-step
    takes  gradient  from merge                                  the item, required
    gives  update    to inner-step (learner) and write (keeper)  with fragment
    gives  merged    to pacer                                    with fragment

what every keeper runs
  log
    takes  progress  from inner-step (learner)  a dict (replica, key) -> item, sampled
    gives  result    to nobody
  write
    takes  update  from outer-step (syncer)  a dict (replica, key) -> item, required
    gives  result  to nobody"""


def test_text(graph: Template) -> None:
    shown = text(graph, verify(graph))
    assert shown == TEXT
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_text_with_plans(graph: Template) -> None:
    assert text(graph, verify(graph), lower(graph)) == TEXT + PLANS


MERMAID = """\
flowchart LR
    subgraph r0["learner, 1 to 64 replicas"]
        n0["data<br/>Batches"]:::free
        n1["inner-step<br/>InnerStep"]:::free
    end
    subgraph r1["syncer, 1 replica"]
        n2["pacer<br/>Pacer"]
        n3["merge<br/>Merge"]
        n4["outer-step<br/>OuterStep"]
    end
    subgraph r2["keeper, 1 replica"]
        n5["log<br/>log"]:::free
        n6["write<br/>write"]
    end
    n0 -->|"batch: Queue(2)"| n1
    n1 -.->|"fragment to answer: Latest(fragment), syncer at fragment"| n3
    n1 -.->|"progress: Latest"| n2
    n2 -->|"round: Queue(4)"| n3
    n2 -.->|"pull: Latest(fragment)"| n1
    n3 -->|"gradient: Queue(4, 1 initial)"| n4
    n4 -.->|"update: Latest(fragment)"| n1
    n4 -.->|"merged: Latest(fragment)"| n2
    n1 -.->|"progress: Latest"| n5
    n4 -.->|"update: Latest(fragment)"| n6
    classDef free stroke-width:3px"""


def test_mermaid(graph: Template) -> None:
    assert mermaid(graph, verify(graph)) == MERMAID


def test_json(graph: Template) -> None:
    shape = as_json(graph, verify(graph), "0f1e", {"data": "a", "log": "b"})
    assert json.loads(json.dumps(shape)) == shape
    assert list(shape) == ["program", "fingerprint", "roles", "nodes", "edges", "placement"]
    assert (shape["program"], shape["fingerprint"]) == ("small-diloco", "0f1e")
    assert shape["placement"] == {"data": "a", "log": "b"}
    assert shape["roles"][0] == {"name": "learner", "replicas_min": 1, "replicas_max": 64}
    nodes: dict[str, dict[str, Any]] = {node["name"]: node for node in shape["nodes"]}
    assert nodes["inner-step"] == {
        "name": "inner-step",
        "role": "learner",
        "body": f"{__name__}:InnerStep",
        "firing": "AllOf(batch)",
        "mode": "free-running",
        "free_running": True,
        "blocked_by": [],
    }
    assert [node["firing"] for node in shape["nodes"]] == [
        "AllOf()",
        "AllOf(batch)",
        "AnyOf(progress, merged)",
        "Quorum(answer, round, opened_by=round, count_min=2, grace=50 ms)",
        "AllOf(gradient)",
        "Every(2 s)",
        "AllOf(update)",
    ]
    assert (nodes["data"]["mode"], nodes["data"]["free_running"]) == ("waiting", True)
    assert nodes["write"]["mode"] == "may-block"
    assert nodes["write"]["blocked_by"] == ["data", "inner-step", "merge", "outer-step", "pacer"]
    edges = {(edge["source"], edge["target"]): edge for edge in shape["edges"]}
    assert edges["merge.gradient", "outer-step.gradient"] == {
        "source": "merge.gradient",
        "target": "outer-step.gradient",
        "policy": "Queue",
        "capacity": 4,
        "key": None,
        "initial": 1,
        "carries": None,
    }
    answer = edges["inner-step.fragment", "merge.answer"]
    assert (answer["policy"], answer["capacity"], answer["key"], answer["initial"]) == ("Latest", None, "fragment", 0)


def test_labels_are_escaped_for_mermaid() -> None:
    graph = Graph("example")
    role = graph.role("end", replicas=(1, 1))  # A word of Mermaid's own: names are labels there, never ids.
    first = role.node("first", log, fires=Every(seconds(1)))
    graph.edge(first["result"], first["progress"], Latest('a "b" <c> #'))
    template = graph.freeze()
    shown = mermaid(template, verify(template))
    assert '    n0 -.->|"result to progress: Latest(a #quot;b#quot; #lt;c#gt; #35;)"| n0' in shown.splitlines()
    assert '    subgraph r0["end, 1 replica"]' in shown.splitlines()


def test_a_node_that_waits_for_one_that_may_wait() -> None:
    graph = Graph("example")
    role = graph.role("keeper", replicas=(1, 1))
    first, second = role.node("log", log, fires=Every(seconds(1))), role.node("write", write, body_may_wait=True)
    graph.edge(first["result"], second["update"], Queue(1))
    template = graph.freeze()
    assert text(template, verify(template)).splitlines()[-3:] == [
        "  log    held up by write, whose body may wait",
        "             waits for credit from write on log.result -> write.update [Queue(1)]",
        "  write  may wait by itself",
    ]
