"""How far the wall clocks of other hosts are off from this one's, measured by their replies.

Kept by probe.client.client.  A remote clock was read between sending a request and receiving its reply: assuming the
middle is off by at most half of that time.  Invariant: this machine's own offset is 0, and no clock is corrected by
less than the error of the measurement.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..host.facts import Facts
from ..host.processes import boot_id


class ClockOffsets:
    """One offset per host, the most precise so far: it is the same for all ranks of the host."""

    def __init__(self) -> None:
        self._offsets: dict[str, tuple[int, int]] = {}  # ns by which a clock is ahead of this machine's, their error
        self._here, self._hostname = boot_id(), os.uname().nodename

    def corrected(self, said: Mapping[str, Any], sent_ns: int, received_ns: int) -> Facts:
        """The facts in a reply, with wall-clock times as this machine would have shown them, and the offset."""
        boot_of = str(said.get("boot_id") or said.get("host"))
        if boot_of in (self._here, self._hostname):
            return Facts.parse({**said, "clock_offset_ns": 0, "clock_error_ns": 0})
        new_ns, new_error_ns = said["wall_ns"] - (sent_ns + received_ns) // 2, (received_ns - sent_ns) // 2
        ahead_ns, error_ns = self._offsets.get(boot_of, (new_ns, new_error_ns))
        # the most precise offset stays, unless the clock was set meanwhile and contradicts it
        if new_error_ns < error_ns or abs(new_ns - ahead_ns) > new_error_ns + error_ns:
            ahead_ns, error_ns = new_ns, new_error_ns
        self._offsets[boot_of] = ahead_ns, error_ns
        facts = Facts.parse({**said, "clock_offset_ns": ahead_ns, "clock_error_ns": error_ns})
        certain_ns = facts.wall_correction_ns
        attached = facts.attached_wall_ns and facts.attached_wall_ns - certain_ns
        return facts._replace(wall_ns=facts.wall_ns - certain_ns, attached_wall_ns=attached)
