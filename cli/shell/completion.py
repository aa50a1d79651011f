"""What may stand at a place of a SQL text: columns of the tables that the statement names, tables, SQL's own words.

Called by cli/shell/prompt.py with what was typed; all about tables comes from their declarations.  Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .statements import Token, statement_at, tokens

if TYPE_CHECKING:
    from probe.schema import Column
    from probe.tables.declaration import Table

WORD = re.compile(r"[\w.]*$")
# The alias is only looked at: it may be the JOIN of the next table.
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
    "COUNT(": "how many", "SUM(": "sum", "AVG(": "mean", "MIN(": "least", "MAX(": "most", "MEDIAN(": "median",
    "QUANTILE_CONT(": "(x, 0.95): the value below which 95 % lie", "STDDEV(": "standard deviation",
    "ARG_MAX(": "(x, y): x where y is most", "ARG_MIN(": "(x, y): x where y is least", "ANY_VALUE(": "one of them",
    "LIST(": "all as a list", "STRING_AGG(": "(x, ', '): all as one text", "CORR(": "(y, x): correlation",
    "ROUND(": "(x, digits)", "ABS(": "without its sign", "COALESCE(": "the first that is not NULL",
    "GREATEST(": "the most of its arguments", "LEAST(": "the least of its arguments", "LAG(": "the value a row before",
    "LEAD(": "the value a row after", "ROW_NUMBER(": "1, 2, … in its window", "CAST(": "(x AS type)",
    "UNNEST(": "a row for each element", "REGEXP_MATCHES(": "(text, pattern)", "DATE_TRUNC(": "('minute', time)",
    "TIME_BUCKET(": "(INTERVAL 10 SECONDS, time)",
}  # fmt: skip


class Candidate(NamedTuple):
    """text: what the word becomes; meta: what is said of it beside."""

    text: str
    meta: str = ""


def candidates(before: str, after: str, tables: Iterable[Table]) -> list[Candidate]:
    """What the word at the end of `before` may become, the likeliest first."""
    start, end = statement_at(before + after, len(before))
    typed, statement = before[start:], (before + after)[start:end]
    if _is_quoted(typed):
        return []
    word = WORD.search(typed)[0]  # type: ignore[index]  # it matches nothing, too
    known = {table.name: table for table in tables}
    owner, dot, _ = word.rpartition(".")
    if dot:
        return list(_best(word, _qualified(owner, statement, known)))
    return list(_best(word, _unqualified(typed[: len(typed) - len(word)], word, statement, known)))


def _is_quoted(typed: str) -> bool:
    """Whether the end is inside a string or a comment: there a word that follows is no token of its own."""
    last = tokens(f"{typed} x")[-1:]
    return [token.start for token in last] != [len(typed) + 1]


def _qualified(owner: str, statement: str, known: dict[str, Table]) -> Iterator[Candidate]:
    """What stands behind `owner.`: columns of a table or of its alias, or tables of a schema."""
    meant = _named(statement, known).get(owner.lower())
    for table in meant or [table for table in known.values() if owner.lower() in (table.name, table.short_name)]:
        yield from (_column(column, f"{owner}.") for column in table.columns)
    for table in known.values():
        if table.schema == owner.lower():
            yield _table(table)


def _unqualified(typed: str, word: str, statement: str, known: dict[str, Table]) -> Iterator[Candidate]:
    tables = [_table(known[name]) for name in sorted(known)]
    named = _named(statement, known)
    chosen = {table.name: table for several in named.values() for table in several}
    columns = list(_columns_of(chosen.values()) if chosen else _columns_anywhere(known.values()))
    words = [Candidate(_as_typed(keyword, word)) for keyword in _KEYWORDS]
    functions = [Candidate(_as_typed(name, word), meaning) for name, meaning in _FUNCTIONS.items()]
    before = [token for token in tokens(typed) if token.kind != "comment"]
    if not before:
        return iter([Candidate(_as_typed(keyword, word)) for keyword in _BEGINNINGS])
    if _wants_a_table(typed, before):
        return iter(tables)
    if _ends_a_value(typed, before[-1]):
        return iter([*words, *columns, *functions, *tables])
    return iter([*columns, *functions, *words, *tables])


def _columns_of(tables: Iterable[Table]) -> Iterator[Candidate]:
    yield from (_column(column) for table in tables for column in table.columns)


def _columns_anywhere(tables: Iterable[Table]) -> Iterator[Candidate]:
    """As long as no table is named: which have such a column."""
    owners: dict[str, list[str]] = {}
    for table in tables:
        for column in table.columns:
            owners.setdefault(column.name, []).append(table.name)
    yield from (Candidate(name, f"in {', '.join(those)}") for name, those in owners.items())


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


def _wants_a_table(typed: str, before: list[Token]) -> bool:
    """Behind FROM, JOIN and the like, and behind a comma among tables."""
    keywords = [text for token in before if token.kind == "keyword" and (text := _text(typed, token)) != "AS"]
    last = _text(typed, before[-1])
    return last in _BEFORE_A_TABLE or (last == "," and keywords[-1:] == ["FROM"])


def _ends_a_value(typed: str, token: Token) -> bool:
    """Behind a name, a constant or a bracket a word of SQL's own comes."""
    text = _text(typed, token)
    return text in (")", "*") or (token.kind in ("identifier", "numeric_const", "string_const") and text != ".")


def _text(typed: str, token: Token) -> str:
    return typed[token.start : token.end].strip().upper()


def _best(word: str, every: Iterable[Candidate]) -> Iterator[Candidate]:
    """Those that begin with the word, then those of which a part does."""
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


def _as_typed(keyword: str, word: str) -> str:
    return keyword.lower() if word.islower() else keyword


def _table(table: Table) -> Candidate:
    return Candidate(table.name, table.doc)


def _column(column: Column, prefix: str = "") -> Candidate:
    kind = f"{column.type} in {column.unit}" if column.unit else column.type
    return Candidate(prefix + column.name, f"{kind}. {column.doc}")
