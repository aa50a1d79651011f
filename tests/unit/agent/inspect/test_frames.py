"""Looking at other threads keeps nothing of theirs: what their functions held is gone when they have returned."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from probe.agent.boundary.boundary import Boundary
from probe.agent.evals.evaluation import Evaluation
from probe.agent.inspect.exclusive import exclusively
from probe.agent.inspect.stacks import stacks
from probe.agent.names.model_names import ModelNames
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
    """A snippet beside the training, which sees the names of its frame."""
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
        stacks,
        lambda: ModelNames().name({1: [Thing()]}),
        lambda: exclusively(stacks, lambda code: False),
        lambda: evaluated("1"),
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
