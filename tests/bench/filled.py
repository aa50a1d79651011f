"""A process with an agent whose rings are full of a training's rows, and no training: `filled.py ROWS`.

Prints its pid once everything is there, and serves until its stdin is closed.  ROWS: of python.torch_trace, about.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fake_agent import ADAM, MODEL, FakeAgent

from probe import protocol as wire
from probe.streams import BEGIN, END, ENGINE, LOG_MODULE, OPTIMIZER, RETENTION_BYTES

MODULES = 20  # the model and what it calls
ROWS_A_STEP = 2 * MODULES + 1
STEP_NS = 10_000_000
FIRST = 2001


def fill(agent: FakeAgent, steps: int) -> None:
    """Steps of 10 ms, the last one of which has ended just now: each module forward and backward, and the optimizer."""
    agent.name_modules()
    for serial in range(FIRST, FIRST + MODULES - 1):
        agent.put(LOG_MODULE, serial, name=f"layers.{serial - FIRST}", type="Block", parent=MODEL, root=MODEL)
    at = time.monotonic_ns() - steps * STEP_NS
    agent.facts["attached_ns"] = at
    part = STEP_NS // 3 // MODULES
    for _ in range(steps):
        for place in range(MODULES - 1):
            agent.span(at + place * part, at + (place + 1) * part - place * 100, FIRST + place)
        agent.span(at, at + MODULES * part, MODEL)
        back = at + STEP_NS // 3 + part
        agent.mark(back, MODEL, BEGIN)
        for place in reversed(range(MODULES - 1)):
            agent.mark(back, FIRST + place, BEGIN)
            back += part
            agent.mark(back, FIRST + place, END)
        agent.span(at + STEP_NS // 3 + part // 2, back + part, 0, ENGINE)
        agent.span(at + STEP_NS * 8 // 10, at + STEP_NS * 9 // 10, ADAM, OPTIMIZER)
        agent.boundary(at + STEP_NS * 9 // 10 - 1)
        at += STEP_NS


def serve(agent: FakeAgent, key: Any, request: dict[str, Any]) -> None:
    """Take a server beside it."""
    agent.facts["served"] = request["served"]
    agent.publish()
    agent.server.reply(key, wire.END, rows=0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        agent = FakeAgent(Path(folder), ring_bytes=RETENTION_BYTES)
        fill(agent, int(sys.argv[1]) // ROWS_A_STEP)
        agent.publish()
        agent.server.handlers[wire.SERVE] = lambda key, request, _: serve(agent, key, request)
        print(os.getpid(), flush=True)
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            agent.publish()
        agent.close()
