"""Mutation testing of the cores whose mistakes nobody would see: would the tests notice a small change of the code?

    make mutate                              # all modules
    make mutate MODULES="quorum_core verify"    # some
    python tests/mutation/mutate.py --draw 200 --seed 1    # some mutants of all, ring by ring

Prints a table, and every mutant that no test noticed; exit status 1 below `NOTICED_MIN` in any module. With `--draw` it
tries so many mutants of all modules together, drawn with a seed: against the tests of `make quick`, those that these
did not notice against the tests of `make test`, and what is left against all; exit status 1 if `make test` noticed
fewer than `NOTICED_MIN` of them.

The tool is mutmut. It works on a copy of the sources in a temporary folder, laid out as they are imported, because it
finds modules by their path. Each mutant is run against those tests of its module that call the mutated function, the
quickest first, until one fails. Hypothesis draws the same examples each time, fewer than otherwise, and does not shrink
what fails.

What is not mutated: the text of errors and faults (`TEXT`), types, module-level constants, and properties, whose
decorator mutmut leaves alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from configparser import ConfigParser
from itertools import chain
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MUTMUT: Final = Path(sys.executable).parent / "mutmut"
NOTICED_MIN: Final = 0.9
"""The share of a module's mutants that have to be noticed."""
QUORUM: Final = tuple(f"tests/runtime/cores/test_quorum_{part}.py" for part in ("core", "model", "late_votes"))
MEMBERSHIP: Final = tuple(
    f"tests/runtime/cores/test_membership_{part}.py" for part in ("core", "checks", "progress", "verdicts")
)
PROOF: Final = tuple(f"tests/runtime/graph/test_{part}.py" for part in ("instances", "proof", "verify"))
TERMS: Final = "tests/runtime/supervision/test_terms.py"
HOME: Final = (
    *(
        f"tests/runtime/supervision/test_home{part}.py"
        for part in ("", "_elastic", "_end", "_gangs", "_lost", "_machines", "_refusals", "_takeover", "_verdicts")
    ),
    TERMS,
)
STATION: Final = (*(f"tests/runtime/supervision/test_station{part}.py" for part in ("", "_hosts", "_lost")), TERMS)
RULES: Final = ("tests/runtime/graph/test_local_rules.py", "tests/runtime/graph/test_verify.py")
TESTS: Final = {
    "runtime/cores/quorum_core": QUORUM,
    "runtime/cores/scheduler_quorum_node": ("tests/runtime/cores/test_scheduler_quorum_node.py",),
    "runtime/cores/membership_core": MEMBERSHIP,
    "runtime/cores/membership_suspicion": MEMBERSHIP,
    **{f"runtime/supervision/{part}": HOME for part in ("home", "lives", "watch")},
    "runtime/supervision/station": STATION,
    "runtime/supervision/fleet": tuple(
        f"tests/runtime/supervision/test_{part}.py" for part in ("fleet", "machine", "home_gangs", "home_end")
    ),
    "runtime/supervision/liveness": tuple(
        f"tests/runtime/supervision/test_{part}.py" for part in ("restarts", "liveness", "reach", "service")
    ),
    "runtime/supervision/elastic": ("tests/runtime/supervision/test_home_elastic.py",),
    "runtime/graph/proof": PROOF,
    "runtime/graph/verify": RULES,
    "ops/exchange/token_accounts": (
        "tests/ops/exchange/test_token_accounts.py",
        "tests/ops/exchange/test_token_accounts_both_sides.py",
    ),
}
"""The modules, and the tests that have to notice. The words of quorum and membership (`messages`) have no function to
mutate."""
TEXT: Final = (r"\b_illegal(_option)?\(", r"\bFault\(", r"\braise \w+Error\(", r"\bassert_never\(")
"""Lines that begin a call whose arguments are words for a person, or for the type checker."""
EXAMPLES_MAX: Final = 150
"""Of a property, where `make soak` tries up to 2,500. Fewer can only let more mutants live."""
TEST_SECONDS_MAX: Final = 120
"""After so long a test has failed: what it tests does not end. Without a mutant the longest takes two seconds,
of a core that it has to itself."""
RINGS: Final = {
    "quick": ("5", "not process and not slow and not soak and not engine"),
    "test": ("10", "not soak and not engine"),
    "soak": ("100", ""),
}
"""The rings of tests, the smallest first: `TESTS_EFFORT`, and which marks pytest takes, as in the Makefile."""
NAMES: Final = """
import json, sys
from pathlib import Path
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name
files = [Path("src/isthmus", f"{module}.py") for module in sys.argv[1:]]
made = [(file, mutate_file_contents(str(file), file.read_text()).mutant_names) for file in files]
print(json.dumps([[get_mutant_name(file, name) for name in names] for file, names in made]))
"""
"""Prints the names of the mutants of modules, in a place that is laid out."""
PROFILE: Final = """
from hypothesis import Phase
settings.register_profile("mutation", settings.get_profile("isthmus"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("mutation")
"""
KILLED: Final = (1, 3)
TIMED_OUT: Final = (24, -24, 36, 152, 255, -9)
"""Exit statuses of tests, after mutmut: one failed, or they took fifteen times as long as usual. Whatever else became
of a mutant, it was not noticed."""


def main() -> int:
    """Run the modules that the command line names; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(TESTS)}, or how they end")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--draw", type=int, metavar="N", help="try N mutants of all modules together, ring by ring")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    asked = parser.parse_args()
    ends = tuple(f"/{module}" for module in asked.modules)
    chosen = [name for name in TESTS if not ends or f"/{name}".endswith(ends)]
    if len(chosen) < len(set(asked.modules)) or not chosen:
        parser.error(f"expected modules of {', '.join(TESTS)}, found {' '.join(asked.modules)}.")
    if asked.draw is not None:
        return draw(chosen, asked.draw, asked.seed, asked.jobs)
    begin, is_enough, unnoticed = time.monotonic(), True, ""
    for tests in dict.fromkeys(TESTS[name] for name in chosen):
        modules = [name for name in chosen if TESTS[name] == tests]
        with tempfile.TemporaryDirectory(prefix="isthmus-mutants-") as name:
            place = Path(name)
            lay_out(place, modules, tests)
            if status := run(place, asked.jobs):
                print(f"mutmut ended with {status}, for {', '.join(modules)}.")
                return 1
            for module in modules:
                is_enough &= show(place, module) >= NOTICED_MIN
                for mutant, what in fates(place, module).items():
                    if what != "killed":
                        unnoticed += f"\n{what}: {mutant}\n{difference(place, mutant)}\n"
    print(f"\n{(time.monotonic() - begin) / 60:.0f} minutes. Bar: {NOTICED_MIN:.0%} of every module.\n{unnoticed}")
    return int(not is_enough)


def draw(modules: list[str], count: int, seed: int, jobs: int) -> int:
    """Try mutants of all modules, drawn with a seed, against one ring of tests after another; the exit status."""
    begin, noticed, survivors = time.monotonic(), Counter[str](), ""
    drawn = drawn_of(modules, count, seed)
    for tests in dict.fromkeys(TESTS[module] for module in drawn):
        left = {module: names for module, names in drawn.items() if TESTS[module] == tests}
        print(f"{sum(map(len, left.values()))} of {', '.join(left)}:", end="", flush=True)
        for ring, (effort, marks) in RINGS.items():
            with tempfile.TemporaryDirectory(prefix="isthmus-mutants-") as name:
                place = Path(name)
                lay_out(place, list(left), tests, marks)
                if status := run(place, jobs, [*chain.from_iterable(left.values())], effort):
                    print(f"mutmut ended with {status}.")
                    return 1
                before = sum(map(len, left.values()))
                fate = {mutant: what for module in left for mutant, what in fates(place, module).items()}
                left = {module: [each for each in names if fate[each] == "survived"] for module, names in left.items()}
                left = {module: names for module, names in left.items() if names}
                count_now = before - sum(map(len, left.values()))
                noticed[ring] += count_now
                print(f"  {count_now} noticed by {ring}", end="", flush=True)
                if ring == "soak":
                    names = [*chain.from_iterable(left.values())]
                    survivors += "".join(f"\nsurvived: {each}\n{difference(place, each)}\n" for each in names)
            if not left:
                break
        print(flush=True)
    parts = ", ".join(f"{noticed[ring]} by {ring}" for ring in RINGS)
    minutes = (time.monotonic() - begin) / 60
    print(f"\nOf {count} mutants, seed {seed}, were noticed {parts}; {minutes:.0f} minutes.\n{survivors}")
    return int(noticed["quick"] + noticed["test"] < NOTICED_MIN * count)


def drawn_of(modules: list[str], count: int, seed: int) -> dict[str, list[str]]:
    """Module -> its mutants, of `count` that are drawn of all modules; modules without one are not there."""
    with tempfile.TemporaryDirectory(prefix="isthmus-mutants-") as name:
        place = Path(name)
        lay_out(place, modules, ())
        told = subprocess.run(
            [sys.executable, "-c", NAMES, *modules], cwd=place, capture_output=True, check=True
        ).stdout
    every = [(module, mutant) for module, names in zip(modules, json.loads(told), strict=True) for mutant in names]
    drawn = random.Random(seed).sample(every, count)
    return {module: names for module in modules if (names := [mutant for of, mutant in drawn if of == module])}


def lay_out(place: Path, modules: list[str], tests: tuple[str, ...], marks: str = "") -> None:
    """Copy sources and tests to `place`, with a configuration that mutates `modules` for `tests` to notice; `marks`
    says which of them, as pytest's -m."""
    bytecode = shutil.ignore_patterns("__pycache__")
    for part in ("runtime", "ops", "programs"):
        shutil.copytree(ROOT / part, place / "src/isthmus" / part, ignore=bytecode)
    for file in (ROOT / "programs" / "face").glob("*.py"):
        shutil.copy(file, place / "src/isthmus")
    for part in ("runtime", "ops"):
        shutil.copytree(ROOT / "tests" / part, place / "tests" / part, ignore=bytecode)
    for name in ("__init__", "effort"):
        shutil.copy(ROOT / f"tests/{name}.py", place / "tests")
    (place / "tests/conftest.py").write_text((ROOT / "tests/conftest.py").read_text() + PROFILE)
    ours, copy = ConfigParser(interpolation=None), ConfigParser(interpolation=None)
    ours.read(ROOT / "setup.cfg")
    copy["tool:pytest"] = {**ours["tool:pytest"], "timeout": str(TEST_SECONDS_MAX)}
    copy["tool:pytest"]["addopts"] += f" -m {shlex.quote(marks)}"
    copy["mutmut"] = {
        "source_paths": "src",
        "only_mutate": lines(f"src/isthmus/{name}.py" for name in modules),
        "do_not_mutate_patterns": lines(TEXT),
        "pytest_add_cli_args_test_selection": lines(tests),
        "use_git_change_detection": "false",
    }
    with (place / "setup.cfg").open("w") as file:
        copy.write(file)


def run(place: Path, jobs: int, mutants: Iterable[str] = (), effort: str = "100") -> int:
    """Run mutmut on `mutants`, or all, so many at a time; its exit status. What it prints is shown on a terminal, or if
    it fails."""
    ran = subprocess.run(
        [MUTMUT, "run", "--max-children", str(jobs), *mutants],
        cwd=place,
        env={**os.environ, "TESTS_EFFORT": effort, "TESTS_EXAMPLES_MAX": str(EXAMPLES_MAX)},
        stdout=None if sys.stdout.isatty() else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        print((ran.stdout or "")[-4000:])
    return ran.returncode


def lines(values: Iterable[str]) -> str:
    """A list as mutmut reads it."""
    return "".join(f"\n{value}" for value in values)


def fates(place: Path, module: str) -> dict[str, str]:
    """What became of each mutant of a module."""
    meta = json.loads((place / f"mutants/src/isthmus/{module}.py.meta").read_text())
    seconds = meta["durations_by_key"]
    return {
        mutant: "survived"
        if code not in KILLED + TIMED_OUT
        else "timed out"
        if code in TIMED_OUT or seconds[mutant] > TEST_SECONDS_MAX
        else "killed"
        for mutant, code in meta["exit_code_by_key"].items()
    }


def show(place: Path, module: str) -> float:
    """Print a line of the table; the share of a module's mutants that were noticed."""
    counts = Counter(fates(place, module).values())
    share = 1 - counts["survived"] / counts.total()
    parts = "  ".join(f"{counts[what]:4} {what}" for what in ("killed", "timed out", "survived"))
    print(f"{module:20} {counts.total():5} mutants  {parts}  {share:6.1%}", flush=True)
    return share


def difference(place: Path, mutant: str) -> str:
    """What a mutant changes: the lines without and with it."""
    shown = subprocess.run([MUTMUT, "show", mutant], cwd=place, capture_output=True, text=True, check=True).stdout
    return "\n".join(re.findall(r"^[-+](?![-+]).*$", shown, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main())
