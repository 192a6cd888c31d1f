"""A daemon with keys, as real processes: who may talk to it, and a run whose hosts all have keys."""

from __future__ import annotations

import pytest

from tests.programs.engine.machine.daemon_place import MachineDaemon, Place

pytestmark = pytest.mark.process

RUN_TOKENS = 3_000


@pytest.mark.soak
def test_a_key_is_refused_admitted_trains_and_is_expelled(place: Place) -> None:
    for name in ("alpha", "me"):
        assert place.call("keygen", name).returncode == 0
    machine = place.folder / "machine.toml"
    machine.write_text(f'{machine.read_text()}[keys]\nsecret = "alpha.key"\n')
    daemon = MachineDaemon(place)
    cluster = place.folder / daemon.cluster
    described = cluster.read_text().replace("[run]", 'public_key = "alpha.pub"\n[run]')
    cluster.write_text(f'{described}[keys]\nsecret = "me.key"\n')
    mine = (place.folder / "me.pub").read_text().strip()

    refused = place.call("status", "--cluster", cluster.name)
    assert refused.returncode == 2
    assert f"isthmus admit NAME {mine}" in refused.stderr
    assert daemon.wait_for_line("whose key it does not admit").endswith(f"isthmus admit NAME {mine}")
    keyless = place.folder / "keyless.toml"
    keyless.write_text(f'[[machine]]\nname = "alpha"\naddress = "{daemon.address}"\n')
    assert "found one that has keys" in place.call("status", "--cluster", keyless.name).stderr

    assert place.call("admit", "me", mine).stdout == "alpha admits me from now on.\n"
    daemon.wait_for_line("admits me")
    for words in (place.training("run", "--cluster", cluster.name), ("status", "--cluster", cluster.name)):
        refused = place.call(*words)
        assert refused.returncode == 2
        assert refused.stderr.count("isthmus: ") == 1
        assert f"isthmus admit --operator me {mine}" in refused.stderr
    assert place.call("admit", "--operator", "me", mine).stdout == "alpha admits me as an operator from now on.\n"
    daemon.wait_for_line("has me as an operator")
    for run_dir in ("../run", str(place.folder.parent / "run"), ".git", "state"):
        refused = place.call(*place.training(run_dir, "--cluster", cluster.name))
        assert refused.returncode == 2
        assert "--run-dir" in refused.stderr
    assert not (place.folder.parent / "run").exists()
    trained = place.call(*place.training("run", "--cluster", cluster.name, "--quiet", tokens=RUN_TOKENS))
    assert (trained.returncode, trained.stderr) == (0, "")
    assert place.summary("run")["outcome"] == "done"
    assert place.summary("run")["tokens_merged"] > 0

    assert "alpha has expelled me" in place.call("expel", "me").stdout
    daemon.wait_for_line("admits me no longer")
    assert place.call("status", "--cluster", cluster.name).returncode == 2
    assert daemon.end() == 0
