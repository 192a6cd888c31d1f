"""`--metrics-port N`: a page in the text format of Prometheus, at http://127.0.0.1:N/metrics.

Decides who is answered what. Figures are asked for when somebody scrapes, and cost nothing otherwise; a thread answers,
so a run never waits for one. Where they are those of a daemon, its loop makes them; where that is too busy for
SECONDS_MAX the answer is 503, a failed scrape.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.addresses import LOOPBACK
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.wire.security_keys import is_loopback, is_loopback_name

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from isthmus.programs.engine.metrics.run_status import RunStatus

SECONDS_MAX: Final = 5.0
PATH: Final = "/metrics"


SCRAPES_MAX: Final = 32


class _ScrapeServer(socketserver.ThreadingMixIn, WSGIServer):
    """A thread for each scrape, which ends with the process, of SCRAPES_MAX; more are refused, or take the place of one
    that has lasted for longer than SECONDS_MAX."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: dict[Any, float] = {}
        """When a connection was taken, the oldest first."""

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for it."""
        now = time.monotonic()
        if len(self._open) >= SCRAPES_MAX:
            oldest, begun = next(iter(list(self._open.items())), (None, now))
            if oldest is None or now - begun <= SECONDS_MAX:
                return False
            self._open.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._open[request] = now
        return True

    def shutdown_request(self, request: Any) -> None:
        """It is over."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a client does wrong, or too slowly, is not told; errors of ours are."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@final
class _ServerOfSix(_ScrapeServer):
    """The same at an address of IPv6."""

    address_family = socket.AF_INET6


@final
class _Handler(WSGIRequestHandler):
    timeout = 10.0
    """Seconds for a client to say what it wants."""

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not told."""


@final
@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where metrics are asked for."""

    port: int
    address: str = LOOPBACK


@final
class Exporter:
    """Serves the metrics of `machine` at a port, until it is closed; `statuses` returns those of its runs."""

    def __init__(self, machine: str, at: MetricsAddress, statuses: Callable[[], Sequence[RunStatus]]) -> None:
        """Listen; ConfigError if prometheus-client is missing, or the port is taken. Port 0: any that is free."""
        address, port = at.address, at.port
        doing = f"Serving metrics at {address}:{port}"
        if find_spec("prometheus_client") is None:
            do = "pip install 'isthmus[metrics]', or leave --metrics-port out."
            raise ConfigError(doing, "the library prometheus-client", "none", do)
        from prometheus_client import CollectorRegistry, make_wsgi_app

        self._machine, self._statuses = machine, statuses
        registry = CollectorRegistry()
        registry.register(self)
        self._app: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._is_local = is_loopback(f"tcp://{f'[{address}]' if ':' in address else address}:{port}")
        kind = _ServerOfSix if ":" in address else _ScrapeServer
        try:
            self._server = make_server(address, port, self._answer, kind, _Handler)
        except (OSError, OverflowError) as error:
            do = "Take another --metrics-port, 0 for any that is free, and for --metrics-address one of this machine."
            raise ConfigError(doing, "an address and a port that are free", str(error), remedy(error, do)) from None
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def describe(self) -> list[Any]:
        """What a registry asks at the start: nothing is known by then."""
        return []

    def collect(self) -> list[Any]:
        """The metrics now."""
        from isthmus.programs.engine.metrics.families import families

        return list(families(self._machine, self._statuses()))

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def refuse(status: str) -> Iterable[bytes]:
            start_response(status, [("Content-Type", "text/plain")])
            return [f"{status}\n".encode()]

        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return refuse("405 Method Not Allowed")
        if environ["PATH_INFO"] != PATH:
            return refuse("404 Not Found")
        if self._is_local and not is_loopback_name(environ.get("HTTP_HOST", "")):
            return refuse("421 Misdirected Request")
        try:
            return self._app(environ, start_response)
        except TimeoutError:
            return refuse("503 Service Unavailable")


def on_loop(loop: Any, make: Callable[[], Sequence[RunStatus]]) -> Callable[[], Sequence[RunStatus]]:
    """What `make` returns on `loop`, for other threads; TimeoutError if the loop is too busy, or has ended."""

    def statuses() -> Sequence[RunStatus]:
        made: Future[Sequence[RunStatus]] = Future()

        def work() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        try:
            loop.call_soon_threadsafe(work)
        except RuntimeError:  # It is closed.
            raise TimeoutError from None
        return made.result(SECONDS_MAX)

    return statuses
