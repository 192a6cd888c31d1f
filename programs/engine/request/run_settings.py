"""Section `run.` of the configuration: what is trained on, by how many learners, and what is kept of it.

This is the one place where a key of the section is declared. Files, `--set`, options of the command line, `train`, the
reference page and the processes of a run take name, type, range and default from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, Literal

import msgspec

from isthmus.programs.evaluations import SHARE, RunSize, When
from isthmus.programs.job import Job
from isthmus.programs.settings import Schema, Setting, collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import LEARNERS_MAX
from isthmus.runtime.supervision.home_events import EXIT_SECONDS, SILENT_SECONDS, START_SECONDS, STUCK_SECONDS
from isthmus.runtime.supervision.messages import BEAT_SECONDS, LONELY_BEATS
from isthmus.runtime.tape.writing import TAPE_BYTES, TAPE_BYTES_MIN

_SEED_MAX: Final = (1 << 63) - 1
SLOTS_MAX_DEFAULT: Final = 16
_DAY: Final = 86400
SNAPSHOT_SECONDS_DEFAULT: Final = 15.0
LEARNERS: Final = "learners"


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of section `run.`."""

    tokens: Annotated[
        int,
        Setting(
            "Tokens to train on in all.",
            ge=1,
            remedy="Say how many tokens to train on in all.",
            option="--tokens N",
            resumes=True,
            sweeps="Programs are compared on the same tokens; compare once for each budget.",
        ),
    ] = 4_100_000
    seed: Annotated[
        int,
        Setting(
            "The seed of everything random.",
            ge=0,
            le=_SEED_MAX,
            remedy="Choose another seed.",
            option="--seed N",
            sweeps="Say how many seeds with --seeds, and the first with --seed.",
        ),
    ] = 0
    learners: Annotated[
        int,
        Setting(
            "The number of learners: at most `slots_max`; 0, with a cluster, for a run whose learners all join.",
            option="--learners N",
            resumes=True,
        ),
    ] = 4
    slots_max: Annotated[
        int,
        Setting(
            "The most learners that there can be, with those that join. With a cluster of more islands, their number.",
            ge=1,
            le=LEARNERS_MAX,
            expected=f"from 1 to {LEARNERS_MAX}, LEARNERS_MAX",
            remedy=f"Leave run.slots_max out for {SLOTS_MAX_DEFAULT}.",
        ),
    ] = SLOTS_MAX_DEFAULT
    leaves_out: Annotated[
        tuple[str, ...],
        Setting(
            "Machines that take no part, by name, though they are linked or in the cluster file.",
            sweeps="`isthmus compare --without MACHINE --cluster FILE` trains with and without one.",
        ),
    ] = ()
    local_batch: Annotated[
        Literal["same", "paced"],
        Setting(
            "Batches of one size, or of sizes in proportion to the speed of each island (shipped task).",
            sweeps="Give task.batch a number for each slot.",
        ),
    ] = "same"
    argv: Annotated[tuple[str, ...], Setting("What `sys.argv` is for a task's own file.")] = ()
    evaluate_on: Annotated[
        Literal["cpu", "island"],
        Setting("Where the evaluator computes: on the CPU, or on the first accelerators of its machine."),
    ] = "cpu"
    evaluate: Annotated[
        When,
        Setting(
            "Which evaluations are made: all, the first and the last ('ends'), or none, whose losses are then unknown.",
            sweeps="All sides are evaluated alike.",
        ),
    ] = "all"
    evaluate_share: Annotated[
        float,
        Setting(
            "The most operations of all evaluations of a run, as a share of those of its training; of a model below a "
            "million parameters without effect.",
            gt=0,
            le=1,
            expected="a share above 0 and at most 1",
            remedy=f"The default is {SHARE}; run.evaluate = 'none' makes no evaluation.",
            sweeps="All sides are evaluated alike.",
        ),
    ] = SHARE
    snapshot_every_seconds: Annotated[
        float, Setting("Seconds between two snapshots.", ge=0.1, le=_DAY, remedy="The default is 15.")
    ] = SNAPSHOT_SECONDS_DEFAULT
    moments_every: Annotated[
        float,
        Setting(
            "Seconds between two copies of each learner's moments in snapshots, for a resume where its machine is not; "
            "0: none. Programs in lock-step always have them.",
            ge=0,
            le=30 * _DAY,
            expected="0, or a number of seconds from 1 to 30 days'",
            remedy="The default is 0; 600 brings each learner's moments every ten minutes.",
            resumes=True,
        ),
    ] = 0.0
    snapshots: Annotated[
        str,
        Setting(
            "A second place for snapshots: a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or https://... .",
            is_place=True,
        ),
    ] = ""
    keep_to_go_on: Annotated[
        bool,
        Setting("Whether a run that is done keeps what it takes to train it further: its snapshots, and moments."),
    ] = True
    tape_bytes: Annotated[
        int,
        Setting(
            "The most bytes that the tapes of one host take.",
            ge=TAPE_BYTES_MIN,
            remedy=f"Leave run.tape_bytes out for {TAPE_BYTES}.",
        ),
    ] = TAPE_BYTES
    shared_memory: Annotated[
        bool, Setting("Whether large items between hosts of one machine go through memory that both map.")
    ] = True
    spare: Annotated[
        bool,
        Setting("Whether a process that has compiled all waits for a learner's next life, on CPUs, if memory allows."),
    ] = True
    processes: Annotated[
        tuple[int, ...], Setting("The processes of each learner's island, by slot; of slots beyond the end, one.")
    ] = ()
    home_away_seconds: Annotated[
        float,
        Setting(
            "Seconds for which hosts on other machines continue without a message from the home.",
            ge=5,
            le=30 * _DAY,
            remedy="The default is 600.",
        ),
    ] = LONELY_BEATS * BEAT_SECONDS
    devices_min: Annotated[
        int,
        Setting(
            "The least devices with which an island of several processes continues; 0: they live and end together.",
            ge=0,
            remedy="Leave it out for islands whose processes live and end together.",
        ),
    ] = 0

    loop_idle_seconds: Annotated[
        float,
        Setting(
            "Seconds for which the user's own code may do nothing, between steps or behind its `with`; 0: for ever.",
            expected="0, or a number of seconds from 1 to a year's",
            ge=0,
            le=366 * _DAY,
            remedy="The default is 1800; 0 never ends a script that does nothing.",
            resumes=True,
        ),
    ] = 1800.0
    rank_seconds: Annotated[
        float,
        Setting(
            "Seconds after which ranks of --ranks hang, all of which do nothing or wait for each other; 0: never.",
            expected="0, or a number of seconds from 5 to a year's",
            ge=0,
            le=366 * _DAY,
            remedy="The default is 600; 0 never ends ranks that wait for each other.",
        ),
    ] = 600.0
    loop_away_max: Annotated[
        float | None,
        Setting(
            "Seconds for which the user's own code may last, between steps or behind its `with`; no bound if left out.",
            ge=1,
            le=366 * _DAY,
            remedy="Leave it out for no bound.",
            resumes=True,
        ),
    ] = None

    first_beat_seconds: Annotated[
        float,
        Setting(
            "Seconds that a process of a task has for its first heartbeat: it imports your modules before. A script of "
            "your own has no such bound, but those of `loop_idle_seconds` and `loop_away_max`.",
            ge=5,
            le=366 * _DAY,
            remedy="The default is 60.",
            resumes=True,
        ),
    ] = START_SECONDS
    silent_seconds: Annotated[
        float,
        Setting(
            "The most seconds of silence of a host, such as while code in a task's `batch` holds the interpreter; with "
            "regular heartbeats a third of it.",
            ge=5,
            le=366 * _DAY,
            remedy="The default is 20.",
            resumes=True,
        ),
    ] = SILENT_SECONDS
    stuck_seconds: Annotated[
        float,
        Setting(
            "The least seconds without a step after which a learner counts as stuck inside of one; 2.5 times as many "
            "for its first steps, and more where its steps usually take long.",
            ge=5,
            le=366 * _DAY,
            remedy="The default is 14.",
            resumes=True,
        ),
    ] = STUCK_SECONDS
    end_seconds: Annotated[
        float,
        Setting(
            "Seconds that a host has to end once the run is over, but for what follows the `with` of a script.",
            ge=1,
            le=366 * _DAY,
            remedy="The default is 10.",
            resumes=True,
        ),
    ] = EXIT_SECONDS
    loop_over_seconds: Annotated[
        float,
        Setting(
            "Seconds after the end of the run for which a loop may make steps that count for nothing; then it is led "
            "out of its `with`.",
            ge=1,
            le=366 * _DAY,
            remedy="The default is 60.",
            resumes=True,
        ),
    ] = 60.0

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> RunSettings:
        """The settings of a section; ConfigError with every key that is unknown, and every value that is wrong."""
        complete = SCHEMA.read(values)
        faults = [*SCHEMA.out_of_range(complete), *_rules(cls(**complete))]
        with collecting(faults):
            if complete["snapshots"]:
                from isthmus.programs.engine.snapshots.stored import place_of  # Few runs have a second place.

                complete["snapshots"] = place_of(complete["snapshots"]).text
            else:
                complete["snapshots"] = ""
        if faults:
            raise ConfigError.of(faults)
        return cls(**complete)

    @classmethod
    def of_section(cls, section: Mapping[str, Any]) -> RunSettings:
        """The settings of a section that also names program and task, as that of config.toml; ConfigError as `read`."""
        return cls.read({name: value for name, value in section.items() if name not in ("program", "task")})

    def section(self) -> dict[str, Any]:
        """The keys for config.toml, empty texts and lists left out."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value not in ("", (), None)}

    @property
    def learners_expected(self) -> int:
        """The number of learners that defaults and the first merge count on; of a run that begins with none, one."""
        return max(1, self.learners)

    @property
    def size(self) -> RunSize:
        """What the defaults of a shipped task follow from."""
        return RunSize(self.tokens, self.learners_expected, self.evaluate_share, self.evaluate)

    def of_job(self) -> dict[str, Any]:
        """Those that a graph's builder may know."""
        values = {field.name: getattr(self, field.name) for field in fields(Job) if field.name in SCHEMA.keys}
        return {**values, "learners": self.learners_expected}


SCHEMA: Final = Schema.of("run", RunSettings)


def _rules(run: RunSettings) -> Iterator[Fault]:
    """Faults of settings that depend on others."""
    if 0 < run.loop_idle_seconds < 1:
        remedy = "Say 1 or more, or 0 for scripts that may do nothing for as long as they like."
        yield Fault("Reading run.loop_idle_seconds", "0, or at least 1", str(run.loop_idle_seconds), remedy)
    if 0 < run.rank_seconds < 5:
        remedy = "Say 5 or more, or 0 for ranks that may wait for each other for as long as they like."
        yield Fault("Reading run.rank_seconds", "0, or at least 5", str(run.rank_seconds), remedy)
    if 0 < run.moments_every < 1:
        remedy = "Say 1 or more, or 0 for none."
        yield Fault("Reading run.moments_every", "0, or at least 1", str(run.moments_every), remedy)
    most = max(run.slots_max, 1)
    if run.learners > LEARNERS_MAX:
        remedy = "Set fewer learners, on more devices each."
        yield Fault("Reading run.learners", f"at most {LEARNERS_MAX} learners, LEARNERS_MAX", str(run.learners), remedy)
    elif not 0 <= run.learners <= most:
        remedy = "Change run.learners; run.slots_max is the most there can be."
        yield Fault("Reading run.learners", f"from 1 to {most}", str(run.learners), remedy)
