"""A capture whose thread has ended: nobody can switch its profiler off, and nobody waits for that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from delivering import in_child

from probe.agent.boundary.boundary import Boundary
from probe.agent.capture.captures import Captures
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
    return {"why": captures.end(), "left": captures.close()}


@pytest.mark.slow
def test_a_detach_does_not_wait_for_a_thread_that_has_ended() -> None:
    told = in_child(detached)  # whose profiler stays on
    assert told["why"] == "" and "torch's profiler" in told["left"][0]
