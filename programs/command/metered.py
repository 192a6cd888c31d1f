"""`isthmus train --metrics-port`: serves the figures that the command is shown."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from isthmus.programs.engine.metrics.exporter import Exporter, MetricsAddress
from isthmus.programs.engine.metrics.run_status import RunStatus
from isthmus.programs.study.terminal.live import watching

if TYPE_CHECKING:
    from isthmus.programs.engine.request.request import Request
    from isthmus.programs.engine.run.in_processes import Submitted
    from isthmus.programs.engine.run.watch_loop import Watch


@final
class Meter:
    """Serves the figures of the run that a command watches, from its last status."""

    def __init__(self, at: MetricsAddress) -> None:
        """Listen; ConfigError if that is not possible."""
        self.statuses: list[RunStatus] = []
        self._exporter = Exporter(platform.node(), at, lambda: self.statuses)

    def tell(self) -> None:
        """Print where."""
        typer.echo(f"metrics are at {self._exporter.url}")

    def close(self) -> None:
        """Serve no longer."""
        self._exporter.close()


@final
class MeteredView:
    """A view whose statuses a meter serves, too."""

    def __init__(self, view: Watch, meter: Meter, run: str) -> None:
        self._view, self._meter, self._run = view, meter, run

    def update(self, status: dict[str, Any]) -> None:
        """Take the newest status."""
        self._meter.statuses = [RunStatus(self._run, status.get("hosts", ()), status)]
        self._view.update(status)

    def close(self, summary: dict[str, Any]) -> None:
        """The run is over."""
        self._meter.statuses = []
        self._view.close(summary)


@contextmanager
def metering(at: MetricsAddress | None, *, quiet: bool) -> Iterator[Meter | None]:
    """The meter of a command; None if none was asked for. ConfigError, before anything is started."""
    if at is None:
        yield None
        return
    meter = Meter(at)
    try:
        if not quiet:
            meter.tell()
        yield meter
    finally:
        meter.close()


@contextmanager
def viewing(meter: Meter | None, request: Request | Submitted, **options: Any) -> Iterator[Watch]:
    """The view of a run, as `watching` makes it with these options, whose statuses the meter serves."""
    with watching(request, **options) as view:
        yield view if meter is None else MeteredView(view, meter, name_of_run(request.run_dir))


def name_of_run(folder: Path) -> str:
    """The unique name of the run in a folder, as daemons have it; that of the folder, where that is elsewhere."""
    from isthmus.programs.engine.request import spec

    try:
        return spec.load(folder).run
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name
