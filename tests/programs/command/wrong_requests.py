"""Wrong requests of every section of every file, and what is said of each.

    python -m tests.programs.command.wrong_requests   # write the faults that there are now to wrong_requests.json

The faults were recorded before settings were declared once, and stay as they were: `test_wrong_requests.py`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from isthmus.programs import settings
from isthmus.programs.command import commands
from isthmus.programs.command.commands import WRONG
from isthmus.programs.engine.cluster import cluster_file, machine_file
from isthmus.programs.wings.chaos import chaos_plan
from isthmus.runtime.errors import Fault, RequestError
from tests.command_line import app

RECORDED: Final = Path(__file__).with_suffix(".json")
HERE: Final = "FOLDER"
"""Stands for the folder of a request's files."""

COMMANDS: Final[tuple[str, ...]] = (
    # One value out of range, of each section.
    "--tokens 0",
    "--tokens 63",
    "--tokens many",
    "--seed -1",
    "--seed 9223372036854775808",
    "--learners 0",
    "--learners 17",
    "--learners 1.5",
    "--set run.slots_max=0",
    "--set run.slots_max=3",
    "--set run.local_batch=fast",
    "--set run.evaluate_on=gpu",
    "--set run.snapshot_every_seconds=0.01",
    "--set run.snapshot_every_seconds=86401",
    "--set run.snapshots=s3://",
    "--set run.tape_bytes=1",
    "--set run.processes=two",
    "--set run.processes=[0,1]",
    "--set run.home_away_seconds=4",
    "--set run.home_away_seconds=1e9",
    "--set run.devices_min=-1",
    "--set run.tokns=5",
    "--set program.fragments=0",
    "--set program.fragments=wide",
    "--set program.interval=0",
    "--set program.interval=often",
    "--set program.overlap=25",
    "--set program.overlap=-1",
    "--set program.quorum=5",
    "--set program.quorum=0",
    "--set program.grace=1",
    "--set program.late=never",
    "--set program.gamma=1",
    "--set program.gamma=0",
    "--set program.shards=99",
    "--set program.merge=mean",
    "--set program.alpha=0.5",
    "--set program.push=int3",
    "--set program.update=int3",
    "--set program.outer_lr=0",
    "--set program.outer_momentum=1",
    "--set program.qorum=1",
    "streaming-diloco --set program.interval=0 --set program.overlap=30",
    "streaming-diloco --set program.alpha=1.5 --set program.push=auto",
    "streaming-diloco --set program.fragments=99",
    "streaming-diloco --set program.interval=2 --set program.fragments=4",
    "diloco --set program.interval=10001 --set program.merge=mean --set program.outer_lr=-1",
    "diloco --set program.quorum=1",
    "data-parallel --set program.snapshot_seconds=0",
    "elastic-data-parallel --set program.snapshot_seconds=-1",
    "--set task.layers=0 --set task.width=-1",
    "--set task.width=65",
    "--set task.dtype=int8 --set task.optimizer=sgd --set task.token_dtype=uint8",
    "--set task.batch=0",
    "--set task.batch=[4,0]",
    "--set task.lr=0 --set task.warmup=1 --set task.weight_decay=-1 --set task.clip=0",
    "--set task.vocabulary=1 --set task.experts=-1 --set task.experts_slack=0 --set task.experts_balance=-1",
    "--set task.experts=2 --set task.experts_chosen=3",
    "--set task.tied=1 --set task.lyers=3",
    "--data /nowhere/at/all",
    # Several sections at once.
    "--tokens 0 --learners 99 --set run.slots_max=20 --set program.interval=0 --set task.layers=x",
    "--set run.seed=x --set program.gamma=high --set task.clip=low --run-dir /proc/none/here",
    "--tokens 0 --seed -1 --set run.tape_bytes=0 --set run.devices_min=-2 --set task.nothing=1",
    "--set program.gamma=2 --set program.quorum=9 --set program.shards=0 --set program.outer_lr=-1",
    "no-such-program --tokens 0",
    "--task nowhere.py:task --set task.layers=3",
    "--model giant --set run=3 --set other.key=1",
    "--learners 3 --set run.learners=4",
    "--transport tcp --tokens x",
    "--config wrong.toml",
    "--config odd.toml",
)
"""Options of `isthmus graph`, which prepares a request as `isthmus train` does."""

FILES: Final = {
    "wrong.toml": "[run]\ntokens = 'many'\nlearners = 0\nprogram = 3\n[program]\ninterval = 0\n[task]\nlayers = 0.5\n",
    "odd.toml": "run = 3\n[tusk]\nlayers = 1\n",
}

MACHINES: Final[tuple[str, ...]] = (
    "[programs]\nmodules = 'one'\n[keys]\nsecret = 3\n[runs]\nfolder = 'nowhere'\n",
    "[keys]\nadmitted = ['no.pub', 'also.pub']\nsecrt = 'x'\n",
    "[program]\nmodules = []\n",
    "runs = 3\n",
)
"""Texts of a machine.toml."""

CLUSTERS: Final[tuple[str, ...]] = (
    "[run]\ntokens = 1\n",
    "[[machine]]\naddress = 'here'\nislands = 0\ndevices = 0\n",
    "[[machine]]\nname = 'a'\naddress = 'tcp://127.0.0.1:1'\nislands = 'two'\nbandwith = '1 Gbit/s'\n",
    "[[machine]]\nname = 'a'\nbandwidth = '2 Gbit'\nmemory = '3'\ndevice = 'XPU'\nroles = 'learner'\n",
    "[[device]]\nkind = 'X'\nteraflops = 0\nprice_per_hour = -1\nmemory = 'much'\n[[machine]]\nname = 'a'\n",
    "[keys]\nsecret = 3\n[[machine]]\nname = 'a'\naddress = 'tcp://127.0.0.1:1'\n",
    "[[machine]]\nname = 'a'\nisland = 'x'\n[[machine]]\nname = 'a'\naddress = 'tcp://10.0.0.1:5'\n",
)
"""Texts of a cluster.toml."""

PLANS: Final[tuple[str, ...]] = (
    "machines = 0\n[[fault]]\nkind = 'kill'\nhost = 'learner/0'\nat = -1.0\n",
    "[[fault]]\nkind = 'kil'\nhost = 'learner/0'\nat = 1.0\n",
    "[[fault]]\nkind = 'kill'\nhost = 'learner/0'\nat = 1.0\nseconds = 3.0\n[random]\nseed = 1\n",
    "[[fault]]\nkind = 'slow'\nhost = 'learner/0'\nat = 1.0\nseconds = 0.0\nfactor = 1.0\n",
    "[[fault]]\nkind = 'lose'\nhost = 'syncer/0'\nat = 1.0\nshare = 1.0\n",
    "[[fault]]\nkind = 'clog'\nhost = 'machine/0'\nat = 1.0\nlatency = -0.1\nkbits = 4.0\n",
    "[random]\nseed = 1\ncount = 0\nmean_seconds = 0.0\nkinds = []\n",
    "[random]\nseed = 'x'\n[links]\nkbits = 3.0\n",
    "[links]\nkbits = [0.0]\nlatency = -1.0\n",
    "[random]\nkinds = ['lose']\nhosts = ['syncer/0']\n",
    "machines = 'two'\nrun = 3\n",
)
"""Texts of a plan of `isthmus chaos`."""


def all_faults() -> Iterator[tuple[str, list[list[str]]]]:
    """Each request, and its faults as lists of texts; a temporary folder is the working folder meanwhile."""
    with tempfile.TemporaryDirectory() as name, _within(Path(name)) as folder:
        for path, text in FILES.items():
            (folder / path).write_text(text)
        for line in COMMANDS:
            yield f"graph {line}", _plain(_of_command(["graph", *line.split()]), folder)
        for reads, texts in ((_machine, MACHINES), (cluster_file.read, CLUSTERS), (_plan, PLANS)):
            for text in texts:
                file = folder / "file.toml"
                file.write_text(text)
                file.chmod(0o600)
                yield text, _plain(_raised(reads, file), folder)


@contextmanager
def _within(folder: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


def _of_command(line: list[str]) -> Sequence[Fault]:
    """What is said of a command line; it must be wrong."""
    seen: list[Fault] = []
    with mock.patch.object(commands, "_complain", seen.extend):
        status = app(line, standalone_mode=False)
    if status != WRONG:
        raise AssertionError(f"accepted: {line}")
    return seen


def _raised(reads: Callable[[Path], Any], file: Path) -> Sequence[Fault]:
    try:
        reads(file)
    except RequestError as error:
        return error.faults
    raise AssertionError(f"accepted: {file.read_text()}")


def _machine(file: Path) -> Any:
    return machine_file.read(file)


def _plan(file: Path) -> Any:
    return chaos_plan.read(settings.read_file(file, "the plan", "Name a file."), str(file))


def _plain(faults: Sequence[Fault], folder: Path) -> list[list[str]]:
    return [[part.replace(str(folder), HERE) for part in fault] for fault in faults]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(dict(all_faults()), indent=1, ensure_ascii=False) + "\n")
