"""A fault of ours in words, for facts: a reader shows it.

Invariant: it is short enough that facts, which are not published beyond 32 KB, have room for one of each tap.
"""

from __future__ import annotations

from .job_signals import raised_by_handler

_MOST = 1000  # characters, as JSON escapes them


def in_words(error: BaseException) -> str:
    """As repr() has it, or the beginning; its class alone where repr(), which may be code of the job's, raises."""
    try:
        text = repr(error)
        return text if len(ascii(text)) <= _MOST else f"{ascii(error)[:_MOST]} …"
    except Exception as failed:
        if raised_by_handler(failed):
            raise
        return type(error).__name__
