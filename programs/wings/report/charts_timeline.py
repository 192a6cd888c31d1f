"""The picture of a run over time: learners that step without pause while fragments travel and merge.

Decides the second or two that the timeline shows, the parts of the run in which hosts were away, the lanes from top to
bottom, and what is drawn in them. Time runs to the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from markupsafe import Markup

from isthmus.programs.engine.results.absences import Absence
from isthmus.programs.engine.results.lines import ReportLine
from isthmus.programs.engine.results.reading import Journey, RoundSpan, rounds_between, with_journeys
from isthmus.programs.engine.results.record import (
    Firing,
    RunRecord,
    Timeline,
    Transfer,
    by_learner,
    host_order,
    slot_of,
    unbroken,
)
from isthmus.programs.engine.results.words import seconds, size
from isthmus.programs.wings.report.charts_drawing import (
    Scale,
    drawing,
    element,
    joined,
    learner_class,
    path,
    rectangle,
    text,
    time_axis,
    titled,
)

_STEPS: Final = 28
_STEPS_MIN: Final = 10
_ROUNDS: Final = 10
_CANDIDATES: Final = 25
_MIDDLE: Final = (0.4, 0.6)
"""Range in the trace where a window may begin, as shares of the time left beside the window."""


class TimeWindow(NamedTuple):
    """A part of the run, in seconds."""

    begin: float
    end: float


def choose_window(record: RunRecord) -> TimeWindow | None:
    """The window to show; None without a trace of consecutive inner steps.

    About thirty inner steps, so that single steps are visible for any step time; fewer where rounds follow one another
    so fast that there would be more than ten, but always long enough for two. It lies in the middle of the trace, or as
    near to it as there is a window with a round from beginning to end. Nothing is chosen for its looks.
    """
    timeline = record.timeline
    extent = _extent(timeline) if timeline is not None else None
    if timeline is None or extent is None:
        return None
    middle = (extent.begin + extent.end) / 2
    length = min(_length(record, timeline, extent), extent.end - extent.begin)
    if length <= 0:
        return None
    room = extent.end - extent.begin - length
    first, last = (extent.begin + share * room for share in _MIDDLE)
    begins = [first + (last - first) * index / (_CANDIDATES - 1) for index in range(_CANDIDATES)]
    begins.sort(key=lambda begin: abs(begin + length / 2 - middle))
    begins = [begin for begin in begins if timeline.steps_between(begin, begin + length)]
    if not begins:
        step = min(timeline.steps_between(*extent), key=lambda step: abs(step.begun - middle))
        begins = [min(max(step.begun - length / 2, extent.begin), extent.begin + room)]
    rounds = rounds_between(record, first, last + length)
    whole = (
        begin for begin in begins if any(begin <= item.opened and item.published <= begin + length for item in rounds)
    )
    begin = next(whole, begins[0])
    return TimeWindow(begin, begin + length)


def _length(record: RunRecord, timeline: Timeline, extent: TimeWindow) -> float:
    """The length in seconds at which everything is still distinguishable."""
    step = _step_seconds(timeline)
    merges = [merge for merge in record.merges if merge.kind == "merge" and extent.begin <= merge.time <= extent.end]
    if len(merges) < 2:
        return _STEPS * step
    distance = median(later.time - earlier.time for earlier, later in pairwise(merges))
    duration = median(merge.duration for merge in merges)
    return max(min(_STEPS * step, max(_ROUNDS * distance, _STEPS_MIN * step)), 2.5 * duration)


def _extent(timeline: Timeline) -> TimeWindow | None:
    """From the first to the last inner step of the trace; firings before 0 only waited for the model."""
    steps = [spans for (host, node), spans in timeline.firings.items() if node == "inner-step" and spans]
    if not steps:
        return None
    extent = TimeWindow(max(0.0, min(spans[0].begun for spans in steps)), max(spans[-1].ended for spans in steps))
    return extent if extent.end > extent.begin else None


def _step_seconds(timeline: Timeline) -> float:
    """The usual time from one inner step to the next, among the learners."""
    usual = [
        median(later.begun - earlier.begun for earlier, later in pairwise(spans))
        for (host, node), spans in timeline.firings.items()
        if node == "inner-step" and slot_of(host) is not None and len(spans) > 1
    ]
    return median(usual) if usual else 0.0


DRAWN_ROLES: Final = ("learner", "syncer", "evaluator")
_MARGIN_SECONDS: Final = 1.5
_MARGIN_SHARE: Final = 0.4
_END_SECONDS: Final = 0.3
"""Room to the right of the last record."""
_CLOSE_STEPS: Final = 45
"""Steps of the usual length that are still distinguishable on half the width of the page."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A learner in a window: single steps that were traced, stretches known from reports only, absences."""

    slot: int
    traced: list[Firing]
    reported: list[TimeWindow]
    absences: list[Absence]

    @property
    def pause_max(self) -> float | None:
        """The longest time between two traced steps, in seconds; None if there are fewer than two."""
        return max((max(later.begun - earlier.ended, 0.0) for earlier, later in pairwise(self.traced)), default=None)


def windows(record: RunRecord) -> list[tuple[TimeWindow, list[Absence]]]:
    """The parts of the run in which hosts were away, with some time before and after; those that meet are one."""
    last = _training_end(record)
    parts: list[tuple[TimeWindow, list[Absence]]] = []
    for absence in record.absences:
        if absence.role not in DRAWN_ROLES or not record.is_placed or absence.begun > last:
            continue
        end = min(last if absence.ended is None else absence.ended, last)
        if end <= 0:
            continue
        margin = max(_MARGIN_SECONDS, _MARGIN_SHARE * (end - absence.begun))
        window = TimeWindow(max(0.0, absence.begun - margin), min(last, end + margin))
        if parts and window.begin <= parts[-1][0].end:
            before, absences = parts.pop()
            window = TimeWindow(before.begin, max(before.end, window.end))
            parts.append((window, [*absences, absence]))
        else:
            parts.append((window, [absence]))
    return parts


def close_ups(record: RunRecord, absences: Sequence[Absence]) -> list[tuple[TimeWindow, str]]:
    """The moments at which the first of `absences` of a learner or a syncer began and ended, some steps long."""
    first = next((item for item in absences if item.kind == "gone" and item.role in ("learner", "syncer")), None)
    step = _usual_step_seconds(record)
    if first is None or step is None:
        return []
    length = _CLOSE_STEPS * step
    moments = [(first.begun, "goes")]
    if first.ended is not None and first.ended - first.begun > length:
        moments.append((first.ended, "is back"))
    name = first.host.replace("/", " ")
    return [
        (TimeWindow(max(0.0, at - length / 2), max(0.0, at - length / 2) + length), f"{name} {what}")
        for at, what in moments
    ]


def _usual_step_seconds(record: RunRecord) -> float | None:
    """The usual duration of an inner step."""
    if record.timeline is None:
        return None
    took = [
        firing.ended - firing.begun
        for (host, node), firings in record.timeline.firings.items()
        if node == "inner-step" and host.startswith("learner/")
        for firing in firings
    ]
    return median(took) if took else None


def _training_end(record: RunRecord) -> float:
    """The time of the last record, with room: only the closing of hosts follows."""
    times = [item.time for items in (record.reports, record.merges, record.evaluations) for item in items]
    return min(record.wall_seconds, max(times, default=record.wall_seconds) + _END_SECONDS)


def steps_between(record: RunRecord, window: TimeWindow) -> list[Steps]:
    """The steps of each learner in `window`, slots in order.

    A host leaves its trace when it ends in good order. The tape of one that was killed tells nearly as much; without it
    its reports give the number of its steps, not the time of each.
    """
    reports = by_learner(record.reports)
    return [_steps(record, slot, reports.get(slot, []), window) for slot in record.learners]


def rate(record: RunRecord, slots: Sequence[int], begin: float, end: float) -> float | None:
    """The mean inner steps a second of one of the learners `slots` in [begin, end], traced; None without any trace."""
    if record.timeline is None or end <= begin or not slots:
        return None
    counts = [len(record.timeline.between(f"learner/{slot}", "inner-step", begin, end)) for slot in slots]
    return sum(counts) / len(slots) / (end - begin) if all(counts) else None


def _steps(record: RunRecord, slot: int, reports: Sequence[ReportLine], window: TimeWindow) -> Steps:
    host = f"learner/{slot}"
    traced = [] if record.timeline is None else record.timeline.between(host, "inner-step", *window)
    absences = [item for item in record.absences if item.host == host and _meets(item, window)]
    stepping = [report for report in reports if report.phase == "stepping"]
    reported = []
    for part in unbroken(stepping, record.wall_seconds):
        life = TimeWindow(part[0].time, _end_of(record, host, part[-1]))
        begin, end = max(life.begin, window.begin), min(life.end, window.end)
        if end > begin and not _is_traced(record, host, life):
            reported.append(TimeWindow(begin, end))
    return Steps(slot, traced, reported, absences)


def _end_of(record: RunRecord, host: str, last: ReportLine) -> float:
    """The end of a stretch of reports: a killed life lived on after its last report."""
    begins = [item.begun for item in record.absences if item.host == host and item.life == last.incarnation]
    return next((begun for begun in begins if begun >= last.time), last.time)


def _is_traced(record: RunRecord, host: str, life: TimeWindow) -> bool:
    return record.timeline is not None and bool(record.timeline.between(host, "inner-step", *life))


def _meets(absence: Absence, window: TimeWindow) -> bool:
    return absence.begun <= window.end and (absence.ended is None or absence.ended >= window.begin)


LEARNERS_DRAWN_MAX: Final = 8
OTHERS_MAX: Final = 4
VOTES_MAX: Final = 64
"""Dots on the bar of a round: more would hide each other."""
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


def arrange(timeline: Timeline, window: TimeWindow, rounds: Sequence[RoundSpan], top: float) -> Lanes:
    """The lanes for the activity in `window`; rounds get rows so that no two of a row overlap.

    Learners come first, then the other roles. A shard's pacer and quorum share one lane, `rounds`, with as many rows as
    rounds were open at once; merge and outer step share another. Nodes that would only be noise (data, recorder) have
    none, and neither have hosts beyond a screenful; the chart states their number.
    """
    result = Lanes()
    learners = [host for host in timeline.hosts if slot_of(host) is not None]
    others = [host for host in timeline.hosts if slot_of(host) is None]
    others.sort(key=lambda host: (not host.startswith("syncer/"), host_order(host)))
    y = top
    shown = 0
    for host in [*learners[:LEARNERS_DRAWN_MAX], *others]:
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


def _nodes(timeline: Timeline, window: TimeWindow, host: str, has_rounds: bool) -> list[str]:
    """The lanes of a host, in the order in which data flows."""
    fired = {
        _SHARED.get(node, node): None
        for owner, node in timeline.firings
        if owner == host and not node.startswith(_HIDDEN) and timeline.between(host, node, *window)
    }
    if has_rounds:
        fired["rounds"] = None
    return sorted(fired, key=lambda node: (_ORDER.index(node) if node in _ORDER else len(_ORDER), node))


def _rows(rounds: Iterable[RoundSpan], rows: dict[tuple[str, int], int]) -> int:
    """Put every round into the first row that is free when it opens; how many rows that takes."""
    free: list[float] = []
    for item in rounds:
        row = next((index for index, until in enumerate(free) if until <= item.opened), len(free))
        free[row : row + 1] = [item.published]
        rows[item.host, item.merge.round] = row
    return max(len(free), 1)


_GUTTER_MIN: Final = 158.0
_NAME_PIXELS: Final = 7.3
_LANE_PIXELS: Final = 5.7
"""Maximum width of a letter in the names of hosts and lanes: both stand in the gutter, on one line."""
_TOP: Final = 30.0
_FIRINGS_MAX: Final = 3_000
_TRANSFERS_MAX: Final = 1_000
"""More of either are indistinguishable on a screen; the largest transfers are kept."""

_QUIET_PORTS: Final = frozenset({"progress", "control"})


@dataclass(frozen=True, slots=True)
class _Scene:
    """The data of a drawing and its coordinates."""

    timeline: Timeline
    window: TimeWindow
    rounds: list[RoundSpan]
    lanes: Lanes
    x: Scale


def draw_timeline(record: RunRecord, window: TimeWindow, width: float = 1080) -> Markup:
    """The timeline of `window`, `width` pixels wide and as high as its lanes are.

    Every firing is a box as wide as it lasted, so that a pause would show as a gap; inner steps alternate in shade. A
    transfer is a line from the lane of the sending node to the lane of the receiving node. On a shard's `rounds` lane a
    bar is one round: from the pull to the quorum, the grace window, and the merge at its end, with a dot for each
    answer.
    """
    timeline = record.timeline
    assert timeline is not None, "a window is chosen from a trace"
    rounds = with_journeys(rounds_between(record, *window), timeline, window.begin - 1, window.end + 1)
    lanes = arrange(timeline, window, rounds, _TOP)
    scene = _Scene(timeline, window, rounds, lanes, Scale(window.begin, window.end, _gutter(lanes), width - 2))
    height = lanes.bottom + 4
    clip = element(
        "clipPath",
        element("rect", x=scene.x.start, y=0, width=scene.x.stop - scene.x.start, height=height),
        id="window",
    )
    inside = joined([*_transfers(scene), *_firings(scene), *_journeys(scene), *_rounds(scene)])
    return drawing(
        width,
        height,
        f"Timeline from {window.begin:.2f} s to {window.end:.2f} s of the run, a lane for each node",
        joined(_bands(scene, width)),
        time_axis(scene.x, _TOP - 8, lanes.bottom, 9, _TOP - 13),
        clip,
        element("g", inside, clip_path="url(#window)"),
    )


def _gutter(lanes: Lanes) -> float:
    """The left end of the time axis: right of the longest name of a host with the name of a lane beside it."""
    needed = (_NAME_PIXELS * len(host) + _LANE_PIXELS * len(lane.name) for (host, _), lane in lanes.lanes.items())
    return max(_GUTTER_MIN, 12 + 10 + 7 + max(needed, default=0.0))


def _bands(scene: _Scene, width: float) -> Iterator[Markup]:
    """A band for each host, its name, and the names of its lanes."""
    for host, (y, height) in scene.lanes.bands.items():
        slot = slot_of(host)
        yield element("rect", x=0, y=y, width=width, height=height, rx=5, class_="band")
        yield element("rect", x=0, y=y, width=4, height=height, rx=2, class_=f"chip {_colour(slot)}")
        yield text(12, y + min(20, height / 2 + 4), host.replace("/", " "), "name")
        for (owner, _), lane in scene.lanes.lanes.items():
            if owner == host:
                yield text(scene.x.start - 7, lane.y + min(lane.height, 20) / 2 + 3.5, lane.name, "end", "small")


def _firings(scene: _Scene) -> Iterator[Markup]:
    drawn = 0
    for host, node in scene.timeline.firings:
        lane = scene.lanes.of(host, node)
        if lane is None or node == "pacer":
            continue
        colour = _colour(slot_of(host))
        # The shade alternates with the number of the step in the whole trace, not in the window.
        if node == "inner-step":
            yield rectangle(scene.x.start, lane.y, scene.x.stop - scene.x.start, lane.height, "paper")
        before = len(scene.timeline.between(host, node, float("-inf"), scene.window.begin))
        for index, firing in enumerate(scene.timeline.between(host, node, *scene.window), before):
            drawn += 1
            if drawn > _FIRINGS_MAX:
                return
            x = scene.x(firing.begun)
            wide = scene.x(firing.ended) - x
            title = f"{host} {node}: {seconds(firing.ended - firing.begun)} from {firing.begun:.3f} s"
            kind = "merge" if node in ("merge", "outer-step") else "fire"
            class_ = f"step{' odd' if index % 2 else ''} {colour}" if node == "inner-step" else f"{kind} {colour}"
            yield rectangle(x, lane.y, max(wide, 1.2), lane.height, class_, title)


def _transfers(scene: _Scene) -> Iterator[Markup]:
    """The largest transfers, as lines, from source lane to target lane."""
    seen = []
    for transfer in scene.timeline.transfers_between(*scene.window):
        source = scene.lanes.of(transfer.source, transfer.source_node)
        # Answers meet in their round, which is drawn on a lane of its own.
        node = "rounds" if transfer.target_node == "merge" and scene.rounds else transfer.target_node
        target = scene.lanes.of(transfer.target, node)
        if source is not None and target is not None and transfer.target_port not in _QUIET_PORTS:
            seen.append((transfer, source, target))
    seen.sort(key=lambda entry: entry[0].size_bytes, reverse=True)
    for transfer, source, target in seen[:_TRANSFERS_MAX]:
        yield _transfer(scene, transfer, source, target)


def _transfer(scene: _Scene, transfer: Transfer, source: Lane, target: Lane) -> Markup:
    slot = slot_of(transfer.source)
    kind = "pull" if transfer.target_port == "pull" else "answer" if slot is not None else "update"
    is_up = target.y < source.y
    begin = (scene.x(transfer.begun), source.y if is_up else source.y + source.height)
    end = (scene.x(transfer.ended), target.y + target.height if is_up else target.y)
    is_late = False
    if kind == "answer" and transfer.target_node == "merge":
        rows = [scene.lanes.rows[item.host, item.merge.round] for item in scene.rounds if _is_in(transfer, item)]
        is_late = not rows
        end = (end[0], target.y + ROW_HEIGHT * ((rows or [0])[0] + 0.5))
    title = (
        f"{transfer.edge}: {transfer.source} to {transfer.target}, {size(transfer.size_bytes)} "
        f"in {seconds(transfer.ended - transfer.begun)}"
    )
    parts = [element("path", titled(title), d=path([begin, end]), class_=f"{kind} {_colour(slot)}")]
    if is_late:
        title = "an answer that belongs to no round in sight: it came late, or its round is not drawn"
        class_ = f"vote late {_colour(slot)}"
        parts.append(element("circle", titled(title), cx=end[0], cy=end[1], r=3.2, class_=class_))
    if kind == "update":
        x, y, back = end[0], end[1], 5 if is_up else -5
        parts.append(element("path", d=path([(x, y), (x - 2.6, y + back), (x + 2.6, y + back)]) + "Z", class_="tip"))
    return joined(parts)


def _is_in(transfer: Transfer, item: RoundSpan) -> bool:
    """Whether a transfer is one of the answers of a round."""
    slot = slot_of(transfer.source)
    return item.host == transfer.target and any(
        journey.slot == slot and journey.arrived == transfer.ended for journey in item.journeys
    )


def _journeys(scene: _Scene) -> Iterator[Markup]:
    """On each learner: a bar from the instant at which a fragment left to the one at which its update arrived."""
    for item in scene.rounds:
        for journey in item.journeys:
            lane = scene.lanes.of(f"learner/{journey.slot}", "fragment-send")
            if lane is None or journey.returned is None:
                continue
            x, end = scene.x(journey.left), scene.x(journey.returned)
            title = (
                f"fragment {item.merge.fragment}, round {item.merge.round}: {seconds(journey.returned - journey.left)} "
                f"from leaving learner {journey.slot} until its merged value arrived"
            )
            yield rectangle(x, lane.y, end - x, lane.height, f"away {learner_class(journey.slot)}", title)
            if end - x > 26:
                yield text((x + end) / 2 + 1, lane.y + lane.height - 2, f"p{item.merge.fragment}", "mid", "tiny")


def _rounds(scene: _Scene) -> Iterator[Markup]:
    occupied: dict[tuple[str, float], float] = {}
    for item in scene.rounds:
        lane = scene.lanes.of(item.host, "rounds")
        merge = scene.lanes.of(item.host, "merge")
        if lane is None:
            continue
        name = f"p{item.merge.fragment}"
        y = lane.y + ROW_HEIGHT * scene.lanes.rows[item.host, item.merge.round] + 1.5
        begin, end = scene.x(item.opened), scene.x(item.published)
        # The name stands before its bar, because answers may cover all of the bar.
        if begin - occupied.get((item.host, y), -100.0) > 7 * len(name):
            yield text(begin - 3, y + ROW_HEIGHT - 6, name, "end", "small")
        occupied[item.host, y] = end
        yield _bar(scene, item, y)
        for journey in _votes_drawn(item.journeys):
            yield _vote(scene, item, journey, y + (ROW_HEIGHT - 3) / 2)
        middle = scene.x((item.closed + item.published) / 2)
        if merge is not None and middle - occupied.get((item.host, merge.y), -100.0) >= 17:
            occupied[item.host, merge.y] = middle
            yield text(middle, merge.y + merge.height + 11, name, "mid", "small")


def _bar(scene: _Scene, item: RoundSpan, y: float) -> Markup:
    """The bar of a round: waiting for the quorum, grace, merge."""
    x = [scene.x(value) for value in (item.opened, item.quorum_at, item.closed, item.published)]
    high = ROW_HEIGHT - 3
    merge = item.merge
    title = (
        f"fragment {merge.fragment}, round {merge.round}: {len(merge.voters)} contributors, "
        f"quorum after {seconds(item.quorum_at - item.opened)}, grace {seconds(item.closed - item.quorum_at)}. "
        f"{merge.reason}"
    )
    return joined(
        [
            rectangle(x[0], y, x[1] - x[0], high, "gather", title),
            rectangle(x[1], y, x[2] - x[1], high, "grace", title),
            rectangle(x[2], y, max(x[3] - x[2], 2.5), high, "merge", title),
        ]
    )


def _votes_drawn(journeys: Sequence[Journey]) -> Sequence[Journey]:
    """All answers of a round, or some of many, evenly by their arrival, with the first and the last."""
    if len(journeys) <= VOTES_MAX:
        return journeys
    ordered = sorted(journeys, key=lambda journey: journey.arrived)
    return [*ordered[: -1 : len(ordered) // VOTES_MAX + 1], ordered[-1]]


def _vote(scene: _Scene, item: RoundSpan, journey: Journey, y: float) -> Markup:
    is_counted = journey.slot in item.merge.voters
    title = f"answer of learner {journey.slot}" + ("" if is_counted else ", not counted")
    class_ = f"vote {'' if is_counted else 'late '}{learner_class(journey.slot)}"
    return element("circle", titled(title), cx=scene.x(journey.arrived), cy=y, r=3.2, class_=class_)


def longest_pause(timeline: Timeline, host: str, window: TimeWindow) -> float | None:
    """Seconds, the longest time in `window` without an inner step of a learner under way; None if it never steps."""
    if not timeline.firings.get((host, "inner-step")):
        return None
    steps = timeline.between(host, "inner-step", *window)
    ends = [window.begin, *(step.ended for step in steps)]
    begins = [*(step.begun for step in steps), window.end]
    return max(0.0, *(begun - ended for ended, begun in zip(ends, begins, strict=True)))


def visible_rounds(record: RunRecord, window: TimeWindow) -> Sequence[RoundSpan]:
    """The rounds that lie in `window` from beginning to end."""
    rounds = rounds_between(record, *window)
    return [item for item in rounds if window.begin <= item.opened and item.published <= window.end]


def _colour(slot: int | None) -> str:
    return learner_class(slot) if slot is not None else "shard"
