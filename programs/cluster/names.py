"""Valid names of machines: in a cluster file, on the command line, in the names of its files."""

from __future__ import annotations

import re
from typing import Final

from isthmus.runtime.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_name(text: str) -> bool:
    """Whether a machine may be called so."""
    return _NAME.fullmatch(text) is not None


def checked(text: str, doing: str, example: str) -> str:
    """The name that `text` is, or ConfigError."""
    if not is_name(text):
        raise ConfigError(doing, "letters, digits, '.', '_' and '-', 64 at most", repr(text), f"Write {example}.")
    return text
