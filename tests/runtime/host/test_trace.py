"""The timeline for people: bounded, and in the form that Perfetto reads."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter

from isthmus.runtime.clock import Instant
from isthmus.runtime.host.contract import Span, Trace, as_perfetto


def test_the_oldest_spans_are_dropped_and_counted() -> None:
    trace = Trace(spans_max=3)
    for number in range(5):
        trace.add(Span("learner/0", f"node-{number}", Instant(number), Instant(number + 1)))
    assert [span.name for span in trace.spans] == ["node-2", "node-3", "node-4"]


def test_spans_may_be_added_by_any_thread() -> None:
    trace = Trace(spans_max=100_000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def add(name: str) -> None:
        for number in range(1000):
            trace.add(Span("learner/0", name, Instant(number), Instant(number + 1)))

    threads = [threading.Thread(target=add, args=(str(number),)) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert Counter(span.name for span in trace.spans) == dict.fromkeys("0123", 1000)


def test_a_host_is_a_process_a_node_a_thread_and_so_is_an_edge() -> None:
    spans = [
        Span("syncer/0", "merge", Instant(5_000), Instant(7_500)),
        Span("learner/0", "inner-step", Instant(1_000), Instant(2_000)),
        Span("learner/0", "inner-step", Instant(2_000), Instant(3_000)),
        Span("learner/0", "inner-step", Instant(2_500), Instant(4_000), "syncer/0", 1024),
    ]
    found = list(as_perfetto(spans))
    names = [(event["pid"], event.get("tid"), event["args"]["name"]) for event in found if event["ph"] == "M"]
    assert names == [
        (1, None, "learner/0"),
        (2, None, "syncer/0"),
        (1, 1, "inner-step"),
        (1, 2, "transfer inner-step"),
        (2, 3, "merge"),
    ]
    slices = [event for event in found if event["ph"] == "X"]
    assert slices == [
        {"ph": "X", "name": "merge", "pid": 2, "tid": 3, "ts": 5.0, "dur": 2.5},
        {"ph": "X", "name": "inner-step", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0},
        {"ph": "X", "name": "inner-step", "pid": 1, "tid": 1, "ts": 2.0, "dur": 1.0},
        {
            "ph": "X",
            "name": "inner-step",
            "pid": 1,
            "tid": 2,
            "ts": 2.5,
            "dur": 1.5,
            "args": {"to": "syncer/0", "bytes": 1024},
        },
    ]
    assert json.loads(json.dumps(found)) == found


def test_nothing_gives_an_empty_timeline() -> None:
    assert list(as_perfetto([])) == []
