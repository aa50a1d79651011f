"""One request to one agent, from its sending to what came of it.

Made by client.  Invariant: it ends once, with an answer or with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ProbeError
from .agent_link import AgentLink, Header
from .reply_schema import Expected


class Call:
    """answer: its terminal reply, which came at answered_at (monotonic); error: what went wrong instead."""

    def __init__(self, link: AgentLink, id: bytes, kind: str) -> None:
        self.link, self.id, self.kind = link, id, kind
        self.sent_ns = time.time_ns()
        self.connection = 0 if link.route is None else link.route.carrier.connections
        self.answer: Header | None = None
        self.answered_at = 0.0
        self.error: ProbeError | None = None
        self.expected: Expected | None = None  # of a stream
        self.received = 0

    @property
    def over(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self) -> Header:
        """The terminal reply.  Raises the error if there is one instead."""
        if self.answer is None:
            raise self.error or AssertionError("the request is not over")
        return self.answer


OnReply = Callable[[Call, Header, Sequence[Any]], None]
