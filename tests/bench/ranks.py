"""A process that holds simulated ranks: real servers, streams and logs of the agent, with small rings and no job.

    python tests/bench/ranks.py FOLDER FIRST COUNT OF ROWS ENDS_NS [BOOT_ID]

Run by fan.py.  ENDS_NS: when the last step of all ranks of the job ends, in ns of the monotonic clock; BOOT_ID: of the
host that they say they are on.  Prints the facts of each rank as JSON, a line each,
then serves until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fake_agent import FakeAgent

ROWS_A_STEP = 5  # of python.torch_trace, as FakeAgent.train makes them
UNIT_NS = 1000


def filled(folder: Path, rank: int, of: int, rows: int, ends_ns: int, **facts: Any) -> FakeAgent:
    """So many rows of python.torch_trace, of steps that all ranks share."""
    steps = rows // ROWS_A_STEP
    one = FakeAgent(folder, rank, of, distributed=True, **facts)
    one.name_modules()
    one.train(steps + 1, ends_ns - (steps + 1) * 1000 * UNIT_NS, group_seq=0, unit=UNIT_NS)
    one.publish()
    return one


def main() -> None:
    folder, (first, count, of, rows, ends_ns) = Path(sys.argv[1]), map(int, sys.argv[2:7])
    facts = {"boot_id": sys.argv[7]} if len(sys.argv) > 7 else {}
    ranks = [filled(folder, rank, of, rows, ends_ns, **facts) for rank in range(first, first + count)]
    for one in ranks:
        print(json.dumps(one.now()), flush=True)
    sys.stdin.read()
    os._exit(0)  # hundreds of servers need not be closed one by one


if __name__ == "__main__":
    main()
