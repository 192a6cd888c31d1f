"""Which files a test can reach: imports, followed name by name through the syntax trees of the project.

A module is cut into pieces: each function, class and assigned name at its top, and the rest, which runs when it is
loaded (`LOAD`). A piece that is reached loads its module and the packages above it, and reaches what it names: so an
import within a function counts where that function is reached, and not wherever its file is loaded. Not the graph of
whole modules: in it one command, or one request, reaches every file of the project.

What counts beside imports and names:

- a text `isthmus.a.b:Name`, or `isthmus.a.b`, as tables of services and processes have them;
- in a table the row of a key, as in `{"ray": "isthmus.programs.launch.ray"}`, and of the functions with a decorator
  `@x.command()` the one of that name: only where a text of the test, or of what it reaches, names the key, or a
  test the table; the first row where the default is taken, as `next(iter(TABLE))`; of a wing's row a field where code
  takes it;
- of a lazy face, a module with `__getattr__`: the name that it imports for type checking alone; with `__all__` each;
- where a text is of a test or an example, the code in it, and the example that it names.

What does not: other imports for type checking, annotations of functions, and attributes of objects, because whoever
calls a method reaches the place where the object is made.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Final

LOAD: Final = ""
"""The piece of a module that runs when it is loaded."""
Node = tuple[str, str]
"""A module, and a piece of it."""
_TEXT: Final = re.compile(r"isthmus(?:\.\w+)+(?::\w+)?")
_WALKS: Final = ("glob", "rglob", "iterdir", "walk")
_DOTTED: Final = re.compile(r"isthmus(?:\.[A-Za-z_]\w*)+")
_FROM: Final = re.compile(r"from (isthmus[\w.]*) import ([\w, ]+|\([\w,\s]+\))")
_COMMAND: Final = re.compile(r"isthmus ([\w-]+)(?: ([\w-]+))?")
TYPES: Final = "$ "
_EXAMPLE: Final = re.compile(r"(\w+)\.py(?!\w)")
WINGS: Final = "isthmus.programs.wings"
EXAMPLES: Final = "examples"
"""The package as which examples of the pages count."""
_WORD: Final = re.compile(r"[\w-]+")


@dataclass(slots=True)
class Piece:
    """What a part of a module names: `loads` are modules, or names in them, that it imports; `bound` says what a name
    stands for; `names` are dotted names that it uses, `texts` its literals, `rows` keys and the texts of their rows,
    `keys` all keys of tables, `parameters` those of its functions; `walks` says whether it lists folders."""

    loads: set[str] = field(default_factory=set)
    bound: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    names: set[tuple[str, ...]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    rows: dict[tuple[str, str], None] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    walks: bool = False


@dataclass(slots=True)
class Pieces:
    """A module: the pieces `of` it, by name; what its lazy face binds; of its commands the word that is typed, None for
    one that is computed; of its fixtures the function, by the name that is asked for, and whether tests have it
    unasked; the marks that stand in it, as in `pytest.mark.slow`."""

    of: dict[str, Piece]
    lazy: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    commands: dict[str, str | None] = field(default_factory=dict)
    fixtures: dict[str, tuple[str, bool]] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)

    @property
    def keys(self) -> set[str]:
        return {key for piece in self.of.values() for key in piece.keys}


def pieces_of(source: str, package: str) -> Pieces:
    """The pieces of a module in `package`."""
    found = Pieces({LOAD: Piece()})
    _top(ast.parse(source).body, found, package)
    return found


def _top(body: Iterable[ast.stmt], found: Pieces, package: str) -> None:
    load = found.of[LOAD]
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _definition(statement, found, package)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            piece = Piece()
            if statement.value is not None:
                _collect([statement.value], piece, package)
            for name in names:
                found.of[name] = piece
            if "pytestmark" in names or not names or any(isinstance(each, ast.Call) for each in ast.walk(statement)):
                load.names |= piece.names
            found.marks |= _marks(statement)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            stub = Piece()
            _collect(statement.body, stub, package)
            found.lazy = stub.bound
            _top(statement.orelse, found, package)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            inner = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt)]
            _collect(inner, load, package)
            _top([node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt)], found, package)
        else:
            _collect([statement], load, package)
            found.marks |= _marks(statement)


def _definition(
    statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, found: Pieces, package: str, within: str = ""
) -> None:
    """Make a definition a piece; a command that is made within a function becomes one of its own."""
    name, load = f"{within}{statement.name}", found.of[LOAD]
    for inner in statement.body if isinstance(statement, ast.FunctionDef) else ():
        if isinstance(inner, ast.FunctionDef) and any(word == "command" for word, _ in _decorators(inner)):
            _definition(inner, found, package, f"{name}.")
            inner.body = []
    piece = found.of.setdefault(name, Piece())
    _collect([statement], piece, package)
    at_load = Piece()
    _collect(statement.decorator_list, at_load, package)
    load.names |= at_load.names
    found.marks |= _marks(statement)
    for word, call in _decorators(statement):
        if word == "command":
            typed = call.args[0] if call is not None and call.args else ast.Constant(statement.name.replace("_", "-"))
            found.commands[name] = str(typed.value) if isinstance(typed, ast.Constant) else None
        elif word == "callback":
            load.names.add((statement.name,))
        elif word == "fixture":
            asked = call.keywords if call is not None else []
            named = [each.value.value for each in asked if each.arg == "name" and isinstance(each.value, ast.Constant)]
            is_unasked = any(each.arg == "autouse" for each in asked)
            found.fixtures[str(named[0]) if named else statement.name] = (statement.name, is_unasked)


def _decorators(
    statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
) -> Iterator[tuple[str, ast.Call | None]]:
    """The last name of each decorator, with the call that it is, if any."""
    for each in statement.decorator_list:
        call = each if isinstance(each, ast.Call) else None
        made = call.func if call is not None else each
        yield (made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")), call


def _marks(node: ast.AST) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute) and each.value.attr == "mark"
    }


def _collect(nodes: Iterable[ast.AST], piece: Piece, package: str) -> None:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                piece.loads.add(alias.name)
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                piece.bound[alias.asname or top] = (top, None)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                piece.loads |= {module, f"{module}.{alias.name}"}
                piece.bound[alias.asname or alias.name] = (module, alias.name)
        elif isinstance(node, ast.Name):
            piece.names.add((node.id,))
        elif isinstance(node, ast.Attribute):
            piece.walks |= node.attr in _WALKS
            if (names := _dotted(node)) is not None:
                piece.names.add(names)
            else:
                _collect([node.value], piece, package)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                piece.texts.add(node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # A docstring.
        elif isinstance(node, ast.Dict):
            _dict(node, piece, package)
        elif isinstance(node, ast.Call):
            _call(node, piece, package)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            piece.parameters |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            plain = [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.decorator_list, *node.body]
            annotated = [each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg)]
            _collect([*plain, *(filter(None, annotated) if node.decorator_list else [])], piece, package)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            _collect(node.orelse, piece, package)
        else:
            _collect(ast.iter_child_nodes(node), piece, package)


def _dotted(node: ast.expr) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (names := _dotted(node.value)) is not None:
        return (*names, node.attr)
    return None


def _dict(node: ast.Dict, piece: Piece, package: str) -> None:
    """A row with a key that is a text counts by that key; any other like any expression."""
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            piece.keys.add(key.value)
            _row([key.value], [value], piece, package)
        else:
            _collect([each for each in (key, value) if each is not None], piece, package)


def _row(keys: Iterable[str], values: Iterable[ast.AST], piece: Piece, package: str) -> None:
    row = Piece()
    _collect(values, row, package)
    named = {text for text in row.texts if _TEXT.fullmatch(text)}
    piece.rows |= row.rows | dict.fromkeys((key, text) for key in keys for text in sorted(named))
    piece.texts |= row.texts - named
    piece.names |= row.names
    piece.keys |= row.keys
    piece.loads |= row.loads
    piece.bound |= row.bound
    piece.walks |= row.walks


def _call(node: ast.Call, piece: Piece, package: str) -> None:
    """Of `setattr(module, "name", ...)` a name of the module counts, not all of it; a call with the name of a module
    and a table is a row that counts by the keys of that."""
    if isinstance(node.func, ast.Name) and node.func.id == "Wing":
        _wing(node, piece)
        return
    arguments = list(node.args)
    names = _dotted(arguments[0]) if len(arguments) >= 2 else None
    if names is not None and isinstance(arguments[1], ast.Constant) and isinstance(arguments[1].value, str):
        piece.names.add((*names, arguments[1].value))
        arguments = arguments[1:]
    every = [*arguments, *(each.value for each in node.keywords)]
    tables = [key for each in every if isinstance(each, ast.Dict) for key in each.keys if isinstance(key, ast.Constant)]
    _collect([node.func], piece, package)
    if tables and any(isinstance(each, ast.Constant) and _TEXT.fullmatch(str(each.value)) for each in every):
        _row([str(key.value) for key in tables], every, piece, package)
    else:
        _collect(every, piece, package)


def _wing(node: ast.Call, piece: Piece) -> None:
    """Of the row of a wing (`programs/wing_table.py`) a command counts where it is typed, or all are asked for by
    `--help`; another field where code takes it. Modules are those of the wing's folder."""
    folder = f"{WINGS}.{node.args[0].value}" if node.args and isinstance(node.args[0], ast.Constant) else WINGS
    for each in node.keywords:
        if isinstance(each.value, ast.Dict):
            for key, value in zip(each.value.keys, each.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    target = str(value.value) if ":" in str(value.value) else f"{value.value}:offer"
                    said = (f"{TYPES}{key.value}", f"{TYPES}--help") if each.arg == "commands" else (f".{each.arg}",)
                    piece.rows |= dict.fromkeys((word, f"{folder}.{target}") for word in said)
        else:
            texts = [part.value for part in ast.walk(each.value) if isinstance(part, ast.Constant)]
            piece.rows |= dict.fromkeys((f".{each.arg}", f"{folder}.{text}") for text in texts)


class ImportGraph:
    """The pieces of all modules, by their import names; modules that are gone may be there, without any piece."""

    def __init__(self, modules: Mapping[str, Pieces]) -> None:
        self.modules = dict(modules)
        self._after: dict[Node, _After] = {}

    def after(self, node: Node) -> _After:
        """What follows from a piece that is reached."""
        if node not in self._after:
            found = self._after[node] = _After()
            found.nodes = [*dict.fromkeys(self._nodes(node))]
            pieces = self.modules[node[0]]
            if (piece := pieces.of.get(node[1])) is not None:
                found.rows = [(word, target) for word, text in piece.rows for target in self.of_text(text)]
                taken = {f".{names[-1]}" for names in piece.names if len(names) > 1}
                found.words = taken | (words_of(piece.texts) if _is_tests(node) else piece.texts)
            if node[1] == LOAD:
                found.commands = [
                    (each, (node[0], function))
                    for function, word in pieces.commands.items()
                    for each in ([word] if word is not None else sorted(pieces.keys))
                ]
        return self._after[node]

    def _nodes(self, node: Node) -> Iterator[Node]:
        module, name = node
        parent = module.rpartition(".")[0]
        if parent in self.modules:
            yield parent, LOAD
        if name != LOAD:
            yield module, LOAD
        if (piece := self.modules[module].of.get(name)) is None:
            return
        for target in piece.loads:
            if target in self.modules:
                yield target, LOAD
        # A fixture that a test asks for by name may come from a helper.
        asked = {(each,) for each in piece.parameters} if _is_tests(node) else set()
        for names in piece.names | asked:
            targets = self.named(module, piece, names)
            yield from targets
            if _is_tests(node):
                yield from (row for target in targets for row in self._rows(target))
            elif {("next",), ("iter",)} <= piece.names:
                yield from (row for target in targets for row in islice(self._rows(target), 1))
        for text in piece.texts:
            yield from self.of_text(text, is_code=_is_tests(node))

    def _rows(self, node: Node) -> Iterator[Node]:
        """What all rows of a table name."""
        piece = self.modules[node[0]].of.get(node[1])
        for _, text in piece.rows if piece is not None else ():
            yield from self.of_text(text)

    def of_text(self, text: str, *, is_code: bool = False) -> Iterator[Node]:
        """What a text names; where tests have it, it may be code, as that of a task."""
        if _TEXT.fullmatch(text) is not None:
            module, _, name = text.partition(":")
            yield from self.resolved(module, name) if name else self.whole(module)
            yield from () if name else self.whole(f"{module}.__main__")
        if not is_code:
            return
        for stem in _EXAMPLE.findall(text):
            yield from self.whole(f"{EXAMPLES}.{stem}")
        if text == EXAMPLES:
            yield from (
                node for module in self.modules if module.startswith(f"{EXAMPLES}.") for node in self.whole(module)
            )
        for dotted in _DOTTED.findall(text):
            words = dotted.split(".")
            at = next(at for at in range(len(words), 0, -1) if ".".join(words[:at]) in self.modules or at == 1)
            module = ".".join(words[:at])
            if module in self.modules:
                yield from self._said(module, words[at] if at < len(words) else None)
        for module, names in _FROM.findall(text):
            for name in _WORD.findall(names):
                yield from self._said(module, name)

    def _said(self, module: str, name: str | None) -> Iterator[Node]:
        """What code in a text imports; of a table all rows."""
        if module in self.modules:
            yield module, LOAD
            for node in self.resolved(module, name):
                yield node
                yield from self._rows(node)

    def whole(self, module: str) -> list[Node]:
        """All pieces of a module."""
        return [(module, name) for name in self.modules[module].of] if module in self.modules else []

    def used(self, module: str) -> list[Node]:
        """All pieces of a module, and what it imports by name at its top."""
        bound = self.modules[module].of[LOAD].bound.values()
        named = chain.from_iterable(self.resolved(place, name) for place, name in bound if name is not None)
        return [*self.whole(module), *named]

    def resolved(self, module: str, name: str | None) -> list[Node]:
        """The pieces that `module.name` stands for; without a name the load of the module."""
        for _ in range(20):  # No name is imported on through more modules.
            if name is None:
                return [(module, LOAD)] if module in self.modules else []
            if (inner := f"{module}.{name}") in self.modules:
                return [(inner, LOAD)]
            pieces = self.modules.get(module)
            if pieces is None:
                return []
            if name == "__all__" and pieces.lazy:
                return [node for bound in pieces.lazy.values() for node in self.resolved(*bound)]
            if name in pieces.of:
                return [(module, name)]
            if name in (bound := pieces.of[LOAD].bound):
                module, name = bound[name]
            elif "__getattr__" in pieces.of and name in pieces.lazy:
                module, name = pieces.lazy[name]
            elif "__getattr__" in pieces.of:
                return [(module, "__getattr__")]
            else:
                return [(module, LOAD)]
        raise ValueError(f"Following the import of {name} from {module}: expected an end, found a circle.")

    def named(self, module: str, piece: Piece, names: tuple[str, ...]) -> list[Node]:
        """What a dotted name stands for, in a piece of a module."""
        pieces = self.modules[module]
        first, *rest = names
        bound = piece.bound.get(first) or (None if first in pieces.of else pieces.of[LOAD].bound.get(first))
        if bound is None:
            return [(module, first)] if first in pieces.of else []
        place, name = bound
        if name is not None and f"{place}.{name}" in self.modules:
            place, name = f"{place}.{name}", None
        while name is None and rest:
            name = rest.pop(0)
            if f"{place}.{name}" in self.modules:
                place, name = f"{place}.{name}", None
        if name is None:
            return self.whole(place) if names[0] != place else self.resolved(place, None)
        return self.resolved(place, name)


@dataclass(slots=True)
class _After:
    """What follows from a piece: what it reaches by itself, what where a word is said, what where a test types the
    command, and the words that it says."""

    nodes: list[Node] = field(default_factory=list)
    rows: list[tuple[str, Node]] = field(default_factory=list)
    commands: list[tuple[str, Node]] = field(default_factory=list)
    words: set[str] = field(default_factory=set)


def _is_tests(node: Node) -> bool:
    """Whether a piece is written for tests, or as users write."""
    return node[0].partition(".")[0] in ("tests", EXAMPLES)


class Reach:
    """What is reached so far: `nodes`, each with the one that reached it first. `typed` are the words of the test.

    With `admits` only those nodes are reached of which it holds, given the one that reaches them.
    """

    def __init__(self, graph: ImportGraph, admits: Callable[[Node, Node], bool] | None = None) -> None:
        self._graph, self._admits = graph, admits
        self.nodes: dict[Node, Node | None] = {}
        self.typed: set[str] = set()
        self._said: set[str] = set()
        self._pending: deque[Node] = deque()
        self._rows: dict[str, list[tuple[Node, Node]]] = defaultdict(list)
        self._commands: dict[str, list[tuple[Node, Node]]] = defaultdict(list)

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.nodes}

    def add(self, *nodes: Node, by: Node | None = None) -> None:
        """Reach these, and all that is reached from them."""
        self._reach(nodes, by)
        while self._pending:
            node = self._pending.popleft()
            after = self._graph.after(node)
            self._reach(after.nodes, node)
            for word, target in after.rows:
                self._rows[word].append((node, target))
                if word in self._said or word in self.typed:
                    self._reach([target], node)
            for word, target in after.commands:
                self._commands[command := f"{TYPES}{word}"].append((node, target))
                if command in self.typed:
                    self._reach([target], node)
            self._say(after.words, is_typed=_is_tests(node))

    def type(self, words: Iterable[str]) -> None:
        """These are words of the test."""
        self._say(words, is_typed=True)
        self.add()

    def read(self, texts: Iterable[str], by: Node) -> None:
        """The test carries out what these texts say."""
        for text in texts:
            self.add(*self._graph.of_text(text, is_code=True), by=by)
            self.type(words_of([text]))

    def chain(self, module: str) -> list[str]:
        """The modules through which a module was reached first, it being the last."""
        node: Node | None = next((node for node in self.nodes if node[0] == module), None)
        found = list[str]()
        while node is not None:
            if not found or found[-1] != node[0]:
                found.append(node[0])
            node = self.nodes.get(node)
        return found[::-1]

    def _reach(self, nodes: Iterable[Node], by: Node | None) -> None:
        for node in nodes:
            if node not in self.nodes and (by is None or self._admits is None or self._admits(by, node)):
                self.nodes[node] = by
                self._pending.append(node)

    def _say(self, words: Iterable[str], *, is_typed: bool) -> None:
        for word in words:
            if word not in self.typed and (is_typed or word not in self._said):
                (self.typed if is_typed else self._said).add(word)
                for by, target in (*self._rows.get(word, ()), *(self._commands.get(word, ()) if is_typed else ())):
                    self._reach([target], by)


def words_of(texts: Iterable[str]) -> set[str]:
    """The words of texts, the texts themselves, and with `TYPES` before them the commands that are typed: a text for
    itself, as in lists of arguments, or behind `isthmus`."""
    found = {word for text in texts for word in (text, *_WORD.findall(text))}
    found |= {f"{TYPES}{text}" for text in texts if _WORD.fullmatch(text)}
    return found | {f"{TYPES}{word}" for text in texts for both in _COMMAND.findall(text) for word in both}


def module_name(path: str, folders: Mapping[str, str]) -> str | None:
    """The import name of a Python file, given the packages by folder; None of a file that is in none of them."""
    file = PurePosixPath(path)
    for folder, package in sorted(folders.items(), key=lambda each: -len(each[0])):
        if file.is_relative_to(folder) and file.suffix == ".py":
            parts = file.relative_to(folder).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            return ".".join((package, *inner))
    return None


def import_graph(
    sources: Mapping[str, str], folders: Mapping[str, str], made: Callable[[str, str], Pieces] = pieces_of
) -> ImportGraph:
    """The graph of Python files, by path; `made` are the pieces of each."""
    found = dict[str, Pieces]()
    for path, source in sources.items():
        if (module := module_name(path, folders)) is not None:
            is_package = path.endswith("__init__.py")
            found[module] = made(source, module if is_package else module.rpartition(".")[0])
    return ImportGraph(found)
