"""A job that is stopped is read from its memory into the rows that the wire gave."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from probe import connect, memfd
from probe.sql import Query
from probe.tables import TABLES
from target import Probe, Start

SQL = "SELECT * EXCLUDE (time) FROM python.torch_trace WHERE step <= {last} ORDER BY seq, stage, module, start_ns"


def test_a_stopped_job_gives_the_same_rows(start: Start, probe: Probe, tmp_path: Path) -> None:
    job = start("witness.py", str(tmp_path / "state"))
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    with connect(str(job.pid)) as connection:
        # two looks of the agent's thread at what is new: module names lie in the log
        time.sleep(2.5)
        last = connection.query("SELECT MAX(step) AS last FROM python.torch_trace").to_pylist()[0]["last"]
        expected = connection.query(SQL.format(last=last))
    os.kill(job.pid, signal.SIGSTOP)
    query = Query(TABLES, memfd.snapshot([job.pid]))
    found = query.run(SQL.format(last=last))
    query.close()
    assert expected.num_rows > 500 and found.equals(expected)
