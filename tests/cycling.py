"""Attaches to a process and leaves it again, as often as is said: `cycling.py PID COUNT [PAUSE]`; prints a JSON list.

A process of its own, as small as the command is: what attaching costs it pays for the size of who attaches.  The list
has the milliseconds until the target ran our text.
"""

from __future__ import annotations

import json
import sys
import time

from probe import connect
from probe.attach.bundle import agent_bundle
from probe.attach.delivery import deliver


def cycle(pid: int) -> float:
    """One round; raises if something had to stay in the target."""
    delivered = deliver(pid, agent_bundle(), 10.0)
    assert not delivered.reply["already"]
    with connect(str(pid)) as connection:
        left = connection.detach()
    assert left == [], left
    return delivered.hello_ms


if __name__ == "__main__":
    pid, count = int(sys.argv[1]), int(sys.argv[2])
    hellos = []
    for _ in range(count):
        hellos.append(cycle(pid))
        time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
    print(json.dumps(hellos))
