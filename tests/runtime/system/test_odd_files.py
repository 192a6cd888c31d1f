"""What is no regular file is refused at once; and what is written beside a file has a name that nobody knows before."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.runtime.system.disk import DISK, IrregularFileError, beside, check_regular, opened_at_end
from isthmus.runtime.system.files import put_bytes, read_bytes, read_text, write_bytes
from tests.odd_files import ODD, lay


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("is_linked", [False, True])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str, is_linked: bool) -> None:
    path = tmp_path / "file"
    lay(path, kind)
    if is_linked:
        path = tmp_path / "link"
        path.symlink_to(tmp_path / "file")
    for read in (read_bytes, read_text, DISK.read, check_regular):
        with pytest.raises(IrregularFileError) as caught:
            read(path)
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("kind", [*ODD, "link", "dangling link"])
def test_a_lock_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "lock", tmp_path / "target"
    if kind == "link":
        target.write_bytes(b"")
    if "link" in kind:
        path.symlink_to(target)
    else:
        lay(path, kind)
    with pytest.raises(OSError):  # Of the kernel, or of ours.
        opened_at_end(path)
    assert target.exists() == (kind == "link")


@pytest.mark.parametrize("write", [write_bytes, put_bytes])
def test_what_is_written_whole_goes_through_no_link_that_somebody_laid(
    tmp_path: Path, write: Callable[[Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "folder"
    mine.write_bytes(b"mine")
    folder.mkdir()
    # Whoever knew the name under which it is written first.
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 2 * count)
    beside(folder / "file").symlink_to(mine)
    with pytest.raises(FileExistsError):
        write(folder / "file", b"new")
    assert mine.read_bytes() == b"mine"
    monkeypatch.undo()
    assert beside(folder / "file") != beside(folder / "file")
    (folder / "file").symlink_to(mine)
    write(folder / "file", b"new")
    assert (mine.read_bytes(), (folder / "file").read_bytes()) == (b"mine", b"new")
    assert not (folder / "file").is_symlink()


def test_a_file_can_be_written_whole_for_its_owner_alone(tmp_path: Path) -> None:
    put_bytes(tmp_path / "secret", b"abc", mode=0o600, is_durable=True)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
