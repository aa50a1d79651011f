"""An agent of another version makes way for that of the command, and its modules with it: never are there two."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from probe.agent import fork
from probe.attach.bootstrap import START

ROOT, MAIN, LAID_BY = "_probe_agent", "_probe_agent.agent.main", "_probe_laid_by"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The modules of an agent of another version, as its attach has left them."""
    modules: dict[str, Any] = {name: ModuleType(name) for name in (ROOT, MAIN)}
    vars(modules[ROOT]).update(version="old", digest="old", attaching={}, loaded=True)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield modules
    vars(os).pop(LAID_BY, None)


def ours() -> dict[str, Any]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == ROOT}


def attach(loaded: dict[str, Any], stop: Any) -> Exception:
    """What an attach of another version says that brings no code along; stop: the agent's."""
    loaded[MAIN].stop = stop
    scope: dict[str, Any] = {}
    exec(START, scope)
    order = {"facts": {"version": "new"}, "digest": "new", "patience": 1.0, "modules": []}
    with pytest.raises(RuntimeError) as caught:
        scope["_start"](order)
    return caught.value


def test_one_that_does_not_end_stays_and_the_attach_says_so(loaded: dict[str, Any]) -> None:
    def stop() -> None:
        raise RuntimeError("it has not ended yet")

    error = attach(loaded, stop)
    assert vars(error)["probe_code"] == "attach-running"
    assert str(error) == "the agent that is inside does not end: it has not ended yet"
    assert ours() == loaded
    attach(loaded, lambda: None)
    assert MAIN not in ours()


def test_one_that_ends_late_leaves_the_modules_of_its_successor_alone(
    loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "_ROOT", ModuleType(ROOT))  # it was replaced
    fork.lay_by_modules()
    assert ours() == loaded and not hasattr(os, LAID_BY)
    monkeypatch.setattr(fork, "_ROOT", loaded[ROOT])
    fork.lay_by_modules()
    assert not ours() and getattr(os, LAID_BY) == loaded
