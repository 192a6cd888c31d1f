"""`isthmus dashboard`: answers browsers, on loopback, or elsewhere to those that have the token.

Decides who is answered what. A page is one document and one script; what changes in it comes as server-sent events, a
part of the page each, and only the parts that are others than before. A run is looked at once a second for as long as
somebody views it, in a thread, however many do; its curves are drawn anew so rarely that they cost a hundredth of a
core. Only GET and HEAD are answered, for addresses that were announced; every other request gets a 4xx.

Behind a proxy the page may be below any path. Its own addresses are relative, so that a proxy which takes that path
away needs to say nothing; where one does not, or leaves out the slash behind it, `PagePlace` or X-Forwarded-Prefix says
what the path is.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import os
import re
import socket
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from isthmus.programs.study.terminal.figures import TokenSpeed
from isthmus.programs.wings.dashboard import parts
from isthmus.programs.wings.dashboard.watched_run import Look, WatchedRun, place_of, runs_below
from isthmus.programs.wings.report.charts_lines import charts
from isthmus.programs.wings.report.page import resource
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.wire.security_keys import OTHERS, is_loopback, is_loopback_name

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from isthmus.programs.engine.machine.client import DaemonClient

LOOK_SECONDS: Final = 1.0
RUNS_SECONDS: Final = 5.0
"""Between two looks at the other runs of the folder."""
DRAWN_SECONDS_MIN: Final = 2.0
DRAWN_TIMES: Final = 100
"""Curves are drawn anew after so many times what it took: a hundredth of a core."""
AFTER_ERROR_SECONDS: Final = 60.0
"""Until a page asks again about a run that could not be shown."""
METRICS_MAX: Final = 64
"""Scalars beside the loss that have a curve."""
BEAT_SECONDS: Final = 15.0
"""Between two events a line that keeps the connection."""
VIEWERS_MAX: Final = 32
CONNECTIONS_MAX: Final = 256
"""Fewer than a process may have files; of more the newest are closed."""
BACKLOG: Final = 64
"""So many are accepted in one turn of the loop, before any can be closed."""
IDLE_SECONDS: Final = 10.0
"""A connection that asks nothing for so long, or takes nothing of what it asked for, is closed."""
FEEDS_MAX: Final = 8
"""Runs whose files stay read when nobody views them."""
PATH_LENGTH_MAX: Final = 512
_PACKAGE: Final = "isthmus.programs.wings.dashboard"


# -- what is shown -----------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """The runs that are shown: those of a `folder`, of which `first` names the one that the first page is about.

    `home` is asked about a run whose folder is on another machine: then it is the only one.
    """

    folder: Path
    first: Callable[[], str]
    home: DaemonClient | None = None

    def runs(self) -> Mapping[str, Path]:
        """The run folders by name, the newest last."""
        if self.home is not None:
            return {self.first(): self.folder / self.first()}
        return runs_below(self.folder)


@final
class LiveParts:
    """The parts of the page of one run, as JSON, each with a number that changes with it."""

    def __init__(self, shown: Shown, folder: Path) -> None:
        self.parts: dict[str, tuple[int, bytes]] = {}
        self.viewers = 0
        self._shown = shown
        self._run = WatchedRun(folder, shown.home)
        self._speed, self._traffic, self._list = TokenSpeed(), parts.TrafficRates(), parts.RunList()
        self._columns = parts.MergeColumns()
        self._seen: object = None
        self._drawn_at = self._listed_at = -float("inf")
        self._drawn_for: object = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def view(self) -> None:
        """Look at the run from now on, if it is not looked at."""
        self.viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    def leave(self) -> None:
        """A viewer has gone; after the last one nothing is looked at."""
        self.viewers -= 1
        if not self.viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def changed(self) -> None:
        """Wait until a part has changed, for BEAT_SECONDS at most."""
        try:
            await asyncio.wait_for(self._changed.wait(), BEAT_SECONDS)
        except TimeoutError:
            return

    @property
    def has_failed(self) -> bool:
        """Whether it looks no more, because of an error of ours, which is on standard error."""
        return self._task is not None and self._task.done()

    async def _follow(self) -> None:
        try:
            await self._look_again()
        except Exception:
            traceback.print_exc()
            self._changed.set()

    async def _look_again(self) -> None:
        while True:
            begun = time.monotonic()
            for name, data in (await asyncio.to_thread(self._look, begun)).items():
                number, before = self.parts.get(name, (0, b""))
                if data != before:
                    self.parts[name] = number + 1, data
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(max(0.1, LOOK_SECONDS - (time.monotonic() - begun)))

    def _look(self, now: float) -> dict[str, bytes]:
        """The parts as they are now; those that are not due are left out."""
        look = self._run.look(now)
        made: dict[str, Any] = {}
        seen = (id(look.status), look.merges.count, len(look.changes)) if look.summary is not None else None
        if seen is None or seen != self._seen:  # A run that is over stays as it is.
            self._seen = seen
            made |= {
                "head": parts.head(look, self._speed),
                "merges": parts.merges(look, self._columns),
                "goodput": parts.goodput(look),
                "learners": parts.learners(look),
                "fragments": parts.fragments(look),
                "traffic": self._traffic.part(look),
                "failures": parts.failures(look),
                "settings": parts.settings(look),
                "data": parts.data(look),
                "sites": parts.sites(look),
            }
        if now >= self._drawn_at and (drawn := self._draw(look)) is not None:
            made["charts"] = drawn
        if now >= self._listed_at and self._shown.home is None:
            self._listed_at = now + RUNS_SECONDS
            made["runs"] = self._list.part(self._shown.runs(), look, place_of)
        return {name: msgspec.json.encode(part) for name, part in made.items()}

    def _draw(self, look: Look) -> list[Any] | None:
        """The charts of the report, and that of the settings; None if nothing was read since."""
        what = {slot: line.time for slot, line in look.newest.items()}, len(look.changes), look.summary is not None
        if what == self._drawn_for:
            return None
        begun = time.thread_time()
        drawn = [*charts(self._run.record(look), None, METRICS_MAX), *parts.steps_of_settings(look)]
        self._drawn_for = what
        self._drawn_at = look.at + max(DRAWN_SECONDS_MIN, DRAWN_TIMES * (time.thread_time() - begun))
        return drawn


# -- where the page is -------------------------------------------------------------------------------------------------

ROOTS_MAX: Final = 8
"""Pages that are kept for as many paths of proxies."""
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~@:+%-]+)+")


@final
@dataclass(frozen=True, slots=True)
class PagePlace:
    """Where browsers find the page, if a proxy has it below a path: the `path`, without a slash at its end, and the
    `url` with that path, where the name of its host is known, too."""

    path: str = ""
    url: str = ""

    @classmethod
    def of(cls, text: str) -> PagePlace:
        """The place that a path names, or a whole address; ConfigError for another text."""
        parts = urlsplit(text)
        path = parts.path.rstrip("/")
        is_whole = parts.scheme in ("http", "https") and bool(parts.netloc) and "@" not in parts.netloc
        is_path = not (parts.scheme or parts.netloc)
        if not (is_whole or is_path) or parts.query or parts.fragment or (path and not _PATH.fullmatch(path)):
            do = "As in --base-path /user/me/proxy/8900, or with the name: --base-path https://hub.example/lab."
            raise ConfigError("Reading --base-path", "a path, or http(s)://NAME/PATH", repr(text), do)
        return cls(path, f"{parts.scheme}://{parts.netloc.lower()}{path}/" if is_whole else "")

    @property
    def host(self) -> str:
        """The name, and perhaps the port, by which browsers call the proxy; "" where that is not known."""
        return urlsplit(self.url).netloc

    def within(self, scope: Scope) -> Scope:
        """A request as one below the path, if its proxy has left that there."""
        if not self.path or not f"{scope['path']}/".startswith(f"{self.path}/"):
            return scope
        path = f"{self.path}/" if scope["path"] == self.path else scope["path"]
        return {**scope, "root_path": self.path, "path": path}

    def root(self, request: Request, relative: str) -> str:
        """How the page's own addresses begin: `relative`, unless somebody has said what the path is."""
        told = self.path or request.headers.get("x-forwarded-prefix", "").partition(",")[0].strip().rstrip("/")
        return f"{told}/" if len(told) <= PATH_LENGTH_MAX and _PATH.fullmatch(told) else relative


AT_ROOT: Final = PagePlace()


# -- who is answered ---------------------------------------------------------------------------------------------------

_ALLOWED: Final = ("GET", "HEAD")
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@final
class Guard:
    """Answers requests that are to be refused; all others go to `app`.

    Without a token only this machine is answered, and only under a name of loopback: a page from elsewhere whose name
    leads here is refused. With one, the password of HTTP's basic scheme, or a bearer token, has to be it.
    """

    def __init__(self, app: ASGIApp, token: str, place: PagePlace, *, is_local: bool) -> None:
        self._app, self._token, self._place, self._is_local = app, token, place, is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(self._place.within(scope), receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        refuse = partial(PlainTextResponse, headers=dict(_HEADERS))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] not in _ALLOWED:
            return PlainTextResponse("only GET and HEAD\n", 405, {**_HEADERS, "allow": ", ".join(_ALLOWED)})
        if len(scope["raw_path"]) + len(scope["query_string"]) > PATH_LENGTH_MAX:
            return refuse("no page has so long an address\n", 414)
        host = headers.get("host", "").lower()
        if self._is_local and not is_loopback_name(host) and not (host and host == self._place.host):
            return refuse("this page is at 127.0.0.1 alone, or where --base-path https://NAME/PATH says\n", 421)
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return refuse("no other page may read this one\n", 403)
        origin = headers.get("origin", "")
        if origin and origin.partition("://")[2].lower() not in (host, self._place.host or host):
            return refuse("no other page may read this one\n", 403)
        if self._token and not _has(headers.get("authorization", ""), self._token):
            ask = {**_HEADERS, "www-authenticate": 'Basic realm="isthmus: the token is the password", charset="UTF-8"'}
            return PlainTextResponse("the token is needed\n", 401, ask)
        return None


def _has(authorization: str, token: str) -> bool:
    """Whether the header has the token, as a bearer's or as the password of any user."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    return scheme.lower() in ("basic", "bearer") and hmac.compare_digest(value.encode(), token.encode())


# -- the application ---------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class Document:
    """A document that never changes, as it is and compressed."""

    kind: str
    plain: bytes
    packed: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, kind: str, text: str, **headers: str) -> Document:
        """The document of a text."""
        plain = text.encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(kind, plain, gzip.compress(plain, 9, mtime=0), named)

    def response(self, request: Request) -> Response:
        """It, compressed where that is understood."""
        is_packed = _takes_gzip(request)
        headers = {**_HEADERS, "vary": "accept-encoding", **self.headers}
        headers |= {"content-encoding": "gzip"} if is_packed else {}
        return Response(self.packed if is_packed else self.plain, media_type=self.kind, headers=headers)


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


@cache
def _script() -> Document:
    names = ("uplot/uPlot.iife.min.js", "plots.js")
    texts = [f"/* The curves are drawn by uPlot 1.6.32.\n{resource('uplot/LICENSE')}*/", *map(resource, names)]
    script = "\n".join([*texts, _own("dashboard.js")])
    return Document.of("text/javascript", script, cache_control="max-age=31536000, immutable")


@lru_cache(maxsize=ROOTS_MAX)
def _page(root: str) -> Document:
    """The page whose own addresses begin with `root`."""
    sheets = (resource("style.css"), resource("uplot/uPlot.min.css"), _own("dashboard.css"))
    style = "".join(map(str, sheets))
    html = _own("page.html").replace("{{ style }}", style).replace("{{ root }}", root)
    html = html.replace("{{ script }}", script_path()[1:])
    policy = [
        "default-src 'none'",
        "connect-src 'self'",
        f"script-src 'self'; style-src 'sha256-{_digest(style)}'",
        "img-src data:",
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ]
    return Document.of("text/html", html, content_security_policy="; ".join(policy))


def script_path() -> str:
    """The address of the script, which changes with it."""
    return f"/{hashlib.sha256(_script().plain).hexdigest()[:16]}.js"


def _own(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


EMPTY_PATH: Final = "/empty"
"""A page without anything, with which the first paint of a page is compared."""


@final
class Pages:
    """The application: pages, their script, and the events of each run."""

    def __init__(self, shown: Shown, place: PagePlace) -> None:
        self._shown, self._place = shown, place
        self._feeds: dict[str, LiveParts] = {}
        self._viewers = 0
        self.is_ending = asyncio.Event()
        self.routes = [
            Route("/", self._first),
            Route("/run/{name}", self._page),
            Route("/run/{name}/events", self._events),
            Route(script_path(), lambda request: _script().response(request)),
            Route(EMPTY_PATH, lambda request: _EMPTY.response(request)),
        ]

    async def _first(self, request: Request) -> Response:
        """The page of the first run."""
        return _page(self._place.root(request, "./")).response(request)

    async def _page(self, request: Request) -> Response:
        if request.path_params["name"] not in self._shown.runs():
            return PlainTextResponse("no such run\n", 404, dict(_HEADERS))
        return _page(self._place.root(request, "../")).response(request)

    async def _events(self, request: Request) -> Response:
        name, runs = request.path_params["name"], self._shown.runs()
        name = self._shown.first() if name == "-" else name
        if name not in runs:
            return PlainTextResponse("no such run\n", 404, dict(_HEADERS))
        if self._viewers >= VIEWERS_MAX:
            return PlainTextResponse(f"{VIEWERS_MAX} pages are open\n", 429, {**_HEADERS, "retry-after": "30"})
        headers = {**_HEADERS, "x-accel-buffering": "no", "vary": "accept-encoding"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        body = self._stream(self._feed(name, runs[name]))
        if _takes_gzip(request):
            headers["content-encoding"], body = "gzip", _packed(body)
        return StreamingResponse(body, media_type="text/event-stream", headers=headers)

    def _feed(self, name: str, folder: Path) -> LiveParts:
        idle = [each for each, feed in self._feeds.items() if not feed.viewers and each != name]
        for each in idle[: max(0, len(self._feeds) - FEEDS_MAX)]:
            del self._feeds[each]
        if name not in self._feeds or self._feeds[name].has_failed:
            self._feeds[name] = LiveParts(self._shown, folder)
        return self._feeds[name]

    async def _stream(self, feed: LiveParts) -> AsyncIterator[bytes]:
        """The parts of a run, each whenever it has changed."""
        sent: dict[str, int] = {}
        self._viewers += 1
        feed.view()
        ending = asyncio.create_task(self.is_ending.wait())
        try:
            yield b"retry: 2000\n\n"
            while not ending.done() and not feed.has_failed:
                due = {name: part for name, part in feed.parts.items() if sent.get(name) != part[0]}
                sent |= {name: number for name, (number, _) in due.items()}
                events = [b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, (_, data) in due.items()]
                yield b"".join(events) or b": still here\n\n"
                waiting = asyncio.create_task(feed.changed())
                await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            if feed.has_failed:  # To read it all again at once would fail again.
                yield b"retry: %d\n\n" % int(1e3 * AFTER_ERROR_SECONDS)
        finally:
            ending.cancel()
            feed.leave()
            self._viewers -= 1


_EMPTY: Final = Document.of("text/html", "<!doctype html><title>empty</title><p>empty</p>")


async def _packed(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream, compressed, each piece complete by itself."""
    packer = zlib.compressobj(4, zlib.DEFLATED, 31)
    async for piece in stream:
        yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)


def application(
    shown: Shown, token: str = "", place: PagePlace = AT_ROOT, *, is_local: bool = True
) -> tuple[ASGIApp, Pages]:
    """The application, guarded, and its pages."""
    pages = Pages(shown, place)
    return Guard(Starlette(routes=pages.routes), token, place, is_local=is_local), pages


# -- serving -----------------------------------------------------------------------------------------------------------

TOKEN_VARIABLE: Final = "ISTHMUS_DASHBOARD_TOKEN"
TOKEN_LENGTH_MIN: Final = 16


def read_token(file: Path | None) -> str:
    """The token in a file that only its owner may read, or in the environment, out of which it is taken; '' without.

    ConfigError for a file that others may read, and for a token that could be guessed.
    """
    text, doing = os.environ.pop(TOKEN_VARIABLE, ""), f"Reading {TOKEN_VARIABLE}"
    if file is not None:
        doing = f"Reading the token in {file}"
        try:
            with file.open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode & 0o777
                text = opened.read(4096).decode("utf-8").strip()
        except (OSError, ValueError) as error:
            do = "Make one: (umask 077; openssl rand -hex 16 > FILE)."
            raise ConfigError(doing, "a file with a token", str(error), remedy(error, do)) from None
        if mode & OTHERS:
            do = f"Type `chmod 600 {file}`; and make a new one if somebody may have read it."
            raise ConfigError(doing, "a file that only its owner may read", f"one with mode {mode:04o}", do)
    elif not text:
        return ""
    if len(text) < TOKEN_LENGTH_MIN or not text.isascii() or not text.isprintable() or " " in text:
        expected = f"{TOKEN_LENGTH_MIN} or more letters and digits that nobody guesses"
        do = "Make one: (umask 077; openssl rand -hex 16 > FILE)."
        raise ConfigError(doing, expected, f"{len(text)} characters", do)
    return text


def bound(address: str, port: int, token: str) -> socket.socket:
    """The socket at which the page is; ConfigError if it may not be there, or the port is taken."""
    doing = f"Opening the page at {address}:{port}"
    if not is_loopback(f"tcp://{f'[{address}]' if ':' in address else address}:{port}") and not token:
        do = f"Give one with --token-file FILE, or in {TOKEN_VARIABLE}; or leave --address out, and come by ssh -L."
        raise ConfigError(doing, "a token, because others reach that address", "none", do)
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        do = "Take another --port, 0 for any that is free, and for --address one of this machine."
        raise ConfigError(doing, "an address and a port that are free", str(error), remedy(error, do)) from None


@final
class ViewerConnection(H11Protocol):
    """A connection that keeps a place only while it is used: anybody may open some, with or without a token."""

    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._seen = self._use()
        self.loop.call_later(IDLE_SECONDS, self._look)

    def _look(self) -> None:
        """Close it if it was of no use since the last look."""
        if self.transport.is_closing():
            return
        seen, self._seen = self._seen, self._use()
        if self._seen is not None and self._seen == seen:
            self.transport.abort()
            return
        self.loop.call_later(IDLE_SECONDS, self._look)

    def _use(self) -> object:
        """What is the same later on if nothing has happened; None while it is of use."""
        if left := self.transport.get_write_buffer_size():
            return "unread", left
        return None if self.cycle is not None and not self.cycle.response_complete else ("idle", self.cycle)


@final
class _PageServer(uvicorn.Server):
    """A server whose streams end when it is to end."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        self._pages.is_ending.set()


def serve(shown: Shown, address: str, port: int, token: str, place: PagePlace, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `say` gets the address of the page, once browsers are answered there."""
    opened = bound(address, port, token)
    host = f"[{address}]" if ":" in address else address
    try:
        url = place.url or f"http://{host}:{opened.getsockname()[1]}{place.path}/"
        asyncio.run(_serve(shown, opened, url, token, place, say))
    except KeyboardInterrupt:  # It is how one ends it.
        return
    finally:
        opened.close()


async def _serve(
    shown: Shown, opened: socket.socket, url: str, token: str, place: PagePlace, say: Callable[[str], None]
) -> None:
    app, pages = application(shown, token, place, is_local=not token)
    config = uvicorn.Config(
        app,
        http=ViewerConnection,
        backlog=BACKLOG,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _PageServer(config, pages)
    say(url)
    await server.serve(sockets=[opened])
