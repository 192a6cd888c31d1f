"""The metrics of a machine's daemon, as a service of it."""

from __future__ import annotations

from typing import final

from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.metrics.exporter import Exporter, MetricsAddress, on_loop
from isthmus.programs.engine.metrics.run_status import RunStatus


@final
class Metrics(DaemonService):
    """Serves the metrics of a daemon's runs at an address."""

    def __init__(self, at: MetricsAddress) -> None:
        self._at = at

    def start(self, machine: ServedMachine) -> None:
        """Listen; ConfigError if prometheus-client is missing, or the port is taken."""

        def statuses() -> list[RunStatus]:
            return [RunStatus(each["run"], each["hosts"], each.get("training", {})) for each in machine.statuses()]

        exporter = self._exporter = Exporter(machine.name, self._at, on_loop(machine.loop, statuses))
        machine.later(0.0, lambda: machine.tell(f"metrics are at {exporter.url}"))

    def close(self) -> None:
        """Serve no longer."""
        self._exporter.close()
