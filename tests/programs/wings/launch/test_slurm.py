"""What is submitted to Slurm, what squeue's rows mean, and what is refused; `tests/engines` has a real one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from isthmus.programs.wings.launch import slurm
from isthmus.programs.wings.launch.folder import Launch
from isthmus.programs.wings.launch.launch_file import LaunchTable
from isthmus.runtime.errors import ConfigError
from tests.programs.wings.launch.launch_request import launched, request

Answers = dict[str, tuple[int, str, str]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What commands of Slurm answer: status, standard output and error, by the first word."""
    given: Answers = {"sinfo": (0, "high\nlow\n", ""), "squeue": (0, "", ""), "sbatch": (0, "7\n", "")}

    def run(
        *words: str,
        text: str | None = None,
        folder: Path | None = None,
        holds: tuple[int, ...] = (),
        invitation: str = "",
    ) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, *given.get(words[0], (0, "", "")))

    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(slurm, "_run", run)
    monkeypatch.setattr(slurm.shutil, "which", lambda program: f"/usr/bin/{program}")
    return given


def scripts(**changes: object) -> tuple[str, str]:
    home, island = slurm._scripts(request(**changes))
    return home.text, island.text


def test_the_grace_and_ten_seconds_are_asked_for_and_jobs_are_requeued() -> None:
    for text in scripts(grace=45.5):
        assert "#SBATCH --requeue --signal=TERM@56\n" in text
        assert "--until-over --grace 45.5" in text
    home, island = scripts()
    assert "--array" not in home
    assert "--array=0-1" in island


def test_resources_go_to_both_and_devices_to_islands() -> None:
    table = LaunchTable(
        partition="low", cpus=3, memory="4G", time="1:00:00", devices="gpu:a100:4", extra="module load x"
    )
    home, island = scripts(table=table)
    common = "--partition=low --cpus-per-task=3 --mem=4G --time=1:00:00\n"
    assert f"#SBATCH --ntasks-per-node=1 --nodes=1 {common}" in home
    assert f"#SBATCH --ntasks-per-node=1 --array=0-1 --nodes=1 --gres=gpu:a100:4 {common}" in island
    assert home.index("#SBATCH --requeue") < home.index("\nmodule load x\n") < home.index("\nexport PATH")


def test_options_of_sbatch_stand_before_commands_and_devices_are_joined() -> None:
    """Slurm reads no option behind a command, and of two options for devices the last one only."""
    extra = 'module load x\n#SBATCH --account=mine -C "a b"  # why\n#SBATCH --gres=nvme:1 --exclusive\n'
    home, island = scripts(table=LaunchTable(devices="gpu:4", extra=extra))
    for text in (home, island):
        assert text.rindex("#SBATCH") < text.index("\nmodule load x\n")
        assert '\n#SBATCH --account=mine -C "a b"  # why\n#SBATCH --exclusive\n' in text
        assert text.count("--gres") == 1
    assert "--gres=nvme:1" in home
    assert "--gres=gpu:4,nvme:1" in island


@pytest.mark.parametrize(
    ("extra", "where", "remedy"),
    [
        ("#SBATCH --partition=high", ", --partition", "launch.partition"),
        ("#SBATCH -p high", ", --partition", "launch.partition"),
        ("#SBATCH --mem 5G", ", --mem", "launch.memory"),
        ("#SBATCH --job-name=x", ", --job-name", "Rename the file"),
        ("#SBATCH -Jx", ", --job-name", "Rename the file"),
        ("#SBATCH -a 0-3", ", --array", "--islands"),
        ("#SBATCH --no-requeue", ", --no-requeue", "Leave it out"),
        ("#SBATCH --comment=x", ", --comment", "Leave it out"),
        ("#SBATCH module load x", ", '#SBATCH module load x'", "lines of their own"),
        ("#SBATCH --account='x", ', "#SBATCH --account=\'x"', "quotes"),
    ],
)
def test_what_contradicts_the_scripts_is_refused_by_name(
    answers: Answers, tmp_path: Path, extra: str, where: str, remedy: str
) -> None:
    table = LaunchTable(partition="low", memory="4G", invite_by="env", extra=extra)
    (fault,) = slurm.ENGINE.faults(request(table=table), tmp_path)
    assert fault.action == f"Reading launch.extra{where}"
    assert remedy in fault.remedy
    with pytest.raises(ConfigError):
        scripts(table=table)
    assert scripts(table=LaunchTable(partition="high", extra="#SBATCH -p high"))


@pytest.mark.process
def test_steps_are_started_in_a_container_by_the_function_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "slurm.md").read_text()
    (function,) = [block for block in page.split('"""') if "srun() {" in block]
    for name in ("srun", "apptainer"):
        path = tmp_path / name
        path.write_text('#!/bin/sh\nprintf "%s|" "${0##*/}" "$@"; echo\nwhile [ "${1#-}" != "$1" ]; do shift; done\n')
        path.chmod(0o755)
    home, _ = scripts(table=LaunchTable(cpus=3, extra=function))
    assert home.index("srun() {") < home.index("srun --cpus-per-task=3 isthmus daemon")
    script = f"{function}\nsrun --cpus-per-task=3 bash -c 'x \"$@\"' 'a b' --grace 20"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    words = done.stdout.strip().split("|")[:-1]
    assert words[:4] == ["srun", "--cpus-per-task=3", "apptainer", "exec"]
    assert words[-6:] == ["bash", "-c", 'x "$@"', "a b", "--grace", "20"]
    assert f"{tmp_path},/scratch/data:/data" in words


def test_an_island_of_several_nodes_is_one_element() -> None:
    _, island = scripts(nodes_per_island=4)
    assert "--array=0-1 --nodes=4\n" in island
    assert '--island "$0" --name "$0-$SLURM_NODEID"' in island


def test_an_element_requeues_itself_alone() -> None:
    """The id of the last element's job is that of the whole array."""
    _, island = scripts()
    assert "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" in island


def test_scripts_are_sound_to_the_shell(tmp_path: Path) -> None:
    for text in (*scripts(modules=("mine",), table=LaunchTable(port=7400)), *scripts(nodes_per_island=2)):
        assert text.startswith("#!/bin/bash\n#SBATCH")
        assert "{" not in text.replace("${", "") or "import" in text


def test_rows_of_squeue_are_members_of_the_launch_whose_folder_they_work_in(answers: Answers, tmp_path: Path) -> None:
    launch = Launch.of("slurm", request(), tmp_path)
    rows = [
        f"9|demo-home|{tmp_path}|N/A|RUNNING|n0|(null)",
        f"10_1|demo-island|{tmp_path}|1|PENDING||(null)",
        f"11_2|demo-island|/tmp|2|RUNNING|n2|{tmp_path}",
        "8|demo-home|/x|N/A|RUNNING|n1|(null)",
    ]
    answers["squeue"] = (0, "\n".join(rows), "")
    machines = slurm.ENGINE.state(launch).machines
    assert [(machine.name, machine.id, machine.state, machine.node) for machine in machines] == [
        ("home", "9", "RUNNING", "n0"),
        ("island-1", "10_1", "PENDING", ""),
        ("island-2", "11_2", "RUNNING", "n2"),
    ]
    (fault,) = slurm.ENGINE.faults(request(), tmp_path)
    assert fault.found == "job 8 of /x"
    assert "scancel --me --name=demo-home && " in fault.remedy
    other = launched(tmp_path / "other")
    answers["squeue"] = (0, f"8|demo-home|{other.folder}|N/A|RUNNING|n1|(null)", "")
    (fault,) = slurm.ENGINE.faults(request(), tmp_path)
    assert f"`isthmus launch down --to {other.folder}`" in fault.remedy


def test_rows_of_folders_that_are_odd_hide_no_others(answers: Answers, tmp_path: Path) -> None:
    launch = Launch.of("slurm", request(), tmp_path)
    rows = ["9|demo-home|/a", "b|N/A|RUNNING|n0|(null)", "8|demo-home|/a|b|N/A|RUNNING|n1|(null)"]
    own = f"7|demo-home|{tmp_path}|N/A|RUNNING|n2|what|ever"
    answers["squeue"] = (0, "\n".join([*rows, own]), "")
    assert [machine.id for machine in slurm.ENGINE.state(launch).machines] == ["7"]


@pytest.mark.parametrize("name", ["a|b", "a%jb", "a\\b", "a\nb"])
def test_a_folder_whose_jobs_could_not_be_found_is_refused(answers: Answers, tmp_path: Path, name: str) -> None:
    (fault,) = slurm.ENGINE.faults(request(), tmp_path / name)
    assert fault.action == "Reading the launch folder"


def test_what_is_not_there_is_named(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(slurm.ENGINE.faults(request(table=LaunchTable(partition="low")), tmp_path))
    (fault,) = slurm.ENGINE.faults(request(table=LaunchTable(partition="hihg")), tmp_path)
    assert fault[1:] == ("a partition", "'hihg'", "Did you mean 'high'?")
    names = [
        fault.action for fault in slurm.ENGINE.faults(request(table=LaunchTable(image="x", namespace="y")), tmp_path)
    ]
    assert names == ["Reading launch.image", "Reading launch.namespace"]
    answers["sbatch"] = (1, "", "allocation failure: Requested node configuration is not available\n")
    (fault,) = slurm.ENGINE.faults(request(), tmp_path)
    assert fault.found == "allocation failure: Requested node configuration is not available"
    answers["sinfo"] = (1, "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    (fault,) = slurm.ENGINE.faults(request(), tmp_path)
    assert "Unable to contact" in fault.found
    monkeypatch.setattr(slurm.shutil, "which", lambda program: None)
    (fault,) = slurm.ENGINE.faults(request(), tmp_path)
    assert "slurm-client" in fault.remedy


def test_a_refused_submission_is_told(answers: Answers, tmp_path: Path) -> None:
    answers["sbatch"] = (1, "", "sbatch: error: Batch job submission failed: Access denied\n")
    with pytest.raises(ConfigError, match="found Batch job submission failed: Access denied"):
        slurm.ENGINE.submit(Launch.of("slurm", request(), tmp_path))


@pytest.mark.process
def test_an_island_ends_without_a_home_but_not_without_an_answer(tmp_path: Path) -> None:
    """A home that was cancelled left islands on their nodes for ever; a slurmctld that is away says nothing."""
    _, island = scripts()
    assert 'is_alone || scancel "$job"' in island
    (line,) = (line for line in island.splitlines() if line.startswith("is_alone()"))
    for squeue, status in (("echo 7 demo-home", 1), ("true", 0), ("false", 1)):
        script = f"squeue() {{ {squeue}; }}\n{line}\nis_alone"
        assert subprocess.run(["bash", "-c", script], check=False).returncode == status


def test_jobs_have_their_environment_whatever_the_site_has_set() -> None:
    for text in scripts():
        assert "export SLURM_EXPORT_ENV=ALL" in text


def test_islands_that_share_no_folder_are_submitted_by_the_home() -> None:
    apart = LaunchTable(invite_by="env")
    home, island = scripts(table=apart)
    assert 'ISTHMUS_INVITE=$(cat island.invite) sbatch --export=ALL --comment="$PWD"' in home
    assert "--chdir=/tmp" in island
    assert "island.invite" not in island
    assert "ISTHMUS_INVITE" not in scripts()[0]
    assert slurm.ENGINE.by_hand(request(table=apart)) == "sbatch home.sh"
    _, island = scripts(table=apart, nodes_per_island=2)
    assert 'exec isthmus join --island "$0" --name "$0-$SLURM_NODEID"' in island


def test_what_islands_that_share_no_folder_cannot_have_is_refused(answers: Answers, tmp_path: Path) -> None:
    apart = LaunchTable(invite_by="env")
    (fault,) = slurm.ENGINE.faults(request(table=apart, modules=("/mine.py",)), tmp_path)
    assert fault.action == "Reading launch.invite_by"
    with pytest.raises(ConfigError, match="the invitation, which the home writes"):
        slurm.ENGINE.scale(Launch.of("slurm", request(table=apart), tmp_path), 2)


FILE = "[run]\ntokens = 1000\n[task]\nlayers = 1\nwidth = 16\ncontext = 16\n"


def test_a_wrong_request_is_refused_with_everything_that_is_wrong(typed: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "demo.toml").write_text(FILE)
    words = ("launch", "slurm", "demo.toml", "--islands", "17", "--set", "task.layrs=3", "--set", "program.gamma=7")
    done = typed(tmp_path, *words)
    assert done.exit_code == 2
    for each in ("Reading --islands: expected from 1 to 16, found 17", "Did you mean 'layers'?"):
        assert each in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["demo.toml"]
    done = typed(tmp_path, "launch", "slurm", "demo.toml", "--learners", "3")
    assert (done.exit_code, "--islands in its place" in done.stderr) == (2, True)


ON_MACHINES = """
[run]
tokens = 1000000
[task]
data = ["/nowhere/data"]
[launch]
on_machines = ["/nowhere"]
"""


def test_what_only_machines_have_is_not_looked_for_and_what_is_beside_it_is(
    typed: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "there.toml").write_text(ON_MACHINES)
    words = ("launch", "slurm", "there.toml", "--islands", "2", "--print", "--to", "here")
    done = typed(tmp_path, *words, "--set", "task.lr=1e-3")
    assert done.exit_code == 0, done.stderr
    home = (tmp_path / "here" / "home.sh").read_text()
    assert home.index("srun isthmus launch settle cluster.toml --islands 2 &&\n") < home.index("isthmus invite")
    text = (tmp_path / "here" / "run.toml").read_text()
    assert '\ndata = ["/nowhere/data"]\nlr = 0.001\n' in text
    assert "batch" not in text
    (tmp_path / "there.toml").write_text(ON_MACHINES.replace("/nowhere/data", "/nowhere2/data"))
    done = typed(tmp_path, *words, "--set", "task.layrs=3", "--set", "run.slots_max=0")
    assert done.exit_code == 2
    for each in ("found nothing at /nowhere2/data", "launch.on_machines", "Did you mean 'layers'?", "run.slots_max"):
        assert each in done.stderr


def test_the_home_settles_what_follows_from_the_number_of_islands(typed: Callable[..., Result], tmp_path: Path) -> None:
    """As it does where the request is prepared at its launch, which is compared with."""
    (tmp_path / "demo.toml").write_text(FILE)
    typed(tmp_path, "launch", "slurm", "demo.toml", "--islands", "3", "--print", "--to", "here")
    there = '[keys]\nsecret = "home.key"\n\n'
    path = tmp_path / "cluster.toml"
    path.write_text(there + FILE)
    done = typed(tmp_path, "launch", "settle", "cluster.toml", "--islands", "3")
    assert done.exit_code == 0, done.stderr
    expected = there + (tmp_path / "here" / "run.toml").read_text()
    assert path.read_text() == expected
    assert typed(tmp_path, "launch", "settle", "cluster.toml", "--islands", "3").exit_code == 0
    assert path.read_text() == expected
    done = typed(tmp_path, "launch", "settle", "cluster.toml", "--islands", "17")
    assert (done.exit_code, path.read_text()) == (2, expected)


def test_printing_leaves_nothing_and_to_a_folder_all(typed: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "demo.toml").write_text(FILE)
    words = ("launch", "slurm", "demo.toml", "--islands", "2", "--set", "task.lr=1e-3", "--print")
    done = typed(tmp_path, *words)
    assert (done.exit_code, [path.name for path in tmp_path.iterdir()]) == (0, ["demo.toml"])
    done = typed(tmp_path, *words, "--to", "here")
    assert done.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "home.sh",
        "island.sh",
        "machine.toml",
        "run.toml",
    ]
    text = (tmp_path / "here" / "run.toml").read_text()
    for line in ("tokens = 1000", "learners = 0", 'program = "decoupled-diloco"', "width = 16", "lr = 0.001"):
        assert f"{line}\n" in text


def test_a_launch_that_is_not_there_is_told(typed: Callable[..., Result], tmp_path: Path) -> None:
    for words in (("scale", "3"), ("status",), ("down",)):
        done = typed(tmp_path, "launch", *words)
        assert (done.exit_code, "Looking for a launch" in done.stderr) == (2, True)
