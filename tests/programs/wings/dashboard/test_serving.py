"""Who is answered by the dashboard, and with what."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from typer.testing import Result

from isthmus.programs.wings.dashboard import serving
from isthmus.programs.wings.dashboard.serving import EMPTY_PATH, PagePlace, Shown, application, read_token, script_path
from isthmus.runtime.errors import ConfigError
from tests.programs.engine.results.made_up_run import build

TOKEN = "0123456789abcdef0123"
PAGE_BYTES_MAX = 300_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs") / "first")


class Answer:
    """What an application said to one request."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[str, str](), b""

    @property
    def text(self) -> str:
        return zlib.decompressobj(31).decompress(self.body).decode() if self.is_packed else self.body.decode()

    @property
    def is_packed(self) -> bool:
        return self.headers.get("content-encoding") == "gzip"


async def _asked(app: Any, method: str, path: str, headers: dict[str, str], enough: Callable[[Answer], bool]) -> Answer:
    answer, is_enough, came = (
        Answer(),
        asyncio.Event(),
        iter([{"type": "http.request", "body": b"", "more_body": False}]),
    )
    path, _, query = path.partition("?")

    async def receive() -> dict[str, Any]:
        for message in came:
            return message
        await is_enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]
            if not message.get("more_body") or enough(answer):
                is_enough.set()

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path}
    scope |= {"raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http"}
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    scope |= {"server": ("127.0.0.1", 80), "client": ("127.0.0.1", 4711)}
    await asyncio.wait_for(app(scope, receive, send), 60)
    return answer


def ask(
    folder: Path,
    path: str = "/",
    method: str = "GET",
    *,
    token: str = "",
    base: str = "",
    enough: Callable[[Answer], bool] = lambda _: True,
    **headers: str,
) -> Answer:
    named = {"host": "127.0.0.1:8900", **{name.replace("_", "-"): value for name, value in headers.items()}}

    async def asked() -> Answer:
        app, _ = application(Shown(folder.parent, lambda: folder.name), token, PagePlace.of(base), is_local=not token)
        return await _asked(app, method, path, named, enough)

    return asyncio.run(asked())


def test_the_page_is_one_document_and_one_script(folder: Path) -> None:
    page = ask(folder)
    assert page.status == 200
    (source,) = re.findall(r'<script src="([^"]+)"', page.text)
    assert source == f".{script_path()}"
    script = ask(folder, source[1:])
    assert (script.status, "uPlot" in script.text, "EventSource" in script.text) == (200, True, True)
    assert not re.search(r"https?://(?!www\.w3\.org|github\.com/leeoniya)", page.text)
    assert "&gt;" not in page.text  # Styles are no text.
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for answer in (page, ask(folder, EMPTY_PATH), ask(folder, "/run/first")):
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_is_light(folder: Path) -> None:
    every = [ask(folder), ask(folder, script_path()), ask(folder, "/run/-/events", enough=_has_all)]
    assert sum(len(answer.body) for answer in every) <= PAGE_BYTES_MAX
    packed = [ask(folder, accept_encoding="gzip"), ask(folder, script_path(), accept_encoding="gzip")]
    assert all(answer.is_packed for answer in packed)
    assert packed[0].text == every[0].text


def _has_all(answer: Answer) -> bool:
    return "event: runs" in answer.text and "event: charts" in answer.text


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_events_have_every_part_of_the_run(folder: Path, encoding: str) -> None:
    answer = ask(folder, "/run/first/events", enough=_has_all, accept_encoding=encoding)
    events = re.findall(r"event: (\w+)\ndata: (.+)\n\n", answer.text)
    below = {"fragments", "traffic", "failures", "settings", "data", "sites", "charts", "runs"}
    assert {name for name, _ in events} == {"head", "merges", "goodput", "learners", *below}
    data = {name: json.loads(text) for name, text in events}
    assert (data["head"]["run"], data["head"]["outcome"]) == ("first", "done")
    assert data["charts"][0]["name"] == "loss"


@pytest.mark.parametrize(
    ("status", "request_words"),
    [
        (405, {"method": "POST"}),
        (405, {"method": "PUT", "path": "/run/first/events"}),
        (405, {"method": "BREW"}),
        (404, {"path": "/run/second"}),
        (404, {"path": "/run/second/events"}),
        (404, {"path": "/run/..%2f..%2fetc/events"}),
        (404, {"path": "/run/../../etc/passwd"}),
        (404, {"path": "/etc/passwd"}),
        (404, {"path": "//"}),
        (414, {"path": f"/{'a' * 600}"}),
        (414, {"path": f"/?{'a' * 600}"}),
        (421, {"host": "evil.example:8900"}),
        (421, {"host": "127.0.0.1.evil.example"}),
        (421, {"host": ""}),
        (403, {"origin": "http://evil.example"}),
        (403, {"origin": "null"}),
        (403, {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}),
    ],
)
def test_hostile_requests_are_refused(folder: Path, status: int, request_words: dict[str, str]) -> None:
    assert ask(folder, **request_words).status == status


def addresses_of(answer: Answer) -> list[str]:
    """What the page refers to, each address without its last name."""
    assert answer.status == 200
    found = re.findall(r'(?:src|href)="([^"#d][^"]*)"', answer.text)
    assert len(found) == 2
    return sorted({address.removesuffix(script_path()[1:]) for address in found})


def test_the_pages_own_addresses_are_relative(folder: Path) -> None:
    assert addresses_of(ask(folder)) == ["./"]
    assert addresses_of(ask(folder, "/run/first")) == ["../"]
    for name in ("dashboard.js", "page.html"):  # No other way to an address.
        assert not re.search(r"""["'`(=]/[a-z{]""", serving._own(name).replace("// ", ""))


@pytest.mark.parametrize("told", ["/user/me/proxy/8900", "/user/me/proxy/8900/", "/user/me/proxy/8900, /other"])
def test_a_proxy_says_where_it_has_the_page(folder: Path, told: str) -> None:
    for path in ("/", "/run/first"):
        assert addresses_of(ask(folder, path, x_forwarded_prefix=told)) == ["/user/me/proxy/8900/"]


@pytest.mark.parametrize("told", ["", "/", "x", '/"><script>', "//evil.example", "https://evil.example", "/a" * 400])
def test_what_is_no_path_is_not_taken_for_one(folder: Path, told: str) -> None:
    assert addresses_of(ask(folder, x_forwarded_prefix=told)) == ["./"]


@pytest.mark.parametrize("path", ["/", "/run/first", "/lab/page", "/lab/page/", "/lab/page/run/first"])
def test_a_path_that_a_proxy_keeps_is_given(folder: Path, path: str) -> None:
    assert addresses_of(ask(folder, path, base="/lab/page/")) == ["/lab/page/"]
    for below in ("", "/lab/page"):
        assert ask(folder, below + script_path(), base="/lab/page").status == 200
        assert ask(folder, f"{below}/run/first/events", base="/lab/page").status == 200
    for wrong in ("/lab", "/lab/pages/", "/lab/page/lab/page/", "/run/lab/page"):
        assert ask(folder, wrong, base="/lab/page").status == 404


def test_a_proxy_is_called_by_its_own_name_where_that_is_given(folder: Path) -> None:
    base = "https://Hub.example/lab"
    for host in ("hub.example", "HUB.example", "127.0.0.1:8900"):
        for words in ({}, {"origin": "https://hub.example"}):
            assert ask(folder, "/", base=base, host=host, **words).status == 200
    assert ask(folder, "/", base=base, host="evil.example").status == 421
    assert ask(folder, "/", base=base, origin="https://evil.example").status == 403
    assert ask(folder, "/", base="/lab", host="hub.example").status == 421
    assert ask(folder, "/", base="/lab", host="").status == 421
    assert (PagePlace.of(base).url, PagePlace.of("/lab/").url) == ("https://hub.example/lab/", "")


@pytest.mark.parametrize(
    "text", ["lab", "//evil.example/x", "ftp://hub/x", "/a b", "/x?y", "/x#y", "https://", "https://me:pw@hub/", '/"']
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        PagePlace.of(text)


def test_with_a_token_nothing_is_answered_without_it(folder: Path) -> None:
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    wrong = base64.b64encode(b"anyone:wrong").decode()
    paths = ("/", "/run/first", "/run/first/events", script_path(), EMPTY_PATH, "/nothing")
    for path in paths:
        for refused in ("", f"Basic {wrong}", "Basic !", f"Basic {base64.b64encode(TOKEN.encode()).decode()}", TOKEN):
            answer = ask(folder, path, token=TOKEN, authorization=refused)
            assert (answer.status, "Basic" in answer.headers["www-authenticate"]) == (401, True)
    for given in (f"Basic {basic}", f"Bearer {TOKEN}"):
        answer = ask(folder, token=TOKEN, authorization=given, host="10.0.0.1:8900")
        assert answer.status == 200


def test_so_many_pages_are_open_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "VIEWERS_MAX", 0)
    answer = ask(folder, "/run/first/events")
    assert (answer.status, answer.headers["retry-after"]) == (429, "30")


class Wire(asyncio.Transport):
    """A connection's transport, with so much that was not taken."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.left, self.is_over = 0, False

    def get_write_buffer_size(self) -> int:
        return self.left

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True


def test_who_asks_nothing_or_takes_nothing_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hundred of them took all the files of the process, and nobody was answered."""
    looks: list[Callable[[], None]] = []
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 3)
    config = uvicorn.Config(lambda: None, ws="none", lifespan="off", log_config=None)
    config.load()
    state = uvicorn.server.ServerState()

    async def connections() -> list[tuple[Any, Wire]]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda _, look: looks.append(look))
        made = [(serving.ViewerConnection(config, state, {}, loop), Wire()) for _ in range(4)]
        for connection, wire in made:
            connection.connection_made(wire)
        return made

    (_, idle_wire), (busy, busy_wire), (stuck, stuck_wire), (_, late_wire) = asyncio.run(connections())
    assert [wire.is_over for wire in (idle_wire, busy_wire, stuck_wire, late_wire)] == [False, False, False, True]
    for each in (busy, stuck):
        each.cycle = SimpleNamespace(response_complete=False)
    for left, is_over in ((0, False), (7, False), (5, False), (5, True)):
        stuck_wire.left = left
        for _ in range(len(looks)):
            looks.pop(0)()
        assert (busy_wire.is_over, stuck_wire.is_over) == (False, is_over)
    assert idle_wire.is_over
    busy.cycle.response_complete = True  # It may ask once more.
    looks.pop()()
    assert not busy_wire.is_over
    looks.pop()()
    assert busy_wire.is_over
    assert not looks


def test_an_error_of_ours_ends_the_stream_and_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(serving.parts, "merges", fail)
    answer = ask(folder, "/run/first/events", enough=lambda _: False)
    assert "event:" not in answer.text
    assert answer.text.endswith("retry: 60000\n\n")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_token_is_read_from_a_file_that_others_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        read_token(file)
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    file.write_text("short")
    with pytest.raises(ConfigError, match="16 or more"):
        read_token(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "nothing")
    monkeypatch.setenv(serving.TOKEN_VARIABLE, TOKEN)
    assert read_token(None) == TOKEN
    assert serving.TOKEN_VARIABLE not in os.environ
    assert read_token(None) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "0.0.0.0"], "a token"),
        (["--address", "192.0.2.1"], "a token"),
        (["--address", "nowhere.invalid"], "a token"),
        (["--port", "65536"], "a port"),
        (["--port", "-1"], "a port"),
        (["nothing"], "a run folder"),
        (["first", "--cluster", "cluster.toml"], "RUN or --cluster"),
        (["--token-file", "nothing"], "a file with a token"),
    ],
)
def test_wrong_requests_open_nothing(folder: Path, typed: Callable[..., Result], words: list[str], said: str) -> None:
    run = [] if words[0] in ("nothing", "first") else ["first"]
    result = typed(folder.parent, "dashboard", *run, *words)
    assert (result.exit_code, said in result.output) == (2, True), result.output
    assert "http" not in result.output


@pytest.mark.process
def test_the_first_line_is_the_address_and_a_signal_ends_it(folder: Path) -> None:
    command = [sys.executable, "-m", "isthmus.programs.command", "dashboard", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            url = served.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
            with urllib.request.urlopen(f"{url}run/-/events", timeout=60) as stream:
                lines = iter(stream.readline, b"")
                assert any(line == b"event: head\n" for line in lines)
                served.send_signal(signal.SIGINT)
                while stream.readline():  # It ends, because the page does.
                    pass
            assert served.wait(60) == 0
        finally:
            served.kill()
        out, err = served.communicate()
        assert (out, err) == ("", "")
