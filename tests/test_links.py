"""The documents name what is there: every link leads to a file and a heading, every path of the source tree exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.-])((?:runtime|ops|programs|tests|docs)/[\w/.-]+\.(?:py|sh|md|toml|json|service|yml))\b")


def anchors(page: Path) -> set[str]:
    """What a heading is reached by: its text in lower case, without marks, with a hyphen for every space."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{slug}-1" if slug in found else slug)
    return found


def broken(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link
    yield from (path for path in PATH.findall(text) if not (ROOT / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_everything_that_a_page_leads_to_is_there(page: Path) -> None:
    assert list(broken(page)) == []


def test_the_index_leads_to_every_page_but_the_decisions() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent.name != "decisions"}
    assert pages - linked == {index}


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One (`thing`)\n[a](#one-thing) [b](#two) [c](no.md) [d](page.md#one-thing) `ops/no.py`\n"
        "<!-- tests/no.py a/docs/no.md -->\n"
    )
    assert list(broken(page)) == ["#two", "no.md", "ops/no.py", "tests/no.py"]
