"""Two sites train one model on their own data, and nothing of these reaches the home: no text, no id, no name.

What crosses is recorded on its way, in the clear: loopback needs no keys, and a relay leads to it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest

from isthmus.runtime.system import addresses
from tests.patience import PATIENCE
from tests.programs.engine.machine.cluster_place import accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.machine.namespaces import Namespaces, why_not
from tests.programs.engine.machine.tunnel import within
from tests.programs.engine.run.process_run import ISTHMUS

WHY_NOT = why_not()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
SECRET = "Jane Q Public"
TEXT = f"{SECRET} has the blood group AB negative, and was born in Reykjavik. "
HOME = "tcp://127.0.0.1:7400"
CLUSTER = f'[[machine]]\nname = "alpha"\naddress = "{HOME}"\n[run]\nlearners = 0\ntokens = 1000000000\n'
SITES = ("beta", "gamma")


def forms_of(secret: str) -> dict[str, bytes]:
    """How a secret could be written: as text, packed, and as the ids of its bytes."""
    data = secret.encode()
    ids = [*data]
    forms = {
        "text": data,
        "utf-16": secret.encode("utf-16-le"),
        "ids as text": json.dumps(ids)[1:-1].encode(),
        "ids as short text": json.dumps(ids, separators=(",", ":"))[1:-1].encode(),
        "msgpack": msgpack.packb(ids)[1:],
        "url": secret.replace(" ", "%20").encode(),
    }
    forms |= {f"ids in {kind}": np.asarray(ids, kind).tobytes() for kind in ("<u2", "<i4", "<i8", ">i4", ">i8")}
    for shift in range(3):
        # Whole groups of three bytes, wherever the secret begins in what is packed.
        forms[f"base64 {shift}"] = base64.b64encode(data[shift : shift + (len(data) - shift) // 3 * 3])
    return forms


FORMS = forms_of(SECRET)


def found_in(data: bytes) -> list[str]:
    """The forms in which the secret stands there."""
    return [name for name, form in FORMS.items() if form in data]


def test_the_search_finds_every_form() -> None:
    for name, form in FORMS.items():
        assert name in found_in(b"\0\1" + form + b"\2")
    packed = [found_in(base64.b64encode(b"x" * shift + SECRET.encode() + b"yz")) for shift in range(3)]
    assert all(packed)
    assert not found_in(TEXT[len(SECRET) :].encode())


class RecordingRelay:
    """Accepts in the namespace `near`, leads to HOME in that of `far`, and keeps what crosses, a way each."""

    def __init__(self, near: str, far: str) -> None:
        self._far, self.crossed = far, list[bytearray]()
        self._server: socket.socket = within(near, lambda: socket.create_server(("127.0.0.1", 0), backlog=64))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        """End it, and every connection through it."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for end in (self._server, *self._ends):
            end.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = within(self._far, lambda: addresses.connect(HOME, PATIENCE))
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    self.crossed.append(bytearray())
                    ends = (source, target, self.crossed[-1])
                    self._threads.append(threading.Thread(target=self._pump, args=ends))
                    self._threads[-1].start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def net() -> Iterator[Namespaces]:
    made = Namespaces("alpha", *SITES)
    yield made
    made.close()


def make_data(folder: Path, site: str) -> None:
    """Data of a site, with the secret in texts and in the name of a file."""
    folder.mkdir()
    for number in range(24):
        name = SECRET if number == 7 else f"{site} {number}"
        (folder / f"{name}.txt").write_text(f"Row {number} of {site}. {TEXT}" * 40)


@pytest.mark.long
def test_a_secret_in_texts_names_and_errors_of_a_site_does_not_reach_the_home(net: Namespaces, place: Place) -> None:
    folder, run = place.folder, place.folder / "runs" / "cluster"
    (folder / "cluster.toml").write_text(CLUSTER)

    def begin(machine: str, *words: str) -> Path:
        log = folder / f"{machine}.log"
        place.environment["XDG_STATE_HOME"] = str(folder / f"state-{machine}")
        with log.open("w") as file:
            place.begin(*words, stdout=file, prefix=net.prefix(machine))
        return log

    def voters() -> list[list[int]]:
        lines = (run / "merges.jsonl").read_text().splitlines(keepends=True) if run.exists() else []
        return [json.loads(line)["voters"] for line in lines if line.endswith("\n")]

    home = begin("alpha", "daemon", "--name", "alpha", "--listen", HOME, "--run", "cluster.toml", "--until-over")
    place.wait_for(lambda: "took" in home.read_text())
    with (
        closing(RecordingRelay(net.name("beta"), net.name("alpha"))) as first,
        closing(RecordingRelay(net.name("gamma"), net.name("alpha"))) as second,
    ):
        for site, relay in zip(SITES, (first, second), strict=True):
            make_data(folder / f"{site}-data", site)
            begin(site, "join", relay.address, "--name", site, "--data", f"{site}-data", "--until-over")
        place.wait_for(lambda: (run / "merges.jsonl").exists() and [0, 1] in voters())
        # A life that finds its data gone: its error names the file, and the owner of the site reads it.
        events = run / "events.jsonl"
        data, aside = folder / "beta-data", folder / "aside"
        data.rename(aside)
        (folder / "beta-data").mkdir()
        broken = folder / "beta-data" / f"{SECRET}.png.txt"
        broken.symlink_to(folder / "nowhere")
        # With those that have read them before: a spare, and the server that lives are forked from.
        there, names = net.processes("beta"), place.processes()
        for pid in there & names.keys():
            if names[pid].startswith(("isthmus learner", "isthmus spare", "isthmus fork-server")):
                os.kill(pid, signal.SIGKILL)
        place.wait_for(lambda: events.exists() and '"failed"' in events.read_text())
        shutil.rmtree(data)
        aside.rename(data)
        after = len(voters())
        place.wait_for(lambda: [0, 1] in voters()[after:])
        assert place.call("stop", str(run)).returncode == 0
        place.wait_for(lambda: (run / "over.json").exists())
        crossed = [bytes(way) for relay in (first, second) for way in relay.crossed]
    accounts_add_up(place.summary("runs/cluster"))
    assert sum(map(len, crossed)) > 100_000
    assert [found_in(way) for way in crossed if found_in(way)] == []
    files = [*run.rglob("*"), *(folder / "state-alpha").rglob("*"), home]
    told = {str(path.relative_to(folder)): found_in(path.read_bytes()) for path in files if path.is_file()}
    assert {name: forms for name, forms in told.items() if forms} == {}
    assert not [path for path in files if SECRET in path.name]
    # The owner of the site sees it, in the table and in the log of the life that failed.
    assert "text" in found_in((folder / "beta.log").read_bytes())
    logs = [path for path in (folder / "state-beta").rglob("learner-*.log*") if path.is_file()]
    assert any("text" in found_in(path.read_bytes()) for path in logs)


@pytest.mark.long
def test_three_institutions_follow_the_guide() -> None:
    """A home and two sites in namespaces, without a shared folder, with keys, and one open port."""
    environment = {**os.environ, "TOKENS": "60000", "PATH": f"{ISTHMUS.parent}:{os.environ['PATH']}"}
    script = Path(__file__).parents[4] / "docs" / "examples" / "three-sites.sh"
    done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    told = done.stdout.partition("--- what the home sees")[2]
    for site in ("north", "south"):
        assert re.search(rf"^site {site} .* passes over its", told, re.MULTILINE), told
        assert f"Texts of errors of {site} stay there" in told
    assert done.stdout.count("its evaluations are") == 2
    assert done.stdout.count("keeps the model of all") == 1  # That of the site which asked for it.
    assert "Traceback" not in done.stdout + done.stderr
