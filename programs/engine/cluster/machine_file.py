"""machine.toml: the code that a machine's daemon may run, its folders, its key, and the keys that it admits.

Nothing is imported here: a program or task is judged by the name of its module or file. Paths are relative to the
folder of machine.toml. A key that is listed alone has no other name than itself. A file that another user could have
written is refused, this one and those of listed modules: they decide whose code runs here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, final

import msgspec

from isthmus.programs import SHIPPED, SHIPPED_TASKS, settings
from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.permitted_scripts import NO_SCRIPTS, PermittedScripts
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.programs.loop_script import OPEN, LoopScript
from isthmus.programs.settings import Schema, Setting, collecting
from isthmus.runtime.errors import ConfigError, Fault, nearest
from isthmus.runtime.wire import security_keys
from isthmus.runtime.wire.security_keys import KeyPair


@final
@dataclass(frozen=True, slots=True)
class SiteRules:
    """What the owner of a machine says of its own data, on which learners here train in place of a run's."""

    data: tuple[str, ...] = ()
    """Files and folders, absolute; none: they train on the run's data."""
    is_told: bool = True
    """The home gets what is found on the held-out part."""
    keeps_own: bool = False
    """The last model of their own stays here."""

    def with_data(self, given: Sequence[str]) -> SiteRules:
        """The same, with the data that a command names, if it names any; ConfigError for none that can be read, and for
        rules that are of no data."""
        paths = tuple(os.path.abspath(os.path.expanduser(each)) for each in given) or self.data
        if not paths and (not self.is_told or self.keeps_own):
            key = "keep_own" if self.keeps_own else "evaluate"
            do = "Name the data there, or with --data."
            raise ConfigError(f"Reading runs.{key}", "[runs] data, the machine's own, beside it", "none", do)
        if paths:
            from isthmus.ops.data.corpus import DataError
            from isthmus.programs.reading.found import find  # Of a machine with data of its own.

            try:
                find(paths)
            except DataError as error:
                raise ConfigError(
                    "Reading the machine's own data", error.expected, error.found, error.remedy
                ) from error
        return replace(self, data=paths)


DO_KEYS: Final = 'Write [keys], and below it secret = "NAME.key", which `isthmus keygen NAME` makes.'


@final
@dataclass(frozen=True, slots=True)
class MachineConfig:
    """Contents of machine.toml, and, from `ports` on, what the daemon's command adds to them."""

    modules: tuple[str, ...] = ()
    """Modules and absolute files that may be loaded."""
    pair: KeyPair | None = None
    """The machine's keys, None without."""
    admitted: Mapping[str, str] = field(default_factory=dict)
    """Public key -> name of the machines that it admits."""
    secret: Path | None = None
    """The file of its secret key."""
    operators: frozenset[str] = frozenset()
    """The public keys of the machines that are operators."""
    runs: Path | None = None
    """The folder of its runs, None for the daemon's working folder."""
    error_texts: Literal["local", "home"] | None = None
    """Whether those of its hosts of other homes' runs stay here, None where not given."""
    scripts: PermittedScripts = NO_SCRIPTS
    """Scripts of users that may be started as learners."""
    site: SiteRules = SiteRules()
    """The owner's own data."""
    ports: str = ""
    """Those at which its hosts listen, empty for any."""
    has_porter: bool = False
    """Whether its daemon has one."""
    is_far: bool = False
    """The way to other machines, or to some of them, leads through a bucket."""
    grace: float = GRACE_SECONDS
    """The seconds from a notice until all has left."""
    until_over: bool = False
    """It ends with its runs."""

    def faults(self, program: str, task: str, machine: str, *, computes: bool = True) -> Iterator[Fault]:
        """Faults of a program and a task that this machine may not load; of a script, which it may not start where it
        `computes`: no other machine starts any."""
        shipped = {*SHIPPED, *SHIPPED.values(), *SHIPPED_TASKS, OPEN}
        for kind, text in (("program", program), *(("task", text) for text in references_of(task))):
            if kind == "task" and (script := reference.script_of(text)) is not None:
                yield from self.scripts.faults(script, machine) if computes else ()
                continue
            if reference.without_keywords(text) in shipped or self._permits(text):
                continue
            where, _ = reference.split(text)
            expected = "a shipped one, or one of a module that its machine.toml lists"
            do = f'Let the operator add it, and start the daemon with that file: [programs] modules = ["{where}"]'
            yield Fault(f"Handing a {kind} to the daemon {machine!r}", expected, repr(text), do)

    def refusal_of(self, script: LoopScript, machine: str) -> str:
        """Why this machine does not start a script, in words; '' where its owner permits that."""
        return "; ".join(f"{fault.found}: {fault.remedy}" for fault in self.scripts.faults(script, machine))

    def _permits(self, text: str) -> bool:
        where, _ = reference.split(text)
        if reference.is_file(where):
            return os.path.realpath(where) in self.modules
        return any(f"{where}.".startswith(f"{module}.") for module in self.modules)


def read(file: Path | None, own_data: Sequence[str] = ()) -> MachineConfig:
    """The contents of a machine.toml, or the default without one; ConfigError with all its faults. `own_data`: files
    and folders that the daemon's command names."""
    if file is None:
        return MachineConfig(site=SiteRules().with_data(own_data))
    document = settings.read_file(file, "the machine's configuration", "Name a file with --config.")
    security_keys.check_owned(file.stat(), file, f"Reading {file}")
    faults: list[Fault] = []
    folder = file.absolute().parent
    tables: dict[str, dict[str, Any]] = {}
    for name, table in document.items():
        if name not in _SECTIONS:
            expected = "the sections [programs], [keys] and [runs]"
            faults.append(Fault(f"Reading {file}", expected, repr(name), nearest(name, _SECTIONS)))
        elif not isinstance(table, dict):
            faults.append(Fault(f"Reading {file}", f"a table [{name}]", repr(table), f"Write [{name}] above it."))
        else:
            with collecting(faults):
                tables[name] = Schema.of(name, _SECTIONS[name]).read(table)
    has = _Keys() if "keys" not in tables else _read_keys(tables["keys"], folder, faults)
    runs, of_runs = None, tables.get("runs", {})
    with collecting(faults):
        runs = _folder(of_runs.get("folder", ""), folder)
    programs = tables.get("programs", {})
    modules = tuple(_module(text, folder) for text in programs.get("modules", ()))
    for module in modules:
        with collecting(faults):
            _check_module(module)
    scripts = PermittedScripts.of(programs.get("scripts", ()), programs.get("pythons", ()), folder)
    faults += scripts.reading_faults()
    data = tuple(os.path.abspath(folder / os.path.expanduser(each)) for each in of_runs.get("data", ()))
    site = SiteRules(data, of_runs.get("evaluate") != "local", bool(of_runs.get("keep_own")))
    with collecting(faults):
        site = site.with_data(own_data)
    if faults:
        raise ConfigError.of(faults)
    texts = of_runs.get("error_texts")
    return MachineConfig(modules, has.pair, has.admitted, has.secret, has.operators, runs, texts, scripts, site)


class _Keys(NamedTuple):
    """Contents of [keys]."""

    pair: KeyPair | None = None
    secret: Path | None = None
    admitted: Mapping[str, str] = MappingProxyType({})
    operators: frozenset[str] = frozenset()


def _read_keys(table: Mapping[str, Any], folder: Path, faults: list[Fault]) -> _Keys:
    """The contents of [keys]; adds faults to `faults`."""
    pair = secret = None
    with collecting(faults):
        pair = _pair(table["secret"], folder)
        secret = folder / os.path.expanduser(table["secret"])
    admitted: dict[str, str] = {}
    with collecting(faults):
        _add(admitted, table["admitted"], folder, "admitted")
    operators: list[str] = []
    with collecting(faults):
        operators = _add(admitted, table["operators"], folder, "operators")
    return _Keys(pair, secret, admitted, frozenset(operators))


class ProgramsTable(msgspec.Struct, kw_only=True):
    """The keys of [programs]."""

    modules: Annotated[
        tuple[str, ...],
        Setting("Modules and files whose programs and tasks the daemon may load, with those of the package."),
    ] = ()
    scripts: Annotated[
        tuple[str, ...],
        Setting(
            "Scripts of users (`--loop`) that it may start: files, folders with all of their files, `-m MODULE`, "
            "programs. A folder also lets scripts run in it."
        ),
    ] = ()
    pythons: Annotated[tuple[str, ...], Setting("Interpreters that may run them (`--python`), beside its own.")] = ()


class KeysTable(msgspec.Struct, kw_only=True):
    """The keys of [keys]."""

    secret: Annotated[str, Setting("The file of the machine's own secret key; required in this section.")] = ""
    admitted: Annotated[tuple[str, ...], Setting("Machines that may connect: NAME.pub, or `NAME KEY`.")] = ()
    operators: Annotated[
        tuple[str, ...], Setting("Keys in the same form, of those who may also submit, watch, stop and end runs.")
    ] = ()


class RunsTable(msgspec.Struct, kw_only=True):
    """The keys of [runs]."""

    folder: Annotated[
        str, Setting("The folder of the run folders. Default: the folder in which the daemon was started.")
    ] = ""
    error_texts: Annotated[
        Literal["local", "home"] | None,
        Setting(
            "Where texts of errors, tracebacks and logs of another home's run are: they stay here, or go to that home. "
            'Default: `"local"` for `isthmus join`, and with `data`; else `"home"`.'
        ),
    ] = None
    data: Annotated[
        tuple[str, ...],
        Setting(
            "Files and folders on which learners here train, in place of the run's data; they stay on this machine. "
            "`--data` of `isthmus join` and `isthmus daemon` names others."
        ),
    ] = ()
    evaluate: Annotated[
        Literal["home", "local"],
        Setting("Whether the losses on the held-out part of `data` go to the home of a run, or stay here."),
    ] = "home"
    keep_own: Annotated[bool, Setting("The last models that learners here had of their own stay on this machine.")] = (
        False
    )


_SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "programs": ProgramsTable,
    "keys": KeysTable,
    "runs": RunsTable,
}


def _folder(text: str, folder: Path) -> Path | None:
    """The folder of the runs; None if not given."""
    if not text:
        return None
    path = Path(os.path.abspath(folder / os.path.expanduser(text)))
    if not path.is_dir():
        what_is_there = "a file" if path.exists() else "nothing there"
        raise ConfigError(
            "Reading runs.folder", "a folder", f"{path}, {what_is_there}", "Make it, or name another one."
        )
    return path


def _pair(text: str, folder: Path) -> KeyPair:
    """The machine's own pair."""
    if not text:
        raise ConfigError("Reading keys.secret", "the file of a secret key", "nothing", DO_KEYS)
    return security_keys.read_pair(folder / os.path.expanduser(text))


def _add(admitted: dict[str, str], texts: Iterable[str], folder: Path, what: str) -> list[str]:
    """Add the machines listed under keys.`what` to `admitted`, public key -> name; returns their public keys."""
    faults: list[Fault] = []
    keys = []
    for text in texts:
        doing = f"Reading keys.{what}, {text!r}"
        name, _, last = text.rpartition(" ")
        with collecting(faults):
            key = security_keys.read_public(last if security_keys.is_key(last) else text, folder, doing)
            if not name or key != last:
                name = key if security_keys.is_key(text) else Path(text).stem
            if name != key:
                cluster_file.checked_name(name.strip(), doing, 'a NAME.pub, or "NAME KEY"')
            security_keys.check(admitted, name.strip(), key, doing)
            admitted[key] = name.strip()
            keys.append(key)
    if faults:
        raise ConfigError.of(faults)
    return keys


def _module(text: str, folder: Path) -> str:
    """A module's name unchanged, or a file's path resolved."""
    if not reference.is_file(text):
        return text
    return os.path.realpath(os.path.join(folder, os.path.expanduser(text)))


def _check_module(module: str) -> None:
    """ConfigError for a module whose file another user could have written, who would then decide what runs here.

    A missing module is refused when it is requested.
    """
    doing = f"Reading programs.modules, {module!r}"
    for path in [Path(module)] if reference.is_file(module) else _files_of(module):
        if path.exists():
            security_keys.check_owned(path.stat(), path, doing)


def _files_of(module: str) -> Iterator[Path]:
    """The files and folders that a module is read from, outermost first; nothing of it is imported."""
    places: Sequence[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        module_spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if module_spec is None:
            return
        places = module_spec.submodule_search_locations
        yield from map(Path, filter(None, [module_spec.origin, *(places or ())]))
