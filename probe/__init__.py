"""Attach to a running PyTorch job that nobody prepared, and ask it anything in SQL or Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connection import Connection, connect

__all__ = ["Connection", "__version__", "connect"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """connect and Connection on first use: `import probe` alone loads neither zmq nor anything heavier."""
    if name in ("Connection", "connect"):
        from . import connection

        return getattr(connection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
