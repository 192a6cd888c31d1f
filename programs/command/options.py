"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from isthmus.programs.engine.request.grace import checked_grace
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.addresses import LOOPBACK

if TYPE_CHECKING:
    from isthmus.programs.engine.cluster.cluster_file import Cluster as ClusterFile
    from isthmus.programs.engine.metrics.exporter import MetricsAddress

WHERE: Final = "Where"
SHOWN: Final = "What is shown"
EXPERIMENTS: Final = "Experiments"
"""The panel of commands that try something, on machines or without any."""

RunDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--run-dir", metavar="DIR", help="The run folder. Default: runs/PROGRAM-DATE-TIME.", rich_help_panel=WHERE
    ),
]
Cluster: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE.toml",
        help="Hand the run to the machines that this file names.",
        rich_help_panel=WHERE,
    ),
]
Resume: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN|URL",
        help="Go on with a run that was cut off, set aside or stopped, or is done; a URL has it in a new folder.",
        rich_help_panel=WHERE,
    ),
]
ResumeOrStart: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resume-or-start",
        help="Begin the run in --run-dir, or go on with it: for a command that is typed again.",
        rich_help_panel=WHERE,
    ),
]
AcceptChanges: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Go on although sources of isthmus, program or task differ, or task.batch does: what does is listed.",
        rich_help_panel=WHERE,
    ),
]
From: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN|FOLDER",
        help="Begin with the weights of a run that is over, or of a folder of safetensors.",
        rich_help_panel=WHERE,
    ),
]
Detach: TypeAlias = Annotated[
    bool,
    typer.Option("--detach", help="Return once the run has started; it goes on by itself.", rich_help_panel=WHERE),
]
Grace: TypeAlias = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="The time from SIGTERM until all is set aside.",
        rich_help_panel=WHERE,
        callback=lambda value: checked_grace(value),
    ),
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", help="Only errors and the last line.", rich_help_panel=WHERE)
]
Verbose: TypeAlias = Annotated[
    bool,
    typer.Option("--verbose", help="Also when each process reached the phases of the start.", rich_help_panel=WHERE),
]
MetricsPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        help="Serve figures for Prometheus at http://127.0.0.1:N/metrics; 0: any port that is free.",
        rich_help_panel=WHERE,
        show_default=False,
    ),
]
MetricsHost: TypeAlias = Annotated[
    str,
    typer.Option(
        "--metrics-address",
        metavar="ADDRESS",
        help="Of this machine, for --metrics-port; others that reach it can read the figures.",
        rich_help_panel=WHERE,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="As JSON.")]
Page: TypeAlias = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE.html", help="Write a page with a drawing, too.", show_default=False),
]


def metrics_at(port: int | None, address: str) -> MetricsAddress | None:
    """Where metrics are to be; None without --metrics-port. ConfigError if that is no port, or is missing."""
    if port is None:
        if address != LOOPBACK:
            raise ConfigError("Reading --metrics-address", "--metrics-port beside it", "none", "Give a port, too.")
        return None
    if not 0 <= port < 1 << 16:
        do = "As in --metrics-port 9400, or 0 for any that is free."
        raise ConfigError("Reading --metrics-port", "a port", str(port), do)
    from isthmus.programs.engine.metrics.exporter import MetricsAddress

    return MetricsAddress(port, address)


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers of a list such as 1,2,4 or 150e3,1.2e6, each once, by size; ConfigError if one is not whole."""
    try:
        numbers = [float(part) for part in text.split(",")]
        if not all(number.is_integer() for number in numbers):
            raise ValueError(text)
    except ValueError as error:
        expected = "whole numbers with commas between them"
        raise ConfigError(f"Reading {option}", expected, repr(text), "As in 1,2,4 or 150e3,1.2e6.") from error
    return sorted({int(number) for number in numbers})


def cluster_of(file: Path | None) -> ClusterFile | None:
    """The contents of the file of --cluster; ConfigError with all its faults."""
    if file is None:
        return None
    from isthmus.programs.engine.cluster.cluster_file import read

    return read(file)
