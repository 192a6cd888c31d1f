"""The messages about the store of a run's snapshots, in words."""

from __future__ import annotations

from typing import Any


def store_line(store: Any) -> str:
    """A line about a store of a status or a summary that does not take snapshots; '' if it does, or there is none."""
    if not isinstance(store, dict) or not store.get("error"):
        return ""
    number = store.get("number")
    last = f"the last one there is number {number}" if number else "there is none there yet"
    return f"snapshots do not reach {store.get('url')}: {store['error']}; {last}"
