"""Keys between two machines, which are network namespaces with an address each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.runtime.wire.security_keys import KeyPair
from tests.patience import PATIENCE
from tests.runtime.wire.namespaces import Machine, two_machines

HOST = (sys.executable, "-m", "tests.runtime.wire.away_host")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as both:
        yield both


@pytest.mark.process
def test_two_machines_talk_with_keys_and_strangers_do_not(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    hub, leaf = machines
    pairs = {name: KeyPair.make() for name in ("hub", "leaf", "stranger")}
    secrets = {name: str(pair.write(tmp_path, name)[0]) for name, pair in pairs.items()}

    def dial(name: str, where: str) -> str:
        words = leaf.command(*HOST, "dial", where, secrets[name])
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return done.stdout.strip()

    listen = hub.command(*HOST, "listen", hub.address, secrets["hub"], pairs["leaf"].public)
    with subprocess.Popen(listen, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdin is not None
        assert listening.stdout is not None
        where = listening.stdout.readline()
        assert hub.address in where
        assert dial("leaf", where) == "['there and back', 1.5]"
        assert dial("stranger", where) == "no connection: this machine's key is not admitted there"
        listening.stdin.close()
        assert listening.wait(60) == 0
