"""`isthmus replay` of a run that kept its payloads: every merge is computed again, and what differs is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from isthmus import Program
from isthmus.ops.kernels import nesterov
from isthmus.programs.command.main import app
from isthmus.programs.study.simulation.pytest_plugin import Worlds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.sim.machine import Mount, SimulatedDisk, Trouble
from isthmus.runtime.tape import payloads
from isthmus.runtime.tape.payloads import EmittedItem, Keeper
from isthmus.runtime.tape.writing import framed
from tests.programs.study.lab.taped_run import taped_run

SHARD = Member(Replica("syncer", 0), 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    worlds = Worlds(tmp_path_factory.mktemp("runs"))
    coded = Program("decoupled-diloco", push="int8", update="int8", outer_momentum=0.5, interval=8)
    folder = taped_run(worlds, coded, keep_payloads=True, speeds=(1.0, 2.0, 3.0))
    worlds.close()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def isthmus(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, prog_name="isthmus")


def replayed(folder: Path) -> tuple[int, dict[str, Any]]:
    result = isthmus("replay", str(folder), "--json")
    return result.exit_code, json.loads(result.stdout)


def kept(run: Path, name: str) -> Path:
    return payloads.folder_of(run, SHARD) / f"{name}.item"


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Path]:
    """A run whose updates are whole, so that what an outer step makes leaves its host as it is."""
    worlds = Worlds(tmp_path)
    program = Program("decoupled-diloco", push="int8", outer_momentum=0.5, interval=8)
    yield taped_run(worlds, program, keep_payloads=True)
    worlds.close()


@pytest.mark.slow
def test_every_merge_is_computed_again_to_the_same_bytes(finished: Path) -> None:
    status, told = replayed(finished)
    assert (status, told["identical"]) == (0, True)
    assert told["merges_computed"] == told["merges"] > 5
    assert all(each["other_bytes"] is None for each in told["hosts"])
    rounds = f"{told['merges']} merge rounds, {told['merges']} merges computed again"
    assert rounds in " ".join(isthmus("replay", str(finished)).stdout.split())


@pytest.mark.slow
def test_an_outer_step_that_computes_otherwise_is_named_with_the_first_value(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, count = nesterov.outer_step, 0

    def slightly_off(*given: Any) -> Any:
        nonlocal count
        theta, velocity = step(*given)
        count += 1
        if count == 3:
            theta = theta.copy()
            theta[1] = np.nextafter(theta[1], np.float32(9))
        return theta, velocity

    monkeypatch.setattr(nesterov, "outer_step", slightly_off)
    status, told = replayed(plain)
    assert (status, told["identical"]) == (1, False)
    [found] = [each["other_bytes"] for each in told["hosts"] if each["other_bytes"]]
    assert (found["node"], found["port"]) == ("outer-step", "update")
    assert found["item"].startswith("values[1]")
    assert np.float32(eval_float(found["computed"])) == np.nextafter(
        np.float32(eval_float(found["kept"])), np.float32(9)
    )
    count = 0
    shown = isthmus("replay", str(plain))
    assert shown.exit_code == 1
    assert "of outer-step" in shown.stdout
    assert "gradient: fragment " in shown.stdout


def eval_float(text: str) -> float:
    return float(text.removeprefix("np.float32(").removesuffix(")"))


def test_an_answer_that_was_changed_is_found_by_what_is_merged(run: Path) -> None:
    path = next(
        path
        for path in sorted(kept(run, "x").parent.glob("merge.*.item"))
        if "answer" in (found := inputs_of(path)) and all(vote["kind"] == "merge" for vote in found["answer"].values())
    )
    inputs, number = inputs_of(path), int(path.name.split(".")[1])
    firing = payloads.read(path.read_bytes(), "merge", number)
    place, vote = next(iter(inputs["answer"].items()))
    inputs["answer"][place] = {**vote, "end": vote["end"] - 1}
    rewrite(path, "merge", number, inputs, firing.outputs)
    status, told = replayed(run)
    assert (status, told["identical"]) == (1, False)
    [found] = [each["other_bytes"] for each in told["hosts"] if each["other_bytes"]]
    assert (found["node"], found["firing"]) == ("merge", number)
    assert "answer of learner/" in found["given"]


def inputs_of(path: Path) -> dict[str, Any]:
    node, number, _ = path.name.split(".")
    return payloads.read(path.read_bytes(), node, int(number)).inputs


def rewrite(path: Path, node: str, number: int, inputs: dict[str, Any], made: list[tuple[str, int, Any]]) -> None:
    """Write a file anew, with other inputs and what was made."""
    Keeper(path.parent).keep(node, number, inputs, [], several=("answer",), made_here=())
    data = path.read_bytes()
    head = msgspec.msgpack.decode(payloads.frames(data).bodies[0], type=payloads.PayloadsHead)
    entries = [payloads.Item(port, None, None, digest, [], []) for port, digest, _ in made]
    body = msgspec.msgpack.encode(msgspec.structs.replace(head, outputs=entries))
    path.write_bytes(framed(body) + data[8 + len(payloads.frames(data).bodies[0]) :])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:-3], "not whole"),
        (lambda data: data[:9], "not whole"),
        (lambda data: b"", "it is not whole: it is empty"),
        (lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], "damaged"),
        (lambda data: framed(msgspec.msgpack.encode(["isthmus payloads", 7])), "['isthmus payloads', 7], expected"),
        (lambda data: framed(msgspec.msgpack.encode({"a": 1})), "it begins with {'a': 1}"),
        (lambda data: framed(b"\xc1"), "Reading the payloads"),
        (lambda data: framed(msgspec.msgpack.encode(["isthmus payloads", 1, "merge"])), "Reading the payloads"),
    ],
    ids=["truncated", "torn", "empty", "damaged", "future", "foreign", "nonsense", "short"],
)
def test_payloads_that_are_spoilt_are_refused_in_one_message(
    run: Path, spoil: Callable[[bytes], bytes], says: str
) -> None:
    path = kept(run, "merge.2")
    path.write_bytes(spoil(path.read_bytes()))
    result = isthmus("replay", str(run))
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())
    assert "Reading the payloads of syncer/0#1" in result.stderr


def test_a_firing_that_is_missing_ends_what_can_be_computed_and_it_is_said(run: Path) -> None:
    kept(run, "merge.4").unlink()
    status, told = replayed(run)
    assert (status, told["identical"]) == (0, True)
    assert told["merges_computed"] < told["merges"]
    said = " ".join(isthmus("replay", str(run)).stdout.split())
    assert "payloads of 3 firings of merge, 3 firings of outer-step are there" in said


# -- one file ----------------------------------------------------------------------------------------------------------


def test_a_firing_is_read_as_it_was_kept() -> None:
    disk = SimulatedDisk("seed")
    values = np.arange(300_000, dtype=np.float32)
    place = Replica("learner", 2), 7
    update = {"values": values * 2, "clock": [[0, 1]], "pair": (1, 2)}
    inputs = {
        "round": {"round": 3, "known": [(1, 2)]},
        "answer": {place: {"gradient": values, "norms": values[:2]}},
        "none": {},
        "empty": {},
        "gradient": {"made": "here"},
        "decision": {"reason": "all"},
        "kept": None,
    }
    keeper = Keeper(Path("/run"), Mount(disk))
    made = [EmittedItem("update", update, encode(update)), EmittedItem("local", 1, None)]
    keeper.keep("merge", 3, inputs, made, several=("answer", "none"), made_here=("gradient",))
    [data] = disk.files().values()
    found = payloads.read(data, "merge", 3)
    assert set(found.inputs) == {"round", "answer", "none", "empty", "decision"}
    assert found.inputs["none"] == found.inputs["empty"] == {}
    assert found.inputs["round"] == inputs["round"]
    np.testing.assert_array_equal(found.inputs["answer"][place]["gradient"], values)
    (port, digest, item), local = found.outputs
    assert (port, digest, item["pair"]) == ("update", encode(update).digest, (1, 2))
    np.testing.assert_array_equal(item["values"], values * 2)
    assert local == ("local", encode(1).digest, None)
    with pytest.raises(ValueError, match="it is of firing 3 of 'merge'"):
        payloads.read(data, "merge", 4)


def test_a_disk_that_takes_nothing_costs_the_payloads_and_no_more() -> None:
    disk = SimulatedDisk("seed")
    keeper = Keeper(Path("/run"), Mount(disk))
    keeper.keep("merge", 1, {"round": {}}, [], several=(), made_here=())
    disk.troubles[1] = Trouble(lambda: None, room=0)
    keeper.keep("merge", 2, {"round": {}}, [], several=(), made_here=())
    disk.troubles.clear()
    keeper.keep("merge", 3, {"round": {}}, [], several=(), made_here=())
    assert keeper.lost == 2
    assert [path.name for path, data in disk.files().items() if data] == ["merge.1.item"]
