"""Stacks of this very process, read as those of another one, against what Python says of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from until import until

from probe.agent.inspect.interpreter_layout import Layout, interpreter_layout
from probe.host.facts_shape import LAYOUT
from probe.profile.memory import VmMemory, memory_of
from probe.profile.moment import threads_now
from probe.shapes import Whole, compiled


@pytest.fixture(scope="module")
def layout() -> Layout:
    return _true_layout()


def deeper(depth: int, held: Any) -> None:
    if depth:
        deeper(depth - 1, held)
    else:
        held.acquire(timeout=60)


LAST_LINE = max(line or 0 for _, _, line in deeper.__code__.co_lines())


def stands(thread: threading.Thread) -> bool:
    """Whether it has come to its last line, which it does not leave before the lock is released."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is deeper.__code__ and frame.f_lineno == LAST_LINE


@pytest.fixture
def waiting() -> Iterator[threading.Thread]:
    """Deeper than what is kept of a stack."""
    held = threading.Lock()
    thread = threading.Thread(target=deeper, args=(600, held))
    with held:
        thread.start()
        until(lambda: stands(thread))
        yield thread
    thread.join()


def test_what_is_read_is_what_python_says(layout: Layout, waiting: threading.Thread) -> None:
    found = threads_now(VmMemory(os.getpid()), layout)
    assert found is not None
    seen = {each.ident: each for each in found}
    tops = sys._current_frames()
    assert tops.keys() == seen.keys()
    said, frame = list[tuple[str, int, str]](), tops.get(waiting.ident or 0)
    while frame is not None:
        code = frame.f_code
        said.append((code.co_filename, frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    thread = seen[waiting.ident or 0]
    assert [(frame.file, frame.line, frame.function) for frame in thread.frames] == said and len(said) > 600
    assert not thread.is_agents


def test_the_layout_has_the_shape_in_which_readers_take_it(layout: Layout) -> None:
    assert compiled(LAYOUT)(layout, "layout") == "" and layout.keys() == LAYOUT.keys()


def _numbers(shape: Any) -> st.SearchStrategy[int | None]:
    whole = next(each for each in (shape if isinstance(shape, tuple) else (shape,)) if isinstance(each, Whole))
    number = st.integers(whole.least, min(whole.most, 1 << 12)) | st.integers(whole.least, whole.most)
    return number | st.none() if isinstance(shape, tuple) else number


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({name: _numbers(shape) for name, shape in LAYOUT.items()}), st.data())
def test_a_layout_that_makes_no_sense_gives_no_stacks_and_no_error(said: Layout, data: st.DataObject) -> None:
    true = _true_layout()
    kept = data.draw(st.sets(st.sampled_from(sorted(true))))
    threads_now(VmMemory(os.getpid()), said | {name: true[name] for name in kept})


@pytest.mark.parametrize("address", [0, -8, 1 << 63, 1 << 70])
def test_an_address_that_is_none_leads_to_no_memory(address: int) -> None:
    assert memory_of(os.getpid(), address) is None


def _true_layout() -> Layout:
    """Once the threads that the search has parked have ended: they would be seen at one look and gone at the next."""
    if not _TRUE:
        before = {*os.listdir("/proc/self/task")}
        _TRUE.update(interpreter_layout())
        until(lambda: {*os.listdir("/proc/self/task")} <= before)
    return _TRUE


_TRUE: Layout = {}
