"""What `isthmus launch kubernetes` has in a cluster: a Job for the home and one for each machine of an island.

Decides the objects, which are of core kinds only, and what is asked of `kubectl`; what is trained is the request's, and
`manifests` says how objects are written, and what a user may add to them.

Theory of operation. A Job makes its pod again wherever and whenever it is preempted, and ends with it. Its name is the
identity of its machine, so that another pod of it comes back as the same machine; `scale` adds and deletes Jobs. The
home's run folder is on a claim, which is all that stays. The home's Job owns whatever else there is, and goes once it
is complete: so the cluster's own collector of garbage frees everything when the run is over, and no launcher has to
live until then. A launch's objects are known by a label and by their names, so `down` needs nothing but the name.

Secrets are made by `isthmus keygen` and `isthmus invite` in the launch folder, which only its owner can read, and
handed over as one Secret. Pods copy them, since the group of a pod may read what is mounted, and isthmus refuses that.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.command.loop_choice import LOOP_SECTION
from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.settings import collecting
from isthmus.programs.wings.launch import manifests, user_files
from isthmus.programs.wings.launch.engine import Engine, LaunchedMachine, LaunchState, PrintedFile
from isthmus.programs.wings.launch.folder import RUN, Launch
from isthmus.programs.wings.launch.launch_file import AFTER_GRACE_SECONDS, HOME, ISLAND, LaunchRequest, home_table
from isthmus.runtime.errors import ConfigError, Fault, RunError, shortened
from isthmus.runtime.system.files import put_bytes, read_text
from isthmus.runtime.system.refusals import remedy

LABEL: Final = "isthmus-launch"
PORT: Final = 7400
CLAIM_SIZE: Final = "20Gi"  # Of the run folder: editable in what is printed, as everything is.
FILES_BYTES_MAX: Final = 1 << 20  # A ConfigMap takes no more.
WORDS_MAX: Final = 400
OUTCOMES: Final = {"Complete": "done", "Failed": "failed"}  # By the conditions of the home's Job.
COMMAND_SECONDS_MAX: Final = 60.0
SUBMIT_SECONDS_MAX: Final = 600.0
LEAVE_SECONDS_MAX: Final = 60.0  # Beyond the grace, until pods are gone that were deleted.
MANIFESTS, SUBMIT, COPY, CLUSTER, MACHINE, JOIN = (
    "kubernetes", "submit.sh", "copy.yaml", "cluster.toml", "machine.toml", "island.toml",
)  # fmt: skip
DEVICES: Final[Mapping[str, str]] = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}

_HOME_ABOUT: Final = "The home. It owns whatever else there is, which goes with it once the run is over."
_HOME_SCRIPT: Final = """\
umask 077
cd /isthmus
daemons=.local/state/isthmus/daemons/machines
mkdir -p $daemons
cmp -s /launch/home.pub home.pub || cp -f /launch/home.admitted $daemons/
cp -f /launch/* .
flock $daemons/home.lock true  # A former pod may still be leaving.
{settle}trap 'kill $!' TERM
isthmus daemon --name home --listen 'tcp://*:{port}' --config machine.toml \\
  --run cluster.toml --run-dir {run} {going_on} --until-over --grace {grace:g} &
wait $! || wait $! || grep -q '"outcome": "failed"' {run}/summary.json  # That is an end, too.
"""
_ISLAND_ABOUT: Final = "A machine of an island. All of these are alike but for the name, which is the machine's."
_ABOUT: Final[Mapping[str, str]] = {
    "claim": "The claim keeps the run when all else is gone.",
    "service": "By it islands find the home.",
    HOME: _HOME_ABOUT,
}
_ISLAND_SCRIPT: Final = """\
umask 077
cd /isthmus
cp -f /launch/* .
name=${{JOB#{name}-}}
exec isthmus join --invite island.invite --name $name{part}{config} --until-over --grace {grace:g}
"""
_USER: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
_RIGHTS: Final[Mapping[str, Any]] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_PART: Final = " --island ${{name%-*}} --rank ${{name##*-}} --size {size}"
_OWNER: Final = """\
{{"metadata":{{"ownerReferences":[{{"apiVersion":"batch/v1","kind":"Job","name":"{name}-home","uid":"{{{{.metadata.uid}}}}"}}]}}}}"""
"""A template of kubectl's, for the home's Job: the patch by which it owns another object."""
_SUBMIT: Final = """\
# Secrets are made here, as files that only you can read; `kubectl create secret` hands them over.
set -e; cd "$(dirname "$0")"; umask 077
[ -e home.key ] || isthmus keygen home
XDG_STATE_HOME=$PWD/state isthmus invite --count {names} --for {island} --cluster {cluster} --to island.invite
{kubectl} create secret generic {name} --from-file=home.key --from-file=home.pub --from-file=island.invite \
--from-file=state/isthmus/daemons/machines/home.admitted
{kubectl} create configmap {name}{files}
{kubectl} apply -f {manifests}/
# The home's Job owns the rest, which goes with it when the run is over.
owner=$({kubectl} get job {name}-home -o go-template='{owner}')
{kubectl} patch secret/{name} configmap/{name} service/{name}-home {jobs} -p "$owner"
"""


@final
class _Kubernetes:
    def faults(self, request: LaunchRequest, folder: Path) -> Iterator[Fault]:
        doing, table = f"Launching {request.name} on Kubernetes", request.table
        faults = list(_own_faults(request))
        yield from faults
        if shutil.which("kubectl") is None:
            do = "Install it (https://kubernetes.io/docs/tasks/tools; Debian: apt-get install kubernetes-client)."
            yield Fault(doing, "the command kubectl", "none", do)
            return
        if faults:
            return
        others = [
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": request.name}} for kind in ("Secret", "ConfigMap")
        ]
        text = "\n---\n".join([*(file.text for file in _manifests(request)), *map(json.dumps, others)])
        done = _kubectl(table.namespace, "apply", "--dry-run=server", "-f", "-", text=text)
        if done.returncode:
            yield Fault(doing, "a cluster that takes the manifests", _words(done), _remedy(done))
            return
        done = _kubectl(table.namespace, "get", *_others(request.name), "--ignore-not-found", "-o", "name")
        if done.stdout.strip():
            do = "End that launch first, `isthmus launch down`, or rename the file."
            yield Fault(doing, "no objects of these names", ", ".join(done.stdout.split()), do)
        for resource in _limits(request):
            done = _kubectl("", "get", "nodes", "-o", "json")
            if done.returncode:  # Whoever may not look at nodes learns it from `isthmus launch status`.
                return
            nodes = json.loads(done.stdout)["items"]
            known = sorted({name for node in nodes for name in node["status"].get("allocatable", {})})
            if resource not in known:
                do = "Change launch.devices, or have the plugin of such devices installed."
                yield Fault("Reading launch.devices", f"one of {', '.join(known)}", resource, do)

    def files(self, request: LaunchRequest) -> Sequence[PrintedFile]:
        if faults := list(_own_faults(request)):
            raise ConfigError.of(faults)
        sent = _sent(request)
        submit = _SUBMIT.format(
            name=request.name,
            names=request.names,
            island=ISLAND,
            cluster=CLUSTER,
            manifests=MANIFESTS,
            kubectl="kubectl" + (f" -n {request.table.namespace}" if request.table.namespace else ""),
            files="".join(f" --from-file={file.name}" for file in sent),
            owner=_OWNER.format(name=request.name),
            jobs=" ".join(f"job/{job}" for job in _jobs(request.name, request.islands, request.nodes_per_island)),
        )
        return [*_manifests(request), *sent, PrintedFile(SUBMIT, submit)]

    def by_hand(self, request: LaunchRequest) -> str:
        return f"sh {SUBMIT}"

    def submit(self, launch: Launch) -> None:
        claim = ("pvc", launch.name, "--ignore-not-found")
        is_new = not _ask(launch, "get", *claim, "-o", "name")
        variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        try:
            with launch.busy() as lock:
                how: dict[str, Any] = {"cwd": launch.folder, "env": variables, "pass_fds": (lock,)}
                done = _run("sh", SUBMIT, seconds_max=SUBMIT_SECONDS_MAX, **how)
            if done.returncode:
                do = f"Mend that, and type `isthmus launch kubernetes` again, or `sh {SUBMIT}` in {launch.folder}."
                raise ConfigError(f"Submitting {launch.folder / SUBMIT}", "to submit", _words(done), do)
        except BaseException:
            _free(launch)
            if is_new:
                _ask(launch, "delete", *claim)
            raise

    def scale(self, launch: Launch, islands: int) -> None:
        wanted, home = _jobs(launch.name, islands, launch.nodes_per_island), f"{launch.name}-{HOME}"
        there = {job["metadata"]["name"] for job in _items(launch, "job")} - {home}
        new, surplus = [job for job in wanted if job not in there], sorted(there.difference(wanted))
        paths = {_manifest_of(launch, job): job for job in new}
        made = [path for path in paths if not path.exists()]
        for path in made:
            _write_another(launch, paths[path], path)
        try:
            if new:
                _ask(launch, "apply", *(word for path in paths for word in ("-f", str(path))))
                owner = _ask(launch, "get", "job", home, "-o", f"go-template={_OWNER.format(name=launch.name)}")
                _ask(launch, "patch", *(f"job/{job}" for job in new), "-p", owner)
        except BaseException:
            for path in made:
                path.unlink(missing_ok=True)
            raise
        if surplus:
            _ask(launch, "delete", "job", *surplus)
        for job in surplus:
            _manifest_of(launch, job).unlink(missing_ok=True)

    def state(self, launch: Launch) -> LaunchState:
        found = _items(launch, "job,pod")
        pods = [each for each in found if each["kind"] == "Pod"]
        members = [_member(launch, pod["metadata"]["labels"].get("job-name", ""), pod) for pod in pods]
        waiting = [_member(launch, each["metadata"]["name"], None) for each in found if each["kind"] == "Job"]
        names = {member.name for member in members}
        members += (member for member in waiting if member.name not in names)
        home = [each.get("status", {}) for each in found if each["metadata"]["name"] == f"{launch.name}-{HOME}"]
        conditions = [each for status in home for each in status.get("conditions", ())]
        ends = [each["type"] for each in conditions if each["status"] == "True"]
        outcome = next((OUTCOMES[end] for end in ends if end in OUTCOMES), "")
        return LaunchState(members, outcome, _keeps(launch, members))

    def down(self, launch: Launch) -> LaunchState:
        before = self.state(launch)
        _free(launch)
        return LaunchState(before.machines, before.outcome, _keeps(launch, ()))


def _free(launch: Launch) -> None:
    """Delete whatever a launch has but its claim; RunError if something stays."""
    seconds, stayed = math.ceil(launch.grace) + AFTER_GRACE_SECONDS + LEAVE_SECONDS_MAX, list[str]()
    with launch.busy():
        for words in (("job,pod", "-l", f"{LABEL}={launch.name}"), _others(launch.name)):
            # kubectl waits until they are gone.
            words = ("delete", *words, "--ignore-not-found", f"--timeout={seconds}s")
            done = _kubectl(launch.table.namespace, *words, seconds_max=seconds + COMMAND_SECONDS_MAX)
            stayed += [_words(done)] * (done.returncode != 0)
    if stayed:
        raise RunError(f"{launch.name} is not freed: {'; '.join(stayed)}")


def _keeps(launch: Launch, machines: Sequence[LaunchedMachine]) -> str:
    """What to type for the run folder, which stays on the claim."""
    kubectl = "kubectl" + (f" -n {launch.table.namespace}" if launch.table.namespace else "")
    to, pod = f"runs/{launch.name}", f"{launch.name}-copy"
    home = [member.id for member in machines if member.is_home and member.state == "Running"]
    if home:
        return f"copy its run folder from the claim    {kubectl} cp {home[0]}:/isthmus/{RUN} {to}"
    if not launch.folder.exists():  # It was not launched from here.
        return ""
    path = launch.folder / COPY
    copy = shlex.quote(str(path))
    put_bytes(path, manifests.text_of(_copy_pod(launch)).encode())
    return (
        f"copy its run folder from the claim    {kubectl} apply -f {copy} && {kubectl} wait --for=condition=Ready "
        f"pod/{pod} && {kubectl} cp {pod}:/isthmus/{RUN} {to} && {kubectl} delete -f {copy}\n"
        f"then let go of the claim              {kubectl} delete pvc {launch.name}"
    )


def _manifests(request: LaunchRequest) -> list[PrintedFile]:
    """A file for each object but the secrets and the ConfigMap, which `submit.sh` makes."""
    name, size = request.name, request.nodes_per_island
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": CLAIM_SIZE}}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-{HOME}", "labels": {LABEL: name}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": f"{name}-{HOME}"},
        },
    }
    settle = f"{request.settling}\n" if request.is_for_home else ""
    port = request.table.port or PORT
    home = _job(
        request,
        f"{name}-{HOME}",
        _HOME_SCRIPT.format(port=port, run=RUN, going_on=request.going_on, grace=request.grace, settle=settle),
        {"persistentVolumeClaim": {"claimName": name}},
        [{"configMap": {"name": name}}, {"secret": {"name": name}}],
        {},
    )
    home["spec"]["template"]["spec"]["hostname"] = f"{name}-{HOME}"
    part, config = (_PART.format(size=size) if size > 1 else ""), (f" --config {JOIN}" if request.permits else "")
    script = _ISLAND_SCRIPT.format(name=name, part=part, config=config, grace=request.grace)
    invitation: dict[str, Any] = {
        "secret": {"name": name, "items": [{"key": "island.invite", "path": "island.invite"}]}
    }
    sources = [*([{"configMap": {"name": name}}] if user_files.paths(request) else []), invitation]
    extra, documents = manifests.read_extra(request.table.extra), {"claim": claim, "service": service, HOME: home}
    for job in _jobs(name, request.islands, size):
        documents[job.removeprefix(f"{name}-")] = _job(
            request, job, script, {"emptyDir": {}}, sources, _limits(request)
        )
    files = list[PrintedFile]()
    for file, document in documents.items():
        if document["kind"] == "Job":
            template = document["spec"]["template"]
            template["spec"] = manifests.with_extra(template["spec"], extra)
        about = _ABOUT.get(file, _ISLAND_ABOUT)
        files.append(PrintedFile(f"{MANIFESTS}/{file}.yaml", f"# {about}\n{manifests.text_of(document)}"))
    return files


def _job(
    request: LaunchRequest,
    name: str,
    script: str,
    work: Mapping[str, Any],
    sources: Sequence[Mapping[str, Any]],
    limits: Mapping[str, int],
) -> dict[str, Any]:
    """The Job of a machine, whose folder is the volume `work`, with what is mounted from the `sources`."""
    table, labels = request.table, {LABEL: request.name}
    amounts = {key: value for key, value in (("cpu", table.cpus), ("memory", table.memory)) if value}
    resources = {key: dict(value) for key, value in (("requests", amounts), ("limits", limits)) if value}
    seconds = cluster_file.duration_seconds(table.time, "Reading launch.time") if table.time else None
    container = {
        "name": manifests.CONTAINER,
        "image": table.image,
        "command": ["sh", "-ec"],
        "args": [script],
        "env": [
            {"name": "HOME", "value": "/isthmus"},
            {"name": "JOB", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}},
        ],
        **({"resources": resources} if resources else {}),
        "volumeMounts": [{"name": "work", "mountPath": "/isthmus"}, {"name": "launch", "mountPath": "/launch"}],
        "securityContext": _RIGHTS,
    }
    pod = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": math.ceil(request.grace) + AFTER_GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "securityContext": _USER,
        "volumes": [
            {"name": "work", **work},
            {"name": "launch", "projected": {"defaultMode": 0o440, "sources": list(sources)}},
        ],
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "backoffLimit": 2147483647,
            "ttlSecondsAfterFinished": 0,
            **({"activeDeadlineSeconds": math.ceil(seconds)} if seconds is not None else {}),
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _copy_pod(launch: Launch) -> dict[str, Any]:
    """A pod from which the run folder can be copied when no other is there."""
    container = {
        "name": "copy",
        "image": launch.table.image,
        "command": ["sleep", "3600"],
        "securityContext": _RIGHTS,
        "volumeMounts": [{"name": "work", "mountPath": "/isthmus"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{launch.name}-copy", "labels": {LABEL: launch.name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": _USER,
            "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": launch.name}}],
            "containers": [container],
        },
    }


def _manifest_of(launch: Launch, job: str) -> Path:
    return launch.folder / MANIFESTS / f"{job.removeprefix(f'{launch.name}-')}.yaml"


def _write_another(launch: Launch, job: str, path: Path) -> None:
    """Write the manifest of another machine of an island: that of the first as it is by now, with another name."""
    first = _jobs(launch.name, 1, launch.nodes_per_island)[0]
    text = read_text(_manifest_of(launch, first))
    line = f"\n  name: {first}\n"
    if line not in text:
        do = "Write it as it was printed; it is a pattern for those of further islands."
        raise ConfigError(f"Reading {_manifest_of(launch, first)}", f"the line{line.rstrip()!r}", "none", do)
    put_bytes(path, text.replace(line, f"\n  name: {job}\n", 1).encode())


def _jobs(name: str, islands: int, size: int) -> list[str]:
    """The names of the islands' Jobs: NAME-island-K, or NAME-island-K-RANK."""
    ranks = [f"-{rank}" for rank in range(size)] if size > 1 else [""]
    return [f"{name}-{ISLAND}{number}{rank}" for number in range(islands) for rank in ranks]


def _sent(request: LaunchRequest) -> list[PrintedFile]:
    """The files of the ConfigMap; the user's own lie beside the others there, by their names."""
    there, address = user_files.placed(request), f"tcp://{request.name}-{HOME}:{request.table.port or PORT}"
    join = [PrintedFile(JOIN, there.machine_text)] if there.permits else []
    cluster = PrintedFile(CLUSTER, home_table(address) + there.run_text)
    return [cluster, PrintedFile(MACHINE, there.home_text), *join, *user_files.copies(request)]


def _limits(request: LaunchRequest) -> dict[str, int]:
    """The devices of a machine of an island, as Kubernetes counts them."""
    kind, _, number = request.table.devices.rpartition(":")
    return {DEVICES.get(kind, kind): int(number)} if number else {}


def _own_faults(request: LaunchRequest) -> Iterator[Fault]:
    """What is wrong whatever the cluster is."""
    table = request.table
    if not table.image:
        do = "Name an image with isthmus and sh, flock and tar: docs/how-to/kubernetes.md."
        yield Fault("Reading launch.image", "an image", "none", do)
    do = "Leave it out; what queues of the cluster need stands in launch.extra."
    yield from request.useless("Kubernetes", do, "partition", "invite_by")
    if table.devices.count(":") > 1:
        do = "Write gpu:8, and the nodeSelector of such nodes in launch.extra."
        yield Fault("Reading launch.devices", "KIND:NUMBER on Kubernetes", repr(table.devices), do)
    if LOOP_SECTION in request.sections and not request.names_folder:
        script = request.sections[LOOP_SECTION]["script"]
        if not script.endswith(".py"):  # That of the pod's files is everybody's in it, and no owner permits such a one.
            do = 'Write [loop] with folder = "/opt/lab", a folder of the image that only root writes.'
            yield Fault("Reading [loop]", f"the folder in which {script} runs", "none", do)
    faults = list[Fault]()
    with collecting(faults):
        _ = table.time and cluster_file.duration_seconds(table.time, "Reading launch.time")
    if not faults and table.image:
        with collecting(faults):
            _manifests(request)  # For what launch.extra contradicts.
    yield from faults
    yield from user_files.faults(request, FILES_BYTES_MAX, (MANIFESTS, SUBMIT, COPY, CLUSTER, MACHINE, JOIN))


def _member(launch: Launch, job: str, pod: Any) -> LaunchedMachine:
    name = job.removeprefix(f"{launch.name}-")
    if pod is None:
        return LaunchedMachine(name, job, "no pod")
    status, meta = pod.get("status", {}), pod["metadata"]
    state = status.get("phase", "")
    for container in status.get("containerStatuses", ()):
        state = container["state"].get("waiting", {}).get("reason", state)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            state = f"{condition.get('reason', state)}: {condition.get('message', '')}"
    state = "leaving" if "deletionTimestamp" in meta else state
    return LaunchedMachine(name, meta["name"], state, pod["spec"].get("nodeName", ""))


def _items(launch: Launch, kind: str) -> list[Any]:
    """The objects of a launch, of one kind."""
    return list(json.loads(_ask(launch, "get", kind, "-l", f"{LABEL}={launch.name}", "-o", "json"))["items"])


def _ask(launch: Launch, *words: str) -> str:
    """What kubectl answers; ConfigError if the cluster refuses."""
    done = _kubectl(launch.table.namespace, *words)
    if done.returncode:
        raise ConfigError(f"Asking Kubernetes about {launch.name}", "an answer", _words(done), _remedy(done))
    return done.stdout


def _others(name: str) -> tuple[str, ...]:
    """What there is beside Jobs, pods and the claim."""
    return f"secret/{name}", f"configmap/{name}", f"service/{name}-{HOME}"


def _kubectl(
    namespace: str, *words: str, text: str | None = None, seconds_max: float = COMMAND_SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """The answer of kubectl; ConfigError if it is not there, or gives none."""
    return _run("kubectl", *(["-n", namespace] if namespace else []), *words, seconds_max=seconds_max, input=text)


def _run(*words: str, seconds_max: float, **how: Any) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=seconds_max, check=False, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        do = "Look whether `kubectl version` reaches the cluster."
        raise ConfigError(
            f"Calling {words[0]}", f"an answer within {seconds_max:g} s", str(error), remedy(error, do)
        ) from None


def _remedy(done: subprocess.CompletedProcess[str]) -> str:
    """What to do about a refusal, by a word of kubectl's."""
    return next((do for word, do in _REMEDIES.items() if word in done.stderr), "Change [launch], or the file.")


_REMEDIES: Final[Mapping[str, str]] = {
    "forbidden": "Ask who runs the cluster for that right, or launch in a namespace of yours: launch.namespace.",
    'namespaces "': "Make it, `kubectl create namespace NAME`, or name another one in launch.namespace.",
    "connection": "Point kubectl at a cluster that answers: kubectl config use-context NAME.",
}


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """What kubectl complains about, in a line; the same thing once, and no more than three."""
    noise = r'^(Error from server( \(\w+\))?: |error: )(error when creating "\w+": )?'
    lines = [shortened(re.sub(noise, "", line), WORDS_MAX) for line in done.stderr.splitlines() if line]
    return "; ".join([*dict.fromkeys(lines)][:3]) or f"status {done.returncode}"


ENGINE: Final[Engine] = _Kubernetes()
