"""Room for the sockets to many agents: raises the soft limit of open files if it is too low.

Called before connecting and attaching.  Invariant: too low a limit is reported before a socket fails.
"""

from __future__ import annotations

import os
import resource

from ..errors import EndpointError

PER_AGENT = 1  # one that is asked at its own socket
_REST = 64  # zmq's threads and connections to servers, DuckDB, files


def make_room(agents: int) -> None:
    """Raises EndpointError if even the hard limit is too low for so many agents."""
    needed = len(os.listdir("/proc/self/fd")) + PER_AGENT * agents + _REST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        ranks = "1 rank needs" if agents == 1 else f"{agents} ranks need"
        message = f"{ranks} {needed} open files, and no more than {hard} are allowed here."
        raise EndpointError(message, "Have the hard limit raised (ulimit -Hn), or ask for fewer ranks.", "open-files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
