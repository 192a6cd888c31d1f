"""Launches on Ray: a Python file with the plan of a run, which makes its actors, shows, scales and ends them.

What the file does is in `ray_actors`. It runs in processes of its own, so that only these load Ray.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any, Final, final

from isthmus.programs.engine.cluster.cluster_file import size_bytes
from isthmus.programs.wings.launch import user_files
from isthmus.programs.wings.launch.engine import Engine, LaunchedMachine, LaunchState, PrintedFile
from isthmus.programs.wings.launch.folder import RUN, Launch
from isthmus.programs.wings.launch.launch_file import HOME, ISLAND, LaunchRequest, home_table
from isthmus.runtime.errors import ConfigError, Fault

SECONDS_MAX: Final = 120.0  # For Ray to answer, beside the grace.
FILES_BYTES_MAX: Final = 100 * 2**20  # Of what travels with a run: Ray refuses 500 MiB.
PYTHON: Final = ("env", "RAY_NUM_REDIS_GET_RETRIES=1", sys.executable)  # Where no cluster answers, 40 s are enough.
OF_KEYS: Final = {"num_cpus": "launch.cpus", "num_gpus": "launch.devices", "memory": "launch.memory"}
OPTIONS: Final = ("CPU", "GPU", "memory")
"""Resources that Ray takes by options of their own."""
NEEDED: Final = ("name", "namespace", "lifetime", "get_if_exists", "max_restarts", "scheduling_strategy")
"""Options by which actors are found, and come back."""
NAME: Final = "{}-on-ray.py"  # Of the printed file: one that nothing can import by mistake.
_FILE: Final = '''\
"""The run {name} on Ray: launches it, or, with these words behind the file, `status`, `scale N` or `down`."""

import sys
from types import SimpleNamespace

from isthmus.programs.wings.launch.ray_actors import main

PLAN = SimpleNamespace(
{plan}    options=dict(  # Of each actor, in Ray's words.
{options}    ),
)

if __name__ == "__main__":
    main(PLAN, __file__, sys.argv[1:])
'''


@final
class _Ray:
    def faults(self, request: LaunchRequest, folder: Path) -> Iterator[Fault]:
        do = "Leave it out: options of actors, such as runtime_env, stand in launch.extra."
        yield from request.useless("Ray", do, "image", "partition", "namespace", "time", "invite_by")
        yield from user_files.faults(request, FILES_BYTES_MAX, [NAME.format(request.name)])
        yield from _extra_faults(request)

    def files(self, request: LaunchRequest) -> Sequence[PrintedFile]:
        if faults := list(_extra_faults(request)):
            raise ConfigError.of(faults)
        there, paths = user_files.placed(request, "../"), user_files.paths(request)  # Above the folders of machines.
        # In the commands stand {address}, where the home listens, and {name}, {island} and {rank} of a machine.
        nodes, leaving = request.nodes_per_island, f"--until-over --grace {request.grace:g}"
        plan = {
            "run": request.name,
            "islands": request.islands,
            "nodes": nodes,
            "grace": request.grace,
            "port": request.table.port,
            "folder": f"~/isthmus/{request.name}",
            "files": tuple(path.name for path in paths),
            "home_machine": there.home_text,
            "island_machine": there.machine_text,
            "cluster": home_table("{address}") + there.run_text,
            "settle": request.settling if request.is_for_home else "",
            "invite": f"isthmus invite --count {request.names} --for {ISLAND} --cluster cluster.toml"
            " --to island.invite",
            "daemon": f"isthmus daemon --name {HOME} --listen {{address}} --config machine.toml --run cluster.toml"
            f" --run-dir {RUN} {request.going_on} {leaving}",
            "join": "isthmus join --invite island.invite --config machine.toml --name {name} "
            + (f"--island {{island}} --rank {{rank}} --size {nodes} " if nodes > 1 else "")
            + leaving,
            "home_needs": _needs(request, is_home=True),
            "island_needs": _needs(request, is_home=False),
        }
        text = _FILE.format(
            name=request.name,
            plan="".join(f"    {name}={_literal(field)},\n" for name, field in plan.items()),
            options="".join(f"        {line}\n" for line in request.table.extra.splitlines()),
        )
        return [PrintedFile(NAME.format(request.name), text), *user_files.copies(request)]

    def by_hand(self, request: LaunchRequest) -> str:
        command = f"python {NAME.format(request.name)}"
        return f"{command}    # or: ray job submit --working-dir . -- {command}"

    def submit(self, launch: Launch) -> None:
        _say(launch)

    def scale(self, launch: Launch, islands: int) -> None:
        _say(launch, "scale", str(islands))

    def state(self, launch: Launch) -> LaunchState:
        return _state(launch, "status")

    def down(self, launch: Launch) -> LaunchState:
        return _state(launch, "down")


def _extra_faults(request: LaunchRequest) -> Iterator[Fault]:
    """Why what a user adds to the options of actors cannot be added."""
    doing, extra = "Reading launch.extra", request.table.extra
    do = "Write options of Ray's actors as in a call: runtime_env={...}, in as many lines as you want."
    try:
        text = f"dict(\n{extra}\n)"
        compile(text, doing, "eval")  # A keyword that is there twice is no fault of the grammar.
        call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        yield Fault(doing, "keywords of a call in Python", f"{error.msg}: {(error.text or '').strip()}", do)
        return
    if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
        yield Fault(doing, "keywords of a call in Python", repr(extra), do)
        return
    for keyword in call.keywords:
        name, keys = str(keyword.arg), _keys(keyword.value)
        if name in OF_KEYS:
            yield Fault(f"{doing}, {name}", "none: isthmus has it", name, f"Set {OF_KEYS[name]}, or leave it out.")
        elif name in NEEDED:
            do = "Leave it out: isthmus finds its actors by it, and has Ray start them again."
            yield Fault(f"{doing}, {name}", "none: isthmus sets it", name, do)
        elif name == "resources":
            for key in sorted(keys & {*_needs(request, is_home=False), *OPTIONS}):
                of = {"CPU": "cpus", "memory": "memory"}.get(key, "devices")
                yield Fault(f"{doing}, resources", f"no {key}", key, f"Set launch.{of}, or leave it out.")
        elif name == "runtime_env" and "working_dir" in keys and user_files.paths(request):
            do = "Leave it out, or name your files in launch.files."
            yield Fault(f"{doing}, runtime_env", "no working_dir: your files are there", "working_dir", do)


def _keys(value: ast.expr) -> set[str]:
    """The texts that are keys of a literal mapping."""
    keys = value.keys if isinstance(value, ast.Dict) else []
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _literal(field: Any) -> str:
    """A value in Python, a text of several lines as it stands in a file."""
    return f'r"""{field}"""' if isinstance(field, str) and "\n" in field and '"""' not in field else repr(field)


def _needs(request: LaunchRequest, *, is_home: bool) -> dict[str, int]:
    """What an actor reserves, by Ray's names; ConfigError if the memory is no size."""
    needs, (kind, _, count) = {"CPU": request.table.cpus or 1}, request.table.devices.rpartition(":")
    if request.table.memory:
        needs["memory"] = size_bytes(f"{request.table.memory.rstrip('B')}B", "Reading launch.memory")
    if kind and not is_home:
        needs[kind.upper() if kind in ("gpu", "tpu") else kind] = int(count)
    return needs


def _state(launch: Launch, word: str) -> LaunchState:
    """What the printed file says, as a state; nothing where there is no such file."""
    if not (launch.folder / NAME.format(launch.name)).exists():
        return LaunchState()
    told = _say(launch, word)
    rows = [(name, row["at"], row["state"], row["node"]) for name, row in told["machines"].items()]
    machines, end = [LaunchedMachine(*row) for row in rows], told["end"]
    return LaunchState(machines, end.partition("\n")[0], end and f"its run: {end}")


def _say(launch: Launch, *words: str) -> Any:
    """What the printed file says last; ConfigError if it fails, or takes too long."""
    doing, command = "Speaking with Ray", [*PYTHON, NAME.format(launch.name), *words]
    do = "`ray status` shows the cluster; another one: RAY_ADDRESS=HOST:6379; ray itself: pip install 'isthmus[ray]'."
    seconds_max = SECONDS_MAX + 2 * launch.grace
    try:
        done = run(command, cwd=launch.folder, timeout=seconds_max, capture_output=True, text=True, check=False)
    except TimeoutExpired:
        raise ConfigError(doing, "an answer", f"none for {seconds_max:g} s", do) from None
    if done.returncode:
        error = re.sub(r"(?ms)\A.*Traceback .*\n  [^\n]*\n|^\[[^\n]*\n", "", done.stderr).strip()  # No places, no log.
        raise ConfigError(doing, "an answer", (error or f"status {done.returncode}")[-1000:], do)
    return json.loads((done.stdout.splitlines() or ["null"])[-1])


ENGINE: Final[Engine] = _Ray()
