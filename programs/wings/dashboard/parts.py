"""The parts of the page of a run, as data: texts that are ready to be shown, and shares for what is drawn.

Decides what stands where, and how much of a large run is listed one by one. Numbers become words here, by `words`, as
on the terminal and in the report; the script of the page places them, and computes nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import msgspec
from rich.text import Text

from isthmus.programs.engine.results import data_words, site_words, words
from isthmus.programs.engine.results.changes import is_better, sentence
from isthmus.programs.engine.results.crowd import QUANTILES, ROWS_MAX, looked_for, lost_share, quantile
from isthmus.programs.engine.results.lines import ChangeRecord, EvaluationLine, MergeRecord, ReportLine, read
from isthmus.programs.engine.results.record import STAMP, as_number
from isthmus.programs.engine.results.run_files import DATA, SUMMARY, RunFilesError, summary_of
from isthmus.programs.study.terminal import figures
from isthmus.programs.study.terminal.live import Notice
from isthmus.programs.study.terminal.many_learners import kind_of
from isthmus.programs.wings.dashboard.watched_run import SILENT, Look
from isthmus.programs.wings.report.charts_drawing import learner_class
from isthmus.programs.wings.report.charts_graph import parse_graph
from isthmus.programs.wings.report.charts_lines import Chart, Curve
from isthmus.programs.wings.report.charts_merges import describe
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.flows import Flows, RunFlows

Part: TypeAlias = dict[str, Any]

LEARNERS_ONE_BY_ONE: Final = 16
"""Learners in the matrix of merges, and in the bars of waits; of more, those that stand out."""
STAND_OUT: Final = 8
MERGES_SHOWN: Final = 28
NOTICES_SHOWN: Final = 24
CHANGES_SHOWN: Final = 12
EDGES_SHOWN: Final = 12
RUNS_SHOWN: Final = 40
RUNS_DRAWN: Final = 8
POINTS_DRAWN: Final = 1000
_TONES: Final = {"red": "bad", "yellow": "odd", "dim": "past", "": ""}
_OUTCOME_TONES: Final = {"running": "live", "done": "good", "stopped": "odd", "failed": "bad"}


def head(look: Look, speed: figures.TokenSpeed) -> Part:
    """What run this is, how far it is, and what is wrong with it."""
    training, summary = look.training, look.summary
    outcome = str(look.status.get("outcome", SILENT))
    part: Part = {
        "title": look.program or STAMP.sub("", look.name),
        "run": look.name,
        "outcome": "no daemon answers" if outcome == SILENT else outcome,
        "tone": _OUTCOME_TONES.get(outcome, "odd"),
        "fault": look.fault,
    }
    if summary is not None:
        budget, tokens = as_number(summary.get("tokens_budget")), as_number(summary.get("tokens_total"))
        part["phase"] = f"ended after {words.seconds(as_number(summary.get('wall_seconds')))}"
        part["fault"] = str(summary.get("error") or "")
        part["share"] = min(1.0, (tokens or 0.0) / budget) if budget else 1.0
        part["tokens"] = f"{words.scaled(tokens)} tokens trained"
        return part
    budget, tokens = int(training.get("tokens_budget") or 0), int(training.get("tokens") or 0)
    fast, left = speed.of(training, budget) if outcome != SILENT else ("", "")
    if look.status.get("awaited"):
        part["phase"] = figures.awaiting(look.status)
    else:
        part["phase"] = _phase(training) if outcome != SILENT else "as its files have it"
    part["share"] = min(1.0, tokens / budget) if budget else 0.0
    part["tokens"] = f"{words.scaled(tokens)} of {words.scaled(budget)} tokens" if budget else ""
    part["speed"], part["left"] = fast, left
    part["fault"] = str(training.get("error") or look.fault)
    return part


def _phase(training: Mapping[str, Any]) -> str:
    if figures.is_starting(training):
        return figures.starting(training.get("hosts", ()))
    if training.get("phase") == "final" and training.get("ending"):
        return words.awaited_at_end(training["ending"], "`isthmus stop`")
    return {"final": "merging the last fragments", "done": "writing summary and report"}.get(
        str(training.get("phase")), "training"
    )


# -- who was in the last merges ----------------------------------------------------------------------------------------


@final
class MergeColumns:
    """The last merges of one run, a column each; what is said of a merge is made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], tuple[Part, dict[int, str]]] = {}

    def of(self, last: Sequence[MergeRecord], of: int) -> list[tuple[Part, dict[int, str]]]:
        """The column of each merge, and the cells of learners in it."""
        made = {}
        for merge in last:
            key = merge.fragment, merge.epoch, merge.round
            made[key] = self._made.get(key) or (_column(merge, of), _cells(merge))
        self._made = made
        return list(made.values())


def merges(look: Look, kept: MergeColumns) -> Part:
    """The last merges, a column each, and of each learner whether it was in them; `kept` are those of the last look.

    v: voted, l: left out because it came too late, r: refused, and a space: no member.
    """
    last = list(look.merges.last)[-MERGES_SHOWN:]
    slots = sorted(look.newest.keys() | {slot for merge in last for slot in (*merge.voters, *merge.left_out)})
    of = max([len(slots), *(len(merge.voters) for merge in last)])
    late, refused = look.merges.left_out, look.merges.refused
    shown = slots
    if len(slots) > LEARNERS_ONE_BY_ONE:
        missed = sorted(slots, key=lambda slot: (-late[slot] - refused[slot], slot))
        shown = [slot for slot in missed if late[slot] or refused[slot]][:STAND_OUT]
    made = kept.of(last, of)
    columns, cells = [column for column, _ in made], [each for _, each in made]
    rows = [
        {
            "slot": slot,
            "colour": learner_class(slot),
            "cells": "".join(of_merge.get(slot, " ") for of_merge in cells),
            "late": _times(late[slot], refused[slot]),
        }
        for slot in shown
    ]
    is_all = len(slots) <= LEARNERS_ONE_BY_ONE
    return {"columns": columns, "rows": rows, "of": of, "is_all": is_all, "count": words.whole(look.merges.count)}


def _cells(merge: MergeRecord) -> dict[int, str]:
    refused = dict.fromkeys((slot for slot, _ in merge.refused), "r")
    return {**dict.fromkeys(merge.left_out, "l"), **dict.fromkeys(merge.voters, "v"), **refused}


def _column(merge: MergeRecord, of: int) -> Part:
    return {
        "fragment": merge.fragment,
        "votes": len(merge.voters),
        "late": len(merge.left_out),
        "refused": len(merge.refused),
        "share": len(merge.voters) / of if of else 0.0,
        "text": describe(merge, of),
    }


def _times(late: int, refused: int) -> str:
    parts = [f"{words.whole(late)} late" if late else "", f"{words.whole(refused)} refused" if refused else ""]
    return ", ".join(filter(None, parts))


# -- goodput and waits -------------------------------------------------------------------------------------------------


class _Waits(NamedTuple):
    slot: int
    share: float
    text: str


def goodput(look: Look) -> Part:
    """The figures of the run, and for how long each learner waited."""
    summary, training = look.summary, look.training
    known = summary if summary is not None else training
    learners = max(len(look.newest), int(known.get("slots") or known.get("learners_count") or 0))
    share = as_number(known.get("goodput"))
    tiles = [["goodput", words.percent(share), "of learner time trained tokens that are kept"]]
    if known.get("outer_steps"):
        mean = words.decimal(as_number(known.get("contributors_mean")), 1)
        tiles.append(["in a merge", f"{mean} of {learners}", f"{words.whole(known['outer_steps'])} merges"])
        if merged := as_number(known.get("merged_share")):
            tiles.append(["merged", words.percent(merged), "of the trained tokens"])
    if (losses := _losses(known, is_over=summary is not None))[0]:
        tiles.append(["evaluation loss", *losses])
    waits = sorted(_waits(look), key=lambda each: (-each.share, each.slot))
    is_all = len(waits) <= LEARNERS_ONE_BY_ONE
    shown = sorted(waits, key=lambda each: each.slot) if is_all else waits[:STAND_OUT]
    rows = [{"slot": w.slot, "colour": learner_class(w.slot), "share": w.share, "text": w.text} for w in shown]
    return {"tiles": tiles, "share": share, "waits": rows, "is_all": is_all}


def _losses(known: Mapping[str, Any], *, is_over: bool) -> tuple[str, str]:
    """The newest loss of the global model, and where it began."""
    newest = as_number(known.get("eval_loss_final" if is_over else "eval_loss"))
    if newest is None:
        newest = as_number(known.get("eval_loss_last"))
    first = as_number(known.get("eval_loss_initial"))
    if newest is None:
        return "", ""
    began = "" if first is None else f"{words.decimal(first)} at the start"
    return words.decimal(newest), "; ".join(filter(None, [words.evaluated_at(known), began]))


def _waits(look: Look) -> Iterator[_Waits]:
    if look.summary is not None:
        wall = as_number(look.summary.get("wall_seconds")) or 0.0
        for row in look.summary.get("per_learner") or ():
            waited = as_number(row.get("stall_seconds"))
            if waited is not None and wall > 0:
                yield _wait(int(row["learner"]), waited, wall)
        return
    for slot, report in look.training.get("learners", {}).items():
        if report.get("waited") is not None and report.get("stepping"):
            yield _wait(int(slot), report["waited"] / 1e9, report["stepping"] / 1e9)


def _wait(slot: int, waited: float, of: float) -> _Waits:
    share = min(1.0, waited / of)
    return _Waits(slot, round(share, 4), f"{words.seconds(waited)} of {words.seconds(of)}")


# -- learners ----------------------------------------------------------------------------------------------------------


def learners(look: Look) -> Part:
    """A row for each learner, or, of many, for those that are looked for, below quantiles; one for each other host."""
    hosts = {str(host["name"]): host for host in look.status.get("hosts", ()) if host["role"] != "daemon"}
    reports = {int(slot): report for slot, report in look.training.get("learners", {}).items()}
    ended = {int(row["learner"]): row for row in (look.summary or {}).get("per_learner") or ()}
    slots = {*reports, *ended, *look.newest, *(_slot(name) for name in hosts if name.startswith("learner/"))}
    machines = {str(host.get("machine", "")) for host in hosts.values()}
    states = {slot: _kind_of(look, hosts.get(f"learner/{slot}"), reports.get(slot) or {}) for slot in sorted(slots)}
    lost = {slot: _lost(reports.get(slot) or {}, ended.get(slot) or {}) for slot in slots}
    slow = {slot: _step_seconds(look, reports.get(slot) or {}, ended.get(slot) or {}) for slot in slots}
    rows = [
        _learner(look, slot, hosts.get(f"learner/{slot}"), reports.get(slot) or {}, ended.get(slot) or {})
        for slot in looked_for(states, slow, lost)
    ]
    quantiles = list(_quantiles(look, states, reports, ended, slow, lost)) if len(states) > ROWS_MAX else []
    others = [_other(name, host) for name, host in hosts.items() if not name.startswith("learner/")]
    shown = {"rows": rows, "count": words.whole(len(states)), "quantiles": quantiles, "others": others}
    if quantiles:
        for row in rows:
            row["lost"] = words.percent(lost[row["slot"]])
    return {**shown, "has_machines": len(machines) > 1}


def _kind_of(look: Look, host: Mapping[str, Any] | None, report: Mapping[str, Any]) -> str:
    """The kind of state of a learner: those in another than most are shown."""
    if report.get("sick"):
        return "sick"
    is_over = look.training.get("phase") == "done"
    return kind_of(figures.state(host, is_over=is_over)) if host is not None else str(report.get("phase") or "")


def _lost(report: Mapping[str, Any], ended: Mapping[str, Any]) -> float | None:
    lost, tokens = as_number(ended.get("tokens_lost")), as_number(ended.get("tokens"))
    return lost / tokens if lost is not None and tokens else lost_share(report)


def _step_seconds(look: Look, report: Mapping[str, Any], ended: Mapping[str, Any]) -> float | None:
    if step_ms := as_number(report.get("step_ms")):
        return step_ms / 1e3
    wall, steps = as_number((look.summary or {}).get("wall_seconds")), as_number(ended.get("steps"))
    return wall / steps if wall and steps else None


def _quantiles(
    look: Look,
    states: Mapping[int, str],
    reports: Mapping[int, Mapping[str, Any]],
    ended: Mapping[int, Mapping[str, Any]],
    slow: Mapping[int, float | None],
    lost: Mapping[int, float | None],
) -> Iterator[Part]:
    """The rows that stand for all learners."""

    def at(share: float, name: str) -> Any:
        def of(slot: int) -> Any:
            told = {**ended.get(slot, {}), **(reports.get(slot) or {})}
            return told.get(name, getattr(look.newest.get(slot), name, None))

        return quantile((of(slot) for slot in states), share)

    usual, count = Counter(states.values()).most_common(1)[0]
    blank = dict.fromkeys(("state", "tone", "machine", "step", "tokens", "speed", "loss", "stale", "waits", "sent"), "")
    blank |= {"lost": "", "reason": ""}
    of_all = f"{words.whole(count)} {usual or 'ended'}"
    yield blank | {"name": f"{words.whole(len(states))} learners", "state": of_all}
    for share, title in QUANTILES:
        # Of speeds the slowest have the least: as much as steps of that length.
        step = quantile(slow.values(), 1 - share)
        stale = at(share, "staleness")
        yield blank | {
            "name": title,
            "step": words.whole(at(share, "step") or at(share, "steps")),
            "tokens": words.scaled(at(share, "tokens")),
            "speed": f"{words.decimal(1 / step, 1)}/s" if step else "",
            "loss": words.decimal(at(share, "loss")),
            "stale": "" if stale is None else f"{stale}",
            "sent": words.size(at(share, "bytes_sent")),
            "lost": words.percent(quantile(lost.values(), share)),
        }


def _slot(name: str) -> int:
    return int(name.rpartition("/")[2])


def _learner(
    look: Look,
    slot: int,
    host: Mapping[str, Any] | None,
    report: Mapping[str, Any],
    ended: Mapping[str, Any],
) -> Part:
    line = look.newest.get(slot, ReportLine())
    standing = Text("ended") if look.summary is not None else Text(str(report.get("phase") or line.phase))
    if report.get("sick"):
        standing = Text("sick: loss not finite", style="red")
    elif host is not None:
        standing = figures.state(host, is_over=look.training.get("phase") == "done")
    step_ms = report.get("step_ms")
    staleness = report.get("staleness", line.staleness)
    waited, stepping = report.get("waited"), report.get("stepping")
    life = (host or {}).get("incarnation") or report.get("incarnation") or line.incarnation
    return {
        "slot": slot,
        "colour": learner_class(slot),
        "state": standing.plain,
        "tone": _TONES.get(str(standing.style), ""),
        "machine": str((host or {}).get("machine", "") or ended.get("device_kind") or report.get("device_kind") or ""),
        "life": f"{life}" if life and life > 1 else "",
        "step": words.whole(report.get("step") or ended.get("steps") or line.step),
        "tokens": words.scaled(report.get("tokens") or ended.get("tokens") or line.tokens),
        "speed": f"{words.decimal(1e3 / step_ms, 1)}/s" if step_ms else _mean_speed(look, ended),
        "loss": words.decimal(as_number(report.get("loss", line.loss))),
        "stale": "" if staleness is None else f"{staleness}",
        "waits": words.percent(waited / stepping) if waited is not None and stepping else "",
        "sent": words.size(report.get("bytes_sent") or ended.get("bytes_sent") or line.bytes_sent),
        "reason": _reason(host),
    }


def _mean_speed(look: Look, ended: Mapping[str, Any]) -> str:
    wall, steps = as_number((look.summary or {}).get("wall_seconds")), as_number(ended.get("steps"))
    return f"{words.decimal(steps / wall, 1)}/s" if wall and steps else ""


def _other(name: str, host: Mapping[str, Any]) -> Part:
    standing = figures.state(host)
    return {
        "name": name.replace("/", " "),
        "state": standing.plain,
        "tone": _TONES.get(str(standing.style), ""),
        "life": f"{host['incarnation']}" if (host.get("incarnation") or 0) > 1 else "",
        "machine": str(host.get("machine", "")),
        "reason": _reason(host),
    }


def _reason(host: Mapping[str, Any] | None) -> str:
    """The last incident of a host, in words."""
    record = None if host is None else host.get("reason")
    return "" if record is None else words.reason_of(record)


# -- below -------------------------------------------------------------------------------------------------------------


def fragments(look: Look) -> Part:
    """Of each fragment its version, and how long ago it was merged."""
    now = as_number((look.summary or {}).get("wall_seconds")) or float(look.training.get("time") or 0.0)
    newest = sorted(look.merges.newest.items())
    now = max([now, *(merge.time for _, merge in newest)])
    oldest = max((now - merge.time for _, merge in newest), default=0.0)
    rows = [
        {
            "index": index,
            "version": "" if merge.version is None else words.dotted(merge.version),
            "age": words.seconds(round(now - merge.time, 1)),
            "share": round((now - merge.time) / oldest, 3) if oldest > 0 else 0.0,
            "votes": len(merge.voters),
        }
        for index, merge in newest
    ]
    return {"rows": rows, "is_over": look.summary is not None}


RATE_SECONDS: Final = 8.0
"""Window of the rates of edges: fragments travel in bursts, seconds apart."""


@final
class TrafficRates:
    """What moved on the edges of one run; keeps past totals for the rates."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, dict[int, int]]] = deque()

    def part(self, look: Look) -> Part:
        """The edges that carried most, and the totals."""
        rows = list(self._of_summary(look.summary)) if look.summary is not None else list(self._of_hosts(look))
        rows = sorted((row for row in rows if row["bytes"]), key=lambda row: -row["bytes"])
        most = max((row["bytes"] for row in rows), default=1)
        total, rate = sum(row["bytes"] for row in rows), sum(row["rate"] for row in rows)
        shown = [
            {
                "source": row["source"],
                "target": row["target"],
                "items": words.scaled(row["items"]),
                "bytes": words.size(row["bytes"]),
                "rate": f"{words.size(row['rate'])}/s" if row["rate"] else "",
                "waits": words.seconds(row["waits"]) if row["waits"] else "",
                "share": round(row["bytes"] / most, 3),
            }
            for row in rows[:EDGES_SHOWN]
        ]
        return {
            "rows": shown,
            "total": words.size(total),
            "rate": f"{words.size(rate)}/s" if rate else "",
            "more": len(rows) - len(shown),
        }

    def _of_summary(self, summary: Mapping[str, Any]) -> Iterator[Part]:
        for edge in summary.get("edges") or ():
            names = {"source": edge["source"], "target": edge["target"], "items": edge["items"]}
            yield {**names, "bytes": edge["bytes"], "rate": 0.0, "waits": edge["wait_seconds"]}

    def _of_hosts(self, look: Look) -> Iterator[Part]:
        graph = parse_graph(look.graph)
        named = [] if graph is None else graph.edges
        lives = [
            (Replica.parse(host["name"]), msgspec.convert(host["flows"], Flows))
            for host in look.status.get("hosts", ())
            if host.get("flows")
        ]
        totals = RunFlows.of(lives).edges
        self._totals.append((look.at, {index: total.size_bytes for index, total in totals.items()}))
        while len(self._totals) > 2 and self._totals[1][0] <= look.at - RATE_SECONDS:
            self._totals.popleft()
        begun, before = self._totals[0]
        for index, total in totals.items():
            edge = named[index] if index < len(named) else None
            passed = look.at - begun
            rate = max(0, total.size_bytes - before.get(index, 0)) / passed if passed > 0 else 0.0
            yield {
                "source": edge.source if edge else f"edge {index}",
                "target": edge.target if edge else "",
                "items": total.items,
                "bytes": total.size_bytes,
                "rate": rate,
                "waits": total.waited / 1e9,
            }


def failures(look: Look) -> Part:
    """What went wrong, and what came back; the newest first."""
    rows = [
        {"at": _time(notice), "text": notice.text, "tone": notice.tone}
        for notice in reversed(look.notices[-NOTICES_SHOWN:])
    ]
    return {"rows": rows, "more": max(0, len(look.notices) - NOTICES_SHOWN)}


def _time(notice: Notice) -> str:
    if notice.at is None:
        return "earlier" if notice.is_earlier else "at the start"
    return words.seconds(round(notice.at, 1))


_FIXED: Final = ("push", "update", "interval", "overlap", "quorum", "merge")


def settings(look: Look) -> Part:
    """Formats and intervals: as they were asked for, as they are in use, and how they changed."""
    program = look.configuration.get("program", {})
    asked = [[name, str(program[name])] for name in _FIXED if name in program]
    in_use: dict[tuple[str, str], str] = {}
    for change in look.changes:
        where = f"learner {change.slot}" if change.slot is not None else f"shard {change.shard}"
        in_use[change.setting, where] = change.after
    rows = [
        {"at": words.seconds(round(change.time, 1)), "text": sentence(change), "tone": _tone(change)}
        for change in reversed(look.changes[-CHANGES_SHOWN:])
    ]
    used = [[f"{name} of {where}", value] for (name, where), value in sorted(in_use.items())]
    if len(used) > ROWS_MAX:
        counts = Counter((name, where.partition(" ")[0], value) for (name, where), value in in_use.items())
        used = [[f"{name} of {words.whole(count)} {kind}s", value] for (name, kind, value), count in counts.items()]
    return {"asked": asked, "in_use": used, "rows": rows, "count": len(look.changes)}


def _tone(change: ChangeRecord) -> str:
    return "good" if is_better(change) else "odd"


def data(look: Look) -> Part:
    """What the run is trained on; no rows where that is not known."""
    try:
        rows = data_words.rows(look.data) if look.data else []
    except ValueError as error:
        return {"rows": [], "why": f"{DATA} cannot be read: {error}"}
    why = "" if rows or not look.configuration else "This run has written no table of its data."
    shown = [{"name": row.name, "text": row.text, "tone": "odd" if row.is_odd else ""} for row in rows]
    return {"rows": shown, "why": why}


def sites(look: Look) -> Part:
    """Of each site the losses on its own data, by model; no rows in a run without any."""
    known = look.summary if look.summary is not None else look.training
    rows = [
        {
            "site": row.site,
            "tokens": words.scaled(row.tokens),
            "epochs": site_words.epochs(row.epochs),
            "first": row.loss(row.global_first),
            "global": row.loss(row.global_last),
            "own": row.loss(row.own_last),
            "gap": site_words.signed(row.gap) if row.is_told else site_words.NOT_TOLD,
            "data": site_words.data(row),
            "reason": site_words.same_data(row) if row.same_data else "",
        }
        for row in site_words.rows(known)
    ]
    return {"rows": rows}


def steps_of_settings(look: Look) -> list[Chart]:
    """Interval and overlap over time, as they changed; no chart if they did not."""
    curves = []
    for index, name in enumerate(("interval", "overlap")):
        changes = [change for change in look.changes if change.setting == name and change.after.isdecimal()]
        if not changes:
            continue
        end = max(float(look.training.get("time") or 0.0), changes[-1].time)
        points: list[tuple[float, float]] = [(0.0, float(changes[0].before))]
        for change in changes:
            points += [(change.time, points[-1][1]), (change.time, float(change.after))]
        points.append((end, points[-1][1]))
        times, values = [time for time, _ in points], [value for _, value in points]
        curves.append(Curve(name, learner_class(index), times, times, [*values]))
    return [Chart("settings", "Interval and overlap, inner steps", curves, [], begins_at_zero=True)] if curves else []


# -- runs side by side -------------------------------------------------------------------------------------------------


@final
class RunList:
    """The runs of a folder, in figures; what does not change is read once."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, Part, list[EvaluationLine]]] = {}

    def part(self, runs: Mapping[str, Path], look: Look, placed: Callable[[Path], object]) -> Part:
        """A row for each of the newest, and the losses of some of them; `look` is at one of them, and `placed` tells a
        file from the next one."""
        names = list(runs)[-RUNS_SHOWN:][::-1]
        rows, curves = list[Part](), list[Curve]()
        for name in names:
            row, evaluations = self._read(name, runs[name], placed)
            is_current = name == look.name
            row = _row_of_look(name, look) if is_current and look.summary is None else row
            rows.append({**row, "is_current": is_current})
            if evaluations and len(curves) < RUNS_DRAWN:
                curves.append(_evaluated(name, evaluations, len(curves), is_main=is_current))
                rows[-1]["colour"] = curves[-1].colour
        self._kept = {name: kept for name, kept in self._kept.items() if name in names}
        title = "Evaluation loss of the runs of this folder"
        drawn = [Chart("runs", title, curves, [], is_logarithmic=_falls_far(curves))] if curves else []
        return {"rows": rows, "charts": msgspec.to_builtins(drawn), "more": len(runs) - len(names)}

    def _read(self, name: str, folder: Path, placed: Callable[[Path], object]) -> tuple[Part, list[EvaluationLine]]:
        place = placed(folder / "summary.json"), placed(folder / "evaluations.jsonl")
        kept = self._kept.get(name)
        if kept is None or kept[0] != place:
            kept = place, _run_row(name, folder), read(folder / "evaluations.jsonl", EvaluationLine)
            self._kept[name] = kept
        return kept[1], kept[2]


def _run_row(name: str, folder: Path) -> Part:
    outcome = "not finished"
    try:
        summary = summary_of(folder) or {}
    except RunFilesError as error:
        summary, outcome = {}, f"{SUMMARY}: {error.faults[0].found}"
    known = {name: as_number(summary.get(summary_name)) for name, summary_name in _RUN_FIGURES.items()}
    return _row(name, str(summary.get("program") or ""), str(summary.get("outcome") or outcome), known)


_RUN_FIGURES: Final = {
    "learners": "learners",
    "tokens": "tokens_total",
    "loss": "eval_loss_final",
    "merged": "merged_share",
    "goodput": "goodput",
    "sent": "bytes_sent_total",
    "wall": "wall_seconds",
}
"""The columns of a run, and what summary.json calls them."""


def _row_of_look(name: str, look: Look) -> Part:
    """The row of a run that goes on, from its status."""
    training = look.training
    names = {"tokens": "tokens", "loss": "eval_loss", "merged": "merged_share", "goodput": "goodput", "wall": "time"}
    known = {name: as_number(training.get(status_name)) for name, status_name in names.items()}
    outcome = str(look.status.get("outcome"))
    outcome = "no daemon answers" if outcome == SILENT else outcome
    return _row(name, look.program, outcome, {**known, "learners": float(len(look.newest))})


def _row(name: str, program: str, outcome: str, known: Mapping[str, float | None]) -> Part:
    return {
        "name": name,
        "program": program or STAMP.sub("", name),
        "outcome": outcome,
        "tone": _OUTCOME_TONES.get(outcome, ""),
        "learners": words.whole(known.get("learners")),
        "tokens": words.scaled(known.get("tokens")),
        "loss": words.decimal(known.get("loss")),
        "merged": words.percent(known.get("merged")),
        "goodput": words.percent(known.get("goodput")),
        "sent": words.size(known.get("sent")),
        "wall": words.seconds(known.get("wall")),
    }


def _evaluated(name: str, lines: Sequence[EvaluationLine], index: int, *, is_main: bool) -> Curve:
    known = [line for line in lines if line.eval_loss is not None and math.isfinite(line.eval_loss)]
    known = [*known[: -1 : len(known) // POINTS_DRAWN + 1], *known[-1:]]
    tokens, times = [float(line.tokens) for line in known], [line.time for line in known]
    return Curve(name, learner_class(index), tokens, times, [line.eval_loss for line in known], is_main)


def _falls_far(curves: Sequence[Curve]) -> bool:
    values = [value for curve in curves for value in curve.values if value is not None]
    return bool(values) and 0 < 2 * min(values) <= max(values)
