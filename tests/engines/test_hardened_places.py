"""Runs in places as containers make them: a read-only root, no home, another user, process 1, few files, no /dev/shm.

Each place is a mount and a PID namespace of this machine, made by `unshare` as root: all that can be written to is one
empty folder, in which the command is typed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = Path(sys.base_prefix).resolve()
SECONDS_MAX: Final = 500
PLACE: Final = """
set -e
uid=$1; home=$2; is_first=$3; extra=$4; shift 4
mount --make-rprivate /
mount -t tmpfs tmpfs "$ROOM"
mkdir "$ROOM/root" "$ROOM/base" "$ROOM/here"; chmod 755 "$ROOM"; chmod 777 "$ROOM/here"
mount --bind "$ROOT" "$ROOM/root"; mount --bind "$BASE" "$ROOM/base"
for hidden in $HIDDEN; do mount -t tmpfs tmpfs "$hidden"; chmod 755 "$hidden"; done
mkdir -p "$ROOT" "$BASE"
mount --bind "$ROOM/root" "$ROOT"; mount --bind "$ROOM/base" "$BASE"
for read_only in "$ROOT" "$BASE" "$ROOM/root" "$ROOM/base" $HIDDEN /; do mount -o remount,bind,ro "$read_only"; done
if [ "$extra" = shm ]; then umount -l /dev/shm; fi
if [ "$extra" = files ]; then ulimit -n 64; fi
cd "$ROOM/here"
words="env -i PATH=$PATH"
if [ "$home" = missing ]; then words="$words HOME=/nonexistent"; fi
words="$words setpriv --reuid $uid --regid $uid --clear-groups --inh-caps=-all"
if [ "$is_first" = first ]; then exec $words "$@"; fi
$words "$@" &
wait $!
"""
"""Python and the project stay where they are, also where others may not look (a home of root's): `HIDDEN` are folders
on the way there that others may not enter."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are made as root"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare on the PATH"),
]


def hidden() -> list[Path]:
    """The topmost folders on the way to Python and the project that other users may not enter."""
    found: dict[Path, None] = {}
    for path in (ROOT, BASE):
        closed = [each for each in (*path.parents, path) if not each.stat().st_mode & 0o001]
        if closed:
            found[min(closed, key=lambda each: len(each.parts))] = None
    return list(found)


def typed(
    room: Path, uid: int, home: str, *words: str, is_first: bool = False, extra: str = ""
) -> subprocess.CompletedProcess[str]:
    """The result of a command in such a place, where `room` is an empty folder."""
    environment = {**os.environ, "ROOT": str(ROOT), "BASE": str(BASE), "ROOM": str(room)}
    environment["HIDDEN"] = " ".join(map(str, hidden()))
    place = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-c", PLACE, "bash"]
    command = [*place, str(uid), home, "first" if is_first else "second", extra, f"{sys.prefix}/bin/isthmus", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder on the way to which there is none that others may not enter, as there is with `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


RUN: Final = ("train", "--tokens", "20000", "--learners", "2")
PLACES: Final = list(itertools.product((0, 12345), ("none", "missing"), (True, False)))


@pytest.mark.parametrize(("uid", "home", "is_first"), PLACES)
def test_a_run_is_done_below_a_read_only_root(room: Path, uid: int, home: str, is_first: bool) -> None:
    result = typed(room, uid, home, *RUN, is_first=is_first)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "done " in result.stdout


@pytest.mark.parametrize(("uid", "home", "is_first"), PLACES)
@pytest.mark.parametrize("extra", ["", "shm", "files"])
def test_a_machine_that_joins_waits_for_its_home_or_says_where_its_state_is_to_be(
    room: Path, uid: int, home: str, is_first: bool, extra: str
) -> None:
    words = ("join", "tcp://127.0.0.1:1", "--name", "beta", "--wait", "1")
    result = typed(room, uid, home, *words, is_first=is_first, extra=extra)
    assert result.returncode == 2, result.stderr + result.stdout
    is_homeless = uid != 0 and home == "none"  # Its state is in the temporary folder; root's is at /root.
    assert ("a link within 1 s" if is_homeless else "XDG_STATE_HOME") in result.stderr


def test_a_run_is_done_without_shared_memory_of_files(room: Path) -> None:
    result = typed(room, 12345, "none", *RUN, is_first=True, extra="shm")
    assert result.returncode == 0, result.stderr + result.stdout


def test_too_few_files_are_told_before_the_start(room: Path) -> None:
    result = typed(room, 12345, "none", *RUN, is_first=True, extra="files")
    assert result.returncode == 2
    assert "ulimit -n" in result.stderr


@pytest.mark.parametrize("home", ["none", "missing"])
def test_the_doctor_says_what_is_missing(room: Path, home: str) -> None:
    result = typed(room, 12345, home, "doctor", "--json", is_first=True)
    assert "home" in result.stdout, result.stderr
