"""A process that a daemon takes for a host: it says hello and reports, and trains nothing.

Started as `python supervised_host.py RUN ROLE/SLOT INCARNATION DAEMON`. What it is to do is in the file RUN/behave, by
its name: 'serve', 'mute' (in its first life never a word), 'hang' (in its first life never a word after the first
ones), 'crash' (end at once with status 3), or 'over' (say that the run is over).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

from isthmus.runtime.supervision.messages import HEARTBEAT_SECONDS
from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_messages import Message

HANGS_AFTER = 8
"""Heartbeats."""


def main(folder: Path, replica: str, incarnation: int, daemon: str) -> int:
    """Serve until the daemon says that it is over."""
    behaviour = json.loads((folder / "behave").read_text()).get(replica, "serve")
    if behaviour == "crash":
        return 3
    if behaviour == "mute" and incarnation == 1:
        threading.Event().wait()
    loop = asyncio.new_event_loop()

    def hear(message: Message) -> None:
        if message["type"] == "exit":
            loop.stop()

    client = ControlClient(loop, daemon, hear)
    beats = 0

    def say(kind: str) -> None:
        told = {"replica": replica, "incarnation": incarnation, "run": folder.name, "pid": os.getpid()}
        client.send({**told, "type": kind, "endpoints": [], "phase": "serving", "published": {}, "figures": {}})

    def beat() -> None:
        nonlocal beats
        beats += 1
        if behaviour == "hang" and incarnation == 1 and beats == HANGS_AFTER:
            threading.Event().wait()
        endpoint = json.loads((folder / "daemon.json").read_text())["endpoint"]
        if endpoint != client.endpoint:
            client.dial(endpoint)
            say("hello")
        say("over" if behaviour == "over" else "heartbeat")
        loop.call_later(HEARTBEAT_SECONDS, beat)

    say("hello")
    loop.call_soon(beat)
    loop.run_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
