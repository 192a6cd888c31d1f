"""A daemon that listens at a name: whether this machine knows that."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from isthmus.programs.engine.machine import serve


@pytest.mark.parametrize(
    ("endpoint", "knows", "lines"),
    [
        ("tcp://alpha.example:7400", False, 1),
        ("tcp://alpha.example:7400", True, 0),
        ("tcp://10.0.0.1:7400", False, 0),
        ("tcp://[::1]:7400", False, 0),
        ("tcp://*:7400", False, 0),
    ],
)
def test_a_name_that_is_not_resolved_is_told(
    endpoint: str, knows: bool, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, *more: Any, **options: Any) -> list[Any]:
        assert host == "alpha.example"
        if not knows:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return []

    told: list[str] = []
    monkeypatch.setattr(serve.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(serve, "_tell", told.append)
    serve._tell_unresolved(endpoint)
    assert len(told) == lines
    assert all("alpha.example" in line for line in told)
