"""Either end of a control connection, to which more is said than it can handle, still comes to all else on its loop."""

from __future__ import annotations

import uvloop
import zmq

from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_messages import TURN_MESSAGES_MAX, Message, encode
from isthmus.runtime.wire.control_server import ControlServer
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


def test_a_host_comes_to_its_timers_while_its_daemon_speaks_without_end() -> None:
    loop = uvloop.new_event_loop()
    context = zmq.Context()
    speaker = context.socket(zmq.ROUTER)
    speaker.setsockopt(zmq.SNDHWM, 0)
    port = speaker.bind_to_random_port("tcp://127.0.0.1")
    heard, at_timer = list[Message](), list[int]()
    most = 20 * TURN_MESSAGES_MAX

    def hear(message: Message) -> None:
        heard.append(message)
        if len(heard) < most:
            speaker.send_multipart([peer, WORD])
            assert client._socket is not None
            client._socket.poll(1000 * PATIENCE)  # The next one is there before this one is handled.

    client = ControlClient(loop, f"tcp://127.0.0.1:{port}", hear)
    try:
        client.send({"type": "word"})
        peer, _ = speaker.recv_multipart()
        speaker.send_multipart([peer, WORD])
        loop.call_soon(lambda: loop.call_later(0, lambda: at_timer.append(len(heard))))
        run_until(loop, lambda: len(heard) >= most)
    finally:
        client.close()
        speaker.close(0)
        context.term()
        loop.close()
    assert len(at_timer) == 1
    assert at_timer[0] < most
