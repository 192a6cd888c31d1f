"""The references that stand for something of the run in what the run adds to a graph, and what they mean to a host.

They are apart from `roles`, which writes them into the graph: a host resolves them, and has its part of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isthmus.runtime.graph.template import Reference

if TYPE_CHECKING:
    from isthmus.programs.engine.snapshots.stored import StorePlace

RUN_FOLDER: Final[Any] = Reference("isthmus:run-folder")
SNAPSHOT_SECONDS: Final[Any] = Reference("isthmus:snapshot-seconds")
SNAPSHOT_PLACE: Final[Any] = Reference("isthmus:snapshot-place")
OF_RUN: Final = (RUN_FOLDER, SNAPSHOT_SECONDS, SNAPSHOT_PLACE)
"""Resolved by the process that runs the recorder; not part of the program."""


def resolving(
    folder: Path,
    resolve: Callable[[Reference], Any],
    snapshot_seconds: float,
    snapshot_place: StorePlace | None = None,
) -> Callable[[Reference], Any]:
    """`resolve`, extended by the references OF_RUN, for a run in `folder`."""
    of_run = {RUN_FOLDER: folder, SNAPSHOT_SECONDS: snapshot_seconds, SNAPSHOT_PLACE: snapshot_place}
    return lambda reference: of_run[reference] if reference in of_run else resolve(reference)
