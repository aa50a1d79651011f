"""The `probe` command: a thin user of the Python API.

It may import all of `probe` except the agent.  Invariant: data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script.  Ctrl-C is reported in one line even while the command is still being imported."""
    try:
        from .signals import let_ctrl_c_wait

        let_ctrl_c_wait()
        from .entry import main as enter

        enter()
    except KeyboardInterrupt:
        import os

        os.write(2, b"probe: [interrupted] Interrupted.\n")
        os._exit(130)


__all__ = ["main"]
