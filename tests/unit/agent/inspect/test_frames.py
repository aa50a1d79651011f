"""Looking at other threads keeps none of their objects alive: a function's objects are freed when it returns."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from probe.agent.boundary.boundary import Boundary
from probe.agent.evals.evaluation import Evaluation
from probe.agent.inspect.exclusive import exclusively
from probe.agent.inspect.frames import frames_of_others
from probe.agent.names.model_names import ModelNames, Root
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.streams import SPANS, STREAMS


class Thing:
    pass


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def evaluated(code: str) -> None:
    """Run a snippet beside the training; it sees the names of its frame."""
    log, spans = Log(), Stream(SPANS, STREAMS[SPANS], retention_bytes=1)
    Evaluation(
        code=code, filename="<eval>", write=False, send=lambda kind, fields: None, log=log, spans=spans, own={},
        where="now",
    ).run_now(None)  # fmt: skip
    spans.close()
    log.close()


@pytest.mark.parametrize(
    "look",
    [
        frames_of_others,
        lambda: ModelNames().name({1: Root("Thing", [weakref.ref(Thing)])}),
        lambda: exclusively(frames_of_others, lambda code: False),
        lambda: evaluated("1"),
        lambda: Boundary().close(),
    ],
    ids=["frames", "model_names", "exclusively", "evaluate", "boundary"],
)
def test_objects_of_a_function_are_freed_when_it_returns_after_a_look(
    look: Callable[[], object], without_collector: None
) -> None:
    inside, over, held = threading.Event(), threading.Event(), []

    def function() -> None:
        thing = Thing()
        held.append(weakref.ref(thing))
        inside.set()
        over.wait()

    thread = threading.Thread(target=function)
    thread.start()
    inside.wait()
    watcher = threading.Thread(target=look)  # stands for the agent's thread
    watcher.start()
    watcher.join()
    over.set()
    thread.join()
    assert held[0]() is None
