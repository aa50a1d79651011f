"""An interpreter with a GIL of its own computes beside this one, whose threads are looked at meanwhile.

usage: interpreters.py SECONDS     prints how many looks there were, and the functions of this interpreter's threads
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.inspect.frames import frames_of_others  # type: ignore[import-not-found]

interpreters: Any = __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
SECONDS = float(sys.argv[1])
BESIDE = f"""
import time
def recurse(depth):
    return recurse(depth - 1) if depth else 0
end = time.monotonic() + {SECONDS}
while time.monotonic() < end:
    recurse(50)
"""


def beside() -> None:
    created = interpreters.create()
    run = interpreters.exec if sys.version_info >= (3, 13) else interpreters.run_string
    run(created, BESIDE)
    interpreters.destroy(created)


def asleep() -> None:
    over.wait()


over = threading.Event()
threads = [threading.Thread(target=each) for each in (beside, asleep)]
for thread in threads:
    thread.start()
looks, seen = 0, set[str]()
while threads[0].is_alive():
    for frame in frames_of_others().values():
        while frame is not None:
            seen.add(frame.f_code.co_name)
            frame = frame.f_back
    looks += 1
over.set()
print(looks, sorted(seen & {"beside", "asleep", "recurse"}))
