"""`isthmus dashboard`: which runs the page is about, where it is, and who may see it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from isthmus.programs.study.terminal import status
from isthmus.runtime.errors import ConfigError

if TYPE_CHECKING:
    from isthmus.programs.wings.dashboard.serving import Shown

_NEEDS: Final = ("starlette", "uvicorn")
PORTS: Final = range(1 << 16)


def dashboard(
    run: Path | None, cluster: Path | None, address: str, port: int, token_file: Path | None, base_path: str
) -> None:
    """Serve the page until Ctrl-C; its address is the first line of standard output.

    ConfigError, and nothing is opened, if the run, an address or the token are wrong, or a library is missing.
    """
    doing = "Opening the dashboard"
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        raise ConfigError(doing, " and ".join(_NEEDS), f"no {missing[0]}", "pip install 'isthmus[dashboard]'")
    if port not in PORTS:
        raise ConfigError("Reading --port", "a port, or 0 for any that is free", str(port), "As in --port 8900.")

    from isthmus.programs.wings.dashboard import serving

    place = serving.PagePlace.of(base_path)
    token = serving.read_token(token_file)
    serving.serve(_shown(run, cluster), address, port, token, place, typer.echo)


def _shown(run: Path | None, cluster: Path | None) -> Shown:
    """The runs of the page: those beside RUN, or in it where it is a folder of runs."""
    from isthmus.programs.wings.dashboard.serving import Shown
    from isthmus.programs.wings.dashboard.watched_run import runs_below

    if cluster is not None or run is None:
        folder, home = status.place_of(run, cluster)
    elif not (run / "config.toml").exists() and runs_below(run):
        folder, home = run.resolve() / next(reversed(runs_below(run))), None
    else:
        folder, home = status.place_of(run, None)
    follows = run is None and cluster is None

    def first() -> str:
        """The run of the first page: of runs/latest, the one that it leads to by now."""
        latest = status.LATEST.resolve()
        return latest.name if follows and latest.parent == folder.parent else folder.name

    return Shown(folder.parent, first, home)
