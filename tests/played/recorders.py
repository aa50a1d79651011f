"""What torch's own Flight Recorder says of a job's operations, beside what python.nccl_trace says."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from played import Played

from probe.derive.operation_types import operation_type
from target import Probe

DUMP = """
import json, torch
for each in json.loads(torch._C._distributed_c10d._dump_nccl_trace_json())["entries"][-400:]:
    print(json.dumps(each | {"frames": []}))
"""
ROWS = """SELECT group_name, group_seq, operation_type, shape, state
FROM python.nccl_trace WHERE rank = 0 AND NOT from_flight_recorder ORDER BY seq"""


class Seen(NamedTuple):
    kind: str
    shape: str
    is_done: bool


def both(job: Played, probe: Probe) -> tuple[dict[Any, Seen], dict[Any, Seen]]:
    """The collectives of rank 0 that both know, by group and number: as torch's recorder and as the table has them."""
    pid = job.target.pid
    entries = list(map(json.loads, probe(pid, "eval", "--rank", "0", DUMP).stdout.splitlines()))
    rows = json.loads(probe(pid, "query", "--open", "--format", "json", ROWS).stdout)
    told = {
        (each["process_group"][0], each["collective_seq_id"]): _of_entry(each)
        for each in entries
        if not each["is_p2p"] and not each["profiling_name"].endswith("coalesced")
    }
    ours = {(row["group_name"], row["group_seq"]): _of_row(row) for row in rows if row["group_seq"] is not None}
    known = told.keys() & ours.keys()
    return {key: told[key] for key in known}, {key: ours[key] for key in known}


def _of_entry(entry: dict[str, Any]) -> Seen:
    kind, sizes = operation_type(entry["profiling_name"].partition(":")[2]), entry["input_sizes"]
    return Seen(kind, str(sizes[0]) if sizes else "", entry["state"] == "completed")


def _of_row(row: dict[str, Any]) -> Seen:
    return Seen(row["operation_type"], (row["shape"] or "").partition("+")[0].strip(), row["state"] == "done")
