"""`isthmus why`: what is told of one merge is what the shard knew when it made it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from isthmus import Program
from isthmus.ops.syncer.terms import Conditions, Terms
from isthmus.programs.engine.results.lines import MergeRecord
from isthmus.programs.engine.results.words import dotted
from isthmus.programs.wings.report.page import write_report
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.programs.wings.why import why as words
from isthmus.programs.wings.why.merge_facts import Came, Closing, MergeFacts, TapedRound, merge_facts
from isthmus.programs.wings.why.why import MergeQuery, why
from isthmus.runtime.sim.faults import Kill
from tests.command_line import app
from tests.programs.engine.results import made_up_run, whole_files
from tests.programs.wings.why.taped_run import TOKENS, taped_run


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    made = Worlds(tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def hasty(worlds: Worlds) -> Path:
    """A run without grace, in which two of four answers close a round."""
    hasty = Program(interval=12, grace=False, quorum=2)
    return taped_run(worlds, hasty, learners=4, steps=100, speeds=(1, 1, 0.7, 0.5))


def isthmus(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, prog_name="isthmus")


def told(folder: Path, *arguments: str) -> dict[str, Any]:
    """What `isthmus why --json` says."""
    result = isthmus("why", str(folder), *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "merges.jsonl").read_text().splitlines()]


def of(folder: Path, line: dict[str, Any]) -> dict[str, Any]:
    """What is told of the merge of one line."""
    epoch, count = line["version"]
    return told(folder, "--fragment", str(line["fragment"]), "--version", f"{epoch}.{count}")


LINE = MergeRecord(
    time=2.5,
    fragment=3,
    round=9,
    kind="merge",
    version=[1, 4],
    origin=[1, 0],
    voters=[0, 1],
    weights=[0.25, 0.75],
    left_out=[2],
    refused=[(3, "not finite")],
    shortened=[(1, 0.5)],
    opposed=[(0, 2)],
    capped=[("alpha", 0.8, 0.75)],
    reason="grace of 10.0 ms ended with 3 of 4; learner/2 left out",
    quorum_ms=5.0,
    grace_ms_used=10.0,
)


def opening(**more: Any) -> dict[str, Any]:
    members = [[slot, 1] for slot in range(5)]
    terms = {"round": 9, "attempt": 1, "members": members, "count_min": 1, "grace": 10_000_000, "required": []}
    return {**terms, "deadline": None, "chain": 3, **more}


def taped(*openings: dict[str, Any]) -> TapedRound:
    """A round that opened at 1 s, had its quorum after 5 ms, closed 10 ms later, and was published 2 ms after that."""
    ms = 1_000_000
    at = [1000 * ms + offset * ms for offset in (5, 8, 9, 27)]
    given = [Came(0, 1, 9, at[0], 640, 4), Came(1, 1, 8, at[1], 640, 4), Came(3, 2, 9, at[2], 320, 4)]
    late = Came(2, 1, 9, at[3], 640, 4)
    return TapedRound(
        openings=list(openings or (opening(),)),
        came=[given[0], given[2], late],
        closing=Closing(1000 * ms, 1005 * ms, 1015 * ms, given),
        published_at=1017 * ms,
        counted_in={late: 17},
        usual_ns=[3 * ms, 4 * ms, 9 * ms],
        answers_of={0: 5, 1: 9, 2: 5},
    )


def answers(facts: MergeFacts) -> dict[int, Any]:
    return {answer.slot: answer for answer in facts.answers}


# -- from line and tape to facts ---------------------------------------------------------------------------------------


def test_who_had_more_of_the_weight_than_it_may_is_said() -> None:
    assert dict(words.rows(merge_facts(LINE, taped())))["capped"] == "alpha: 80.0 % of the weight, counts 75.0 %"
    assert "capped" not in dict(words.rows(merge_facts(msgspec.structs.replace(LINE, capped=[]), taped())))


def test_facts_say_who_came_when_and_what_became_of_it() -> None:
    sizes = {0: [1.0, 2.0, 3.0, 4.0, 5.0], 1: [7.0]}
    facts = merge_facts(LINE, taped(), gamma=0.8, tokens_of_step=[32, 64], sizes=sizes)
    found = answers(facts)
    assert {slot: answer.fate for slot, answer in found.items()} == {
        0: "merged",
        1: "merged",
        2: "late",
        3: "refused",
        4: "gone",
    }
    assert (found[0].arrived_ms, found[0].tokens, found[0].steps, found[0].weight) == (5.0, 640, 20.0, 0.25)
    assert (found[0].size_bytes, found[0].opposed_merges) == (5, 2)
    assert (found[1].from_round, found[1].shortened_to, found[1].steps) == (8, 0.5, 10.0)
    assert found[1].size_bytes is None  # The trace does not have all of its answers.
    assert (found[2].arrived_ms, found[2].late_ms, found[2].counted_in) == (27.0, 12.0, 17)
    assert (found[3].refusal, found[3].incarnation) == ("not finite", 2)
    assert (facts.opened, facts.merge_ms, facts.closed_by) == (pytest.approx(2.483), 2.0, "grace")
    assert facts.terms is not None
    assert (facts.terms.grace_ms, facts.terms.slack_ms) == (10.0, 12.5)
    assert (facts.terms.typical_quorum_ms, facts.terms.typical_rounds) == (4.0, 3)


@pytest.mark.parametrize(
    ("left_out", "more", "closed_by"),
    [
        ([], {}, "everybody"),
        ([2], {}, "grace"),
        ([2], {"required": [2], "deadline": 40_000_000}, "deadline"),
        ([2], {"required": [2], "deadline": 4_000_000}, "grace"),
        ([2], {"required": [4], "deadline": 40_000_000}, "grace"),
    ],
)
def test_why_a_round_closed_follows_from_its_terms(left_out: list[int], more: dict[str, Any], closed_by: str) -> None:
    assert merge_facts(replace(LINE, left_out=left_out), taped(opening(**more))).closed_by == closed_by


def test_without_a_tape_the_line_alone_is_told() -> None:
    facts = merge_facts(LINE, TapedRound())
    assert {slot: answer.fate for slot, answer in answers(facts).items()} == {
        0: "merged",
        1: "merged",
        2: "left out",
        3: "refused",
    }
    assert (facts.terms, facts.opened, facts.merge_ms, facts.closed_by) == (None, None, None, None)


def test_a_merge_from_before_the_origin_of_the_next_epoch_is_undone() -> None:
    again = replace(LINE, epoch=3, kind="recover", version=[1, 3], origin=[1, 3])
    newest = replace(LINE, epoch=4, version=[4, 9], origin=[3, 8])
    facts = merge_facts(LINE, taped(), lines=[LINE, again, newest])
    assert facts.undone_by == 3
    assert "this is not in the model" in dict(words.rows(facts))["undone"]
    for version in ([1, 3], None):
        assert merge_facts(replace(LINE, version=version), taped(), lines=[LINE, again, newest]).undone_by is None
    assert merge_facts(LINE, taped(), lines=[LINE, newest, replace(again, fragment=4)]).undone_by is None


def test_words_have_every_fact() -> None:
    facts = merge_facts(LINE, taped(opening(), opening(attempt=2, required=[2], deadline=40_000_000)), gamma=0.8)
    rows = dict(words.rows(facts))
    assert words.head(facts) == "fragment 3, version 1.4: a merge"
    assert rows["asked"] == ("learners 0, 1, 2, 3, 4, in 2 attempts, 2.48 s after the first step; a quorum is 1 answer")
    assert rows["grace"] == (
        "10.0 ms granted = gamma 0.8 x slack 12.5 ms; a quorum took 4.00 ms, the median of 3 rounds before"
    )
    assert rows["deadline"].startswith("learner 2 waited for, until 40.0 ms after the opening")
    assert rows["published"] == "2.50 s after the first step, 2.00 ms after the close"
    found = answers(facts)
    assert words.remark(found[0]) == "against all others, for 2 merges now"
    assert words.remark(found[1]) == "too long, shortened to 50.0 % of its length; late for round 8, counted here"
    assert words.remark(found[2]) == "12.0 ms after the close; counted in round 17"
    assert words.remark(found[3]) == "not finite"
    assert words.remark(found[4]) == "asked, and not live any more at the close"


# -- of whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_weights_are_those_of_tokens_and_steps_in_every_merge(worlds: Worlds) -> None:
    folder = taped_run(worlds, speeds=(1, 0.8, 0.6))
    merges = [line for line in lines(folder) if line["kind"] in ("merge", "final") and line["version"]]
    assert len(merges) > 4
    for line in merges:
        facts = of(folder, line)
        assert facts["round"] == line["round"]
        merged = [answer for answer in facts["answers"] if answer["fate"] == "merged"]
        assert [answer["slot"] for answer in merged] == line["voters"]
        weights = [answer["tokens"] ** 2 / answer["steps"] for answer in merged]
        assert [answer["weight"] for answer in merged] == pytest.approx([each / sum(weights) for each in weights])
        assert all(answer["tokens"] == TOKENS * answer["steps"] for answer in merged)
        assert max(answer["arrived_ms"] for answer in merged) == pytest.approx(
            line["quorum_ms"] + line["grace_ms_used"], abs=0.01
        )
        assert facts["opened"] < line["time"]


@pytest.mark.slow
def test_the_grace_is_told_with_what_it_was_made_from(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, float] = {}
    of_terms = Terms.of

    def of_(self: Terms, fragment: int, stepping: Any) -> Conditions:
        conditions = of_terms(self, fragment, stepping)
        if conditions.grace:
            known[conditions.grace] = self._delays.quorum.value
        return conditions

    monkeypatch.setattr(Terms, "of", of_)
    folder = taped_run(worlds, Program(interval=8), steps=80)
    facts = [of(folder, line) for line in lines(folder) if line["kind"] == "merge"]
    granted = [merge["terms"] for merge in facts if merge["terms"]["slack_ms"]]
    assert len(granted) > 10
    for terms in granted:
        quorum = known[round(terms["grace_ms"] * 1e6)]
        assert terms["grace_ms"] == pytest.approx(terms["gamma"] * terms["slack_ms"])
        assert (terms["typical_quorum_ms"] or 0.0) == pytest.approx(quorum / 1e6)


def test_who_is_left_out_is_late_by_so_much_and_counts_in_the_next_round(hasty: Path) -> None:
    merges = {line["round"]: of(hasty, line) for line in lines(hasty) if line["left_out"]}
    late = [(merge, answer) for merge in merges.values() for answer in merge["answers"] if answer["fate"] == "late"]
    assert len(late) > 3
    for merge, answer in late:
        assert merge["closed_by"] == "grace"
        assert answer["late_ms"] > 0
        assert answer["arrived_ms"] == pytest.approx(
            merge["quorum_ms"] + merge["grace_ms_used"] + answer["late_ms"], abs=0.01
        )
        assert answer["counted_in"] is None or answer["counted_in"] > merge["round"]
    counted = [(merge["round"], answer) for merge, answer in late if answer["counted_in"]]
    assert counted
    for number, answer in counted:
        then = next(line for line in lines(hasty) if line["round"] == answer["counted_in"])
        if then["version"] is not None:
            counting = {each["slot"]: each["from_round"] for each in of(hasty, then)["answers"]}
            assert counting[answer["slot"]] == number


@pytest.mark.slow
def test_a_version_that_a_shard_took_up_again_is_told_with_its_recovery(worlds: Worlds) -> None:
    folder = taped_run(worlds, learners=3, steps=150, faults=[Kill("syncer/0", at_step=90)])
    recover = next(line for line in lines(folder) if line["kind"] == "recover")
    merge = of(folder, recover)
    [recovery] = [each for each in [*merge["recoveries"], merge] if each["kind"] == "recover"]
    assert (recovery["epoch"], recovery["version"]) == (2, recover["version"])
    assert [answer["fate"] for answer in recovery["answers"]].count("merged") == 1
    assert (
        "taken up again"
        in isthmus(
            "why", str(folder), "--fragment", str(recover["fragment"]), "--version", str(recover["version"][1])
        ).stdout
    )
    final = told(folder)
    assert (final["kind"], final["epoch"]) == ("final", 2)


def test_the_newest_is_told_by_default_and_fits_a_terminal(hasty: Path) -> None:
    assert told(hasty) == told(hasty, "--last")
    assert told(hasty)["round"] == lines(hasty)[-1]["round"]
    assert told(hasty, "--fragment", "0")["round"] == [e for e in lines(hasty) if e["fragment"] == 0][-1]["round"]
    result = isthmus("why", str(hasty))
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.startswith(f"fragment {lines(hasty)[-1]['fragment']}, ")
    assert "Not recorded: norms of answers" in result.stdout


def test_a_folder_without_tapes_says_what_is_missing(tmp_path: Path) -> None:
    folder = made_up_run.build(tmp_path / "made-up", steps=60)
    result = isthmus("why", str(folder))
    assert result.exit_code == 0
    assert "The tape of syncer/0#1 is not here" in " ".join(result.stdout.split())


def test_what_hosts_have_waited_for_on_their_devices_is_told_of_the_newest_life_of_each_learner(tmp_path: Path) -> None:
    folder = made_up_run.build(tmp_path / "made-up", steps=60)
    assert told(folder)["host_waits"] == []  # Of a CPU nothing is waited for.
    newest = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    later = [("step", 100, 8.5), ("answer", 12, 0.03)]
    with (folder / "metrics.jsonl").open("a") as stream:
        for life, waits in ((1, [("step", 7, 1.0)]), (2, later)):
            line = {**newest, "learner": 0, "incarnation": life, "host_waits": waits}
            stream.write(json.dumps(line) + "\n")
    assert told(folder)["host_waits"] == [
        {"learner": 0, "incarnation": 2, "what": what, "count": count, "seconds": seconds}
        for what, count, seconds in later
    ]
    shown = isthmus("why", str(folder)).stdout
    (row,) = [line.split() for line in shown.splitlines() if line.strip().endswith("85.0 ms")]
    assert (row[0], row[-5:]) == ("0", ["100", "8.50", "s", "85.0", "ms"])
    assert max(map(len, shown.splitlines())) <= 80


def test_the_report_has_the_same_words_for_a_merge_that_is_clicked(hasty: Path) -> None:
    page = write_report(hasty).read_text()
    (data,) = re.findall(r'<script type="application/json" id="merges-data">(.*?)</script>', page, re.S)
    shown = json.loads(data)
    merges = [line for line in lines(hasty) if line["kind"] in ("merge", "final")]
    assert shown.keys() == {f"{line['fragment']}-{line['round']}" for line in merges}
    assert shown.keys() == set(re.findall(r'data-merge="([0-9-]+)"', page))
    for line in merges:
        found = shown[f"{line['fragment']}-{line['round']}"]
        if line["version"] is None:
            continue
        wanted = MergeQuery.of(line["fragment"], dotted(line["version"]), is_last=False)
        merge = why(hasty, wanted).merge
        assert (found["head"], found["table"]) == (
            words.head(merge),
            [list(each) for each in words.table(merge).items()],
        )
        assert found["rows"] == [list(row) for row in words.rows(merge)]
        late = [answer.slot for answer in merge.answers if answer.fate == "late"]
        assert all(any(said.startswith(f"learner {slot}: ") for said in found["remarks"]) for slot in late)


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected", "found"),
    [
        ("--fragment 0 --version 99", "version 99 of fragment 0", "0: 1."),
        ("--fragment 0 --version 7.1", "version 7.1 of fragment 0", "0: 1."),
        ("--fragment 99", "fragment 99", "0: 1."),
        ("--fragment 99 --version 1", "fragment 99", "1: "),
        ("--version 3", "--fragment beside --version", "none"),
        ("--fragment 0 --version x.1", "N, or EPOCH.N", "'x.1'"),
        ("--fragment 0 --version -1", "N, or EPOCH.N", "'-1'"),
        ("--last --fragment 0", "--last, or --fragment and --version", "both"),
        ("--fragment zero", "options and arguments", "a valid int"),
    ],
)
def test_a_merge_that_is_not_there_is_told_with_what_there_is(
    hasty: Path, arguments: str, expected: str, found: str
) -> None:
    result = isthmus("why", str(hasty), *arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"expected {expected}" in result.stderr
    assert found in result.stderr.partition(", found ")[2]


def test_a_run_without_merges_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(whole_files.CONFIG)
    result = isthmus("why", str(tmp_path))
    assert result.exit_code == 2
    assert "expected some in merges.jsonl, found none" in result.stderr
