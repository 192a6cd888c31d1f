"""What is submitted to Kubernetes, what kubectl's answers mean, and what is refused; `tests/engines` has a real one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.programs.wings.launch import kubernetes
from isthmus.programs.wings.launch.folder import Launch
from isthmus.programs.wings.launch.launch_file import LaunchTable
from isthmus.programs.wings.launch.launching import _write
from isthmus.runtime.errors import ConfigError, RunError
from tests.programs.wings.launch.launch_request import request

IMAGE = "registry.example/isthmus:1"
Answer = Callable[[tuple[str, ...]], tuple[int, str, str]]


def text(name: str, **changes: object) -> str:
    """A file that is printed for a request with an image."""
    asked = request(**{"table": LaunchTable(image=IMAGE), **changes})
    return next(file.text for file in kubernetes.ENGINE.files(asked) if file.name == name)


def answers(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[tuple[str, ...]]:
    """Have kubectl answer so; returns the words of each call."""
    asked: list[tuple[str, ...]] = []

    def run(*words: str, seconds_max: float, **how: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, *answer(words))

    monkeypatch.setattr(kubernetes, "_run", run)
    monkeypatch.setattr(kubernetes.shutil, "which", lambda program: f"/usr/bin/{program}")
    return asked


def launch(folder: Path, **changes: object) -> Launch:
    """A launch in a folder with its files."""
    asked = request(**{"table": LaunchTable(image=IMAGE), **changes})
    _write(kubernetes.ENGINE.files(asked), folder)
    return Launch.of("kubernetes", asked, folder)


def document(machine: str, **changes: object) -> Any:
    return yaml.safe_load(text(f"kubernetes/{machine}.yaml", **changes))


def pod(machine: str, **changes: object) -> Any:
    """The spec of the pods of a machine."""
    return document(machine, **changes)["spec"]["template"]["spec"]


def container(machine: str, **changes: object) -> Any:
    (only,) = pod(machine, **changes)["containers"]
    return only


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "kubernetes").iterdir())


def test_islands_are_alike_but_for_the_names_of_their_jobs() -> None:
    first, last = (text(f"kubernetes/island-{number}.yaml", islands=3) for number in (0, 2))
    assert first.replace("name: demo-island-0", "name: demo-island-2") == last != first
    (script,) = container("island-0")["args"]
    assert "exec isthmus join" in script
    assert script.endswith("--name $name --until-over --grace 20\n")


def test_the_machines_of_an_island_have_their_ranks_from_their_names() -> None:
    files = [file.name for file in kubernetes.ENGINE.files(request(table=LaunchTable(image=IMAGE), nodes_per_island=2))]
    islands = [name for name in files if "island-" in name]
    assert islands == [f"kubernetes/island-{each}.yaml" for each in ("0-0", "0-1", "1-0", "1-1")]
    (script,) = container("island-1-0", nodes_per_island=2)["args"]
    assert "--name $name --island ${name%-*} --rank ${name##*-} --size 2 " in script


def test_pods_have_the_grace_and_ten_seconds_and_no_rights() -> None:
    for machine in ("home", "island-1"):
        spec = pod(machine, grace=45.5)
        assert spec["terminationGracePeriodSeconds"] == 56
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        (each,) = spec["containers"]
        assert "--grace 45.5" in each["args"][0]
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_resources_go_to_both_and_devices_to_islands() -> None:
    extra = "nodeSelector: {pool: a}\ntolerations:\n- {operator: Exists}\nvolumes: [{name: d, emptyDir: {}}]\n"
    table = LaunchTable(image=IMAGE, cpus=3, memory="4Gi", devices="gpu:4", time="12h", extra=extra)
    for machine in ("home", "island-0"):
        spec = pod(machine, table=table)
        assert spec["containers"][0]["resources"]["requests"] == {"cpu": 3, "memory": "4Gi"}
        assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "a"}, [{"operator": "Exists"}])
        assert [each["name"] for each in spec["volumes"]] == ["work", "launch", "d"]
        assert document(machine, table=table)["spec"]["activeDeadlineSeconds"] == 43200
    assert "limits" not in container("home", table=table)["resources"]
    assert container("island-0", table=table)["resources"]["limits"] == {"nvidia.com/gpu": 4}
    table = LaunchTable(image=IMAGE, devices="example.com/abacus:2")
    assert container("island-0", table=table)["resources"] == {"limits": {"example.com/abacus": 2}}


def test_what_is_printed_is_plain_yaml_of_one_document_a_file() -> None:
    for file in kubernetes.ENGINE.files(request(islands=40, slots_max=40, table=LaunchTable(image=IMAGE))):
        if not file.name.startswith("kubernetes/"):
            continue
        tokens = list(yaml.scan(file.text))
        odd = (yaml.AnchorToken, yaml.AliasToken, yaml.TagToken, yaml.DocumentStartToken)
        assert not [each for each in tokens if isinstance(each, odd)]
        assert "<<" not in file.text
        flows = [each for each in tokens if isinstance(each, yaml.FlowMappingStartToken | yaml.FlowSequenceStartToken)]
        assert len(flows) == file.text.count("{}")


def test_a_request_that_the_home_prepares_is_settled_there(tmp_path: Path) -> None:
    table = LaunchTable(image=IMAGE, on_machines=("/opt",))
    found = {"modules": ("/opt/mine.py",), "is_for_home": True, "table": table}
    (script,) = container("home", **found)["args"]
    assert script.index("settle cluster.toml --islands 2\n") < script.index("isthmus daemon")
    assert "mine.py" not in text("submit.sh", **found)
    assert "settle" not in container("home")["args"][0]


def test_own_code_goes_into_the_config_map_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("here")
    path = str(tmp_path / "mine.py")
    changes: dict[str, object] = {"modules": (path,), "sections": {"run": {"task": f"{path}:task"}}}
    assert 'task = "mine.py:task"' in text("cluster.toml", **changes)
    assert text("mine.py", **changes) == "here"
    for name in ("machine.toml", "island.toml"):
        assert 'modules = ["mine.py"]' in text(name, **changes)
    assert "--from-file=island.toml --from-file=mine.py" in text("submit.sh", **changes)
    assert {"configMap": {"name": "demo"}} in pod("island-0", **changes)["volumes"][1]["projected"]["sources"]
    assert "--config island.toml" in container("island-0", **changes)["args"][0]
    assert "configMap" not in text("kubernetes/island-0.yaml")


def test_secrets_are_made_by_commands_and_printed_nowhere() -> None:
    submit = text("submit.sh", table=LaunchTable(image=IMAGE, namespace="team"), nodes_per_island=2)
    assert "umask 077" in submit
    assert "isthmus invite --count 32 --for island-" in submit
    assert submit.count("kubectl -n team ") == submit.count("kubectl ") - 1  # One stands in a comment.
    assert "kubectl -n team create secret generic demo --from-file=home.key" in submit
    assert "job/demo-island-0-0 job/demo-island-0-1 job/demo-island-1-0 job/demo-island-1-1 " in submit


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({}, "none"),
        ({"image": IMAGE, "partition": "low"}, "'low'"),
        ({"image": IMAGE, "devices": "gpu:a100:8"}, "'gpu:a100:8'"),
        ({"image": IMAGE, "time": "a while"}, "'a while'"),
        ({"image": IMAGE, "files": ("/",)}, "/"),
        ({"image": IMAGE, "extra": "hostname: other"}, '"other"'),
        ({"image": IMAGE, "extra": "volumes: [{name: launch, emptyDir: {}}]"}, '{"name": "launch", "emptyDir": {}}'),
        ({"image": IMAGE, "files": ("cluster.toml",)}, "cluster.toml"),
    ],
)
def test_what_kubernetes_cannot_do_is_refused_before_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: dict[str, Any], found: str
) -> None:
    asked = answers(monkeypatch, lambda words: (0, "", ""))
    faults = list(kubernetes.ENGINE.faults(request(table=LaunchTable(**table)), tmp_path))
    assert [fault.found for fault in faults] == [found]
    assert not asked


def test_files_that_are_too_large_for_a_config_map_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_bytes(b"a" * (1 << 20) + b"\xff")
    table = LaunchTable(image=IMAGE, files=(str(tmp_path / "large.txt"),))
    found = [fault.expected for fault in kubernetes.ENGINE.faults(request(table=table), tmp_path)]
    assert found[:2] == ["a text in UTF-8", "at most 1048576 bytes"]


def test_without_kubectl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kubernetes.shutil, "which", lambda program: None)
    (fault,) = kubernetes.ENGINE.faults(request(table=LaunchTable(image=IMAGE)), tmp_path)
    assert "kubernetes-client" in fault.remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ('Error from server (NotFound): namespaces "team" not found', "kubectl create namespace"),
        ('Error from server (Forbidden): jobs.batch is forbidden: User "guest"', "for that right"),
        ("The connection to the server localhost:8080 was refused", "use-context"),
        ("Error from server (BadRequest): spec.nodeSelector: Invalid value", "Change [launch]"),
    ],
)
def test_a_refusal_of_the_trial_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str, remedy: str
) -> None:
    asked = answers(monkeypatch, lambda words: (1, "", f"{error}\n{error}\n"))
    (fault,) = kubernetes.ENGINE.faults(request(table=LaunchTable(image=IMAGE)), tmp_path)
    assert remedy in fault.remedy
    assert fault.found == error.removeprefix("Error from server ").partition("): ")[2] or error
    assert [words[1:3] for words in asked] == [("apply", "--dry-run=server")]


def test_devices_that_no_node_has_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = json.dumps({"items": [{"status": {"allocatable": {"cpu": "2", "nvidia.com/gpu": "8"}}}]})
    answers(monkeypatch, lambda words: (0, nodes if "nodes" in words else "", ""))
    table = LaunchTable(image=IMAGE, devices="tpu:4")
    assert [fault.found for fault in kubernetes.ENGINE.faults(request(table=table), tmp_path)] == ["google.com/tpu"]
    table = LaunchTable(image=IMAGE, devices="gpu:4")
    assert not list(kubernetes.ENGINE.faults(request(table=table), tmp_path))


def test_objects_of_another_launch_are_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, lambda words: (0, "secret/demo\n" if "secret/demo" in words else "", ""))
    (fault,) = kubernetes.ENGINE.faults(request(table=LaunchTable(image=IMAGE)), tmp_path)
    assert fault.found == "secret/demo"


def test_scale_adds_jobs_that_the_home_owns_and_takes_the_last_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = [{"metadata": {"name": f"demo-{name}"}} for name in ("home", "island-0", "island-1")]
    asked = answers(monkeypatch, lambda words: (0, json.dumps({"items": there}) if "-l" in words else "OWNER", ""))
    note = launch(tmp_path)
    kubernetes.ENGINE.scale(note, 4)
    assert names(tmp_path) == ["claim", "home", "island-0", "island-1", "island-2", "island-3", "service"]
    for number in (2, 3):
        made = yaml.safe_load((tmp_path / f"kubernetes/island-{number}.yaml").read_text())
        assert made == document(f"island-{number}", islands=4)
    applied = [words for words in asked if words[1] == "apply"]
    assert applied == [
        ("kubectl", "apply", *(w for n in (2, 3) for w in ("-f", f"{tmp_path}/kubernetes/island-{n}.yaml")))
    ]
    assert ("kubectl", "patch", "job/demo-island-2", "job/demo-island-3", "-p", "OWNER") in asked
    asked.clear()
    kubernetes.ENGINE.scale(note, 1)
    assert asked[-1] == ("kubectl", "delete", "job", "demo-island-1")
    assert "island-1" not in names(tmp_path)


def test_a_scale_that_is_refused_changes_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, lambda words: (0, '{"items": []}', "") if "-l" in words else (1, "", "forbidden"))
    note = launch(tmp_path)
    with pytest.raises(ConfigError, match="forbidden"):
        kubernetes.ENGINE.scale(note, 3)
    assert names(tmp_path) == ["claim", "home", "island-0", "island-1", "service"]


def test_a_manifest_that_was_changed_is_the_pattern_of_further_islands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers(monkeypatch, lambda words: (0, '{"items": []}', "") if "-l" in words else (0, "", ""))
    note, first = launch(tmp_path), tmp_path / "kubernetes" / "island-0.yaml"
    first.write_text(first.read_text().replace("runAsUser: 1000", "runAsUser: 4000"))
    kubernetes.ENGINE.scale(note, 3)
    assert "runAsUser: 4000" in (tmp_path / "kubernetes" / "island-2.yaml").read_text()
    first.write_text(first.read_text().replace("name: demo-island-0", "name: other"))
    with pytest.raises(ConfigError) as refused:
        kubernetes.ENGINE.scale(note, 4)
    assert "pattern" in refused.value.faults[0].remedy


def test_a_launch_of_fewer_islands_leaves_no_manifest_of_the_former(tmp_path: Path) -> None:
    launch(tmp_path, islands=3)
    (tmp_path / "kubernetes" / "mine.yaml").write_text("# Mine.\n")
    launch(tmp_path, islands=1)
    assert names(tmp_path) == ["claim", "home", "island-0", "mine", "service"]


def test_a_submission_that_is_refused_frees_what_it_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = answers(monkeypatch, lambda words: (1, "", "error: quota") if words[0] == "sh" else (0, "", ""))
    with pytest.raises(ConfigError, match="quota"):
        kubernetes.ENGINE.submit(launch(tmp_path))
    deleted = [words[2] for words in asked if words[1] == "delete"]
    assert deleted == ["job,pod", "secret/demo", "pvc"]
    asked = answers(
        monkeypatch, lambda words: (1, "", "no") if words[0] == "sh" else (0, "persistentvolumeclaim/demo", "")
    )
    with pytest.raises(ConfigError):
        kubernetes.ENGINE.submit(launch(tmp_path))
    assert ("kubectl", "delete", "pvc", "demo", "--ignore-not-found") not in asked


def test_members_are_pods_and_jobs_without_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pod(name: str, status: dict[str, Any], **meta: str) -> dict[str, Any]:
        labels = {"job-name": f"demo-{name}"}
        return {
            "kind": "Pod",
            "metadata": {"name": f"pod-{name}", "labels": labels, **meta},
            "spec": {"nodeName": "n1"},
            "status": status,
        }

    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}], "phase": "Running"}
    reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no gpu"}
    pods = [
        pod("home", {"phase": "Running"}),
        pod("island-0", waiting),
        pod("island-1", {"phase": "Pending", "conditions": [reason]}),
        pod("island-2", {"phase": "Running"}, deletionTimestamp="now"),
    ]
    jobs = [{"kind": "Job", "metadata": {"name": f"demo-island-{number}"}} for number in range(4)]
    answers(monkeypatch, lambda words: (0, json.dumps({"items": [*jobs, *pods]}), ""))
    state = kubernetes.ENGINE.state(launch(tmp_path))
    assert [(machine.name, machine.state) for machine in state.machines] == [
        ("home", "Running"),
        ("island-0", "CrashLoopBackOff"),
        ("island-1", "Unschedulable: no gpu"),
        ("island-2", "leaving"),
        ("island-3", "no pod"),
    ]
    assert (state.has_home, state.outcome) == (True, "")
    assert "kubectl cp pod-home:/isthmus/run runs/demo" in state.keeps
    for condition, outcome in (("Complete", "done"), ("Failed", "failed"), ("Suspended", "")):
        conditions = [{"type": condition, "status": "True"}]
        home = {"kind": "Job", "metadata": {"name": "demo-home"}, "status": {"conditions": conditions}}
        answers(monkeypatch, lambda words, home=home: (0, json.dumps({"items": [home, *jobs, *pods]}), ""))
        assert kubernetes.ENGINE.state(launch(tmp_path)).outcome == outcome


def test_the_claim_of_a_run_that_is_over_is_reached_by_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, lambda words: (0, '{"items": []}', ""))
    told = kubernetes.ENGINE.state(launch(tmp_path, table=LaunchTable(image=IMAGE, namespace="team"))).keeps
    assert f"kubectl -n team apply -f {tmp_path}/copy.yaml && " in told
    assert "kubectl -n team cp demo-copy:/isthmus/run runs/demo" in told
    assert "claimName: demo" in (tmp_path / "copy.yaml").read_text()


def test_down_says_what_it_could_not_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, lambda words: (1, "", "forbidden") if "delete" in words else (0, '{"items": []}', ""))
    with pytest.raises(RunError, match="forbidden"):
        kubernetes.ENGINE.down(launch(tmp_path))
