"""Data of others through streams, by the examples of the documents: what they give, and runs in real processes."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import packed, unpacked
from isthmus.programs.engine.request import reference
from tests.programs.engine.run.process_run import FOREVER, Run
from tests.torch_tasks.test_torch_runs import reports

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SLOTS = 16
ROWS = 6400


def rows() -> tuple[Any, Any]:
    """Numbers, and their sums, of which no two are the same."""
    x = np.random.default_rng(0).normal(size=(ROWS, 32)).astype(np.float32)
    return x, x.sum(1)


def save_dataset(folder: Path) -> None:
    import datasets

    x, y = rows()
    datasets.Dataset.from_dict({"x": x, "y": y}).save_to_disk(folder / "dataset")


def save_rows(folder: Path) -> None:
    x, y = rows()
    np.savez(folder / "rows.npz", x=x, y=y)


def save_shards(folder: Path) -> None:
    x, y = rows()
    (folder / "shards").mkdir()
    for number in range(2 * SLOTS):
        with tarfile.open(folder / "shards" / f"{number:03}.tar", "w") as shard:
            for row in range(number, ROWS, 2 * SLOTS):
                for name, array in (("x", x[row]), ("y", y[row])):
                    file = BytesIO()
                    np.save(file, array)
                    entry = tarfile.TarInfo(f"{row:06}.{name}.npy")
                    entry.size = file.tell()
                    file.seek(0)
                    shard.addfile(entry, file)


def save_mds(folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "mds"), columns={"x": "ndarray:float32:32", "y": "float32"}) as file:
        for x, y in zip(*rows(), strict=True):
            file.write({"x": x, "y": y})


def example(name: str, package: str, save: Callable[[Path], None]) -> Any:
    needed = pytest.mark.skipif(find_spec(package) is None, reason=f"it needs {package}")
    return pytest.param((name, save), id=name, marks=needed)


pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize(
        "data",
        [
            example("data_datasets", "datasets", save_dataset),
            example("data_grain", "grain", save_rows),
            example("data_webdataset", "webdataset", save_shards),
            example("data_mosaic", "streaming", save_mds),
        ],
        indirect=True,
    ),
]


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The example's file, in a folder with its data."""
    name, save = request.param
    save(tmp_path)
    shutil.copy(EXAMPLES / f"{name}.py", tmp_path / "example.py")
    return tmp_path / "example.py"


def taken(stream: Any, count: int) -> list[list[float]]:
    """What tells batches apart: their sums."""
    batches = [next(stream) for _ in range(count)]
    return [np.asarray(each["y"] if isinstance(each, dict) else each[1]).reshape(-1).tolist() for each in batches]


def test_a_stream_goes_on_from_its_state_and_slots_have_rows_of_their_own(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    task = reference.load(f"{data}:task", "Loading the example")
    stream = task.stream(3, SLOTS, 7)
    first = taken(stream, 5)
    state = packed(stream.get_state())
    assert state is not None  # It travels.
    then = taken(stream, 40)
    assert len(then[0]) == 32
    later = task.stream(3, SLOTS, 7)
    later.set_state(unpacked(state))
    assert taken(later, 40) == then
    again = taken(task.stream(3, SLOTS, 7), 45)
    assert again == first + then
    other = {value for batch in taken(task.stream(4, SLOTS, 7), 45) for value in batch}
    mine = {value for batch in again for value in batch}
    assert not mine & other
    epoch = len(mine) // 32
    assert 5 < epoch < 20  # Several epochs were read, each in another order.
    assert again[:epoch] != again[epoch : 2 * epoch]
    assert taken(task.stream(3, SLOTS, 8), 5) != first


NOTED = """
import dataclasses, json, os
from example import task as plain

class Noted:
    # A stream that writes down what it gives.
    def __init__(self, stream, name):
        self.stream, self.file = stream, open(name, "a", buffering=1)
        self.get_state, self.set_state = stream.get_state, stream.set_state

    def __next__(self):
        batch = next(self.stream)
        y = batch["y"] if isinstance(batch, dict) else batch[1]
        self.file.write(json.dumps(y.reshape(-1).tolist()) + "\\n")
        return batch

def stream(slot, slots, seed):
    count = len(os.listdir("seen"))
    return Noted(plain.stream(slot, slots, seed), f"seen/{slot}-{slots}-{seed}-{os.getpid()}-{count}")

task = dataclasses.replace(plain, stream=stream)
"""


@pytest.fixture
def run(data: Path) -> Iterator[Run]:
    (data.parent / "seen").mkdir()
    (data.parent / "noted.py").write_text(NOTED)
    begun = Run(data.parent, "--task", "noted.py:task", tokens=FOREVER)
    yield begun
    begun.close()


def test_after_a_kill_the_same_batches_go_on(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.wait_for(lambda: (run.folder / "local" / "learner-1").exists())
    run.wait_for_merges(10)
    first = run.host("learner/1")["pid"]
    run.kill("learner/1")
    run.wait_for(lambda: any(line["incarnation"] == 2 and line["step"] > 30 for line in reports(run, 1)))
    second = run.host("learner/1")["pid"]
    run.wait_for_merges(5)
    run.stop()
    (one, seed), (other, _) = seen(data.parent, first), seen(data.parent, second)
    with monkeypatch.context() as here:  # Whatever works in that folder is taken to be of the run.
        here.chdir(data.parent)
        task = reference.load(f"{data}:task", "Loading the example")
        expected = taken(task.stream(1, SLOTS, seed), len(one) + len(other))
    is_equal = one == expected[: len(one)]  # The difference would be thousands of numbers.
    assert is_equal
    begins = [at for at in range(1, len(one) + 1) if expected[at : at + len(other)] == other]
    assert begins  # From its state, not from the beginning.


def seen(folder: Path, pid: int) -> tuple[list[list[float]], int]:
    """What a process of slot 1 has read to train on, and the seed."""
    (path,) = folder.glob(f"seen/1-{SLOTS}-*-{pid}-*")
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("]")], int(path.name.split("-")[2])
