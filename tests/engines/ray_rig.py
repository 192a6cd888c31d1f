"""A real Ray cluster of several nodes on this machine, by `ray.cluster_utils`, in a process of its own.

As a program it starts nodes, connects to them, and obeys the lines of its standard input, each answered by a line of
JSON. `RayRig` is that process, as tests see it: everything of it, and of the runs in it, has `home` as its home folder,
and ends with it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

CPUS: Final = 1
"""Of each node, as Ray counts, so that each actor has a node of its own; what is really there, nodes share."""
NODES: Final = 3


def why_not() -> str:
    """What is missing for a cluster here; empty if nothing is."""
    missing = [
        what for what, is_there in (("ray", find_spec("ray")), ("setpriv", shutil.which("setpriv"))) if not is_there
    ]
    return f"no {', '.join(missing)}: pip install '.[ray]', apt-get install util-linux" if missing else ""


@final
class RayRig:
    """Three nodes; `environment` is that of commands which are to reach them, `head` the node that stays."""

    def __init__(self, home: Path) -> None:
        self.home = home
        # Ray's sockets are below, whose paths have 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-rig-"))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = {
            **clean,
            "HOME": str(home),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        with (home / "rig.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                text=True,
                start_new_session=True,
            )
        found = self._answer()
        self.environment["RAY_ADDRESS"], self.dashboard, self.head = (
            found[key] for key in ("address", "dashboard", "head")
        )

    def add(self) -> str:
        """Another node; its id."""
        return str(self._ask("add")["node"])

    def remove(self, node: str) -> None:
        """A node is gone without notice: its raylet is killed, and its workers with it."""
        self._ask("remove", node)

    def kill(self, namespace: str, name: str) -> None:
        """Kill an actor's process; Ray starts the actor again."""
        self._ask("kill", namespace, name)

    def actors(self) -> list[str]:
        """The names of all actors that there are."""
        return [each["name"] for each in self._ask("actors")["actors"]]

    def places(self) -> dict[str, str]:
        """The node of each placement group, and "" for one that waits; several nodes' are the first bundle's."""
        return {each["name"]: each["node"] for each in self._ask("places")["places"]}

    def pids(self) -> list[int]:
        """What works in the folder of any run."""
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit() and (path / "cwd").readlink().is_relative_to(self.home / "isthmus"):
                    found.append(int(path.name))
        return found

    def is_empty(self) -> bool:
        """Whether no actor, placement group or process of any run is left."""
        return not (self.pids() or self.actors() or self.places())

    def close(self) -> None:
        """End the cluster, and whatever works in it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError((self.home / "rig.log").read_text()[-4000:])


def serve() -> None:
    """Run the cluster until standard input ends."""
    import ray
    from ray.cluster_utils import Cluster

    # A node's store is a file below /dev/shm; the smallest that Ray takes will do.
    options = {"num_cpus": CPUS, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": True, "dashboard_port": 0})
    # Before there are others: the node to which this process is connected cannot be removed.
    ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    nodes = [cluster.add_node(**options) for _ in range(NODES - 1)]

    def answer(word: str, *more: str) -> dict[str, Any]:
        if word == "add":
            nodes.append(cluster.add_node(**options))
            return {"node": nodes[-1].node_id}
        if word == "remove":
            (node,) = [each for each in nodes if each.node_id == more[0]]
            nodes.remove(node)
            cluster.remove_node(node, allow_graceful=False)
        elif word == "kill":
            ray.kill(ray.get_actor(more[1], namespace=more[0]), no_restart=False)
        elif word == "actors":
            return {"actors": ray.util.list_named_actors(all_namespaces=True)}
        elif word == "places":
            table = [each for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]
            return {"places": [{"name": each["name"], "node": each["bundles_to_node_id"].get(0, "")} for each in table]}
        return {}

    found = {"address": cluster.address, "dashboard": f"http://{cluster.webui_url}", "head": cluster.head_node.node_id}
    print(json.dumps(found), flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(answer(*line.split())), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    serve()
