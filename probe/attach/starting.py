"""probe.start(): the job itself puts the agent into its own process, where attaching from outside is forbidden.

It runs the code that an attach runs inside, from the same sources and under the same name, so that a later attach finds
the agent.
"""

from __future__ import annotations

import os
from typing import Any

from ..version import __version__
from .bootstrap import IN_THE_TARGET
from .bundle import agent_bundle, digest, packed
from .lent_packages import pynvml_path

_PATIENCE_S = 10.0  # while another attach is under way


def start() -> None:
    """Put the agent into this process, unless it is there; its pid is the endpoint from then on.

    For jobs that nobody may trace but to which one line can be added.  Any thread.  `probe PID detach` removes it.
    Raises whatever keeps the agent from starting.  Cost: some 50 ms, then that of an attached agent.

    Example: `import probe; probe.start()`
    """
    import zmq  # noqa: F401 - the agent finds it imported, as after an attach

    scope: dict[str, Any] = {"__name__": "_probe_bootstrap"}
    exec(IN_THE_TARGET, scope)
    facts = {"uid": os.geteuid(), "version": __version__, "pynvml_path": pynvml_path()}
    bundle = agent_bundle()
    order = {"digest": digest(bundle, __version__), "modules": packed(bundle, same_bytecode=True)}
    scope["_start"]({"patience": _PATIENCE_S, "facts": facts, **order})
