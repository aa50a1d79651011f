"""One number of a step for the whole job: ranks attached at different moments get their offsets.

Called at connect and before a query or eval.  The default group's sequence number is the same on every rank
at the same boundary, so two boundaries with the same number are the same step.  Invariant: the rank attached
first keeps its numbers, unless another one knows the optimizer's own.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from . import protocol as wire
from .client import Call, Client, Header, Link
from .streams import STEPS, STREAMS

_RECENT = 1024  # boundaries compared; ranks are at most some steps apart
GROUP_SEQ = "group_seq"
SETTLE_S = 5.0  # rows of a job whose first steps take longer are seen only later
OWN = ("optimizer", "trainer", "scheduler")  # sources of the job's own number, best first


def align(client: Client, timeout: float) -> list[Link]:
    """Give ranks the offsets they lack; the ranks for which no common boundary has been found yet."""
    links = [link for link in client.links if not link.gone]
    sources = {link.facts.get("step_source") for link in links}
    if len(links) < 2 or (len(sources) == 1 and sources <= set(OWN)):
        return []
    unsettled = [link for link in links if not link.silent and not is_settled(link)]
    if unsettled:
        return unsettled
    deadline = time.monotonic() + timeout
    boundaries = _boundaries(client, links, deadline)
    reference = min(boundaries, key=_precedence, default=None)
    if reference is None:
        return []
    lost, calls = [], []
    for link in boundaries:
        base = link is reference or _base(reference, boundaries[reference], boundaries[link])
        if base is None:
            lost.append(link)
        elif base is not True and (base, GROUP_SEQ) != (link.facts["step_base"], link.facts["step_source"]):
            calls += [] if link.silent else [client.send(link, wire.ALIGN, base=base, source=GROUP_SEQ)]
            link.facts = {**link.facts, "step_base": base, "step_source": GROUP_SEQ}
    client.forget(client.wait(calls, deadline))
    return lost


def is_settled(link: Link) -> bool:
    """Whether the agent knows where its numbers come from."""
    return link.facts.get("step_settled") is not False


def may_change(link: Link) -> bool:
    """Whether the agent may still find out the job's own number, by what is known here."""
    facts = link.facts
    return not is_settled(link) or (facts.get("step_source") == "attach" and not facts.get("count"))


def _precedence(link: Link) -> tuple[int, int]:
    source = link.facts.get("step_source")
    known = OWN.index(source) if source in OWN else len(OWN)
    return known, int(link.facts.get("attached_wall_ns") or 0)


def _base(reference: Link, known: dict[int, int], own: dict[int, int]) -> int | None:
    """The job's number of a rank's count 0, by majority of the boundaries both have."""
    first = int(reference.facts.get("step_base") or 0)
    votes = Counter(first + known[number] - count for number, count in own.items() if number in known)
    return votes.most_common(1)[0][0] if votes else None


def _boundaries(client: Client, links: Sequence[Link], deadline: float) -> dict[Link, dict[int, int]]:
    """Sequence number -> count of each rank's last boundaries; numbers that occur twice tell nothing."""
    asked = [link for link in links if not link.silent]
    seen: dict[Call, list[tuple[int, int]]] = {client.send(link, wire.SCAN, b"", **_scan(link)): [] for link in asked}

    def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
        seen[call] += _rows(call.link, int(header["first"]), payload[1].bytes)

    client.wait(list(seen), deadline, take)
    client.forget(seen)
    told = {call.link: pairs for call, pairs in seen.items() if call.answer is not None}
    stored = {link: _stored(link.pid) for link in links if link.silent}
    return {link: _once(pairs) for link, pairs in {**told, **stored}.items() if pairs}


def _stored(pid: int) -> list[tuple[int, int]]:
    """Out of the memory of a rank that does not answer."""
    from . import memfd

    job = memfd.snapshot([pid])
    rows = [raw.rows(STEPS) for raw in job.raws]
    return [
        pair for each in rows for pair in zip(*(each[slot].tolist() for slot in ("group_seq", "count")), strict=True)
    ]


def _scan(link: Link) -> Header:
    first = max(1, int(link.facts.get("count") or 0) - _RECENT)
    return {"stream": STEPS, "first": first, "last": 1 << 62, "credit": wire.CREDIT, "patch": []}


def _rows(link: Link, first: int, data: bytes) -> list[tuple[int, int]]:
    described = link.facts.get("streams", {}).get(STEPS)
    slots = list(described["slots"] if described else STREAMS[STEPS])
    number, count = slots.index("group_seq"), slots.index("count")
    rows = struct.iter_unpack(f"<{len(slots)}q", data)
    return [(row[number], row[count]) for place, row in enumerate(rows, first) if row[-1] == place]


def _once(pairs: list[tuple[int, int]]) -> dict[int, int]:
    times = Counter(number for number, _ in pairs)
    return {number: count for number, count in pairs if number >= 0 and times[number] == 1}
