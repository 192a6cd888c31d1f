"""Commands that meet no daemon where the cluster file names one, or one of another version: they start nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from isthmus.runtime.wire.control_messages import PROTOCOL
from tests.programs.engine.machine.daemon_place import Place, cluster_file, fake_daemon


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Place(tmp_path)


def test_nobody_is_where_the_cluster_file_says(place: Place, typed: Callable[..., Result]) -> None:
    with fake_daemon(type="nothing") as address:
        pass
    for words in (place.training("run"), ("status",), ("stop",), ("logs", "daemon")):
        done = typed(place.folder, *words, "--cluster", cluster_file(place, "alpha", address))
        assert done.exit_code == 2
        assert "expected a daemon that listens there, found nobody." in done.stderr
        assert f"Start it: isthmus daemon --name alpha --listen {address}" in done.stderr
    assert not (place.folder / "run").exists()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"protocol": PROTOCOL + 1, "version": "7.0"}, f"found isthmus 7.0 with control protocol {PROTOCOL + 1}"),
        ({"protocol": PROTOCOL}, "found isthmus of an unknown version"),
        ({"raw": b"HTTP/1.1 400 Bad Request"}, "expected an answer of a daemon of isthmus, found not a control"),
    ],
)
def test_a_daemon_of_another_version(
    place: Place, typed: Callable[..., Result], answer: dict[str, object], found: str
) -> None:
    with fake_daemon(**{"type": "machine", "name": "alpha", **answer} if "raw" not in answer else answer) as address:
        for words in (place.training("run"), ("status",)):
            done = typed(place.folder, *words, "--cluster", cluster_file(place, "alpha", address))
            assert done.exit_code == 2
            assert found in done.stderr
            assert done.stderr.count("isthmus: ") == 1
    assert not (place.folder / "run").exists()
