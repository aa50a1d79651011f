"""The agent put into this very process, by the job itself: where attaching from outside is forbidden.

Called as probe.start().  It is the code that an attach runs inside, from the same sources and under the same name, so
that an attach which comes later finds it.
"""

from __future__ import annotations

import os
from typing import Any

from ..version import __version__
from .bootstrap import IN_THE_TARGET
from .bundle import agent_bundle, digest
from .delivery import modules
from .pynvml_loan import pynvml_path

_PATIENCE_S = 10.0  # with an attach that is under way


def start() -> None:
    """Put the agent into this process, unless it is there; its pid is the endpoint from then on.

    For jobs in which one line may be written and that nobody may trace.  Any thread, some 50 ms, nothing returned;
    raises what keeps the agent from starting.  `probe PID detach` takes it out.
    """
    import zmq  # noqa: F401 - the agent finds it imported, as an attach leaves it

    scope: dict[str, Any] = {"__name__": "_probe_bootstrap"}
    exec(IN_THE_TARGET, scope)
    facts = {"uid": os.geteuid(), "version": __version__, "pynvml_path": pynvml_path()}
    bundle = agent_bundle()
    code = digest(bundle, __version__)
    scope["_start"]({"patience": _PATIENCE_S, "facts": facts, "digest": code, "modules": modules(bundle, True)})
