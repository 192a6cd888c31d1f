"""Incidents, verdicts, ends and failures as records: what is written is what is read, and nothing else is."""

from __future__ import annotations

import json
from typing import Any, Final, get_args

import msgspec
import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.cores.membership_messages import (
    Excused,
    HeardAgain,
    KeepsUp,
    LongExcuse,
    Pace,
    Refused,
    Silence,
    SlowHost,
    Stall,
    Suspected,
)
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.incidents import Ended, Exited, Happened, as_line, incident_of, of_line
from tests.runtime.supervision.supervision_stories import life

PACE: Final = Pace(3.5e9, 1e9, 2)
VERDICTS: Final = (
    Silence(7_300_000_000, 0.25e9, 1e9, 12.0, 2, True),
    LongExcuse(9, "unheard", 7),
    Stall("inner-step", 15_000_000_000, 1e9, 2e9, 12.5, True, 4),
    incidents.NoFirstHeartbeat(60_000_000_000),
    incidents.NotEnded(10_000_000_000),
    incidents.Lingered("run.loop_idle_seconds", 1_800_000_000_000, 1_800_000_000_000),
    incidents.Hurried(),
    incidents.Unreached(20_000_000_000, 3, 2),
    incidents.Misbehaved("syncer/0", "a.answer -> b.answer", "norms", "a list", "'ä'", 3),
    incidents.GangMemberLost("learner.1/0"),
    incidents.TooFewProcesses(1, 2),
)
ENDS: Final = (
    Exited(3),
    Exited(signal="SIGKILL"),
    Exited(),
    Exited(signal="SIGKILL", places=(incidents.CodePlace("train.py", 9, "evaluate"),)),
    incidents.Unseen(),
    incidents.NotStarted("no memory"),
    incidents.MachineLost("beta", 20_000_000_000),
    incidents.MachineTaken("beta", "expelled"),
    incidents.Departed("beta", Exited(0)),
    incidents.Parted(Exited(0)),
)
BOOM: Final = incidents.Raised("data", "ValueError", "'ä'", "/home/mine.py", 12)
LAST: Final = Ended(Exited(3), incidents.Hurried(), BOOM)
INCIDENTS: Final = (
    Suspected(VERDICTS[0]),  # type: ignore[arg-type]
    Suspected(),
    Excused("stopped", 5, 4711, "beta"),
    HeardAgain(5),
    incidents.CutOff(3),
    incidents.Reached(5),
    SlowHost(PACE),
    incidents.SameData("learner/0"),
    incidents.Starved("inner-step", "data", 300_000_000, 2_000_000),
    KeepsUp(PACE),
    incidents.BodyRaised(BOOM),
    *(incidents.Condemned(verdict) for verdict in VERDICTS),
    *(Ended(end) for end in ENDS),
    *(Ended(Exited(signal="SIGKILL"), verdict, BOOM) for verdict in VERDICTS),
    incidents.Restarted(),
    incidents.Adopted(),
    incidents.Joined("beta"),
    incidents.GivenUp(6, LAST),
    incidents.LoopLeft(),
    incidents.DataSpent(1000, 500, 2.0, is_last=True),
    incidents.WasAway(40_000_000_000, 512),
    incidents.Lingers("run.loop_away_max", 540_000_000_000, 60_000_000_000),
    incidents.NeverStepped(30_000_000_000),
    incidents.ScriptGoesOn(),
    incidents.ScriptUnfinished(LAST),
    incidents.Delayed("no space"),
    Refused("no slot"),
    incidents.ItemRefused(incidents.Misbehaved("syncer/0", "a.answer -> b.answer", "", "a list", "7", 1)),
    incidents.ProcessLost("learner.1/0", 3, 4),
    incidents.ProcessMissing("learner.1/0", 60_000_000_000, 3, 4),
    incidents.ProcessBack("learner.1/0", 4, 4),
    incidents.Reformed(3, 4, 2_000_000_000, 5),
    incidents.NumbersLost(1001),
    incidents.ReportRefused("beta", "report.lives[0].pid", "`int` >= 0", "-1"),
    incidents.SharesUnbounded(2),
    incidents.SharesBounded(3),
    incidents.LedgerRemoved(),
    incidents.HomeTaken("beta", 2, "alpha"),
    incidents.HomeSetAside(),
    incidents.WentOn(7, -3, 4),
    incidents.Superseded("beta", 2, 1),
)
FAILURES: Final = (
    incidents.RecorderFailed("no space"),
    incidents.RestartsExhausted("learner/1", 6, LAST),
    incidents.NeverHealthy("watcher/0", 2, LAST),
    incidents.ProgramFailed(BOOM, 2),
    incidents.LoopRefused("learner/1", msgspec.structs.replace(BOOM, is_refusal=True)),
    incidents.ModelsDiffer("learner/1", "head/weight"),
    incidents.NoMachineLeft("syncer/0", LAST),
    incidents.Unserved("recorder/0", seconds(60), LAST),
    incidents.SupersededHome("beta", 2, 1),
    incidents.Ordered("enough"),
)


def kinds(union: Any) -> list[str]:
    """The kind of every member of a union, as it is written."""
    return [str(member.__struct_config__.tag) for member in get_args(union)]


@pytest.mark.parametrize("incident", INCIDENTS)
def test_what_happened_is_a_line_and_read_from_it(incident: incidents.Incident) -> None:
    happened = Happened(Instant(77), life("learner/1#3"), incident)
    line = json.loads(json.dumps(as_line(happened)))
    assert of_line(line) == happened
    assert (line["at"], line["host"], line["incarnation"]) == (77, "learner/1", 3)
    assert line["kind"] == msgspec.to_builtins(incident)["kind"]
    told = {name: value for name, value in line.items() if name not in ("at", "host", "incarnation")}
    assert incident_of(told) == incident


def test_every_member_of_every_union_is_tried_here_and_has_a_kind_of_its_own() -> None:
    for union, tried in (
        (incidents.Incident, INCIDENTS),
        (incidents.Verdict, VERDICTS),
        (incidents.NotedEnd, ENDS),
        (incidents.Failure, FAILURES),
    ):
        assert {type(each) for each in tried} == set(get_args(union))
        assert len(set(kinds(union))) == len(kinds(union))
    everything = [
        *kinds(incidents.Incident),
        *kinds(incidents.Verdict),
        *kinds(incidents.NotedEnd),
        *kinds(incidents.Failure),
    ]
    assert len(set(everything)) == len(everything)


LINE: Final = {"at": 77, "host": "learner/1", "incarnation": 3, "kind": "restarted"}


@pytest.mark.parametrize("name", ["at", "host", "incarnation"])
@pytest.mark.parametrize("value", [None, 1.5, []])
def test_a_line_without_a_part_of_it_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a line of events.jsonl: expected at, host, incarnation, found"):
        of_line({**LINE, name: value})
    with pytest.raises(ValueError, match=r"not a line of events.jsonl"):
        of_line({key: given for key, given in LINE.items() if key != name})


@pytest.mark.parametrize("line", [[], 3, "text", None, {}, {**LINE, "at": 10**400}, {**LINE, "incarnation": 1 << 63}])
def test_what_is_no_line_is_refused(line: Any) -> None:
    with pytest.raises(ValueError, match=r"not a line of events\.jsonl"):
        of_line(line)


def test_a_line_about_no_host_is_refused() -> None:
    with pytest.raises(ValueError, match="a replica is written role/number"):
        of_line({**LINE, "host": "learner"})


MALFORMED: Final = (
    {},
    {"kind": "danced"},
    {"kind": "restarted", "again": True},
    {"kind": "slow"},
    {"kind": "heard-again", "silence_ns": "long"},
    {"kind": "excused", "excuse": "tired", "silence_ns": 1, "pid": 1, "machine": ""},
    {"kind": "condemned", "verdict": {"kind": "exited"}},
    {"kind": "ended", "end": {"kind": "silence"}},
)


@pytest.mark.parametrize("told", MALFORMED)
def test_what_is_no_incident_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an incident: "):
        incident_of(told)
