"""Graphs of programs: a graph, and by which of its ports a run trains it, holds its model and keeps its state.

A program's builder makes a `ProgramGraph`, which users import as `isthmus.Graph`. What it declares is of the whole
graph, and not in its fingerprint: that has the nodes and edges themselves. Decides the names of these ports, and which
of them are inputs; what a run connects to each is decided in `engine.recorder.roles`. The runtime carries what is
declared, and reads none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, cast, final

from isthmus.runtime.errors import GraphError
from isthmus.runtime.graph.template import Graph, Port, Template

SYNCER: Final = "syncer"
"""The role of the shards that merge and hold the global model."""
REGION: Final = "region"
"""The role of the syncers of regions, in a program of two levels: learner s is of region s modulo the number of
regions, and so is replica s of this role (`regions_in`)."""
EVALUATOR: Final = "evaluator"
"""The role of the replica that evaluates the model, in a program that has one."""
_TRAINING: Final = "training"
_HELD_MODEL: Final = "held model"
_KEPT_STATE: Final = "kept state"
_CHOSEN: Final = "chosen"
_REGIONS: Final = "regions"


@dataclass(frozen=True, slots=True)
class Training:
    """The ports by which a run trains a graph; `ProgramGraph.train` says what each carries."""

    reports: Port | None = None
    control: tuple[Port, ...] = ()
    model: Port | None = None
    mean_of: Port | None = None
    evaluation: Port | None = None
    merges: Port | None = None
    changes: tuple[Port, ...] = ()
    held: Port | None = None
    loans: tuple[Port, Port] | None = None
    stop: tuple[Port, ...] = ()
    counts_budget: bool = False


@dataclass(frozen=True, slots=True)
class HeldModelPorts:
    """The ports by which a model that shards publish is held outside of them; `ProgramGraph.hold` says what each
    carries."""

    state: Port
    kept: Port
    published: Port
    told: Port | None
    copies: tuple[Port, ...]
    held: tuple[Port, ...]
    cut: Port | None = None
    wanted: tuple[Port, ...] = ()
    own: Port | None = None
    restored: Port | None = None
    begins: Port | None = None


@dataclass(frozen=True, slots=True)
class KeptStatePorts:
    """The ports by which a state that all learners have is kept; `ProgramGraph.keep` says what each carries."""

    state: Port
    kept: Port


NO_TRAINING: Final = Training()


def training_of(graph: Graph | Template) -> Training:
    """By which ports a run trains this graph; none of them where nothing is declared."""
    return cast("Training", graph.declared.get(_TRAINING, NO_TRAINING))


def held_model_of(graph: Graph | Template) -> HeldModelPorts | None:
    """By which ports its model is held; None where it is not."""
    return cast("HeldModelPorts | None", graph.declared.get(_HELD_MODEL))


def kept_state_of(graph: Graph | Template) -> KeptStatePorts | None:
    """By which ports a state that all learners have is kept; None where none is."""
    return cast("KeptStatePorts | None", graph.declared.get(_KEPT_STATE))


def chosen_for(graph: Graph | Template) -> Mapping[str, Any]:
    """The settings that its builder chose, by key of `program.`."""
    return cast("Mapping[str, Any]", graph.declared.get(_CHOSEN, MappingProxyType({})))


def regions_in(graph: Graph | Template) -> int:
    """The number of regions, each of which may have several syncers; 0 in a program of one level."""
    declared = cast("int | None", graph.declared.get(_REGIONS))
    if declared is not None:
        return declared
    return next((role.replicas_max for role in graph.roles if role.name == REGION), 0)


@final
class ProgramGraph(Graph):
    """A graph under construction: `role`, then `role.node`, then `edge`, and `train` for one that can be trained."""

    def train(
        self,
        *,
        reports: Port | None = None,
        control: Port | Sequence[Port] = (),
        model: Port | None = None,
        mean_of: Port | None = None,
        evaluation: Port | None = None,
        stop: Port | Sequence[Port] = (),
        merges: Port | None = None,
        changes: Port | Sequence[Port] = (),
        held: Port | None = None,
        loans: tuple[Port, Port] | None = None,
        counts_budget: bool = False,
    ) -> None:
        """Declare the ports by which a run trains this graph. Each is optional but `reports`, without which it is none.

        - `reports`: an output; what its node has trained, by which the token budget is counted.
        - `control`: inputs; what the recorder says of the budget, and that the run is to end.
        - `model`: an output; the final model in parts. `evaluation`: an output; losses on held-out data.
        - `mean_of`: an output with whole trees, in the role that reports. Where no evaluation is declared, a run
          evaluates their mean, weighted by tokens, and makes the final model of it.
        - `stop`: outputs; the program asks for the end of the run.
        - `merges`, `changes`, `held`: outputs; what is recorded of merges, of settings that follow the links, and of
          the versions that a body has heard of.
        - `loans`: an output and an input; state that stays in its replica, lent to one that begins anew.
        - `counts_budget`: the program notices by itself that the budget is spent.

        May be called again, by somebody who extends the graph, for what is not declared yet. GraphError for a port of
        the wrong direction or another graph, and for what is declared already.
        """
        new: dict[str, Any] = {
            "reports": self._optional("reports", reports),
            "model": self._optional("model", model),
            "mean_of": self._optional("mean_of", mean_of),
            "evaluation": self._optional("evaluation", evaluation),
            "merges": self._optional("merges", merges),
            "held": self._optional("held", held),
        }
        if loans is not None:
            new["loans"] = self.declared_port("loans", loans[0]), self.declared_port("loans", loans[1], is_input=True)
        training = training_of(self)
        for name, port in new.items():
            if port is not None and getattr(training, name) is not None:
                where, former = f"train({name}=) of graph {self.name!r}", getattr(training, name)
                raise GraphError(where, "ports that are not declared yet", str(former), "Declare each once.")
        lists = (control, stop, changes)
        control, stop, changes = ((each,) if isinstance(each, Port) else tuple(each) for each in lists)
        self.declared[_TRAINING] = replace(
            training,
            **{name: port for name, port in new.items() if port is not None},
            control=(*training.control, *(self.declared_port("control", each, is_input=True) for each in control)),
            changes=(*training.changes, *(self.declared_port("changes", each) for each in changes)),
            stop=(*training.stop, *(self.declared_port("stop", each) for each in stop)),
            counts_budget=training.counts_budget or counts_budget,
        )

    def hold(
        self,
        *,
        state: Port,
        kept: Port,
        published: Port,
        told: Port | None = None,
        copies: Sequence[Port],
        held: Sequence[Port],
        cut: Port | None = None,
        wanted: Sequence[Port] = (),
        own: Port | None = None,
        restored: Port | None = None,
        begins: Port | None = None,
    ) -> None:
        """Declare how a model that shards publish is held by recorder and evaluator, in case shards and learners die
        together, and kept on disk.

        - `state`: an output of the shards; what they go on from. `kept`: their input for what is given back.
        - `published`: an output, the versions as they come to the evaluator. `told`: an output of the shards, where
          these are only those that it evaluates: the books of all. `copies`: inputs of learners, and of
          shards, which are given copies when no other host may have any. `held`: inputs that are told what is held.
        - `cut`, `own`: outputs of shards and learners, of a state that is kept as of one step, parts of learners
          included; `wanted`: inputs that are told which; `restored`: the learners' input for what is given back.
        - `begins`: an input of shards for a version with which a fragment begins again. Where there are several shards,
          each of them then has the newest state of the one before it, too, which it is given by this port and `kept`.
        """
        self.declared[_HELD_MODEL] = HeldModelPorts(
            self.declared_port("state", state),
            self.declared_port("kept", kept, is_input=True),
            self.declared_port("published", published),
            self._optional("told", told),
            tuple(self.declared_port("copies", port, is_input=True) for port in copies),
            tuple(self.declared_port("held", port, is_input=True) for port in held),
            self._optional("cut", cut),
            tuple(self.declared_port("wanted", port, is_input=True) for port in wanted),
            self._optional("own", own),
            self._optional("restored", restored, is_input=True),
            self._optional("begins", begins, is_input=True),
        )

    def keep(self, state: Port, kept: Port) -> None:
        """Declare that the recorder keeps a state that all learners have: the newest of output `state`, which it gives
        to the input `kept`."""
        self.declared[_KEPT_STATE] = KeptStatePorts(
            self.declared_port("state", state), self.declared_port("kept", kept, is_input=True)
        )

    def divide(self, regions: int) -> None:
        """Declare how many regions there are, where each has several syncers."""
        self.declared[_REGIONS] = regions

    def chose(self, **settings: Any) -> None:
        """Note what the builder chose for settings that may be None: a run shows it, and writes it into its
        configuration."""
        self.declared[_CHOSEN] = MappingProxyType({**chosen_for(self), **settings})

    def _optional(self, name: str, port: Port | None, *, is_input: bool = False) -> Port | None:
        return None if port is None else self.declared_port(name, port, is_input=is_input)
