"""What a machine has to permit before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.programs.wings.chaos import chaos_strikes
from isthmus.programs.wings.chaos.chaos_strikes import check_permitted
from isthmus.runtime.errors import ConfigError


def test_a_usual_machine_permits_it() -> None:
    check_permitted()


def test_what_is_not_permitted_is_said_at_once_with_what_would_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(chaos_strikes, "_is_readable", lambda path: path != Path("/proc/self/environ"))
    with pytest.raises(ConfigError) as caught:
        check_permitted()
    told = str(caught.value)
    assert told.count("expected") == 2
    assert "found [Errno 1] Operation not permitted" in told
    assert "seccomp" in told
    assert "Mount /proc" in told
