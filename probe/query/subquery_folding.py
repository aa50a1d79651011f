"""Scalar subqueries become constants, so that a filter like `step > (SELECT MAX(step) - 10 …)` reaches the tables.

Called by probe.query.database before a query runs.  DuckDB's own parser reads and writes the SQL.  Invariant: what is
not provably a constant of its own (correlated, volatile, over a CTE) stays as it is.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from .statement import Node, Statement, returns_only_max_step, text_of, tree_of

_MAX_FOLDED = 4  # each costs an execution; a query with more is not a dashboard's
# Newest steps that are looked at before all of them are; where one block of ten in many is sampled, the last such one
# lies back.
_NEWEST_STEPS = (32, 4096)
_NO_ALIAS = {"alias": "", "query_location": 0}


@dataclass(frozen=True)
class MaxStep:
    """What bounds `SELECT MAX(step) - 10 FROM …` to the newest steps: where they have a row, no earlier row can change
    the answer, so a result that is not NULL is the result without the bound.

    last: the newest step that every rank has completed; tables: names whose rows have steps, with schema.
    """

    last: int
    tables: frozenset[str]

    def bounded(self, node: Node) -> Iterator[Node]:
        """The same query over more and more of the newest steps; nothing for any other kind of query."""
        for steps in _NEWEST_STEPS if returns_only_max_step(node, self.tables) else ():
            made = copy.deepcopy(node)
            bound, before = _from_step_on(self.last - steps), made["where_clause"]
            both = {"class": "CONJUNCTION", "type": "CONJUNCTION_AND", "children": [before, bound], **_NO_ALIAS}
            made["where_clause"] = bound if before is None else both
            yield made


def _from_step_on(step: int) -> Node:
    """The tree of `step >= …`."""
    column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": ["step"], **_NO_ALIAS}
    literal = {"kind": "INTEGER", "text": str(step)}
    constant = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "literal": literal, **_NO_ALIAS}
    kind = "COMPARE_GREATERTHANOREQUALTO"
    return {"class": "COMPARISON", "type": kind, "left": column, "right": constant, **_NO_ALIAS}


def fold(statement: Statement, max_step: MaxStep | None = None) -> str:
    """The query with its scalar subqueries folded; the very text if there is nothing to fold.

    max_step: bounds what asks for the largest step alone, the query itself too.
    """
    if not statement.may_fold(max_step is not None) or statement.tree is None:
        return statement.sql
    connection = statement.connection
    with contextlib.suppress(duckdb.Error):  # the query is wrong: DuckDB says so about the user's own text
        if bounded := _bounded(connection, statement.tree, max_step):
            return text_of(connection, bounded[0])
    folded = 0
    for node, parent, key in statement.scalar_subqueries():
        if folded < _MAX_FOLDED and (constant := _constant(connection, node, max_step)) is not None:
            parent[key] = constant
            folded += 1
    return text_of(connection, statement.tree) if folded else statement.sql


def _value(connection: duckdb.DuckDBPyConnection, node: Node) -> tuple[int, str | None, str]:
    """The number of rows of a query with one column, and if there is one row its value and type."""
    sql = f"SELECT count(*), any_value(v)::VARCHAR, any_value(typeof(v)) FROM ({text_of(connection, node)}) t(v)"
    count, value, kind = connection.execute(sql).fetchall()[0]
    return int(count), value, str(kind)


def _bounded(
    connection: duckdb.DuckDBPyConnection, node: Node, max_step: MaxStep | None
) -> tuple[Node, tuple[int, str | None, str]] | None:
    """The query over just enough of the newest steps to have a value, and that; None where a bound does not help."""
    for bounded in max_step.bounded(node) if max_step is not None else ():
        found = _value(connection, bounded)
        if found[1] is not None:
            return bounded, found
    return None


def _constant(connection: duckdb.DuckDBPyConnection, node: Node, max_step: MaxStep | None) -> Node | None:
    """The subquery's value as a node of the tree, None if it does not stand alone or is not one value."""
    query = node["subquery"]["node"]
    try:
        bounded = _bounded(connection, query, max_step)
        count, value, kind = bounded[1] if bounded else _value(connection, query)
        if count != 1:
            return None
        literal = "NULL" if value is None else "'" + value.replace("'", "''") + "'"
        tree = tree_of(connection, f"SELECT CAST({literal} AS {kind}) AS x")
    except duckdb.Error:  # correlated: does not bind alone; or it fails, which the whole query shall say
        return None
    if tree is None:  # a type that cannot be written
        return None
    constant = tree["select_list"][0]
    constant["alias"] = node.get("alias", "")
    return constant
