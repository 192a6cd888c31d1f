"""`isthmus compare --without SITE --cluster FILE`: the sites train again, with SITE and without it.

The same sites are asked as for any run of the cluster, and each trains on its own data, which stay with it. For each
seed there are two runs, one after the other: with all sites, and without the one (`run.leaves_out`), whose home lets it
take no part. The second has as many tokens fewer as SITE trained in the first, so that the others train as long in
both. What was found of each run is kept in the folder of the comparison, and the same command goes on with the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import msgspec

from isthmus.programs.command.request_options import Options
from isthmus.programs.command.start_there import prepared_there
from isthmus.programs.engine.cluster.handover import Handover
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.request.new_folder import RUNS, InUseError, RunLock
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.engine.results.run_files import summary_of
from isthmus.programs.engine.run.in_processes import Submitted
from isthmus.programs.engine.run.watch_loop import Watch
from isthmus.programs.study.terminal.figures import ProgressLine, show
from isthmus.programs.training import start_on_machine
from isthmus.programs.wings.compare.site_effect import DONE, SiteRun, cost_of, effect_of, sheet
from isthmus.runtime.errors import ConfigError, RequestError, RunError
from isthmus.runtime.system.files import read_bytes, write_bytes

KEPT: Final = "sites.json"
SEEDS_MAX: Final = 1000


@final
@dataclass(frozen=True, slots=True)
class LeavingOut:
    """What was asked for: to leave `site` out of the runs of these options, for so many seeds."""

    options: Options
    site: str
    seeds: int
    folder: Path | None

    @property
    def all_seeds(self) -> range:
        """The seeds, from that of the options on."""
        first = int(self.options.run.get("seed", 0))
        return range(first, first + self.seeds)

    def of(self, seed: int, *, is_without: bool, tokens: int | None = None) -> Options:
        """The options of one run."""
        run = dict(self.options.run, seed=str(seed))
        if tokens is not None:
            run.update(tokens=str(tokens))
        wanted = replace(self.options, run=run, run_dir=None)
        return wanted.with_sets([f"run.leaves_out={json.dumps([self.site])}"]) if is_without else wanted


def leave_out(wanted: LeavingOut, *, as_json: bool) -> bool:
    """Train, and show what comes of it; whether every run is done. ConfigError before anything is started;
    KeyboardInterrupt at a signal."""
    _check(wanted)
    prepared = _prepared(wanted.of(wanted.all_seeds[0], is_without=False))
    _prepared(wanted.of(wanted.all_seeds[0], is_without=True))
    folder = _folder(wanted, prepared)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with RunLock(folder):
            runs = _Runs(folder / KEPT)
            tokens = msgspec.convert(prepared.spec["settings"], RunSettings).tokens
            cost = cost_of(tokens, wanted.seeds, runs.pace() or _pace(wanted.options))
            progress = ProgressLine()
            progress.say(f"Leaving {wanted.site} out takes {cost.words}. No data move.")
            _carry_out(wanted, runs, progress)
            progress.show("")
            effect = effect_of(wanted.site, wanted.all_seeds, runs.of_seeds(wanted.all_seeds), cost)
    except InUseError as error:
        do = "Wait for its end; then the same command shows what came of it."
        raise ConfigError(f"Comparing in {folder}", "a folder that nobody else uses", str(error), do) from None
    show(sheet(effect), as_json=as_json, last=f"What is kept of the runs: {folder}")
    return not effect.failed


def _check(wanted: LeavingOut) -> None:
    """ConfigError for what no run can be asked for."""
    cluster = wanted.options.machines
    doing = "Reading --without"
    if cluster is None:
        do = "Name the cluster file of the sites."
        raise ConfigError(doing, "--cluster FILE beside it", "none", do)
    if not 1 <= wanted.seeds <= SEEDS_MAX:
        do = "Two are the least for intervals."
        raise ConfigError(doing, f"--seeds from 1 to {SEEDS_MAX}", str(wanted.seeds), do)
    cluster.without([wanted.site])  # It may not be the home.


def _prepared(options: Options) -> Handover:
    cluster = options.machines
    assert cluster is not None, "there is a cluster file"
    return prepared_there(options, cluster).handed


def _folder(wanted: LeavingOut, prepared: Handover) -> Path:
    """The folder of the comparison: the same call finds it again."""
    if wanted.folder is not None:
        return Path(os.path.abspath(os.path.expanduser(wanted.folder)))
    parts = [wanted.site, wanted.all_seeds[0], prepared.config]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    return Path(os.path.abspath(RUNS / f"without-{wanted.site}-{digest}"))


def _pace(options: Options) -> float | None:
    """The tokens a second of the newest run of the home that is done, as far as it can be read here."""
    cluster = options.machines
    assert cluster is not None, "there is a cluster file"
    for former in reversed(DaemonClient.of(cluster).find()["former"]):
        with suppress(ConfigError, RunError, OSError):
            summary = summary_of(Path(str(former["run"]))) or {}
            if summary.get("outcome") == DONE and summary.get("wall_seconds"):
                return float(summary["tokens_total"]) / float(summary["wall_seconds"])
    return None


def _carry_out(wanted: LeavingOut, runs: _Runs, progress: ProgressLine) -> None:
    """Make every run that is not done; a run without the site needs the one with it."""
    many = 2 * wanted.seeds
    for seed in wanted.all_seeds:
        having = runs.done(seed, is_without=False) or _made(wanted, runs, progress, seed, None, many)
        if having is None:
            continue
        if wanted.site not in having.site_tokens:
            do = "Name one of them, and see that its daemon is linked: isthmus status --cluster FILE."
            found = ", ".join(sorted(having.site_tokens)) or "none that has data of its own"
            raise ConfigError("Reading --without", "a site that took part in the run", found, do)
        if runs.done(seed, is_without=True) is None:
            _made(wanted, runs, progress, seed, having.tokens - having.site_tokens[wanted.site], many)


def _made(
    wanted: LeavingOut, runs: _Runs, progress: ProgressLine, seed: int, tokens: int | None, many: int
) -> SiteRun | None:
    """One run, without the site where it has a number of `tokens` of its own; None if it is not done."""
    is_without = tokens is not None
    named = f"seed {seed}, {f'without {wanted.site}' if is_without else 'with all'}"
    options = wanted.of(seed, is_without=is_without, tokens=tokens)
    cluster = options.machines
    assert cluster is not None, "there is a cluster file"
    progress.show(f"{runs.count} of {many} runs; {named}")

    @contextmanager
    def viewed(submitted: Submitted) -> Iterator[Watch]:
        yield _PairShare(progress, f"{runs.count} of {many} runs; {named}", submitted)

    try:
        outcome = start_on_machine(DaemonClient.of(cluster), _prepared(options), viewed)
    except (RunError, RequestError) as error:
        progress.say(f"{named} failed: {error}")
        runs.add(SiteRun(seed, is_without, "", "failed", 0, None, {}, {}))
        return None
    if outcome.summary["outcome"] == "stopped":
        raise KeyboardInterrupt
    made = SiteRun.of(seed, str(outcome.folder), outcome.summary, is_without=is_without)
    runs.add(made)
    progress.say(f"{runs.count} of {many}  {named}: {made.run}")
    return made if made.outcome == DONE else None


@final
class _PairShare(Watch):
    """Shows how far a run is."""

    def __init__(self, progress: ProgressLine, named: str, submitted: Submitted) -> None:
        self._progress, self._named, self._tokens = progress, named, submitted.job.tokens

    def update(self, status: dict[str, Any]) -> None:
        share = (status.get("tokens") or 0) / max(1, self._tokens)
        self._progress.show(f"{self._named} {100 * share:.0f} %")

    def close(self, summary: dict[str, Any]) -> None:
        """No-op: whoever runs it reports its end."""


@final
class _Runs:
    """What is known of the runs, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: list[SiteRun] = []
        with suppress(FileNotFoundError):
            try:
                self._runs = msgspec.json.decode(read_bytes(path), type=list[SiteRun])
            except msgspec.MsgspecError as error:
                do = "Name another folder with --dir."
                raise ConfigError(f"Reading {path}", "what a former comparison has kept", str(error), do) from None

    @property
    def count(self) -> int:
        """How many are done."""
        return sum(run.outcome == DONE for run in self._runs)

    def of_seeds(self, seeds: Sequence[int]) -> list[SiteRun]:
        """Those of these seeds: of each run the last try."""
        newest = {(run.seed, run.is_without): run for run in self._runs if run.seed in seeds}
        return [run for _, run in sorted(newest.items())]

    def done(self, seed: int, *, is_without: bool) -> SiteRun | None:
        """One that is done; None if there is none."""
        found = [run for run in self._runs if (run.seed, run.is_without, run.outcome) == (seed, is_without, DONE)]
        return found[-1] if found else None

    def pace(self) -> float | None:
        """The tokens a second of the newest one, None if none is done."""
        found = [run.tokens / run.seconds for run in self._runs if run.outcome == DONE and run.seconds]
        return found[-1] if found else None

    def add(self, run: SiteRun) -> None:
        """Keep what is known of one more."""
        self._runs.append(run)
        write_bytes(self._path, msgspec.json.format(msgspec.json.encode(self._runs), indent=2))


def refuse_others(given: Mapping[str, Any]) -> None:
    """ConfigError for options of a comparison of programs beside --without."""
    if found := [name for name, value in given.items() if value]:
        do = "Leave it out: the program and the settings are those of the cluster file, --set and --config."
        raise ConfigError("Reading --without", "a comparison of sites", f"{found[0]} beside it", do)
