"""The agent's sources travel in an order in which each finds what it imports."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import probe
from probe.attach import bundle
from probe.attach.bundle import _sources, agent_bundle, bundle_of


def names(sources: dict[str, str]) -> list[str]:
    return [part.name for part in bundle_of(sources)]


def test_a_module_comes_after_what_it_imports():
    sources = {
        "agent": "",
        "agent.a": "from .taps.b import x",
        "agent.taps": "",
        "agent.taps.b": "from ...streams import (\n    y,\n    z,\n)\nfrom .. import c",
        "agent.c": "import json",
        "streams": "",
    }
    assert names(sources) == ["agent", "agent.taps", "streams", "agent.c", "agent.taps.b", "agent.a"]


def test_a_circular_import_is_left_to_the_import_statement():
    assert sorted(names({"a": "from .b import x", "b": "from . import a"})) == ["a", "b"]


def test_an_import_in_a_function_does_not_affect_the_order():
    assert names({"a": "def f():\n    from .b import x", "b": "from .a import f"}) == ["a", "b"]


def test_what_the_agent_does_not_import_stays_behind(monkeypatch: pytest.MonkeyPatch):
    sources = {
        "agent": "",
        "agent.main": "def start():\n    from .taps.b import x",
        "agent.moved": "from .gone import y",
        "agent.taps": "",
        "agent.taps.b": "from ...streams import z",
        "protocol": "",
        "streams": "",
    }
    monkeypatch.setattr(bundle, "_sources", lambda package: sources)
    sent = sorted(part.name for part in agent_bundle.__wrapped__())
    assert sent == ["agent", "agent.main", "agent.taps", "agent.taps.b", "streams"]


def test_no_file_of_the_agent_stays_behind():
    files = (Path(probe.__file__).parent / "agent").rglob("*.py")
    assert sum(part.name.startswith("agent") for part in agent_bundle()) == len(list(files))


def test_a_package_goes_before_the_module_that_it_was(tmp_path: Path):
    for path in ("protocol.py", "streams.py", "agent/main.py", "agent/taps.py", "agent/taps/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    assert _sources(tmp_path)["agent.taps"] == "agent/taps/__init__.py"


def test_packages_are_distinguished_from_modules():
    kinds = {part.name: part.is_package for part in bundle_of({"agent": "", "agent.a": ""})}
    assert kinds == {"agent": True, "agent.a": False}


def test_the_bundle_has_the_shared_files_and_orders_the_entry_after_what_it_needs():
    order = [part.name for part in agent_bundle()]
    assert {"protocol", "streams", "agent.main"} <= set(order)
    for part in agent_bundle():
        assert not re.search(r"^(from|import) probe\b", part.source, re.MULTILINE), part.name


def test_tracebacks_name_the_agents_files_without_this_machines_paths():
    (part,) = bundle_of({"agent.main": "def start(): pass"})
    assert part.code().co_filename == "<probe>/agent/main.py"


def test_every_file_of_the_agent_can_be_executed_in_that_order():
    made = []
    try:
        for part in agent_bundle():
            module = types.ModuleType(f"_order_test.{part.name}")
            module.__package__ = module.__name__ if part.is_package else module.__name__.rpartition(".")[0]
            if part.is_package:
                module.__path__ = []
            if not made:
                root = types.ModuleType("_order_test")
                root.__path__ = []
                sys.modules["_order_test"] = root
            sys.modules[module.__name__] = module
            made.append(module.__name__)
            exec(part.code(), module.__dict__)
    finally:
        for name in [*made, "_order_test"]:
            sys.modules.pop(name, None)
