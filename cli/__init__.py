"""The `probe` command: a thin user of the Python API.  Data goes to stdout, talk to stderr."""

from .entry import main

__all__ = ["main"]
