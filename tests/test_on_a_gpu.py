"""What is measured on a GPU, without one: what a machine must have, the figures of lines, and all of it, tiny.

`tests/bench/on_a_gpu.sh` itself is run here as its user runs it; machines that do not suffice are made up.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.bench import gpu_figures as figures
from tests.bench import gpu_machine as machine
from tests.bench import gpu_steps as steps
from tests.bench.gpu_machine import RefusedError
from tests.bench.gpu_measures import LACKS_STATUS
from tests.patience import PATIENCE, wait_for

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "tests" / "bench"
LACKING = ("pyzmq", "msgspec", "setproctitle")
"""What a machine that has jax and the usual packages was seen to lack."""


# -- what a machine has ------------------------------------------------------------------------------------------------


def of(**bounds: str) -> list[Any]:
    """Requirements by their lower bounds."""
    return [machine.Requirement(name, ((">=", bound),)) for name, bound in bounds.items()]


def test_what_is_needed_is_what_setup_says() -> None:
    needed = {each.name: each for each in machine.requirements()}
    assert {"jax", "optax", "pyzmq", "ml-dtypes", "uvloop", "setproctitle"} <= set(needed)
    assert needed["pyzmq"].module == "zmq"
    assert re.fullmatch(r"uvloop>=[\d.]+,<[\d.]+", needed["uvloop"].text)
    assert all(each.allows(metadata.version(each.name)) for each in needed.values())


@pytest.mark.parametrize(
    ("version", "is_allowed"),
    [("0.8.3", False), ("0.9", True), ("0.9.0", True), ("0.10.2", True), ("0.11.0rc1", False)],
)
def test_bounds_of_a_version(version: str, is_allowed: bool) -> None:
    assert machine.Requirement("jax", ((">=", "0.9"), ("<", "0.11"))).allows(version) == is_allowed


@pytest.mark.parametrize(
    ("name", "python", "fits"),
    [
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (3, 12), True),
        ("msgspec-0.22.0-cp311-cp311-manylinux2014_x86_64.whl", (3, 12), False),
        ("pyzmq-27.3.0-cp312-abi3-manylinux_2_28_x86_64.whl", (3, 13), True),
        ("pyzmq-27.3.0-cp312-abi3-manylinux_2_28_x86_64.whl", (3, 11), False),
        ("pyzmq-27.3.0-cp312-abi3-macosx_11_0_arm64.whl", (3, 12), False),
        ("shellingham-1.5.4-py2.py3-none-any.whl", (3, 12), True),
    ],
)
def test_a_wheel_says_which_python_it_is_for(name: str, python: tuple[int, int], fits: bool) -> None:
    assert machine.wheel_of(Path(name)).fits(python) == fits


def test_other_files_are_no_wheels() -> None:
    assert [machine.wheel_of(Path(name)) for name in ("README.md", "a.whl", "a-1.tar.gz")] == [None] * 3


def wheels(*names: str) -> list[Any]:
    return [machine.wheel_of(Path("wheels", name)) for name in names]


def test_the_newest_wheel_is_taken_of_what_is_not_there() -> None:
    there = {"optax": "0.2.6", "msgspec": "0.10"}
    files = (
        "optax-0.3-py3-none-any.whl",  # There already.
        "msgspec-0.9-py3-none-any.whl",  # Too old.
        "msgspec-0.20-py3-none-any.whl",
        "msgspec-0.22-py3-none-any.whl",
        "click-8.0-py3-none-any.whl",  # Needed by another, which this does not know.
        "numpy-3.0-py3-none-any.whl",  # Never: jax was built with the one that is there.
    )
    needed = of(optax="0.2", msgspec="0.19")
    taken = machine.chosen(needed, there.get, wheels(*files), (3, 12), Path("wheels"))
    assert [path.name for path in taken] == ["click-8.0-py3-none-any.whl", "msgspec-0.22-py3-none-any.whl"]


def test_all_that_is_missing_is_one_message_with_the_command_that_fetches_it() -> None:
    files = wheels("pyzmq-27-cp311-cp311-manylinux_2_28_x86_64.whl", "optax-0.3-py3-none-any.whl")
    needed = of(optax="0.2", pyzmq="26", msgspec="0.19")
    with pytest.raises(machine.RefusedError) as caught:
        machine.chosen(needed, {}.get, files, (3, 12), Path("wheels"))
    told = str(caught.value)
    assert "expected pyzmq>=26, msgspec>=0.19 in" in told
    assert "none of them in wheels, where pyzmq-27-cp311-cp311-manylinux_2_28_x86_64.whl is for another Python" in told
    assert re.search(
        r"python3 -m pip download .*--python-version 3\.12 .*--dest wheels 'pyzmq>=26' 'msgspec>=0.19'", told
    )


@pytest.mark.parametrize("version", [None, "0.8.1", "0.13.0"])
def test_a_jax_that_is_not_allowed_is_refused(version: str | None) -> None:
    needed = [machine.Requirement("jax", ((">=", "0.9"), ("<", "0.13")))]
    with pytest.raises(machine.RefusedError, match=rf"expected jax>=0\.9,<0\.13, found {version or 'none'}, in "):
        machine.check_base(needed, {"jax": version}.get)
    machine.check_base(needed, {"jax": "0.11.2"}.get)


def test_a_card_of_which_too_little_is_free_is_refused() -> None:
    told = "0, NVIDIA H100 80GB HBM3, 81559, 80995, 580.159.04\n1, NVIDIA H100 80GB HBM3, 81559, 1024, 580.159.04\n"
    first, second = machine.card_of(told, "0"), machine.card_of(told, "1")
    assert (first.name, first.driver, first.total_bytes) == ("NVIDIA H100 80GB HBM3", "580.159.04", 81559 << 20)
    machine.check_memory(first)
    machine.check_memory(machine.card_of("No devices were found\n", "0"))  # Not known: it is tried.
    with pytest.raises(machine.RefusedError, match=r"expected 24 GB of memory that is free, found 1\.1 GB free of 85"):
        machine.check_memory(second)


def test_wheels_that_are_too_large_together_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders: list[list[str]] = []

    def pip(doing: str, arguments: list[str]) -> str:
        orders.append(list(arguments))
        for text in arguments if "download" in arguments else []:
            if "==" in text:
                (tmp_path / f"{text.replace('==', '-')}-py3-none-any.whl").write_bytes(bytes(3_000_000))
        found = {"numba": "0.68", "llvmlite": "0.50", "click": "8", "jaxlib": "0.11", "msgspec": "0.22"}
        return json.dumps({"install": [{"metadata": {"name": n, "version": v}} for n, v in found.items()]})

    monkeypatch.setattr(machine, "_pip", pip)
    files = machine.fetch_wheels(tmp_path, "3.12", ["numba", "llvmlite"], 7.0)
    assert [path.name.split("-")[0] for path in sorted(files)] == ["click", "msgspec"]
    assert not {"numba>=0.61", "jax", "scipy>=1.13"} & set(orders[0])
    with pytest.raises(machine.RefusedError, match=r"expected at most 5 MB, found 6\.0 MB, "):
        machine.fetch_wheels(tmp_path, "3.12", ["numba", "llvmlite"], 5.0)


# -- what is refused, by the command -----------------------------------------------------------------------------------


def on_a_gpu(*options: str, status: int, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHON": sys.executable, **environment}
    command = ["bash", str(BENCH / "on_a_gpu.sh"), *options]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.process
def test_what_does_not_suffice_is_one_message_and_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "ids.bin").write_bytes(bytes(100))
    out = tmp_path / "out"
    for options, told in (
        (
            (),
            "Measuring on a GPU: expected an NVIDIA GPU, and jax with its plugin for CUDA, found none that jax can use",
        ),
        (("--tiny", "--data", f"{tmp_path}/empty"), f"expected text or tokens in {tmp_path}/empty, found no file"),
        (("--tiny", "--data", f"{tmp_path}/tokens"), f"expected text, found token ids in {tmp_path}/tokens/ids.bin"),
        (("--tiny", "--wheels", f"{tmp_path}/none"), f"expected a folder of wheels, found none at {tmp_path}/none"),
        (("--tiny", "--minutes", "0.5"), "Reading --minutes: expected at least 1, found 0.5"),
    ):
        done = on_a_gpu(*options, "--out", str(out), status=2, JAX_PLATFORMS="cpu")
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 2, done.stderr
        assert not done.stdout
        assert not out.exists()


# -- figures -----------------------------------------------------------------------------------------------------------

MACHINE: dict[str, Any] = {
    "step": "machine",
    "card": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 85_520_809_984,
    "driver": "580.159.04",
    "cores": 16,
    "python": "3.12.3",
    "versions": {"jax": "0.11.2", "jaxlib": "0.11.2"},
    "commit": "0123456789abcdef",
    "sources": "f" * 32,
    "is_tiny": False,
}
PAIR = {"step": "learner", "bare_steps_per_second": 10.0, "steps_per_second": 9.8}
CELL = {"step": "line", "cell": "M=2", "gap": 0.02, "gap_percent": 1.0, "published_percent": 0.7}
LINES: list[dict[str, Any]] = [
    MACHINE,
    {"step": "learner", "event": "begun"},
    {**PAIR, "ratio": 0.98},
    {**PAIR, "ratio": 0.96},
    {**PAIR, "ratio": 0.99},
    {"step": "learner", "event": "ended", "state": "done", "seconds": 100.0, "error": None},
    {"step": "exchange", "event": "begun"},
    {"step": "exchange", "format": "int4", "values": 9, "bytes": 5, "equal": True, "device_ms": 2.0, "cpu_ms": 8.0},
    {"step": "exchange", "event": "ended", "state": "failed", "seconds": 9.0, "error": "the rest"},
    {"step": "line", "event": "begun"},
    {**CELL, "seed": 0, "loss": 2.0},
    {**CELL, "seed": 1, "loss": None},
]


def test_figures_are_medians_with_ranges_and_null_where_nothing_was_reached() -> None:
    told = figures.figures(LINES)
    assert (told["card"], told["versions"]["jax"], told["commit"]) == (MACHINE["card"], "0.11.2", MACHINE["commit"])
    steps = told["steps"]
    assert steps["learner"]["figures"]["ratio"] == {"median": 0.98, "min": 0.96, "max": 0.99, "count": 3}
    assert (steps["learner"]["state"], steps["exchange"]["state"], steps["exchange"]["error"]) == (
        "done",
        "failed",
        "the rest",
    )
    assert steps["exchange"]["figures"]["int4"]["equal"] is True
    assert steps["exchange"]["figures"]["bf16"] == {"equal": None, **dict.fromkeys(figures.OF_FORMAT)}
    assert steps["line"]["state"] == "cut off"  # It has begun, and there the lines end.
    assert steps["line"]["figures"]["M=2"]["seeds"] == [0]
    assert steps["line"]["figures"]["M=4"] == {"seeds": [], **dict.fromkeys(figures.OF_CELL)}
    for step in ("memory", "kill"):
        assert steps[step] == {
            "state": "not reached",
            "seconds": None,
            "error": None,
            "figures": dict.fromkeys(figures.KEYS[step]),
        }


def test_a_step_that_is_carried_out_again_begins_anew_and_the_long_one_goes_on() -> None:
    again = [{"step": "learner", "event": "begun"}, {**PAIR, "ratio": 0.5}]
    assert figures.figures([*LINES, *again])["steps"]["learner"]["figures"]["ratio"]["count"] == 1
    first = [
        {"step": "long", "event": "begun"},
        {**CELL, "step": "long", "cell": "data-parallel", "seed": 0, "loss": 1.5},
    ]
    second = [{"step": "long", "event": "begun"}, {**CELL, "step": "long", "cell": "M=4", "seed": 0, "loss": 1.6}]
    found = figures.figures([*LINES, *first, *second])["steps"]["long"]["figures"]
    assert [found[name]["loss"]["median"] for name in ("data-parallel", "M=4")] == [1.5, 1.6]


def test_every_figure_has_a_row() -> None:
    rows = {name: text for name, _, text in figures.rows(figures.figures(LINES))}
    assert rows["a learner inside a run / its bare loop"] == "0.980 (0.960 to 0.990); 9.80 of 10.00 steps a second"
    assert rows["peak memory: predicted / measured"] == "not reached"
    assert rows["a fragment in int4, from the device"] == "the same bits; 2.0 ms, by the CPU 8.0 ms"
    assert rows["a fragment in bf16, from the device"] == "failed"
    assert rows["4.9 million parameters, M=2: loss in nats a byte"] == (
        "2.0000; +1.00 % behind data-parallel, published +0.7 %"
    )
    assert rows["26 million parameters, M=4: loss in nats a byte"] == "not reached"


def test_a_folder_has_the_figures_of_one_card_and_tree(tmp_path: Path) -> None:
    machine = {name: value for name, value in MACHINE.items() if name != "step"}
    figures.check_folder(tmp_path / "out", machine)
    (tmp_path / "out" / figures.LINES).write_text(json.dumps(MACHINE) + "\n")
    figures.check_folder(tmp_path / "out", machine)
    for name, value in (("card", "NVIDIA H200"), ("sources", "0" * 32)):
        with pytest.raises(RefusedError, match=f"found those of {name}"):
            figures.check_folder(tmp_path / "out", {**machine, name: value})


# -- documents ---------------------------------------------------------------------------------------------------------


def clone_of_documents(folder: Path) -> None:
    for name in figures.PLACES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        page = (ROOT / name).read_text()
        (folder / name).write_text(figures.rewritten(page, figures.text_of([], figures.SENTENCE), name))


def test_one_command_keeps_the_figures_and_writes_them_into_the_documents(tmp_path: Path) -> None:
    clone_of_documents(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in figures.PLACES}
    assert all(figures.NOTHING in page for page in before.values())
    (tmp_path / "gpu.json").write_text(json.dumps(figures.figures(LINES)))
    assert figures.keep_call(tmp_path / "gpu.json", tmp_path).name == "nvidia-h100-80gb-hbm3.json"
    assert figures.into_documents(tmp_path) == list(figures.PLACES)
    assert figures.into_documents(tmp_path) == []
    for name, page in before.items():
        after = (tmp_path / name).read_text()
        assert "NVIDIA H100 80GB HBM3 of 86 GB (Python 3.12.3, jax 0.11.2" in " ".join(after.split())
        assert ("| a learner inside a run / its bare loop | 0.97 | 0.980" in after) == (figures.PLACES[name] == "table")
        new = set(after.splitlines()) - set(page.splitlines())
        assert all(len(line) <= 120 or line.startswith("|") for line in new)
        assert figures.rewritten(after, figures.NOTHING) == page


def test_a_sentence_names_what_was_measured_and_what_was_not_and_the_ratio() -> None:
    card: dict[str, Any] = {"figures": figures.figures(LINES), "by_hand": [], "several": ""}
    measured, _, left = figures.text_of([card], figures.SENTENCE).partition("Not measured in that call: ")
    names = {step: (text in measured, text in left) for step, text in figures.IN_WORDS.items()}
    assert set(names) == set(figures.STEPS)
    assert {step for step, (is_measured, _) in names.items() if is_measured} == {"learner", "exchange", "line"}
    assert {step for step, (_, is_left) in names.items() if is_left} == {"torch", "memory", "kill", "long"}
    assert "0.980 (0.960 to 0.990) in jax, and a share that was not measured in PyTorch" in left
    card["by_hand"] = [{"figure": "a ratio", "measured": ".860", "call": "once", "ratio_of": "torch"}]
    assert ".860 in PyTorch (by hand)" in figures.text_of([card], figures.SENTENCE)
    assert "| a ratio (once) | - | .860 |" in figures.text_of([card], figures.TABLE)
    for each in card["figures"]["steps"].values():
        each["figures"] = {"ratio": figures.spread([1.0])}
    assert "Not measured" not in figures.text_of([card], figures.SENTENCE)


def test_a_later_call_keeps_what_was_measured_by_hand_and_the_newest_card_comes_first(tmp_path: Path) -> None:
    told = figures.figures(LINES)
    path = figures.keep({**told, "at": "2026-01-01"}, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "by_hand": [{"figure": "a"}]}))
    figures.keep({**told, "at": "2026-02-01"}, tmp_path)
    figures.keep({**told, "card": "Other", "at": "2026-03-01"}, tmp_path)
    first, second = figures.kept(tmp_path)
    assert (first["figures"]["card"], second["figures"]["at"], second["by_hand"]) == (
        "Other",
        "2026-02-01",
        [{"figure": "a"}],
    )


def test_pages_say_what_is_kept_and_nothing_else_of_gpus() -> None:
    cards = figures.kept()
    for name, kind in figures.PLACES.items():
        page = (ROOT / name).read_text()
        assert figures.rewritten(page, figures.text_of(cards, kind), name) == page, "python -m tests.bench.gpu_figures"
    ratios = [figures._ratios(card) for card in cards]
    readme = figures.told_in((ROOT / "README.md").read_text())
    assert all(each in readme for each in ratios)


def test_no_page_says_more_of_gpus_than_the_common_sentence() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*/*.md")):
        if page.parent.name != "decisions":
            text = " ".join(page.read_text().split())
            assert not re.search(
                r"(?i)\b(no|none|nothing) [\w ]*\b(has|was|were) [\w ]*\b(run )?(on|of) a GPU", text
            ), page


def test_figures_of_a_cpu_or_none_are_in_no_document(tmp_path: Path) -> None:
    clone_of_documents(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in figures.PLACES}
    refused = machine.RefusedError
    for lines in ([{**MACHINE, "is_tiny": True, "card": "cpu"}, *LINES[1:]], []):
        (tmp_path / "gpu.json").write_text(json.dumps(figures.figures(lines)))
        with pytest.raises(refused, match="expected figures of a GPU"):
            figures.keep_call(tmp_path / "gpu.json", tmp_path)
    (tmp_path / "gpu.json").write_text("{}")
    with pytest.raises(refused, match=r"expected gpu\.json of on_a_gpu\.sh"):
        figures.keep_call(tmp_path / "gpu.json", tmp_path)
    with pytest.raises(refused, match="expected one marked place, found 0"):
        figures.rewritten("# A page\n", "text")
    assert before == {name: (tmp_path / name).read_text() for name in figures.PLACES}
    assert figures.kept(tmp_path) == []


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench whose steps are the files of a folder."""
    monkeypatch.setattr(steps, "draw", lambda bench: None)
    for name in ("steps", "scratch", "out"):
        (tmp_path / name).mkdir()

    def command(self: Any, step: str, out: Path, seconds: float) -> list[str]:
        return [step, str(out)]

    monkeypatch.setattr(steps.Bench, "command", command)
    return steps.Bench(
        tmp_path / "out",
        tmp_path / "scratch",
        {**os.environ, "PYTHONPATH": str(tmp_path / "steps")},
        None,
        True,
        time.monotonic() + 3600,
    )


WRITING = """
import subprocess, sys
from pathlib import Path
out = Path(sys.argv[1])
def write(text):
    with out.open("a") as stream:
        stream.write(text)
"""


def written(bench: Any, step: str, text: str) -> None:
    (bench.scratch.parent / "steps" / f"{step}.py").write_text(WRITING + text)


def lines_of(bench: Any, step: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in (bench.folder / "gpu.jsonl").read_text().splitlines()]
    return [line for line in told if line["step"] == step]


@pytest.mark.process
def test_a_step_that_fails_is_recorded_and_the_next_one_begins(bench: Any) -> None:
    written(bench, "learner", "write('{\"ratio\": 1.0}\\n{\"rat'); sys.exit('it broke')")
    written(bench, "memory", "write('{\"ratio\": 2.0}\\n')")
    assert not steps.carry_out(bench, ("learner", "memory"))
    told = json.loads((bench.folder / "gpu.json").read_text())["steps"]
    assert (told["learner"]["state"], told["learner"]["error"]) == ("failed", "it broke")
    assert told["learner"]["figures"]["ratio"]["count"] == 1  # A line that is torn is none.
    assert (told["memory"]["state"], told["memory"]["figures"]["ratio"]["median"]) == ("done", 2.0)
    assert "it broke" in (bench.folder / "log.txt").read_text()


@pytest.mark.process
def test_what_was_done_is_not_done_again_and_what_was_cut_off_is(bench: Any) -> None:
    written(bench, "learner", "write('{\"ratio\": 1.0}\\n')")
    written(bench, "memory", "write('{\"ratio\": 2.0}\\n'); sys.exit('it broke')")
    written(bench, "torch", f"print('no such package', file=sys.stderr); sys.exit({LACKS_STATUS})")
    assert not steps.carry_out(bench, ("learner", "memory", "torch"))
    assert set(steps.done(bench.folder)) == {"learner"}
    for path in bench.scratch.iterdir():  # Each call has its own.
        path.unlink()
    written(bench, "learner", "sys.exit('it was done again')")
    written(bench, "memory", "write('{\"ratio\": 3.0}\\n')")
    assert steps.carry_out(bench, ("learner", "memory", "torch"))
    told = json.loads((bench.folder / "gpu.json").read_text())["steps"]
    states = {step: told[step]["state"] for step in ("learner", "memory", "torch")}
    assert states == {"learner": "done", "memory": "done", "torch": figures.LACKS}
    assert [told[step]["figures"]["ratio"]["median"] for step in ("learner", "memory")] == [1.0, 3.0]
    (bench.folder / steps.STATE).write_text("{torn")
    assert steps.done(bench.folder) == {}


def test_each_step_has_a_limit_of_its_own_in_the_order_of_worth(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict[str, float]()
    monkeypatch.setattr(steps, "_carry_out", lambda bench, step, seconds: given.setdefault(step, seconds) > 0)
    assert steps.carry_out(bench._replace(is_tiny=False), tuple(steps.LIMITS))
    assert list(given.items()) == list(steps.LIMITS.items())
    assert list(steps.LIMITS)[:3] == ["learner", "torch", "kill"]
    given.clear()
    steps.carry_out(bench._replace(is_tiny=False, until=time.monotonic() + 100), ("learner",))
    assert 80 < given["learner"] < 100 - steps.RESERVE_SECONDS + 1


@pytest.mark.long
@pytest.mark.process
def test_a_step_that_runs_past_its_time_is_ended_with_all_that_it_started(bench: Any) -> None:
    """A daemon, stopped, in a session of its own, as a run leaves it behind."""
    daemon = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    written(
        bench,
        "kill",
        f"started = subprocess.Popen([sys.executable, '-c', {daemon!r}], start_new_session=True)\n"
        'write(\'{"killed": "%d"}\\n\' % started.pid)\n'
        "import signal; signal.pause()\n",
    )
    steps.adopt_descendants()
    assert steps._run(bench, "kill", 2.0) == ("cut off", "it ran past its 2 s")
    (line,) = lines_of(bench, "kill")
    assert not Path(f"/proc/{line['killed']}").exists()


@pytest.mark.process
def test_a_step_without_time_is_not_begun(bench: Any) -> None:
    written(bench, "memory", "write('{\"ratio\": 2.0}\\n')")
    late = bench._replace(until=time.monotonic() + 5)
    assert not steps.carry_out(late, ("memory",))
    (line,) = lines_of(bench, "memory")
    assert (line["state"], line["error"]) == ("not reached", "0 s were left for it")


# -- all of it ---------------------------------------------------------------------------------------------------------


def tree_of(folder: Path) -> Path:
    """A copy of the tree, as it is carried to a machine: without its history, and what was built there."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("runtime", "ops", "programs", "tests/bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "setup.cfg", folder)
    return folder


def bare_python(folder: Path) -> Path:
    """A Python that has what this one has, but for isthmus and what a bare machine lacks."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in metadata.distributions():
        if found.name.lower() in (*LACKING, "isthmus", "pip", "setuptools") or not found.files:
            continue
        for top in {path.parts[0] for path in found.files if path.parts[0] not in ("..", "__pycache__")}:
            there = Path(str(found.locate_file(top)))
            if there.exists() and not (packages / top).exists():
                (packages / top).symlink_to(there)
    return folder / "bin" / "python"


def wheel_again(name: str, folder: Path) -> None:
    """The wheel of an installed distribution, packed again."""
    found = metadata.distribution(name)
    tags = re.findall(r"^Tag: (.*)$", found.read_text("WHEEL") or "", re.MULTILINE)
    pythons, abis, platforms = (sorted({tag.split("-")[part] for tag in tags}) for part in range(3))
    file = f"{name}-{found.version}-{'.'.join(pythons)}-{'.'.join(abis)}-{'.'.join(platforms)}.whl"
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path in found.files or ():
            if (
                path.parts[0] != ".."
                and "__pycache__" not in path.parts
                and path.name not in ("INSTALLER", "REQUESTED")
            ):
                archive.write(str(found.locate_file(path)), str(path))


@pytest.mark.long
@pytest.mark.process
def test_all_of_it_tiny_on_a_bare_python_without_a_network(tmp_path: Path) -> None:
    tree, python = tree_of(tmp_path / "tree"), bare_python(tmp_path / "bare")
    (tmp_path / "wheels").mkdir()
    for name in LACKING:
        wheel_again(name, tmp_path / "wheels")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP"))}
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PIP_CONFIG_FILE": os.devnull}
    environment |= {"PYTHON": str(python), **nowhere}
    command = ["bash", "tests/bench/on_a_gpu.sh", "--tiny", "--out", str(tmp_path / "out"), "--minutes", "60"]

    def call(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )

    without = call()
    assert without.returncode == 2
    assert re.search(r"expected pyzmq>=\S+, msgspec>=\S+, setproctitle>=\S+ in", without.stderr)
    assert len(without.stderr.splitlines()) == 2
    wheels = ("--wheels", str(tmp_path / "wheels"))
    with (tmp_path / "first.txt").open("w") as file:
        cut = subprocess.Popen([*command, *wheels], cwd=tree, env=environment, stdout=file, stderr=file)
        wait_for(lambda: (tmp_path / "out" / "state.json").exists() or cut.poll() is not None)
        cut.terminate()
        assert cut.wait(PATIENCE) == 1, (tmp_path / "first.txt").read_text()
    begun = [json.loads(line) for line in (tmp_path / "out" / "gpu.jsonl").read_text().splitlines()]
    done = call(*wheels)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "out" / "log.txt").read_text()[-3000:]
    told = json.loads((tmp_path / "out" / "gpu.json").read_text())
    steps = told["steps"]
    assert {step: each["state"] for step, each in steps.items()} == {
        **dict.fromkeys(("learner", "memory", "exchange", "kill", "line"), "done"),
        "torch": figures.LACKS if importlib.util.find_spec("torch") is None else "done",
        "long": "not reached",
    }
    again = [json.loads(line) for line in (tmp_path / "out" / "gpu.jsonl").read_text().splitlines()][len(begun) :]
    assert not [line for line in again if line["step"] == "learner"]  # What was done before the cut is not done again.
    assert (told["card"], told["is_tiny"]) == ("cpu", True)
    assert told["sources"]
    assert steps["learner"]["figures"]["ratio"]["median"] > 0
    assert steps["memory"]["figures"]["predicted_bytes"]["median"] > steps["memory"]["figures"]["graph_bytes"]["median"]
    assert steps["memory"]["figures"]["measured_bytes"] is None  # A CPU does not count.
    assert {form: each["equal"] for form, each in steps["exchange"]["figures"].items()} == dict.fromkeys(
        ("float32", "bf16", "int8", "int4", "int2", "int1"), True
    )
    assert 0 < steps["kill"]["figures"]["merged_share"]["median"] <= 1
    assert steps["kill"]["figures"]["merged_again_seconds"]["median"] > 0
    trained = {cell for cell, each in steps["line"]["figures"].items() if each["seeds"] == [0]}
    assert {"data-parallel", "M=1", "M=4"} <= trained
    page = (tmp_path / "out" / "gpu.html").read_text()
    assert "they say that it works, and nothing of a GPU" in page
    assert not re.search(r'(?:href|src)="', page)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "gpu.html",
        "gpu.json",
        "gpu.jsonl",
        "log.txt",
        "state.json",
        "xla",
    ]
