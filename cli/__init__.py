"""The `probe` command: a thin user of the Python API.  Data goes to stdout, talk to stderr."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script.  Ctrl-C has its one line even while the command is still being imported."""
    try:
        from .entry import main as enter

        enter()
    except KeyboardInterrupt:
        import os

        os.write(2, b"probe: [interrupted] Interrupted.\n")
        os._exit(130)


__all__ = ["main"]
