"""Two machines, of which one trains on data of its own: as much of a merge as the other, and an end without failure."""

from __future__ import annotations

import pytest

from isthmus.programs.engine.results.reading import read_absences
from isthmus.runtime.supervision.incidents import DataSpent, Ended, Exited, Parted
from tests.programs.engine.machine.cluster_place import Machines, accounts_add_up
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.run.process_run import TASK

pytestmark = [pytest.mark.process, pytest.mark.long]

SITE = """
from isthmus.ops.data.site_terms import SiteTerms
own = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-2), site=SiteTerms("0" * 32, 9000, 3200))
"""


def test_a_site_that_has_spent_its_data_leaves_and_the_other_machine_trains_on(place: Place) -> None:
    (place.folder / "paced.py").write_text(TASK + SITE)
    machines = Machines(place, "alpha", "beta")
    owned = 'roles = ["learner"]\nislands = 1\ntask = "paced.py:own"'
    cluster = machines.cluster({"alpha": "islands = 1", "beta": owned})
    settings = ("--set", "program.site_weight={beta = 3.0, gamma = 2.0}", "--set", "program.epochs_max=2.5")
    done = place.call(*place.training("run", "--cluster", cluster, *settings, tokens=40_000))
    assert done.returncode == 0, (done.stderr, place.logs(), machines.daemons["beta"].lines())
    assert "'gamma'" in done.stderr  # No machine is called so.
    summary = place.summary("run")
    assert (summary["outcome"], summary["error"], summary["tokens_lost"]) == ("done", None, 0.0)
    accounts_add_up(summary)
    first, second = summary["per_learner"]
    assert (first["data_spent"], first["restarts"], second["restarts"]) == (None, 0, 0)
    assert second["data_spent"] == {"tokens": 8000, "of_tokens": 3200, "epochs_max": 2.5}
    assert (second["tokens"], first["tokens"] >= 32_000) == (8000, True)
    told = machines.incidents("learner/1#1")
    assert told[-2:] == [Ended(Parted(Exited(0))), DataSpent(8000, 3200, 2.5)]
    assert not [each for each in read_absences(place.folder / "run") if each.host == "learner/1"]
    both = [merge for merge in machines.merges() if merge["kind"] == "merge" and merge["voters"] == [0, 1]]
    assert both
    assert {tuple(merge["weights"]) for merge in both} == {(0.25, 0.75)}
    assert any(merge["voters"] == [0] for merge in machines.merges()[-3:])
