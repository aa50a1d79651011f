"""What may stand at a position of an SQL text: columns of the tables that the statement names, tables, SQL's own words.

Called by cli/shell/prompt.py with what was typed; tables and columns come from their declarations.  Invariant: pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .statements import Token, statement_at, tokens

if TYPE_CHECKING:
    from probe.schema import Column
    from probe.tables.declaration import Table

# The alias is only looked ahead at: it may be the JOIN of the next table.
_NAMED = re.compile(
    r"(?:\b(?:FROM|JOIN|DESCRIBE|SUMMARIZE)\s+|,\s*)((?:\w+\.)?\w+)(?=\s+(?:AS\s+)?(\w+)|)", re.IGNORECASE
)
_BEFORE_A_TABLE = frozenset(("FROM", "JOIN", "DESCRIBE", "SUMMARIZE", "TABLE"))
_BEGINNINGS = ("SELECT", "FROM", "WITH", "DESCRIBE", "SUMMARIZE", "SHOW TABLES", "EXPLAIN", "PIVOT")
_KEYWORDS = (
    "SELECT", "DISTINCT", "FROM", "WHERE", "GROUP BY", "GROUP BY ALL", "HAVING", "ORDER BY", "LIMIT", "AND", "OR",
    "NOT", "AS", "JOIN", "LEFT JOIN", "ASOF JOIN", "ON", "USING", "IN", "IS NULL", "IS NOT NULL", "LIKE", "BETWEEN",
    "CASE", "WHEN", "THEN", "ELSE", "END", "DESC", "ASC", "NULLS LAST", "FILTER (WHERE", "OVER (", "PARTITION BY",
    "QUALIFY", "UNION ALL", "WITH", "EXCLUDE", "TRUE", "FALSE", "NULL", "INTERVAL", "DATE", "TIMESTAMP", "VARCHAR",
    "DOUBLE", "BIGINT", "INTEGER", "BOOLEAN",
)  # fmt: skip
_FUNCTIONS = {
    "COUNT(": "number of rows", "SUM(": "sum", "AVG(": "mean", "MIN(": "minimum", "MAX(": "maximum",
    "MEDIAN(": "median", "QUANTILE_CONT(": "(x, 0.95): 95th percentile", "STDDEV(": "standard deviation",
    "ARG_MAX(": "(x, y): x where y is largest", "ARG_MIN(": "(x, y): x where y is smallest",
    "ANY_VALUE(": "any one of the values", "LIST(": "all values as a list",
    "STRING_AGG(": "(x, ', '): all values as one text", "CORR(": "(y, x): correlation", "ROUND(": "(x, digits)",
    "ABS(": "absolute value", "COALESCE(": "the first argument that is not NULL", "GREATEST(": "the largest argument",
    "LEAST(": "the smallest argument", "LAG(": "the value one row before", "LEAD(": "the value one row after",
    "ROW_NUMBER(": "1, 2, … in its window", "CAST(": "(x AS type)", "UNNEST(": "a row for each element",
    "REGEXP_MATCHES(": "(text, pattern)", "DATE_TRUNC(": "('minute', time)",
    "TIME_BUCKET(": "(INTERVAL 10 SECONDS, time)",
}  # fmt: skip


class Candidate(NamedTuple):
    """text: what the word becomes; meta: the description shown beside it."""

    text: str
    meta: str = ""


def candidates(before: str, after: str, tables: Iterable[Table]) -> list[Candidate]:
    """What the word at the end of `before` may become, the likeliest first."""
    start, end = statement_at(before + after, len(before))
    typed, statement = before[start:], (before + after)[start:end]
    # In a string or a comment, a word that follows is not a token of its own.
    if [token.start for token in tokens(f"{typed} x")[-1:]] != [len(typed) + 1]:
        return []
    word = last_word(typed)
    known = {table.name: table for table in tables}
    named = _named(statement, known)
    owner, dot, _ = word.rpartition(".")
    if dot:
        return list(_best(word, _qualified(owner, named, known)))
    return list(_best(word, _unqualified(typed[: len(typed) - len(word)], word, named, known)))


def last_word(typed: str) -> str:
    """What has been typed of the word at the end."""
    return re.search(r"[\w.]*$", typed)[0]  # type: ignore[index]  # it also matches the empty text


def _qualified(owner: str, named: dict[str, list[Table]], known: dict[str, Table]) -> Iterator[Candidate]:
    """What may follow `owner.`: columns of a table or of its alias, or tables of a schema."""
    owners = named.get(owner.lower())
    for table in owners or [table for table in known.values() if owner.lower() in (table.name, table.short_name)]:
        yield from (_column(column, f"{owner}.") for column in table.columns)
    yield from (Candidate(table.name, table.doc) for table in known.values() if table.schema == owner.lower())


def _unqualified(typed: str, word: str, named: dict[str, list[Table]], known: dict[str, Table]) -> Iterable[Candidate]:
    """What may follow `typed`, whatever comes of `word`; SQL's words in the case in which `word` is written."""
    as_typed = str.lower if word.islower() else str
    before = [token for token in tokens(typed) if token.kind != "comment"]
    if not before:
        return [Candidate(as_typed(keyword)) for keyword in _BEGINNINGS]
    tables = [Candidate(name, known[name].doc) for name in sorted(known)]
    last = _text(typed, before[-1])
    keywords = [text for token in before if token.kind == "keyword" and (text := _text(typed, token)) != "AS"]
    if last in _BEFORE_A_TABLE or (last == "," and keywords[-1:] == ["FROM"]):
        return tables
    chosen = {table.name: table for several in named.values() for table in several}
    columns = [_column(column) for table in chosen.values() for column in table.columns]
    columns = columns or _columns_anywhere(known.values())
    words = [Candidate(as_typed(keyword)) for keyword in _KEYWORDS]
    functions = [Candidate(as_typed(name), meaning) for name, meaning in _FUNCTIONS.items()]
    # After a name, a constant or a bracket, one of SQL's own words is next.
    if last in (")", "*") or (before[-1].kind in ("identifier", "numeric_const", "string_const") and last != "."):
        return [*words, *columns, *functions, *tables]
    return [*columns, *functions, *words, *tables]


def _columns_anywhere(tables: Iterable[Table]) -> list[Candidate]:
    """While no table is named: every column, with the tables that have it."""
    owners: dict[str, list[str]] = {}
    for table in tables:
        for column in table.columns:
            owners.setdefault(column.name, []).append(table.name)
    return [Candidate(name, f"in {', '.join(those)}") for name, those in owners.items()]


def _named(statement: str, known: dict[str, Table]) -> dict[str, list[Table]]:
    """The tables that a statement reads, by every name that they have in it."""
    full = {name: name for name in known} | {table.short_name: name for name, table in known.items()}
    named: dict[str, list[Table]] = {}
    for match in _NAMED.finditer(statement):
        name = full.get(match[1].lower())
        if name is not None:
            for alias in {name, known[name].short_name, (match[2] or name).lower()}:
                named.setdefault(alias, []).append(known[name])
    return named


def _text(typed: str, token: Token) -> str:
    return typed[token.start : token.end].strip().upper()


def _best(word: str, every: Iterable[Candidate]) -> Iterator[Candidate]:
    """The candidates that begin with the word, then those of which a part does."""
    lower = word.lower()
    seen = set[str]()
    later = []
    for candidate in every:
        name = candidate.text.lower()
        if name in seen or name == lower:
            continue
        seen.add(name)
        if name.startswith(lower):
            yield candidate
        elif re.search(rf"[._]{re.escape(lower.rpartition('.')[2])}", name.removeprefix(lower.rpartition(".")[0])):
            later.append(candidate)
    yield from later


def _column(column: Column, prefix: str = "") -> Candidate:
    kind = f"{column.type} in {column.unit}" if column.unit else column.type
    return Candidate(prefix + column.name, f"{kind}. {column.doc}")
