"""The places of all elements of the timeline: hosts from top to bottom, and in each a lane per node worth seeing.

Learners come first, then the other roles. A shard's pacer and quorum share one lane, `rounds`, with as many rows as
rounds were open at once; merge and outer step share another. Nodes that would only be noise (data, recorder) have none,
and neither have hosts beyond a screenful; the chart states their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from isthmus.programs.charts.window import Window
from isthmus.programs.results.rounds import Round
from isthmus.programs.results.timeline import Timeline, host_order, slot_of

LEARNERS_MAX: Final = 8
OTHERS_MAX: Final = 4
ROW_HEIGHT: Final = 17

_HIDDEN: Final = ("data", "record", "hold-")
_ORDER: Final = ("inner-step", "fragment-send", "rounds", "merge")
_SHARED: Final = {"pacer": "rounds", "outer-step": "merge"}
_HEIGHTS: Final = {"inner-step": 22.0, "fragment-send": 11.0, "merge": 12.0}
_NAMES: Final = {"merge": "merge, outer step", "fragment-send": "fragment under way"}


class Lane(NamedTuple):
    """The strip of one node: its upper edge and height in pixels, and its name."""

    y: float
    height: float
    name: str


@dataclass(slots=True)
class Lanes:
    """All lanes by (host, node), the bands of the hosts, and the rows of rounds by (host, round)."""

    lanes: dict[tuple[str, str], Lane] = field(default_factory=dict)
    bands: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    bottom: float = 0.0

    def of(self, host: str, node: str) -> Lane | None:
        """The lane in which a node is drawn, None if in none."""
        return self.lanes.get((host, _SHARED.get(node, node)))


def arrange(timeline: Timeline, window: Window, rounds: Sequence[Round], top: float) -> Lanes:
    """The lanes for the activity in `window`; rounds get rows so that no two of a row overlap."""
    result = Lanes()
    learners = [host for host in timeline.hosts if slot_of(host) is not None]
    others = [host for host in timeline.hosts if slot_of(host) is None]
    others.sort(key=lambda host: (not host.startswith("syncer/"), host_order(host)))
    y = top
    shown = 0
    for host in [*learners[:LEARNERS_MAX], *others]:
        mine = [item for item in rounds if item.host == host]
        nodes = _nodes(timeline, window, host, bool(mine))
        if not nodes or (host in others and shown >= OTHERS_MAX):
            continue
        shown += host in others
        begin = y
        y += 5
        for node in nodes:
            height = ROW_HEIGHT * _rows(mine, result.rows) if node == "rounds" else _HEIGHTS.get(node, 9.0)
            result.lanes[(host, node)] = Lane(y, height, _NAMES.get(node, node))
            y += height + 4 + (12 if node == "merge" else 0)
        y += 1
        result.bands[host] = (begin, y - begin)
        y += 9
    result.bottom = y - 9
    return result


def _nodes(timeline: Timeline, window: Window, host: str, has_rounds: bool) -> list[str]:
    """The lanes of a host, in the order in which data flows."""
    fired = {
        _SHARED.get(node, node): None
        for owner, node in timeline.firings
        if owner == host and not node.startswith(_HIDDEN) and timeline.between(host, node, *window)
    }
    if has_rounds:
        fired["rounds"] = None
    return sorted(fired, key=lambda node: (_ORDER.index(node) if node in _ORDER else len(_ORDER), node))


def _rows(rounds: Iterable[Round], rows: dict[tuple[str, int], int]) -> int:
    """Put every round into the first row that is free when it opens; how many rows that takes."""
    free: list[float] = []
    for item in rounds:
        row = next((index for index, until in enumerate(free) if until <= item.opened), len(free))
        free[row : row + 1] = [item.published]
        rows[item.host, item.merge.round] = row
    return max(len(free), 1)
