"""What is told of the job's threads: their names and native ids, in the log.

Called on the agent's thread.  Invariant: a thread is told again only if something about it has changed.
"""

from __future__ import annotations

import sys
from typing import Any

from ...streams import LOG_THREAD
from ..storage.log import Log
from .frames import named


class Threads:
    """told: of each thread that threading has or had, by ident."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.told: dict[int, dict[str, Any]] = {}

    def tell(self) -> None:
        threading: Any = sys.modules.get("threading")
        if threading is None or getattr(getattr(threading, "__spec__", None), "_initializing", False):
            return  # as long as it is being imported, names are missing in it
        for ident, thread in list(threading._active.items()):
            told = named(thread, thread is threading.main_thread())
            if self.told.get(ident) != told:
                self.told[ident] = told
                self._log.put(LOG_THREAD, ident, told)
