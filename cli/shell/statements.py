"""SQL text split into tokens and statements by DuckDB's own tokenizer, so a `;` in a string or comment ends nothing.

Called by the shell for what was typed so far, and by querying.py for what the server did not answer.  Invariant: pure;
duckdb is imported on the first call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from probe.errors import QueryError

# Types of statements whose only effect would vanish with the snapshot that they ran on.
_WITHOUT_EFFECT = frozenset(
    ("ALTER", "ATTACH", "CREATE", "DELETE", "DETACH", "DROP", "EXECUTE", "INSERT", "MERGE_INTO", "PREPARE", "SET",
     "TRANSACTION", "UPDATE")
)  # fmt: skip

# What only reads, told without DuckDB: its parser opens a database, 40 ms of a query that is asked once.
_ONLY_READS = re.compile(r"\s*(?:SELECT|FROM)\b[^;]*;?\s*\Z", re.IGNORECASE)


class Token(NamedTuple):
    """kind: DuckDB's word for it: keyword, identifier, operator, numeric_const, string_const, comment."""

    start: int
    end: int
    kind: str


def tokens(text: str) -> list[Token]:
    """The tokens by their positions in the text, each up to the next one; DuckDB 1 leaves comments out."""
    import duckdb

    clean = text.encode("utf-8", "replace").decode()  # bytes that are not text arrive as lone surrogates
    found = [(offset, kind.name) for offset, kind in duckdb.tokenize(clean)]
    if not clean.isascii():  # DuckDB counts bytes
        place = {byte: char for char, byte in enumerate(accumulate((len(c.encode()) for c in clean), initial=0))}
        found = [(place[offset], kind) for offset, kind in found]
    ends = [*(offset for offset, _ in found), len(text)][1:]
    # of "$?" it says that two tokens begin at the dollar
    return [Token(start, end, kind) for (start, kind), end in zip(found, ends, strict=True) if start < end]


def is_complete(text: str) -> bool:
    """Whether the last statement has its `;`, or there is no statement at all."""
    words = [token for token in tokens(text) if token.kind != "comment"]
    return _is_end(text, words[-1]) if words else text.count("/*") <= text.count("*/")


def split(text: str) -> list[str]:
    """The statements without their `;`; comments alone are not a statement."""
    pieces = [piece for start, end in _bounds(text) if (piece := text[start:end].strip())]
    return [p for p in pieces if any(token.kind != "comment" for token in tokens(p)) or not is_complete(p)]


def statement_at(text: str, place: int) -> tuple[int, int]:
    """Where the statement at this position begins and ends."""
    return next((start, end) for start, end in _bounds(text) if place <= end)


def check(text: str) -> None:
    """Raises QueryError for statements without any visible effect.  What changes an attached file has one."""
    if _ONLY_READS.match(text):
        return
    import duckdb

    try:
        kinds = [each.type.name for each in duckdb.extract_statements(text)]
    except duckdb.Error:  # the query itself reports this better
        return
    *before, last = kinds or [""]  # DuckDB 1 turns PIVOT into a CREATE and a SELECT
    if last in _WITHOUT_EFFECT and "ATTACH" not in before:
        what = last.replace("_", " ")
        raise QueryError(
            f"{what} has no effect: each query sees a fresh snapshot of the job and nothing else.",
            "Use one statement: WITH name AS (SELECT …) SELECT …",
        )


def _bounds(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for token in tokens(text):
        if _is_end(text, token):
            yield start, token.start
            start = token.start + 1
    yield start, len(text)


def _is_end(text: str, token: Token) -> bool:
    return token.kind == "operator" and text[token.start] == ";"
