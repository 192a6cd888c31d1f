"""One run on three machines with an address each, encrypted, where learners can be dialled by nobody, and one of them
reaches a single port of the home."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from isthmus.programs.engine.results.crossing_kinds import (
    CONTROL,
    FILES,
    FRAMING,
    OUTER_GRADIENTS,
    REPORTS,
    VERSIONS,
)
from isthmus.programs.wings.borders import borders
from isthmus.programs.wings.borders.borders import BorderWay
from tests.programs.engine.machine.cluster_place import accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.machine.namespaces import Namespaces, why_not
from tests.programs.engine.run.process_run import TASK

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]

ALPHA = """
[programs]
modules = ["paced.py"]
[keys]
secret = "alpha.key"
operators = ["beta.pub"]
"""
CLUSTER = """
[keys]
secret = "beta.key"
[[machine]]
name = "alpha"
address = "{address}"
public_key = "alpha.pub"
roles = ["syncer", "evaluator"]
[[machine]]
name = "beta"
public_key = "beta.pub"
roles = ["learner"]
islands = 1
"""


TEXT_IS = "the text is on machine beta, in its log of learner/0"
BATCH = """
def batch(at):
    wrong = Path(__file__).with_name("wrong")
    if at.slot == 0 and wrong.exists():
        text = wrong.read_text()
        wrong.unlink()
        raise ValueError(text)
"""


def _with_text(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and b"Jane" in path.read_bytes()]


@pytest.fixture
def net() -> Iterator[Namespaces]:
    made = Namespaces("alpha", "beta", "gamma")
    yield made
    made.close()


def _crossed(found: borders.Borders) -> None:
    """Learners spoke to alpha only; gamma, which was expelled, has given no account, so that alpha's counts."""
    assert set(found.machines) == {
        BorderWay(*ends) for ends in permutations(("alpha", "beta", "gamma"), 2) if "alpha" in ends
    }
    kinds = {way: {each.kind for each in those} for way, those in found.machines.items()}
    for name in ("beta", "gamma"):
        assert {OUTER_GRADIENTS, REPORTS, CONTROL, FRAMING} <= kinds[name, "alpha"]
        assert {VERSIONS, CONTROL, FRAMING} <= kinds["alpha", name]
    assert FILES in kinds["beta", "alpha"]
    texts = {each["name"]: each["error_texts"] for each in found.names}
    assert texts == {"alpha": "home", "beta": "local", "gamma": "local"}
    assert {each.host for each in found.unknown if each.kind == "no account"} == {"learner/1"}
    answers = next(each for each in found.machines[BorderWay("beta", "alpha")] if each.kind == OUTER_GRADIENTS)
    assert 0 < len(answers.digests) <= answers.items


@pytest.mark.long
def test_learners_behind_nat_train_under_keys(net: Namespaces, place: Place) -> None:
    address, folder = f"tcp://{net.addresses['alpha']}:7400", place.folder
    for name in ("alpha", "beta"):
        assert place.call("keygen", name).returncode == 0
    (folder / "paced.py").write_text("from pathlib import Path" + TASK.replace("\ndef batch(at):\n", BATCH))
    (folder / "alpha.toml").write_text(ALPHA)
    (folder / "cluster.toml").write_text(CLUSTER.format(address=address))

    def begin(machine: str, *words: str) -> Path:
        """Start something on a machine; the file with its lines."""
        path = folder / f"{machine}.log"
        place.environment["XDG_STATE_HOME"] = str(folder / f"state-{machine}")
        with path.open("w") as log:
            place.begin(*words, stdout=log, prefix=net.prefix(machine))
        return path

    def says(path: Path, words: str) -> None:
        place.wait_for(lambda: words in path.read_text())

    net.wall_in("alpha", 7400, against="gamma")
    alpha = begin("alpha", "daemon", "--name", "alpha", "--listen", address, "--config", "alpha.toml")
    says(alpha, "listens at")
    joining = ("join", address, "--server-key", "alpha.pub", "--config", "machine.toml", "--name")
    says(begin("beta", *joining, "beta", "--until-over"), "linked to alpha")
    gamma = begin("gamma", *joining, "gamma")
    says(gamma, "type there: isthmus admit gamma ")
    # Typed on beta, which is no home and has no folder of the run to itself.
    place.environment["XDG_STATE_HOME"] = str(folder / "state-beta")
    words = place.training("run", "--cluster", "cluster.toml", "--detach")
    done = place.call(*words, prefix=net.prefix("beta"))
    assert done.returncode == 0, (done.stderr, alpha.read_text())
    place.wait_for_merges("run")
    place.environment["XDG_STATE_HOME"] = str(folder / "state-alpha")
    assert place.call("admit", "gamma", "gamma.pub").returncode == 0
    says(gamma, "takes part in")
    merges = folder / "run" / "merges.jsonl"
    place.wait_for(lambda: '"voters": [0, 1]' in merges.read_text())
    # A batch of beta's raises once, with its row in the message.
    (folder / "wrong").write_text("row 31 is of Jane")
    events = folder / "run" / "events.jsonl"
    place.wait_for(lambda: '"kind":"failed"' in events.read_text().replace(" ", ""))
    place.wait_for(lambda: '"restarted"' in events.read_text())
    asked = place.call("logs", "learner/0", "--cluster", "cluster.toml", prefix=net.prefix("beta"))
    assert (asked.returncode, TEXT_IS in asked.stderr) == (2, True), asked
    assert net.listening("alpha") >= {net.addresses["alpha"]}
    assert net.listening("beta") == net.listening("gamma") == {"127.0.0.1"}
    shown = place.call("status", "--cluster", "cluster.toml", prefix=net.prefix("beta"))
    assert shown.returncode == 0, shown.stderr
    assert "gamma" in shown.stdout
    assert re.search(r"relayed +learner/1 to evaluator/0, recorder/0, syncer/0 *\n", shown.stdout)
    pairs = "learner/1: relayed to evaluator/0, recorder/0, syncer/0"
    assert pairs in alpha.read_text()
    assert pairs in gamma.read_text()
    assert "relayed" not in (folder / "beta.log").read_text()
    assert place.call("expel", "gamma").returncode == 0
    says(gamma, "has ended")
    assert place.call("stop", "--cluster", "cluster.toml", prefix=net.prefix("beta")).returncode == 0
    says(alpha, "finished")
    assert place.summary("run")["outcome"] == "stopped"
    assert TEXT_IS in (folder / "run" / "report.html").read_text()
    assert (folder / "run" / "logs" / "learner-0.log").read_text() == f"{TEXT_IS}\n"
    assert [path.name for path in _with_text(folder / "run")] == []
    says(folder / "beta.log", "its logs are in")
    says(folder / "beta.log", "ends, because its runs are over")
    place.wait_for(lambda: "isthmus daemon beta" not in place.processes().values())
    assert [path.name for path in _with_text(folder / "state-beta")] == ["learner-0.log"]
    accounts_add_up(place.summary("run"))
    assert not place.hosts()
    _crossed(borders.read(folder / "run"))
