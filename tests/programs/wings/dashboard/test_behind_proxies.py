"""The page behind a proxy's path, in a real browser: every part of it, live."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bench.browser.chromium import FOUND, Chromium, Tab, chromium
from tests.programs.engine.results.made_up_run import build

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.skipif(FOUND is None, reason="no chromium on the PATH"),
]
PREFIX = "/user/me/proxy/8900"


class Way(NamedTuple):
    """How a proxy hands a request on: whether it takes the path away, says what it was, and keeps the name of itself;
    and what the page was told (--base-path)."""

    takes: bool
    says: bool = False
    keeps_name: bool = False
    base: str = ""


WAYS = {
    "takes the path, and says nothing": Way(True),
    "takes the path, and says it": Way(True, says=True),
    "keeps the path": Way(False, base=PREFIX),
    "keeps path and name": Way(False, keeps_name=True, base="http://hub.localhost:PORT" + PREFIX),
    "takes the path, keeps its name": Way(True, keeps_name=True, base="http://hub.localhost:PORT" + PREFIX),
}


class Proxy:
    """One that has the page of a port below PREFIX, a thread for each direction of each connection."""

    def __init__(self, way: Way) -> None:
        self._way, self.target = way, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := client.recv(65536)):
                    return
                head += more
            server.sendall(self._handed_on(head.decode()).encode())
            while more := server.recv(65536):
                client.sendall(more)

    def _handed_on(self, head: str) -> str:
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, version = first.split(" ")
        if not path.startswith(f"{PREFIX}/"):
            path = "/outside"
        elif self._way.takes:
            path = path.removeprefix(PREFIX)
        lines = [each for each in lines if not each.lower().startswith(("connection:", "origin:"))]
        if not self._way.keeps_name:
            lines = [each for each in lines if not each.lower().startswith("host:")] + [
                f"Host: 127.0.0.1:{self.target}"
            ]
        if self._way.says:
            lines.append(f"X-Forwarded-Prefix: {PREFIX}")
        return "\r\n".join([f"{method} {path} {version}", *lines, "Connection: close", "", ""])

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "first")


@pytest.mark.parametrize("way", WAYS)
def test_all_parts_are_there_and_live(folder: Path, browser: Chromium, way: str) -> None:
    proxy = Proxy(WAYS[way])
    name = "hub.localhost" if WAYS[way].keeps_name else "127.0.0.1"
    base = WAYS[way].base.replace("PORT", str(proxy.port))
    command = [sys.executable, "-m", "isthmus", "dashboard", str(folder), *(["--base-path", base] if base else [])]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        told = served.stdout.readline().strip()
        if WAYS[way].keeps_name:
            assert told == f"http://hub.localhost:{proxy.port}{PREFIX}/"
        proxy.target = _port_of(served.pid)
        tab = Tab(browser, 1200, 800)
        texts = "[...document.querySelectorAll('section')].map((each) => each.innerText).join()"
        drawn = "document.querySelector('#loss canvas') && document.querySelector('#runs canvas')"
        texts = "[...document.querySelectorAll('section')].map((each) => each.innerText).join()"
        shown = ""
        places = [f"{name}:{proxy.port}{PREFIX}/{page}" for page in ("", "run/first")]
        for place in (f"127.0.0.1:{proxy.target}/", *places):
            tab.open(f"http://{place}")
            tab.until("document.readyState === 'complete' && document.getElementById('link').textContent === 'live'")
            for drawn in ("#loss canvas", "#runs canvas", "#runs a"):
                tab.until(f"document.querySelector('{drawn}') !== null")
            if place not in places:
                shown = tab.value(texts)
                continue
            tab.until(f"{texts} === {json.dumps(shown)}")
            assert tab.value("document.querySelector('#runs a').href").endswith(f"{PREFIX}/run/first")
            assert tab.value("document.querySelector('a.brand').href").endswith(f"{PREFIX}/")
        tab.close()
    finally:
        served.kill()
        served.wait()
        if served.stdout is not None:
            served.stdout.close()
        proxy.close()


def _port_of(pid: int) -> int:
    """Where a process listens."""
    names = {path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    sockets = {match[1] for name in names if (match := re.fullmatch(r"socket:\[(\d+)\]", name))}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in sockets:
            return int(words[1].rpartition(":")[2], 16)
    raise AssertionError("it does not listen")
