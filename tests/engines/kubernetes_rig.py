"""A Kubernetes cluster for the tests: a real control plane on loopback, and nodes whose pods are processes.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are those that `build_kubernetes.sh` makes once; the
nodes are `kubelet.py`.  Everything ends with the process that has started it.

    python -m tests.engines.kubernetes_rig FOLDER       # for looking around: KUBECONFIG=FOLDER/admin.json kubectl ...
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from tests.engines import kubelet
from tests.programs.engine.machine import namespaces

BUILD: Final = Path(__file__).with_name("build_kubernetes.sh")
START_SECONDS_MAX: Final = 300.0
NODES: Final = 4
CLAIMS: Final = 16
FEATURES: Final = "--feature-gates=TTLAfterFinished=true"
"""On by default from Kubernetes 1.21 on."""
CONTROLLERS: Final = "--controllers=*,-nodeipam,-route,-service,-cloud-node-lifecycle"
_PR_SET_PDEATHSIG: Final = 1


def programs() -> Path:
    """The folder of the control plane's programs, built if they are not there."""
    if os.geteuid() != 0 or (reason := namespaces.why_not()):
        raise RuntimeError(f"Pods of the tests need root and network namespaces: {reason or 'not root'}")
    done = subprocess.run([BUILD], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.split()[-1])


def wait_for(state: Callable[[], Any], seconds_max: float, what: str) -> Any:
    """Wait until `state` is true, or fails no more; returns it."""
    end, error = time.monotonic() + seconds_max, None
    while time.monotonic() < end:
        try:
            if value := state():
                return value
        except (OSError, RuntimeError, subprocess.CalledProcessError) as fault:
            error = fault
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds_max:.0f} s: {what}") from error


@final
class Cluster:
    """A cluster that runs; `folder` has its files, and those of the pods."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._bin = folder, programs()
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.config, self.guest = folder / "admin.json", folder / "guest.json"
        self.environment = {**os.environ, "KUBECONFIG": str(self.config), "PATH": f"{self._bin}:{os.environ['PATH']}"}

    def start(self) -> None:
        """Start everything, and wait until its nodes are ready."""
        folder, (etcd, peers, api) = self.folder, _free_ports(3)
        subprocess.run(["openssl", "genrsa", "-out", folder / "accounts.key", "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text("owner,owner,owner,system:masters\nguest,guest,guest\n")
        for path, user in ((self.config, "owner"), (self.guest, "guest")):
            path.write_text(json.dumps(_config(f"https://127.0.0.1:{api}", user)))
        url, peer = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
        self._start(
            "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip
        self._start(
            "kube-apiserver", f"--etcd-servers={url}", f"--secure-port={api}", "--bind-address=127.0.0.1",
            "--advertise-address=10.0.0.1", "--endpoint-reconciler-type=none", f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged=false",
            "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount", FEATURES,
            "--service-account-issuer=https://tests", f"--service-account-signing-key-file={folder}/accounts.key",
            f"--service-account-key-file={folder}/accounts.key",
        )  # fmt: skip
        self.api = kubelet.Api(self.config)
        wait_for(self._answers, START_SECONDS_MAX, "an API server")
        config = f"--kubeconfig={self.config}"
        ports = ("--leader-elect=false", "--port=0", "--secure-port=0")
        self._start(
            "kube-controller-manager", config, CONTROLLERS, FEATURES, *ports,
            f"--service-account-private-key-file={folder}/accounts.key",
        )  # fmt: skip
        self._start("kube-scheduler", config, *ports)
        self._make_volumes()
        words = [sys.executable, kubelet.__file__, str(self.config), str(folder), str(NODES)]
        self._start("kubelet", command=words)
        wait_for(lambda: len(self._ready()) == NODES, START_SECONDS_MAX, f"{NODES} nodes that are ready")

    def close(self) -> None:
        """End everything, the pods first."""
        for _, process in reversed(self._started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """What `kubectl` prints."""
        done = subprocess.run(
            ["kubectl", *words], env=self.environment, input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def items(self, kind: str) -> list[Any]:
        """The objects of a kind, as `pods`, in the namespace."""
        group = "apis/batch/v1" if kind == "jobs" else "api/v1"
        return list(self.api("GET", f"/{group}/namespaces/default/{kind}")["items"])

    def node(self, pod: str) -> str:
        """The node that a pod is on."""
        return str(self.api("GET", f"/api/v1/namespaces/default/pods/{pod}")["spec"]["nodeName"])

    def log(self, pod: str) -> str:
        """What the container of a pod has printed."""
        return (self.folder / "pods" / pod / "log").read_text()

    def claim(self, name: str) -> Path:
        """The folder behind a claim."""
        claim = self.api("GET", f"/api/v1/namespaces/default/persistentvolumeclaims/{name}")
        if claim is None or "volumeName" not in claim["spec"]:
            raise RuntimeError(f"no volume for the claim {name} so far")
        volume = claim["spec"]["volumeName"]
        return Path(self.api("GET", f"/api/v1/persistentvolumes/{volume}")["spec"]["hostPath"]["path"])

    def check(self) -> None:
        """Fail if a part of the cluster has ended."""
        for name, process in self._started:
            assert process.poll() is None, (name, (self.folder / f"{name}.log").read_text()[-4000:])

    def _answers(self) -> bool:
        self.check()
        return self.api("GET", "/api/v1/namespaces/default") is not None

    def _ready(self) -> list[str]:
        self.check()
        return [
            node["metadata"]["name"]
            for node in self.api("GET", "/api/v1/nodes")["items"]
            if not node["spec"].get("taints")
            and any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
        ]

    def _make_volumes(self) -> None:
        """A default class of storage, and volumes that claims are bound to."""
        meta = {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
        storage = {"metadata": meta, "provisioner": "kubernetes.io/no-provisioner"}
        self.api("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
        for number in range(CLAIMS):
            path = self.folder / "volumes" / str(number)
            path.mkdir(parents=True)
            spec = {"capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(path)}}
            spec |= {"storageClassName": "standard", "persistentVolumeReclaimPolicy": "Retain"}
            self.api("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec})

    def _start(self, name: str, *options: str, command: list[str] | None = None) -> None:
        library = ctypes.CDLL(None)
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command or [self._bin / name, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                preexec_fn=lambda: library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        self._started.append((name, process))


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that is ready, in a folder that has to be empty."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder / "etcd", ignore_errors=True)


def _config(server: str, user: str) -> Any:
    """A kubeconfig, whose certificate nobody checks: the way is loopback."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": user, "user": {"token": user}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
        "current-context": "tests",
    }


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that the kernel chooses, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    with cluster(Path(sys.argv[1])) as rig:
        print(f"KUBECONFIG={rig.config}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.pause()
