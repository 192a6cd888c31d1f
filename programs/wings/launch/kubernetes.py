"""What `isthmus launch kubernetes` has in a cluster: a Job for the home and one for each machine of an island.

Decides the manifests, which are of core kinds only, and what is asked of `kubectl`; what is trained is the request's.

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

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.settings import collecting
from isthmus.programs.wings.launch import user_files
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
    "kubernetes.yaml", "submit.sh", "copy.yaml", "cluster.toml", "machine.toml", "island.toml",
)  # fmt: skip
DEVICES: Final[Mapping[str, str]] = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}

_MANIFESTS: Final = """\
# The claim keeps the run when all else is gone. Islands come last: a Job for each machine, alike but for its name.
apiVersion: v1
kind: List
items:
- {{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}},
   spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {claim_size}}}}}}}}}
- {{apiVersion: v1, kind: Service, metadata: {{name: {name}-home, labels: &launch {{{label}: {name}}}}},
   spec: {{clusterIP: None, publishNotReadyAddresses: true, selector: {{job-name: {name}-home}}}}}}
- apiVersion: batch/v1
  kind: Job
  metadata: {{name: {name}-home, labels: *launch}}
  spec:
    <<: &job {{backoffLimit: 2147483647, ttlSecondsAfterFinished: 0{deadline}}}
    template:
      metadata: {{labels: *launch}}
      spec:
        <<: &pod {{restartPolicy: OnFailure, terminationGracePeriodSeconds: {seconds},
          automountServiceAccountToken: false,
          securityContext: {user}}}{extra}
        hostname: {name}-home
        volumes: [{{name: work, persistentVolumeClaim: {{claimName: {name}}}}},
          {{name: launch, projected: {{defaultMode: 0440, sources: [{home_sources}]}}}}]
        containers:
        - <<: &container {{name: isthmus, image: {image}, command: [sh, -ec], env: [
            {{name: HOME, value: /isthmus}}, {{name: JOB, valueFrom: {{fieldRef: {{fieldPath: "{job_label}"}}}}}}],
            volumeMounts: [{{name: work, mountPath: /isthmus}}, {{name: launch, mountPath: /launch}}],
            securityContext: {rights}}}
{home_needs}          args:
          - |
            umask 077; cd /isthmus; daemons=.local/state/isthmus/daemons/machines; mkdir -p $daemons
            cmp -s /launch/home.pub home.pub || cp -f /launch/home.admitted $daemons/
            cp -f /launch/* .; flock $daemons/home.lock true # A former pod may still be leaving.
            trap 'kill $!' TERM; isthmus daemon --name home --listen 'tcp://*:{port}' --config machine.toml \
--run cluster.toml --run-dir {run} --resume-or-start --until-over --grace {grace:g} &
            wait $! || wait $! || grep -q '"outcome": "failed"' {run}/summary.json # That is an end, too.
- apiVersion: batch/v1
  kind: Job
  metadata: {{name: {first}, labels: *launch}}
  spec: &island
    <<: *job
    template:
      metadata: {{labels: *launch}}
      spec:
        <<: *pod{extra}
        volumes: [{{name: work, emptyDir: {{}}}},
          {{name: launch, projected: {{defaultMode: 0440, sources: [{sources}]}}}}]
        containers:
        - <<: *container
{needs}          args:
          - |
            umask 077; cd /isthmus; cp -f /launch/* .; name=${{JOB#{name}-}}
            exec isthmus join --invite island.invite --name $name{part}{config} --until-over --grace {grace:g}
"""
_NEXT: Final = "- {{apiVersion: batch/v1, kind: Job, metadata: {{name: {job}, labels: *launch}}, spec: *island}}\n"
_USER: Final = "{runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}"
_RIGHTS: Final = "{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}"
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
{kubectl} apply -f {manifests}
# The home's Job owns the rest, which goes with it when the run is over.
owner=$({kubectl} get job {name}-home -o go-template='{owner}')
{kubectl} patch secret/{name} configmap/{name} service/{name}-home {jobs} -p "$owner"
"""
_COPY: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}-copy, labels: {{{label}: {name}}}}}
spec:
  {{restartPolicy: Never, automountServiceAccountToken: false, securityContext: {user},
   volumes: [{{name: work, persistentVolumeClaim: {{claimName: {name}}}}}], containers: [{{name: copy, image: {image},
   command: [sleep, "3600"], securityContext: {rights}, volumeMounts: [{{name: work, mountPath: /isthmus}}]}}]}}
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
        text = "\n---\n".join([_manifests(request), *map(json.dumps, others)])
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
        return [PrintedFile(MANIFESTS, _manifests(request)), *sent, PrintedFile(SUBMIT, submit)]

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
            self.down(launch)
            if is_new:
                _ask(launch, "delete", *claim)
            raise

    def scale(self, launch: Launch, islands: int) -> None:
        path, wanted = launch.folder / MANIFESTS, _jobs(launch.name, islands, launch.nodes_per_island)
        former, home = read_text(path), f"{launch.name}-{HOME}"
        line = re.compile(re.escape(_NEXT.format(job=f"{launch.name}-{ISLAND}@")).replace("@", r"([\d-]+)"))
        put_bytes(path, (line.sub("", former) + _next(wanted)).encode())
        try:
            there = {job["metadata"]["name"] for job in _items(launch, "job")} - {home}
            if new := [f"job/{job}" for job in wanted if job not in there]:
                _ask(launch, "apply", "-f", str(path))
                owner = _ask(launch, "get", "job", home, "-o", f"go-template={_OWNER.format(name=launch.name)}")
                _ask(launch, "patch", *new, "-p", owner)
        except BaseException:
            put_bytes(path, former.encode())
            raise
        if surplus := sorted(there.difference(wanted)):
            _ask(launch, "delete", "job", *surplus)

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

    def down(self, launch: Launch) -> None:
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
    path, image = launch.folder / COPY, json.dumps(launch.table.image)
    copy = shlex.quote(str(path))
    put_bytes(path, _COPY.format(name=launch.name, label=LABEL, user=_USER, rights=_RIGHTS, image=image).encode())
    return (
        f"copy its run folder from the claim    {kubectl} apply -f {copy} && {kubectl} wait --for=condition=Ready "
        f"pod/{pod} && {kubectl} cp {pod}:/isthmus/{RUN} {to} && {kubectl} delete -f {copy}\n"
        f"then let go of the claim              {kubectl} delete pvc {launch.name}"
    )


def _manifests(request: LaunchRequest) -> str:
    table, size = request.table, request.nodes_per_island
    jobs, limits, needs = _jobs(request.name, request.islands, size), _limits(request), "          resources: {}\n"
    amounts = {name: value for name, value in (("cpu", table.cpus), ("memory", table.memory)) if value}
    whole, invite = f"{{name: {request.name}}}", "items: [{key: island.invite, path: island.invite}]"
    seconds = cluster_file.duration_seconds(table.time, "Reading launch.time") if table.time else None
    part, config = (_PART.format(size=size) if size > 1 else ""), (f" --config {JOIN}" if request.modules else "")
    words = {"name": request.name, "label": LABEL, "claim_size": CLAIM_SIZE, "user": _USER, "rights": _RIGHTS}
    words |= {"image": json.dumps(table.image), "job_label": "metadata.labels['job-name']", "run": RUN}
    words |= {"extra": "".join(f"\n        {line}" for line in table.extra.splitlines() if line.strip())}
    words |= {"deadline": f", activeDeadlineSeconds: {math.ceil(seconds)}" if seconds is not None else ""}
    words |= {"home_needs": needs.format(json.dumps({"requests": amounts})) if amounts else ""}
    needs = needs.format(json.dumps({"requests": amounts, "limits": limits})) if amounts or limits else ""
    words |= {"needs": needs, "home_sources": f"configMap: {whole}, secret: {whole}", "first": jobs[0]}
    own = f"configMap: {whole}, " if user_files.paths(request) else ""
    words |= {"sources": f"{own}secret: {whole[:-1]}, {invite}}}", "part": part, "config": config}
    numbers = {"seconds": math.ceil(request.grace) + AFTER_GRACE_SECONDS, "port": table.port or PORT}
    return _MANIFESTS.format(**words, **numbers, grace=request.grace) + _next(jobs)


def _next(jobs: Sequence[str]) -> str:
    """The Jobs after the first, whose spec is the first's."""
    return "".join(_NEXT.format(job=job) for job in jobs[1:])


def _jobs(name: str, islands: int, size: int) -> list[str]:
    """The names of the islands' Jobs: NAME-island-K, or NAME-island-K-RANK."""
    ranks = [f"-{rank}" for rank in range(size)] if size > 1 else [""]
    return [f"{name}-{ISLAND}{number}{rank}" for number in range(islands) for rank in ranks]


def _sent(request: LaunchRequest) -> list[PrintedFile]:
    """The files of the ConfigMap; the user's own lie beside the others there, by their names."""
    there, address = user_files.placed(request), f"tcp://{request.name}-{HOME}:{request.table.port or PORT}"
    join = [PrintedFile(JOIN, there.machine_text)] if there.modules else []
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
    faults = list[Fault]()
    with collecting(faults):
        _ = table.time and cluster_file.duration_seconds(table.time, "Reading launch.time")
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
