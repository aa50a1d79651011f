"""Which processors attaching knows, and which of them this machine has.  A new one is one file and one line here."""

from __future__ import annotations

import platform

from ...errors import AttachError
from .architecture import Architecture
from .x86_64 import X86_64


def this_machine() -> Architecture:
    """Raises AttachError on a processor that is not known."""
    machine = platform.machine()
    if machine == "x86_64":
        return X86_64()
    raise AttachError(
        f"This machine is {machine}; attaching works on x86_64 only.", "Call probe.start() in the job.", "architecture"
    )
