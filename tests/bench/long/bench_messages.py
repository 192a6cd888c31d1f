"""What a small message costs the loops at its two ends.

    python -m tests.bench.long.bench_messages [--json]

Two processes on a core each. One sends an item as a learner's report is, a dict of twenty numbers and short lists, then
sleeps a millisecond, and so on: each message finds both loops asleep, and nothing is sent together. CPU time is that of
the loop's thread, per message, acknowledgements and heartbeats included; the sender's timer, measured in turns without
sending, is taken off. `listening` is the side that is dialled, `dialling` the other one. `control`: messages on the
control socket, of both sides, per item. The figures are medians of repeats.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import uvloop

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.zmq_sockets import ZmqSockets

DIALLING, LISTENING = (Member(Replica("bench", slot), 1) for slot in range(2))
INTERVAL_S = 0.001
PROGRESS: dict[str, Any] = {
    "slot": 3, "incarnation": 1, "phase": "stepping", "step": 1234, "tokens": 1_263_616, "stepping": 9_123_456_789,
    "step_time": 7_345_678, "loss": 2.345, "delay_steps": 3, "staleness": 24, "sick": False,
    "accounts": [[1000, 200, 0, 0, 24] for _ in range(8)], "versions": [[1, 17] for _ in range(8)],
    "totals": [[slot, 1, 1_263_616] for slot in range(4)], "bytes_sent": 123_456_789, "bytes_received": 234_567_890,
    "waited": 0, "device_kind": "cpu",
}  # fmt: skip


class Side:
    """One end: a channel on a loop, and a count of what came."""

    def __init__(self, member: Member) -> None:
        self.loop = uvloop.new_event_loop()
        self.ups: list[Member] = []
        self.received = self.said = 0
        self.channel = WireChannel(
            member,
            clock=LoopClock(self.loop),
            sockets=ZmqSockets(self.loop),
            run="bench",
            fingerprint="bench",
            on_peer_up=self.up,
        )
        self.channel.open(self)

    def up(self, peer: Member) -> None:
        """The other end is there; count what is said to it on the control socket."""
        self.ups.append(peer)
        link = self.channel._connections.peers[peer].link
        send = link.send_control  # type: ignore[union-attr]

        def counted(message: bytes) -> bool:
            self.said += 1
            return send(message)

        link.send_control = counted  # type: ignore[union-attr, method-assign]

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        """Count an item."""
        self.received += 1

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """Nobody counts."""

    def until(self, holds: Callable[[], bool]) -> None:
        """Run the loop until something holds."""

        def look() -> None:
            if holds():
                self.loop.stop()
            else:
                self.loop.call_later(0.01, look)

        self.loop.call_soon(look)
        while not holds():
            self.loop.run_forever()

    def pace(self, target: Member, count: int, is_sending: bool) -> float:
        """Send so many items, one a turn of the loop; CPU seconds of this thread."""
        left = count + 1

        def step() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.loop.stop()
                return
            if is_sending:
                item = dict(PROGRESS, step=left)
                self.channel.send(target, Parcel(1, None, item, None, 0, 400, encode(item)), replaces=False)
            self.loop.call_later(INTERVAL_S, step)

        before = time.thread_time()
        self.loop.call_soon(step)
        while left:
            self.loop.run_forever()
        return time.thread_time() - before


def listen(pipe: Any, core: int) -> None:
    """The other process: does what the pipe says and answers (CPU seconds of that or so far, items, messages)."""
    os.sched_setaffinity(0, {core})
    side = Side(LISTENING)
    pipe.send(side.channel.bind("tcp://127.0.0.1:0"))
    while (asked := heard(side, pipe))[0] >= 0:
        count, is_sending = asked
        seconds = side.pace(DIALLING, count, is_sending) if count else time.thread_time()
        pipe.send((seconds, side.received, side.said))
    side.channel.close()


def heard(side: Side, pipe: Any) -> tuple[int, bool]:
    """What the pipe says next; the loop runs meanwhile."""
    side.loop.add_reader(pipe.fileno(), side.loop.stop)
    while not pipe.poll():
        side.loop.run_forever()
    side.loop.remove_reader(pipe.fileno())
    os.set_blocking(pipe.fileno(), True)
    asked: tuple[int, bool] = pipe.recv()
    return asked


def measure(side: Side, pipe: Any, count: int) -> dict[str, float]:
    """Microseconds of CPU a message, at each end and in each direction; control messages an item."""

    def ask(count: int = 0, is_sending: bool = False) -> tuple[float, int, int]:
        pipe.send((count, is_sending))
        side.until(lambda: bool(pipe.poll()))
        seconds, received, said = pipe.recv()
        return float(seconds), int(received), int(said)

    here_timer = side.pace(LISTENING, count, False)
    there_timer, _, _ = ask(count)
    before, was, said = ask()
    said += side.said
    sent = side.pace(LISTENING, count, True) - here_timer
    while (now := ask())[1] < was + count:
        pass
    taken = now[0] - before
    control = now[2] + side.said - said
    had, here = side.received, time.thread_time()
    sent_there = ask(count, True)[0] - there_timer
    side.until(lambda: side.received == had + count)
    taken_here = time.thread_time() - here
    per = 1e6 / count
    return {
        "dialling sends": sent * per,
        "listening receives": taken * per,
        "listening sends": sent_there * per,
        "dialling receives": taken_here * per,
        "control": control / count,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--count", type=int, default=1000, help="messages in each direction in a repeat")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=listen, args=(there, 1), daemon=True)
    process.start()
    os.sched_setaffinity(0, {0})
    endpoints: Endpoints = here.recv()
    side = Side(DIALLING)
    side.channel.connect(LISTENING, endpoints)
    side.until(lambda: bool(side.ups))
    rounds = [measure(side, here, options.count) for _ in range(options.repeats + 1)][1:]
    here.send((-1, False))
    side.channel.close()
    process.join(10)
    figures = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    if options.json:
        print(json.dumps({"bench": "messages", "rounds": rounds, "medians": figures}))
        return
    for name, figure in figures.items():
        each = [one[name] for one in rounds]
        unit = "messages an item" if name == "control" else "us a message"
        print(f"{name:<20}{figure:>8.2f}  ({min(each):.2f} to {max(each):.2f}) {unit}")


if __name__ == "__main__":
    main()
