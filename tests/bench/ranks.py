"""A process that holds simulated ranks: real servers, streams and logs of the agent, with small rings and no job.

    python tests/bench/ranks.py FOLDER FIRST COUNT OF ROWS ENDS_NS [BOOT_ID [apart]]

Run by fan.py and parts.py.  ENDS_NS: when the last step of all ranks of the job ends, in ns of the monotonic clock;
BOOT_ID: of the host that they say they are on; apart: each rank is a process, forked from this one.  Prints the facts
of each rank as JSON, a line each, then serves until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fake_agent import FakeAgent

ROWS_A_STEP = 5  # of python.torch_trace, as FakeAgent.train makes them
UNIT_NS = 1000
_BYTES_A_ROW = 64  # of the stream that grows fastest


def filled(folder: Path, rank: int, of: int, rows: int, ends_ns: int, **facts: Any) -> FakeAgent:
    """So many rows of python.torch_trace, of steps that all ranks share."""
    steps = rows // ROWS_A_STEP
    ring_bytes = max(1 << 20, 1 << (rows * _BYTES_A_ROW).bit_length())
    one = FakeAgent(folder, rank, of, distributed=True, ring_bytes=ring_bytes, **facts)
    one.name_modules()
    one.train(steps + 1, ends_ns - (steps + 1) * 1000 * UNIT_NS, group_seq=0, unit=UNIT_NS)
    one.publish()
    return one


def main() -> None:
    folder, (first, count, of, rows, ends_ns) = Path(sys.argv[1]), map(int, sys.argv[2:7])
    facts = {"boot_id": sys.argv[7]} if len(sys.argv) > 7 else {}

    def serve(ranks: range) -> None:
        made = [filled(folder, rank, of, rows, ends_ns, **facts) for rank in ranks]
        for one in made:
            print(json.dumps(one.now()), flush=True)

    here = range(first, first + count)
    if sys.argv[8:] == ["apart"]:
        for rank in here:
            begin_apart(partial(serve, range(rank, rank + 1)))
    else:
        serve(here)
    sys.stdin.read()
    os._exit(0)  # hundreds of servers need not be closed one by one


def begin_apart(serve: Callable[[], None]) -> None:
    """In a process of its own, which ends with the input; returns once it serves."""
    reader, writer = os.pipe()
    if not os.fork():
        serve()
        os.close(writer)
        sys.stdin.read()
        os._exit(0)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)


if __name__ == "__main__":
    main()
