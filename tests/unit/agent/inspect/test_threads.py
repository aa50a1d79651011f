"""What is told of the threads of a job, which may still be importing threading."""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from probe.agent.inspect.frames import named
from probe.agent.inspect.threads import Threads


class Log:
    def __init__(self) -> None:
        self.records: list[tuple[int, int, Any]] = []

    def put(self, kind: int, id: int, payload: Any) -> None:
        self.records.append((kind, id, payload))


def test_a_thread_is_told_once_and_again_when_its_name_has_changed() -> None:
    log: Any = Log()
    threads, mine = Threads(log), threading.current_thread()
    threads.tell()
    threads.tell()
    assert [id for _, id, _ in log.records].count(mine.ident or 0) == 1
    before, mine.name = mine.name, "renamed"
    try:
        threads.tell()
    finally:
        mine.name = before
    assert log.records[-1][1:] == (mine.ident, {**named(mine, True), "name": "renamed"})


def test_threads_are_told_once_threading_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    log: Any = Log()
    threads, begun = Threads(log), ModuleType("threading")
    begun.__spec__ = ModuleSpec("threading", None)
    begun.__spec__._initializing = True  # type: ignore[attr-defined]
    with monkeypatch.context() as importing:
        importing.setitem(sys.modules, "threading", begun)
        threads.tell()
        assert not threads.told
    threads.tell()
    assert threads.told[threading.get_ident()]["is_main"]
