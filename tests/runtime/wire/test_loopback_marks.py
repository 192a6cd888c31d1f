"""Whether the loopback at which a host listens is the one here."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest

from isthmus.runtime.wire.loopback_marks import is_here, mark
from tests.runtime.wire.namespaces import two_machines

RUN, ENDPOINT = "run-1", "tcp://127.0.0.1:4001"


def test_a_host_is_here_for_as_long_as_its_mark_is_and_for_peers_of_its_run_alone() -> None:
    made = mark(RUN, ENDPOINT)
    assert made is not None
    with closing(made):
        others = ("run-2", ENDPOINT), (RUN, "tcp://127.0.0.1:4002")
        assert is_here(RUN, ENDPOINT)
        assert not any(is_here(*each) for each in others)
        assert mark(RUN, ENDPOINT) is None  # Another process has it; its peers go through its porter.
    assert not is_here(RUN, ENDPOINT)


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:4001", "tcp://home.example:4001", "tcp://[fd00::1]:4001"])
def test_off_loopback_there_is_none(endpoint: str) -> None:
    assert mark(RUN, endpoint) is None
    assert not is_here(RUN, endpoint)


@pytest.mark.process
def test_the_loopback_of_another_network_namespace_is_not_this_one() -> None:
    code = f"from isthmus.runtime.wire.loopback_marks import is_here; print(is_here({RUN!r}, {ENDPOINT!r}))"
    made = mark(RUN, ENDPOINT)
    assert made is not None
    with closing(made), two_machines() as (machine, _):
        said = [
            subprocess.run([*where, sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            for where in ([], machine.command())
        ]
    assert said == ["True\n", "False\n"]
