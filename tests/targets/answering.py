"""No job, but its agent: FakeAgent in a process of its own, which the command can ask.  A step each 0.1 s.

Its argument is a folder for the agent's socket.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_agent import FakeAgent

agent = FakeAgent(Path(sys.argv[1]))
agent.name_modules()
start = agent.train(30, time.monotonic_ns() - 10**9, unit=1000)
agent.publish()
print("ready", flush=True)
while True:
    time.sleep(0.1)
    start = agent.train(1, start, unit=1000)
    agent.publish()
