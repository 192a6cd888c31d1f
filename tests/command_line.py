"""The command line as tests call it, in their own process."""

from __future__ import annotations

from isthmus.programs.command.main import whole

app = whole()
