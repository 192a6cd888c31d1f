"""The image of the Containerfile is built, and trains, on a base that Debian's own packages make.

No registry is asked for the base image: mmdebstrap makes a Debian of the same release, with the packages of one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.timeout(1500)]

ROOT: Final = Path(__file__).parents[2]
KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
BASE: Final = "localhost/debian:13"
IMAGE: Final = "localhost/isthmus:test"


def run(*words: str) -> str:
    """What a command prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        pytest.fail(f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command with a store of its own, in which the base image is."""
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    assert not missing, f"no {', '.join(missing)}: apt-get install buildah mmdebstrap"
    folder = tmp_path_factory.mktemp("images")
    command = ["buildah", "--storage-driver", "vfs", "--root", str(folder / "root"), "--runroot", str(folder / "run")]
    tar = folder / "base.tar"
    run("mmdebstrap", "--variant=minbase", "--mode=root", f"--keyring={KEYRING}", "trixie", str(tar))
    (folder / "base").write_text("FROM scratch\nADD base.tar /\n")
    run(*command, "build", "--isolation", "chroot", "--tag", BASE, "--file", str(folder / "base"), str(folder))
    tar.unlink()
    yield command
    run(*command, "rmi", "--all", "--force")


def of_pip_here(folder: Path) -> Iterator[str]:
    """Options by which pip finds in a build what it finds here: its settings, and the files that these name."""
    settings: dict[str, str] = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        for path in set(re.findall(r"(?:(?<=://)|(?<![\w:/.-]))/[\w./-]+", value)):
            if Path(path).exists():  # Under another name, since the build may write what is at this one.
                value = re.sub(rf"{re.escape(path)}(?![\w./-])", f"/of-pip{path}", value)
                folder_of = (
                    str(Path(path).parent) if Path(path).name == "simple" else path
                )  # An index: files lie beside it.
                yield from ("--volume", f"{folder_of}:/of-pip{folder_of}:ro")
        settings[key.rpartition(".")[2]] = value.strip("'")
    (folder / "pip.conf").write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in settings.items())]))
    yield from ("--volume", f"{folder / 'pip.conf'}:/etc/pip.conf:ro")


def test_the_image_is_built_and_trains_without_root(buildah: list[str], tmp_path: Path) -> None:
    options = ("--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}", *of_pip_here(tmp_path))
    run(*buildah, "build", *options, "--tag", IMAGE, str(ROOT))
    container = run(*buildah, "from", IMAGE).strip()
    inside = [*buildah, "run", "--isolation", "chroot", container, "--"]
    assert run(*inside, "id", "-u").strip() == "1000"
    assert run(*inside, "isthmus", "--version").strip()
    # What pods of `isthmus launch kubernetes` need beside it.
    run(*inside, "sh", "-c", "command -v flock tar")
    run(*inside, "isthmus", "train", "--tokens", "20000", "--learners", "1", "--quiet")
    assert '"outcome": "done"' in run(*inside, "sh", "-c", "cat runs/latest/summary.json")
