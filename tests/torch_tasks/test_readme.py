"""What README says is typed once PyTorch is installed, in the environment that is there: `make readme` installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.page_blocks import Block, blocks_of
from tests.programs.page_reader import ROOT, Reader, clone_with_this_environment

pytestmark = [pytest.mark.torch, pytest.mark.process]

MARK = "test_readme.py"
FIRST_RUN = ".venv/bin/isthmus train --tokens 100000 --quiet"
"""In place of `make train`: shorter, and without an installation."""


@pytest.mark.timeout(1800)  # Six commands, each with its own bound, on cores that may be busy with something else.
def test_what_needs_pytorch_does_what_the_readme_says(tmp_path: Path) -> None:
    blocks: list[Block] = [block for block in blocks_of((ROOT / "README.md").read_text()) if MARK in block.mark]
    assert "--loop" in "".join(block.text for block in blocks)
    clone = clone_with_this_environment(tmp_path / "clone")
    clone.shell(FIRST_RUN, clone.folder)
    reader = Reader(clone)
    for block in blocks:
        reader.read(block)
