"""A home that takes states from shards: which and when, in which parts, and what it has if somebody dies meanwhile."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from isthmus.ops.exchange import last_digests
from isthmus.ops.exchange.messages import ShardState, is_withdrawn
from isthmus.ops.recovery.hold import digest_of
from isthmus.ops.syncer import state_sender
from isthmus.programs.engine.recorder.final_files import save_final
from isthmus.programs.engine.snapshots import taken_hold
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.snapshots import Snapshots
from isthmus.programs.engine.snapshots.taken_hold import RETRY_NS, SILENT_NS
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from tests.programs.engine.snapshots.taken_home import EVERY, RUN, TakenHome, fragments
from tests.programs.engine.snapshots.test_snapshots import SIZES, item, model, number, same

PART = 8


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_sender, "PART_BYTES", PART)


def home_of(disk: SimulatedDisk, life: int = 1, *, shards: int = 1) -> TakenHome:
    return TakenHome(disk, life, sizes=SIZES, shards=shards)


def asked(home: TakenHome) -> list[Any]:
    """What the last firings have asked of shards."""
    return [each for each in home.wants if each["number"]]


def taken(disk: SimulatedDisk) -> dict[int, ShardState]:
    return Snapshots(RUN / FOLDER, SIZES, Mount(disk)).read().held


def files(disk: SimulatedDisk) -> list[str]:
    return sorted(path.name for path in disk.files() if "fragment-" in path.name)


# -- what is taken, and when -------------------------------------------------------------------------------------------


def test_a_state_comes_part_by_part_and_is_the_file_that_its_tensors_make() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 3), item(1, 4))
    assert [(each["fragment"], each["at"]) for each in asked(home)] == [(0, 0), (0, 8), (0, 16), (1, 0), (1, 8)]
    for p, state in model(3, 4).items():
        [path] = [each for each in disk.files() if each.name.startswith(f"fragment-{p}-")]
        assert disk.files()[path] == save({**state["tensors"], "values": state["values"]})
    assert same(taken(disk), model(3, 4))


def test_a_version_that_is_replaced_before_its_turn_is_never_taken() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    for count in range(1, 6):
        home.fire(item(0, count))
        assert asked(home) == []
    home.fire(after=EVERY)
    assert [each["fragment"] for each in asked(home) if each["at"] == 0] == [0]
    assert same(taken(disk), model(5, 0))
    assert [each.split("-")[1:4] for each in files(disk)] == [["0", "1", "0"], ["0", "1", "5"], ["1", "1", "0"]]


def test_all_that_is_known_of_a_version_is_known_without_its_values() -> None:
    home = home_of(SimulatedDisk("seed"))
    home.is_answered = False
    told = home.fire(item(0, 3))
    assert (told["fragments"], told["merged"]) == ([], [0])
    assert told["saved"] == [[0, 1, 3]], "what is under way is not to be forgotten"


def test_a_state_that_is_sent_stays_as_it_was_whatever_has_replaced_it() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.is_answered = False
    home.fire(item(0, 3))
    [wanted] = home.wants
    shard, key = home.shards[0], ("recorder/0", None)
    for _ in range(2):
        [(_, part)] = shard.sender(wanted={key: wanted}) or []
        shard.publish(item(0, 4))
        [(_, wanted)] = home.hold(state={("syncer/0", None): part}) or []
    home.is_answered = True
    [(_, part)] = shard.sender(wanted={key: wanted}) or []
    home.hold(state={("syncer/0", None): part})
    home.fire(item(1, 1))
    assert same(taken(disk), model(3, 1))


def test_a_shard_keeps_nothing_of_what_it_has_sent_once_nobody_asks() -> None:
    home = home_of(SimulatedDisk("seed"))
    home.fire(item(0, 3), item(1, 4))
    assert home.wants[-1]["number"] == 0
    assert home.shards[0].sender._sent is None
    home.fire()
    assert home.wants == []


def test_a_home_that_is_to_leave_takes_what_is_newer_first() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    home.fire()
    assert not home.hold.is_engaged
    home.fire(item(0, 1))
    assert home.hold.is_engaged
    home.context.is_leaving = True
    home.fire()
    assert not home.hold.is_engaged
    assert same(taken(disk), model(1, 0))
    home.fire(item(0, 2))
    assert not home.hold.is_engaged, "learners elsewhere may go on for ever"


def test_a_home_that_leaves_waits_for_no_shard_that_is_gone_and_no_disk_that_refuses() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    home.fire(item(0, 1))
    home.context.is_leaving = True
    disk.troubles[0] = Trouble(lambda: None, room=0)
    home.fire()
    assert not home.hold.is_engaged
    disk.troubles.clear()
    home.shards[0].member = Member(Replica("syncer", 0), 2)
    home.meet()
    home.fire(after=EVERY)
    assert not home.hold.is_engaged


# -- the last versions -------------------------------------------------------------------------------------------------


def final(p: int, count: int) -> ShardState:
    return ShardState({**item(p, count), "kind": "final"})


def test_last_versions_are_taken_at_once_and_the_model_is_made_of_them(tmp_path: Path) -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    home.fire(final(0, 2), item(1, 3))
    [told] = home.told["final"]
    assert (told["fragment"], told["version"]) == (0, [1, 2])
    home.fire(final(1, 3))
    assert [each["fragment"] for each in home.told["final"]] == [1]
    digest = save_final(told, RUN / "fragment-0.safetensors", RUN, Mount(disk))
    [part, *_] = fragments(SIZES)
    cuts = zip(part.units, part.offsets, part.offsets[1:], strict=False)
    tensors = {unit.name: item(0, 2)["values"][begin:end].reshape(unit.values_shape) for unit, begin, end in cuts}
    assert disk.files()[RUN / "fragment-0.safetensors"] == save(tensors)
    assert digest == last_digests.digest_of(tensors.values())


def test_a_version_that_proves_to_be_the_last_one_is_not_taken_again() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 2), item(1, 3))
    home.fire(final(0, 2))
    assert asked(home) == []
    assert [each["version"] for each in home.told["final"]] == [[1, 2]]
    home.hold.close()
    assert [state["kind"] for state in taken(disk).values()] == ["final", "merge"]
    home = home_of(disk, life=2)
    home.fire()
    assert [each["version"] for each in home.told["final"]] == [[1, 2]], "its recorder may not have written it"


def test_a_last_version_older_than_one_that_died_with_its_shard_is_taken() -> None:
    """Learners gave the next life an older one, which nobody trained on."""
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 7), item(1, 3))
    home.replace(0)
    home.fire(final(0, 5))
    assert [each["version"] for each in home.told["final"]] == [[1, 5]]


def test_a_file_that_is_gone_is_an_error_of_the_disk() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(final(0, 2), item(1, 3))
    [told] = home.told["final"]
    for path in list(disk.files()):
        if path.name == told["file"]:
            Mount(disk).remove(path)
    with pytest.raises(OSError, match="fragment-0"):
        save_final(told, RUN / "fragment-0.safetensors", RUN, Mount(disk))
    assert not [path for path in disk.files() if path.parent == RUN]


# -- deaths ------------------------------------------------------------------------------------------------------------


def under_way(home: TakenHome, *states: ShardState, after: int = 0) -> None:
    """Have one part of a state arrive, and nothing more."""
    home.is_answered = False
    home.fire(*states, after=after)
    wanted = home.wants[-1]
    shard = home.shards[wanted["fragment"] % len(home.shards)]
    [(_, part)] = shard.sender(wanted={("recorder/0", None): wanted}) or []
    home.hold(state={(shard.member.replica, None): part})
    home.is_answered = True


def test_a_shard_that_dies_in_the_midst_leaves_the_state_before_in_the_snapshot() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk, shards=2)
    home.fire(item(0, 0), item(1, 0))
    home.fire(item(1, 2))
    under_way(home, item(0, 1), after=EVERY)
    home.shards[0].member = Member(Replica("syncer", 0), 2)  # The next life, which has told nothing yet.
    home.meet()
    home.fire()
    assert same(taken(disk), model(0, 2))
    assert not [name for name in files(disk) if name.startswith(".")]
    home.replace(0)
    home.fire(item(0, 4, epoch=3))
    home.fire(after=EVERY)
    assert taken(disk)[0]["version"] == [3, 4]


def test_a_shard_that_cannot_be_reached_keeps_no_other_one_waiting() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk, shards=2)
    home.silent = {0: None}
    home.fire(item(0, 0), item(1, 0))
    home.fire(after=SILENT_NS - 10**9)
    assert files(disk) == []
    home.fire(after=2 * 10**9)
    assert [name[:10] for name in files(disk)] == ["fragment-1"]
    # It was asked again, and nobody else has anything for which it would be left.
    home.fire(after=10 * SILENT_NS)
    assert asked(home) == []
    home.reach(0)
    home.fire()
    assert same(taken(disk), model(0, 0))


def test_of_shards_that_are_all_silent_each_is_waited_for_twice_as_long_each_time() -> None:
    home = home_of(SimulatedDisk("seed"), shards=2)
    home.silent = {0: None, 1: None}
    home.fire(item(0, 0), item(1, 0))
    asks = list[tuple[int, int]]()
    for n in range(1, 50):
        home.fire(after=SILENT_NS // 4)
        asks += [(n, each["fragment"]) for each in asked(home)]
    assert [fragment for _, fragment in asks[:4]] == [1, 0, 1, 0]
    waited = [asks[0][0], *(after - before for (before, _), (after, _) in itertools.pairwise(asks))]
    assert waited[1] == waited[0]
    assert waited[2:4] == [pytest.approx(2 * waited[0], abs=1)] * 2


def test_a_recorder_that_dies_in_the_midst_is_followed_by_one_that_has_the_last_snapshot() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    under_way(home, item(0, 1), item(1, 1), after=EVERY)
    assert [name for name in files(disk) if name.startswith(".")]
    later = home_of(disk, life=2)
    assert later.fire()["fragments"] == [0, 1]
    assert same(taken(disk), model(0, 0))
    later.fire(item(0, 5), item(1, 5))
    later.fire(after=EVERY)
    assert same(taken(disk), model(5, 5))
    assert not [name for name in files(disk) if name.startswith(".")], "nobody finishes it any more"


def test_states_that_no_snapshot_names_go_with_the_life_that_took_them() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    under_way(home, item(0, 1), item(1, 1), after=EVERY)
    shard = home.shards[0]
    home.fire()  # Fragment 0 waits for the rest; that of 1 never came.
    assert number(disk) == 1
    later = home_of(disk, life=2)
    later.shards = [shard]
    later.meet()
    later.fire(item(0, 2), item(1, 2))
    later.fire(after=EVERY)
    assert {name.split("-")[4] for name in files(disk)} == {"1", "2"}
    later.fire(item(0, 3), item(1, 3), after=EVERY)
    later.fire()
    assert {name.split("-")[4] for name in files(disk)} == {"2"}


# -- a disk that refuses -----------------------------------------------------------------------------------------------


def test_a_first_version_that_the_disk_refuses_is_asked_for_again_soon() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    disk.troubles[0] = Trouble(lambda: None, room=0)
    home.fire(item(0, 0), item(1, 0))
    assert home.context.published[-1]["error"] == "No space left on device"
    home.fire()
    assert asked(home) == []
    disk.troubles.clear()
    home.fire(after=RETRY_NS)
    home.fire()
    assert same(taken(disk), model(0, 0))


def test_another_version_that_the_disk_refuses_waits_for_the_next_snapshot() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    disk.troubles[0] = Trouble(lambda: None, room=0)
    home.fire(item(0, 1), after=EVERY)
    disk.troubles.clear()
    home.fire(after=2 * RETRY_NS)
    assert (number(disk), asked(home)) == (1, [])
    home.fire(after=EVERY)
    assert same(taken(disk), model(1, 0))


def test_a_last_version_that_the_disk_refuses_is_told_and_tried_again(tmp_path: Path) -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 0), item(1, 0))
    disk.troubles[0] = Trouble(lambda: None, room=0)
    home.fire(final(0, 1))
    [told] = home.told["final"]
    assert (told["fragment"], told["error"]) == (0, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        save_final(told, tmp_path / "fragment-0.safetensors", RUN, Mount(disk))
    disk.troubles.clear()
    home.fire(after=RETRY_NS)
    assert [each["error"] for each in home.told["final"]] == [""]


def test_what_has_another_form_is_not_written() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    wrong = ShardState({**item(0, 0), "values": np.zeros(5, np.float32)})
    home.fire(wrong, item(1, 0))
    assert number(disk) == 0
    assert "expected float32" in home.context.published[-1]["error"]


# -- what is given back ------------------------------------------------------------------------------------------------


def row(state: ShardState) -> list[Any]:
    digest = digest_of(state["values"], state["clock"], state["positions"])
    return [state["fragment"], *state["version"], digest, state["lengths"]]


def test_a_shard_that_begins_anew_hears_of_the_newest_version_and_learners_get_the_one_on_the_disk() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 3), item(1, 4))
    home.fire(item(0, 5))
    home.replace(0)
    told = home.fire()
    assert told["given"] == [row(item(0, 3)), row(item(0, 5)), row(item(1, 4))]
    assert [(each["fragment"], each["version"]) for each in home.told["copy"]] == [(0, [1, 3]), (1, [1, 4])]
    assert [each["version"] for each in home.told["kept"]] == [[1, 3], [1, 4]]
    told = home.fire(item(0, 6, epoch=2))
    assert told["given"] == [row(item(1, 4))]
    [copy] = home.told["copy"]
    assert is_withdrawn(copy)


def test_copies_of_a_large_model_leave_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_hold, "COPIES_BYTES", 1)
    home = home_of(SimulatedDisk("seed"))
    home.fire(item(0, 3), item(1, 4))
    home.replace(0)
    told = home.fire()
    assert [each["fragment"] for each in home.told["copy"]] == [0]
    assert [each[0] for each in told["given"]] == [0, 1]
    home.fire()
    assert "copy" not in home.told
    home.fire(item(1, 5, epoch=2))  # From what learners have: no copy is needed.
    assert "copy" not in home.told
    home.fire(item(0, 4, epoch=2))
    assert [is_withdrawn(each) for each in home.told["copy"]] == [True]
    assert [each["fragment"] for each in home.told["kept"]] == [1], "its momentum still counts"


def test_a_fragment_that_is_published_as_it_was_makes_room_for_the_next_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners that have only some fragments do not step, and nothing is merged. Simulated, with copies one by one."""
    monkeypatch.setattr(taken_hold, "COPIES_BYTES", 1)
    home = home_of(SimulatedDisk("seed"))
    home.fire(item(0, 3), item(1, 4))
    home.replace(0)
    home.fire()
    home.fire(ShardState({**item(0, 3), "kind": "recover"}))
    assert [(each["fragment"], is_withdrawn(each)) for each in home.told["copy"]] == [(0, True), (1, False)]


def test_what_began_anew_is_not_taken_before_it_is_given_the_rest_of_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_hold, "COPIES_BYTES", 1)
    home = home_of(SimulatedDisk("seed"))
    home.fire(item(0, 3), item(1, 4))
    home.replace(0)
    home.fire()
    home.fire(item(1, 5), after=EVERY)
    assert asked(home) == []


def test_a_folder_of_before_tells_the_digests_of_its_versions() -> None:
    disk = SimulatedDisk("seed")
    Snapshots(RUN / FOLDER, SIZES, Mount(disk)).write(model(3, 4))
    home = home_of(disk, life=2)
    home.replace(0)
    assert home.fire()["given"] == [row(item(0, 3)), row(item(1, 4))]


def test_a_state_that_is_damaged_is_taken_again_once_there_is_one() -> None:
    disk = SimulatedDisk("seed")
    home = home_of(disk)
    home.fire(item(0, 3), item(1, 4))
    for path in disk.files():
        if path.name.startswith("fragment-0-"):
            content = disk.content(path)
            assert content is not None
            content.data[:] = b"short"
    home.replace(0)
    home.fire()
    assert "copy" not in home.told
    assert home.fire()["fragments"] == [1]
    home.fire(item(0, 5, epoch=2))
    home.fire(after=EVERY)
    assert taken(disk)[0]["version"] == [2, 5]
