"""One number of a step for the whole job: ranks attached at different moments get their offsets.

Called at connect and before a query or eval.  The default group's sequence number is the same on every rank
at the same boundary, so two boundaries with the same number are the same step.  Invariant: the rank attached
first keeps its numbers, unless another one knows the optimizer's own.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from operator import sub
from typing import Any

from .. import protocol as wire
from ..client.client import AgentLink, Call, Client, Header
from ..streams import STEPS, STREAMS

_FEW, _RECENT = 64, 1024  # boundaries compared, the second if the first do not do: ranks are some steps apart
GROUP_SEQ = "group_seq"
_TWICE = -1  # instead of a count
SETTLE_S = 5.0  # rows of a job whose first steps take longer are seen only later
OWN = ("optimizer", "trainer", "scheduler")  # sources of the job's own number, best first

Boundaries = dict[int, int]  # sequence number of the default group -> count of the rank's boundaries


def align(client: Client, timeout: float) -> list[AgentLink]:
    """Give ranks the offsets they lack; the ranks for which no common boundary has been found yet."""
    links = [link for link in client.links if not link.gone]
    sources = {link.facts.get("step_source") for link in links}
    if len(links) < 2 or (len(sources) == 1 and sources <= set(OWN)):
        return []
    unsettled = [link for link in links if not link.silent and not is_settled(link)]
    if unsettled:
        return unsettled
    deadline = time.monotonic() + timeout
    lost = _align(client, links, deadline, _FEW)
    return _align(client, links, deadline, _RECENT) if lost else []


def _align(client: Client, links: Sequence[AgentLink], deadline: float, recent: int) -> list[AgentLink]:
    """By so many boundaries of each rank; those that have none in common."""
    boundaries = _boundaries(client, links, deadline, recent)
    reference = min(boundaries, key=_precedence, default=None)
    if reference is None:
        return []
    lost, calls = [], []
    for link in boundaries:
        base = link is reference or _base(reference, boundaries[reference], boundaries[link])
        if base is None:
            lost.append(link)
        elif base is not True and (base, GROUP_SEQ) != (link.facts["step_base"], link.facts["step_source"]):
            asked = not link.silent and link.role == wire.CONTROL
            calls += [client.send(link, wire.ALIGN, base=base, source=GROUP_SEQ)] if asked else []
            if link.role == wire.CONTROL:
                link.facts = {**link.facts, "step_base": base, "step_source": GROUP_SEQ}
            else:
                link.number_steps(base, GROUP_SEQ)
    client.forget(client.wait(calls, deadline))
    return lost


def is_settled(link: AgentLink) -> bool:
    """Whether the agent knows where its numbers come from."""
    return link.facts.get("step_settled") is not False


def may_change(link: AgentLink) -> bool:
    """Whether the agent may still find out the job's own number, by what is known here."""
    facts = link.facts
    return not is_settled(link) or (facts.get("step_source") == "attach" and not facts.get("count"))


def _precedence(link: AgentLink) -> tuple[int, int]:
    source = link.facts.get("step_source")
    known = OWN.index(source) if source in OWN else len(OWN)
    return known, int(link.facts.get("attached_wall_ns") or 0)


def _base(reference: AgentLink, known: Boundaries, own: Boundaries) -> int | None:
    """The job's number of a rank's count 0, by majority of the boundaries both have."""
    first = int(reference.facts.get("step_base") or 0)
    common = own.keys() & known.keys()
    votes = Counter(map(sub, map(known.__getitem__, common), map(own.__getitem__, common)))
    return first + votes.most_common(1)[0][0] if votes else None


def _boundaries(
    client: Client, links: Sequence[AgentLink], deadline: float, recent: int
) -> dict[AgentLink, Boundaries]:
    """Sequence number -> count of each rank's last boundaries; numbers that occur twice tell nothing."""
    asked = [link for link in links if not link.silent]
    seen: dict[Call, Boundaries] = {client.send(link, wire.SCAN, b"", **_scan(link, recent)): {} for link in asked}

    def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
        _add(seen[call], *_rows(call.link, int(header["first"]), payload[1].bytes))

    client.wait(list(seen), deadline, take)
    client.forget(seen)
    told = {call.link: found for call, found in seen.items() if call.answer is not None}
    stored = {link: _stored(link.pid) for link in links if link.silent and link.here}
    known = {link: {number: count for number, count in found.items() if number >= 0 and count != _TWICE}
             for link, found in {**told, **stored}.items()}  # fmt: skip
    return {link: found for link, found in known.items() if found}


def _stored(pid: int) -> Boundaries:
    """Out of the memory of a rank that does not answer."""
    from . import memory_source

    found: Boundaries = {}
    for raw in memory_source.snapshot([pid]).ranks:
        rows = raw.rows(STEPS)
        _add(found, rows["group_seq"].tolist(), rows["count"].tolist())
    return found


def _scan(link: AgentLink, recent: int) -> Header:
    first = max(1, int(link.facts.get("count") or 0) - recent)
    return {"stream": STEPS, "first": first, "last": 1 << 62, "credit": wire.CREDIT, "patch": []}


def _rows(link: AgentLink, first: int, data: bytes) -> tuple[Sequence[int], Sequence[int]]:
    """(group_seq, count) of the rows that are complete; without numpy, which eval does not need otherwise."""
    described = link.facts.get("streams", {}).get(STEPS)
    slots = list(described["slots"] if described else STREAMS[STEPS])
    values = array("q", data)
    number, count = (values[slots.index(name) :: len(slots)] for name in ("group_seq", "count"))
    if values[len(slots) - 1 :: len(slots)] == array("q", range(first, first + len(number))):
        return number, count
    whole = [i for i, place in enumerate(values[len(slots) - 1 :: len(slots)]) if place == first + i]
    return [number[i] for i in whole], [count[i] for i in whole]


def _add(found: Boundaries, numbers: Sequence[int], counts: Sequence[int]) -> None:
    """Boundaries to those that were found; a number that comes twice is marked."""
    new = dict(zip(numbers, counts, strict=True))
    if len(new) < len(numbers):
        new |= {number: _TWICE for number, times in Counter(numbers).items() if times > 1}
    new |= dict.fromkeys(new.keys() & found.keys(), _TWICE)
    found |= new
