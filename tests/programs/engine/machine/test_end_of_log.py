"""The end of a log that a daemon reads for somebody: it waits for no pipe, and its other work goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus.programs.engine.machine.run import TEXT_BYTES_MAX, end_of_log
from isthmus.runtime.errors import ConfigError


def end(folder: Path) -> str:
    return asyncio.run(end_of_log(folder, "learner/0", "run", {}, cast(Any, None)))


def test_it_is_the_end_of_a_file_and_nothing_of_a_pipe(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "learner-0.log"
    log.parent.mkdir()
    log.write_text("a line\n" + "x" * TEXT_BYTES_MAX)
    assert end(tmp_path) == "x" * TEXT_BYTES_MAX
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(ConfigError) as refused:
        end(tmp_path)
    assert "a pipe" in refused.value.faults[0].found
