"""`isthmus graph --cluster`: where a run would go, and what is predicted of it, against the closed form."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isthmus.programs.engine.cluster.devices import find
from isthmus.programs.engine.cluster.placement import Machine, Placement, Topology
from isthmus.programs.engine.cluster.placing import CompiledNeeds, answers_bytes, neighbour_bytes, placed
from isthmus.programs.engine.cluster.prediction import ADDED_SECONDS, UTILISATION, Prediction, captions, predict, text
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes
from isthmus.programs.engine.request.model_sizes import learner_bytes, parameter_count
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.engine.results.words import size
from isthmus.runtime.errors import PlacementError
from tests.command_line import app

HERE = "tcp://127.0.0.1:7400"
HUB = Machine("hub", HERE, roles=("syncer", "evaluator"), bandwidth_bits=10**7)
CHIPS = Machine("chips", islands=2, device=replace(find("v5e", ""), price_per_hour=1.2), devices=4, domain="oslo")
CORES = Machine("cores", roles=("learner",), device=replace(find("cpu", ""), price_per_hour=0.05))
PARAMETERS, TOKENS = 131_904, 512
STEPS = [6 * PARAMETERS * TOKENS / (UTILISATION * flops) + ADDED_SECONDS for flops in (4 * 197e12, 78.4e9)]
RATE = 32 * PARAMETERS / (24 * STEPS[0])
EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"


@pytest.fixture(scope="module")
def request_() -> Request:
    return asked("float32", "float32")


def asked(push: str, update: str) -> Request:
    program = Program("decoupled-diloco", push=push, update=update)
    return prepare(program, run={"learners": 3}, task_settings={"optimizer": "adamw"})


def predicted(request: Request, *machines: Machine) -> tuple[Placement, Prediction]:
    topology = Topology(machines)
    placement = placed(request, topology)
    return placement, predict(request, topology, placement)


def test_a_learner_needs_parameters_gradient_and_both_moments(request_: Request) -> None:
    assert parameter_count(request_) == PARAMETERS
    assert 16 * PARAMETERS <= learner_bytes(request_) <= 16 * PARAMETERS + 64
    small = replace(CHIPS, device=replace(find("v5e", ""), memory_bytes=PARAMETERS))
    with pytest.raises(PlacementError, match="Placing a learner on 'chips'"):
        placed(request_, Topology((HUB, small)))


def test_what_a_compiler_said_of_an_island_takes_the_place_of_what_is_reckoned(request_: Request) -> None:
    """Of chips it was asked for slot 0 alone: products take 2 s at all of the published FLOP/s."""
    said = CompiledNeeds(3 * 10**9, 16 * 10**9, products_seconds=2.0, step_seconds=2.5)
    topology = Topology((HUB, CORES, CHIPS))

    def compiled(machine: Machine, slot: int) -> CompiledNeeds | None:
        return said if (machine.name, slot) == ("chips", 0) else None

    placement = placed(request_, topology, compiled)
    first, second, _ = predict(request_, topology, placement, compiled).islands
    assert (first.memory_bytes, first.memory_bytes_max, first.is_compiled) == (12 * 10**9, 64 * 10**9, True)
    assert first.step_seconds == pytest.approx(2.0 / UTILISATION + ADDED_SECONDS)
    assert (second.step_seconds, second.is_compiled) == (pytest.approx(STEPS[0]), False)
    lines = "\n".join(text(topology, placement, predict(request_, topology, placement, compiled)))
    assert "compiled: 12.0 GB of 64.0 GB, 18.8 %" in lines


def test_an_island_that_a_compiler_found_too_small_is_refused(request_: Request) -> None:
    said = CompiledNeeds(17 * 10**9, 16 * 10**9, products_seconds=2.0, step_seconds=None)
    with pytest.raises(PlacementError, match=r"Placing learner 1 on 'chips'.*17\.0 GB, which `isthmus compile` found"):
        placed(request_, Topology((HUB, CORES, CHIPS)), lambda machine, slot: said if slot == 1 else None)


def test_hosts_need_memory_of_their_machines(request_: Request) -> None:
    """A learner keeps what it adopted, on cores its state, too; a shard three values and the answers of a round, an
    evaluator two."""
    values = 4 * PARAMETERS
    answers = answers_bytes(request_)
    assert answers == 4 * request_.job.learners * max(fragment_sizes(request_.graph))
    _, prediction = predicted(request_, HUB, CORES, CHIPS)
    state = learner_bytes(request_)
    hub = (3 + 2 + 1) * values + answers
    assert prediction.host_bytes == {"hub": hub, "cores": values + state, "chips": 2 * values}
    large = replace(HUB, memory_bytes=hub)
    placement, prediction = predicted(request_, large, CORES, CHIPS)
    least = size(hub)
    assert f"at least {least} of {least}" in "\n".join(text(Topology((large, CORES, CHIPS)), placement, prediction))
    small = replace(HUB, memory_bytes=hub - 1)
    with pytest.raises(PlacementError, match=r"Placing evaluator/0, recorder/0, syncer/0 on 'hub'"):
        placed(request_, Topology((small, CORES, CHIPS)))


def test_a_shard_that_keeps_sums_has_few_answers_and_one_of_several_the_state_of_another() -> None:
    """A sum, and eight answers or a copy of its part at most; the published values of the shard before it, and the
    codes of its momentum, or, where updates are coded, of its own values, too."""

    def of(**settings: Any) -> tuple[Request, int, int]:
        program = Program("decoupled-diloco", fragments=4, interval=24, push="float32", keeps="sums", **settings)
        request = prepare(program, run={"learners": 16}, task_settings={"optimizer": "adamw"})
        sizes = fragment_sizes(request.graph)
        return request, max(sizes), sum(sizes)

    for shards in (1, 4):
        request, largest, values = of(shards=shards)
        assert answers_bytes(request) == max(4 * largest, min(8 * 4 * largest, 4 * values // shards)) + 4 * largest
        assert neighbour_bytes(request, 1000) == (0 if shards == 1 else 1000 + 1000 * 8.125 // 32)
    assert neighbour_bytes(of(shards=2, update="int4")[0], 1000) == 1000 + 2 * 1000 * 8.125 // 32
    few = prepare(
        Program("decoupled-diloco", fragments=4, keeps="sums", push="float32"),
        run={"learners": 2},
        task_settings={"optimizer": "adamw"},
    )
    assert answers_bytes(few) == (2 + 1) * 4 * max(fragment_sizes(few.graph))


def test_islands_and_links_by_the_closed_form(request_: Request) -> None:
    placement, prediction = predicted(request_, HUB, CORES, CHIPS)
    assert placement.of_role("learner") == ("chips", "chips", "cores")
    assert [island.step_seconds for island in prediction.islands] == pytest.approx([STEPS[0], STEPS[0], STEPS[1]])
    assert [island.memory_bytes_max for island in prediction.islands] == [64 * 10**9, 64 * 10**9, None]
    assert [island.link_bits for island in prediction.islands] == pytest.approx([RATE] * 3), "rounds go by the fastest"
    links = {link.machine: link.bits for link in prediction.links}
    assert links == pytest.approx({"hub": 3 * RATE, "cores": RATE, "chips": 2 * RATE})
    assert prediction.price_per_hour == pytest.approx(8 * 1.2 + 0.05)


@pytest.mark.parametrize(
    ("push", "update", "momentum", "codes"),
    [
        ("float32", "float32", 0.7, 8.125 / 32),
        ("float32", "float32", 0.0, 0.0),
        ("float32", "int4", 0.7, 2 * 8.125 / 32),
        ("int4", "int4", 0.7, 2 * 8.125 / 4.125),
    ],
)
def test_each_of_several_shards_sends_the_next_one_its_versions_and_its_state_in_codes(
    push: str, update: str, momentum: float, codes: float
) -> None:
    """Codes of the momentum and, where updates are coded, of exact values, beside versions in the longer format."""
    program = Program(
        "decoupled-diloco", interval=24, push=push, update=update, outer_momentum=momentum, outer_lr=0.5, shards=2
    )
    request = prepare(program, run={"learners": 3}, task_settings={"optimizer": "adamw"})
    other = Machine("other", HERE, roles=("syncer",))
    hub = replace(HUB, roles=("syncer",))
    at_home = Machine("home", HERE, roles=("evaluator",))
    placement, prediction = predicted(request, at_home, hub, other, CORES, CHIPS)
    assert placement.of_role("syncer") == ("hub", "other")
    rate = prediction.islands[0].link_bits
    assert rate is not None
    near = 1 + codes
    links = {link.machine: link.bits for link in prediction.links}
    each = (3 + 1 + near) * rate / 2  # Learners, the evaluator, the other shard.
    assert (links["hub"], links["other"], links["home"]) == pytest.approx((each, each, rate))


@pytest.mark.parametrize(
    ("push", "update", "bits"),
    [("int4", "float32", 32), ("int4", "bf16", 16), ("int8", "int4", 8.125), ("auto", "int4", 32)],
)
def test_links_carry_the_longer_of_the_two_formats(push: str, update: str, bits: float) -> None:
    _, prediction = predicted(asked(push, update), HUB, CORES, CHIPS)
    assert [island.link_bits for island in prediction.islands] == pytest.approx([bits / 32 * RATE] * 3)


@pytest.mark.parametrize(("settings", "merges"), [({}, 2), ({"exchange": 2}, 2), ({"exchange": 4}, 4)])
def test_a_region_is_one_learner_on_the_link_between_regions(settings: dict[str, int], merges: int) -> None:
    program = Program("regional-diloco", fragments=3, interval=24, push="float32", **settings)
    request = prepare(program, run={"learners": 4}, task_settings={"optimizer": "adamw"})
    hub = Machine("hub", HERE, roles=("syncer", "evaluator"))
    east, west = (Machine(name, HERE, islands=2, device=find("v6e", ""), region=name) for name in ("east", "west"))
    placement, prediction = predicted(request, hub, east, west)
    assert placement.of_role("region") == ("east", "west")
    rate = prediction.islands[0].link_bits
    assert rate is not None
    links = {link.machine: link.bits for link in prediction.links}
    assert links == pytest.approx({"hub": 2 * rate / merges, "east": rate / merges, "west": rate / merges})


def test_an_evaluator_elsewhere_gets_every_update(request_: Request) -> None:
    shard, evaluator = (Machine(role, HERE, roles=(role,)) for role in ("syncer", "evaluator"))
    _, prediction = predicted(request_, shard, evaluator, CORES, CHIPS)
    links = {link.machine: link.bits for link in prediction.links}
    assert links == pytest.approx({"syncer": 4 * RATE, "evaluator": RATE, "cores": RATE, "chips": 2 * RATE})


def test_what_nobody_said_is_not_guessed(request_: Request) -> None:
    _, prediction = predicted(request_, HUB, replace(CORES, device=None))
    assert {island.step_seconds for island in prediction.islands} == {None}
    assert {link.bits for link in prediction.links} == {None}
    assert prediction.price_per_hour is None
    lines = "\n".join(
        text(Topology((HUB, replace(CORES, device=None))), *predicted(request_, HUB, replace(CORES, device=None)))
    )
    assert "cores: learner/0-2  not known  not known  at least 2.11 MB  not known" in lines


def test_what_stays_on_a_machine_is_on_no_link(request_: Request) -> None:
    _, prediction = predicted(request_, Machine("all", HERE, device=find("cpu", "")))
    assert [link.bits for link in prediction.links] == [0]


@pytest.mark.slow
@pytest.mark.parametrize(("example", "pace"), [("gossip", 0), ("ring", 1)])
def test_learners_without_a_syncer_send_to_the_next(tmp_path: Path, example: str, pace: int) -> None:
    program = shutil.copy(EXAMPLES / f"{example}.py", tmp_path / f"placed_{example}.py")  # A stem that is nobody's.
    request = prepare(f"{program}:build", run={"learners": 3})
    _, prediction = predicted(request, replace(CORES, address=HERE, roles=()), CHIPS)
    own = [32 * PARAMETERS / (24 * STEPS[max(pace, step)]) for step in (0, 0, 1)]
    assert [island.link_bits for island in prediction.islands] == pytest.approx(own)
    links = {link.machine: link.bits for link in prediction.links}
    assert links == pytest.approx({"cores": max(own[1], own[2]), "chips": max(own[1], own[2])})


TEXT = """\
where it goes; the run's home is hub
  hub    tcp://127.0.0.1:7400   evaluator/0, recorder/0, syncer/0
  cores  dials out only         learner/2
  chips  oslo, dials out only   learner/0-1

predicted, not measured: a step is 6 x 131,904 parameters x 512 tokens FLOPs at 40% of the published bfloat16 FLOP/s,
  and 0.8 ms; memory is parameters, gradient and optimizer state; links carry float32, on average
  island              device       step     memory                                   sends and gets
  cores: learner/2    1 x CPU      13.7 ms  at least 2.11 MB                         219 Mbit/s
  chips: learner/0-1  4 x TPU v5e  801 us   at least 2.11 MB of 64.0 GB, < 0.1 %     219 Mbit/s
  machine  on its link, in the busier direction
  hub      658 Mbit/s of 10.0 Mbit/s, more than it carries
  cores    219 Mbit/s
  chips    439 Mbit/s
  9.65 an hour for the devices"""


def test_the_text_word_for_word(request_: Request) -> None:
    lines = text(Topology((HUB, CORES, CHIPS)), *predicted(request_, HUB, CORES, CHIPS))
    assert [line.split() for line in lines] == [line.split() for line in TEXT.splitlines()]


def test_captions_name_the_machines_of_each_role(request_: Request) -> None:
    topology = Topology((HUB, CHIPS, CORES))
    assert captions(topology, *predicted(request_, HUB, CHIPS, CORES)) == {
        "evaluator": ["0 on hub"],
        "learner": ["0-1 on chips, step 801 us predicted", "2 on cores, step 13.7 ms predicted"],
        "recorder": ["0 on hub"],
        "syncer": ["0 on hub"],
    }


def test_islands_of_a_machine_whose_batches_differ_stand_apart() -> None:
    request = prepare(run={"learners": 4}, task_settings={"batch": (8, 4, 8)})
    topology = Topology((Machine("all", HERE, device=find("cpu", "")),))
    placement, prediction = predicted(request, *topology.machines)
    lines = captions(topology, placement, prediction)["learner"]
    assert lines == ["0,2-3 on all, step 13.7 ms predicted", "1 on all, step 7.26 ms predicted"]
    assert sum("all: learner/" in line for line in text(topology, placement, prediction)) == 2


CLUSTER = f"""
[[machine]]
name = "hub"
address = "{HERE}"
roles = ["syncer", "evaluator"]
[[machine]]
name = "a"
device = "cpu"
islands = 2
[[machine]]
name = "b"
device = "TPU v6 lite"
[task]
layers = 1
"""


def shown(folder: Path, form: str) -> str:
    path = folder / "cluster.toml"
    path.write_text(CLUSTER)
    result = CliRunner().invoke(app, ["graph", "--cluster", str(path), "--format", form])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_command_as_json(tmp_path: Path) -> None:
    shape: dict[str, Any] = json.loads(shown(tmp_path, "json"))
    assert shape["placement"]["inner-step"] == ["b", "a", "a"]
    assert shape["placement"]["merge"] == shape["placement"]["record"] == "hub"
    assert [island["machine"] for island in shape["predicted"]["islands"]] == ["b", "a", "a"]
    assert shape["predicted"]["islands"][0]["step_seconds"] > 0
    assert shape["predicted"]["links"][0]["bits_per_second"] > 0


@pytest.mark.slow
def test_the_command_as_text_and_as_a_flowchart(tmp_path: Path) -> None:
    said = shown(tmp_path, "text")
    assert (
        said.index("who waits for whom") < said.index("the run's home is hub") < said.index("predicted, not measured")
    )
    drawn = shown(tmp_path, "mermaid")
    assert '["learner, 1 to 16384 replicas<br/>1-2 on a, step' in drawn
    assert "predicted<br/>0 on b, step 801 us predicted" in drawn
    assert '["syncer, 1 replica<br/>0 on hub"]' in drawn
