"""How far the wall clocks of other hosts are off from this one's, measured by their replies.

Kept by probe.client.client.  A remote clock was read between sending a request and receiving its reply: assuming the
middle is off by at most half of that time.  Invariant: this machine's own offset is 0, and no clock is corrected by
less than the error of the measurement.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..host.facts import Facts
from ..host.processes import boot_id


@dataclass(frozen=True)
class ClockOffset:
    """How far a clock is ahead of this machine's."""

    ns: int
    error_ns: int

    @property
    def is_known(self) -> bool:
        """Whether there is certainly an offset."""
        return abs(self.ns) > self.error_ns


class ClockOffsets:
    """One offset per host, the most precise so far: it is the same for all ranks of the host."""

    def __init__(self) -> None:
        self._offsets: dict[str, ClockOffset] = {}
        self._here, self._hostname = boot_id(), os.uname().nodename

    def corrected(self, said: Mapping[str, Any], sent_ns: int, received_ns: int) -> Facts:
        """The facts in a reply, with wall-clock times as this machine would have shown them, and the offset."""
        boot_of = str(said.get("boot_id") or said.get("host"))
        if boot_of in (self._here, self._hostname):
            return Facts.parse({**said, "clock_offset_ns": 0, "clock_error_ns": 0})
        middle_ns, error_ns = (sent_ns + received_ns) // 2, (received_ns - sent_ns) // 2
        offset = self._learn(boot_of, ClockOffset(said["wall_ns"] - middle_ns, error_ns))
        facts = Facts.parse({**said, "clock_offset_ns": offset.ns, "clock_error_ns": offset.error_ns})
        if not offset.is_known:
            return facts
        attached = facts.attached_wall_ns and facts.attached_wall_ns - offset.ns
        return replace(facts, wall_ns=facts.wall_ns - offset.ns, attached_wall_ns=attached)

    def _learn(self, host: str, new: ClockOffset) -> ClockOffset:
        """Keep the most precise offset, unless the clock was set meanwhile and contradicts it."""
        old = self._offsets.get(host)
        if old is None or new.error_ns < old.error_ns or abs(new.ns - old.ns) > new.error_ns + old.error_ns:
            self._offsets[host] = new
        return self._offsets[host]
