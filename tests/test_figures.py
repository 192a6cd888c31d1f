"""Figures in the documents have the command that makes them, and the commands that the documents name exist.

A section with figures names a command (a bench, `isthmus`, `make`, a test), or says that it was not measured again, or
has a mark in a comment, `figures: settings` (limits and defaults, which the code declares), `figures: published` or
`figures: computed` (by hand, from what stands there); `all figures: ` marks a page. A section with a table from a
command that runs in virtual time says so. A table whose cells are kept (`tests/bench/tables.py`) has their figures. On
the pages that explain, a section whose table a command makes says of which commit and machine it is, and how often it
was measured; that the processor was not noted is said of sections of before places were kept, and of no others."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from isthmus.ops.exchange.formats import MEASURED_BY
from tests.bench.kept_cells import KeptCells
from tests.bench.tables import TABLES
from tests.command_line import app
from tests.effort import long
from tests.programs.page_blocks import blocks_of

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "tests" / "bench"
INDEX = BENCH / "long" / "README.md"
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "changelog.md")]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
UNIT = r"(?:%|ms|us|s|MB|GB|kB|times|nats|points)"
FIGURE = re.compile(rf"(?<![\w./v-])(?:\d*\.\d+(?:[ ]?{UNIT}(?!\w))?|\d+ {UNIT}(?!\w))")
FIGURES_MAX = 2
"""Without a command: an example has one or two."""
MAKER = re.compile(
    r"\bbench/(?:long/)?\w+\.(?:py|sh)|\b(?:bench|soak|gpu)_\w+\.py|\btests\.bench\.[\w.]+|\bgap\.py|\bon_a_gpu\.sh|\btests/[\w/*]+\.py|\btest_\w+\.py"
    r"|(?:`|bin/|\n +)isthmus [a-z]+|\bmake [a-z]+|\bpytest\b|docs/examples/[\w-]+\.(?:py|sh)"
)
MARK = re.compile(r"<!-- figures: (?:settings|published|computed) -->")
PAGE_MARK = re.compile(r"^<!-- all figures: (?:settings|published) -->$", re.MULTILINE)
LOST = re.compile(r"not\s+measured\s+again")
VIRTUAL = re.compile(r"isthmus compare [^`]*--speeds|bench_mixtures (?:speeds|borrowed)")
WORDS = r"((?: +[^\s#;&|<>]+)*)"
ISTHMUS = re.compile(rf"(?:^[ $]*|[;&|] *|bin/)isthmus{WORDS}", re.MULTILINE)
SCRIPT = re.compile(
    rf"(?:^|\s|tests[./]bench[./](?P<long>long[./])?)(?P<name>(?:bench|soak|gpu)_\w+|gap)(?:\.py)?{WORDS}"
)
MAKE = re.compile(r"(?:^|[\s;&|])make((?: +[a-z][\w-]*)+)")
SPAN = re.compile(r"`([^`]+)`")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d*\.\d+")
COMMIT = re.compile(r"\b[Cc]ommit(?: is)?\s+`?[0-9a-f]{8,40}\b|\bisthmus\s+[0-9a-f]{8,40}\b")
MACHINE = re.compile(r"\bEPYC\b|\bXeon\b|\bH200\b|\bH100\b")
NOT_NOTED = re.compile(r"\bprocessors?\s+(?:was|were)\s+not\s+noted\b|\b[Nn]o\s+processor\s+was\s+noted\b")
NOT_NOTED_SECTIONS = 31
"""Sections of before places were kept, whose processor nobody knows any more: this only becomes less."""
REPEATED = re.compile(r"\b[Ss]eeds?\b|\bruns?\b|\bn = \d|\brepeat|\btimes\b|\bpairs\b")
EXPLAINING = [page for page in PAGES if page.parent.name == "explanation" or page.name == "README.md"]
OPPONENT = re.compile(r"^\|[^|\n]*(?:data-parallel|torchft|GradientMail|ft-diloco|\bdense|, published)", re.MULTILINE)
AHEAD = re.compile(r"^\*\*Ahead:\*\* \S", re.MULTILINE)


def sections_of(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) from one heading to the next."""
    lines, first, is_fenced = text.splitlines(), 0, False
    for number, line in enumerate(lines):
        is_fenced ^= line.startswith("```")
        if not is_fenced and re.match(r"#+ ", line) and number:
            yield first + 1, "\n".join(lines[first:number])
            first = number
    yield first + 1, "\n".join(lines[first:])


def unfounded(text: str) -> Iterator[int]:
    """The lines at which sections begin whose figures nothing makes."""
    if PAGE_MARK.search(text):
        return
    for line, section in sections_of(text):
        prose = re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
        is_founded = MAKER.search(section) or MARK.search(section) or LOST.search(section)
        if not is_founded and len(FIGURE.findall(prose)) > FIGURES_MAX:
            yield line


def untold(text: str) -> Iterator[int]:
    """The lines at which sections begin that have a table from virtual time and do not say so."""
    for line, section in sections_of(text):
        if re.search(r"^\|", section, re.MULTILINE) and VIRTUAL.search(section) and "irtual time" not in section:
            yield line


def code_of(text: str) -> Iterator[str]:
    """The blocks of shell of a page, and what stands in back quotes."""
    yield from (block.text for block in blocks_of(text) if block.language in ("shell", "bash"))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(span.split()) for span in SPAN.findall(prose))


def options_in(words: str) -> list[str]:
    """The options among the words of a command."""
    found = re.findall(r"(?<![\w-])--[a-z][\w-]*", words)
    return [option for option in found if option != "--help"]


def scripts() -> Iterator[Path]:
    """The files of all benches."""
    yield from sorted((*BENCH.glob("*.py"), *(BENCH / "long").glob("*.py")))


def imported_of_bench(statement: ast.ImportFrom) -> Iterator[Path]:
    """The files of the bench from which a statement imports."""
    module = (statement.module or "").split(".")
    named = (ROOT.joinpath(*module, alias.name).with_suffix(".py") for alias in statement.names)
    for path in (ROOT.joinpath(*module).with_suffix(".py"), *named):
        if BENCH in path.parents and path.exists():
            yield path


@cache
def options_of_script(path: Path) -> frozenset[str]:
    """The options that a script, or a module beside it that it imports, declares."""
    tree = ast.parse(path.read_text())
    declared = {
        argument.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    for each in ast.walk(tree):
        for beside in imported_of_bench(each) if isinstance(each, ast.ImportFrom) else ():
            declared |= options_of_script(beside)
    return frozenset(declared)


@cache
def isthmus() -> Any:
    return typer.main.get_command(app)


def wrong_isthmus(words: list[str]) -> Iterator[str]:
    """What is wrong with the words after `isthmus`: an unknown command, or options that it does not have."""
    command, path = isthmus(), "isthmus"
    for word in words:
        inner = getattr(command, "commands", {})
        if not inner or not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        if word not in inner:
            yield f"{path} {word}"
            return
        command, path = inner[word], f"{path} {word}"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if not getattr(command, "commands", {}):
        yield from (f"{path} {option}" for option in options_in(" ".join(words)) if option not in known)


def wrong_in(code: str) -> Iterator[str]:
    """The commands in one piece of code that do not exist, or not with these options."""
    code = re.sub(r"\\\n\s*", "", code)
    for found in ISTHMUS.finditer(code):
        yield from wrong_isthmus(found[1].partition(" -- ")[0].split())
    for found in SCRIPT.finditer(code) if ".py" in code or "python -m" in code else ():
        name = f"{found['name']}.py"
        path = next((each for each in scripts() if each.name == name), None)
        is_elsewhere = path is not None and "tests" in found[0] and bool(found["long"]) != (path.parent != BENCH)
        if path is None or is_elsewhere:
            yield name
            continue
        yield from (f"{name} {option}" for option in options_in(found[3]) if option not in options_of_script(path))
    if code.startswith("make ") or "\nmake " in code:
        targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        for found in MAKE.finditer(code):
            yield from (f"make {target}" for target in found[1].split() if target not in targets)


def heading_of(section: str) -> str:
    """The first line, without its marks."""
    return section.splitlines()[0].lstrip("# ") if section else ""


def rows_of(section: str) -> list[str]:
    """The lines of its tables, without those that say what was published."""
    return [line for line in section.splitlines() if line.startswith("|") and "ublished" not in line]


def unplaced(text: str) -> Iterator[str]:
    """The headings of sections with a table that a command makes, and without commit, machine or how often."""
    if PAGE_MARK.search(text):
        return
    for _, section in sections_of(text):
        figures = sum(len(FIGURE.findall(row)) for row in rows_of(section))
        if figures <= FIGURES_MAX or not MAKER.search(section) or MARK.search(section):
            continue
        names = (name for file, table in TABLES.items() for name in (f"tests/bench/{file}.json", f"{table.bench}.py"))
        is_kept = any(name in section for name in names)  # Its cells say where they were made.
        is_told = MACHINE.search(section) or NOT_NOTED.search(section)
        is_placed = is_kept or (COMMIT.search(section) and is_told)
        if not (is_placed and REPEATED.search(section)):
            yield heading_of(section)


def not_noted(text: str) -> int:
    """In how many sections a processor was not noted."""
    return sum(bool(NOT_NOTED.search(section)) for _, section in sections_of(text))


def nameless(text: str) -> Iterator[str]:
    """The headings of sections with a table that has a row, or a column, of an opponent, and that do not say first who
    is ahead."""
    for _, section in sections_of(text):
        rows = [line for line in section.splitlines() if line.startswith("|")]
        figures = sum(len(FIGURE.findall(row)) for row in rows)
        if figures > FIGURES_MAX and OPPONENT.search("\n".join(rows)) and not AHEAD.search(section):
            yield heading_of(section)


def strange(page: str, file: str, printed: str) -> Iterator[str]:
    """The figures of a file's tables on a page that its command does not print, to as many places as the page has."""
    values = [float(number) for number in NUMBER.findall(printed)]
    table = TABLES[file]
    for _, section in sections_of(page):
        if f"{file}.json" in section or f"{table.bench}.py" in section:
            for number in (found for row in rows_of(section) for found in NUMBER.findall(row)):
                half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
                if not any(abs(float(number) - value) <= half for value in values):
                    yield number


def printed_by(file: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command of a table prints, with nothing measured."""
    bench = importlib.import_module(f"tests.bench.long.{TABLES[file].bench}")
    out = io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr("sys.argv", [TABLES[file].bench, *TABLES[file].words(file)])
        patch.chdir(ROOT)
        patch.setattr(KeptCells, "keep", _refuse)
        bench.main()
    return out.getvalue()


def _refuse(cells: KeptCells, name: str, cell: dict[str, Any]) -> None:
    raise AssertionError(f"{name} is not kept, and was measured")


@pytest.mark.parametrize("file", [next(iter(TABLES)), *map(long, list(TABLES)[1:])])
def test_tables_have_the_figures_of_their_cells(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = [other for other, table in TABLES.items() if table.bench == TABLES[file].bench]
    printed = "".join(printed_by(each, monkeypatch) for each in beside)
    page = (ROOT / TABLES[file].page).read_text()
    assert f"tests/bench/{file}.json" in page
    assert list(strange(page, file, printed)) == []


def test_a_table_says_its_commit_its_machine_and_how_often_it_was_measured() -> None:
    found = {page.relative_to(ROOT).as_posix(): list(unplaced(page.read_text())) for page in EXPLAINING}
    assert {page: headings for page, headings in found.items() if headings} == {}


def test_a_new_table_says_its_processor() -> None:
    """Lower the number with a section that says its processor now, or is gone."""
    assert sum(not_noted(page.read_text()) for page in EXPLAINING) == NOT_NOTED_SECTIONS


def test_a_table_with_an_opponent_says_first_who_is_ahead() -> None:
    found = {page.relative_to(ROOT).as_posix(): list(nameless(page.read_text())) for page in EXPLAINING}
    assert {page: headings for page, headings in found.items() if headings} == {}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_figures_have_a_command_that_makes_them(page: Path) -> None:
    assert list(unfounded(page.read_text())) == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_tables_of_virtual_time_say_so(page: Path) -> None:
    assert list(untold(page.read_text())) == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    assert [wrong for code in code_of(page.read_text()) for wrong in wrong_in(code)] == []


def test_every_bench_says_how_it_is_called_by_options_that_it_has() -> None:
    benches = [path for path in scripts() if path.stem.startswith(("bench_", "soak_"))]
    assert len(benches) > 40
    heads = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in benches}
    assert [path.name for path, head in heads.items() if path.stem not in head] == []
    assert [wrong for head in heads.values() for code in code_of(head) for wrong in wrong_in(code)] == []


def test_the_index_has_a_line_for_each_long_bench_with_what_it_shows_and_how_long_it_takes() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+\.py)\) \| (.+?) \| (.+?) \|$", INDEX.read_text(), re.MULTILINE)
    heads = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in (BENCH / "long").glob("*.py")}
    shown = {path.name: " ".join(head.partition("\n\n")[0].split()) for path, head in heads.items()}
    assert {file: what for _, file, what, _ in rows} == shown
    assert [
        name for name, file, _, takes in rows if f"{name}.py" != file or not re.search(r"\d|^not timed$", takes)
    ] == []


def test_what_the_table_of_formats_was_measured_by_exists() -> None:
    assert list(wrong_in(MEASURED_BY)) == []


def test_what_is_missing_is_found() -> None:
    figures = "1.2 s, 3.4 s, 5 %"
    page = f"# A\n{figures}\n## B\n{figures} by `bench_x.py`\n## C\n<!-- figures: settings -->\n{figures}\n"
    assert list(unfounded(page)) == [1]
    assert list(unfounded(f"<!-- all figures: published -->\n{page}")) == []
    assert list(unfounded(page.replace("5 %\n", "5 %, not measured\nagain\n", 1))) == []
    table = "# A\n    isthmus compare --tokens 4 \\\n        --speeds 1\n\n| a |\n"
    assert list(untold(table)) == [1]
    assert list(untold(f"{table}| virtual time |\n")) == []
    assert list(wrong_in("isthmus trane")) == ["isthmus trane"]
    assert list(wrong_in(".venv/bin/isthmus train --tokns 4 --learners 2")) == ["isthmus train --tokns"]
    assert list(wrong_in("isthmus simulate goodput --seeds 1 --slower 2")) == ["isthmus simulate goodput --slower"]
    assert list(wrong_in("python -m tests.bench.long.bench_regions --stepz 4 --json")) == ["bench_regions.py --stepz"]
    assert list(wrong_in("python -m tests.bench.bench_regions --json")) == ["bench_regions.py"]
    assert list(wrong_in("bench_nothing.py")) == ["bench_nothing.py"]
    assert list(wrong_in("make quick nonsense")) == ["make nonsense"]
    rows = "| a | b |\n| --- | --- |\n| x | 1.25 |\n| y | +.13 and 2.0 % |\n"
    head = "# A table\n    .venv/bin/python -m tests.bench.long.bench_carry\n"
    assert list(unplaced(f"{head}\n{rows}")) == ["A table"]
    assert list(unplaced(f"{head}Commit 01234567, an AMD EPYC, three seeds.\n\n{rows}")) == []
    assert list(unplaced(f"{head}Commit 01234567, an AMD EPYC.\n\n{rows}")) == ["A table"]
    assert list(unplaced(f"{head}Commit 01234567, three seeds.\n\n{rows}")) == ["A table"]
    unknown = f"{head}Commit 01234567, three seeds; the\nprocessor was not noted.\n\n{rows}"
    assert (list(unplaced(unknown)), not_noted(unknown), not_noted(head)) == ([], 1, 0)
    ours = "# A\n\n| a | b |\n| --- | --- |\n| data-parallel | 1.25 |\n| ours | 1.30, 1.40 |\n"
    assert list(nameless(ours)) == ["A"]
    assert list(nameless(ours.replace("# A", "# A\n\n**Ahead:** data-parallel."))) == []
    assert list(nameless(ours.replace("data-parallel", "alone"))) == []
    kept = head.replace("bench_carry", "bench_carry --kept tests/bench/carry.json")
    assert list(unplaced(f"{kept}Three seeds.\n\n{rows}")) == []
    assert list(strange(f"{kept}\n{rows}", "carry", "1.2468 and +0.1349 of 1.96")) == []
    assert list(strange(f"{kept}\n{rows}", "carry", "1.2568 and -0.1300 of 1.96")) == ["1.25", "+.13"]
