"""How long the user's code in a process has done nothing: threads of ours apart, by what the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.system.idleness import IdleWatch, Used, family, used_in

THREAD = (7, 70)
WORKS = """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
def turn():
    libc.prctl(15, b"isthmus-host", 0, 0, 0)
    while True:
        pass
if "ours" in sys.argv:
    threading.Thread(target=turn, daemon=True).start()
print("begun", flush=True)
if "works" in sys.argv:
    while True:
        pass
if "writes" in sys.argv:
    with open("/dev/null", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4000))
            time.sleep(0.2)
time.sleep(60)
"""


def watch(*used: Used) -> tuple[IdleWatch[str], Iterator[Used]]:
    told = iter(used)
    return IdleWatch(lambda pid: {THREAD: next(told)}), told


def looks(*used: Used, apart: float = 1.0) -> list[float]:
    watched, _ = watch(*used)
    return [watched.look({"a": 1}, Instant(round(i * apart * 1e9)))["a"] / 1e9 for i in range(len(used))]


def test_it_is_idle_from_the_first_of_two_looks_on() -> None:
    assert looks(*[Used(0, 0)] * 4) == [0.0, 1.0, 2.0, 3.0]


def test_a_hundredth_of_a_core_is_work() -> None:
    assert looks(*(Used(i * 10_000_000, 0) for i in range(3))) == [0.0, 0.0, 0.0]
    assert looks(*(Used(i * 9_000_000, 0) for i in range(3))) == [0.0, 1.0, 2.0]


def test_a_kilobyte_a_second_is_work() -> None:
    assert looks(*(Used(0, i * 1000) for i in range(3))) == [0.0, 0.0, 0.0]
    assert looks(*(Used(0, i * 900) for i in range(3))) == [0.0, 1.0, 2.0]


def test_work_begins_the_time_anew() -> None:
    assert looks(Used(0, 0), Used(0, 0), Used(10**9, 0), Used(10**9, 0)) == [0.0, 1.0, 0.0, 1.0]


def test_between_two_looks_is_a_second_and_the_forgotten_begin_anew() -> None:
    watched, told = watch(Used(0, 0), Used(0, 0), Used(0, 0))
    assert [watched.look({"a": 1}, Instant(i * 10**8))["a"] for i in range(10)] == [0] * 10
    assert len(list(told)) == 2  # It has looked once.
    watched, _ = watch(*[Used(0, 0)] * 3)
    watched.look({"a": 1}, Instant(0))
    assert watched.look({"a": 1}, Instant(seconds(2))) == {"a": seconds(2)}
    assert watched.look({}, Instant(seconds(3))) == {}
    assert watched.look({"a": 1}, Instant(seconds(4))) == {"a": 0}


@pytest.fixture
def started() -> Iterator[Any]:
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> int:
        command = [sys.executable, "-c", WORKS, *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        output = processes[-1].stdout
        assert output is not None
        assert output.readline() == "begun\n"
        return processes[-1].pid

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "is_idle"), [((), True), (("ours",), True), (("works",), False), (("writes",), False)]
)
def test_only_what_the_users_threads_do_counts(started: Any, arguments: tuple[str, ...], is_idle: bool) -> None:
    pid = started(*arguments)
    watched: IdleWatch[str] = IdleWatch(used_in)
    watched.look({"a": pid}, Instant(time.monotonic_ns()))
    time.sleep(1.2)
    idle = watched.look({"a": pid}, Instant(time.monotonic_ns()))["a"]
    assert (idle > 0) is is_idle


@pytest.mark.process
def test_a_process_that_it_started_counts_and_one_apart_does_not(started: Any) -> None:
    pid = started()
    assert {pid, os.getpid()} <= set(family(os.getpid()))
    assert pid not in family(os.getpid(), apart=[pid])
    assert family(2**22 + 1) == []
