"""What crossed in a run, by made-up accounts: whose account counts, what each line of it is, and what is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.results.crossing_kinds import CONTROL, FILES, FRAMING, OUTER_GRADIENTS, RELAYED, REPORTS
from isthmus.programs.engine.results.words import size
from isthmus.programs.wings.borders import borders
from isthmus.programs.wings.borders.borders import BorderWay, Unknown
from isthmus.programs.wings.borders.borders_page import page
from isthmus.runtime.channels import crossings
from isthmus.runtime.channels.crossings import Account, EdgeCrossing, Tally
from isthmus.runtime.clock import Instant
from isthmus.runtime.wire import account_files

ANSWER, OWN = "send.answer -> merge.answer", "mine.guess -> yours.guess"
HOSTS = {"learner/0": "beta", "syncer/0": "alpha", "learner/1": "gamma"}
SECOND = 10**9


def line(peer: str, direction: Any, kind: str, size: int, edge: str = "", **more: Any) -> EdgeCrossing:
    tally = Tally()
    tally.add(size, Instant(2 * SECOND))
    fields = {"incarnation": 1, "machine": HOSTS.get(peer, "beta"), "through": "", **more}
    return EdgeCrossing.of({"peer": peer, **fields}, direction, kind, tally, edge)


def account(host: str, *lines: EdgeCrossing, clock: int = 10, is_last: bool = True, **more: Any) -> Account:
    machine = HOSTS.get(host, "alpha")
    life = 0 if host == "daemon/0" else 1
    return Account(host, life, machine, clock * SECOND, 1000.0 + clock, is_last, True, list(lines), **more)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder of a graph with two edges, one of which is a user's own."""
    edges = [
        {"source": "send.answer", "target": "merge.answer", "carries": OUTER_GRADIENTS},
        {"source": "mine.guess", "target": "yours.guess", "carries": None},
    ]
    (tmp_path / "graph.json").write_text(json.dumps({"edges": edges}))
    (tmp_path / "summary.json").write_text("{}")
    return tmp_path


def keep(run: Path, *accounts: Account) -> None:
    for each in accounts:
        account_files.write(run / "borders" / f"{each.host.replace('/', '-')}-{each.incarnation}.json", each)


def sums(found: borders.Borders, source: str, target: str) -> dict[tuple[str, str], int]:
    return {(each.kind, each.name): each.size_bytes for each in found.machines[BorderWay(source, target)]}


def test_a_crossing_counts_once_by_the_account_of_its_sender(run: Path) -> None:
    keep(
        run,
        account("learner/0", line("syncer/0", "sent", crossings.ITEMS, 100, ANSWER)),
        account("syncer/0", line("learner/0", "received", crossings.ITEMS, 90, ANSWER)),
    )
    found = borders.read(run)
    assert sums(found, "beta", "alpha") == {(OUTER_GRADIENTS, ANSWER): 100}
    assert list(found.machines) == [BorderWay("beta", "alpha")]
    assert found.unknown == []


def test_of_a_sender_that_was_killed_the_newer_account_of_its_peer_counts(run: Path) -> None:
    keep(
        run,
        account("learner/0", line("syncer/0", "sent", crossings.ITEMS, 100, ANSWER), clock=5, is_last=False),
        account("syncer/0", line("learner/0", "received", crossings.ITEMS, 130, ANSWER), clock=9),
    )
    found = borders.read(run)
    assert sums(found, "beta", "alpha") == {(OUTER_GRADIENTS, ANSWER): 130}
    assert found.unknown == [Unknown("cut off", "learner/0", 1, 1005.0)]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("sender_clock", "told"), [(5, 130), (9, 100), (12, 100)])
def test_of_two_accounts_that_are_both_last_or_both_not_the_newer_one_counts(
    run: Path, sender_clock: int, told: int, is_last: bool
) -> None:
    sent, received = (
        line("syncer/0", "sent", crossings.ITEMS, 100, ANSWER),
        line("learner/0", "received", crossings.ITEMS, 130, ANSWER),
    )
    keep(
        run,
        account("learner/0", sent, clock=sender_clock, is_last=is_last),
        account("syncer/0", received, clock=9, is_last=is_last),
    )
    assert list(sums(borders.read(run), "beta", "alpha").values()) == [told]


def test_what_a_host_sent_whose_account_is_elsewhere_is_by_its_peer(run: Path) -> None:
    keep(run, account("syncer/0", line("learner/0", "received", crossings.ITEMS, 90, ANSWER)))
    found = borders.read(run)
    assert sums(found, "beta", "alpha") == {(OUTER_GRADIENTS, ANSWER): 90}
    assert found.unknown == [Unknown("no account", "learner/0", 1, None)]


def test_what_went_through_shared_memory_is_summed_over_hosts_and_told(run: Path) -> None:
    one = {
        "items_lent": 3,
        "bytes_lent": 3_000_000,
        "items_unlent": 1,
        "bytes_unlent": 200_000,
        "bytes_copied": 900_000,
    }
    keep(run, account("learner/0", lent=one), account("syncer/0", lent=one | {"desk_unreached": 2}))
    found = borders.read(run)
    wanted = {name: 2 * count for name, count in one.items()} | {"desk_unreached": 2}
    assert found.lent == found.as_data()["shared_memory"] == wanted
    assert size(6_000_000) in page(found)
    assert size(1_800_000) in page(found)
    keep(run, account("learner/0"), account("syncer/0"))
    assert size(6_000_000) not in page(borders.read(run))


def test_of_what_crossed_within_a_machine_the_moved_bytes_count_what_was_shared_once(run: Path) -> None:
    lent = {"items_lent": 3, "bytes_lent": 3_000_000, "bytes_copied": 1_000_000}
    crossing = [line(f"evaluator/{n}", "sent", crossings.ITEMS, 1_000_000, ANSWER, machine="alpha") for n in range(3)]
    small = line("evaluator/0", "sent", crossings.ITEMS, 500, OWN, machine="alpha")
    keep(run, account("syncer/0", *crossing, small, lent=lent))
    found = borders.read(run)
    assert found.within_moved_bytes == found.as_data()["within_moved_bytes"] == 1_000_500


def test_edges_of_a_users_own_are_listed_by_name_and_every_byte_has_a_kind(run: Path) -> None:
    told = [
        line("syncer/0", "sent", crossings.ITEMS, 7, OWN),
        line("syncer/0", "sent", crossings.CONTROL, 20),
        line("syncer/0", "sent", crossings.RELAYED, 300),
        line("syncer/0", "sent", crossings.FRAMING, 4000),
        line("learner/1", "sent", crossings.ITEMS, 290, ANSWER, through="syncer/0"),
    ]
    keep(run, account("learner/0", *told))
    found = borders.read(run)
    assert sums(found, "beta", "alpha") == {(OWN, OWN): 7, (CONTROL, ""): 20, (RELAYED, ""): 300, (FRAMING, ""): 4000}
    assert list(found.machines) == [BorderWay("beta", "alpha")]
    [relayed] = found.relayed[BorderWay("learner/0", "learner/1")]
    assert (relayed.kind, relayed.size_bytes) == (OUTER_GRADIENTS, 290)


def test_messages_of_daemons_are_of_the_machines_and_their_setting_of_error_texts_is_told(run: Path) -> None:
    keep(
        run,
        account(
            "daemon/0",
            line("daemon/0", "received", crossings.ITEMS, 40, "report"),
            line("daemon/0", "received", crossings.ITEMS, 500, "piece"),
            line("daemon/0", "sent", crossings.ITEMS, 60, "orders"),
            error_texts={"beta": "local"},
        ),
    )
    found = borders.read(run)
    assert sums(found, "beta", "alpha") == {(REPORTS, "report"): 40, (FILES, "piece"): 500}
    assert sums(found, "alpha", "beta") == {(CONTROL, "orders"): 60}
    assert {each["name"]: each["error_texts"] for each in found.names} == {"alpha": "home", "beta": "local"}


def test_regions_are_summed_where_the_cluster_names_them(run: Path) -> None:
    sites = [{"name": name, "region": region} for name, region in (("alpha", 0), ("beta", 1), ("gamma", 1))]
    (run / "cluster.json").write_text(json.dumps({"home": "alpha", "sites": sites}))
    keep(
        run,
        account("learner/0", line("syncer/0", "sent", crossings.ITEMS, 100, ANSWER)),
        account("learner/1", line("syncer/0", "sent", crossings.ITEMS, 11, ANSWER)),
        account("syncer/0", line("learner/1", "sent", crossings.CONTROL, 5)),
    )
    found = borders.read(run)
    between = {way: sum(each.size_bytes for each in those) for way, those in found.regions.items()}
    assert between == {BorderWay("region 1", "region 0"): 111, BorderWay("region 0", "region 1"): 5}


def test_a_damaged_account_is_said_and_a_run_without_any_has_nothing(run: Path) -> None:
    assert borders.read(run).as_data()["pairs"] == []
    (run / "borders").mkdir()
    (run / "borders" / "learner-0-1.json").write_text('{"host": "learner/0", "incarnation": -1}')
    assert borders.read(run).unknown == [Unknown("no account", "learner-0-1", 0, None)]


def test_the_page_has_what_the_data_have(run: Path) -> None:
    keep(
        run,
        account("learner/0", line("syncer/0", "sent", crossings.ITEMS, 100, ANSWER), is_last=False),
        account("daemon/0", line("daemon/0", "sent", crossings.ITEMS, 60, "orders"), error_texts={"beta": "local"}),
    )
    text = page(borders.read(run))
    for words in ("beta -> alpha", OUTER_GRADIENTS, ANSWER, "100 B", "00:16:42", "error_texts", "learner/0, life 1"):
        assert words in text, words
    data = borders.read(run).as_data(with_digests=True)
    assert data["pairs"][1]["kinds"][0]["digests"] == []
    assert data["pairs"][1]["kinds"][0]["first"] == 1002.0
