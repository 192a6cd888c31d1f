"""Manifests as text, and what a user adds to a pod: joined by name, or refused by name."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.programs.wings.launch import manifests
from isthmus.programs.wings.launch.manifests import read_extra, text_of, with_extra
from isthmus.runtime.errors import ConfigError
from tests.effort import examples

POD: dict[str, Any] = {
    "terminationGracePeriodSeconds": 30,
    "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
    "volumes": [{"name": "work", "emptyDir": {}}],
    "containers": [
        {
            "name": "isthmus",
            "image": "r/i:1",
            "args": ["run"],
            "env": [{"name": "HOME", "value": "/isthmus"}],
            "resources": {"requests": {"cpu": 3}},
            "volumeMounts": [{"name": "work", "mountPath": "/isthmus"}],
        }
    ],
}
TEXTS = st.text() | st.sampled_from(
    ["yes", "0440", "1e3", "a: b", "- a", "a\nb\n", "a\n\n b", "# a", "&a", "*a", "~", "1_0"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
@settings(max_examples=examples(2000), deadline=None)
def test_what_is_written_is_read_again(document: dict[str, Any]) -> None:
    assert yaml.safe_load(text_of(document)) == document or not document


def test_a_text_has_no_anchors_and_lists_stand_in_blocks() -> None:
    shared = {"a": ["x y", "true", {"b": {}, "c": "one\ntwo\n"}]}
    assert text_of({"first": shared, "second": shared}).splitlines()[:9] == [
        "first:",
        "  a:",
        '  - "x y"',
        '  - "true"',
        "  - b: {}",
        "    c: |",
        "      one",
        "      two",
        "second:",
    ]


def test_what_a_user_adds_is_joined_by_name() -> None:
    extra = read_extra(
        "nodeSelector: {pool: spot}\n"
        "securityContext: {runAsUser: 2000}\n"
        "terminationGracePeriodSeconds: 60\n"
        "volumes: [{name: data, hostPath: {path: /data}}]\n"
        "containers:\n"
        "- {name: proxy, image: p}\n"
        "- name: isthmus\n"
        "  imagePullPolicy: Always\n"
        "  env: [{name: A, value: '1'}]\n"
        "  resources: {requests: {cpu: '3', memory: 4Gi}, limits: {memory: 8Gi}}\n"
        "  volumeMounts: [{name: data, mountPath: /data}]\n"
    )
    pod = with_extra(POD, extra)
    assert [each["name"] for each in pod["volumes"]] == ["work", "data"]
    assert pod["securityContext"] == {"runAsUser": 2000, "fsGroup": 1000}
    assert (pod["nodeSelector"], pod["terminationGracePeriodSeconds"]) == ({"pool": "spot"}, 60)
    ours, proxy = pod["containers"]
    assert proxy == {"name": "proxy", "image": "p"}
    assert (ours["image"], ours["imagePullPolicy"], ours["args"]) == ("r/i:1", "Always", ["run"])
    assert [each["name"] for each in ours["env"]] == ["HOME", "A"]
    assert [each["mountPath"] for each in ours["volumeMounts"]] == ["/isthmus", "/data"]
    assert ours["resources"] == {"requests": {"cpu": "3", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}


@pytest.mark.parametrize(
    ("extra", "where", "remedy"),
    [
        ("volumes: [{name: work, hostPath: {path: /a}}]", "volumes[work]", "another name"),
        ("volumes: [{emptyDir: {}}]", "volumes", "Name it"),
        ("volumes: [{name: a}, {name: a}]", "volumes", "Leave one"),
        ("volumes: 3", "volumes", "Leave it out"),
        ("terminationGracePeriodSeconds: 5", "terminationGracePeriodSeconds", "--grace"),
        ("containers: [{image: x}]", "containers", "'isthmus'"),
        ("containers: [{name: isthmus, image: x}]", "containers[isthmus].image", "launch.image"),
        ("containers: [{name: isthmus, args: [x]}]", "containers[isthmus].args", "Leave it out"),
        ("containers: [{name: isthmus, env: [{name: HOME, value: /}]}]", "containers[isthmus].env[HOME]", "another"),
        (
            "containers: [{name: isthmus, resources: {requests: {cpu: 4}}}]",
            "containers[isthmus].resources.requests.cpu",
            "launch.cpus",
        ),
        (
            "containers: [{name: isthmus, volumeMounts: [{name: x, mountPath: /isthmus}]}]",
            "containers[isthmus].volumeMounts[/isthmus]",
            "Leave it out",
        ),
    ],
)
def test_what_contradicts_a_pod_is_refused_by_name(extra: str, where: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_extra(POD, read_extra(extra))
    (fault,) = refused.value.faults
    assert fault.action == f"Reading launch.extra, {where}"
    assert remedy in fault.remedy


@pytest.mark.parametrize("extra", ["a: [", "- a", "3", "a: 1\na: 2", "? [a]\n: b", "!!python/object:os.system {}"])
def test_what_is_no_mapping_in_yaml_is_refused(extra: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_extra(extra)
    assert refused.value.faults[0].action == "Reading launch.extra"


def test_without_a_reader_of_yaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name)
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert read_extra(" \n") == {}
    with pytest.raises(ConfigError) as refused:
        read_extra("a: 1")
    assert "isthmus[kubernetes]" in refused.value.faults[0].remedy
    assert manifests.text_of({"a": 1}) == "a: 1\n"
