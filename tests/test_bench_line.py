"""The bench of the published line: what the plain loop computes, the end of its time, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.island import optimizer, schedule
from isthmus.ops.island.schedule import RateSchedule
from isthmus.ops.kernels import averaging
from isthmus.ops.model_config import ModelConfig
from isthmus.programs.command.config import MODELS
from isthmus.programs.language_model import rate_default
from isthmus.programs.sweeps import OUTER_DECOUPLED, outer_default
from tests.bench import gap
from tests.bench.long import bench_line
from tests.effort import soaked

ROOT = Path(__file__).parents[1]
SHAPE = {"layers": 1, "width": 32, "heads": 2, "context": 32}
STEPS = 48


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text, on the small side."""
    folder = tmp_path_factory.mktemp("text")
    for page in ("architecture", "tutorial", "contributing"):
        (folder / f"{page}.md").write_bytes((Path(__file__).parents[1] / "docs" / f"{page}.md").read_bytes())
    return folder


def settings(batch: int, **others: Any) -> dict[str, Any]:
    """With so small an interval that in 48 steps every fragment is merged six times."""
    return {**gap.DEFAULTS, "H": 8, "P": 4, "eta": 0.4, "omu": 0.7, "batch": batch, "lr": 0.012, **others}


def line_loss(of: dict[str, Any], cell: Any, text: Path) -> float:
    """The loss of a cell after 48 steps, in three calls."""
    size = bench_line.Size("test", SHAPE, of["lr"], of["batch"], of["H"], (cell.learners,))
    train, windows, held_out = bench_line.read(text, size)
    line = bench_line.Line(ModelConfig(**SHAPE), of, train, held_out)
    rows = bench_line.inputs(cell, of, STEPS, windows)
    state = line.begin(cell.seed, cell.learners)
    for at in range(0, STEPS, bench_line.CHUNK):
        now = tuple(each[at : at + bench_line.CHUNK] for each in rows)
        line.compile(state, now)
        state = line.advance(state, now)
    return float(line.loss_of(state, decoupled=cell.decoupled, is_last=True))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "bar"), [("adamw", 1e-5), soaked("muon", 1e-4)])
def test_learners_in_one_computation_end_where_those_of_the_plain_loop_do(text: Path, kind: str, bar: float) -> None:
    of = settings(batch=4, optimizer=kind)
    model = {**SHAPE, "data": (str(text),)}
    run = gap.Run(STEPS * 2 * 4 * SHAPE["context"], 3, of, learners=2, model=model)
    assert run.steps == STEPS
    cell = bench_line.Cell(3, decoupled=True, learners=2)
    assert line_loss({**of, "batch": 8}, cell, text) == pytest.approx(run.decoupled()["loss"], rel=bar)


@pytest.mark.long
@pytest.mark.slow
def test_data_parallel_is_one_learner_of_the_plain_loop_with_the_whole_batch(text: Path) -> None:
    of = settings(batch=8)
    model = {**SHAPE, "data": (str(text),)}
    run = gap.Run(STEPS * 8 * SHAPE["context"], 3, of, learners=1, model=model)
    value = line_loss(of, bench_line.Cell(3, decoupled=False), text)
    assert value == pytest.approx(run.data_parallel()["loss"], rel=1e-5)
    assert abs(value - run.decoupled()["loss"]) > 1e-3


@pytest.mark.parametrize("method", ["rda", "average"])
@pytest.mark.parametrize("learners", [1, 2, 4])
def test_a_merge_is_that_of_the_plain_loop(method: str, learners: int) -> None:
    """Of unlike lengths, of one that is zero, and where directions cancel."""
    rng = np.random.default_rng(learners)
    given = rng.standard_normal((learners, 6, 5)).astype(np.float32) * (10.0 ** np.arange(learners))[:, None, None]
    some = given.astype(np.float32)
    none = np.zeros_like(some)
    without_one = some * (np.arange(learners) > 0)[:, None, None]
    opposed = np.stack([some[0] * (-1) ** m * (m + 1) for m in range(learners)])
    for gradients in (some, none, without_one.astype(np.float32), opposed.astype(np.float32)):
        expected = gap.merged(list(gradients), method, 0)
        np.testing.assert_allclose(bench_line.merged(gradients, method), expected, rtol=2e-5, atol=1e-6)


def test_what_the_plain_loop_says_again_is_what_programs_do() -> None:
    assert (gap.FINAL_SHARE, gap.EPSILON) == (schedule.FINAL_SHARE, schedule.EPSILON)
    assert gap.CANCELLED_SHARE == averaging.CANCELLED_SHARE
    own = schedule.BETA_1, schedule.BETA_2, optimizer.BETA_MUON, optimizer.RMS_MUON
    assert tuple(gap.DEFAULTS[name] for name in ("b1", "b2", "mu", "rms")) == own
    for progress in (0.0, 0.1, 0.2, 0.5, 1.0):
        rate = optimizer.learning_rate(progress, peak=gap.DEFAULTS["lr"], schedule=RateSchedule(gap.DEFAULTS["warm"]))
        assert gap.learning_rate(gap.DEFAULTS, progress) == pytest.approx(float(rate), rel=1e-5)


def test_sizes_are_the_presets_and_long_enough_for_momentum() -> None:
    for name in ("line", "long"):
        size = bench_line.SIZES[name]
        width, batch = size.shape["width"], size.sequences // max(size.learners)
        assert {**size.shape, "optimizer": "adamw"} == MODELS[size.model]
        assert size.lr == rate_default("adamw", width, batch)
        assert rate_default("muon", width, batch) == bench_line.LR_MUON
    for size in bench_line.SIZES.values():
        line = bench_line.Line(ModelConfig(**size.shape), gap.DEFAULTS, np.zeros(0, np.uint8), np.zeros(0, np.uint8))
        sweeps = bench_line.Bench(line, size, None, None, lambda: True).steps / size.interval
        assert sweeps >= 80
        assert outer_default(sweeps, OUTER_DECOUPLED) == tuple(bench_line.OUTER.values())
        assert all(size.sequences % learners == 0 for learners in size.learners)


def test_published_percents_are_those_of_the_published_losses() -> None:
    """arXiv 2503.09799, table 4, the row of 35M."""
    losses = {"M=1": 3.482, "M=2": 3.508, "M=4": 3.554}
    percents = {name: round(100 * (loss / 3.485 - 1), 1) for name, loss in losses.items()}
    assert percents == bench_line.PUBLISHED


def countdown(count: int) -> Any:
    """Says that time is over when it is called for the time after `count`."""
    left = iter([False] * count)
    return lambda: next(left, True)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`bench_line` with a size of 64 steps, or four calls."""
    size = bench_line.Size("tiny", {"layers": 1, "width": 8, "heads": 2, "context": 8}, 0.01, 4, 4, (2,))
    monkeypatch.setitem(bench_line.SIZES, "tiny", size)
    monkeypatch.setattr(bench_line.Bench, "steps", 64)
    return bench_line


def records(
    text: Path, *options: str, calls: int = 1000, compiled: dict[int, Any] | None = None
) -> list[dict[str, Any]]:
    """What a call records whose time is over after it has been asked so often; `compiled` are programs to share."""
    given = bench_line.parser().parse_args(["--tiny", "--data", str(text), *options])
    bench, seeds = bench_line.prepare(given)
    bench.is_over = countdown(calls)
    bench.line._compiled = {} if compiled is None else compiled
    return list(bench.train(seeds))


@pytest.mark.long
@pytest.mark.slow
def test_a_call_goes_on_within_a_cell_where_the_one_before_ended(tiny: Any, text: Path, tmp_path: Path) -> None:
    compiled: dict[int, Any] = {}
    whole = records(text, compiled=compiled)
    assert [each["cell"] for each in whole] == ["data-parallel", "M=2"]
    assert whole[1]["gap"] == pytest.approx(whole[1]["loss"] - whole[0]["loss"])
    assert whole[1]["gap_percent"] == pytest.approx(100 * whole[1]["gap"] / whole[0]["loss"])
    assert [each["sweeps"] for each in whole] == [None, 16]
    state = ("--state", str(tmp_path / "state"))
    # Before the first cell, before each of its four calls, at the end of it no more; the next ends after two calls.
    first = records(text, *state, calls=5 + 3, compiled=compiled)
    assert first[0]["loss"] == whole[0]["loss"]
    assert (first[1]["loss"], first[1]["gap"], first[1]["tokens"]) == (None, None, 2 * 16 * 4 * 8)
    assert first[1]["loss_so_far"] > whole[1]["loss"]
    rest = records(text, *state, compiled=compiled)
    assert [(each["cell"], each["loss"], each["gap"]) for each in rest] == [
        ("M=2", whole[1]["loss"], whole[1]["gap"]),
    ]
    assert rest[0]["seconds"] > first[1]["seconds"]
    assert records(text, *state) == []


def test_what_time_did_not_reach_is_null(tiny: Any, text: Path) -> None:
    for record in records(text, "--seeds", "2", calls=0):
        assert {record[key] for key in ("loss", "loss_so_far", "gap", "gap_percent", "seconds")} == {None}
        assert record["tokens"] == 0 < record["tokens_planned"]


@pytest.mark.long
@pytest.mark.slow
def test_each_cell_is_a_line_of_the_file_and_all_are_one_object(
    tiny: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "line.jsonl"
    arguments = ["--tiny", "--data", str(text), "--minutes", "30", "--out", str(out)]
    assert tiny.main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert printed["cells"] == lines
    assert {(each["step"], each["device_kind"], each["seed"]) for each in lines} == {
        ("line", printed["device_kind"], 0)
    }
    assert [each["loss"] is None for each in lines] == [False, False]
    assert tiny.main(arguments) == 0
    table = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in table[2:]] == ["data-parallel", "M=2"]
    assert len(out.read_text().splitlines()) == 4


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, size: str = "--tiny") -> str:
    """The message of a call that is wrong: one, on standard error."""
    assert bench_line.main([size, *arguments]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert ": expected " in printed.err
    assert ", found " in printed.err
    return printed.err


def test_what_is_wrong_is_refused_in_one_message(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    assert str(tokens) in refused(capsys, "--data", str(tokens))
    np.save(tokens / "ids.npy", np.arange(1000))
    assert "ids.npy" in refused(capsys, "--data", str(tokens))
    short = tmp_path / "short"
    short.mkdir()
    (short / "a.txt").write_text("too short")
    assert "task." not in refused(capsys, "--data", str(short))
    assert "--data" in refused(capsys, "--data", str(tmp_path / "nothing"))
    for option, value in (("--minutes", "0"), ("--minutes", "nan"), ("--seeds", "0"), ("--lr", "-1")):
        assert option in refused(capsys, f"{option}={value}")
    monkeypatch.setattr(tiny, "machine", lambda: {"platform": "cpu"})
    assert "--tiny" in refused(capsys, size="--long")
    for option in ("--out", "--state"):
        assert option in refused(capsys, option, str(tmp_path / "no folder" / "file"))
    assert not (tmp_path / "no folder").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_state_of_another_request_or_of_none_is_refused(
    tiny: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    arguments = ("--data", str(text), "--state", str(state))
    records(text, "--state", str(state), calls=2)
    assert "lr=0.02" in refused(capsys, *arguments, "--lr", "0.02")
    whole = state.read_bytes()
    for content in (b"", b"no state", whole[: len(whole) // 2]):
        state.write_bytes(content)
        assert str(state) in refused(capsys, *arguments)
        assert state.read_bytes() == content


@pytest.mark.process
def test_it_loads_no_package_that_a_machine_with_a_gpu_may_lack(text: Path) -> None:
    """The packages of the project, without what jax brings and the one that divides the text."""
    code = (
        "import sys; from tests.bench.long import bench_line; bench_line.read(None, bench_line.SIZES['tiny']); "
        "print(sorted({'optax', 'numba', 'msgspec', 'zmq', 'safetensors', 'typer', 'rich', 'fsspec', "
        "'uvloop', 'jinja2', 'setproctitle'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("options", [(), ("--dtype", "bfloat16", "--optimizer", "muon")])
def test_tiny_is_trained_as_a_command(options: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "line.jsonl"
    command = [
        sys.executable,
        "-m",
        "tests.bench.long.bench_line",
        "--tiny",
        "--minutes",
        "30",
        "--out",
        str(out),
        *options,
    ]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = {each["cell"]: each["loss"] for each in map(json.loads, out.read_text().splitlines())}
    assert set(losses) == {"data-parallel", "M=1", "M=2", "M=4"}
    assert all(2.0 < value < 3.0 for value in losses.values())
