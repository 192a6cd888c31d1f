"""A recorder that is killed at any moment and opened again with the same disk: what it knows, and what is written."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.recorder import books as recorder_memory
from isthmus.programs.engine.recorder import node as recorder_module
from isthmus.programs.engine.results.lines import KINDS, name_of
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from isthmus.runtime.system.disk import DISK, Disk
from isthmus.runtime.system.files import write_bytes
from tests.effort import every
from tests.programs.engine.recorder.recorder_story import (
    FOLDER,
    SECOND,
    TICK,
    TICKS,
    ZERO,
    Context,
    DeadlyMount,
    KilledError,
    evaluated,
    kept,
    made,
    report,
    sent_by,
    story,
)

STATE = FOLDER / recorder_memory.FILE
FILES = tuple(map(name_of, KINDS))
KNOWN = (
    *("zero", "stepping_until", "tokens", "outer_steps", "contributors_mean", "merged_share", "goodput", "eval_loss"),
    *("eval_loss_initial", "evaluations", "epochs", "former", "learners", "merged_tokens"),
)


def told(disk: SimulatedDisk, kill_at: int | None = None, *, tears: bool = False, power: bool = False) -> Any:
    """The story, with a recorder that is killed once: (its last status and published versions, deaths, operations)."""
    mount = DeadlyMount(disk, kill_at, tears=tears)
    recorder, context, sent, deaths, controls = made(), Context(mount.mount), [], 0, []
    is_open = False
    nothing: dict[str, dict[Any, Any]] = {"progress": {}, "merged": {}, "evaluation": {}, "final": {}}
    for at, items in (*story(), (TICKS * TICK, nothing)):
        sent.append(items)
        context.at = at
        try:
            if not is_open:
                recorder.open(context)
                is_open, items = True, kept(sent)
            controls.append(recorder(**items))
        except KilledError:
            deaths += 1
            if power:
                disk.lose_power()
            mount = DeadlyMount(disk, None, tears=False)
            recorder, context, is_open = made(), Context(mount.mount), False
    if not is_open:
        recorder.open(context)
        controls.append(recorder(**kept(sent)))
    with suppress(KilledError):
        recorder.close()
    published = [control["control"]["published"] for control in controls if control]
    return {**{name: context.status[name] for name in KNOWN}, "published": published[-1]}, deaths, mount.count


def lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The lines of a file, and how many are torn."""
    found, torn = [], 0
    for line in data.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            torn += 1
    return found, torn


def written(disk: SimulatedDisk, name: str) -> list[dict[str, Any]]:
    return lines(disk.files()[FOLDER / f"{name}.jsonl"])[0]


def names(line: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a line of a merge or of an evaluation from others."""
    return tuple(line[name] for name in ("fragment", "epoch", "round", "tokens", "kind") if name in line)


@pytest.fixture(autouse=True, scope="module")
def always_published() -> Iterator[None]:
    """What is known is published at every firing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "STATUS_NS", 0)
        patch.setattr(recorder_module, "CONTROL_NS", 0)
        yield


@pytest.fixture(scope="module")
def undisturbed(always_published: None) -> Any:
    """(what is known at the end, the lines of merges and of evaluations, operations of the disk)."""
    disk = SimulatedDisk("undisturbed")
    figures, deaths, count = told(disk)
    assert deaths == 0
    assert count > 100
    return figures, {name: written(disk, name) for name in ("merges", "evaluations")}, count


def _timeless(figures: dict[str, Any]) -> dict[str, Any]:
    """Without when each recorder heard of lives."""
    noted = dict.fromkeys(("reported_at", "gone_at", "accounted", "accounted_steps"))
    former = [{**life, **noted} for life in figures["former"]]
    return {
        **figures,
        "former": former,
        "learners": {slot: {**of, **noted} for slot, of in figures["learners"].items()},
    }


def assert_known(known: dict[str, Any], figures: dict[str, Any], at: int) -> None:
    """All is known, but for who stepped in the last second."""
    late = ("stepping_until", "goodput")
    assert _timeless({**known, **dict.fromkeys(late)}) == _timeless({**figures, **dict.fromkeys(late)}), at
    assert 0 <= figures["stepping_until"] - known["stepping_until"] <= SECOND, at


def test_the_story_is_what_it_says(undisturbed: Any) -> None:
    figures, found, _ = undisturbed
    assert figures["zero"] == ZERO
    assert (figures["outer_steps"], figures["contributors_mean"]) == (8 + 8, 2.0)
    assert figures["published"] == [[0, 2, 4], [1, 2, 4]]
    assert [(life["slot"], life["incarnation"]) for life in figures["former"]] == [(1, 1)]
    assert len(found["merges"]) == 20
    assert [line["kind"] for line in found["evaluations"]] == ["initial", "during", "during", "final"]
    assert found["merges"][0]["time"] < 0 < found["merges"][-1]["time"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("tears", [False, True])
def test_killed_at_any_moment_it_knows_and_has_written_the_same(undisturbed: Any, *, tears: bool) -> None:
    figures, found, count = undisturbed
    died = 0
    moments = every(range(0, count, 1 + tears))
    for at in moments:
        disk = SimulatedDisk("killed")
        known, deaths, _ = told(disk, at, tears=tears)
        died += deaths
        assert_known(known, figures, at)
        for name, expected in found.items():
            told_of, torn = lines(disk.files()[FOLDER / f"{name}.jsonl"])
            assert torn <= tears, at
            assert sorted(map(names, told_of)) == sorted(map(names, expected)), at
            late = {names(line): line["time"] for line in expected}
            assert all(0 <= line["time"] - late[names(line)] <= 0.1001 for line in told_of), at
    assert died >= len([at for at in moments if at < count - 1]), (
        "the last operation only looks whether it was replaced"
    )


@pytest.mark.slow
def test_killed_with_its_machine_it_knows_the_same_and_has_written_nothing_twice(undisturbed: Any) -> None:
    """What the disk has not kept of the lines is in the state, or comes again."""
    figures, _, count = undisturbed
    for at in every(range(0, count, 2)):
        disk = SimulatedDisk(f"power {at}")
        known, _, _ = told(disk, at, power=True)
        assert_known(known, figures, at)
        for name in ("merges", "evaluations"):
            twice = [line for line, times in Counter(map(names, written(disk, name))).items() if times > 1]
            assert not twice, at


# -- what is on the disk -----------------------------------------------------------------------------------------------


def ended(disk: SimulatedDisk, ticks: int = TICKS) -> Context:
    """The context of a recorder that heard so much of the story, and was killed."""
    mount = Mount(disk)
    recorder, context = made(), Context(mount)
    recorder.open(context)
    for at, items in islice(story(), ticks):
        context.at = at
        recorder(**items)
    mount.is_gone = True
    return context


def again(disk: Disk, at: int, folder: Path = FOLDER, **items: Any) -> dict[str, Any]:
    """The status of the next life, to which nobody says anything but `items`."""
    recorder, context = made(folder), Context(disk, at)
    recorder.open(context)
    recorder(**items)
    assert context.status
    recorder.close()
    return context.status


def replaced(disk: SimulatedDisk, data: bytes | None) -> None:
    """Put other bytes in the place of the state, or nothing."""
    mount = Mount(disk)
    if data is None:
        mount.remove(STATE)
        return
    file = mount.create(STATE)
    file.write(data)


def knowledge(status: dict[str, Any], *leave_out: str) -> dict[str, Any]:
    known = _timeless({name: status[name] for name in KNOWN})
    return {name: known[name] for name in KNOWN if name not in leave_out}


@pytest.mark.parametrize("ticks", [TICKS, 18, 29, 44])
def test_the_next_life_knows_all_though_nobody_speaks_any_more(ticks: int) -> None:
    """But for what learners have told in the last second beside their steps, and those of the last 200 ms."""
    disk = SimulatedDisk("silence")
    last = ended(disk, ticks).status
    found = again(Mount(disk), ticks * TICK)
    late = ("tokens", "former", "learners", "goodput", "stepping_until", "merged_share") if ticks < TICKS else ()
    assert knowledge(found, *late) == knowledge(last, *late)
    assert 0 <= last["tokens"] - found["tokens"] <= 2 * 8 * 2
    assert 0 <= last["stepping_until"] - found["stepping_until"] <= SECOND


@pytest.mark.parametrize("left", [None, b"", b"\xc1", 0.5, 0.99, b'{"totals": []}'])
def test_without_a_state_the_lines_say_what_was_trained_merged_and_evaluated(left: Any) -> None:
    disk = SimulatedDisk("torn")
    last = ended(disk, 42).status
    data = disk.files()[STATE]
    replaced(disk, data[: round(left * len(data))] if isinstance(left, float) else left)
    before = {name: written(disk, name) for name in ("merges", "evaluations")}
    found = again(Mount(disk), 42 * TICK, **kept(sent_by(42)))
    late = ("zero", "goodput", "stepping_until")
    assert knowledge(found, *late) == knowledge(last, *late)
    assert ZERO <= found["zero"] <= ZERO + TICK
    assert {name: written(disk, name) for name in before} == before, "nothing is written twice"


def test_without_a_state_times_go_on_from_the_last_line() -> None:
    """Also where every learner that is left began to step after the first step of all."""
    disk = SimulatedDisk("times")
    last = ended(disk, 30).status
    replaced(disk, None)
    at = 40 * TICK
    late = report(1, at, incarnation=2, stepping=SECOND // 2)
    found = again(Mount(disk), at, progress={(Replica("learner", 1), None): late})
    assert last["zero"] <= found["zero"] <= last["zero"] + (40 - 29) * TICK
    times = [line["time"] for line in written(disk, "metrics")]
    assert times == sorted(times)


def test_a_state_that_is_older_than_the_lines_is_made_up_by_them() -> None:
    older, disk = SimulatedDisk("older"), SimulatedDisk("newer")
    ended(older, 25)
    last = ended(disk, 42).status
    replaced(disk, older.files()[STATE])
    found = again(Mount(disk), 42 * TICK)
    assert 0 <= last["tokens"] - found["tokens"] <= 2 * 8 * 2
    same = ("zero", "outer_steps", "contributors_mean", "evaluations", "eval_loss", "epochs", "merged_tokens")
    assert {name: found[name] for name in same} == {name: last[name] for name in same}


def test_a_state_in_which_nothing_has_changed_is_not_written_again() -> None:
    disk = SimulatedDisk("still")
    mount = Mount(disk)
    recorder, context = made(), Context(mount)
    recorder.open(context)
    for tick in range(60):
        context.at = tick * TICK
        recorder()
    assert len(disk.written[mount.beside(STATE)]) == 1


def test_lines_that_wait_for_the_first_step_are_kept_over_many_lives() -> None:
    disk = SimulatedDisk("early")
    for life, kind in enumerate(("initial", "during", "during")):
        mount = Mount(disk)
        recorder, context = made(), Context(mount)
        recorder.open(context)
        for tick in range(11):
            context.at = (11 * life + tick) * TICK
            point = {(Replica("evaluator", 0), life): evaluated(kind, life, 5.0)} if tick == 3 else {}
            recorder(evaluation=point)
        mount.is_gone = True
        assert disk.files()[FOLDER / "evaluations.jsonl"] == b""
    at = 40 * TICK
    begun = report(0, at, stepping=TICK)
    again(Mount(disk), at, progress={(Replica("learner", 0), None): begun})
    found = [(line["tokens"], line["time"]) for line in written(disk, "evaluations")]
    assert found == [(0, -3.6), (1, -2.5), (2, -1.4)]


def test_of_lines_that_were_being_written_the_next_life_writes_the_rest() -> None:
    """Also where the disk did not take the state in which the first step is known."""
    older, disk = SimulatedDisk("older"), SimulatedDisk("rest")
    ended(older, 11)
    assert [written(older, name) for name in FILES] == [[] for _ in FILES]
    ended(disk, 12)
    replaced(disk, older.files()[STATE])
    before = {name: written(disk, name) for name in FILES}
    assert all(lines for name, lines in before.items() if name != "changes")
    again(Mount(disk), 12 * TICK, **kept(sent_by(12)))
    after = {name: written(disk, name) for name in FILES}
    assert (after["merges"], after["evaluations"]) == (before["merges"], before["evaluations"])
    assert after["metrics"][: len(before["metrics"])] == before["metrics"]
    assert len(after["metrics"]) - len(before["metrics"]) == 2, "what the two learners say now"


def test_a_disk_that_does_not_say_what_was_known_is_asked_until_it_does(undisturbed: Any) -> None:
    figures, found, _ = undisturbed
    disk = SimulatedDisk("mute")
    ended(disk, 28)
    before = disk.files()[STATE]
    disk.troubles[1] = Trouble(lambda: None, share=1.0)
    recorder, context = made(), Context(Mount(disk), 28 * TICK)
    recorder.open(context)
    for tick, (at, items) in enumerate(story()):
        if tick < 28:
            continue
        context.at = at
        control = recorder(**items)
        if tick < 40:
            assert (control, context.status, disk.files()[STATE]) == (None, {}, before)
        if tick == 39:
            disk.troubles.clear()
    recorder.close()
    late = ("former", "merged_share", "goodput")
    assert knowledge(context.status, *late) == knowledge(figures, *late)
    told_of = [names(line) for line in written(disk, "merges")]
    assert len(told_of) == len(set(told_of))
    assert set(told_of) <= set(map(names, found["merges"]))
    assert [names(line) for line in written(disk, "evaluations")] == [names(line) for line in found["evaluations"]]


@pytest.mark.parametrize("name", [STATE.name, "merges.jsonl", "metrics.jsonl"])
def test_one_file_that_cannot_be_read_is_not_taken_for_one_that_is_missing(name: str) -> None:
    disk = SimulatedDisk("one")
    last = ended(disk).status
    before, mount = disk.files()[STATE], Mount(disk)
    read, is_broken = mount.read, True

    def refusing(path: Path) -> bytes:
        if is_broken and path.name == name:
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    mount.read = refusing  # type: ignore[method-assign]
    recorder, context = made(), Context(mount, TICKS * TICK)
    recorder.open(context)
    for _ in range(30):
        context.at += TICK
        assert recorder() is None
    recorder.close()
    assert (context.status, disk.files()[STATE]) == ({}, before)
    is_broken = False
    recorder.open(context)
    recorder()
    assert knowledge(context.status) == knowledge(last)


def test_a_real_folder(tmp_path: Path) -> None:
    recorder, context = made(tmp_path), Context(DISK)
    recorder.open(context)
    for at, items in islice(story(), 40):
        context.at = at
        recorder(**items)
    assert (tmp_path / recorder_memory.FILE).stat().st_size > 100
    last = context.status
    found = again(DISK, 40 * TICK, tmp_path, **kept(sent_by(40)))
    late = ("stepping_until", "goodput")
    assert knowledge(found, *late) == knowledge(last, *late)
    told_of, torn = lines((tmp_path / "merges.jsonl").read_bytes())
    assert (len(told_of), torn) == (len(set(map(names, told_of))), 0)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("is_remembered", [True, False])
@pytest.mark.parametrize("counted", [800, 700])
@pytest.mark.parametrize("more", [-50, 0, 50])
def test_a_run_that_goes_on_has_another_last_evaluation(more: int, counted: int, *, is_remembered: bool) -> None:
    """Also where tokens are undone, so that fewer count than at that evaluation; a memory may not know it yet."""
    disk = SimulatedDisk("seed")
    recorder, context = made(), Context(Mount(disk))
    recorder.open(context)
    context.at = SECOND
    recorder(progress={(Replica("learner", 0), None): report(0, 2 * SECOND)})
    before = Mount(disk).read(FOLDER / recorder_memory.FILE)
    recorder(evaluation={("evaluator", None): evaluated("final", 800, 2.0)})
    recorder.close()
    if not is_remembered:
        write_bytes(FOLDER / recorder_memory.FILE, before, Mount(disk))
    recorder_memory.go_on(FOLDER, Mount(disk), counted)
    books = recorder_memory.Books(sizes=(300, 100))
    recorder_memory.read_into(books, FOLDER, Mount(disk), 0)
    assert not books.is_evaluated()
    recorder, context = made(), Context(Mount(disk), incarnation=2)
    recorder.open(context)
    recorder(evaluation={("evaluator", None): evaluated("final", 800 + more, 1.0)})
    assert (context.status["tokens_final"], context.status["eval_loss_final"]) == (800 + more, 1.0)


def test_a_life_that_was_replaced_writes_nothing_behind_what_the_next_one_has_written() -> None:
    """One that its daemon does not know of lives until it finds that out."""
    disk = SimulatedDisk("seed")
    recorder, context = made(), Context(Mount(disk))
    recorder.open(context)
    for at, items in islice(story(), 3):
        context.at = at
        recorder(**items)
    later, its = made(), Context(Mount(disk), 4 * TICK, incarnation=2)
    later.open(its)
    later()
    later.close()
    before = disk.files()
    recorder.close()
    assert disk.files() == before
