"""Who is answered at the port of metrics."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.programs.command.options import metrics_at
from isthmus.programs.engine.metrics import exporter as module
from isthmus.programs.engine.metrics.exporter import Exporter, MetricsAddress, on_loop
from isthmus.programs.engine.metrics.run_status import RunStatus
from isthmus.runtime.errors import ConfigError


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter("alpha", MetricsAddress(0), lambda: [RunStatus("r", [], {"tokens": 5})])
    yield made
    made.close()


def answer(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as opened:
            return opened.status, opened.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_metrics_are_there_and_nothing_else(exporter: Exporter) -> None:
    status, text = answer(exporter.url)
    assert (status, 'isthmus_run_tokens_total{run="r"} 5.0' in text) == (200, True)
    base = exporter.url.removesuffix("/metrics")
    assert answer(f"{base}/")[0] == 404
    assert answer(f"{base}/metrics/../etc")[0] == 404
    assert answer(exporter.url, "POST")[0] == 405
    assert answer(exporter.url, Host="evil.example")[0] == 421


def test_a_taken_port_and_a_wrong_one_are_refused(exporter: Exporter) -> None:
    taken = int(exporter.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(ConfigError, match="a port that are free"):
        Exporter("beta", MetricsAddress(taken), list)
    with pytest.raises(ConfigError, match="a port"):
        metrics_at(65536, "127.0.0.1")
    with pytest.raises(ConfigError, match="--metrics-port beside it"):
        metrics_at(None, "0.0.0.0")
    assert metrics_at(None, "127.0.0.1") is None


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isthmus\[metrics\]"):
        Exporter("alpha", MetricsAddress(0), list)


def test_a_loop_makes_the_statuses_and_one_that_is_busy_or_closed_none(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    threads: list[Any] = []

    def make() -> list[RunStatus]:
        threads.append(threading.current_thread())
        return [RunStatus("r", [])]

    assert on_loop(loop, make)() == [RunStatus("r", [])]
    assert threads == [thread]
    monkeypatch.setattr(module, "SECONDS_MAX", 0.01)
    is_free = threading.Event()
    loop.call_soon_threadsafe(is_free.wait)
    with pytest.raises(TimeoutError):
        on_loop(loop, make)()
    busy = Exporter("alpha", MetricsAddress(0), on_loop(loop, make))
    assert answer(busy.url)[0] == 503
    is_free.set()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()
    assert answer(busy.url)[0] == 503
    busy.close()


def test_who_asks_nothing_gives_its_place_to_who_does(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each took a thread of the run's process, as many as there were, and wrote a traceback into its output."""
    monkeypatch.setattr(module, "SCRAPES_MAX", 1)
    with socket.create_connection(exporter._server.server_address[:2], timeout=60) as idle:
        with pytest.raises((OSError, http.client.HTTPException)):
            answer(exporter.url)
        monkeypatch.setattr(module, "SECONDS_MAX", -1.0)
        assert answer(exporter.url)[0] == 200
        assert idle.recv(1) == b""
    assert capsys.readouterr().err == ""


def test_an_exporter_that_is_closed_has_no_port() -> None:
    made = Exporter("alpha", MetricsAddress(0), list)
    made.close()
    port = int(made.url.rpartition(":")[2].partition("/")[0])
    with socket.socket() as opened:
        assert opened.connect_ex(("127.0.0.1", port)) != 0
