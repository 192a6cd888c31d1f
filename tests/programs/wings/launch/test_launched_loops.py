"""What launches of a script print: the table [loop], and what machines permit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result


@pytest.mark.slow
def test_the_script_is_named_and_permitted_where_it_is(typed: Callable[..., Result], tmp_path: Path) -> None:
    place = tmp_path
    (place / "train.py").write_text("")
    (place / "job.toml").write_text('[run]\ntokens = 400_000\n[launch]\nimage = "lab/image:1"\n')

    def printed(engine: str, *words: str) -> str:
        done = typed(place, "launch", engine, "job.toml", "--islands", "2", "--print", *words)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    on_slurm = printed("slurm", "--loop", "train.py", "--", "--rate", "1")
    table = f'[loop]\nscript = "{place}/train.py"\narguments = ["--rate", "1"]\nfolder = "{place}"\n'
    assert table in on_slurm
    assert on_slurm.count(f'[programs]\nscripts = ["{place}/train.py"]') == 2
    assert "--config island.toml" in on_slurm
    on_ray = printed("ray", "--loop", "train.py")
    assert '[loop]\nscript = "../train.py"\nfolder = "../"\n' in on_ray
    assert on_ray.count('scripts = ["../train.py"]') == 2
    nowhere = typed(place, "launch", "kubernetes", "job.toml", "--loop", "-m lab.train", "--print")
    assert (nowhere.exit_code, "folder = " in nowhere.stderr) == (2, True)
    loop = '[loop]\nscript = "-m lab.train"\nfolder = "/opt/lab"\npython = "/opt/env/bin/python"\n'
    (place / "lab.toml").write_text(f'{loop}[launch]\nimage = "lab/image:1"\n')
    module = typed(place, "launch", "kubernetes", "lab.toml", "--islands", "2", "--print")
    assert 'scripts = ["-m lab.train", "/opt/lab"]' in module.stdout.replace('\\"', '"'), module.stderr
    assert "/opt/env/bin/python" in module.stdout
    in_image = printed("kubernetes", "--loop", "/opt/lab/train.py").replace('\\"', '"')
    assert 'script = "/opt/lab/train.py"\nfolder = "/opt/lab"' in in_image
    assert in_image.count('scripts = ["/opt/lab/train.py"]') == 2
    more = printed("ray", "--loop", "train.py", "--set", "program.fragments=24")
    assert "fragments = 24" in more  # Whether the model has as many units, the home sees.
    wrong = typed(place, "launch", "ray", "job.toml", "--loop", "train.py", "--print", "--set", "task.lr=1")
    assert (wrong.exit_code, "task.lr" in wrong.stderr) == (2, True)
    refused = typed(place, "launch", "slurm", "job.toml", "--loop", "trian.py", "--print")
    assert (refused.exit_code, "nothing there" in refused.stderr) == (2, True)
    apart = typed(place, "launch", "ray", "job.toml", "--loop", "train.py", "--nodes-per-island", "2", "--print")
    assert (apart.exit_code, "--ranks" in apart.stderr) == (2, True)
