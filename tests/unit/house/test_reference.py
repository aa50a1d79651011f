"""The reference pages match the declarations in the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from probe.cli.questions import NAMES, read
from probe.tables import TABLES

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("commands.md", "errors.md", "python.md", "tables.md", *(f"tables/{table.name}.md" for table in TABLES))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return script("generate")


def script(name: str) -> ModuleType:
    """docs/<name>.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_the_page_matches_the_declarations(name: str, generate: ModuleType) -> None:
    written = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert written == generate.pages()[name], "run `make docs`"


def test_every_reference_page_is_generated(generate: ModuleType) -> None:
    written = {str(path.relative_to(DOCS / "reference")) for path in (DOCS / "reference").rglob("*.md")}
    assert written == set(generate.pages()) == set(PAGES)


def test_the_cookbook_matches_the_questions_and_has_an_answer_to_each() -> None:
    cookbook = script("cookbook")
    outputs = cookbook.outputs()
    assert (DOCS / "cookbook.md").read_text(encoding="utf-8") == cookbook.page(outputs), "run `make docs`"
    assert list(outputs) == [read(name).title for name in NAMES] and all(outputs.values())
