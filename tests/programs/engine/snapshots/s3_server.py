"""A server that speaks S3 on loopback, and a way to it that can be cut in the middle of what is said."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BUCKET = "runs"


@contextmanager
def serving() -> Iterator[int]:
    """A server with one bucket; its port. Its credentials are in the environment meanwhile."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        with environment(port):
            import boto3

            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield port
    finally:
        server.stop()


def variables(port: int) -> dict[str, str]:
    """What says where the server is."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def environment(port: int) -> Iterator[None]:
    """With S3 at a port of loopback."""
    before = {name: os.environ.get(name) for name in variables(port)}
    os.environ.update(variables(port))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Way:
    """A port of loopback that leads to another. `room` is how many bytes may still go there: then every connection is
    cut, and so is each later one; None for no bound. Each request takes `delay` seconds more."""

    def __init__(self, target: int, delay: float = 0.0) -> None:
        self.room: int | None = None
        self.requests = 0
        self._delay, self._asking = delay, set[socket.socket]()
        self._target, self._open = target, list[socket.socket]()
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.room = 0
        self._cut()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open += [near, far]
            for source, target, is_counted in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=(source, target, is_counted), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14):
                if is_counted and source not in self._asking:
                    self._asking.add(source)
                    self.requests += 1
                    threading.Event().wait(self._delay)
                elif not is_counted:
                    self._asking.discard(target)
                if is_counted and self.room is not None:
                    data, self.room = data[: self.room], max(0, self.room - len(data))
                target.sendall(data)
                if is_counted and self.room == 0:
                    self._cut()
                    return
            target.shutdown(socket.SHUT_WR)

    def _cut(self) -> None:
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open.clear()
