"""What a machine has for the measurements on a GPU, and whether that is enough: before anything else is started.

The machine may be bare: a Python with jax for CUDA and what comes with that, no network, and a folder of wheels of what
is missing there. Nothing is installed into that Python. What is missing goes to a folder of its own, with the packages
of this tree as links, and comes by PYTHONPATH, which every process that is started from there inherits. (A virtual
environment would not do: made by a Python that is itself in one, it does not see that one's packages.)

What is not enough is one message: what was expected, what was found, what to do. This module itself needs nothing but
Python's standard library; what needs more is asked of a child (`probe`).
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("runtime", "ops", "programs")
BASE: Final = ("jax", "jaxlib", "numpy", "scipy", "ml-dtypes")
"""What a machine has to have: jax for its card, and what that was built with."""
WHEELS_MEGABYTES_MAX: Final = 60.0
"""Together, because they are carried along with the tree."""
MEMORY_BYTES_MIN: Final = 24_000_000_000
"""Free on the card. Two processes at a time have 0.45 of it each: 2 GB of state, two arrays of logits in float32 of
1.6 GB each, and what twelve layers keep for the backward pass. Not measured: no GPU was at hand."""
_LIBRARIES: Final = ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "_2_12", "_2_5", "2014", "2010", "1")
PLATFORMS: Final = tuple(f"manylinux{library}_x86_64" for library in _LIBRARIES)
"""As pip takes them, which matches each exactly."""
_MODULES: Final = {"pyzmq": "zmq", "ml-dtypes": "ml_dtypes"}
"""Of distributions whose module has another name."""


class RefusedError(Exception):
    """What is asked for cannot be done here, or not like this."""

    def __init__(self, doing: str, expected: str, found: str, do: str) -> None:
        super().__init__(f"{doing}: expected {expected}, found {found}.\n  {do}")


DOING: Final = "Measuring on a GPU"


# -- packages ----------------------------------------------------------------------------------------------------------


class Requirement(NamedTuple):
    """A distribution, by its normalised name, and the bounds of its version: (operator, version)."""

    name: str
    bounds: tuple[tuple[str, str], ...]

    @property
    def module(self) -> str:
        """The module that is imported."""
        return _MODULES.get(self.name, self.name.replace("-", "_"))

    @property
    def text(self) -> str:
        """As pip takes it."""
        return self.name + ",".join(operator + version for operator, version in self.bounds)

    def allows(self, version: str) -> bool:
        """Whether a version is within the bounds."""
        compare: Mapping[str, Callable[[Any, Any], bool]] = {
            ">=": lambda a, b: a >= b,
            "<=": lambda a, b: a <= b,
            "<": lambda a, b: a < b,
            ">": lambda a, b: a > b,
            "==": lambda a, b: a == b,
            "!=": lambda a, b: a != b,
        }
        return all(compare[operator](_release(version), _release(bound)) for operator, bound in self.bounds)


def requirements(setup: Path = ROOT / "setup.cfg") -> list[Requirement]:
    """What setup.cfg says that isthmus needs; markers, all of which say Linux, are left out."""
    parser = configparser.ConfigParser()
    parser.read(setup)
    lines = [line.split(";")[0] for line in parser["options"]["install_requires"].splitlines() if line.strip()]
    found = []
    for line in lines:
        name = re.match(r"\s*[A-Za-z0-9._-]+", line)
        assert name is not None, line
        bounds = re.findall(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)", line[name.end() :])
        found.append(Requirement(normalised(name.group()), tuple(bounds)))
    return found


def normalised(name: str) -> str:
    """A distribution's name, as names are compared."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without zeros at the end; what comes after a release is left out."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers.group().split(".")] if numbers else [0]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def installed(name: str) -> str | None:
    """The version of a distribution in this Python; None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


class Wheel(NamedTuple):
    """A wheel's file, and what its name says."""

    path: Path
    name: str
    version: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]

    def fits(self, python: tuple[int, int]) -> bool:
        """Whether a CPython of this version on x86-64 Linux can use it; how old its C library is, is not looked at."""
        own = f"cp{python[0]}{python[1]}"
        is_older = any(
            tag.startswith("cp3") and tag[3:].isdigit() and int(tag[3:]) <= python[1] for tag in self.pythons
        )
        for_python = own in self.pythons or "py3" in self.pythons or ("abi3" in self.abis and is_older)
        for_abi = bool({own, "abi3", "none"} & set(self.abis))
        return for_python and for_abi and any(each == "any" or "x86_64" in each for each in self.platforms)


def wheel_of(path: Path) -> Wheel | None:
    """The wheel of a file; None if its name is not one of a wheel."""
    parts = path.name.removesuffix(".whl").split("-")
    if path.suffix != ".whl" or len(parts) not in (5, 6):
        return None
    return Wheel(path, normalised(parts[0]), parts[1], *(tuple(part.split(".")) for part in parts[-3:]))


def chosen(
    needed: Sequence[Requirement],
    version_of: Callable[[str], str | None],
    wheels: Iterable[Wheel],
    python: tuple[int, int],
    folder: Path | None,
) -> list[Path]:
    """The wheels to take, the newest of each distribution that this Python lacks; RefusedError if they do not suffice.

    `needed` without `BASE`, whose versions `check_base` has looked at.
    """
    bounds = {each.name: each for each in needed}
    lacking = {each.name for each in needed if not _suits(each, version_of(each.name))}
    fitting: dict[str, Wheel] = {}
    foreign: list[Wheel] = []
    for wheel in wheels:
        if wheel.name in BASE or (wheel.name not in lacking and version_of(wheel.name) is not None):
            continue
        if not wheel.fits(python):
            foreign.append(wheel)
        elif wheel.name not in bounds or bounds[wheel.name].allows(wheel.version):
            best = fitting.get(wheel.name)
            fitting[wheel.name] = wheel if best is None or _release(best.version) < _release(wheel.version) else best
    missing = [each for each in needed if each.name in lacking - set(fitting)]
    if missing:
        text = ", ".join(each.text for each in missing)
        others = [wheel.path.name for wheel in foreign if wheel.name in {each.name for each in missing}]
        where = "no --wheels" if folder is None else f"none of them in {folder}"
        also = f", where {', '.join(others)} is for another Python" if others else ""
        version = ".".join(map(str, python))
        raise RefusedError(
            DOING,
            f"{text} in {sys.executable}, Python {version}, or as wheels",
            f"neither there, and {where}{also}",
            f"Where there is a network: {download_command(folder or Path('wheels'), version, missing)}",
        )
    return [wheel.path for _, wheel in sorted(fitting.items())]


def _suits(needed: Requirement, version: str | None) -> bool:
    return version is not None and needed.allows(version)


def check_base(needed: Sequence[Requirement], version_of: Callable[[str], str | None]) -> None:
    """RefusedError unless what has to be there is there, in a version that setup.cfg allows."""
    for each in needed:
        version = version_of(each.name)
        if each.name in BASE and not _suits(each, version):
            found = f"{version or 'none'}, in {sys.executable}"
            do = "Use another Python: PYTHON=/path/to/python3 tests/bench/on_a_gpu.sh"
            raise RefusedError(DOING, each.text, found, do)


def download_command(folder: Path, python: str, needed: Iterable[Requirement]) -> str:
    """The command that fetches the wheels of these for another Python."""
    return shlex.join(["python3", *_download(folder, python, [each.text for each in needed])])


def _download(folder: Path, python: str, texts: Sequence[str]) -> list[str]:
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    options = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp", *platforms]
    return ["-m", "pip", "download", "--quiet", "--no-deps", *options, "--dest", str(folder), *texts]


def fetch_wheels(folder: Path, python: str, without: Sequence[str], megabytes_max: float) -> list[Path]:
    """Fetch the wheels of everything that isthmus needs but `BASE` and `without`, and of what those need.

    RefusedError if pip fails, or if they are larger together.
    """
    doing = f"Fetching wheels for Python {python}"
    left_out = {*BASE, *map(normalised, without)}
    wanted = [each.text for each in requirements() if each.name not in left_out]
    arguments = [each for each in _download(folder, python, wanted) if each not in ("--no-deps", "--dest", str(folder))]
    arguments[2] = "install"
    report = ["--dry-run", "--ignore-installed", "--report", "-", "--target", str(folder)]
    resolved = json.loads(_pip(doing, [*arguments, *report]))["install"]
    names = [(normalised(each["metadata"]["name"]), each["metadata"]["version"]) for each in resolved]
    folder.mkdir(parents=True, exist_ok=True)
    _pip(doing, _download(folder, python, [f"{name}=={version}" for name, version in names if name not in left_out]))
    files = sorted(folder.glob("*.whl"), key=lambda path: path.stat().st_size, reverse=True)
    total = sum(path.stat().st_size for path in files) / 1e6
    if total > megabytes_max:
        large = ", ".join(f"{path.name} of {path.stat().st_size / 1e6:.1f} MB" for path in files[:3])
        do = (
            f"Remove {folder}, and leave out what that machine has, as in --without numba,llvmlite; or --megabytes-max."
        )
        raise RefusedError(doing, f"at most {megabytes_max:g} MB", f"{total:.1f} MB, {large}", do)
    return files


def _pip(doing: str, arguments: Sequence[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RefusedError(doing, "pip to do it", " ".join(lines[-1:]) or "a failure without a word", "Look at that.")
    return done.stdout


def make_site(folder: Path, wheels: Sequence[Path]) -> None:
    """A folder for PYTHONPATH: these wheels, the packages of this tree as links, and what says their version."""
    if wheels:
        offline = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check"]
        _pip(DOING, ["-m", "pip", "install", *offline, "--target", str(folder), *map(str, wheels)])
    (folder / "isthmus").mkdir(parents=True)
    for package in PACKAGES:
        (folder / "isthmus" / package).symlink_to(ROOT / package)
    for file in (ROOT / "programs" / "face").glob("*.py"):
        (folder / "isthmus" / file.name).symlink_to(file)
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    version = parser["metadata"]["version"]
    described = folder / f"isthmus-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: isthmus\nVersion: {version}\n")


# -- the card ----------------------------------------------------------------------------------------------------------


class Card(NamedTuple):
    """A GPU as nvidia-smi tells of it."""

    name: str
    driver: str
    total_bytes: int
    free_bytes: int


def card_of(text: str, number: str) -> Card | None:
    """The card of this number in the answer of nvidia-smi; None if it is not in it."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5 and number in parts[0:1] and parts[2].isdigit() and parts[3].isdigit():
            return Card(parts[1], parts[4], int(parts[2]) << 20, int(parts[3]) << 20)
    return None


def card(number: str) -> Card | None:
    """The card of this number; None where nvidia-smi does not tell."""
    query = "--query-gpu=index,name,memory.total,memory.free,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return card_of(done.stdout, number)


def check_memory(found: Card | None) -> None:
    """RefusedError for a card of which too little is free; one that is not known is tried."""
    if found is not None and found.free_bytes < MEMORY_BYTES_MIN:
        there = f"{found.free_bytes / 1e9:.1f} GB free of {found.total_bytes / 1e9:.1f} GB on {found.name}"
        do = "End what has it, or name another by CUDA_VISIBLE_DEVICES."
        raise RefusedError(DOING, f"{MEMORY_BYTES_MIN / 1e9:.0f} GB of memory that is free", there, do)


# -- all of it ---------------------------------------------------------------------------------------------------------


def environment(site: Path, *, is_tiny: bool, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of every process that measures; one that is tiny computes on the CPU."""
    path = os.pathsep.join([str(site), str(ROOT), *filter(None, [given.get("PYTHONPATH")])])
    own = {"JAX_PLATFORMS": "cpu"} if is_tiny else {}
    return {**given, **own, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def probe(variables: Mapping[str, str], data: Path | None, *, is_tiny: bool) -> dict[str, Any]:
    """What a child finds: `versions`, `device_kind`, and `gpu`, the number of the GPU, None on a CPU.

    RefusedError if a package is missing or broken, if jax has no GPU (unless `is_tiny`), or for data that is no text.
    """
    modules = [each.module for each in requirements()]
    order = json.dumps({"modules": modules, "data": None if data is None else str(data), "tiny": is_tiny})
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu_machine", order],
        env=dict(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RefusedError(DOING, "a Python in which jax starts", last, "Mend that first.") from None
    if "refused" in answer:
        raise RefusedError(*answer["refused"])
    return answer


def _answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """The child's part of `probe`, what takes least time first."""
    try:
        return _answered(order)
    except ImportError as error:
        do = "Add its wheel to the folder of --wheels: tests/bench/on_a_gpu.sh --fetch-wheels DIR has all of them."
        return {"refused": (DOING, "packages that can be imported", str(error), do)}


def _answered(order: Mapping[str, Any]) -> dict[str, Any]:
    refused = _text_fault(order["data"])
    if refused is not None:
        return {"refused": refused}
    number = None
    if not order["tiny"]:
        from isthmus.programs.engine.islands.environment import find

        found = find()
        if found is None or found.platform != "cuda":
            there = "none that jax can use" if found is None else f"{len(found.ids)} devices for {found.platform!r}"
            do = "Run it on a machine that has one, after: pip install 'jax[cuda12]'. Without one: --tiny."
            return {"refused": (DOING, "an NVIDIA GPU, and jax with its plugin for CUDA", there, do)}
        number = found.ids[0]
        os.environ.update(CUDA_VISIBLE_DEVICES=number, JAX_PLATFORMS="cuda")
    for name in order["modules"]:
        import_module(name)
    import jax

    try:
        kind = str(jax.local_devices()[0].device_kind)
    except Exception as error:  # Whatever its backend raises.
        return {"refused": (DOING, "a GPU that jax can use", str(error), "Mend that first.")}
    versions = {name: installed(name) for name in ("jax", "jaxlib", "numpy", "jax-cuda12-plugin", "jax-cuda13-plugin")}
    return {"gpu": number, "device_kind": kind, "versions": versions}


def _text_fault(data: str | None) -> tuple[str, str, str, str] | None:
    """What is wrong with the text, as doing, expected, found, do."""
    from isthmus.ops.data.corpus import READING, DataError, load
    from isthmus.programs.reading.found import find

    try:
        sources = find(() if data is None else (data,)).files
        for source in sources:
            if source.holds_tokens:
                raise DataError(READING, "text", f"token ids in {source.path}", "Name a folder of text with --data.")
        load(sources)
    except DataError as error:
        return error.action, error.expected, error.found, error.remedy
    return None


def commit() -> str | None:
    """The commit of this tree, with '-dirty' where it was changed since; None where git does not tell."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def sources() -> str:
    """A digest of what is measured, and of what measures: also where the tree was carried without its history."""
    digest = hashlib.sha256()
    folders = [ROOT / package for package in PACKAGES] + [ROOT / "tests" / "bench"]
    for path in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


if __name__ == "__main__":
    print(json.dumps(_answer(json.loads(sys.argv[1]))))
