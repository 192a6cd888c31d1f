"""The tokens trained and merged by the tapes of hosts, counted apart from every report, and compared with the books.

A tape has each firing and the fields of items that cores and this count read (`noted` of a body); it has no payload. A
batch that a firing of the learner took is a step, unless that firing ended idle: a learner that learns at a boundary
that no more steps are needed leaves the batch, and reports so in that same firing. A merge has the tokens of the
answers that its round received, by the ranges with which they arrived. So nothing here is another component's sum.

The tape of a life that was killed lacks its last half second; of such a life only the part on the tape must agree with
the books. A tape that lacks records before those that are there (the oldest segments are deleted) cannot be counted: it
is named, and nothing that needs it is compared. Does not read files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from isthmus.programs.engine.recorder.accounts import Life
from isthmus.runtime.cores.scheduler_events import FiringEnded, HostRecord, ItemArrived, ItemsEmitted, Output, RunBody
from isthmus.runtime.graph.plans import NodePlan, Plan
from isthmus.runtime.ids import LEARNER, Handle, Member, Replica
from isthmus.runtime.tape.reading import Reading, read

STEP: Final = "inner-step"
MERGE: Final = "merge"
BALLOT: Final = "ballot"
"""Closes rounds, where `merge` does not."""
OUTER_STEP: Final = "outer-step"
Round: TypeAlias = tuple[int, int, int]
"""(fragment, epoch, round)."""


@dataclass(slots=True)
class Taped:
    """Counts from tapes.

    `steps` of each life of a learner, and those that it `reported` last; the kind of each round that made a version,
    and in `merged` the tokens that it merged of each life. `uncounted` are the learners and shards whose tapes lack
    records.
    """

    steps: Counter[Life] = field(default_factory=Counter)
    reported: dict[Life, int] = field(default_factory=dict)
    kinds: dict[Round, str] = field(default_factory=dict)
    merged: dict[Round, Counter[Life]] = field(default_factory=dict)
    uncounted: list[Member] = field(default_factory=list)

    @property
    def has_every_merge(self) -> bool:
        """Whether the tapes of all shards could be counted."""
        return all(member.replica.role == LEARNER for member in self.uncounted)


def taped_of(plans: Mapping[str, Plan], tapes: Mapping[Member, Reading]) -> Taped:
    """The counts from the tapes of lives, without torn records at their ends."""
    taped = Taped()
    for member, tape in sorted(tapes.items()):
        if member.replica.role in plans:
            _count(taped, plans[member.replica.role], member, tape)
    return taped


def of_lives(tapes: Mapping[str, bytes]) -> dict[Member, Reading]:
    """The tapes of lives in memory, by their names: 'learner/2#1' (or 'learner/2', the first). Those of other things
    are left out."""
    readings = {}
    for name, data in tapes.items():
        replica, _, incarnation = name.partition("#")
        role, _, slot = replica.partition("/")
        if slot.isdecimal() and (incarnation or "1").isdecimal():
            readings[Member(Replica(role, int(slot)), int(incarnation or 1))] = read(data, HostRecord)
    return readings


def _count(taped: Taped, plan: Plan, member: Member, tape: Reading) -> None:
    """Add the counts of one life's tape."""
    nodes = {node.name: node for node in plan.nodes}
    has_steps = STEP in nodes and "report" in nodes[STEP].body.outputs
    has_merges = MERGE in nodes and OUTER_STEP in nodes
    if tape.missing and (has_steps or has_merges):
        taped.uncounted.append(member)
    elif has_steps:
        _count_steps(taped, nodes[STEP], (member.replica.slot, member.incarnation), tape.records)
    elif has_merges:
        _count_merges(taped, plan, nodes.get(BALLOT, nodes[MERGE]), nodes[OUTER_STEP], tape.records)


def _count_steps(taped: Taped, node: NodePlan, life: Life, records: Sequence[HostRecord]) -> None:
    batch = [port.name for port in node.inputs].index("batch")
    report = [port.name for port in node.outputs].index("report")
    has_batch = False
    for record in records:
        if isinstance(record.event, FiringEnded) and record.event.node == node.index:
            steps = [
                output.fields["step"] for output in record.event.outputs if output.port == report and output.fields
            ]
            left = record.event.is_idle and steps and steps[-1] == taped.steps[life]
            taped.steps[life] += has_batch and not left
            if steps:
                taped.reported[life] = steps[-1]
        for command in record.commands:
            if isinstance(command, RunBody) and command.node == node.index:
                has_batch = batch in dict(command.inputs)


def _count_merges(taped: Taped, plan: Plan, merge: NodePlan, outer: NodePlan, records: Sequence[HostRecord]) -> None:
    names = [port.name for port in merge.inputs]
    opening, votes = names.index("round"), names.index("answer")
    entering = {edge.index for edge in plan.edges.values() if edge.target == merge.index}
    answers: dict[Handle, tuple[Life, Mapping[str, Any]]] = {}
    openings: dict[Handle, Mapping[str, Any]] = {}
    rounds: dict[int, dict[int, Counter[Life]]] = {}
    for record in records:
        event = record.event
        if isinstance(event, ItemArrived) and event.edge in entering and event.fields:
            answers[event.handle] = (event.source.replica.slot, event.source.incarnation), event.fields
        for output in _outputs(record):
            if output.fields and "round" in output.fields:
                openings[output.handle] = output.fields
        if isinstance(event, FiringEnded) and event.node == outer.index:
            for output in event.outputs:
                if output.fields and output.fields.get("version"):
                    _take(taped, output.fields, rounds.get(output.fields["round"], {}))
        for command in record.commands:
            if isinstance(command, RunBody) and command.node == merge.index:
                inputs = dict(command.inputs)
                [(_, _, handle)] = inputs[opening]
                voted = rounds[openings[handle]["round"]] = {}
                for _, _, vote in inputs.get(votes, ()):
                    life, answer = answers[vote]
                    voted[life[0]] = Counter(tokens_of(life, answer))


def tokens_of(life: Life, answer: Mapping[str, Any]) -> dict[Life, int]:
    """The tokens in an answer of a life, by life: it may have gone on with work of those before it, or be a region."""
    if "work" in answer:
        tokens: Counter[Life] = Counter()
        for slot, incarnation, begin, end, _ in answer["work"]:
            tokens[slot, incarnation] += end - begin
        return tokens
    former = {(life[0], of): end - begin for of, begin, end, _ in answer.get("former", ())}
    return {life: answer["end"] - answer["begin"], **former}


def _outputs(record: HostRecord) -> tuple[Output, ...]:
    return record.event.outputs if isinstance(record.event, FiringEnded | ItemsEmitted) else ()


def _take(taped: Taped, merging: Mapping[str, Any], votes: Mapping[int, Counter[Life]]) -> None:
    key = merging["fragment"], merging["epoch"], merging["round"]
    taped.kinds[key] = merging["kind"]
    if merging["kind"] in ("merge", "final"):
        merged = sum((votes[slot] for slot in merging["voters"] if slot in votes), Counter[Life]())
        taped.merged[key] = merged


# -- compared with the books -------------------------------------------------------------------------------------------


def contradictions(taped: Taped, summary: Mapping[str, Any], merges: Iterable[Mapping[str, Any]]) -> list[str]:
    """Contradictions, in words, of `summary` and the lines of merges.jsonl with the tapes; none in a sound run.

    Equal have to be: the steps of a learner whose last report was final; for each merge on a tape, the tokens of each
    life in the fragment after it; for a fragment whose shard never died, the tokens of each life in the model; and if
    none died, the count of merges. The last two are checked only if the tapes of all shards could be counted.
    """
    of_model = [*_of_model(taped, summary["books"]["fragments"]), *_of_merges(taped, summary)]
    return [
        *_of_steps(taped, summary["books"]["lives"]),
        *_of_lines(taped, merges),
        *(of_model if taped.has_every_merge else []),
    ]


def _of_steps(taped: Taped, lives: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for row in lives:
        life, steps = (row["learner"], row["incarnation"]), row["steps"]
        if taped.reported.get(life, 0) > taped.steps[life]:
            yield f"learner {_name(life)}: {taped.reported[life]} steps reported, {taped.steps[life]} on its tape"
        if life in taped.reported and row["is_final"] and taped.steps[life] != steps:
            yield f"learner {_name(life)}: {steps} steps in the books, {taped.steps[life]} on its tape"


def _of_lines(taped: Taped, merges: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Compare the merged tokens in each line of a merge with the sum on the tape."""
    sums: dict[tuple[int, int], Counter[Life]] = {}
    lines = {(line["fragment"], line["epoch"], line["round"]): line["merged_tokens"] for line in merges}
    for key in sorted(taped.merged):
        merged = sums.setdefault(key[:2], Counter())
        merged.update(taped.merged[key])
        if key in lines and merged != (in_line := _by_life(lines[key])):
            place = f"fragment {key[0]}, epoch {key[1]}, round {key[2]}"
            yield f"{place}: merged {_shown(in_line)}, {_shown(merged)} on tape"


def _of_model(taped: Taped, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Compare the tokens in the model, for fragments that a single life of a shard made."""
    reborn = {fragment for fragment, epoch, _ in taped.kinds if epoch > 1}
    model: Counter[tuple[int, Life]] = Counter()
    for (fragment, _, _), merged in taped.merged.items():
        model.update({(fragment, life): tokens for life, tokens in merged.items()})
    for entry in entries:
        fragment, life = entry["fragment"], (entry["learner"], entry["incarnation"])
        if fragment not in reborn and entry["shard_merged"] != model[fragment, life]:
            amounts = f"{entry['shard_merged']} tokens in the books, {model[fragment, life]} on tape"
            yield f"fragment {fragment} of learner {_name(life)}: {amounts}"


def _of_merges(taped: Taped, summary: Mapping[str, Any]) -> Iterator[str]:
    count = sum(kind == "merge" for kind in taped.kinds.values())
    is_known = summary["outer_steps"] is not None and all(epoch == 1 for _, epoch, _ in taped.kinds)
    if is_known and taped.kinds and count != summary["outer_steps"]:
        yield f"{summary['outer_steps']} merges in the books, {count} on the tapes of the shards"


def _by_life(rows: Iterable[Sequence[int]]) -> Counter[Life]:
    return Counter({(slot, incarnation): tokens for slot, incarnation, tokens in rows if tokens})


def _shown(merged: Mapping[Life, int]) -> str:
    return ", ".join(f"{tokens} of {_name(life)}" for life, tokens in sorted(merged.items())) or "nothing"


def _name(life: Life) -> str:
    return f"{life[0]}#{life[1]}"
