"""The names of the kernel's signals."""

from __future__ import annotations

import signal

import pytest

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system import processes
from isthmus.runtime.system.processes import check_descriptors, signal_masks, signal_name


def test_each_of_64_has_a_name_of_its_own() -> None:
    names = [signal_name(number) for number in range(1, 65)]
    assert len({*names}) == 64
    assert [names[number - 1] for number in (6, 9, 11)] == ["SIGABRT", "SIGKILL", "SIGSEGV"]
    least = int(signal.SIGRTMIN)
    assert names[least - 1] == "SIGRTMIN"
    assert names[63] == "SIGRTMAX"
    assert all(names[number - 1] == f"SIGRTMIN+{number - least}" for number in range(least + 1, 64))
    assert all(names[number - 1] == f"SIG{number}" for number in range(32, least))


def test_what_a_parent_blocks_is_named() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
    try:
        assert {"SIGRTMIN", "SIGRTMIN+6", "SIGRTMAX"} <= {*signal_masks().blocked}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("limit", [(64, 64), (64, 4096)])
def test_too_few_descriptors_are_refused(limit: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.resource, "getrlimit", lambda which: limit)
    check_descriptors("Trying", 64)
    with pytest.raises(ConfigError) as caught:
        check_descriptors("Trying", 68)
    (fault,) = caught.value.faults
    assert "68" in fault.expected
    assert "64" in fault.found
    assert ("ulimit" in fault.remedy) == (limit[1] > 68)
