"""What the lines of the steps on a GPU come to: gpu.json, a page, and the places in the documents that say it.

    python -m tests.bench.gpu_figures [DIR/gpu.json]    # keeps its figures, and writes all kept ones into the documents

What is kept is a file of each card in `tests/bench/devices`, the only place of these figures: the pages of `PLACES`
have what it says, and `tests/test_on_a_gpu.py` holds them to that.

Every figure is a median with its range and how many there were, and null where it was not measured: a step that was not
reached, or a counter that the device does not have. Figures of a CPU (`--tiny`) are never written into a document.
This module needs nothing but Python's standard library, except to draw the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.gpu_machine import ROOT, RefusedError, commit, sources
from tests.bench.observed import lines_of

LINES: Final = "gpu.jsonl"
JSON: Final = "gpu.json"
PAGE: Final = "gpu.html"
MACHINE: Final = "machine"
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "learner": ("bare_steps_per_second", "steps_per_second", "ratio"),
    "torch": ("bare_steps_per_second", "steps_per_second", "ratio"),
    "memory": ("graph_bytes", "predicted_bytes", "measured_bytes", "ratio"),
    "kill": (
        "first_merge_seconds",
        "next_round_seconds",
        "started_again_seconds",
        "merged_again_seconds",
        "merged_share",
        "contributors_mean",
        "outer_steps",
        "goodput",
        "loss_first",
        "loss_last",
    ),
}
FORMATS: Final = ("float32", "bf16", "int8", "int4", "int2", "int1")
OF_FORMAT: Final = ("values", "bytes", "device_ms", "cpu_ms", "other_bytes_share", "other_scales_share", "scales_off")
CELLS: Final[Mapping[str, tuple[str, ...]]] = {
    "line": ("data-parallel", "M=1", "M=2", "M=4"),
    "long": ("data-parallel", "M=4"),
}
OF_CELL: Final = ("loss", "gap", "gap_percent", "published_percent", "tokens_per_second")
STEPS: Final = ("learner", "torch", "kill", "memory", "exchange", "line", "long")
IN_WORDS: Final[Mapping[str, str]] = {
    "learner": "the steps of a learner beside its bare loop",
    "torch": "those of a learner in PyTorch",
    "memory": "peak memory",
    "exchange": "a fragment in each format",
    "kill": "a learner that is killed",
    "line": "losses at 4.9 million parameters",
    "long": "losses at 26 million parameters",
}
"""What each step measures."""
NOT_REACHED: Final = "not reached"
LACKS: Final = "not installed"
"""The state of a step whose framework is not there."""
_OF_MACHINE: Final = ("card", "memory_bytes", "driver", "cores", "python", "versions", "commit", "sources", "is_tiny")


# -- figures -----------------------------------------------------------------------------------------------------------


def figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All of gpu.json, from the lines so far; of a step that was carried out again, from the newest time."""
    machines = [line for line in lines if line["step"] == MACHINE]
    newest = machines[-1] if machines else {}
    return {
        **{name: newest.get(name) for name in _OF_MACHINE},
        "at": newest.get("at"),
        "minutes": newest.get("minutes"),
        "steps": {step: _step(step, [line for line in lines if line["step"] == step]) for step in STEPS},
    }


def _step(step: str, lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    begun = [number for number, line in enumerate(lines) if line.get("event") in ("begun", "left out")]
    # The long cells go on over several calls, and one that is finished is told of once.
    own = lines[begun[-1] :] if begun and step != "long" else lines
    events = [line for line in own if "event" in line]
    last = events[-1] if events else {"event": "left out", "state": NOT_REACHED}
    # A step that has begun and not ended was ended with the machine.
    state = last.get("state", "cut off")
    return {
        "state": state,
        "seconds": last.get("seconds"),
        "error": last.get("error"),
        "figures": _figures(step, [line for line in own if "event" not in line]),
    }


def _figures(step: str, lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    if step in KEYS:
        return {key: spread(line.get(key) for line in lines) for key in KEYS[step]}
    if step == "exchange":
        return {form: _of_format([line for line in lines if line["format"] == form]) for form in FORMATS}
    names = list(dict.fromkeys([*CELLS[step], *(line["cell"] for line in lines)]))
    return {name: _of_cell([line for line in lines if line["cell"] == name]) for name in names}


def _of_format(lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    equal = all(line["equal"] for line in lines) if lines else None
    return {"equal": equal, **{key: spread(line.get(key) for line in lines) for key in OF_FORMAT}}


def _of_cell(lines: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the seeds that were trained to their end."""
    ended = {line["seed"]: line for line in lines if line.get("loss") is not None}
    return {
        "seeds": sorted(ended),
        **{key: spread(line.get(key) for line in ended.values()) for key in OF_CELL},
    }


def spread(values: Iterable[Any]) -> dict[str, Any] | None:
    """Median, range and count; None without any value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "min": min(known), "max": max(known), "count": len(known)}


def write(folder: Path) -> None:
    """Bring gpu.json up to date, whole or not at all."""
    new = folder / f"{JSON}.new"
    new.write_text(json.dumps(figures(lines_of(folder / LINES)), indent=2) + "\n")
    os.replace(new, folder / JSON)


def check_folder(folder: Path, machine: Mapping[str, Any]) -> None:
    """Make the folder; RefusedError if it has figures of another card or tree, or cannot be written."""
    doing = f"Writing to {folder}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = [line for line in lines_of(folder / LINES) if line["step"] == MACHINE]
        (folder / LINES).touch()
    except (OSError, ValueError) as error:
        raise RefusedError(doing, "a folder that takes files", str(error), "Name another with --out.") from None
    for line in before[-1:]:
        for name in _OF_MACHINE:
            if line.get(name) != machine[name]:
                found = f"those of {name} {json.dumps(line.get(name))}"
                raise RefusedError(
                    doing, f"figures of {name} {json.dumps(machine[name])}", found, "Name another --out."
                )


# -- words -------------------------------------------------------------------------------------------------------------


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(figure, bar, measured) of each."""
    steps = told["steps"]
    memory, kill = (steps[name]["figures"] for name in ("memory", "kill"))
    for step, bar, words in (("learner", "0.97", "a learner"), ("torch", "0.95", "a learner in PyTorch")):
        found = steps[step]["figures"]
        ratio = _told(found["ratio"], ".3f", steps[step])
        if found["ratio"] is not None:
            each = [_told(found[name], ".2f", {}) for name in ("steps_per_second", "bare_steps_per_second")]
            ratio += f"; {each[0]} of {each[1]} steps a second"
        yield f"{words} inside a run / its bare loop", bar, ratio
    measured = _told(memory["measured_bytes"], "bytes", steps["memory"])
    yield "peak memory: predicted / measured", "0.9 to 1.1", _told(memory["ratio"], ".3f", steps["memory"])
    yield (
        "peak memory, measured; predicted by the compiler; of that parameters and their state",
        "",
        "; ".join(
            [measured, *(_told(memory[name], "bytes", steps["memory"]) for name in ("predicted_bytes", "graph_bytes"))]
        ),
    )
    for form, found in steps["exchange"]["figures"].items():
        if found["equal"] is None:
            text = _state(steps["exchange"])
        else:
            bits = "the same bits"
            if not found["equal"]:
                bytes_, scales, off = (found[name] for name in OF_FORMAT[-3:])
                parts = [
                    f"{_told(bytes_, '.1g', {})} of the bytes of codes differ",
                    f"{_told(scales, '.2g', {})} of the scales, by {_told(off, '.1g', {})} of themselves at most",
                ]
                bits = ", ".join(part for part, known in zip(parts, (bytes_, scales), strict=True) if known)
                bits = bits or "OTHER bits"
            text = f"{bits}; {_told(found['device_ms'], '.1f', {})} ms"
            text += "" if found["cpu_ms"] is None else f", by the CPU {_told(found['cpu_ms'], '.1f', {})} ms"
        bar = "the same bits" if form in ("float32", "bf16") else "1e-5 of the bytes; scales within 1e-6"
        yield f"a fragment in {form}, from the device", bar, text
    for name, bar, words in (
        ("first_merge_seconds", "1", "two learners with int4, one killed: seconds to the next merge"),
        ("next_round_seconds", "", "to the next merge of a round that was opened since"),
        ("started_again_seconds", "", "until its next life is started"),
        ("merged_again_seconds", "", "until its next life is merged"),
    ):
        yield words, bar, _told(kill[name], ".2f", steps["kill"])
    yield "the same run: share of the tokens that was merged", "", _told(kill["merged_share"], ".3f", steps["kill"])
    first, last = (_told(kill[name], ".2f", steps["kill"]) for name in ("loss_first", "loss_last"))
    yield "the same run: loss of its learners", "falls", first if kill["loss_first"] is None else f"{first} to {last}"
    for step, size in (("line", "4.9 million parameters"), ("long", "26 million parameters")):
        words = "a tiny model" if told["is_tiny"] else size
        for cell, found in steps[step]["figures"].items():
            text = _told(found["loss"], ".4f", steps[step])
            if found["gap_percent"] is not None:
                text += f"; {_told(found['gap_percent'], '+.2f', {})} % behind data-parallel"
            if found["published_percent"] is not None:
                text += f", published {found['published_percent']['median']:+.1f} %"
            yield f"{words}, {cell}: loss in nats a byte", "", text


def _told(found: Mapping[str, Any] | None, form: str, step: Mapping[str, Any]) -> str:
    if found is None:
        return _state(step)

    def number(value: float) -> str:
        return f"{value / 1e9:.2f} GB" if form == "bytes" else format(value, form)

    low, high = found["min"], found["max"]
    return number(found["median"]) + ("" if low == high else f" ({number(low)} to {number(high)})")


def _state(step: Mapping[str, Any]) -> str:
    """Why there is no figure."""
    state = step.get("state", NOT_REACHED)
    return "not known" if state == "done" else state


def words_of_machine(told: Mapping[str, Any]) -> str:
    """The card, and what ran on it."""
    versions = told["versions"] or {}
    parts = [
        f"Python {told['python']}",
        *(f"{name} {versions[name]}" for name in ("jax", "jaxlib") if versions.get(name)),
    ]
    parts += [f"driver {told['driver']}"] if told["driver"] else []
    parts += [f"isthmus {(told['commit'] or told['sources'])[:12]}"]
    size = f" of {told['memory_bytes'] / 1e9:.0f} GB" if told["memory_bytes"] else ""
    return f"{told['card']}{size} ({', '.join(parts)})"


def table(told: Mapping[str, Any]) -> str:
    """All of it, in Markdown."""
    return "\n".join(
        [
            "| figure | bar | measured |",
            "| --- | --- | --- |",
            *(f"| {name} | {bar or '-'} | {text} |" for name, bar, text in rows(told)),
        ]
    )


def draw(path: Path) -> None:
    """The page beside gpu.json."""
    from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
    from isthmus.programs.wings.report.page import write_sheet

    told = read(path)
    ran = [
        (step, each["state"], f"{each['seconds'] or 0:.0f} s", each["error"] or "")
        for step, each in told["steps"].items()
    ]
    small = " Small models on a CPU: they say that it works, and nothing of a GPU." if told["is_tiny"] else ""
    parts = [
        PageSection("Figures", [table(("figure", "bar", "measured"), list(rows(told)))], ["Medians, and ranges."]),
        PageSection("Steps", [table(("step", "state", "time", "why"), ran)]),
    ]
    write_sheet(path.with_name(PAGE), Sheet("Measured on a GPU", f"{words_of_machine(told)}.{small}", parts, told))


def read(path: Path) -> dict[str, Any]:
    """A gpu.json; RefusedError if it is none."""
    try:
        told = json.loads(path.read_text())
        if set(told["steps"]) != set(STEPS):
            raise ValueError("other steps than these")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"Reading {path}", f"{JSON} of on_a_gpu.sh", str(error), "Name that file.") from None
    return dict(told)


# -- documents ---------------------------------------------------------------------------------------------------------

NOTHING: Final = "**Nothing of this has run on a GPU yet**: none was at hand."
TABLE, SENTENCE = "table", "sentence"
PLACES: Final[Mapping[str, str]] = {
    "README.md": SENTENCE,
    "docs/how-to/gpu.md": SENTENCE,
    "docs/how-to/islands.md": SENTENCE,
    "docs/how-to/own-loop-on-several-gpus.md": SENTENCE,
    "docs/how-to/pytorch.md": SENTENCE,
    "docs/reference/compare.md": SENTENCE,
    "docs/explanation/islands.md": TABLE,
}
"""Where the documents say it, each between a mark and its end. No page says anything else of what ran on a GPU."""
KEPT: Final = "tests/bench/devices"
"""The folder of a file for each card: `figures`, a gpu.json; `by_hand`, rows that no gpu.json has, each with `figure`,
`measured` and `call`, and with `ratio_of` where it is a learner's ratio to its bare loop; `several`, what was run on
several such devices, '' for nothing."""
RATIOS: Final[Mapping[str, str]] = {"learner": "in jax", "torch": "in PyTorch"}
_MARK: Final = re.compile(r"(<!-- by gpu_figures\.py -->\n)(.*?)(^ *<!-- end -->)", re.DOTALL | re.MULTILINE)


def text_of(cards: Sequence[Mapping[str, Any]], kind: str) -> str:
    """What a document says of the figures of these cards, as they are kept."""
    if not cards:
        return NOTHING
    parts = []
    for card in cards:
        parts.append(_sentence(card))
        if kind == TABLE:
            hand = [f"| {row['figure']} ({row['call']}) | - | {row['measured']} |" for row in card["by_hand"]]
            parts.append("\n".join([table(card["figures"]), *hand]))
    return ("\n\n" if kind == TABLE else " ").join(parts)


def _sentence(card: Mapping[str, Any]) -> str:
    told = card["figures"]
    measured = [step for step in STEPS if _has_figure(told["steps"][step]["figures"])]
    left = [step for step in STEPS if step not in measured]
    said = f"**Measured on {words_of_machine(told)}**: {_listed(measured)}."
    said += f" Not measured in that call: {_listed(left)}." if left else ""
    said += f" Of the steps of its bare loop a learner in a run made {_ratios(card)}."
    return f"{said} {card['several'] or 'No run has used several GPUs so far.'}"


def _ratios(card: Mapping[str, Any]) -> str:
    """'0.980 in jax, and not measured in PyTorch', by what was measured in a call or by hand."""
    parts = []
    for step, words in RATIOS.items():
        ratio = card["figures"]["steps"][step]["figures"]["ratio"]
        by_hand = next((row for row in card["by_hand"] if row.get("ratio_of") == step), None)
        if ratio is not None:
            parts.append(f"{_told(ratio, '.3f', {})} {words}")
        elif by_hand is not None:
            parts.append(f"{by_hand['measured']} {words} (by hand)")
        else:
            parts.append(f"a share that was not measured {words}")
    return ", and ".join(parts)


def kept(root: Path = ROOT) -> list[dict[str, Any]]:
    """The figures of all cards, the newest first."""
    found = [json.loads(path.read_text()) for path in sorted((root / KEPT).glob("*.json"))]
    return sorted(found, key=lambda card: card["figures"]["at"] or "", reverse=True)


def keep(told: Mapping[str, Any], root: Path = ROOT) -> Path:
    """Keep figures as those of their card, beside what was measured of it by hand."""
    path = root / KEPT / f"{re.sub('[^a-z0-9]+', '-', str(told['card']).lower()).strip('-')}.json"
    before = json.loads(path.read_text()) if path.exists() else {"by_hand": [], "several": ""}
    before.pop("from", None)  # Of figures that were measured otherwise.
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**before, "figures": told}, indent=1) + "\n")
    return path


def _has_figure(figures_of_it: Any) -> bool:
    """Whether anything of a step was measured, of one that was cut off, too."""
    if isinstance(figures_of_it, Mapping):
        return any(_has_figure(each) for each in figures_of_it.values())
    return figures_of_it is not None and figures_of_it != []


def _listed(steps: Sequence[str]) -> str:
    *first, last = [IN_WORDS[step] for step in steps] or ["nothing"]
    return f"{', '.join(first)} and {last}" if first else last


def rewritten(page: str, text: str, name: str = "the page") -> str:
    """The page with this text in its marked place; RefusedError if there is not one such place."""
    places = _MARK.findall(page)
    if len(places) != 1:
        do = "Put <!-- by gpu_figures.py --> and <!-- end --> around what is to be replaced."
        raise RefusedError(f"Writing figures into {name}", "one marked place", str(len(places)), do)
    indent = re.match(" *", places[0][2])
    assert indent is not None
    lines = [indent.group() + line if line else "" for line in _wrapped(text)]
    return _MARK.sub(lambda found: found.group(1) + "\n".join(lines) + "\n" + found.group(3), page)


def told_in(page: str, name: str = "the page") -> str:
    """The sentence that a page has in its marked place, unwrapped; RefusedError if there is not one such place."""
    places = _MARK.findall(page)
    if len(places) != 1:
        raise RefusedError(f"Reading {name}", "one marked place", str(len(places)), "Mark it as README.md does.")
    return " ".join(places[0][1].partition("\n\n|")[0].split())


def _wrapped(text: str) -> list[str]:
    import textwrap

    lines = []
    for line in text.splitlines():
        whole = not line or line.startswith("|")
        lines += [line] if whole else textwrap.wrap(line, 116, break_long_words=False, break_on_hyphens=False)
    return lines


def keep_call(path: Path, root: Path = ROOT) -> Path:
    """Keep a gpu.json, where all figures of its card are; RefusedError for those of a CPU, or of nothing."""
    told = read(path)
    if told["is_tiny"] or told["card"] is None:
        found = f"those of {told['card'] or 'nothing'}"
        raise RefusedError(f"Writing {path} into the documents", "figures of a GPU", found, "Run it without --tiny.")
    if told["commit"] is None and told["sources"] == sources():
        told["commit"] = commit()
    return keep(told, root)


def into_documents(root: Path = ROOT) -> list[str]:
    """Write the kept figures into the documents; the names of the changed ones. RefusedError before any is changed."""
    cards, made = kept(root), {}
    for name, kind in PLACES.items():
        made[name] = rewritten((root / name).read_text(), text_of(cards, kind), name)
    changed = [name for name, page in made.items() if page != (root / name).read_text()]
    for name in changed:
        (root / name).write_text(made[name])
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", metavar="DIR/gpu.json")
    parser.add_argument("--draw", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    try:
        if asked.draw:
            draw(asked.path)
            return 0
        if asked.path is not None:
            print(keep_call(asked.path))
        print("\n".join(into_documents()) or "The documents say this already.")
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
