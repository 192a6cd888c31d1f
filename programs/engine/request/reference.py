"""References: the names of programs and tasks in users' files and modules, and their import.

`package.module:name` or `file.py:name`; a file is imported under its stem, with its folder first on the path, just as
Python starts a script, but never as `__main__`. `where:function(key = value, ...)` is the result of the function for
those keywords (written as in a TOML inline table), which is how the shipped task names itself in full.

A host resolves a reference to the same object each time, and to the object that `bind` gave it where the request came
from this very process: a notebook's task has no file. What a reference names, and whether it is allowed, is the
caller's affair.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

from isthmus.programs import settings
from isthmus.programs.loop_script import LOOP, OPEN, LoopScript
from isthmus.runtime.errors import ConfigError, RequestError, nearest, shortened
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.system.files import is_text
from isthmus.runtime.system.user_files import is_users

_MESSAGE_LENGTH_MAX: Final = 1000
_VALUE_LENGTH_MAX: Final = 60
_FORM: Final = re.compile(r"(?P<where>[^\"]*?\.py|[^()\"]*):(?P<name>[^\W\d]\w*)(\((?P<keywords>.*)\))?", re.DOTALL)
"""A folder of a path may have colons and parentheses in its name, but no quotes: keywords may be references."""
OWN_FOLDERS: Final = tuple(
    Path(spec.submodule_search_locations[0])
    for name in ("runtime", "ops", "programs")
    if (spec := importlib.util.find_spec(f"isthmus.{name}")) is not None and spec.submodule_search_locations
)
"""The folders of the packages of isthmus."""
GONE: Final = {"isthmus.programs.digits": "docs/examples/digits.py"}
"""Modules of an earlier version that had a task, which files of that may still name: where it is in a clone."""
_bound: dict[str, Any] = {}
_lock = RLock()
_loading: ContextVar[str | None] = ContextVar("loading", default=None)
_loaded: dict[str, tuple[str, int, int]] = {}


class ReferenceParts(NamedTuple):
    """A reference in parts: a file's path or a module's name, a name in it, and keywords if that is to be called."""

    where: str
    name: str
    keywords: Mapping[str, Any] | None

    @property
    def is_file(self) -> bool:
        """Whether `where` is the path of a file."""
        return is_file(self.where)

    @property
    def stem(self) -> str:
        """The last part of the module's name."""
        return Path(self.where).stem if self.is_file else self.where.rpartition(".")[2]


def is_file(where: str) -> bool:
    """Whether the part of a reference before the colon is a path, and not the name of a module."""
    return where.endswith(".py") or "/" in where


def parse(text: str, doing: str) -> ReferenceParts:
    """The parts of a reference; ConfigError if it has another form."""
    form = _FORM.fullmatch(text)
    if form is None or not form["where"]:
        hint = "Add a colon and the name." if ":" not in text else "Write for example mine.py:task."
        raise ConfigError(doing, "FILE.py:NAME or package.module:NAME", repr(text), hint)
    try:
        keywords = None if form["keywords"] is None else settings.parse(f"{{{form['keywords']}}}")
    except ValueError as error:
        raise ConfigError(
            doing, "keywords as in a TOML inline table", str(error), "Write name(key = value, ...)."
        ) from None
    return ReferenceParts(form["where"], form["name"], keywords)


def split(text: str) -> tuple[str, str]:
    """The file or module of a reference, and the rest behind the colon; the text and nothing, where it has no such
    form."""
    form = _FORM.fullmatch(text)
    return (text, "") if form is None else (form["where"], text[form.end("where") + 1 :])


def without_keywords(text: str) -> str:
    """What a reference names, without the keywords that it is called with."""
    where, rest = split(text)
    return f"{where}:{rest.partition('(')[0]}" if rest else text


def absolute(text: str, folder: Path | None = None) -> str:
    """`text` with the path of its file made absolute, from `folder` or the current one; any other text as it is."""
    where, rest = split(text)
    if not rest or not is_file(where):
        return text
    return f"{os.path.abspath(os.path.join(folder or Path.cwd(), os.path.expanduser(where)))}:{rest}"


def called(text: str, keywords: Mapping[str, Any]) -> str:
    """The reference to the result of the function at `text` for `keywords`."""
    return f"{text}({settings.inline(keywords)})"


def script_of(text: str) -> LoopScript | None:
    """The script whose processes are the learners, where a reference names the task of one."""
    if not text.startswith(f"{LOOP}("):
        return None
    return LoopScript.of(parse(text, f"Reading the task {text}").keywords or {})


def is_open_loop(text: str) -> bool:
    """Whether a reference names the task of loops that start themselves."""
    return text.startswith(f"{OPEN}(")


def portable(text: str) -> str:
    """A reference without the folder of its file, or of its script."""
    if (script := script_of(text)) is not None:
        own = ("folder", "python")  # Another machine may have others.
        parts = {key: value for key, value in script.keywords.items() if key not in own}
        return called(LOOP, {**parts, "script": script.name})
    if is_open_loop(text):
        return OPEN
    where, rest = split(text)
    return f"{Path(where).name}:{rest}" if rest and is_file(where) else text


def bind(reference: Reference, value: Any) -> None:
    """Let `reference` mean `value` in this process, from now on."""
    with _lock:
        _bound[reference.text] = value


def resolve(reference: Reference) -> Any:
    """The object of `reference`: the one bound to it, or the one it names, which is loaded once."""
    with _lock:
        if reference.text not in _bound:
            _bound[reference.text] = load(reference.text, f"Loading {reference.text!r}")
        return _bound[reference.text]


def load(text: str, doing: str, do: str = "") -> Any:
    """The object that a reference names, imported now.

    ConfigError if there is no such file, module or name, or the import fails. `do` is the remedy for a missing name, in
    place of the nearest one.
    """
    with same_umask():
        return _load(text, doing, do)


@contextmanager
def same_umask() -> Iterator[None]:
    """Keep what the user's code changes of the umask from the files of a run, which others read."""
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        yield
    finally:
        os.umask(umask)


def _load(text: str, doing: str, do: str) -> Any:
    target = parse(text, doing)
    module = _import_file(Path(split(absolute(text))[0]), doing) if target.is_file else _import(target, doing)
    names = vars(module)
    if target.name not in names and not hasattr(module, target.name):
        public = [name for name in names if not name.startswith("_")]
        where = getattr(module, "__file__", None) or target.where
        raise ConfigError(doing, f"{target.name!r} in {where}", "no such name", do or nearest(target.name, public))
    value = getattr(module, target.name)
    if target.keywords is None:
        return value
    with explained(doing, "a result", file_of(value)):
        return value(**target.keywords)


def load_in_child(text: str, doing: str, do: str) -> Any:
    """The result of `load` in a process that has not imported the file before; its module is not kept."""
    target = parse(text, doing)
    before = sys.modules.get(target.stem)
    try:
        return load(text, doing, do)
    finally:
        if before is None and target.is_file:
            sys.modules.pop(target.stem, None)
            _loaded.pop(target.stem, None)


def kind(value: Any) -> str:
    """The type and value of a user's object, for messages: 'None', 'int 3', 'function loss'."""
    if value is None:
        return "None"
    return f"{type(value).__name__} {getattr(value, '__name__', None) or shortened(repr(value), _VALUE_LENGTH_MAX)}"


def check_text(where: str) -> None:
    """ConfigError for a file whose path is not in UTF-8: jax, and the files of a run, take nothing else."""
    if not is_text(where):
        raise ConfigError("Loading a file", "a path in UTF-8", repr(where), "Rename its folder, or the file.")


def name_of(value: Any, near: Iterable[Any] = ()) -> str | None:
    """A reference to `value`, if the script that runs, or a module that one of `near` is defined in, binds a name to it
    and has a file."""
    for name in ("__main__", *(getattr(neighbour, "__module__", "") for neighbour in near)):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is not None and file is not None and file.endswith(".py"):
            for bound, item in vars(module).items():
                if item is value:
                    return f"{os.path.abspath(file)}:{bound}"
    return None


def loading() -> str | None:
    """The file or module that is being imported now because a reference names it, or None."""
    return _loading.get()


def place(error: BaseException, file: str | None = None) -> str:
    """file:line of the origin of `error`: in `file` if it is on the traceback, else the last line outside libraries."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename == file]
    if not inside and file is not None:
        return file
    foreign = [frame for frame in frames if is_users(frame.filename)]
    frame = (inside or foreign or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}"


@contextmanager
def explained(doing: str, expected: str, file: str | None = None) -> Iterator[None]:
    """Turn exceptions of foreign code (in `file`) into a ConfigError with type, message and place.

    A RequestError keeps its type, and gets the place.
    """
    try:
        yield
    except RequestError as error:
        where = place(error, file)
        raise type(error).of(fault._replace(action=f"{fault.action} ({where})") for fault in error.faults) from error
    except (Exception, SystemExit) as error:
        message = shortened(
            " ".join(str(error).split()), _MESSAGE_LENGTH_MAX, f"cut: import {file or 'it'} alone to read all"
        )
        error_text = f"{type(error).__name__}: {message} ({place(error, file)})"
        raise ConfigError(doing, expected, error_text, _remedy(error)) from error


def _remedy(error: BaseException) -> str:
    """What to do about an error of foreign code."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return "Correct the code there."
    library = error.name.partition(".")[0]
    return f"Install {library!r} for {sys.executable}, or correct its name there."


def file_of(function: Any) -> str | None:
    """The file of a function's code, behind its decorators; None if it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if isinstance(code, CodeType) else None


def _import(target: ReferenceParts, doing: str) -> ModuleType:
    """The module, also one in the current folder."""
    expected = f"a module {target.where!r}"
    if (file := GONE.get(target.where)) is not None:
        do = f"It is an example now: in a clone, write {file} in its place, and begin a run of it anew."
        raise ConfigError(doing, expected, "none in this version", do)
    if not all(target.where.split(".")):
        raise ConfigError(doing, expected, "a name with an empty part", "Write package.module:NAME.")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()
    with _marked(target.where), explained(doing, expected):
        try:
            return importlib.import_module(target.where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{target.where}.".startswith(f"{error.name}."):
                raise
            missing = error.name
    do = f"Check the name, or name its file: {target.where.replace('.', '/')}.py:{target.name}."
    raise ConfigError(doing, expected, f"no module {missing!r}", do)


def tasks_in(path: Path) -> list[str]:
    """The names at the top level of a Python file that are bound to a task, or are functions that return one, as far as
    its text shows it; nothing of it is run."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for each in statements:
        if isinstance(each, ast.Assign) and _makes_task(each.value):
            found += [target.id for target in each.targets if isinstance(target, ast.Name)]
        elif isinstance(each, ast.FunctionDef) and (
            _is_task(each.returns)
            or any(isinstance(part, ast.Return) and _makes_task(part.value) for part in ast.walk(each))
        ):
            found.append(each.name)
    return found


def _makes_task(value: ast.expr | None) -> bool:
    """Whether an expression is the call of a class of tasks."""
    return isinstance(value, ast.Call) and _is_task(value.func)


def _is_task(named: ast.expr | None) -> bool:
    """Whether an expression is the name of a class of tasks, which ends with Task."""
    name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
    return name.endswith("Task")


def _import_file(path: Path, doing: str) -> ModuleType:
    """The module in a file, under its stem; read again if the file has changed."""
    check_text(str(path))
    if not path.is_file() or path.suffix != ".py":
        beside = [other.name for other in path.parent.glob("*.py") if other.is_file()]
        match = get_close_matches(path.name, beside, n=1)
        do = f"Did you mean {match[0]!r}?" if match else "Name an existing file; paths start in the current folder."
        what_is_there = "a folder" if path.is_dir() else "another file" if path.exists() else "nothing there"
        raise ConfigError(doing, f"a Python file {path}", what_is_there, do)
    status = path.stat()
    mark = (str(path), status.st_mtime_ns, status.st_size)
    present = sys.modules.get(path.stem)
    if present is not None and (_loaded.get(path.stem) == mark or _is_from(present.__spec__, path)):
        return present
    _check_stem(path, doing)
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_SourceLoader(path.stem, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) in sys.path:
        sys.path.remove(str(path.parent))
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        with _marked(str(path)), explained(doing, "a module that can be imported", str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        _loaded.pop(path.stem, None)
        raise
    _loaded[path.stem] = mark
    return module


def _is_from(spec: Any, path: Path) -> bool:
    """Whether a module from an ordinary import is the one in `path`."""
    return path.stem not in _loaded and getattr(spec, "origin", None) == str(path)


def _check_stem(path: Path, doing: str) -> None:
    """ConfigError if the file's stem is the name of something else that can be imported."""
    if path.stem in _loaded:  # The file of an earlier request: it makes room.
        return
    present = sys.modules.get(path.stem)
    spec = present.__spec__ if present is not None else None
    if present is None and path.stem.isidentifier():
        spec = importlib.util.find_spec(path.stem)
    origin = getattr(spec, "origin", None) or getattr(present, "__file__", None)
    if (present is not None or origin is not None) and origin != str(path):
        expected = "a file whose stem names no other module"
        raise ConfigError(
            doing, expected, f"{path.stem!r}, which is {origin or 'a module already'}", "Rename the file."
        )


class _SourceLoader(SourceFileLoader):
    """Compiles the file as it is now, and leaves no bytecode beside it."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


@contextmanager
def _marked(where: str) -> Iterator[None]:
    """Let `loading` report that `where` is being imported."""
    token = _loading.set(where)
    try:
        yield
    finally:
        _loading.reset(token)
