"""The reference page of settings is what the declarations say, and each of them has a help text."""

from isthmus.programs import SHIPPED, folder_task, language_model
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.run_settings import RunSettings
from isthmus.programs.settings import Schema
from tests.settings_page import PAGE, page


def test_the_page_is_made_from_the_declarations() -> None:
    assert PAGE.read_text() == page(), "python -m tests.settings_page"


def test_every_setting_has_help() -> None:
    schemas = [Program(name).schema() for name in SHIPPED]
    schemas += [
        Schema.of("run", RunSettings),
        Schema.of("task", language_model.task),
        Schema.of("task", folder_task.task),
    ]
    bare = [
        f"{schema.section}.{name}" for schema in schemas for name, key in schema.keys.items() if not key.declared.help
    ]
    assert not bare
