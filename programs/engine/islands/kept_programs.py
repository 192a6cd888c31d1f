"""Learners of one machine compile a program once: one of them compiles it, and the others read what it has kept.

jax keeps compiled programs in a folder, each under a key of jax, device, flags and program. A process looks there, and
compiles what is not there, whoever else is about to: so two learners of a machine compile the same at the same time.
Here each program has a note, a file which is locked by who compiles it. Others compile what nobody has begun, and only
then await what is left, for a bound. Where the holder ends the kernel releases the lock, and the next one compiles. A
note says by which jax and for which device a program was compiled, in how many seconds, and which file of jax has it.

Decides who compiles, and what is kept: beyond a bound the programs that nobody has used for longest are removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, Protocol, TypeAlias, final

import msgspec

from isthmus.ops.island.compiling import ByItself, CompilingWay, LoweredProgram, Tell, compile_by
from isthmus.runtime.system import json_lines
from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import cache_folder, read_text
from isthmus.runtime.system.locks import FileLock

RECORD: Final = "compiled.jsonl"
"""The file of a run folder with what the processes of this machine have compiled, a `CompiledProgram` a line."""
NOTES: Final = "xla-notes"
"""The folder of notes, beside that of the programs."""
CACHE_BYTES_MAX: Final = 8 << 30
"""Of all kept programs: those of a model of 124 million parameters take 20 MB on a CPU, those of larger ones and of
GPUs, with their kernels, ten times that; so it holds those of some dozens of models."""
CACHE_SHARE_KEPT: Final = 0.75
"""Of the bound, once it was met: not every program that is added removes another."""
NOTES_MAX: Final = 16384
"""A model has about thirty programs."""
AWAIT_SECONDS_MAX: Final = 900.0
"""A learner awaits another's program for so long, then compiles it itself: no model that was tried took longer."""
LOOK_SECONDS: Final = 0.05

Way: TypeAlias = Literal["compiled", "read", "had"]
"""How a program came to a process: the compiler made it, it was among those that are kept, or the process had called
the function before, as a learner that makes its first local leaves."""


class CompiledProgram(NamedTuple):
    """A program that a process has got, for `--verbose`. `awaited_seconds`: how long `by` was waited for, '' nobody."""

    process: str
    life: int
    function: str
    way: Way
    seconds: float
    by: str
    awaited_seconds: float
    jax: str
    device: str


class ProgramNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a program: begun by a process at an instant (`time.time`), and, once it is kept, the seconds
    that compiling took, 0 where it was there already, and the file that jax has made, '' where that is not known. One
    that jax `cannot_keep`, such as with a callback, is compiled by each process."""

    function: str
    module: str
    jax: str
    device: str
    by: str
    begun: float
    seconds: float | None = None
    file: str = ""
    cannot_keep: bool = False


class Compiler(Protocol):
    """The jax of a process: its version, the kind and number of its devices, how many programs it has made, how many of
    them it had to compile and has kept, and how many it has found."""

    jax: str
    device: str
    made: int
    misses: int
    hits: int


@final
class _OfJax:
    """That of this process."""

    def __init__(self) -> None:
        import jax

        devices = jax.local_devices()
        self.jax, self.device = jax.__version__, f"{len(devices)} x {devices[0].device_kind}"
        self.made = self.misses = self.hits = 0
        jax.monitoring.register_event_listener(self._count)
        jax.monitoring.register_event_duration_secs_listener(self._count_made)

    def _count(self, event: str, **more: Any) -> None:
        del more
        self.misses += event == _MISS
        self.hits += event == _HIT

    def _count_made(self, event: str, duration_secs: float, **more: Any) -> None:
        del duration_secs, more
        self.made += event == _MADE


_MISS: Final = "/jax/compilation_cache/cache_misses"
"""As jax calls it; it writes the program into its folder then."""
_HIT: Final = "/jax/compilation_cache/cache_hits"
"""It has read one there. Where it reports neither, it has compiled what it does not keep."""
_MADE: Final = "/jax/core/compile/backend_compile_duration"
"""It has compiled or read one. Where it does not report that either, the process had the program."""


@final
class CompiledOnce:
    """The way to compile of a process, `name` to the others; `programs` is the folder of jax, `notes` that of notes,
    and `here` what compiles."""

    def __init__(
        self,
        programs: Path,
        notes: Path,
        here: Compiler,
        name: str,
        record: Callable[[Sequence[CompiledProgram]], None],
        life: int = 0,
    ) -> None:
        self._programs, self._notes, self._here = programs, notes, here
        self._name, self._life, self._record = name, life, record
        self._names: list[str] | None = None
        """Of the files of jax, as they were when this was asked first."""
        self._got: list[CompiledProgram] = []
        """What is not recorded yet: programs that are read, each in a few milliseconds, are recorded together."""

    def compile(self, programs: Iterable[LoweredProgram], tell: Tell) -> None:
        """Compile what no other process does, then await, and read, what others have compiled."""
        try:
            self._compile_all(programs, tell)
        finally:
            self._record_all()

    def _compile_all(self, programs: Iterable[LoweredProgram], tell: Tell) -> None:
        misses, others = self._here.misses, list[tuple[LoweredProgram, Path]]()
        for program in programs:
            path = self._notes / f"{self._key(program)}.json"
            if not self._tried(program, path, tell):
                others.append((program, path))
        begun, by = time.monotonic(), "another process"
        for program, path in others:
            while not self._tried(program, path, tell, begun=begun):
                note = _read(path)
                by = by if note is None else note.by
                tell(program.name, by)
                if time.monotonic() - begun > AWAIT_SECONDS_MAX:
                    tell(program.name, "")
                    self._compile(program, "", begun)
                    break
                time.sleep(LOOK_SECONDS)
        if self._here.misses > misses:
            prune(self._programs, self._notes)

    def _tried(self, program: LoweredProgram, path: Path, tell: Tell, *, begun: float | None = None) -> bool:
        """Whether this process has the program now; if not, another one compiles it. `begun`: awaited since then."""
        note = _read(path)
        if note is not None and self._needs_no_lock(note):
            if begun is not None or note.cannot_keep:  # One that is read at once is not told.
                tell(program.name, "")
            self._compile(program, note.by if begun is not None else "", begun)
            return True
        try:
            self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = opened_at_end(path)
        except OSError:  # The disk is full, or refuses: nothing is known of others.
            self._compile(program, "", begun)
            return True
        with file:
            lock = FileLock(file.fileno(), path)
            try:
                is_ours = lock.take()
            except OSError:  # Nor whether another has it.
                self._compile(program, "", begun)
                return True
            if not is_ours:
                return False
            try:
                tell(program.name, "")
                self._alone(program, file, path, begun)
            finally:
                lock.release()
        return True

    def _alone(self, program: LoweredProgram, file: BinaryIO, path: Path, begun: float | None) -> None:
        """Compile a program whose lock this process has."""
        note = _read(path)
        if note is not None and self._needs_no_lock(note):
            self._compile(program, note.by if begun is not None else "", begun)
            return
        if note is not None and note.seconds is None:
            self._remove_torn(note)
        fresh = ProgramNote(program.name, _module(program), self._here.jax, self._here.device, self._name, time.time())
        _write(file, fresh)
        misses, hits, made = self._here.misses, self._here.hits, self._here.made
        seconds = self._compile(program, "", begun)
        if self._here.misses > misses:
            done = msgspec.structs.replace(fresh, seconds=seconds, file=self._newest(fresh))
        else:
            done = msgspec.structs.replace(
                fresh, seconds=0.0, cannot_keep=self._here.made > made and self._here.hits == hits
            )
        _write(file, done)

    def _compile(self, program: LoweredProgram, by: str, begun: float | None) -> float:
        """Have the program; the seconds that it took."""
        since, hits, made = time.monotonic(), self._here.hits, self._here.made
        program.lowered.compile()
        took = time.monotonic() - since
        awaited = since - begun if by and begun is not None else 0.0
        way: Way = "read" if self._here.hits > hits else "compiled" if self._here.made > made else "had"
        self._got.append(
            CompiledProgram(
                self._name,
                self._life,
                program.name,
                way,
                round(took, 3),
                by,
                round(awaited, 3),
                self._here.jax,
                self._here.device,
            )
        )
        if way == "compiled":
            self._record_all()
        return took

    def _record_all(self) -> None:
        got, self._got = self._got, []
        if got:
            self._record(got)

    def _key(self, program: LoweredProgram) -> str:
        """All that the file of jax depends on, and the folder that it is in."""
        flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
        parts = [str(self._programs), self._here.jax, self._here.device, *flags, program.lowered.as_text()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    def _needs_no_lock(self, note: ProgramNote) -> bool:
        """Whether to wait for nobody: jax has the program, or never will. Of one that was there before its note, which
        file it has is not known: it is taken to be there while any of that name is."""
        if note.cannot_keep or note.seconds is None:
            return note.cannot_keep
        if note.file:
            return (self._programs / note.file).exists()
        if self._names is None:
            self._names = os.listdir(self._programs) if self._programs.is_dir() else []
        return any(_is_of(name, note) for name in self._names)

    def _newest(self, note: ProgramNote) -> str:
        """The file that jax has made of a program since it was begun; '' where that cannot be told."""
        made = [(at, name) for name, at, _ in _files(self._programs) if _is_of(name, note) and at >= note.begun - 1.0]
        return max(made)[1] if made else ""

    def _remove_torn(self, note: ProgramNote) -> None:
        """Remove what a process may have left half written that ended as it compiled: jax would neither read nor
        replace it."""
        for name, at, _ in _files(self._programs):
            if _is_of(name, note) and at >= note.begun - 1.0:
                with suppress(OSError):
                    (self._programs / name).unlink()


def _module(program: LoweredProgram) -> str:
    """The name under which jax keeps a program."""
    found = re.match(r"module @(\S+)", program.lowered.as_text())
    return found.group(1) if found else ""


def _is_of(name: str, note: ProgramNote) -> bool:
    return bool(note.module) and name.startswith(f"{note.module}-")


def _files(folder: Path) -> Iterator[tuple[str, float, int]]:
    """Name, newest use and bytes of each file; none of a folder that is not there. Of a disk that keeps no instants of
    use it is when the file was written."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                yield entry.name, max(found.st_mtime, found.st_atime), found.st_size


def _read(path: Path) -> ProgramNote | None:
    """What a note says; None without one, while it is written, and where nothing was noted."""
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        return msgspec.json.decode(read_text(path), type=ProgramNote)
    return None


def _write(file: BinaryIO, note: ProgramNote) -> None:
    """Make this the only line of a note; a disk that refuses costs the note only."""
    with suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), msgspec.json.encode(note) + b"\n")


def prune(programs: Path, notes: Path, bytes_max: int = CACHE_BYTES_MAX, notes_max: int = NOTES_MAX) -> int:
    """Remove the programs that were used longest ago until those that are left fit the bound; how many were removed."""
    found = sorted(_files(programs), key=lambda each: each[1])
    total, removed = sum(size for _, _, size in found), 0
    if total > bytes_max:
        for name, _, size in found:
            if total <= bytes_max * CACHE_SHARE_KEPT:
                break
            with suppress(OSError):
                (programs / name).unlink()
                total, removed = total - size, removed + 1
    kept_notes = sorted(_files(notes), key=lambda each: each[1])
    for name, _, _ in kept_notes[: max(len(kept_notes) - notes_max, 0)]:
        with suppress(OSError):
            (notes / name).unlink()
    return removed


# -- a host ------------------------------------------------------------------------------------------------------------


def compile_once(folder: Path, process: str, life: int) -> None:
    """Have this process, of a run with a folder, compile what no other one of this machine has; as before where jax
    keeps no programs."""

    def made() -> CompilingWay:
        import jax

        config: Any = jax.config
        kept, notes = config.jax_compilation_cache_dir, cache_folder(NOTES)
        if not kept or notes is None or not config.jax_enable_compilation_cache:
            return ByItself()
        return CompiledOnce(Path(kept), notes, _OfJax(), process, partial(json_lines.append_all, folder / RECORD), life)

    compile_by(made)


def read_compiled(folder: Path) -> Iterator[CompiledProgram]:
    """What the processes of this machine have compiled or read for a run, in the order of the file."""
    return json_lines.rows(folder / RECORD, CompiledProgram)


class KeptPrograms(NamedTuple):
    """What is kept on this machine for all runs of this user; `others`: programs by jax and device, where these are
    other ones than a run's."""

    folder: Path
    bytes: int
    programs: int
    others: tuple[tuple[tuple[str, str], int], ...]


def kept_programs(used: Sequence[CompiledProgram]) -> KeptPrograms | None:
    """The kept programs, beside those that a run has used; None where this user has no folder for them."""
    folder, notes = cache_folder("xla"), cache_folder(NOTES)
    if folder is None or notes is None:
        return None
    own = {(each.jax, each.device) for each in used}
    files, others = list(_files(folder)), dict[tuple[str, str], int]()
    for name, _, _ in _files(notes):
        note = _read(notes / name)
        if note is not None and (note.jax, note.device) not in own:
            others[note.jax, note.device] = others.get((note.jax, note.device), 0) + 1
    return KeptPrograms(folder, sum(size for _, _, size in files), len(files), tuple(sorted(others.items())))
