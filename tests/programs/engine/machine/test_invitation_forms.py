"""Invitations in the forms that other tools make of them: each is read as the file, or said to be copied again."""

from __future__ import annotations

import base64
import io
import json
import random
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import zmq

from isthmus.programs.engine.machine import invitation_forms
from isthmus.programs.engine.machine.invitations import STANDARD_INPUT, GivenText, InvitationFile
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.security_keys import KeyPair

Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
FORMS: dict[str, Callable[[str], bytes]] = {
    "the file": str.encode,
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "line ends spelled out": lambda text: text.replace("\n", "\\n").encode(),
    "CRLF spelled out": lambda text: text.replace("\n", "\\r\\n").encode(),
    "a string of JSON": lambda text: json.dumps(text).encode(),
    "line ends that are spaces": lambda text: " ".join(text.split("\n")).encode(),
    "no line ends": lambda text: text.replace("\n", "").encode(),
    "base64": lambda text: base64.b64encode(text.encode()),
    "base64 in lines": lambda text: base64.encodebytes(text.encode()),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()),
    "base64 of CRLF": lambda text: base64.b64encode(text.replace("\n", "\r\n").encode()),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16")),
    "its line": lambda text: invitation_forms.line_of(text).encode() + b"\n",
    "its line, broken": lambda text: textwrap.fill(invitation_forms.line_of(text), 60).encode(),
    "quotation marks": lambda text: f"'{text}'\n".encode(),
    "a quotation": lambda text: textwrap.indent(text, "> ", lambda line: True).encode(),
    "a block of Markdown": lambda text: f"Hello, join with this:\n\n```toml\n{text}```\nYours\n".encode(),
    "indentation": lambda text: textwrap.indent(text, "        ").encode(),
    "lines of at most 40": lambda text: "\n".join(line[at : at + 40] for line in text.splitlines()
                                                  for at in range(0, len(line), 40)).encode(),
    "no-break spaces": lambda text: text.replace(" ", "\N{NO-BREAK SPACE}").encode(),
}  # fmt: skip


def invitation(seed: int) -> InvitationFile:
    """One with a key of whatever letters keys have."""
    draw = random.Random(seed)
    while True:
        secret = "".join(draw.choices(Z85, k=40))
        try:
            pair = KeyPair(zmq.curve_public(secret.encode()).decode(), secret)
        except (ValueError, zmq.ZMQError):
            continue
        public = KeyPair.draw().public
        name, prefix = ("beta", None) if seed % 2 else (None, "pod-")
        return InvitationFile(HomeAddress("alpha", "tcp://home.example:7400", public), pair, name, prefix)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_read_in_whatever_form(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        file = invitation(seed)
        content = FORMS[form](file.text())
        assert InvitationFile.given(GivenText("a variable", content)) == file
        path = tmp_path / "beta.invite"
        path.touch(0o600)
        path.write_bytes(content)
        assert InvitationFile.named(path) == file
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert InvitationFile.named(STANDARD_INPUT) == file


def test_one_without_a_check_as_it_was_written_before_is_read() -> None:
    file = invitation(1)
    text = "\n".join(line for line in file.text().splitlines() if not line.startswith("check"))
    assert InvitationFile.given(GivenText("a variable", text.encode())) == file
    assert "check" in file.text()


def test_an_address_may_be_corrected() -> None:
    file = invitation(1)
    text = file.text().replace("home.example:7400", "127.0.0.1:9")
    assert InvitationFile.given(GivenText("a variable", text.encode())).home.address == "tcp://127.0.0.1:9"


@pytest.mark.parametrize("form", ["the file", "its line", "CRLF", "line ends that are spaces"])
def test_a_damaged_one_is_to_be_copied_again(form: str) -> None:
    file = invitation(3)
    whole, draw = FORMS[form](file.text()), random.Random(0)
    begin = whole.index(b"[home]") if b"[home]" in whole else 0
    for _ in range(200):
        at = draw.randrange(begin, len(whole) - 1)
        damaged = draw.choice([whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]])
        try:
            read = InvitationFile.given(GivenText("a variable", damaged))
        except ConfigError:
            continue
        # What is left of it, or was changed, was of no matter, or the address, which may be another.
        assert read.pair == file.pair
        assert read.home.public_key == file.home.public_key
        assert (read.name, read.prefix) == (file.name, file.prefix)


@pytest.mark.parametrize(
    "content", [b"", b"[", b"\xff\xfe\x00", b"\x80", b"AAAA", b"x" * (1 << 20), b"[" * 60_000, b'secret = "' * 6000]
)
def test_what_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError) as error:
        InvitationFile.given(GivenText("a variable", content))
    assert error.value.faults[0].remedy == invitation_forms.DO_COPY
