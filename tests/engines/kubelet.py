"""A kubelet of the tests: pods are processes, each in a root, a process namespace and a network namespace of its own.

Decides what a node of a real cluster would: Secrets and ConfigMaps as files, `fsGroup`, emptyDir, claims bound to
hostPath volumes, /etc/hosts (with the addresses behind headless Services, where a cluster has DNS), grace and SIGKILL,
exit codes, restarts with back-off, node leases.  Not: images (each is this machine, with `isthmus` on the path, read
only), limits, probes, logs and exec over the API, several containers.

    python kubelet.py KUBECONFIG FOLDER NODES       # FOLDER: what the pods write; ends its pods with itself

A node whose name is that of a file in FOLDER/lost has lost its power: its processes are killed, and nobody hears of it
but the reader of that file, which is no longer empty then.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

LEASE_SECONDS, LOOK_SECONDS, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 10.0, 0.2, 10.0, 300.0
REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = ("/usr", "/etc", sys.base_prefix, sys.prefix, str(REPOSITORY))
"""What a pod sees of this machine, read only."""
CAPACITY = {"cpu": "2", "memory": "8Gi", "pods": "16", "nvidia.com/gpu": "2"}
SUBNET = "10.179"
_LIBRARY = ctypes.CDLL(None)


class Api:
    """JSON over HTTPS to the API server of a kubeconfig."""

    def __init__(self, config: Path) -> None:
        document = json.loads(config.read_text())
        self._server = document["clusters"][0]["cluster"]["server"]
        self._token = document["users"][0]["user"]["token"]

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """The answer; None where there is no such object, or another version of it."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):
                return None
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from None


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Pod:
    """One pod on a node: its files, its address, and the life of its container."""

    def __init__(self, kubelet: Kubelet, manifest: Any, number: int) -> None:
        self.kubelet, self.manifest, self.spec = kubelet, manifest, manifest["spec"]
        meta = manifest["metadata"]
        self.path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        self.folder = kubelet.folder / "pods" / self.name
        self.folder.mkdir(parents=True)
        self.address, self.net = f"{SUBNET}.{number // 250}.{number % 250 + 2}", f"{kubelet.mark}-{number}"
        ip("netns", "add", self.net)
        bridge = ("-n", kubelet.mark, "link")
        ip(*bridge, "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", self.net)
        ip(*bridge, "set", f"p{number}", "master", "br0", "up")
        ip("-n", self.net, "addr", "add", f"{self.address}/16", "dev", "eth0")
        for link in ("lo", "eth0"):
            ip("-n", self.net, "link", "set", link, "up")
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts, self.start_at, self.told_at, self.phase = 0, 0.0, 0.0, "Pending"
        self.started = now()

    def volume(self, volume: Any) -> Path | None:
        """The folder of a volume, made if it is not there; None while what it names is missing."""
        api, there = self.kubelet.api, f"/api/v1/namespaces/{self.namespace}"
        group, folder = self.spec.get("securityContext", {}).get("fsGroup", 0), self.folder / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            claim = api("GET", f"{there}/persistentvolumeclaims/{volume['persistentVolumeClaim']['claimName']}")
            bound = api("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
            folder = Path(bound["spec"]["hostPath"]["path"])
        folder.mkdir(parents=True, exist_ok=True)
        if "persistentVolumeClaim" in volume or "emptyDir" in volume:  # As kubelets do it: the group may write.
            os.chown(folder, 0, group)
            folder.chmod(0o2777 if "emptyDir" in volume else 0o2775)
            return folder
        whole = volume.get("projected", volume)
        for source in whole.get("sources", [volume]):
            kind = "secret" if "secret" in source else "configMap"
            name = source[kind].get("name") or source[kind]["secretName"]
            found = api("GET", f"{there}/{kind.lower()}s/{name}")
            if found is None:
                return None
            is_coded = kind == "secret"
            contents = {key: text.encode() for key, text in (found.get("data") or {}).items() if not is_coded}
            coded = found.get("data" if is_coded else "binaryData") or {}
            contents |= {key: base64.b64decode(value) for key, value in coded.items()}
            mode = whole.get("defaultMode", source[kind].get("defaultMode", 0o644)) | (0o440 if group else 0)
            for item in source[kind].get("items") or [{"key": key, "path": key} for key in contents]:
                file = folder / item["path"]
                file.write_bytes(contents[item["key"]])
                os.chown(file, 0, group)
                file.chmod(mode)
        return folder

    def hosts(self, services: dict[tuple[str, str], list[str]]) -> None:
        """Write /etc/hosts: this pod, and the addresses behind each headless Service of its namespace."""
        lines = ["127.0.0.1 localhost", f"{self.address} {self.spec.get('hostname', self.name)}"]
        lines += [
            f"{address} {name} {name}.{self.namespace}.svc"
            for (namespace, name), addresses in services.items()
            if namespace == self.namespace
            for address in addresses
        ]
        text = "\n".join(lines) + "\n"
        path = self.folder / "hosts"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)  # In place: it is mounted.

    def start(self) -> bool:
        """Start the container; False while a volume is missing."""
        container, root = self.spec["containers"][0], self.folder / "root"
        root.mkdir(exist_ok=True)
        lines = [
            "set -e",
            f"hostname {self.spec.get('hostname', self.name)}",
            f"mount -t tmpfs -o mode=755 pod {root}",
            f"cd {root}",
            "mkdir -p -m 755 proc dev tmp",
        ]
        lines += ["chmod 1777 tmp", "mount -t proc proc proc", "mount --rbind /dev dev"]
        links = ("bin", "sbin", "lib", "lib64")
        lines += [f"ln -s usr/{link} {link}" for link in links if Path("/", link).is_symlink()]
        binds = [(Path(path), path, True) for path in dict.fromkeys(IMAGE)]
        folders = {volume["name"]: self.volume(volume) for volume in self.spec.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            folder = folders[mount["name"]]
            if folder is None:
                return False
            binds.append((folder, mount["mountPath"], mount.get("readOnly", False)))
        for source, target, is_read_only in binds:
            lines += [f"mkdir -p .{target}", f"mount --bind {source} .{target}"]
            lines += [f"mount -o remount,bind,ro .{target}"] if is_read_only else []
        lines += [f"mount --bind {self.folder}/hosts etc/hosts"]
        rights = self.spec.get("securityContext", {}) | container.get("securityContext", {})
        user, group = rights.get("runAsUser", 0), rights.get("runAsGroup", 0)
        if rights.get("runAsNonRoot") and not user:
            return False
        environment = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOSTNAME": self.spec.get("hostname", self.name)}
        for each in container.get("env", []):  # Of the downward API: a label.
            label = re.search(r"labels\['(.+)'\]", each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", ""))
            value = each.get("value") if label is None else self.manifest["metadata"]["labels"][label[1]]
            environment[each["name"]] = value
        words = ["chroot", f"--userspec={user}:{group}", f"--groups={rights.get('fsGroup', group)}", ".", "env", "-i"]
        words += ["-C", container.get("workingDir", "/"), *(f"{name}={value}" for name, value in environment.items())]
        lines.append("exec " + shlex.join([*words, *container["command"], *container.get("args", [])]))
        command = ["ip", "netns", "exec", self.net, "unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "bash", "-c", "\n".join(lines)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _LIBRARY.prctl(1, signal.SIGKILL),  # It dies with its kubelet, and so its child.
            )
        return True

    def first(self) -> int | None:
        """The process id of the container's first process."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        return int(found[0]) if children.exists() and (found := children.read_text().split()) else None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None and (pid := self.first()) is not None:
            os.kill(pid, number)

    def sync(self, manifest: Any) -> bool:
        """Bring the processes in line with what the API server says; True once the pod is gone for good."""
        clock, is_deleted = time.monotonic(), manifest is None or "deletionTimestamp" in manifest["metadata"]
        status = None if self.process is None else self.process.poll()
        if is_deleted and not self.told_at:
            self.told_at = clock
            self.signal(signal.SIGTERM)
        if is_deleted and status is None and self.process is not None:
            grace = 0 if manifest is None else manifest["metadata"].get("deletionGracePeriodSeconds", 30)
            if clock - self.told_at > grace:
                self.signal(signal.SIGKILL)
            return False
        if is_deleted or self.phase in ("Succeeded", "Failed"):
            if is_deleted:
                self.report({"terminated": {"exitCode": self.code(status), "finishedAt": now()}}, "Failed")
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
                self.kubelet.api("DELETE", self.path, options)
                ip("netns", "delete", self.net)
            return is_deleted
        if self.process is None:
            if clock >= self.start_at and self.start():
                self.report({"running": {"startedAt": now()}}, "Running")
        elif status is not None:
            policy, code = self.spec["restartPolicy"], self.code(status)
            ended = {"terminated": {"exitCode": code, "finishedAt": now(), "reason": "Error" if code else "Completed"}}
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                self.report(ended, "Failed" if code else "Succeeded")
            else:
                wait = min(BACK_OFF_SECONDS * 2 ** (self.restarts - 1), BACK_OFF_SECONDS_MAX) if self.restarts else 0.0
                self.restarts, self.start_at, self.process = self.restarts + 1, clock + wait, None
                self.report({"waiting": {"reason": "CrashLoopBackOff"}}, "Running", ended)
        return False

    @staticmethod
    def code(status: int | None) -> int:
        return 0 if status is None else status if status >= 0 else 128 - status

    def end(self) -> None:
        """Kill what runs, and take the network away."""
        if self.process is not None:
            self.signal(signal.SIGKILL)  # A change of user has taken unshare's --kill-child back.
            self.process.kill()
            self.process.wait()
        ip("netns", "delete", self.net)

    def report(self, state: Any, phase: str, last: Any = None) -> None:
        self.phase, is_ready = phase, "running" in state
        container = self.spec["containers"][0]
        entry = {"name": container["name"], "image": container["image"], "imageID": "", "ready": is_ready}
        entry |= {"restartCount": self.restarts, "state": state, "lastState": last or {}}
        words = {True: "True", False: "False"}
        conditions = [{"type": each, "status": words[is_ready]} for each in ("Ready", "ContainersReady")]
        conditions += [{"type": each, "status": "True"} for each in ("Initialized", "PodScheduled")]
        status = {"phase": phase, "conditions": conditions, "podIP": self.address, "startTime": self.started}
        status |= {"podIPs": [{"ip": self.address}], "hostIP": "127.0.0.1", "containerStatuses": [entry]}
        self.kubelet.api("PATCH", f"{self.path}/status", {"status": status})


class Kubelet:
    """All nodes of the tests in one process."""

    def __init__(self, config: Path, folder: Path, nodes: int) -> None:
        self.api, self.folder, self.mark = Api(config), folder, f"k{os.getpid()}"
        self.nodes, self.pods, self.number = [f"node-{number}" for number in range(nodes)], dict[str, Pod](), 0
        ip("netns", "add", self.mark)
        ip("-n", self.mark, "link", "add", "br0", "type", "bridge")
        ip("-n", self.mark, "link", "set", "br0", "up")
        self.lost = self.folder / "lost"
        self.lost.mkdir()
        self.leased_at = float("-inf")

    def renew(self) -> None:
        """Say that the nodes are ready, and renew their leases."""
        self.leased_at = time.monotonic()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
        for node in self.nodes:
            if (self.lost / node).exists():
                continue
            meta = {"name": node, "labels": {"kubernetes.io/hostname": node}}
            self.api("POST", "/api/v1/nodes", {"metadata": meta})  # It is there already, but for the first time.
            status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]}
            self.api("PATCH", f"/api/v1/nodes/{node}/status", {"status": status})
            leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
            spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now().replace("Z", ".000000Z")}
            if self.api("PATCH", f"{leases}/{node}", {"spec": spec}) is None:
                self.api("POST", leases, {"metadata": {"name": node}, "spec": spec})

    def look(self) -> None:
        """One round: what the API server says now, and what follows."""
        if time.monotonic() - self.leased_at > LEASE_SECONDS:
            self.renew()
        found, lost = self.api("GET", "/api/v1/pods")["items"], {path.name for path in self.lost.iterdir()}
        placed = {each["metadata"]["uid"]: each for each in found if each["spec"].get("nodeName")}
        for uid in [uid for uid, pod in self.pods.items() if pod.spec["nodeName"] in lost]:
            self.pods.pop(uid).end()
        for node in lost:
            (self.lost / node).write_text("lost")
        manifests = {uid: each for uid, each in placed.items() if each["spec"]["nodeName"] not in lost}
        services = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): [
                address["ip"] for subset in each.get("subsets") or [] for address in subset.get("addresses") or []
            ]
            for each in self.api("GET", "/api/v1/endpoints")["items"]
        }
        for uid, manifest in manifests.items():
            if uid not in self.pods and "deletionTimestamp" not in manifest["metadata"]:
                self.pods[uid] = Pod(self, manifest, self.number)
                self.number += 1
            elif uid not in self.pods:  # It was deleted before it was seen.
                path = "/api/v1/namespaces/{namespace}/pods/{name}".format(**manifest["metadata"])
                self.api("DELETE", path, {"gracePeriodSeconds": 0})
        for uid, pod in list(self.pods.items()):
            pod.hosts(services)
            if pod.sync(manifests.get(uid)):
                del self.pods[uid]

    def close(self) -> None:
        """End all pods, and take their networks away."""
        for pod in self.pods.values():
            pod.end()
        ip("netns", "delete", self.mark)


def main(config: str, folder: str, nodes: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    kubelet = Kubelet(Path(config), Path(folder), int(nodes))
    try:
        while True:
            kubelet.look()
            time.sleep(LOOK_SECONDS)
    finally:
        kubelet.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
