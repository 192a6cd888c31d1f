"""Files of a run folder in the least form in which commands read them."""

from __future__ import annotations

from typing import Any, Final

CONFIG: Final = "[run]\n"
GRAPH: Final[dict[str, Any]] = {"program": "decoupled-diloco", "roles": [], "nodes": [], "edges": []}


def summary(**more: Any) -> dict[str, Any]:
    """The summary of a run that is done, or what is said otherwise."""
    figures = {"goodput": None, "wall_seconds": 0.0, "merged_share": None, "tokens_total": 0}
    counts = {"learners": 0, "outer_steps": 0, "per_learner": []}
    return {"outcome": "done", "program": "decoupled-diloco", **figures, **counts, **more}


def spec(**more: Any) -> dict[str, Any]:
    """What commands read of any spec."""
    return {"run": "run-1", "roles": {}, "zero_ns": 0, "job": {}, "settings": {}, "here": {}, **more}
