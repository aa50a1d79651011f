"""Looking at other threads keeps nothing of theirs: what their functions held is gone when they have returned."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from probe.agent.boundary.boundary import Boundary
from probe.agent.evals import evaluation
from probe.agent.inspect import exclusive, stacks
from probe.agent.names import model_names


class Thing:
    pass


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "look",
    [
        stacks.stacks,
        lambda: model_names._search({}, {0: None}, {0: []}),
        lambda: exclusive._any_frame(lambda code: False),
        lambda: evaluation._frame_of(None),
        lambda: Boundary().close(),
    ],
    ids=["stacks", "roots", "alone", "evaluate", "boundary"],
)
def test_what_a_function_held_is_gone_when_it_has_returned(look: Callable[[], object], without_collector: None) -> None:
    inside, over, held = threading.Event(), threading.Event(), []

    def function() -> None:
        thing = Thing()
        held.append(weakref.ref(thing))
        inside.set()
        over.wait()

    thread = threading.Thread(target=function)
    thread.start()
    inside.wait()
    watcher = threading.Thread(target=look)  # the agent's own
    watcher.start()
    watcher.join()
    over.set()
    thread.join()
    assert held[0]() is None
