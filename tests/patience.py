"""How long tests wait for what must come."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 300.0
"""Seconds, on a machine of which every core has ten others to serve. Only a test that fails waits so long: none
measures time by it."""
