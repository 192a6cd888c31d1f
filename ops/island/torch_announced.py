"""The module and the optimizers that a loop in PyTorch has announced, compared with those that it has at a boundary.

Decides which change ends the run: of a leaf's place, form or `requires_grad`, of the values of a frozen one, of the
parameters in an optimizer's groups; and a step by an optimizer that was not passed. A parameter that a rule of `merge`
names may be frozen and trained in turn, because it takes part either way. A module may replace its local leaves: the
new ones are followed.

Every boundary pays for it. So it compares lists of identities, versions and addresses, which C code makes, and looks
more closely only where one differs: 0.12 ms for 300 parameters and 150 buffers (`tests/bench/long/bench_announced.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from posixpath import commonpath
from typing import Any, Final, final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from isthmus.ops.exchange.frozen_leaves import Digests, digest_of
from isthmus.ops.exchange.merge_rules import FROZEN, LOCAL
from isthmus.ops.exchange.parameter_trees import first_match
from isthmus.ops.island.announced import FrozenLeaves, Unannounced, changed_values, leaves_in_words
from isthmus.ops.island.torch_device import array_in
from isthmus.ops.island.torch_model import Model, OptimizerState, array_of, is_named, own_part

RULES_SHOWN_MAX: Final = 4
"""Rules of `merge` that a message writes out."""
_requires_grad: Final = attrgetter("requires_grad")
_form: Final = attrgetter("dtype", "device", "shape")


@final
class AnnouncedModule:
    """A module, as `Model` has read it, and its optimizers, from `watch` to `unwatch`.

    In an island of several ranks each rank compares what it has, by itself: all ranks run one script.
    """

    def __init__(self, model: Model, moments: OptimizerState) -> None:
        self._model, self._moments = model, moments
        self.frozen = FrozenLeaves(self._own_digests)
        self._versions = _versions(model.frozen.values())
        self._watched = [leaf for path, leaf in model.leaves.items() if path not in model.local]
        self._switched = [
            leaf
            for path, leaf in model.leaves.items()
            if isinstance(leaf, torch.nn.Parameter)
            and path not in model.local
            and not (path in model.merged and is_named(model.rules, path))
        ]
        self._requires_grad = list(map(_requires_grad, self._switched))
        self._forms = list(map(_form, self._watched))
        self._addresses = _addresses(self._watched)
        self._groups = [_parameters(each) for each in moments.optimizers]
        self._group_ids = [list(map(id, each)) for each in self._groups]
        self._stranger: tuple[str, list[str]] | None = None
        self._hook: Any = None
        self._note_places()

    def watch(self) -> None:
        """Notice the steps of all optimizers in this process."""
        self._hook = register_optimizer_step_post_hook(self._on_step)

    def unwatch(self) -> None:
        """Notice them no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def after_boundary(self) -> None:
        """Forget what was noticed at a boundary, at which the user's evaluation may do as it likes."""
        self._stranger = None

    def after_step(self) -> Unannounced | None:
        """The first difference after a step of the loop; None if there is none."""
        return (
            self._place_change()
            or self._switch_change()
            or self._form_change()
            or self._frozen_change()
            or self._optimizer_change()
        )

    # -- where the module has its leaves -------------------------------------------------------------------------------

    def _note_places(self) -> None:
        """Note what each part of the module has, and where."""
        parts = list(self._model.module.modules())
        dicts = [each for part in parts for each in (part._parameters, part._buffers, part._modules)]
        self._filled, self._empty = [each for each in dicts if each], [each for each in dicts if not each]
        self._views = [each.values() for each in self._filled]
        self._things = list(chain.from_iterable(self._views))  # Kept, so that no id comes again.
        self._ids = list(map(id, self._things))

    def _place_change(self) -> Unannounced | None:
        ids, has_more = list(map(id, chain.from_iterable(self._views))), any(self._empty)
        if ids == self._ids and not has_more:
            return None
        if len(ids) == len(self._ids) and not has_more and self._has_followed(ids):
            return None
        return self._leaf_change()

    def _has_followed(self, ids: Sequence[int]) -> bool:
        """Whether only local leaves were replaced; they are followed then."""
        places = [(tensors, name) for tensors in self._filled for name in tensors]
        replaced = [number for number, (one, other) in enumerate(zip(ids, self._ids, strict=True)) if one != other]
        paths = self._model.paths
        if any(paths.get(self._ids[number]) not in self._model.local for number in replaced):
            return False
        for number in replaced:
            tensors, name = places[number]
            self._follow(paths[self._ids[number]], tensors[name])
            self._things[number], self._ids[number] = tensors[name], ids[number]
        return True

    def _follow(self, path: str, tensor: Any) -> None:
        """Go on with another tensor as a local leaf; what has another form would fit no state of this slot."""
        if isinstance(tensor, torch.Tensor) and _form(tensor) == _form(self._model.leaves[path]):
            self._model.follow(path, tensor)

    def _leaf_change(self) -> Unannounced | None:
        """The first leaf that was replaced, taken away or added; if only local ones were, all is noted anew."""
        announced, now, local = self._model.leaves, self._model.leaves_now(), self._model.local
        replaced = [path for path, leaf in announced.items() if path in now and now[path] is not leaf]
        if paths := [path for path in replaced if path not in local]:
            return Unannounced(
                "place",
                tuple(paths),
                f"the module's own {leaves_in_words(paths)}, as before the with",
                "another tensor in its place",
                "Replace parts of the module before isthmus.island(...), and make the optimizer after that; in the "
                "loop change only the values of its tensors, as by copy_().",
            )
        if paths := [path for path in announced if path not in now and path not in local]:
            expected, do = f"the module's {leaves_in_words(paths)}", "Take parts away before isthmus.island(...)."
            return Unannounced("place", tuple(paths), expected, "none", do)
        kinds = self._model.kinds_now() if now.keys() - announced.keys() else {}
        if paths := [path for path in now if path not in announced and kinds[path] != LOCAL]:
            return Unannounced(
                "place",
                tuple(paths),
                "the leaves that the module had before the with",
                f"{leaves_in_words(paths)} beside them",
                "Add parts to the module before isthmus.island(...): fragments are fixed when a run starts. What is "
                'not to be merged has the rule "local" or "frozen" in merge=.',
            )
        for path in replaced:
            self._follow(path, now[path])
        self._note_places()
        return None

    # -- what is trained -----------------------------------------------------------------------------------------------

    def _switch_change(self) -> Unannounced | None:
        now = list(map(_requires_grad, self._switched))
        if now == self._requires_grad:
            return None
        pairs = zip(self._switched, now, self._requires_grad, strict=True)
        paths = self._paths(each for each, one, other in pairs if one != other)
        was = "trained" if paths[0] in self._model.merged else "frozen"
        paths = [path for path in paths if (path in self._model.merged) == (was == "trained")]
        if was == "frozen" and first_match(self._model.rules, paths[0]) == FROZEN:
            do = 'Give it another rule than "frozen" by merge=.'
        else:
            do = f'Name it by {self._merge_with(paths)}: what a rule but "**" names takes part while it is frozen, too.'
        is_now = "trained (requires_grad=True)" if was == "frozen" else "frozen (requires_grad=False)"
        expected, found = f"{leaves_in_words(paths)} {was}, as before the with", f"{is_now} in the midst"
        return Unannounced("requires-grad", tuple(paths), expected, found, do)

    def _merge_with(self, paths: Sequence[str]) -> str:
        """The argument by which these leaves are named."""
        rules = self._model.rules
        named = {pattern: first_match(rules, paths[0]) for pattern in patterns_of(paths)}
        every = list((named | {pattern: kind for pattern, kind in rules if pattern not in named}).items())
        shown = ", ".join(f'"{pattern}": "{kind}"' for pattern, kind in every[:RULES_SHOWN_MAX])
        return f"merge={{{shown}{', ...' if len(every) > RULES_SHOWN_MAX else ''}}}"

    def _form_change(self) -> Unannounced | None:
        addresses = _addresses(self._watched)
        if addresses == self._addresses and addresses:
            return None
        forms = list(map(_form, self._watched))
        self._addresses = addresses
        for leaf, one, other in zip(self._watched, forms, self._forms, strict=True):
            if one != other:
                path, do = self._model.paths[id(leaf)], "Convert and move the module before isthmus.island(...)."
                return Unannounced("form", (path,), f"{path!r} {_form_in_words(*other)}", _form_in_words(*one), do)
        return None

    def _frozen_change(self) -> Unannounced | None:
        versions = _versions(self._model.frozen.values())
        if versions != self._versions:
            announced = dict(self.frozen.announced)
            pairs = zip(self._model.frozen.items(), versions, self._versions, strict=True)
            written = [(path, leaf) for (path, leaf), one, other in pairs if one != other]
            # They may have been written as they were, as by one who evaluates an average, and restores them.
            if change := changed_values([path for path, leaf in written if _own_digest(leaf) != announced[path]]):
                return change
            self._versions = versions
        return self.frozen.after_step()

    def _own_digests(self) -> Digests:
        """The digests of what this process has of the frozen leaves."""
        return tuple(sorted((path, _own_digest(leaf)) for path, leaf in self._model.frozen.items()))

    # -- by what ------------------------------------------------------------------------------------------------------

    def _optimizer_change(self) -> Unannounced | None:
        for optimizer, announced, ids in zip(self._moments.optimizers, self._groups, self._group_ids, strict=True):
            now = _parameters(optimizer)
            if list(map(id, now)) != ids:
                return self._group_change(type(optimizer).__name__, announced, now)
        if self._stranger is None:
            return None
        name, paths = self._stranger
        passed = ", ".join(type(each).__name__ for each in self._moments.optimizers)
        return Unannounced(
            "optimizer",
            tuple(paths),
            f"steps of what was passed to isthmus.island: {passed}",
            f"a step of another optimizer, {name}, on {leaves_in_words(paths)}",
            "Make every optimizer before isthmus.island(model, [one, other]), and pass all of them. To forget the "
            "state of one in the loop, call optimizer.state.clear().",
        )

    def _group_change(self, name: str, announced: Sequence[Any], now: Sequence[Any]) -> Unannounced:
        former, present = set(map(id, announced)), set(map(id, now))
        added = [each for each in now if id(each) not in former]
        gone = [each for each in announced if id(each) not in present]
        found = f"{self._parameters_in_words(added or gone)} {'beside them' if added else 'no more'}"
        return Unannounced(
            "groups",
            tuple(self._paths(added or gone)),
            f"in the groups of {name} the parameters that were passed",
            found if added or gone else "them in another order",
            "Pass the optimizer with all of its groups: its step leaves out what has no gradient. A new head is made, "
            "and added to the module, before isthmus.island(...).",
        )

    def _parameters_in_words(self, parameters: Sequence[Any]) -> str:
        if paths := self._paths(parameters):
            return leaves_in_words(paths)
        return f"a parameter {_form_in_words(*_form(parameters[0]))}, which is not the module's,"

    def _on_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self._stranger is None and not self._is_passed(optimizer):
            paths = [path for path in self._paths(_parameters(optimizer)) if path not in self._model.local]
            self._stranger = (type(optimizer).__name__, paths) if paths else None

    def _is_passed(self, optimizer: Any) -> bool:
        """Whether an optimizer is one that was passed, or one of those that wrap each other as one."""
        return any(_are_one(optimizer, each) for each in self._moments.optimizers)

    def _paths(self, leaves: Iterable[Any]) -> list[str]:
        """The paths of those that are leaves of the module."""
        return [self._model.paths[id(each)] for each in leaves if id(each) in self._model.paths]


def _are_one(optimizer: Any, other: Any) -> bool:
    if optimizer is other or optimizer.state is other.state or optimizer.param_groups is other.param_groups:
        return True
    pairs = (optimizer, other), (other, optimizer)
    return any(part is inner for outer, inner in pairs for part in vars(outer).values())


def patterns_of(paths: Sequence[str]) -> list[str]:
    """Patterns that match these paths, as few as there are folders that have them in common."""
    if len(paths) == 1:
        return list(paths)
    if shared := commonpath([path.rpartition("/")[0] for path in paths]):
        return [f"{shared}/**"]
    tops = dict.fromkeys(path.partition("/")[::2] for path in paths)
    return list(dict.fromkeys(f"{top}/**" if rest else top for top, rest in tops))


def shared_memory(leaves: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first two leaves that share memory, of those that fill what they span; None without any. What is merged of
    one would be written over by the other."""
    spans = list[tuple[int, int, str]]()
    for path, leaf in leaves.items():
        own = own_part(leaf)
        if own.layout != torch.strided or not own.numel() or not own.data_ptr():
            continue
        span = 1 + sum((size - 1) * stride for size, stride in zip(own.shape, own.stride(), strict=True))
        if span == own.numel():
            spans.append((own.data_ptr(), own.data_ptr() + span * own.element_size(), path))
    spans.sort()
    pairs = pairwise(spans)
    return next(((later, former) for (_, end, former), (begin, _, later) in pairs if begin < end), None)


def _parameters(optimizer: Any) -> list[Any]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _addresses(leaves: Sequence[Any]) -> list[int]:
    """Where the values of leaves lie, which an assignment to `.data` changes; 0 of shards, which hide it."""
    try:
        return list(map(torch.Tensor.data_ptr, leaves))
    except RuntimeError:
        return []


def _versions(leaves: Iterable[Any]) -> list[int]:
    """How often leaves were written, as autograd counts it; none of leaves of which it does not."""
    try:
        return [leaf._version for leaf in leaves]
    except RuntimeError:
        return []


def _own_digest(leaf: Any) -> str:
    own = own_part(leaf)
    return digest_of(array_in(own.contiguous()) if own.device.type == "cpu" else array_of(own))


def _form_in_words(dtype: Any, device: Any, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
