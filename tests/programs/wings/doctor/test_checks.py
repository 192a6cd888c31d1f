"""What `isthmus doctor` makes of facts: a table of them, each with the checks that it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.programs.wings.doctor.checks import (
    FAILS,
    NOTE,
    OK,
    Check,
    DeclaredDevices,
    DiskFacts,
    Facts,
    IslandFacts,
    JaxFacts,
    NeedFacts,
    PeerAnswer,
    PeerFacts,
    TriedConnection,
    UserFacts,
    judge,
    text_of,
)

SOUND = Facts(
    versions={"python": "3.11.7", "isthmus": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2", "numba": "0.68.1"},
    jax=JaxFacts("cpu", ("cpu",), 0.5),
    devices={"cuda": 0, "tpu": 0},
    usable=None,
    declared=None,
    stale=(),
    user=UserFacts(1000, "ada", "/home/ada", {}),
    loopback="",
    pidfd="",
    ipv6="",
    host_name="one",
    host_addresses=("10.0.0.1",),
    blocked=(),
    ignored=(),
    descriptors=1024,
    descriptors_max=4096,
    processes_max=None,
    cores=8,
    memory_bytes=8 << 30,
    shared_memory_bytes=64 << 20,
    disk=DiskFacts("/runs", 1 << 40, 1e8),
    need=NeedFacts("7 hosts", 7, 4, 1 << 30, 1 << 30, 15.0, disk_least=2 << 30, disk_most=5 << 30),
)
STORED = replace(SOUND.need, store="/mnt", store_least=1 << 30, store_most=3 << 30)
HOME = PeerFacts("alpha", "tcp://10.0.0.1:7400", way=TriedConnection("tcp://10.0.0.1:7400", 0.01))
ANSWER = PeerAnswer(
    0.2, 0.01, TriedConnection("tcp://10.0.0.1:4000", 0.01), TriedConnection("tcp://10.0.0.2:4000", 0.02)
)
GPUS = JaxFacts("gpu", ("NVIDIA H100",) * 4, 2.0)


def peer(**changed: Any) -> dict[str, Any]:
    """Facts with one other machine."""
    return {"peers": (replace(HOME, **changed),)}


def answered(**changed: Any) -> dict[str, Any]:
    """Facts with one other machine, which answers."""
    return peer(answer=replace(ANSWER, **changed))


def states(facts: Facts) -> dict[str, str]:
    """The states that are not ok, by name."""
    return {check.name: check.state for check in judge(facts) if check.state != OK}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {}),
        ({"versions": {**SOUND.versions, "jaxlib": None}}, {"versions": FAILS}),
        ({"versions": {**SOUND.versions, "numba": None}}, {"versions": NOTE}),
        ({"versions": {**SOUND.versions, "numba": None, "jax": None}}, {"versions": FAILS}),
        ({"jax": JaxFacts(refusal="no GPU")}, {"devices": FAILS}),
        ({"devices": {"cuda": 4, "tpu": 0}}, {"devices": NOTE}),
        ({"devices": {"cuda": 4, "tpu": 0}, "usable": "cuda", "jax": GPUS}, {"/dev/shm": FAILS}),
        ({"usable": "cuda", "jax": GPUS, "shared_memory_bytes": 1 << 30, "cores": 1}, {}),
        ({"usable": "cuda", "jax": GPUS, "shared_memory_bytes": None}, {"/dev/shm": FAILS}),
        ({"declared": DeclaredDevices(("TPU v6e",), 1)}, {"devices": FAILS}),
        ({"declared": DeclaredDevices(("cpu",), 8)}, {}),
        (
            {"jax": JaxFacts("gpu", ("NVIDIA H100",), 2.0), "declared": DeclaredDevices(("NVIDIA H100",), 2)},
            {"devices": FAILS},
        ),
        ({"stale": ("MEGASCALE_NUM_SLICES",)}, {"variables": NOTE}),
        ({"user": UserFacts(1000, None, "/home/ada", {})}, {"user": NOTE}),
        ({"user": UserFacts(1000, None, None, {})}, {"user": NOTE}),
        ({"user": UserFacts(1000, "ada", "/", {"cache": "cache: no"})}, {"user": NOTE}),
        ({"user": UserFacts(1000, "ada", "/", {"state": "state: no"})}, {"user": FAILS}),
        ({"blocked": ("SIGTERM",)}, {"signals": NOTE}),
        ({"blocked": ("SIGUSR1",), "ignored": ("SIGHUP", "SIGPIPE")}, {}),
        ({"ignored": ("SIGINT",)}, {"signals": NOTE}),
        ({"pidfd": "Function not implemented"}, {"kernel": FAILS}),
        ({"descriptors": 75}, {"descriptors": FAILS}),
        ({"descriptors": 76}, {}),
        ({"processes_max": 279}, {"processes": FAILS}),
        ({"processes_max": 280}, {}),
        ({"cores": 3.5}, {"cores": NOTE}),
        ({"memory_bytes": (1 << 30) - 1}, {"memory": FAILS}),
        ({"memory_bytes": None}, {"memory": NOTE}),
        ({"need": NeedFacts("a run", refusal="not prepared")}, {"request": NOTE}),
        ({"need": NeedFacts("a run", refusal="no such task", is_wrong=True)}, {"request": FAILS}),
        ({"disk": DiskFacts("/runs", refusal="Read-only file system")}, {"disk": FAILS}),
        ({"disk": DiskFacts("/runs", 5 << 30, 1e8)}, {}),
        ({"disk": DiskFacts("/runs", (5 << 30) - 1, 1e8)}, {"disk": NOTE}),
        ({"disk": DiskFacts("/runs", 2 << 30, 1e8)}, {"disk": NOTE}),
        ({"disk": DiskFacts("/runs", (2 << 30) - 1, 1e8)}, {"disk": FAILS}),
        ({"need": NeedFacts("7 hosts", 7, 4, 1 << 30), "disk": DiskFacts("/runs", 1, 1e8)}, {}),
        ({"need": STORED, "store": DiskFacts("/mnt", 3 << 30, 1e8)}, {}),
        ({"need": STORED, "store": DiskFacts("/mnt", 2 << 30, 1e8)}, {"disk of snapshots": NOTE}),
        ({"need": STORED, "store": DiskFacts("/mnt", 1 << 20, 1e8)}, {"disk of snapshots": FAILS}),
        ({"need": STORED, "store": DiskFacts("/mnt", refusal="no")}, {"disk of snapshots": FAILS}),
        ({"disk": DiskFacts("/runs", 1 << 40, 7e7)}, {"disk": NOTE}),
        ({"disk": DiskFacts("/runs", 1 << 40, None)}, {}),
        ({"loopback": "127.0.0.1 out of reach"}, {"loopback": FAILS}),
        ({"ipv6": "not supported"}, {}),
        ({"ipv6": "not supported", **peer(endpoint="tcp://[fd00::1]:7400", answer=ANSWER)}, {"IPv6": FAILS}),
        ({"host_addresses": ()}, {"host name": NOTE}),
        (
            {"host_addresses": (), "island": IslandFacts("pod", ("one", "two"), (32768, 60999))},
            {"host name": FAILS, "ports of pod": NOTE},
        ),
        ({"misplaced": "10.0.0.9 is none of this machine"}, {"--for": FAILS}),
        (peer(unresolved="'home': Name or service not known"), {"alpha": FAILS}),
        (peer(way=TriedConnection("tcp://10.0.0.1:7400", refusal="no answer within 3 s")), {"alpha": FAILS}),
        (peer(way=TriedConnection("tcp://10.0.0.1:7400", is_refused=True)), {"alpha": NOTE}),
        (peer(fault=("to be admitted", "that this key is not", "Admit it.")), {"alpha": FAILS}),
        (peer(), {}),
        (answered(), {}),
        (answered(skew_seconds=-1.02), {"clock of alpha": NOTE}),
        (answered(skew_seconds=1.005), {}),
        (answered(skew_seconds=901.0), {"clock of alpha": FAILS}),
        (
            answered(there=TriedConnection("tcp://10.0.0.1:4000", refusal="no answer within 3 s")),
            {"ports of alpha": NOTE},
        ),
        (answered(there=TriedConnection("tcp://10.0.0.1:4000", is_refused=True)), {"ports of alpha": NOTE}),
        (
            answered(back=TriedConnection("tcp://10.0.0.2:4000", refusal="no answer within 3 s")),
            {"ports from alpha": NOTE},
        ),
        (answered(back=None), {}),
    ],
)
def test_a_fact_changes_its_check_and_no_other(changed: dict[str, Any], expected: dict[str, str]) -> None:
    facts = replace(SOUND, **changed)
    assert states(facts) == expected
    checks = judge(facts)
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.found
        assert check.expected
        assert bool(check.do) == (check.state != OK), check


def test_the_machine_that_the_command_runs_on_has_no_clock_and_no_ports_of_another() -> None:
    names = [check.name for check in judge(replace(SOUND, **peer(is_here=True, answer=ANSWER)))]
    assert "alpha" in names
    assert not {"clock of alpha", "ports of alpha", "ports from alpha"} & set(names)


def test_what_is_not_ok_comes_with_what_to_do_and_nothing_is_wider_than_the_terminal() -> None:
    changed = {
        "blocked": ("SIGTERM",),
        "memory_bytes": 1,
        **answered(there=TriedConnection("tcp://10.0.0.1:4000", refusal="no")),
    }
    checks = judge(replace(SOUND, **changed))
    text = text_of(checks, 80)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for check in checks:
        assert f"{check.state} {check.name} {check.found}" in flat
        assert check.state == OK or f"expected {check.expected} {check.do}" in flat
    assert text.splitlines()[-1] == f"{len(checks)} checks: 1 fails, 2 notes, {len(checks) - 3} ok"


def test_one_check_that_fails_is_one() -> None:
    assert text_of([Check("a", FAILS, "b", "c", "d")], 80).endswith("\n\n1 check: 1 fails, 0 notes, 0 ok")
