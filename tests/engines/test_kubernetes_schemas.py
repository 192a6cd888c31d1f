"""What is printed for Kubernetes, by the schemas of its API, strictly, and by the kustomize that is in kubectl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

pytestmark = [pytest.mark.engine, pytest.mark.process]

ISTHMUS: Final = str(Path(sys.executable).with_name("isthmus"))
EXTRA: Final = '''
extra = """
nodeSelector: {pool: spot}
tolerations: [{operator: Exists}]
volumes:
- {name: data, persistentVolumeClaim: {claimName: corpus, readOnly: true}}
containers:
- name: isthmus
  env: [{name: NCCL_DEBUG, value: "1"}]
  resources: {limits: {memory: 64Gi}}
  volumeMounts: [{name: data, mountPath: /data, readOnly: true}]
"""
'''


def printed(folder: Path, more: str, *words: str) -> dict[str, dict[str, Any]]:
    """The documents of what is printed, by file."""
    text = f'[run]\ntokens = 5000\n[launch]\nimage = "r.example/isthmus:1"\n{more}'
    (folder / "strict.toml").write_text(text)
    command = [ISTHMUS, "launch", "kubernetes", "strict.toml", "--print", "--to", "here", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted((folder / "here/kubernetes").iterdir())}


@pytest.mark.parametrize(
    ("more", "words", "count"),
    [
        ("", (), 4),
        ('devices = "gpu:1"\ncpus = 1\nmemory = "1Gi"\ntime = "2h"', ("--nodes-per-island", "2", "--islands", "3"), 9),
        (EXTRA, ("--islands", "2"), 5),
    ],
)
def test_schemas_take_what_is_printed(tmp_path: Path, more: str, words: tuple[str, ...], count: int) -> None:
    import kubernetes_validate  # Of the extra for engines alone; this file is collected without.

    documents = printed(tmp_path, more, *words)
    assert len(documents) == count
    known = kubernetes_validate.utils.all_versions()
    for document in documents.values():
        for version in (known[0], known[-1]):
            kubernetes_validate.validate(document, version, strict=True)
    wrong = documents["home.yaml"]
    wrong["spec"]["template"]["spec"]["tolerationz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, known[-1], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl: apt-get install kubernetes-client")
def test_kustomize_takes_what_is_printed(tmp_path: Path) -> None:
    documents = printed(tmp_path, EXTRA, "--islands", "2")
    folder = tmp_path / "here" / "kubernetes"
    (folder / "kustomization.yaml").write_text(
        "".join(["namePrefix: mine-\nresources:\n", *(f"- {name}\n" for name in documents)])
    )
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    for document in documents.values():
        other = built[document["kind"], f"mine-{document['metadata']['name']}"]
        assert other["spec"].keys() == document["spec"].keys()
    claim = built["Job", "mine-strict-home"]["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]
    assert claim == {"claimName": "mine-strict"}
