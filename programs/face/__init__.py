"""isthmus: training graphs on islands of unlike accelerators. This is what a program of yours imports.

    from isthmus import Task, decoupled_diloco, train

Names are imported when they are first used: none of them imports jax or numba before it needs an array. What is not
listed here is not public, and may change without notice; faults and checks for tests are in `isthmus.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from isthmus.runtime.system.processes import check_linux

if TYPE_CHECKING:
    from isthmus.ops.data.batches import At, LoaderStream, Stream, Tokens
    from isthmus.ops.data.batches_node import Batches
    from isthmus.ops.exchange.parameter_trees import tree_mean
    from isthmus.ops.gang.mesh_stages import scan_layers
    from isthmus.ops.island.evaluate import EvaluateMean
    from isthmus.ops.learner.inner_step import InnerStep
    from isthmus.programs.engine.request.request import (
        Program,
        data_parallel,
        decoupled_diloco,
        diloco,
        elastic_data_parallel,
        streaming_diloco,
    )
    from isthmus.programs.island import island
    from isthmus.programs.job import Job
    from isthmus.programs.program_graph import ProgramGraph as Graph
    from isthmus.programs.routers import reroute, route, training_documents
    from isthmus.programs.study.terminal.hook import tensorboard
    from isthmus.programs.task import StepTask, Task, TaskLayout
    from isthmus.programs.trained.run_model import load
    from isthmus.programs.training import Result, train
    from isthmus.runtime.clock import milliseconds
    from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Latest, Queue, Quorum

    __version__: str

_MODULES: Final = {
    "AllOf": "runtime.graph.template",
    "AnyOf": "runtime.graph.template",
    "At": "ops.data.batches",
    "Batches": "ops.data.batches_node",
    "EvaluateMean": "ops.island.evaluate",
    "Every": "runtime.graph.template",
    "Graph": "programs.program_graph:ProgramGraph",
    "InnerStep": "ops.learner.inner_step",
    "Job": "programs.job",
    "Latest": "runtime.graph.template",
    "LoaderStream": "ops.data.batches",
    "Program": "programs.engine.request.request",
    "Queue": "runtime.graph.template",
    "Quorum": "runtime.graph.template",
    "Result": "programs.training",
    "StepTask": "programs.task",
    "Stream": "ops.data.batches",
    "Task": "programs.task",
    "TaskLayout": "programs.task",
    "Tokens": "ops.data.batches",
    "data_parallel": "programs.engine.request.request",
    "decoupled_diloco": "programs.engine.request.request",
    "diloco": "programs.engine.request.request",
    "elastic_data_parallel": "programs.engine.request.request",
    "island": "programs.island",
    "load": "programs.trained.run_model",
    "milliseconds": "runtime.clock",
    "reroute": "programs.routers",
    "route": "programs.routers",
    "scan_layers": "ops.gang.mesh_stages",
    "streaming_diloco": "programs.engine.request.request",
    "tensorboard": "programs.study.terminal.hook",
    "train": "programs.training",
    "training_documents": "programs.routers",
    "tree_mean": "ops.exchange.parameter_trees",
}

__all__ = [
    "AllOf",
    "AnyOf",
    "At",
    "Batches",
    "EvaluateMean",
    "Every",
    "Graph",
    "InnerStep",
    "Job",
    "Latest",
    "LoaderStream",
    "Program",
    "Queue",
    "Quorum",
    "Result",
    "StepTask",
    "Stream",
    "Task",
    "TaskLayout",
    "Tokens",
    "__version__",
    "data_parallel",
    "decoupled_diloco",
    "diloco",
    "elastic_data_parallel",
    "island",
    "load",
    "milliseconds",
    "reroute",
    "route",
    "scan_layers",
    "streaming_diloco",
    "tensorboard",
    "train",
    "training_documents",
    "tree_mean",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("isthmus")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_linux(f"Importing isthmus.{name}")
    module, _, own_name = _MODULES[name].partition(":")
    return getattr(import_module(f"isthmus.{module}"), own_name or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
