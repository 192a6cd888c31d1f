"""The picture that explains the system: learners that step without pause while fragments travel and merge.

Time runs to the right. Every firing is a box as wide as it lasted, so that a pause would show as a gap; inner steps
alternate in shade. A transfer is a line from the lane of the sending node to the lane of the receiving node, from the
time of its departure to that of its arrival. On a shard's `rounds` lane a bar is one round: from the pull to the
quorum, the grace window, and the merge at its end, with a dot for each answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from isthmus.programs.charts.axes import Scale, drawing, rectangle, text, time_axis
from isthmus.programs.charts.lanes import ROW_HEIGHT, Lane, Lanes, arrange
from isthmus.programs.charts.markup import element, joined, path, titled
from isthmus.programs.charts.style import learner_class
from isthmus.programs.charts.window import Window
from isthmus.programs.results.numbers import seconds, size
from isthmus.programs.results.record import RunRecord
from isthmus.programs.results.rounds import Journey, Round, rounds_between, with_journeys
from isthmus.programs.results.timeline import Timeline, Transfer, slot_of

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
    window: Window
    rounds: list[Round]
    lanes: Lanes
    x: Scale


def draw_timeline(record: RunRecord, window: Window, width: float = 1080) -> Markup:
    """The timeline of `window`, `width` pixels wide and as high as its lanes are."""
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
            told = f"{host} {node}: {seconds(firing.ended - firing.begun)} from {firing.begun:.3f} s"
            kind = "merge" if node in ("merge", "outer-step") else "fire"
            class_ = f"step{' odd' if index % 2 else ''} {colour}" if node == "inner-step" else f"{kind} {colour}"
            yield rectangle(x, lane.y, max(wide, 1.2), lane.height, class_, told)


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
    told = (
        f"{transfer.edge}: {transfer.source} to {transfer.target}, {size(transfer.size_bytes)} "
        f"in {seconds(transfer.ended - transfer.begun)}"
    )
    parts = [element("path", titled(told), d=path([begin, end]), class_=f"{kind} {_colour(slot)}")]
    if is_late:
        told = "an answer that belongs to no round in sight: it came late, or its round is not drawn"
        class_ = f"vote late {_colour(slot)}"
        parts.append(element("circle", titled(told), cx=end[0], cy=end[1], r=3.2, class_=class_))
    if kind == "update":
        x, y, back = end[0], end[1], 5 if is_up else -5
        parts.append(element("path", d=path([(x, y), (x - 2.6, y + back), (x + 2.6, y + back)]) + "Z", class_="tip"))
    return joined(parts)


def _is_in(transfer: Transfer, item: Round) -> bool:
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
            told = (
                f"fragment {item.merge.fragment}, round {item.merge.round}: {seconds(journey.returned - journey.left)} "
                f"from leaving learner {journey.slot} until its merged value arrived"
            )
            yield rectangle(x, lane.y, end - x, lane.height, f"away {learner_class(journey.slot)}", told)
            if end - x > 26:
                yield text((x + end) / 2 + 1, lane.y + lane.height - 2, f"p{item.merge.fragment}", "mid", "tiny")


def _rounds(scene: _Scene) -> Iterator[Markup]:
    taken: dict[tuple[str, float], float] = {}
    for item in scene.rounds:
        lane = scene.lanes.of(item.host, "rounds")
        merge = scene.lanes.of(item.host, "merge")
        if lane is None:
            continue
        name = f"p{item.merge.fragment}"
        y = lane.y + ROW_HEIGHT * scene.lanes.rows[item.host, item.merge.round] + 1.5
        begin, end = scene.x(item.opened), scene.x(item.published)
        # The name stands before its bar, because answers may cover all of the bar.
        if begin - taken.get((item.host, y), -100.0) > 7 * len(name):
            yield text(begin - 3, y + ROW_HEIGHT - 6, name, "end", "small")
        taken[item.host, y] = end
        yield _bar(scene, item, y)
        for journey in item.journeys:
            yield _vote(scene, item, journey, y + (ROW_HEIGHT - 3) / 2)
        middle = scene.x((item.closed + item.published) / 2)
        if merge is not None and middle - taken.get((item.host, merge.y), -100.0) >= 17:
            taken[item.host, merge.y] = middle
            yield text(middle, merge.y + merge.height + 11, name, "mid", "small")


def _bar(scene: _Scene, item: Round, y: float) -> Markup:
    """The bar of a round: waiting for the quorum, grace, merge."""
    x = [scene.x(value) for value in (item.opened, item.quorum_at, item.closed, item.published)]
    high = ROW_HEIGHT - 3
    merge = item.merge
    told = (
        f"fragment {merge.fragment}, round {merge.round}: {len(merge.voters)} contributors, "
        f"quorum after {seconds(item.quorum_at - item.opened)}, grace {seconds(item.closed - item.quorum_at)}. "
        f"{merge.reason}"
    )
    return joined(
        [
            rectangle(x[0], y, x[1] - x[0], high, "gather", told),
            rectangle(x[1], y, x[2] - x[1], high, "grace", told),
            rectangle(x[2], y, max(x[3] - x[2], 2.5), high, "merge", told),
        ]
    )


def _vote(scene: _Scene, item: Round, journey: Journey, y: float) -> Markup:
    is_counted = journey.slot in item.merge.voters
    told = f"answer of learner {journey.slot}" + ("" if is_counted else ", not counted")
    class_ = f"vote {'' if is_counted else 'late '}{learner_class(journey.slot)}"
    return element("circle", titled(told), cx=scene.x(journey.arrived), cy=y, r=3.2, class_=class_)


def longest_pause(timeline: Timeline, host: str, window: Window) -> float | None:
    """Seconds, the longest between two inner steps of a learner in `window`; None if it made fewer than two."""
    steps = timeline.between(host, "inner-step", *window)
    return max((max(later.begun - earlier.ended, 0.0) for earlier, later in pairwise(steps)), default=None)


def visible_rounds(record: RunRecord, window: Window) -> Sequence[Round]:
    """The rounds that lie in `window` from beginning to end."""
    rounds = rounds_between(record, *window)
    return [item for item in rounds if window.begin <= item.opened and item.published <= window.end]


def _colour(slot: int | None) -> str:
    return learner_class(slot) if slot is not None else "shard"
