"""Histories of the device allocators of several ranks at once: begun, watched, ended, and taken.

Called by probe.control.  Invariant: whatever ends this, no rank goes on recording.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from .. import protocol as wire
from ..client.agent_link import AgentLink
from ..client.agent_requests import Unreached
from ..client.client import Client
from ..errors import AgentError, ProbeError, SilentError
from .allocations import snapshot_of

_LOOK_S = 0.25
_PATIENCE_S = 1.0  # for one look, which tells the ranks that answer that somebody waits
_LATE_S = 90.0  # agents wait 30 s for a boundary; then it has to be packed


@dataclass(frozen=True)
class RankHistory:
    """What the allocators of a rank did meanwhile.  first_step: in which it began; why: it ended early, in words;
    start_ns, end_ns: on the monotonic clock of its host; held_s: torch kept the GIL so long at its end; snapshot: as
    torch.cuda.memory._snapshot() makes it, for torch's memory viewer.

    Example: `pickle.dump(job.history(2)[0].snapshot, open("snapshot.pickle", "wb"))`
    """

    rank: int
    first_step: int
    steps: int
    why: str
    start_ns: int
    end_ns: int
    held_s: float
    snapshot: dict[str, Any]


@dataclass(frozen=True)
class Order:
    """steps: so many, at most for these seconds; 0: for these seconds.  entries: the last so many are kept, of each
    device; stacks: Python's, of each allocation."""

    steps: int
    seconds: float
    entries: int
    stacks: bool


Told = dict[AgentLink, Mapping[str, Any]]


def record(
    client: Client, links: Sequence[AgentLink], order: Order, timeout: float
) -> tuple[list[RankHistory], list[Unreached]]:
    """The histories, and the ranks without one.  Raises what kept the first from it, if there are none."""
    id = secrets.token_hex(8)
    errors: dict[AgentLink, ProbeError] = {}
    try:
        told = _asked(client, links, errors, timeout, id=id, order=asdict(order))
        end = time.monotonic() + order.seconds + _LATE_S
        while (late := [link for link, each in told.items() if not each["over"]]) and time.monotonic() < end:
            client.sleep(time.monotonic() + _LOOK_S)
            told |= _looked_at(client, late, errors, id)
            told = {link: each for link, each in told.items() if link not in errors}
    except BaseException:
        client.interrupted = False
        with suppress(ProbeError):
            _asked(client, links, {}, timeout, id=id, stop=True)
        raise
    errors |= {link: AgentError(f"{link.name}: {each['fault']}.", code="no-history") for link, each in told.items()
               if each["fault"]}  # fmt: skip
    errors |= {link: SilentError(f"{link.name} has not ended its history.") for link in late}
    return _taken(client, {link: each for link, each in told.items() if link not in errors}, errors, timeout)


def _asked(
    client: Client, links: Sequence[AgentLink], errors: dict[AgentLink, ProbeError], timeout: float, **fields: Any
) -> Told:
    calls = client.ask(wire.RECORD, time.monotonic() + timeout, links, **fields)
    errors |= {call.link: call.error for call in calls if call.error is not None}
    return {call.link: call.answer for call in calls if call.answer is not None}


def _looked_at(client: Client, links: Sequence[AgentLink], errors: dict[AgentLink, ProbeError], id: str) -> Told:
    """How far those are that tell it at once; the others are asked again."""
    calls = [client.send(link, wire.RECORD, id=id) for link in links]
    client.forget(client.wait(calls, time.monotonic() + _PATIENCE_S))
    errors |= {call.link: call.error for call in calls if call.error is not None}
    return {call.link: call.answer for call in calls if call.answer is not None}


def _taken(
    client: Client, told: Told, errors: dict[AgentLink, ProbeError], timeout: float
) -> tuple[list[RankHistory], list[Unreached]]:
    calls = client.ask(wire.HISTORY, time.monotonic() + timeout, list(told))
    errors |= {call.link: call.error for call in calls if call.error is not None}
    found = [_made(call.link, told[call.link], call.answer["packed"]) for call in calls if call.answer is not None]
    if not found:
        raise next(iter(errors.values()))
    lost = [Unreached(link.rank, link.pid, link.host, str(why).rstrip(".")) for link, why in errors.items()]
    return sorted(found, key=lambda each: each.rank), lost


def _made(link: AgentLink, told: Mapping[str, Any], packed: str) -> RankHistory:
    return RankHistory(
        link.rank, link.facts.step_base + told["count"], told["steps"], told["why"], told["start_ns"], told["end_ns"],
        told["held_ns"] / 1e9, snapshot_of(packed),
    )  # fmt: skip
