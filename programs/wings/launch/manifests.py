"""Manifests as users of Kubernetes write them: plain block YAML, and what a user adds to a pod, merged by name.

Texts are written here without a library, because only lists, mappings and scalars are written; what a user has written
is read by PyYAML. What is merged is a pod's spec: a key that only one side has is taken, lists whose entries have names
are joined by these names, and what contradicts the other side is a fault, but for what `YIELDS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from isthmus.runtime.errors import ConfigError, Fault, shortened

DOING: Final = "Reading launch.extra"
CONTAINER: Final = "isthmus"
"""The name of our container in each pod."""
YIELDS: Final = ("automountServiceAccountToken", "securityContext", f"containers[{CONTAINER}].securityContext")
"""What isthmus does not need: it is the least that a pod has to have, where nobody says otherwise."""
AT_LEAST: Final = ("terminationGracePeriodSeconds",)
"""What may be more."""
OF_KEYS: Final[Mapping[str, str]] = {
    "launch.cpus": "resources.requests.cpu",
    "launch.memory": "resources.requests.memory",
    "launch.devices": "resources.limits",
    "launch.image": "image",
    "--grace": "terminationGracePeriodSeconds",
}
"""Keys of our own by which a user says a thing, and where it is in a pod or its container."""
NAMED: Final[Mapping[str, str]] = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath",
    "volumeDevices": "devicePath", "imagePullSecrets": "name", "hostAliases": "ip",
}  # fmt: skip
"""Lists that are joined, by the key that names an entry, as the API itself joins them."""
_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*", re.ASCII)
_OTHER_THAN_TEXT: Final = frozenset(["y", "yes", "n", "no", "true", "false", "on", "off", "null"])
_INDENT: Final = "  "


def text_of(document: Mapping[str, Any]) -> str:
    """A document in block YAML, without anchors and aliases."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _beneath(f"{_scalar(key)}:", each, _INDENT if isinstance(each, Mapping) else "")
    else:
        for each in value:
            if isinstance(each, Mapping | list | tuple) and each:
                first, *rest = _lines(each)
                yield f"- {first}"
                yield from (f"{_INDENT}{line}".rstrip() for line in rest)
            else:
                yield from _beneath("-", each, "")


def _beneath(head: str, value: Any, indent: str) -> Iterator[str]:
    """What stands behind a key or a dash."""
    if isinstance(value, Mapping | list | tuple) and value:
        yield head
        yield from (f"{indent}{line}".rstrip() for line in _lines(value))
    elif isinstance(value, str) and _is_block(value):
        yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{_INDENT}{line}".rstrip() for line in value.removesuffix("\n").split("\n"))
    else:
        yield f"{head} {_scalar(value)}"


def _is_block(text: str) -> bool:
    """Whether a text of several lines is the same as a block, whose first line sets its indentation."""
    lines = text.removesuffix("\n").split("\n")
    is_plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return len(lines) > 1 and is_plain and bool(lines[0]) and bool(lines[-1]) and not lines[0].startswith(" ")


def _scalar(value: Any) -> str:
    if isinstance(value, bool | int | dict | list | tuple) or value is None:
        return json.dumps(value)
    if isinstance(value, float):  # Without a point YAML 1.1 has no float.
        digits, e, exponent = repr(value).partition("e")
        return f"{digits}{'' if '.' in digits or not e else '.0'}{e}{exponent}"
    text = str(value)  # A date, too, of which YAML makes a value of its own.
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_THAN_TEXT:
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return {"\n": "\\n", "\t": "\\t"}.get(letter, f"\\U{ord(letter):08X}")


def read_extra(text: str) -> dict[str, Any]:
    """What a user adds to the spec of each pod; ConfigError if it is no mapping in YAML, or nothing here reads YAML."""
    if not text.strip():
        return {}
    try:
        import yaml
    except ModuleNotFoundError:
        do = "Install it: pip install 'isthmus[kubernetes]', or pip install pyyaml."
        raise ConfigError(DOING, "PyYAML, which reads it", "none", do) from None
    do = "Write keys of a pod's spec, such as `volumes:` and `containers:`, as in docs/how-to/kubernetes.md."
    try:
        found = yaml.load(text, _loader(yaml))
    except yaml.YAMLError as error:
        raise ConfigError(DOING, "YAML", " ".join(str(error).split()), do) from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(DOING, "a mapping, the spec of a pod", shortened(repr(found), 200), do)
    return found


def _loader(yaml: Any) -> Any:
    """A safe loader that refuses what is there twice: of two values of a key YAML has the last one, unseen."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := next((key for key in keys if isinstance(key, str) and keys.count(key) > 1), None):
                raise yaml.constructor.ConstructorError(None, None, f"{twice!r} is there twice", node.start_mark)
            return super().construct_mapping(node, deep=deep)

    return Loader


def with_extra(pod: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a pod with what a user adds to it; ConfigError with all that contradicts it."""
    faults = list[Fault]()
    joined: dict[str, Any] = _joined(pod, extra, "", faults)
    if faults:
        raise ConfigError.of(faults)
    return joined


def _joined(ours: Any, theirs: Any, path: str, faults: list[Fault]) -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        both = {key: _joined(ours[key], theirs[key], _of(path, key), faults) for key in ours if key in theirs}
        return {**ours, **theirs, **both}
    name = path.rpartition(".")[2]
    if isinstance(ours, list) and isinstance(theirs, list) and name in NAMED:
        return _joined_by_name(ours, theirs, path, faults)
    if ours == theirs or str(ours) == str(theirs) or _yields(path):  # A core is 1 and "1".
        return theirs
    if path in AT_LEAST and type(theirs) is int and theirs >= ours:
        return theirs
    faults.append(_contradiction(path, ours, theirs))
    return ours


def _joined_by_name(ours: Sequence[Any], theirs: Sequence[Any], path: str, faults: list[Fault]) -> list[Any]:
    """Both lists, ours first. Of entries of one name only containers are joined: two volumes are none."""
    key = NAMED[path.rpartition(".")[2]]
    if nameless := [each for each in theirs if not (isinstance(each, Mapping) and isinstance(each.get(key), str))]:
        do = f"Name it; the container of isthmus is {CONTAINER!r}." if key == "name" else f"Give it a {key}."
        faults.append(Fault(f"{DOING}, {path}", f"entries with a {key}", shortened(repr(nameless[0]), 200), do))
        return list(ours)
    names = [each[key] for each in theirs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        faults.append(Fault(f"{DOING}, {path}", f"each {key} once", repr(twice), "Leave one of them out."))
        return list(ours)
    given, joined = dict(zip(names, theirs, strict=True)), list[Any]()
    for entry in ours:
        where, other = f"{path}[{entry[key]}]", given.pop(entry[key], entry)
        if path in ("containers", "initContainers"):
            joined.append(_joined(entry, other, where, faults))
            continue
        if other != entry:
            faults.append(_contradiction(where, entry, other))
        joined.append(entry)
    return [*joined, *given.values()]


def _contradiction(path: str, ours: Any, theirs: Any) -> Fault:
    what = f"{path.rpartition('].')[2]}."
    key = next((key for key, begin in OF_KEYS.items() if what.startswith(f"{begin}.")), None)
    do = "Leave it out, or give yours another name." if key is None else f"Leave it out: it is {key} that says so."
    return Fault(f"{DOING}, {path}", f"{_short(ours)}, which isthmus needs", _short(theirs), do)


def _short(value: Any) -> str:
    return shortened(json.dumps(value, default=str), 120)


def _of(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)


def _yields(path: str) -> bool:
    return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in YIELDS)
