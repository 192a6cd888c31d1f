"""Whoever runs a daemon in a test: keeps its lines."""

from __future__ import annotations

from isthmus.programs.engine.machine.names import DaemonRun


class Owner:
    """Keeps what a daemon tells, and how often it was idle."""

    def __init__(self, lines: list[str] | None = None) -> None:
        self.lines = [] if lines is None else lines
        self.idles = 0

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def changed(self, endpoint: str, runs: list[DaemonRun]) -> None:
        """No-op."""

    def idle(self) -> None:
        self.idles += 1
