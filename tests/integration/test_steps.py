"""`step` is one number for the whole job, whenever its ranks were attached."""

from __future__ import annotations

import re
import time

from until import until

import probe as reader
from target import Probe, Start

STEPS = 200
COMMON = "SELECT max(m) + 1 AS first FROM (SELECT rank, min(step) AS m FROM python.nccl_trace GROUP BY rank)"
LONE = f"""
    WITH seen AS (SELECT rank, step, group_seq FROM python.nccl_trace
                  WHERE operation_type = 'all_reduce' AND state = 'done' AND step >= ({COMMON})
                    AND step <= (SELECT max(step) FROM python.torch_trace))
    SELECT count(DISTINCT step) AS steps, count(*) AS operations,
           count(*) FILTER (NOT EXISTS (SELECT 1 FROM seen b WHERE b.rank <> a.rank AND b.step = a.step
                                        AND b.group_seq = a.group_seq)) AS lone
    FROM seen a
"""


def test_ranks_attached_three_seconds_apart_join_on_step_and_group_seq(start: Start, probe: Probe) -> None:
    target = start("loop.py", "--sleep", "0.005", ranks=2)
    pids = {int(rank): int(pid) for pid, rank in re.findall(r"ready (\d+) rank=(\d)", target.output)}
    probe("attach", pids[0])
    time.sleep(3)
    probe("attach", pids[1])
    with reader.connect(str(target.pid)) as connection:

        def enough() -> dict[str, int] | None:
            (row,) = connection.query(LONE).to_pylist()
            return row if row["steps"] >= STEPS and row["operations"] >= 2 * STEPS else None  # of both ranks

        row = until(enough, 60, every_s=1)
        sources = [facts.step_source for facts in connection.agents]
        notes = [note.code for note in connection.query(LONE).notes]
    assert row["lone"] == 0
    assert sources == ["attach", "group_seq"] and "unmatched-steps" not in notes


EXCHANGE = """import torch.distributed as dist
if (rank_ := dist.get_rank()) > 0:
    few = torch.zeros(1)
    dist.send(few, 2) if rank_ == 1 else dist.recv(few, 1)
"""


def test_sends_and_receives_between_some_ranks_do_not_shift_their_steps(start: Start, probe: Probe) -> None:
    """Gloo counts them among the default group's operations, on these ranks alone."""
    target = start("loop.py", "--sleep", "0.005", ranks=3)
    probe("attach", target.pid)
    until(lambda: newest(target.pid) > 20)
    with reader.connect(str(target.pid)) as connection:
        before = bases(connection)
        for _ in range(4):
            assert all(one.ok for one in connection.eval(EXCHANGE))
        steps = max(one.step_base + one.count for one in connection.agents)
    until(lambda: newest(target.pid) > steps + 100)  # numbers that differ now are most of those compared
    with reader.connect(str(target.pid)) as connection:
        assert bases(connection) == before
        assert all(one.ok for one in connection.eval("torch.distributed.barrier()"))


def bases(connection: reader.Connection) -> list[int]:
    return [one.step_base for one in connection.agents]


def newest(pid: int) -> int:
    with reader.connect(str(pid)) as connection:
        return max(one.step_base + one.count for one in connection.agents)
