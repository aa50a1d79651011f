"""Where the command has nvidia-ml-py, for a target on a host with devices.

Called by `delivery`.  It is one file of pure Python, so it fits every target that can read it; the agent loads it under
a private name, and only where there is an NVML library.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def pynvml_path() -> str | None:
    """The directory to import it from."""
    spec = find_spec("pynvml")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else None
