"""What is said of wrong requests is as it was recorded: the same faults, all together, in whatever order."""

import json

import pytest

from tests.programs.command.wrong_requests import CLUSTERS, COMMANDS, MACHINES, PLANS, RECORDED, all_faults


@pytest.mark.long
@pytest.mark.slow
def test_every_wrong_request_is_answered_as_it_was_recorded() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) == len({*COMMANDS, *MACHINES, *CLUSTERS, *PLANS}) >= 60
    different = {
        text: {"recorded": recorded.get(text), "now": faults}
        for text, faults in all_faults()
        if sorted(faults) != sorted(recorded.get(text, []))
    }
    assert not different, json.dumps(different, indent=1)
