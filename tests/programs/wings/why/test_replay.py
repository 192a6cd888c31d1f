"""`isthmus replay`: fresh cores decide what the tapes of a run have, or the first difference is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.request import sources, spec
from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.results.alterations import Alteration
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.programs.wings.why.replay import again
from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import Event, FiringEnded, HostRecord, SetTimer
from isthmus.runtime.supervision.driver import Driver
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import HomeBeat, HomeBegan, Places, ReportCame
from isthmus.runtime.supervision.messages import Report
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import StationBeat, StationBegan
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.tape.reading import Reading, Segment, read
from isthmus.runtime.tape.writing import MARK, Opening, framed, frames, joined
from tests.command_line import app
from tests.programs.wings.why.taped_run import taped_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    worlds = Worlds(tmp_path_factory.mktemp("runs"))
    folder = taped_run(worlds, steps=250)
    worlds.close()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def isthmus(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, prog_name="isthmus")


def replayed(folder: Path) -> tuple[int, dict[str, Any]]:
    """The exit status of `isthmus replay --json`, and what it says."""
    result = isthmus("replay", str(folder), "--json")
    return result.exit_code, json.loads(result.stdout)


def refused(folder: Path) -> str:
    """What `isthmus replay` says to a folder that it does not replay."""
    result = isthmus("replay", str(folder))
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def hosts(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["tape"]: each for each in told["hosts"]}


def tape_of(run: Path, name: str) -> Path:
    """The file of a tape that has one."""
    return run / "tape" / f"{name}.1.tape"


def edited(path: Path, change: Callable[[list[HostRecord]], Sequence[HostRecord]]) -> None:
    """Write a tape anew in one segment, with other records."""
    tape = read(path.read_bytes(), HostRecord)
    encode = msgspec.msgpack.encode
    parts = [encode(tape.segments[0].opening), *map(encode, change(tape.records))]
    path.write_bytes(framed(parts))


def taped(driver: Driver) -> bytes:
    return joined(driver.tape.drain())


# -- the same ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_a_run_is_replayed_from_its_folder_alone(finished: Path) -> None:
    status, told = replayed(finished)
    assert (status, told["identical"]) == (0, True)
    rounds = [json.loads(line)["round"] for line in (finished / "merges.jsonl").read_text().splitlines()]
    assert told["merges"] == max(rounds) > 5
    assert told["commands"] == sum(each["commands"] for each in told["hosts"]) > 500
    assert set(hosts(told)) == {"evaluator-0-1", "recorder-0-1", "syncer-0-1", *(f"learner-{n}-1" for n in range(3))}
    assert all(each["difference"] is None for each in told["hosts"])
    assert told["absent"] == []


def test_what_is_told_is_a_row_for_each_tape_and_the_sum(finished: Path) -> None:
    result = isthmus("replay", str(finished))
    assert result.exit_code == 0
    *_, last = lines = result.stdout.splitlines()
    assert sum(line.rstrip().endswith("identical") for line in lines) == 6
    assert last.startswith("identical: 6 tapes, ")
    assert max(map(len, lines)) <= 80


def test_tapes_of_daemons_are_replayed_too(run: Path) -> None:
    told = spec.load(run)
    for core, name, events in (
        # A machine was linked to the next daemon before this one knew what there is.
        (Home(told.cast, Places(home="local")), "home-7", (ReportCame("beta", Report()), HomeBegan(), HomeBeat())),
        (Station(is_at_home=True), "station-7", (StationBegan(), StationBeat())),
    ):
        at = iter(range(0, 10**12, 10**9))
        driver = Driver(core, lambda command: None, lambda at=at: Instant(next(at)))  # type: ignore[misc]
        for event in events:
            driver.feed(event)  # type: ignore[arg-type]
        tape_of(run, name).write_bytes(taped(driver))
    status, found = replayed(run)
    assert (status, found["identical"]) == (0, True)
    assert [hosts(found)[name]["records"] for name in ("home-7", "station-7")] == [3, 2]


def cut(path: Path, segments: slice) -> Reading:
    """Put the segments of a tape into files of their own, some of which are left out; what was there."""
    data, before = path.read_bytes(), read(path.read_bytes(), HostRecord)
    found, bodies = frames(data), list[list[bytes]]()
    for body in found.bodies:
        if MARK.encode() in body[:20]:
            bodies.append([])
        bodies[-1].append(framed([body]))
    path.unlink()
    name = path.name.removesuffix(".1.tape")
    for number in range(1, len(bodies) + 1)[segments]:
        (path.parent / f"{name}.{number}.tape").write_bytes(b"".join(bodies[number - 1]))
    return before


@pytest.mark.parametrize("name", ["learner-0-1", "syncer-0-1"])
def test_a_tape_without_its_beginning_is_replayed_from_the_state_then(run: Path, name: str) -> None:
    before = cut(tape_of(run, name), slice(1, None))
    assert len(before.segments) > 1
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    host, first = hosts(told)[name], before.segments[1]
    assert host["before"] == first.opening.before
    assert host["records"] == len(before.records) - first.opening.before
    assert host["begins_ns"] == first.records[0].at
    said = isthmus("replay", str(run)).stdout
    assert f"{first.opening.before:,} records before are not kept (run.tape_bytes)" in " ".join(said.split())


def test_a_tape_with_a_hole_is_refused_unless_records_were_lost_there(run: Path) -> None:
    path = tape_of(run, "syncer-0-1")
    cut(path, slice(None))
    files = sorted(path.parent.glob("syncer-0-1.*.tape"), key=lambda each: int(each.name.split(".")[1]))
    files[1].unlink()
    assert "syncer-0-1: expected a tape, found it is not whole before its segment 3" in refused(run)
    bodies = frames(files[2].read_bytes()).bodies
    opening = msgspec.structs.replace(msgspec.msgpack.decode(bodies[0], type=Opening), is_after_loss=True)
    files[2].write_bytes(framed([msgspec.msgpack.encode(opening), *bodies[1:]]))
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    assert hosts(told)["syncer-0-1"]["missing"] > 0
    assert "in the middle were lost to a full disk" in isthmus("replay", str(run)).stdout


def test_a_core_that_comes_to_another_state_is_a_difference(run: Path) -> None:
    path = tape_of(run, "learner-0-1")
    bodies = frames(path.read_bytes()).bodies
    at = [number for number, body in enumerate(bodies) if MARK.encode() in body[:20]][1]
    opening = msgspec.msgpack.decode(bodies[at], type=Opening)
    bodies[at] = msgspec.msgpack.encode(msgspec.structs.replace(opening, state=opening.state + b"\x00"))
    path.write_bytes(framed(bodies))
    status, told = replayed(run)
    assert (status, told["identical"]) == (1, False)
    found = hosts(told)["learner-0-1"]["difference"]
    assert (found["record"], found["event"]) == (opening.before, ["StateTaken"])
    assert "came to another state than that with which segment 2 begins" in found["error"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: b"PK\x03\x04" + data, "found it begins with 50 4b 03 04"),
        (
            lambda data: framed([msgspec.msgpack.encode([MARK, 9, "later"])]) + data,
            "it is of version 9 of tapes, this isth",
        ),
        (lambda data: data[:-5], "bytes of an unfinished record at byte"),
        (lambda data: b"", "found none, for it is empty, of a host that was not killed"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "with another checksum"),
    ],
    ids=["foreign", "future", "truncated", "empty", "damaged"],
)
def test_a_spoilt_tape_is_refused_in_one_message(run: Path, spoil: Callable[[bytes], bytes], says: str) -> None:
    path = tape_of(run, "syncer-0-1")
    path.write_bytes(spoil(path.read_bytes()))
    message = refused(run)
    assert says in message
    assert "Reading syncer-0-1" in message


def test_a_last_record_that_a_kill_has_torn_is_no_difference(run: Path) -> None:
    path = tape_of(run, "learner-1-1")
    path.write_bytes(path.read_bytes()[:-3])
    assert "of a host that was not killed" in refused(run)
    killed = {"kind": "ended", "host": "learner/1", "incarnation": 1, "at": 0, "verdict": None, "error": None}
    killed["end"] = {"kind": "exited", "status": None, "signal": "SIGKILL"}
    (run / "events.jsonl").write_text(json.dumps(killed) + "\n")
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    assert hosts(told)["learner-1-1"]["torn_bytes"] > 0
    (run / "events.jsonl").unlink()
    (run / "summary.json").unlink()  # Nobody came to its end.
    assert replayed(run)[0] == 0


def test_a_host_whose_tape_is_elsewhere_is_named(run: Path) -> None:
    tape_of(run, "learner-2-1").unlink()
    assert replayed(run)[1]["absent"] == ["learner/2"]
    assert "No tape here of learner/2" in isthmus("replay", str(run)).stdout


# -- a difference ------------------------------------------------------------------------------------------------------


def test_the_first_difference_is_told_with_its_story(run: Path) -> None:
    number = 0

    def later(records: list[HostRecord]) -> list[HostRecord]:
        nonlocal number
        number = next(i for i, each in enumerate(records) if any(isinstance(c, SetTimer) for c in each.commands))
        timers = [
            msgspec.structs.replace(command, at=command.at + 1) if isinstance(command, SetTimer) else command
            for command in records[number].commands
        ]
        return [*records[:number], msgspec.structs.replace(records[number], commands=timers), *records[number + 1 :]]

    edited(tape_of(run, "syncer-0-1"), later)
    status, told = replayed(run)
    assert (status, told["identical"]) == (1, False)
    found = hosts(told)["syncer-0-1"]["difference"]
    assert found["record"] == number + 1
    assert found["taped"][0][0] == found["replayed"][0][0] == "SetTimer"
    assert found["taped"][0][2] - found["replayed"][0][2] == 1
    assert (found["event"][0], found["place"]) == ("ItemArrived", "fragment-send.answer -> merge.answer")
    result = isthmus("replay", str(run))
    assert result.exit_code == 1
    assert f"record    {number + 1:,}, " in result.stdout
    assert "taped     SetTimer(" in result.stdout
    assert "replayed  SetTimer(" in result.stdout


def test_a_core_that_raises_has_decided_otherwise(run: Path) -> None:
    def twice(records: list[HostRecord]) -> list[HostRecord]:
        number = next(i for i, each in enumerate(records) if isinstance(each.event, FiringEnded))
        return [*records[: number + 1], *records[number:]]

    edited(tape_of(run, "learner-0-1"), twice)
    status, told = replayed(run)
    found = hosts(told)["learner-0-1"]["difference"]
    assert status == 1
    assert found["error"] or found["taped"] != found["replayed"]


def test_commands_that_are_missing_or_too_many_differ() -> None:
    class Says:
        def __init__(self, commands: list[Any]) -> None:
            self.commands = commands

        def handle(self, event: Any, now: Instant) -> list[Any]:
            return self.commands

        def saved(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None:
            """It has none."""

    one, other = SetTimer(1, Instant(1)), SetTimer(2, Instant(2))
    record = HostRecord(Instant(5), msgspec.convert(["NodesNudged"], type=Event), [one])
    segment = Segment(Opening(MARK, 1, 1, 0, False, b""), [record])
    for said, (command, taped, replayed_) in (
        ([one, other], (2, [], [other])),
        ([], (1, [one], [])),
    ):
        difference = again(partial(Says, said), [segment]).difference
        assert difference is not None
        assert (difference.command, list(difference.taped), list(difference.replayed)) == (command, taped, replayed_)
    assert again(partial(Says, [one]), [segment]).difference is None


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_tapes_that_cannot_be_those_of_the_run_are_all_named_at_once(run: Path) -> None:
    tapes = run / "tape"
    (tapes / "strange.tape").write_bytes(b"")
    shutil.copy(tape_of(run, "learner-0-1"), tape_of(run, "pupil-0-1"))
    edited(tape_of(run, "evaluator-0-1"), lambda records: records[12:])
    tape_of(run, "station-9").write_bytes(tape_of(run, "recorder-0-1").read_bytes())
    message = refused(run)
    assert message.startswith("isthmus: 4 things are wrong with this request.")
    for part in (
        "strange.tape",
        "a role 'pupil'",
        "evaluator-0-1: expected the tape of such a host in this run",
        "station-9: expected a tape, found it is damaged at byte",
    ):
        assert part in message


def test_a_host_in_a_process_of_its_own_heard_of_itself_first(run: Path) -> None:
    told = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**told, "transport": "zmq"}))
    message = refused(run)
    assert "Reading learner-0-1" not in message  # The first of those that all heard of in this run.
    assert "learner-1-1: expected the tape of such a host in this run, found one that begins with the" in message


def test_a_tape_of_another_graph_is_refused(run: Path) -> None:
    def moved(records: list[HostRecord]) -> list[HostRecord]:
        return [
            msgspec.structs.replace(each, event=msgspec.structs.replace(each.event, node=99))
            if hasattr(each.event, "node")
            else each
            for each in records
        ]

    edited(tape_of(run, "learner-0-1"), moved)
    assert "node 99, which learner does not have" in refused(run)


def test_a_run_that_goes_on_is_refused(run: Path) -> None:
    with RunLock(run):
        assert "expected a run that is over, found one that goes on, of process" in refused(run)
    assert replayed(run)[0] == 0


def test_a_run_without_spec_or_tapes_or_with_another_graph_is_refused(run: Path) -> None:
    told = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**told, "fingerprint": "0" * 32}))
    assert "expected the graph that was trained" in refused(run)
    (run / "spec.json").write_text("{")
    assert "expected a spec.json as a run writes it" in refused(run)
    (run / "spec.json").unlink()
    assert "expected a spec.json, found none" in refused(run)
    (run / "spec.json").write_text(json.dumps(told))
    shutil.rmtree(run / "tape")
    assert "found none" in refused(run)
    assert "expected a run folder" in refused(run / "nowhere")


@pytest.mark.process
def test_neither_command_imports_jax(finished: Path) -> None:
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from isthmus.programs.command.main import whole\n"
        "for command in ('replay', 'why'):\n"
        f"    assert CliRunner().invoke(whole(), [command, {str(finished)!r}]).exit_code == 0\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# -- runs that went on with other sources ------------------------------------------------------------------------------


def went_on(run: Path, *, others: bool = False, of_job: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Have a run look as if it had gone on with a mended task once its learners had ended: from their tapes on."""
    was = json.loads((run / spec.SPEC).read_text())
    now = sources.of_now(was["job"]["program"], was["job"]["task"])
    before = {**now.files, "task": {"/home/me/mine.py": "1"}}
    if others:
        before["isthmus"] = {**now.files["isthmus"], "ops/syncer/merge.py": "1"}
        was = {**was, "fingerprint": "0" * 32, "job": {**was["job"], **of_job}}
    tapes = sorted(path.name.partition(".")[0] for path in (run / "tape").glob("learner-*"))
    then = sources.Sources("0.0.9", before)
    record = {"spec": was, "tapes": tapes, "sources": msgspec.to_builtins(then)}
    (run / "spec-1.json").write_text(json.dumps(record))
    sources.write(run, now)
    files = sources.differences(then, now)
    books.note_alteration(run, DISK, Alteration(outer_steps=14, files=files), 20_000_000_000)


def test_a_run_that_went_on_with_another_task_is_replayed_whole(run: Path) -> None:
    went_on(run)
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    assert not [each for each in told["hosts"] if each["is_of_others"]]
    assert {each["stretch"] for each in told["hosts"] if each["host"].startswith("learner")} == {0}
    assert {each["stretch"] for each in told["hosts"] if each["host"].startswith("syncer")} == {1}
    assert [(each["outer_steps"], each["files"][0]["file"]) for each in told["alterations"]] == [
        (14, "/home/me/mine.py")
    ]


def test_what_other_sources_made_is_replayed_and_need_not_be_the_same(run: Path) -> None:
    went_on(run, others=True)
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    assert {each["is_of_others"] for each in told["hosts"] if not each["stretch"]} == {True}
    edited(tape_of(run, "learner-0-1"), without_a_command)
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)  # It says nothing of the run.
    assert hosts(told)["learner-0-1"]["difference"] is not None
    edited(tape_of(run, "syncer-0-1"), without_a_command)
    status, told = replayed(run)
    assert (status, told["identical"]) == (1, False)  # That is of sources of now.


def test_where_other_sources_made_another_graph_their_tapes_are_named(run: Path) -> None:
    went_on(run, others=True, of_job={"settings": {"unknown": 1}})
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    assert {each["records"] for each in told["hosts"] if each["is_of_others"]} == {0}
    assert all(each["records"] for each in told["hosts"] if not each["is_of_others"])


def without_a_command(records: list[HostRecord]) -> list[HostRecord]:
    """The records, the first of which with any command lacks one."""
    at = next(at for at, record in enumerate(records) if record.commands)
    less = msgspec.structs.replace(records[at], commands=records[at].commands[1:])
    return [*records[:at], less, *records[at + 1 :]]
