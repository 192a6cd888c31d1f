"""Machines in network namespaces: each has an address of its own, and nobody reaches what it does not listen on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SUBNET = "10.177.0"


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can be."""
    if shutil.which("ip") is None:
        return "no `ip` here"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"isthmus-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not permitted: {made.stderr.strip()}"
    linked = _ip("link", "add", f"ip{os.getpid()}", "type", "veth", "peer", "name", "eth0", "netns", name)
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return f"no virtual links: {linked}" if linked else ""


class Namespaces:
    """A namespace for each machine, and one with the bridge between them. Addresses are `subnet`.1, `subnet`.2, ..."""

    def __init__(self, *machines: str, subnet: str = SUBNET) -> None:
        self._mark = f"i{os.getpid()}"
        self.addresses = {name: f"{subnet}.{number}" for number, name in enumerate(machines, 1)}
        self._made: list[str] = []
        self._make("bridge")
        self._in("bridge", "link", "add", "br0", "type", "bridge")
        self._in("bridge", "link", "set", "br0", "up")
        for number, name in enumerate(machines, 1):
            self._make(name)
            port = f"p{number}"
            self._in("bridge", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.name(name))
            self._in("bridge", "link", "set", port, "master", "br0", "up")
            self._in(name, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            self._in(name, "link", "set", "eth0", "up")

    def wall_in(self, machine: str, port: int, against: str) -> None:
        """Drop, on a machine, whatever another one sends to any port but one. With rules of routing: they need no
        firewall."""
        source = ("from", self.addresses[against], "iif", "eth0", "ipproto", "tcp", "dport")
        self._in(machine, "rule", "add", "pref", "10", "lookup", "local")
        self._in(machine, "rule", "delete", "pref", "0")
        self._in(machine, "rule", "add", "pref", "1", *source, str(port), "lookup", "local")
        self._in(machine, "rule", "add", "pref", "2", *source, "1-65534", "blackhole")

    def prefix(self, machine: str) -> tuple[str, ...]:
        """What to put before a command to carry it out on a machine."""
        return "ip", "netns", "exec", self.name(machine)

    def listening(self, machine: str) -> set[str]:
        """The addresses, as the kernel writes them, on which anything there listens for TCP."""
        lines = Path(f"/proc/{min(self.processes(machine))}/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        return {".".join(str(byte) for byte in reversed(bytes.fromhex(row[1][:8]))) for row in rows if row[3] == "0A"}

    def processes(self, machine: str) -> set[int]:
        """The process ids there."""
        found = subprocess.run(["ip", "netns", "pids", self.name(machine)], capture_output=True, text=True, check=True)
        return set(map(int, found.stdout.split()))

    def close(self) -> None:
        """Take everything away."""
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    def name(self, machine: str) -> str:
        """The namespace of a machine."""
        return f"{self._mark}-{machine}"

    def _make(self, machine: str) -> None:
        subprocess.run(["ip", "netns", "add", self.name(machine)], check=True)
        self._made.append(self.name(machine))
        self._in(machine, "link", "set", "lo", "up")

    def _in(self, machine: str, *words: str) -> None:
        fault = _ip("-n", self.name(machine), *words)
        assert not fault, (words, fault)


def _ip(*words: str) -> str:
    """What `ip` complains about; empty if it is content."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""
