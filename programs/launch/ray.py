"""Launches on Ray: a Python file with the plan of a run, which makes its actors, shows, scales and ends them.

What the file does is in `ray_actors`, which the nodes need, too: isthmus is installed there. Ray itself is asked by
processes of their own, so that only these load it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.cluster.cluster_file import size_bytes
from isthmus.programs.launch import user_files
from isthmus.programs.launch.engine import Engine, Member, PrintedFile
from isthmus.programs.launch.folder import RUN, Launch
from isthmus.programs.launch.launch_file import HOME, ISLAND, LaunchRequest
from isthmus.runtime.errors import ConfigError, Fault

SECONDS_MAX: Final = 120.0
"""For Ray to answer, beside the grace."""
FILES_BYTES_MAX: Final = 100 * 2**20
"""Of what travels with a run: Ray refuses 500 MiB."""
_NODES: Final = """import json, ray; ray.init("auto", log_to_driver=False, logging_level=40)
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))"""
_FILE: Final = '''\
"""The run {name} on Ray: launches it, or, with these words behind the file, `status`, `scale N` or `down`."""

import sys

from isthmus.programs.launch.ray_actors import Plan, main

PLAN = Plan(
{plan}    options=dict(  # Of each actor, in Ray's words.
{options}    ),
)

if __name__ == "__main__":
    main(PLAN, __file__, sys.argv[1:])
'''


@final
class _Ray:
    def faults(self, request: LaunchRequest, folder: Path) -> Iterator[Fault]:
        doing, table = f"Launching {request.name} on Ray", request.table
        for name in ("image", "partition", "namespace", "time"):
            if getattr(table, name):
                do = "Leave it out: options of actors, such as runtime_env, stand in launch.extra."
                yield Fault(f"Reading launch.{name}", "none on Ray", repr(getattr(table, name)), do)
        if find_spec("ray") is None:
            do = "Install it as the cluster has it: pip install 'isthmus[ray]'."
            yield Fault(doing, "the package ray", "none", do)
            return
        if wrong := list(user_files.faults(request, FILES_BYTES_MAX, [_file(request.name)])):
            yield from wrong
            return
        try:
            compile(self.files(request)[0].text, "launch.extra", "exec")
            nodes = json.loads(_ask(doing, "-c", _NODES))
        except SyntaxError as error:
            do = 'Write lines such as runtime_env={"pip": ["mine"]},'
            yield Fault("Reading launch.extra", "options of actors", f"{error.msg}: {error.text}", do)
        except ConfigError as error:
            yield from error.faults
        else:
            for machine, count in ((HOME, 1), ("each island", request.nodes_per_island)):
                needs = _needs(request, is_home=machine == HOME)
                fitting = sum(all(node.get(name, 0) >= needs[name] for name in needs) for node in nodes)
                if fitting < count:
                    do = "Change [launch], or add nodes; `ray status` shows what there is."
                    expected = f"{count} with {', '.join(f'{amount} {name}' for name, amount in needs.items())}"
                    yield Fault(f"Looking for nodes for {machine}", expected, f"{fitting} of {len(nodes)}", do)

    def files(self, request: LaunchRequest) -> Sequence[PrintedFile]:
        texts = [request.home_text, request.machine_text, request.run_text]
        paths = user_files.paths(request)
        for path in paths:  # They come to lie above the folders of machines, where they have one path on all nodes.
            texts = [text.replace(f'"{path}', f'"../{path.name}') for text in texts]
        nodes, leaving = request.nodes_per_island, f"--until-over --grace {request.grace:g}"
        plan = {
            "run": request.name,
            "islands": request.islands,
            "nodes": nodes,
            "grace": request.grace,
            "port": request.table.port,
            "folder": f"~/isthmus/{request.name}",
            "files": tuple(path.name for path in paths),
            **dict(zip(("home_machine", "island_machine", "cluster"), texts, strict=True)),
            "invite": f"isthmus invite --count {request.names} --for {ISLAND} --cluster cluster.toml"
            " --to island.invite",
            "daemon": f"isthmus daemon --name {HOME} --listen {{address}} --config machine.toml --run cluster.toml"
            f" --run-dir {RUN} --resume-or-start {leaving}",
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
        copies = [PrintedFile(path.name, path.read_text(encoding="utf-8")) for path in paths]
        return [PrintedFile(_file(request.name), text), *copies]

    def by_hand(self, request: LaunchRequest) -> str:
        return f"python {_file(request.name)}    # or: ray job submit --working-dir . -- python {_file(request.name)}"

    def submit(self, launch: Launch) -> None:
        _say(launch)

    def scale(self, launch: Launch, islands: int) -> None:
        _say(launch, "scale", str(islands))

    def members(self, launch: Launch) -> list[Member]:
        machines = _say(launch, "status")["machines"] if (launch.folder / _file(launch.name)).exists() else {}
        return [Member(name, state["at"], state["state"], state["node"]) for name, state in machines.items()]

    def down(self, launch: Launch) -> None:
        _say(launch, "down")


def _file(name: str) -> str:
    """The printed file, which nothing can import by mistake."""
    return f"{name}-on-ray.py"


def _literal(field: Any) -> str:
    """A value in Python, a text of several lines as it stands in a file."""
    is_raw = isinstance(field, str) and "\n" in field and '"""' not in field
    return f'r"""{field}"""' if is_raw else repr(field)


def _needs(request: LaunchRequest, *, is_home: bool) -> dict[str, int]:
    """What an actor reserves, by Ray's names; ConfigError if the memory is no size."""
    needs, (kind, _, count) = {"CPU": request.table.cpus or 1}, request.table.devices.rpartition(":")
    if request.table.memory:
        needs["memory"] = size_bytes(request.table.memory, "Reading launch.memory")
    if kind and not is_home:
        needs[kind.upper() if kind in ("gpu", "tpu") else kind] = int(count)
    return needs


def _say(launch: Launch, *words: str) -> Any:
    """What the printed file answers; ConfigError if it fails."""
    command = [_file(launch.name), *words]
    return json.loads(_ask(f"Typing {' '.join(command)}", *command, folder=launch.folder, more=2 * launch.grace))


def _ask(doing: str, *words: str, folder: Path | None = None, more: float = 0.0) -> str:
    """The last line that a process of Python says which speaks with Ray; ConfigError if it fails, or takes too long."""
    do = "Type it on a machine of the cluster, or set RAY_ADDRESS=HOST:6379; through a dashboard: --print."
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX + more,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(doing, "an answer of Ray", f"none for {error.timeout:g} s", do) from None
    if done.returncode:
        found = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:1000]
        raise ConfigError(doing, "an answer of Ray", found, do)
    return (done.stdout.splitlines() or ["null"])[-1]


ENGINE: Final[Engine] = _Ray()
