"""How far the wall clocks of other hosts are from this one's, by the replies that bring a reading of theirs.

Kept by probe.client.client.  A clock was read between the sending of a request and the coming of its reply: the middle
is off by half of that time at most.  Invariant: this machine's own offset is 0, and no clock is corrected by less than
what the measurement may be off.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..host.processes import boot_id

Facts = dict[str, Any]


@dataclass(frozen=True)
class ClockOffset:
    """How far a clock is ahead of this machine's."""

    ns: int
    error_ns: int

    @property
    def is_known(self) -> bool:
        """Whether it is certain that there is any."""
        return abs(self.ns) > self.error_ns


class ClockOffsets:
    """One offset a host, the surest one so far: what its ranks tell then differs by no measurement."""

    def __init__(self) -> None:
        self._offsets: dict[str, ClockOffset] = {}
        self._here = boot_id()

    def corrected(self, facts: Facts, sent_ns: int, received_ns: int) -> Facts:
        """The facts with their wall clock as this machine's would have shown, and how far it was off."""
        boot_of = str(facts.get("boot_id") or facts.get("host"))
        if boot_of in (self._here, os.uname().nodename):
            return {**facts, "clock_offset_ns": 0, "clock_error_ns": 0}
        middle_ns, error_ns = (sent_ns + received_ns) // 2, (received_ns - sent_ns) // 2
        offset = self._learn(boot_of, ClockOffset(facts["wall_ns"] - middle_ns, error_ns))
        known = {**facts, "clock_offset_ns": offset.ns, "clock_error_ns": offset.error_ns}
        for name in ("wall_ns", "attached_wall_ns") if offset.is_known else ():
            if known.get(name):
                known[name] -= offset.ns
        return known

    def _learn(self, host: str, new: ClockOffset) -> ClockOffset:
        """A clock that was set meanwhile contradicts what was known of it."""
        old = self._offsets.get(host)
        if old is None or new.error_ns < old.error_ns or abs(new.ns - old.ns) > new.error_ns + old.error_ns:
            self._offsets[host] = new
        return self._offsets[host]
