"""What torch's own Flight Recorder says of a job's operations, beside what python.nccl_trace says."""

from __future__ import annotations

import json
import re
from itertools import zip_longest
from typing import Any, NamedTuple

from played import Played

from probe.derive.operation_types import operation_type
from target import Probe

DUMP = """
import json, torch
for each in json.loads(torch._C._distributed_c10d._dump_nccl_trace_json())["entries"][-400:]:
    print(json.dumps(each | {"frames": []}))
"""
ROWS = """SELECT group_name, group_seq, operation_type, shape, state, peer, epoch_ns(time) AS ns
FROM python.nccl_trace WHERE rank = 0 AND NOT from_flight_recorder ORDER BY seq"""

NEAR_NS = 1_000_000  # between two readings of one moment; batches are further apart


class Seen(NamedTuple):
    kind: str
    shape: str
    is_done: bool
    peer: int | None = None


def both(job: Played, probe: Probe) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The operations of rank 0 that both know, as torch's recorder and as the table has them: collectives by group and
    number, sends and receives, which have no number in common, in their order, and whether nine of ten are as near as
    they should be."""
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
    sent, rows = _sent(entries), [row for row in rows if row["operation_type"] in ("send", "recv")]
    sent = [each for each in sent if rows and each["time_created_ns"] > rows[0]["ns"] - NEAR_NS]
    first = _first(sent, rows)
    following = [each["ns"] for each in rows[first + 1 : first + len(sent) + 1]]
    for at, (entry, row, next_ns) in enumerate(zip_longest(sent, rows[first : first + len(sent)], following)):
        told["sent", at] = _of_entry(entry)
        ours["sent", at] = _of_row(row) if row is not None and _is_in_order(entry, row["ns"], next_ns) else None
        known.add(("sent", at))
    if pairs := list(zip(sent, rows[first:], strict=False)):
        told["sent", "near"] = True
        apart = sorted(abs(each["time_created_ns"] - row["ns"]) for each, row in pairs)
        ours["sent", "near"] = apart[len(apart) * 9 // 10] < NEAR_NS
        known.add(("sent", "near"))
    return {key: told[key] for key in known}, {key: ours[key] for key in known}


def _is_in_order(entry: dict[str, Any], row_ns: int, next_ns: int | None) -> bool:
    """Whether the recorder made its entry between this row and the next: its thread may have lost its core between."""
    made_ns = entry["time_created_ns"]
    return row_ns - NEAR_NS < made_ns < (made_ns + 1 if next_ns is None else next_ns + NEAR_NS)


def _first(sent: list[dict[str, Any]], rows: list[dict[str, Any]]) -> int:
    """Where those rows begin that are what was sent: where their times differ least in sum, for a single entry of the
    recorder's may be nearer to the row behind its own."""
    if not sent or len(rows) < len(sent):
        return 0
    times = [each["time_created_ns"] for each in sent]
    near = min(range(len(rows)), key=lambda at: abs(rows[at]["ns"] - times[0]))
    starts = range(max(0, near - 4), min(near + 4, len(rows) - len(sent)) + 1)
    apart = {at: sum(abs(rows[at + i]["ns"] - times[i]) for i in range(len(times))) for at in starts}
    return min(apart, key=apart.__getitem__, default=0)


def _sent(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends and receives; those of a batch have the state of the entry behind them, which stands for the batch."""
    sent, batch = [], []
    for each in entries:
        if each["is_p2p"]:
            batch.append(each)
        elif each["profiling_name"].endswith("coalesced"):
            sent += [one | {"state": each["state"]} for one in batch]
            batch = []
    return sent


def _of_entry(entry: dict[str, Any]) -> Seen:
    kind, sizes = operation_type(entry["profiling_name"].partition(":")[2]), entry["input_sizes"]
    peer = int(re.findall(r"\d+", entry["profiling_name"])[-1]) if entry["is_p2p"] else None
    return Seen(kind, str(sizes[0]) if sizes else "", entry["state"] == "completed", peer)


def _of_row(row: dict[str, Any]) -> Seen:
    shape, peer = (row["shape"] or "").partition("+")[0].strip(), row["peer"] if row["group_seq"] is None else None
    return Seen(row["operation_type"], shape, row["state"] == "done", peer)
