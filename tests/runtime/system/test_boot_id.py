"""What tells the present boot of a machine from others, also where a container hides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.runtime.system.processes import boot_id, started_at


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_where_it_is_hidden_the_start_of_the_first_process_stands_for_it(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    real, read = boot_id(), Path.read_bytes

    def hidden(path: Path) -> bytes:
        if "boot_id" in path.name:
            raise error(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", hidden)
    assert boot_id() == boot_id() != real
    assert str(started_at(1)).encode() in boot_id()
