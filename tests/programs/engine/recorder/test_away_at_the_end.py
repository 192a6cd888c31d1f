"""What a life was away when it ended is known from the run's events, and counts as its other absences do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isthmus.programs.engine.recorder.accounts import away_ns
from isthmus.programs.engine.recorder.summary import note_ends
from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import DataSpent, Ended, Exited, Happened, as_line

KILLED = Ended(Exited(signal="SIGKILL"), away_ns=seconds(40))


def test_the_absence_of_a_killed_life_counts_until_its_end(tmp_path: Path) -> None:
    lives = [(Member(Replica("learner", 1), 1), KILLED), (Member(Replica("learner", 0), 3), Ended(Exited(0)))]
    lines = [json.dumps(as_line(Happened(Instant(9), member, incident))) for member, incident in lives]
    (tmp_path / "events.jsonl").write_text("\n".join([lines[0], '{"torn', lines[1]]) + "\n")
    record = status()
    note_ends(record, tmp_path)
    (killed,) = record["former"]
    assert away_ns(killed, 10**12) == seconds(2) + seconds(40)
    assert [away_ns(report, 0) for report in record["learners"].values()] == [0, seconds(2)]


def test_what_a_learner_has_trained_of_its_own_data_is_noted_as_it_leaves(tmp_path: Path) -> None:
    line = as_line(Happened(Instant(9), Member(Replica("learner", 1), 2), DataSpent(1000, 500, 2.0)))
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    record = status()
    note_ends(record, tmp_path)
    assert record["learners"][1]["data_spent"] == {"tokens": 1000, "of_tokens": 500, "epochs_max": 2.0}


def test_a_run_without_events_has_none(tmp_path: Path) -> None:
    record = status()
    note_ends(record, tmp_path)
    assert record == status()


def status() -> dict[str, Any]:
    """A recorder's: of learner 1 a life that was away for 2 s before, and the next one."""
    report = {"phase": "stepping", "reported_at": 5, "gone_at": 6, "step_ms": 20.0, "incarnation": 1, "slot": 1}
    learners = {
        0: {**report, "slot": 0, "incarnation": 3, "away": 0},
        1: {**report, "incarnation": 2, "away": seconds(2)},
    }
    return {"learners": learners, "former": [{**report, "away": seconds(2)}]}
