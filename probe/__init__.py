"""Attach to a running PyTorch job that nobody prepared, and ask it anything in SQL or Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .attach.starting import start
    from .connection import Connection, connect

__all__ = ["Connection", "__version__", "connect", "start"]


def __getattr__(name: str) -> Any:
    """connect, Connection and start on first use: `import probe` alone loads neither zmq nor anything heavier."""
    if name in ("Connection", "connect"):
        from . import connection

        return getattr(connection, name)
    if name == "start":
        from .attach.starting import start

        return start
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
