"""A home on loopback, joined from another machine through one port that leads to it (`ssh -L`, `ssh -R`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.machine.namespaces import Namespaces, why_not
from tests.programs.engine.machine.tunnel import Tunnel

WHY_NOT = why_not()
pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
RUN = "runs/cluster"
HOME = "tcp://127.0.0.1:7400"
CLUSTER = """
[keys]
secret = "alpha.key"
[[machine]]
name = "alpha"
address = "tcp://127.0.0.1:7400"
public_key = "alpha.pub"
islands = 1
[run]
tokens = 1000000000
task = "paced.py:task"
"""


@pytest.fixture
def net() -> Iterator[Namespaces]:
    made = Namespaces("alpha", "beta")
    yield made
    made.close()


def voters(place: Place) -> list[list[int]]:
    path = place.folder / RUN / "merges.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["voters"] for line in lines if line.endswith("\n")]


def test_a_machine_that_reaches_one_port_through_a_tunnel_is_merged_and_again_after_a_cut(
    net: Namespaces, place: Place
) -> None:
    folder, path = place.folder, str(place.folder / "paced.py")
    assert place.call("keygen", "alpha").returncode == 0
    (folder / "alpha.toml").write_text(f'[programs]\nmodules = ["{path}"]\n[keys]\nsecret = "alpha.key"\n')
    (folder / "beta.toml").write_text(f'[programs]\nmodules = ["{path}"]\n')
    (folder / "cluster.toml").write_text(CLUSTER)

    def begin(machine: str, *words: str) -> Path:
        log = folder / f"{machine}.log"
        place.environment["XDG_STATE_HOME"] = str(folder / f"state-{machine}")
        with log.open("w") as file:
            place.begin(*words, stdout=file, prefix=net.prefix(machine))
        return log

    daemon = ("daemon", "--name", "alpha", "--listen", HOME, "--config", "alpha.toml", "--run", "cluster.toml")
    begin("alpha", *daemon)
    place.wait_for(lambda: len(voters(place)) > 2)
    ends = {"near": net.name("beta"), "far": net.name("alpha")}
    with closing(Tunnel(HOME, **ends)) as tunnel:
        port = int(tunnel.address.rpartition(":")[2])
        invited = place.call("invite", "beta", "--cluster", "cluster.toml", "--address", f"tcp://localhost:{port}")
        assert invited.returncode == 0, invited.stderr
        beta = begin("beta", "join", "--invite", "beta.invite", "--config", "beta.toml")
        place.wait_for(lambda: [0, 1] in voters(place))
        status = json.loads(place.call("status", RUN, "--json").stdout)
        hosts = {host["name"]: host for host in status["hosts"]}
        assert sorted(hosts["learner/1"]["relayed"]) == ["evaluator/0", "recorder/0", "syncer/0"]
        assert not hosts["learner/0"]["relayed"]  # Nor does anything at the home take a detour.
    place.wait_for(lambda: "has lost alpha" in beta.read_text())
    before = len(voters(place))
    with closing(Tunnel(HOME, port=port, **ends)):
        place.wait_for(lambda: [0, 1] in voters(place)[before + 8 :])
        status = json.loads(place.call("status", RUN, "--json").stdout)
        assert {host["name"]: host["incarnation"] for host in status["hosts"]}["learner/1"] == 1
    assert place.call("stop", RUN).returncode == 0
    place.wait_for(lambda: (folder / RUN / "over.json").exists())
