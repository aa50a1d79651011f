"""What of the agent has descriptors: its socket, its memory, the file that tells its RSS.

Made by main before the agent.  Invariant: all of it or nothing: what has been made is closed again if the rest fails,
and in a child that is forked meanwhile.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from functools import partial

from ..streams import ON_DEMAND, STREAMS
from . import fork
from .facts import start_ticks
from .serve.listening import listener_in_new_folder
from .serve.server import Server
from .steps.rss import Rss
from .storage.header import Header
from .storage.log import Log
from .storage.rows import Stream


class Opened:
    """The agent's parts of these names.  streams: some are added on demand."""

    def __init__(self, uids: set[int], made: ExitStack) -> None:
        """made: closes what was made, until nothing can fail any more.  Raises OSError."""
        fork.in_child(partial(_abandon, made))
        made.callback(fork.clear)
        listener = made.enter_context(closing(listener_in_new_folder(f"{os.getpid()}-{start_ticks()}.sock")))
        made.callback(listener.remove)
        self.server = Server(listener, uids)
        made.callback(self.server.connections.abandon)
        self.rss = made.enter_context(closing(Rss()))
        self.header = made.enter_context(closing(Header()))
        self.log = made.enter_context(closing(Log()))
        self.streams: dict[str, Stream] = {}
        for name in (each for each in STREAMS if each not in ON_DEMAND):
            self.streams[name] = made.enter_context(closing(Stream(name, STREAMS[name])))

    def memory(self) -> list[Stream | Log | Header | Rss]:
        """What is to be closed when the agent has ended, and in a forked child."""
        return [*self.streams.values(), self.log, self.header, self.rss]


def _abandon(made: ExitStack) -> None:
    """In a child forked before there is an agent."""
    made.close()
    fork.forget_modules()
