"""Two machines on one: network namespaces with an address each and a cable between them."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

_numbers = itertools.count()


class Machine(NamedTuple):
    """A network namespace, and its address there."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """A command line that runs there."""
        return ["ip", "netns", "exec", self.namespace, *words]


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two that reach each other, and nobody else; skips the test where namespaces are not permitted."""
    number = next(_numbers)
    made = [Machine(f"keys{os.getpid()}-{number}-{end}", f"10.83.{number}.{end}") for end in (1, 2)]
    try:
        try:
            for machine in made:
                ip("netns", "add", machine.namespace)
            one, other = (machine.namespace for machine in made)
            ip("-n", one, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", other)
            for machine in made:
                ip("-n", machine.namespace, "address", "add", f"{machine.address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    ip("-n", machine.namespace, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"network namespaces are not permitted here: {told.strip()}")
        yield made[0], made[1]
    finally:
        for machine in made:
            subprocess.run(["ip", "netns", "del", machine.namespace], capture_output=True, check=False)


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=20)
