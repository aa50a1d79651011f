"""A process with one simulated rank: real rings, log and socket of the agent, uneven steps, and no job.

    python tests/planted_rank.py FOLDER RANK OF HOST STEP_ENDS

Prints the rank's facts as JSON, then serves until its input ends.  Ranks of one host may be read out of their memory.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_agent import FakeAgent
from uneven import MS, STEPS, train


@contextmanager
def planted_ranks(
    folder: Path, hosts: list[str], of_each: int, step_ends: str = ""
) -> Iterator[list[list[dict[str, Any]]]]:
    """The facts of each host's ranks."""
    ranks = range(len(hosts) * of_each)
    words = [[str(folder), str(rank), str(len(ranks)), hosts[rank // of_each], step_ends] for rank in ranks]
    processes = [
        subprocess.Popen([sys.executable, __file__, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for each in words
    ]
    try:
        facts = [json.loads(process.stdout.readline()) for process in processes if process.stdout is not None]
        yield [facts[at : at + of_each] for at in range(0, len(facts), of_each)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def main() -> None:
    folder, rank, of, host, step_ends = sys.argv[1:]
    numbered: dict[str, Any] = {"step_ends": step_ends, "step_source": "optimizer"}  # so that no rank is aligned
    agent = FakeAgent(Path(folder), int(rank), int(of), host=host, boot_id=host, **numbered)
    train(agent, random.Random(rank), STEPS - 2 * int(rank))
    for second in range(40):
        agent.sample(second * 1000 * MS, (1, second * 100 * MS), (10, second * 70), (11, second * 30))
    wall_ns = time.time_ns()
    agent.now = lambda: {**agent.facts, "monotonic_ns": agent.facts["last_step_ns"] + MS, "wall_ns": wall_ns}  # type: ignore[method-assign]
    agent.publish()
    print(json.dumps(agent.now()), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
