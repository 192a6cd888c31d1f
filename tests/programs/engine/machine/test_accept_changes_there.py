"""The run of a cluster goes on with other files: all of its machines begin anew from the snapshot and have files that
are alike, and what differs from before is named, noted and replayed."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import uvloop
from typer.testing import Result

from isthmus.programs.engine.cluster.handover import MachineSite, Sites
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import daemon, own_run
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.names import DaemonRun
from isthmus.programs.engine.request import sources, spec
from isthmus.programs.engine.run.daemon_process import _tell_if_changed
from isthmus.programs.engine.run.resume import again
from isthmus.programs.engine.snapshots.snapshot_files import has_snapshot
from isthmus.runtime.daemon.home_daemon import GIVEN_UP, JOURNAL, journal_of, reopen
from isthmus.runtime.daemon.ledger import Ledger
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.supervision.home_events import Journal
from isthmus.runtime.system.processes import boot_id, status_name
from isthmus.runtime.wire.control_messages import decode, encode
from tests.patience import PATIENCE
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place, fake_daemon
from tests.programs.engine.machine.owner import Owner
from tests.programs.engine.snapshots.keep_format import TASK, copied

LEARNER = 'roles = ["learner"]\nislands = 1'
WAS, NOW = "time.sleep(", "time.sleep(1.1 * "


@pytest.fixture
def of_cluster(tmp_path: Path) -> Path:
    """The folder of a run of a cluster that was set aside, and whose task was edited since."""
    folder = copied(3, "decoupled-diloco", tmp_path)
    task = tmp_path / TASK
    run_spec = spec.load(folder)
    sources.write(folder, sources.of_now(run_spec.job.program, f"{task}:task"))
    sites = Sites("alpha", {"alpha": MachineSite("alpha", "tcp://127.0.0.1:7400")}, {}, "")
    (folder / spec.CLUSTER).write_text(json.dumps(sites.as_data()))
    task.write_text(f"{task.read_text()}# Mended.\n")
    return folder


def test_what_differs_is_found_without_an_import_and_the_form_is_named(of_cluster: Path) -> None:
    assert [(each.part, Path(each.file).name) for each in sources.changed(of_cluster) if each.part != "isthmus"] == [
        ("task", TASK)
    ]
    before = {path: path.read_bytes() for path in of_cluster.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as error:
        again(of_cluster, "Going on", 0)
    [fault] = error.value.faults
    assert TASK in fault.found
    assert f"isthmus train --resume {of_cluster} --cluster FILE --accept-changes" in fault.remedy
    assert {path: path.read_bytes() for path in of_cluster.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("file", "is_of_graph"),
    [("ops/syncer/merge.py", True), ("programs/decoupled.py", True), ("programs/wings/why/replay.py", False)],
)
def test_files_of_isthmus_by_which_hosts_would_refuse_to_begin_are_found_before_and_others_are_told(
    of_cluster: Path, file: str, capfd: pytest.CaptureFixture[str], *, is_of_graph: bool
) -> None:
    known = sources.load(of_cluster)
    assert known is not None
    own = {**known.files["isthmus"], file: "0" * 16}
    sources.write(of_cluster, sources.Sources(known.isthmus, {"isthmus": own}, known.fragments))
    assert [each.file for each in sources.changed(of_cluster)] == [file]
    _tell_if_changed(of_cluster)
    assert file in capfd.readouterr().err
    if is_of_graph:
        with pytest.raises(ConfigError) as error:
            sources.check_unaltered(of_cluster, "Going on")
        assert file in error.value.faults[0].found
    else:
        sources.check_unaltered(of_cluster, "Going on")


@pytest.fixture
def alpha(tmp_path: Path) -> Iterator[MachineDaemon]:
    """The next daemon of the home, which is not served."""
    loop = uvloop.new_event_loop()
    config = MachineConfig(runs=tmp_path)
    made = MachineDaemon(loop, "alpha", "tcp://127.0.0.1:*", config, None, tmp_path / "state", Owner())
    yield made
    made.close()
    loop.close()


@pytest.mark.parametrize("are_here", [False, True])
def test_the_next_daemon_leaves_a_run_whose_files_are_others_whether_hosts_live_or_not(
    of_cluster: Path, alpha: MachineDaemon, monkeypatch: pytest.MonkeyPatch, *, are_here: bool
) -> None:
    monkeypatch.setattr(daemon, "has_hosts", lambda folder: are_here)
    alpha.adopt(DaemonRun(str(of_cluster), is_watched=False))
    assert alpha.folders == []
    assert alpha.neighbours.set_aside == {spec.load(of_cluster).run}


@pytest.mark.parametrize("file", [spec.SPEC, spec.CLUSTER, spec.SOURCES])
def test_a_run_with_a_damaged_file_is_left_and_the_daemon_goes_on(
    of_cluster: Path, alpha: MachineDaemon, file: str
) -> None:
    whole = (of_cluster / file).read_bytes()
    (of_cluster / file).write_bytes(whole[: len(whole) // 2])
    alpha.adopt(DaemonRun(str(of_cluster), is_watched=False))
    assert alpha.folders == []


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--resume", "run", "--accept-changes"),
        ("train", "--run-dir", "run", "--cluster", "cluster.toml", "--resume-or-start", "--accept-changes"),
        ("resume", "run", "--cluster", "cluster.toml", "--accept-changes"),
        ("train", "--resume", "gs://bucket/run", "--cluster", "cluster.toml", "--accept-changes"),
        ("daemon", "--name", "alpha", "--listen", "tcp://127.0.0.1:0", "--accept-changes"),
    ],
)
def test_a_door_that_cannot_have_it_names_the_one_that_can(
    of_cluster: Path, typed: Callable[..., Result], words: tuple[str, ...]
) -> None:
    (of_cluster.parent / "cluster.toml").write_text('[[machine]]\nname = "alpha"\naddress = "tcp://127.0.0.1:7400"\n')
    before = sorted(of_cluster.parent.rglob("*"))
    told = typed(of_cluster.parent, *words)
    assert told.exit_code == 2
    assert "isthmus train --resume" in told.stderr or "isthmus resume" in told.stderr
    assert sorted(of_cluster.parent.rglob("*")) == before


@pytest.mark.parametrize("wrong", ["other folder", "other machine", spec.SPEC, spec.CLUSTER, spec.SOURCES])
def test_a_run_that_goes_on_elsewhere_is_of_another_machine_or_damaged_is_refused_as_it_is(
    of_cluster: Path, typed: Callable[..., Result], wrong: str
) -> None:
    """Its folder was copied, or is on a disk that other machines see, too."""
    other, runs = str(of_cluster.parent / "other"), list[dict[str, str]]()
    boot = "another" if wrong == "other machine" else boot_id().decode()
    if (of_cluster / wrong).exists():
        whole = (of_cluster / wrong).read_bytes()
        (of_cluster / wrong).write_bytes(whole[: len(whole) // 2])
    elif wrong == "other folder":
        runs.append({"run": other, "name": spec.load(of_cluster).run, "outcome": "running"})
    before = {path: path.read_bytes() for path in of_cluster.glob("*.[jt]*") if path.is_file()}
    machine = {"type": "machine", "name": "alpha", "root": str(of_cluster.parent), "runs": runs, "boot": boot}
    with fake_daemon(**decode(encode(machine))) as address:
        file = of_cluster.parent / "cluster.toml"
        file.write_text(f'[[machine]]\nname = "alpha"\naddress = "{address}"\n')
        told = typed(of_cluster.parent, "train", "--resume", "run", "--cluster", str(file), "--accept-changes")
    assert told.exit_code == 2
    assert {"other folder": other, "other machine": "the machine of the daemon 'alpha'"}.get(
        wrong, wrong
    ) in told.stderr
    assert {path: path.read_bytes() for path in of_cluster.glob("*.[jt]*") if path.is_file()} == before


def test_machines_that_had_joined_have_left_and_what_was_given_up_is_tried_again(tmp_path: Path) -> None:
    places = ("learner/1", "beta"), ("learner/2", "gamma"), ("learner/3", "delta")
    retired = ("learner/1", GIVEN_UP), ("learner/3", "expelled")
    before = Journal(outcome="stopped", is_stopping=True, machines=places, retired=retired, away=("delta",))
    with closing(Ledger(tmp_path)) as ledger:
        ledger.note(JOURNAL, msgspec.msgpack.encode(before))
    reopen(tmp_path, lambda replica: False, ["gamma"])
    journal = journal_of(tmp_path)
    assert journal is not None
    assert (journal.outcome, journal.is_stopping, journal.machines) == ("running", False, places)
    assert set(journal.away) == {"gamma", "delta"}
    assert dict(journal.retired) == {"learner/2": "left", "learner/3": "expelled"}


@pytest.mark.process
def test_the_command_that_prepares_a_run_ends_with_its_daemon(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next daemon has one of its own; of two that hand a run over one would be refused, and end that daemon."""
    slow, told = place.folder / "slow", list[str]()
    slow.write_text("#!/bin/sh\ntouch begun\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(own_run, "sys", SimpleNamespace(executable=str(slow)))
    own = own_run.OwnRun(Path("cluster.toml"), None, goes_on=True)
    preparing = threading.Thread(target=lambda: told.append(own._hand_over("--resume", "run")))
    preparing.start()
    place.wait_for((place.folder / "begun").exists)
    own.close()
    preparing.join(PATIENCE)
    assert told == [status_name(-signal.SIGTERM)]


@pytest.mark.process
@pytest.mark.long
def test_a_loader_is_mended_between_two_parts_of_a_run_of_two_machines(place: Place) -> None:
    machines = Machines(place, "alpha", "beta")
    cluster = machines.cluster({"alpha": "islands = 1", "beta": LEARNER})
    more = "--set", "run.snapshot_every_seconds=1"
    done = place.call(*place.training("run", "--cluster", cluster, "--detach", *more))
    assert done.returncode == 0, done.stderr
    folder = place.folder / "run"
    place.wait_for(lambda: has_snapshot(folder))
    place.wait_for_merges("run", 20)
    address = machines.daemons["alpha"].address
    assert machines.daemons["alpha"].end(signal.SIGTERM) == 75
    before = place.hosts()  # Beta's learner steps on.
    task = place.folder / "paced.py"
    assert WAS in task.read_text()
    task.write_text(task.read_text().replace(WAS, NOW))

    machines.start("alpha", address)
    machines.here("alpha")
    assert "paced.py" in machines.daemons["alpha"].wait_for_line("leaves ")
    machines.daemons["alpha"].wait_for_line("--accept-changes")
    refused = place.call("train", "--resume", "run", "--cluster", cluster)
    assert refused.returncode == 2
    assert "--accept-changes" in refused.stderr
    more = place.call("train", "--resume", "run", "--cluster", cluster, "--accept-changes", "--learners", "3")
    assert (more.returncode, "machines bring learners" in more.stderr) == (2, True)
    done = place.call("train", "--resume", "run", "--cluster", cluster, "--accept-changes", "--detach")
    assert done.returncode == 0, done.stderr
    assert f"changed: task: {task}" in done.stdout
    merges = len(machines.merges())
    place.wait_for(lambda: any(merge["voters"] == [0, 1] for merge in machines.merges()[merges:]))
    assert not before.keys() & place.hosts().keys()
    began = {line["learner"]: line["began"][0] for line in machines.metrics() if line.get("began")}
    assert began == {0: "copy", 1: "copy"}  # The moments that each machine had kept.
    assert place.call("stop", "run").returncode == 0
    machines.daemons["alpha"].wait_for_line("finished")
    summary = place.summary("run")
    accounts_add_up(summary)
    [alteration] = summary["alterations"]
    assert [(each["part"], each["file"]) for each in alteration["files"]] == [("task", str(task))]
    replayed = place.call("replay", "run", "--json")
    told = json.loads(replayed.stdout)
    assert (replayed.returncode, told["identical"]) == (0, True)
    assert [each["outer_steps"] for each in told["alterations"]] == [alteration["outer_steps"]]
