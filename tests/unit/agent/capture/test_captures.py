"""A capture whose thread has ended: its profiler ended with that, and nothing stays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from delivering import in_child

from probe.agent.boundary.boundary import Boundary
from probe.agent.capture.captures import Captures
from probe.agent.capture.profiler import why_none
from probe.agent.noop import noop
from probe.agent.steps.sampling import Sampling
from probe.agent.steps.step_count import Steps
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.streams import STEPS, STREAMS


def detached() -> dict[str, Any]:
    """What a detach is told amid a capture whose thread has ended."""
    boundary, sampling, server = Boundary(), Sampling(), SimpleNamespace(handlers={}, tick_soon=noop)
    steps = Steps(Stream(STEPS, STREAMS[STEPS], retention_bytes=1), boundary.stepped, sampling)
    captures: Any = Captures(server, {}, Log(), boundary, steps, sampling)  # type: ignore[arg-type]
    thread = threading.Thread(target=captures.armed({"id": "a", "steps": 2, "shapes": False}))
    thread.start()
    thread.join()
    return {"running": why_none(), "why": captures.end(), "left": captures.close()}


@pytest.mark.slow
def test_a_capture_ends_with_its_thread_and_a_detach_leaves_nothing() -> None:
    assert in_child(detached) == {"running": "", "why": "", "left": []}
