"""One run on three machines with an address each, encrypted, where learners can be dialled by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.engine.machine.cluster_place import accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.machine.namespaces import Namespaces, why_not

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


@pytest.fixture
def net() -> Iterator[Namespaces]:
    made = Namespaces("alpha", "beta", "gamma")
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def test_learners_behind_nat_train_under_keys(net: Namespaces, place: Place) -> None:
    address, folder = f"tcp://{net.addresses['alpha']}:7400", place.folder
    for name in ("alpha", "beta"):
        assert place.call("keygen", name).returncode == 0
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

    alpha = begin("alpha", "daemon", "--name", "alpha", "--listen", address, "--config", "alpha.toml")
    says(alpha, "listens at")
    joining = ("join", address, "--server-key", "alpha.pub", "--config", "machine.toml", "--name")
    says(begin("beta", *joining, "beta"), "linked to alpha")
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
    assert net.listening("alpha") >= {net.addresses["alpha"]}
    assert net.listening("beta") == net.listening("gamma") == {"127.0.0.1"}
    shown = place.call("status", "--cluster", "cluster.toml", prefix=net.prefix("beta"))
    assert shown.returncode == 0, shown.stderr
    assert "gamma" in shown.stdout
    assert place.call("expel", "gamma").returncode == 0
    says(gamma, "has ended")
    assert place.call("stop", "--cluster", "cluster.toml", prefix=net.prefix("beta")).returncode == 0
    says(alpha, "finished")
    assert place.summary("run")["outcome"] == "stopped"
    accounts_add_up(place.summary("run"))
    assert not place.hosts()
