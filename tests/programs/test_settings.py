"""Settings are typed by a function's annotations, read strictly, and every fault is told at once."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs import settings
from isthmus.programs.engine.request.program import Program
from isthmus.programs.settings import Schema, Text, describe
from isthmus.runtime.errors import ConfigError

Rule = Literal["rda", "average"]


def build(
    job: object,
    *,
    interval: int = 24,
    gamma: float = 0.8,
    grace: bool = True,
    merge: Rule = "rda",
    fragments: int | None = None,
    names: tuple[str, ...] = (),
    anything: Any = None,
) -> None:
    """A builder, as far as settings are concerned."""


SCHEMA = Schema.of("program", build, skip=1)


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        SCHEMA.read(values)
    return str(caught.value)


def test_what_is_not_given_is_the_default_in_the_order_of_the_keywords() -> None:
    values = SCHEMA.read({"gamma": 0.5})
    assert list(values) == ["interval", "gamma", "grace", "merge", "fragments", "names", "anything"]
    assert values["interval"] == 24
    assert values["gamma"] == 0.5
    assert values["fragments"] is None


def test_values_of_a_file_are_converted_strictly() -> None:
    assert SCHEMA.read({"gamma": 1})["gamma"] == 1.0
    assert SCHEMA.read({"names": ["a", "b"]})["names"] == ("a", "b")
    assert "expected an integer, found '12'" in refusal(interval="12")
    assert "expected an integer, found True (bool)" in refusal(interval=True)
    assert "expected an integer, found 2.0 (float)" in refusal(interval=2.0)
    assert "expected true or false, found 1 (int)" in refusal(grace=1)
    assert "expected one of 'rda', 'average', found 'mean'" in refusal(merge="mean")
    assert "expected a list, each of it a text, found [1] (list)" in refusal(names=[1])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("interval", "12", 12),
        ("interval", "1_000", 1000),
        ("interval", "1e6", 1_000_000),
        ("gamma", "1", 1.0),
        ("grace", "false", False),
        ("merge", "average", "average"),
        ("merge", '"average"', "average"),
        ("fragments", "4", 4),
        ("names", '["a"]', ("a",)),
        ("anything", "12", 12),
        ("anything", "plain text", "plain text"),
    ],
)
def test_text_of_the_command_line_means_what_it_means_in_a_file(name: str, text: str, expected: Any) -> None:
    value = SCHEMA.read({name: Text(text)})[name]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(("name", "text"), [("interval", "2.5"), ("grace", "yes"), ("merge", "1"), ("interval", "")])
def test_text_that_means_nothing_is_refused(name: str, text: str) -> None:
    message = refusal(**{name: Text(text)})
    assert f"found {text!r}." in message
    assert f"Change program.{name}, or leave it out for" in message


def test_a_text_may_look_like_a_number() -> None:
    def function(*, name: str = "") -> None: ...

    schema = Schema.of("task", function)
    assert schema.read({"name": Text("12")}) == {"name": "12"}
    assert schema.read({"name": Text("true")}) == {"name": "true"}


def test_every_fault_is_told_with_the_nearest_key() -> None:
    message = refusal(intervall=3, gamma="x", fragment=2)
    assert message.count("\n  ") == 3
    assert (
        "Reading program.intervall: expected a key of section [program], found 'intervall'.\n  Did you mean" in message
    )
    assert "Did you mean 'interval'?" in message
    assert "Did you mean 'fragments'?" in message
    assert "Change program.gamma, or leave it out for 0.8." in message


def test_a_setting_without_a_default_has_to_be_given() -> None:
    def function(job: object, depth: int) -> None: ...

    schema = Schema.of("program", function, skip=1)
    assert schema.read({"depth": 3}) == {"depth": 3}
    with pytest.raises(ConfigError, match="expected an integer, found nothing") as caught:
        schema.read({})
    assert "--set program.depth=VALUE" in str(caught.value)


def test_a_builder_with_keywords_of_any_name_takes_them_as_they_are() -> None:
    def function(job: object, **others: Any) -> None: ...

    assert Schema.of("program", function, skip=1).read({"a": Text("3"), "b": [1]}) == {"a": 3, "b": [1]}


def test_an_annotation_that_names_nothing_is_told() -> None:
    def function(job: object, *, depth: Unknown = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match=r"Reading the type of program\.depth: expected an annotation .* 'Unknown'"):
        Schema.of("program", function, skip=1)


def test_types_in_words() -> None:
    assert describe(int | None) == "an integer"
    assert describe(int | str) == "an integer or a text"
    assert describe(list[int]) == "a list, each of it an integer"
    assert describe(dict[str, int]) == "a table"
    assert describe(int | Literal["auto"]) == "an integer or 'auto'"
    assert describe(Literal["a", "b"] | Literal["auto"] | None) == "one of 'a', 'b', 'auto'"
    assert describe(Annotated[int, msgspec.Meta(ge=1, le=4)]) == "an integer of at least 1 and of at most 4"


def test_bounds_in_an_annotation_are_checked() -> None:
    def function(*, depth: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None: ...

    with pytest.raises(ConfigError, match="expected an integer of at least 1, found 0"):
        Schema.of("task", function).read({"depth": 0})


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(VALUES)
def test_a_value_written_as_toml_is_read_back_equal(value: Any) -> None:
    assert settings.parse(settings.value(value)) == value


def test_values_without_a_form_in_toml() -> None:
    assert math.isnan(settings.parse(settings.value(math.nan)))
    assert settings.inline({"a": None, "b": 1}) == "b = 1"
    with pytest.raises(TypeError, match="object has no form in TOML"):
        settings.value(object())
    with pytest.raises(ValueError, match="one TOML value"):
        settings.parse("1\nother = 2")


@pytest.mark.parametrize("program", ["decoupled-diloco", "dipaco"])
def test_a_file_of_an_earlier_version_may_have_settings_that_are_gone_where_they_changed_nothing(program: str) -> None:
    schema = Program(program).schema()
    assert schema.read({"anchor": "adopted", "alpha": 0.0}) == schema.read({})
    with pytest.raises(ConfigError) as caught:
        schema.read({"anchor": "syncer", "alpha": 0.5, "nothing": 1})
    assert [(fault.action, fault.found) for fault in caught.value.faults] == [
        ("Reading program.anchor", "'syncer'"),
        ("Reading program.alpha", "0.5"),
        ("Reading program.nothing", "'nothing'"),
    ]
    assert Program("streaming-diloco").schema().read({"alpha": 0.25})["alpha"] == 0.25
