"""The glossary has every word of the report."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from isthmus.programs.wings.report.page import write_report
from tests.programs.engine.results.made_up_run import build
from tests.programs.glossary import unknown


def test_every_name_of_the_report_is_in_the_glossary(tmp_path: Path) -> None:
    page = write_report(build(tmp_path / "run", away=2)).read_text()
    found = re.findall(r"<(?:dt|th)\b[^>]*>(.*?)</(?:dt|th)>", page, re.DOTALL)
    texts = {" ".join(unescape(re.sub(r"<[^>]+>", "", each)).lower().split()) for each in found}
    names = {name.strip() for text in texts for name in text.split(",")}
    names = {name for name in names if name and not name.isdigit()}
    assert {"quorum", "round", "goodput", "stalled", "overlapped", "sweep", "uptime"} <= names
    assert unknown(names) == set()
