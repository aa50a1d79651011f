"""Attach to a running PyTorch job that nobody prepared, and ask it anything in SQL or Python."""

__version__ = "0.1.0"
