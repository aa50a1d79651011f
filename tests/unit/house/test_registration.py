"""Whatever has a file in a room of tables, verbs, samplers or taps is registered, and the registries agree."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import click
import pytest

from probe import tables
from probe.agent import samplers, taps
from probe.agent.samplers.registry import SAMPLERS
from probe.agent.taps.registry import TAPS as AGENT_TAPS
from probe.agent.taps.tap import Tap
from probe.cli import questions, verbs
from probe.cli.program import VERBS, program
from probe.client.endpoints import FORMS
from probe.tables import TABLES
from probe.tables.declaration import TAPS, Table


def modules(room: ModuleType) -> list[ModuleType]:
    return [importlib.import_module(each.name) for each in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]


def classes(room: ModuleType) -> set[type]:
    found = [(each, module) for module in modules(room) for each in vars(module).values() if inspect.isclass(each)]
    return {each for each, module in found if each.__module__ == module.__name__}


def test_every_table_in_the_folder_is_registered() -> None:
    declared = [each for module in modules(tables) for each in vars(module).values() if isinstance(each, Table)]
    assert sorted(each.name for each in TABLES) == sorted({each.name for each in declared})


def test_every_verb_in_the_folder_is_registered() -> None:
    commands = [each.__name__ for each in modules(verbs) if isinstance(getattr(each, "command", None), click.Command)]
    assert sorted(VERBS) == sorted(name.rpartition(".")[2] for name in commands)


def test_every_question_in_the_folders_is_registered() -> None:
    found = [(file.parent.name, file.stem) for file in Path(questions.__path__[0]).rglob("*.sql")]
    assert sorted(found) == sorted((subject, name) for name, subject in questions.NAMES.items())


def test_the_help_lists_every_form_of_endpoint() -> None:
    urls = [form for form in FORMS.split(", ") if "://" in form]
    assert urls and all(form in str(program.help) for form in urls)


def test_every_sampler_in_the_folder_is_registered() -> None:
    made = {each for each in classes(samplers) if hasattr(each, "sample") and hasattr(each, "name")}
    assert set(SAMPLERS.values()) == {each for each in made if not getattr(each, "_is_protocol", False)}


def test_every_tap_in_the_folder_is_registered() -> None:
    fallbacks = {each.fallback for each in AGENT_TAPS}
    assert set(AGENT_TAPS) == {each for each in classes(taps) if issubclass(each, Tap)} - fallbacks - {Tap}


def test_every_tap_and_sampler_has_a_column_in_probe_agents() -> None:
    assert sorted(each.name for each in TAPS) == sorted([*SAMPLERS, *(each.name for each in AGENT_TAPS)])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_names_taps_that_exist(table: Table) -> None:
    assert set(table.taps) <= {each.name for each in TAPS}
