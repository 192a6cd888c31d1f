"""Hosts and ports in texts, and sockets at them."""

from __future__ import annotations

import pytest

from isthmus.runtime.system import addresses
from tests.procfs import has_ipv6


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://[2001:db8::1]:7400", "2001:db8::1", "7400"),
        ("[::1]:7400", "::1", "7400"),
        ("tcp://home.example:*", "home.example", "*"),
        ("10.0.0.1:7400", "10.0.0.1", "7400"),
    ],
)
def test_a_host_and_a_port_are_read_and_written(text: str, host: str, port: str) -> None:
    assert addresses.host_and_port(text) == (host, port)
    assert addresses.text_of(host, port) == text.removeprefix("tcp://")


@pytest.mark.parametrize("host", ["home", "home.example", "home-0.home.default.svc", "a_b", "3com.example"])
def test_a_name_is_one(host: str) -> None:
    assert addresses.is_name(host)
    assert not addresses.is_literal(host)


@pytest.mark.parametrize("host", ["", "-x", "a b", "1.2.3", "256.0.0.1", "::1", "*", "a/b", "x" * 254, "ä"])
def test_other_texts_are_no_names(host: str) -> None:
    assert not addresses.is_name(host)


@pytest.mark.parametrize("host", ["127.0.0.1", *(["[::1]", "::1"] if has_ipv6() else [])])
def test_a_socket_listens_where_another_connects(host: str) -> None:
    with addresses.serve(host, 0, 1) as door:
        text = addresses.text_of(*door.getsockname()[:2])
        with addresses.connect(f"tcp://{text}", 5.0) as connection:
            assert connection.getpeername()[:2] == door.getsockname()[:2]
