"""A Slurm of one machine, as Debian ships it: munge, slurmctld, and a slurmd for each node, in a network namespace.

Every node has an address of its own on the namespace's loopback device, so that no port is taken by anything else. Two
partitions share the nodes: jobs in `high` preempt those in `low`, which have GraceTime until they are requeued. There
are neither cgroups nor systemd. It needs root, for the namespace, and what `why_not` names.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo", "srun", "ip")
PACKAGES: Final = "slurmctld slurmd slurm-client munge iproute2"
GRACE_SECONDS: Final = 20
KILL_WAIT_SECONDS: Final = 10
PATIENCE_SECONDS: Final = 60.0
SUBNET: Final = "10.179.0"

CONFIGURATION: Final = """\
ClusterName=rig
SlurmctldHost={host}({subnet}.1)
SlurmctldPort=6817
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait={kill_wait}
MinJobAge=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{more}
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE PreemptMode=REQUEUE GraceTime={grace} LLN=YES
PartitionName=high Nodes=ALL LLN=YES PriorityTier=10 MaxTime=INFINITE PreemptMode=OFF
"""


def why_not() -> str:
    """What is missing here, and how to install it; empty if nothing is."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"no {', '.join(missing)} here: apt-get install --no-install-recommends {PACKAGES}"
    return "" if os.geteuid() == 0 else "a network namespace needs root"


class SlurmRig:
    """A Slurm with nodes n0, n1, ..., of `cpus` each; its files are in `folder`.

    With `warns` the site has set preempt_send_user_signal: a preempted job gets its own signal when its grace begins.
    """

    def __init__(self, folder: Path, nodes: int = 4, cpus: int = 2, *, warns: bool = True) -> None:
        self.folder, self.nodes = folder, [f"n{number}" for number in range(nodes)]
        self._space = f"slurm-{os.getpid()}-{secrets.token_hex(2)}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.variables = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        lines = [
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr={SUBNET}.{number + 2} Port={6820 + number}"
            f" CPUs={cpus} RealMemory=16000 State=UNKNOWN"
            for number, name in enumerate(self.nodes)
        ]
        text = CONFIGURATION.format(
            host=socket.gethostname(),
            subnet=SUBNET,
            folder=folder,
            kill_wait=KILL_WAIT_SECONDS,
            grace=GRACE_SECONDS,
            more="SlurmctldParameters=preempt_send_user_signal" if warns else "",
            nodes="\n".join(lines),
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (folder / name).mkdir()
        try:
            self._make_namespace()
            self._begin()
        except BaseException:
            self.close()
            raise

    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to carry it out on this cluster, with `variables`."""
        return "ip", "netns", "exec", self._space

    def run(self, *words: str, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Carry out a command there, and return what it printed."""
        done = subprocess.run(
            [*self.prefix(), *words],
            env=self.variables,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS * 2,
            check=False,
        )
        assert not (check and done.returncode), (words, done.returncode, done.stdout, done.stderr)
        return done

    def jobs(self) -> list[dict[str, str]]:
        """The jobs, and elements of arrays, that are not over: id, name, state and node of each."""
        lines = self.run("squeue", "-h", "-r", "-o", "%i|%j|%T|%N").stdout.splitlines()
        return [dict(zip(("id", "name", "state", "node"), line.split("|"), strict=True)) for line in lines]

    def pids(self) -> list[int]:
        """The processes in the namespace, but for those of Slurm itself."""
        own = {process.pid for process in self._processes}
        text = subprocess.run(["ip", "netns", "pids", self._space], capture_output=True, text=True, check=False).stdout
        return [pid for pid in map(int, text.split()) if pid not in own and not _is_slurms(pid)]

    def close(self) -> None:
        """End all of it."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left = subprocess.run(["ip", "netns", "pids", self._space], capture_output=True, text=True, check=False).stdout
        for pid in map(int, left.split()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        subprocess.run(["ip", "netns", "delete", self._space], check=False, capture_output=True)

    def _make_namespace(self) -> None:
        subprocess.run(["ip", "netns", "add", self._space], check=True)
        subprocess.run(["ip", "-n", self._space, "link", "set", "lo", "up"], check=True)
        for number in range(1, len(self.nodes) + 2):
            address = f"{SUBNET}.{number}/32"
            subprocess.run(["ip", "-n", self._space, "address", "add", address, "dev", "lo"], check=True)

    def _begin(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._start("munged", "--foreground", "--force", *options, f"--log-file={self.folder / 'munge.log'}")
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munge")
        self._start("slurmctld", "-D")
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node)
        self._wait(self._is_up, "nodes that are idle")

    def _is_up(self) -> bool:
        done = self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%t", check=False)
        return not done.returncode and done.stdout.split() == ["idle"] * len(self.nodes)

    def _start(self, *words: str) -> None:
        log = (self.folder / f"{words[0]}.out").open("ab")
        with log:
            self._processes.append(
                subprocess.Popen([*self.prefix(), *words], env=self.variables, stdout=log, stderr=log)
            )

    def _wait(self, is_so: object, what: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        assert callable(is_so)
        while not is_so():
            assert time.monotonic() < end, f"no {what} after {PATIENCE_SECONDS:g} s: see {self.folder}"
            time.sleep(0.1)


def _is_slurms(pid: int) -> bool:
    """Whether a process is Slurm's own: a daemon, or the keeper of a job's step."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip().startswith(("slurm", "munged"))
    except OSError:
        return True
