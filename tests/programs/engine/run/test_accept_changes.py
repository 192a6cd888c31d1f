"""A run goes on with other sources, or another batch, where its user accepts that: what differs is named before it
starts, noted in its books, and whatever may not differ is refused by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from isthmus.ops.step_tokens import FormerStepTokens
from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.request import sources, spec
from isthmus.programs.engine.results.alterations import Alteration, FileChange, headline, lines
from isthmus.programs.engine.run.in_processes import Submitted
from isthmus.programs.engine.run.resume import resumed
from isthmus.programs.training import again
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.plans import roles_of_edges
from isthmus.runtime.system.disk import DISK
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import ISTHMUS
from tests.programs.engine.snapshots.keep_format import TASK, copied

NUMBER, PROGRAM = 3, "decoupled-diloco"
SLEEP = "time.sleep(0.004)"


@pytest.fixture
def cut_off(tmp_path: Path) -> Path:
    """The folder of a run of two learners that was set aside, as sources of now would have made it."""
    from isthmus.programs.engine.recorder.graph_parts import fragments_in
    from isthmus.programs.engine.request.fingerprint import fingerprint
    from isthmus.programs.engine.request.program import Program

    folder = copied(NUMBER, PROGRAM, tmp_path)
    kept = json.loads((folder / spec.SPEC).read_text())
    # With the settings that there are by now.
    kept["job"]["settings"] = Program(PROGRAM).schema().read(kept["job"]["settings"])
    (folder / spec.SPEC).write_text(json.dumps(kept))
    run_spec = spec.load(folder)
    graph = run_spec.graph(is_checked=False)
    own = fingerprint(graph, run_spec.job, Program(PROGRAM).builder())
    fields = json.loads((folder / spec.SPEC).read_text())
    edges = {name: list(roles) for name, roles in roles_of_edges(graph).items()}
    (folder / spec.SPEC).write_text(json.dumps({**fields, "fingerprint": own, "edges": edges}))
    sources.write(folder, sources.of_now(PROGRAM, run_spec.job.task.text, fragments_in(graph)))
    return folder


def edit(folder: Path, was: str, now: str) -> None:
    """Change the file of the task."""
    path = folder.parent / TASK
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, now))


@contextmanager
def gone_on(folder: Path, *, accepts: bool, **run: Any) -> Any:
    """The run, ready to go on."""

    def asked(of: Path, more: Mapping[str, Any], doing: str) -> Any:
        return again(of, {**more, **run}, doing)

    submitted: Submitted = resumed(str(folder), None, asked, accepts=accepts)
    try:
        yield submitted
    finally:
        assert submitted.lock is not None
        submitted.lock.close()


def refusal(folder: Path, *, accepts: bool = False, **run: Any) -> str:
    """What is said of a resume that is refused, which changes nothing."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as error, gone_on(folder, accepts=accepts, **run):
        pass
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(error.value)


def noted(folder: Path) -> list[Alteration]:
    memory = books.load(folder, DISK)
    assert memory is not None
    return memory.alterations


@pytest.mark.slow
def test_where_nothing_differs_nothing_is_said(cut_off: Path) -> None:
    with gone_on(cut_off, accepts=True) as submitted:
        assert submitted.altered == ()
    assert not noted(cut_off)
    assert not list(spec.formers(cut_off))


@pytest.mark.slow
def test_a_loader_that_was_mended_is_refused_until_it_is_accepted(cut_off: Path) -> None:
    edit(cut_off, SLEEP, "time.sleep(0.005)")
    told = refusal(cut_off)
    assert TASK in told
    assert "--accept-changes" in told
    with gone_on(cut_off, accepts=True) as submitted:
        assert [line for line in submitted.altered if line.startswith("task: ")] == [f"task: {cut_off.parent / TASK}"]
    [alteration] = noted(cut_off)
    assert [(each.part, Path(each.file).name) for each in alteration.files] == [("task", TASK)]
    assert all(each.before and each.after and each.before != each.after for each in alteration.files)
    assert alteration.outer_steps
    assert alteration.time is not None
    [former] = spec.formers(cut_off)
    assert former.sources is not None
    then, now = sources.of_former(former.sources), sources.load(cut_off)
    assert then is not None
    assert now is not None
    assert sources.differences(then, now) == list(alteration.files)
    with gone_on(cut_off, accepts=False):  # From now on they are the run's.
        assert len(noted(cut_off)) == 1


@pytest.mark.slow
def test_another_batch_has_its_tokens_from_then_on(cut_off: Path) -> None:
    edit(cut_off, "(64, 32)", "(128, 32)")
    edit(cut_off, "tokens_per_batch=64", "tokens_per_batch=128")
    lives = tuple((slot, life) for slot, life, _ in books.load(cut_off, DISK).trained)  # type: ignore[union-attr]
    with gone_on(cut_off, accepts=True):
        job = spec.load(cut_off).job
        assert (job.tokens_per_batch, job.step_tokens_before) == (128, (FormerStepTokens(lives, 64),))
        assert spec.load(cut_off).graph().name  # What hosts will build.
    edit(cut_off, "(128, 32)", "(256, 32)")
    edit(cut_off, "tokens_per_batch=128", "tokens_per_batch=256")
    with gone_on(cut_off, accepts=True):  # Nothing was trained since.
        former = spec.load(cut_off).job.step_tokens_before
        assert [each.tokens for each in former] == [64, 128]
    told = {each.key: (each.before, each.after) for alteration in noted(cut_off) for each in alteration.settings}
    assert told == {"the tokens of a step": ("128", "256")}
    assert len(noted(cut_off)) == 2


@pytest.mark.slow
def test_another_file_of_isthmus_is_named(cut_off: Path) -> None:
    known = sources.load(cut_off)
    assert known is not None
    file = "ops/syncer/merge.py"
    own = {**known.files["isthmus"], file: "0" * 16, "ops/gone.py": "1" * 16}
    del own["ops/syncer/pacer.py"]
    sources.write(cut_off, sources.Sources("0.0.9", {**known.files, "isthmus": own}, known.fragments))
    fields = json.loads((cut_off / spec.SPEC).read_text())
    (cut_off / spec.SPEC).write_text(json.dumps({**fields, "fingerprint": "0" * 32}))
    told = refusal(cut_off)
    assert file in told
    assert "--accept-changes" in told
    with gone_on(cut_off, accepts=True):
        pass
    [alteration] = noted(cut_off)
    found = {each.file: (bool(each.before), bool(each.after)) for each in alteration.files}
    assert found == {file: (True, True), "ops/gone.py": (True, False), "ops/syncer/pacer.py": (False, True)}
    assert alteration.isthmus == ("0.0.9", known.isthmus)
    assert {each.part for each in alteration.files} == {"isthmus"}


@pytest.mark.slow
def test_a_run_from_before_files_were_noted_says_that_they_are_not_known(cut_off: Path) -> None:
    (cut_off / sources.FILE).unlink()
    with gone_on(cut_off, accepts=False):
        assert sources.load(cut_off) is not None  # From now on they are.
    (cut_off / sources.FILE).unlink()
    fields = json.loads((cut_off / spec.SPEC).read_text())
    (cut_off / spec.SPEC).write_text(json.dumps({**fields, "fingerprint": "0" * 32}))
    with gone_on(cut_off, accepts=True) as submitted:
        assert submitted.altered
    [alteration] = noted(cut_off)
    assert not alteration.are_files_known
    assert alteration.is_of_sources


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now"),
    [('"b": jnp.zeros(1)', '"b": jnp.zeros(1), "v": jnp.zeros(2)'), ("(32, 1))", "(32, 1), jnp.bfloat16)")],
)
def test_another_layout_is_refused_by_name(cut_off: Path, was: str, now: str) -> None:
    edit(cut_off, was, now)
    assert "would change the model" in refusal(cut_off, accepts=True)


@pytest.mark.slow
def test_another_partition_of_the_model_is_refused_by_name(cut_off: Path) -> None:
    known = sources.load(cut_off)
    assert known is not None
    sources.write(cut_off, sources.Sources(known.isthmus, known.files, "another"))
    fields = json.loads((cut_off / spec.SPEC).read_text())
    (cut_off / spec.SPEC).write_text(json.dumps({**fields, "fingerprint": "0" * 32}))
    assert "would change which parts of the model are in which fragment" in refusal(cut_off, accepts=True)


@pytest.mark.slow
def test_other_roles_are_refused_by_name(cut_off: Path) -> None:
    fields = json.loads((cut_off / spec.SPEC).read_text())
    roles = {**fields["roles"], "judge": 1}
    (cut_off / spec.SPEC).write_text(json.dumps({**fields, "roles": roles, "fingerprint": "0" * 32}))
    assert "would change the roles of its graph" in refusal(cut_off, accepts=True)


@pytest.mark.slow
def test_a_seed_and_a_program_are_refused_whatever_is_accepted(cut_off: Path, typed: Callable[..., Result]) -> None:
    assert "would change run.seed" in refusal(cut_off, accepts=True, seed=7)
    told = typed(cut_off.parent, "train", "--resume", "run", "--accept-changes", "--set", "run.program=diloco")
    assert told.exit_code == 2
    assert "would change run.program" in told.stderr
    told = typed(cut_off.parent, "train", "--accept-changes")
    assert told.exit_code == 2
    assert "--resume" in told.stderr


def test_a_resume_that_did_not_come_about_is_noted_once(tmp_path: Path) -> None:
    folder = copied(NUMBER, PROGRAM, tmp_path)
    note = partial(books.note_alteration, folder, DISK)
    first = Alteration(tokens=7, files=[FileChange("task", "a.py", "1", "2")])
    for at in (20_000_000_000, 30_000_000_000):
        note(first, at)
    assert [each.tokens for each in noted(folder)] == [7]
    note(Alteration(tokens=9, files=first.files), 40_000_000_000)
    assert [each.tokens for each in noted(folder)] == [7, 9]
    before = books.load(folder, DISK)
    (folder / books.FILE).unlink()  # Its lines are there.
    note(first, 0)
    now = books.load(folder, DISK)
    assert before is not None
    assert now is not None
    assert len(now.alterations) == 1
    assert [each.eval_loss for each in now.evaluations] == [each.eval_loss for each in before.evaluations]
    assert {tuple(row[:2]) for row in now.trained} == {tuple(row[:2]) for row in before.trained}


def test_what_others_read_has_no_folder_of_the_user() -> None:
    changed = Alteration(outer_steps=1_234, files=[FileChange("task", "/home/me/mine.py", "1", "2")])
    assert list(lines(changed)) == ["task: /home/me/mine.py"]
    assert headline(changed, with_folders=False) == "from outer step 1,234 on: task: mine.py"


def test_many_files_are_a_number_in_one_line_and_some_names_in_several() -> None:
    files = [FileChange("isthmus", f"ops/{number}.py", "1", "2") for number in range(20)]
    changed = Alteration(tokens=1_000, files=[*files, FileChange("task", "/home/me/mine.py", "1", "")])
    assert headline(changed) == "from 1,000 tokens on: isthmus: 20 files; task: /home/me/mine.py is gone"
    assert len(list(lines(changed))) == 12 + 1 + 1


@pytest.mark.long
@pytest.mark.process
def test_a_run_in_processes_goes_on_with_a_mended_loader_and_another_batch(cut_off: Path) -> None:
    edit(cut_off, "(64, 32)", "(128, 32)")
    edit(cut_off, "tokens_per_batch=64", "tokens_per_batch=128")
    total = json.loads((cut_off / "summary.json").read_text())["tokens_total"] + 30_000
    command = [str(ISTHMUS), "train", "--resume", "run", "--accept-changes", "--tokens", str(total)]
    done = subprocess.run(command, cwd=cut_off.parent, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((cut_off / "summary.json").read_text())
    assert [told for told in summary["books"]["differences"] if told["kind"] != "merges"] == []
    lives = {(each["learner"], each["incarnation"]): each for each in summary["books"]["lives"]}
    of_step = {life: each["tokens_reported"] / each["steps"] for (_, life), each in lives.items()}
    assert of_step == {1: 64, 2: 128}
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]
    lines_of = [json.loads(line) for line in (cut_off / "metrics.jsonl").read_text().splitlines()]
    assert {line["began"][0] for line in lines_of if line.get("began")} == {"copy"}
    merges = [json.loads(line) for line in (cut_off / "merges.jsonl").read_text().splitlines()]
    first = {line["fragment"]: line for line in reversed(merges) if line["epoch"] == 2 and line["kind"] == "merge"}
    assert all(line["momentum"] == line["origin"] for line in first.values())
    replayed = subprocess.run(
        [str(ISTHMUS), "replay", "run", "--json"], cwd=cut_off.parent, capture_output=True, text=True, check=False
    )
    told = json.loads(replayed.stdout)
    assert (replayed.returncode, told["identical"]) == (0, True)
    assert [each["outer_steps"] for each in told["alterations"]] == [summary["alterations"][0]["outer_steps"]]
    assert "It went on with changes." in (cut_off / "report.html").read_text()
