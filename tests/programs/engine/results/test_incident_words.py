"""Every incident, verdict, end, refusal and failure has words, and the words say what somebody needs to know."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from isthmus.programs.engine.results.words import CATALOGUE, failure, predicate, reason, reason_of
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
from isthmus.runtime.supervision.incidents import (
    BodyRaised,
    Condemned,
    CutOff,
    DataSpent,
    Delayed,
    Departed,
    Ended,
    Exited,
    GivenUp,
    HomeSetAside,
    HomeTaken,
    Hurried,
    LedgerRemoved,
    LoopLeft,
    LoopRefused,
    MachineLost,
    MachineTaken,
    ModelsDiffer,
    NeverHealthy,
    NoFirstHeartbeat,
    NoMachineLeft,
    NotEnded,
    NotStarted,
    NumbersLost,
    Ordered,
    Parted,
    ProgramFailed,
    Raised,
    Reached,
    RecorderFailed,
    ReportRefused,
    RestartsExhausted,
    SameData,
    SharesBounded,
    SharesUnbounded,
    Starved,
    Superseded,
    SupersededHome,
    Unreached,
    Unseen,
    Unserved,
)

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
MILLISECOND, SECOND = 1_000_000, 1_000_000_000
SILENCE = Silence(3343 * MILLISECOND, 252.8e6, 1e9, 3.04)
STALL = Stall("data", 14_548 * MILLISECOND, 252.8e6, 2e9, 12.44)
STOPPED = LongExcuse(603 * SECOND, "stopped", 600 * SECOND)
SIGNALLED = Exited(signal="SIGKILL")
CRASHED = Ended(Exited(3))
WRONG = Raised("data", "ValueError", "no", "mine.py", 3)


def made(told: Any) -> list[Any]:
    """Values of a type as records have them, one of each of its alternatives."""
    if isinstance(told, types.UnionType):
        return [value for part in get_args(told) for value in made(part)]
    if isinstance(told, type) and issubclass(told, msgspec.Struct):
        fields = msgspec.structs.fields(told)
        samples = [made(field.type) for field in fields]
        count = max(map(len, samples), default=1)
        return [told(*(values[number % len(values)] for values in samples)) for number in range(count)]
    if get_origin(told) is Annotated:
        return made(get_args(told)[0])
    if told is type(None):
        return [None]
    if get_origin(told) is tuple:
        return [(), tuple(made(get_args(told)[0]))]
    if get_args(told):  # A Literal.
        return list(get_args(told))
    return {int: [7], float: [2.5e6], str: ["words"], bool: [True, False]}[told]


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (incidents.Incident, reason),
        (incidents.Incident, predicate),
        (incidents.Verdict, reason),
        (incidents.Verdict, predicate),
        (incidents.NotedEnd, reason),
        (incidents.NotedEnd, predicate),
        (incidents.Failure, failure),
    ],
)
def test_every_kind_has_words(kinds: Any, words: Any) -> None:
    values = made(kinds)
    assert len({type(value) for value in values}) == len(get_args(kinds))
    for value in values:
        text = words(value)
        assert text.isascii(), value
        assert text.strip() == text != "", value
        assert "None" not in text, value


def test_the_catalogue_has_no_kind_that_does_not_exist() -> None:
    groups = (incidents.Incident, incidents.Verdict, incidents.NotedEnd, incidents.Failure)
    kinds = {kind.__struct_config__.tag for group in groups for kind in get_args(group)}
    assert CATALOGUE.keys() == kinds | {Pace.__struct_config__.tag}


@pytest.mark.parametrize(
    ("kinds", "page"),
    [
        (incidents.Incident, "run-folder.md"),
        (incidents.Verdict, "run-folder.md"),
        (incidents.NotedEnd, "run-folder.md"),
        (incidents.Failure, "command-line.md"),
    ],
)
def test_the_reference_names_every_kind_and_every_field(kinds: Any, page: str) -> None:
    text = (REFERENCE / page).read_text()
    for kind in get_args(kinds):
        tag = kind.__struct_config__.tag
        names = {f"`{name}`" for name in (tag, *kind.__struct_fields__)}
        assert any(names <= set(re.findall("`[^`]+`", line)) for line in text.splitlines()), tag


@pytest.mark.parametrize(
    ("incident", "words", "told"),
    [
        (
            Suspected(SILENCE),
            "no heartbeat for 3.34 s: 253 ms +- 1.00 s are usual, phi is 3.0",
            "is silent (suspect): no heartbeat for 3.34 s",
        ),
        (
            Suspected(),
            "silent: nothing excuses it any more",
            "is silent (suspect): nothing excuses it any more",
        ),
        (
            Excused("stopped", 3343 * MILLISECOND, 2092, ""),
            "no heartbeat for 3.34 s: stopped by a signal or a debugger; "
            "`kill -CONT 2092` lets it go on, `kill -KILL 2092` has it replaced",
            "is stopped by a signal or a debugger; `kill -CONT 2092` lets it go on, `kill -KILL 2092` has it replaced",
        ),
        (
            Excused("stopped", 3343 * MILLISECOND, 2092, "beta"),
            "no heartbeat for 3.34 s: stopped by a signal or a debugger; "
            "`kill -CONT 2092` on beta lets it go on, `kill -KILL 2092` has it replaced",
            "is stopped by a signal or a debugger; "
            "`kill -CONT 2092` on beta lets it go on, `kill -KILL 2092` has it replaced",
        ),
        (
            Excused("unheard", 4 * SECOND, 2092, "beta"),
            "no heartbeat for 4.00 s: unheard, because its machine beta does not answer",
            "is unheard, because its machine beta does not answer",
        ),
        (HeardAgain(3 * SECOND), "heard again after 3.00 s", "is heard again after 3.00 s"),
        (
            CutOff(4),
            "cut off: it speaks to its daemon, but has no data connection to any of 4 other hosts",
            "is cut off: it speaks to its daemon, but has no data connection to any of 4 other hosts",
        ),
        (
            Reached(12 * SECOND),
            "reached again, after it was cut off for 12.0 s",
            "is reached again, after it was cut off for 12.0 s",
        ),
        (
            SlowHost(Pace(38.5e6, 6.2e6, 2)),
            "slow: 38.5 ms a step, the others 6.20 ms",
            "is slow: 38.5 ms a step, the others 6.20 ms",
        ),
        (
            KeepsUp(Pace(6.5e6, 6.2e6, 1)),
            "keeps up again: 6.50 ms a step, the other 6.20 ms",
            "keeps up again: 6.50 ms a step, the other 6.20 ms",
        ),
        (
            Starved("inner-step", "data", 300 * MILLISECOND, 2 * MILLISECOND),
            "data is the bottleneck: batch() takes 300 ms, a step 2.00 ms",
            "waits for its data: batch() takes 300 ms, a step 2.00 ms",
        ),
        (
            Starved("step", "frames", 300 * MILLISECOND, 2 * MILLISECOND),
            "data is the bottleneck: a firing of frames takes 300 ms, a step 2.00 ms",
            "waits for its data: a firing of frames takes 300 ms, a step 2.00 ms",
        ),
        (
            SameData("learner/0"),
            "began with the data of learner/0: draw them by island.seed, or divide them by island.slot",
            "began with the data of learner/0: draw them by island.seed, or divide them by island.slot",
        ),
        (BodyRaised(WRONG), "failed: ValueError: no (mine.py:3)", "failed: ValueError: no (mine.py:3)"),
        (
            BodyRaised(WRONG.kept_on("beta", "learner/1")),
            "failed: ValueError (mine.py:3); the text is on machine beta, in its log of learner/1",
            "failed: ValueError (mine.py:3); the text is on machine beta, in its log of learner/1",
        ),
        (
            Condemned(STALL),
            "killed: stuck: no step for 14.5 s, in one firing of node 'data': 253 ms +- 2.00 s are usual, phi is 12.4",
            "was stuck, without a step for 14.5 s in one firing of its node data, and was killed (run.stuck_seconds)",
        ),
        (Ended(SIGNALLED), "killed by signal SIGKILL", "was killed by signal SIGKILL"),
        (
            Ended(SIGNALLED, STOPPED),
            "no heartbeat for 10 min 03 s: stopped for 10 min 00 s, which is as long as is allowed; "
            "killed by signal SIGKILL",
            "was stopped for 10 min 00 s, which is as long as is allowed, and was killed by the daemon",
        ),
        (
            Ended(Exited(1), error=WRONG),
            "exited with status 1: ValueError: no (mine.py:3)",
            "exited with status 1: ValueError: no (mine.py:3)",
        ),
        (
            Ended(MachineTaken("gamma", "left")),
            "left with its machine gamma",
            "left with its machine gamma",
        ),
        (
            Ended(MachineTaken("gamma", "expelled")),
            "expelled with its machine gamma",
            "was expelled with its machine gamma",
        ),
        (
            Ended(Departed("beta", Exited(0))),
            "left in order with its machine beta, which was told to leave",
            "left in order with its machine beta, which was told to leave",
        ),
        (
            Ended(Departed("", SIGNALLED)),
            "left in order with its home, which was told to leave",
            "left in order with its home, which was told to leave",
        ),
        (
            GivenUp(6, CRASHED),
            "given up after 6 lives; the last time: exited with status 3",
            "was given up after 6 lives",
        ),
        (LoopLeft(), "left: its loop has ended", "has left: its loop has ended"),
        (
            DataSpent(1000, 400, 2.5),
            "left: it has trained its own data, 400 tokens, 2.5 times of at most 2.5",
            "has left: it has trained its own data, 400 tokens, 2.5 times of at most 2.5",
        ),
        (Ended(Parted(Exited(0))), "left in order", "left in order"),
        (Delayed("no room"), "not started yet: no room", "is not started yet: no room"),
        (
            Refused("older incarnation"),
            "refused: a newer life of it is known",
            "was refused: a newer life of it is known",
        ),
        (
            NumbersLost(1001),
            "the daemon's ledger was lost or torn: lives are numbered from 1001 on",
            "lost its ledger, or a part of it: lives are numbered from 1001 on",
        ),
        (
            HomeTaken("beta", 2, "alpha"),
            "the run's home is beta (term 2), in place of alpha, which was lost",
            "is that of beta (term 2), in place of alpha, which was lost",
        ),
        (
            HomeSetAside(),
            "the home was told to leave by a signal: its hosts end, and its next daemon goes on",
            "was told to leave by a signal: the hosts of the home end, and its next daemon goes on",
        ),
        (
            Superseded("beta", 2, 1),
            "the run goes on under another home, beta (term 2); this was its home in term 1",
            "ended its hosts: the run goes on under another home, beta (term 2); this was its home in term 1",
        ),
        (
            ReportRefused("beta", "report.lives[0].pid", "`int` >= 0", "-1"),
            "a report of the machine beta was dropped: field report.lives[0].pid, expected `int` >= 0, found -1",
            "dropped a report of the machine beta: field report.lives[0].pid, expected `int` >= 0, found -1",
        ),
        (
            SharesUnbounded(2),
            "all learners are of one party, on 2 machines: no share of a merge is bounded",
            "bounds no share of a merge: all learners are of one party, on 2 machines",
        ),
        (
            SharesBounded(2),
            "learners are of 2 parties: their shares of a merge are bounded again",
            "bounds the shares of a merge again: learners are of 2 parties",
        ),
        (
            LedgerRemoved(),
            "the daemon's ledger was deleted while it was in use, and was written anew",
            "wrote its ledger anew, which was deleted while it was in use: no number is lost",
        ),
    ],
)
def test_incidents_are_told_by_themselves_and_after_a_name(incident: incidents.Incident, words: str, told: str) -> None:
    assert (reason(incident), predicate(incident)) == (words, told)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            msgspec.structs.replace(SILENCE, patience_times=4, is_longest=True),
            "no heartbeat for 3.34 s: 253 ms +- 1.00 s are usual, phi is 3.0, "
            "and no silence may last longer, 4 times the patience",
        ),
        (
            msgspec.structs.replace(STALL, patience_times=2, is_of_role=True),
            "stuck: no step for 14.5 s, in one firing of node 'data': "
            "253 ms +- 2.00 s are usual in its role, phi is 12.4, 2 times the patience",
        ),
        (
            NoFirstHeartbeat(120 * SECOND),
            "no word from it within 2 min 00 s of its start, as long as run.first_beat_seconds allows",
        ),
        (
            NotEnded(10 * SECOND),
            "its process did not leave the loop within 10.0 s of the end of the run, as long as run.end_seconds allows",
        ),
        (
            incidents.Lingered("run.loop_idle_seconds", 1800 * SECOND, 1800 * SECOND),
            "its script has done nothing for 30 min 00 s: run.loop_idle_seconds allows 30 min 00 s",
        ),
        (
            incidents.Lingered("run.loop_away_max", 61 * SECOND, 60 * SECOND),
            "its script has been away for 61.0 s: run.loop_away_max allows 60.0 s",
        ),
        (Hurried(), "silent while the run came to its end"),
        (
            Unreached(20 * SECOND, 1, 2),
            "cut off for 20.0 s: its heartbeats came, but it has no data connection to the other host, "
            "2 times the patience",
        ),
    ],
)
def test_a_verdict_has_every_figure_that_it_rests_on(found: incidents.Verdict, words: str) -> None:
    assert reason(found) == words


def test_a_name_that_a_host_made_up_is_quoted_and_no_value_is_taken_for_a_template() -> None:
    assert "node 'a\\n{peers}[|]'" in reason(msgspec.structs.replace(STALL, node="a\n{peers}[|]"))
    assert reason(NotStarted("{machine} [no memory|x]")) == "could not be started: {machine} [no memory|x]"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Exited(), "ended"),
        (Exited(0), "exited"),
        (Exited(3), "exited with status 3"),
        (Unseen(), "ended while no daemon watched"),
        (NotStarted("no memory"), "could not be started: no memory"),
        (MachineLost("beta", 20 * SECOND), "ended with its machine beta, which has not been heard of for 20.0 s"),
        (MachineLost("beta", 0), "ended with its machine beta, which does not answer"),
    ],
)
def test_an_end_says_how(how: incidents.End, words: str) -> None:
    assert reason(how) == words


@pytest.mark.parametrize(
    ("why", "log", "words"),
    [
        (
            RestartsExhausted("learner/1", 6, CRASHED),
            Path("run", "logs", "learner-1.log"),
            "learner/1 ended again and again before it had served for 10 s; the last time: exited with status 3. "
            "Look at run/logs/learner-1.log.",
        ),
        (
            RestartsExhausted(
                "learner/1", 6, Ended(Exited(3), error=Raised("data", "OSError", "full. Make room.", "", 0))
            ),
            None,
            "learner/1 ended again and again before it had served for 10 s; "
            "the last time: exited with status 3: OSError: full. Make room.",
        ),
        (
            NeverHealthy("watcher/0", 2, Ended(Exited(1), error=Raised("watch", "ValueError", "wrong", "roles.py", 7))),
            Path("logs", "watcher-0.log"),
            "watcher/0 raised in each of its last 2 lives, before it had served for 10 s: exited with status 1: "
            "ValueError: wrong (roles.py:7). Look at logs/watcher-0.log.",
        ),
        (
            ProgramFailed(WRONG, 2),
            None,
            "ValueError: no (mine.py:3), in every learner, again after a restart.",
        ),
        (
            ProgramFailed(WRONG.kept_on("beta", "learner/1"), 2),
            None,
            "ValueError (mine.py:3), in every learner, again after a restart; the text is on machine beta, in its log "
            "of learner/1.",
        ),
        (
            LoopRefused("learner/1", WRONG),
            None,
            "the loop of learner/1: ValueError: no (mine.py:3).",
        ),
        (
            ModelsDiffer("learner/1", "head/weight"),
            None,
            "the model of learner/1 is not the one that the run has trained: 'head/weight' has other values after it "
            "adopted the last version of every fragment. Look for tensors that share memory, or for code beside the "
            "loop that writes into them. The run's model is in snapshots/final.",
        ),
        (
            ModelsDiffer("learner/1", ""),
            None,
            "the model of learner/1 is not the one that the run has trained: one of its leaves has other values after "
            "it adopted the last version of every fragment. Look for tensors that share memory, or for code beside the "
            "loop that writes into them. The run's model is in snapshots/final.",
        ),
        (
            NoMachineLeft("syncer/0", Ended(MachineLost("beta", 20 * SECOND))),
            None,
            "syncer/0 has no machine any more: ended with its machine beta, which has not been heard of for 20.0 s.",
        ),
        (
            Unserved("recorder/0", 60 * SECOND, Ended(NotStarted("no memory"))),
            None,
            "recorder/0 did not serve the run for 60.0 s: could not be started: no memory.",
        ),
        (Unserved("recorder/0", 600 * SECOND), None, "recorder/0 did not serve the run for 10 min 00 s."),
        (
            SupersededHome("beta", 2, 1),
            None,
            "the run goes on under another home, beta (term 2); this was its home in term 1.",
        ),
        (Ordered("ended at once by a second Ctrl-C"), None, "ended at once by a second Ctrl-C"),
        (RecorderFailed("No space left on device"), None, "No space left on device"),
    ],
)
def test_a_failure_says_why_and_where_to_look(why: incidents.Failure, log: Path | None, words: str) -> None:
    assert failure(why, log) == words


def test_an_incident_that_only_another_version_knows_is_told_by_its_kind() -> None:
    known = msgspec.to_builtins(Delayed("no space"))
    assert reason_of(known) == reason(Delayed("no space"))
    assert reason_of({**known, "kind": "teleported"}) == "teleported"
