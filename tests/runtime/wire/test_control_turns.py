"""A daemon to which more is said than it can handle still comes to everything else on its loop."""

from __future__ import annotations

import uvloop
import zmq

from isthmus.runtime.wire.control_messages import Message, encode
from isthmus.runtime.wire.control_server import TURN_MESSAGES_MAX, ControlServer
from isthmus.runtime.wire.daemon_notes import PRIVATE
from tests.loops import run_until
from tests.patience import PATIENCE

WORD = encode({"type": "word"})


def test_timers_come_to_their_turn_while_messages_never_end() -> None:
    loop = uvloop.new_event_loop()
    context = zmq.Context()
    speaker = context.socket(zmq.DEALER)
    heard, at_timer = list[Message](), list[int]()
    most = 20 * TURN_MESSAGES_MAX

    def hear(peer: bytes, message: Message) -> None:
        heard.append(message)
        if len(heard) < most:
            speaker.send(WORD)
            server._socket.poll(1000 * PATIENCE)  # The next one is there before this one is handled.

    server = ControlServer(loop, PRIVATE, hear)
    try:
        speaker.connect(server.endpoint)
        speaker.send(WORD)
        loop.call_soon(lambda: loop.call_later(0, lambda: at_timer.append(len(heard))))
        run_until(loop, lambda: len(heard) >= most)
    finally:
        server.close()
        speaker.close(0)
        context.term()
        loop.close()
    assert len(at_timer) == 1
    assert at_timer[0] < most
