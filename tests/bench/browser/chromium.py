"""Chromium without a window, by its debugging protocol over a pipe: no port, and no library.

Messages are JSON, each ended by a zero byte; what is asked has a number, by which the answer is found.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS_MAX = 60.0
FOUND = shutil.which("chromium")


class Chromium:
    """One browser; `call` asks it."""

    def __init__(self, folder: Path) -> None:
        assert FOUND is not None, "no chromium on the PATH"
        (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}"]
        options += ["--disable-background-networking", "--disable-component-update", "--no-first-run"]

        command = f'exec 3<&{read_there} 4>&{write_there}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", FOUND, *options, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(read_there, write_there),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)
        self._read, self._write = read_here, write_here
        self._data, self._number = b"", 0

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to one call; RuntimeError for an error, or none in time."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        asked |= {} if session is None else {"sessionId": session}
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        until = time.monotonic() + SECONDS_MAX
        while True:
            while b"\0" not in self._data:
                if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise RuntimeError(f"{method}: no answer within {SECONDS_MAX:g} s")
                if not (more := os.read(self._read, 1 << 20)):
                    raise RuntimeError(f"{method}: the browser has ended")
                self._data += more
            line, _, self._data = self._data.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)


class Tab:
    """One page of the browser."""

    def __init__(self, browser: Chromium, width: int, height: int, *, is_dark: bool = False) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = str(browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self.call("Page.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true; TimeoutError if it does not become so."""
        until = time.monotonic() + SECONDS_MAX
        while not self.value(script):
            if time.monotonic() > until:
                raise TimeoutError(script)
            time.sleep(0.05)

    def picture(self, path: Path, *, is_whole: bool = False) -> None:
        params: dict[str, Any] = {"format": "png", "captureBeyondViewport": is_whole}
        if is_whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            params["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **params)["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def chromium() -> Iterator[Chromium]:
    with tempfile.TemporaryDirectory() as folder:
        browser = Chromium(Path(folder))
        try:
            yield browser
        finally:
            browser.close()
