"""Scalar subqueries become constants, so that a filter like `step > (SELECT MAX(step) - 10 …)` reaches the tables.

Called by probe.query.database before a query runs.  DuckDB's own parser does the reading and writing.  Invariant: what
is not provably a constant of its own (correlated, volatile, over a CTE) is left as it stands.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import duckdb

from .max_step import MaxStep

Node = Any  # of DuckDB's JSON syntax tree
_MOST = 4  # each costs an execution; a query with more is not a dashboard's
_VOLATILE = {"random", "uuid", "gen_random_uuid", "nextval", "setseed", "now", "current_timestamp", "clock_timestamp"}


def fold(connection: duckdb.DuckDBPyConnection, sql: str, newest: MaxStep | None = None) -> str:
    """The query with its scalar subqueries folded; the very text if there is nothing to fold.

    newest: puts bounds to what asks for the largest step alone, the query itself too.
    """
    words = sql.lower()
    if "select" not in words.partition("select")[2] and (newest is None or "max" not in words):
        return sql
    tree = json.loads(_one(connection, "SELECT json_serialize_sql(?)", sql))
    if tree.get("error") or len(tree["statements"]) != 1:
        return sql
    with contextlib.suppress(duckdb.Error):  # of a query that is wrong: told of it as it was written
        for bounded in _bounded(tree["statements"][0]["node"], newest):
            if _value(connection, bounded)[1] is not None:
                return _text(connection, bounded)
    ctes = {entry["key"].lower() for node, _, _ in _walk(tree) for entry in _cte_entries(node)}
    folded = 0
    for node, parent, key in list(_walk(tree)):
        if folded < _MOST and _is_scalar_subquery(node) and not _depends(node, ctes):
            constant = _constant(connection, node, newest)
            if constant is not None:
                parent[key] = constant
                folded += 1
    return _one(connection, "SELECT json_deserialize_sql(?)", json.dumps(tree)) if folded else sql


def _walk(node: Node, parent: Node = None, key: Any = None) -> Iterator[tuple[Node, Node, Any]]:
    """Every object of the tree with its place, inner ones first."""
    if isinstance(node, dict):
        for name, value in list(node.items()):
            yield from _walk(value, node, name)
        yield node, parent, key
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _walk(value, node, place)


def _cte_entries(node: Node) -> list[Node]:
    ctes = node.get("cte_map")
    return list(ctes.get("map", [])) if isinstance(ctes, dict) else []


def _is_scalar_subquery(node: Node) -> bool:
    return bool(node.get("class") == "SUBQUERY" and node.get("subquery_type") == "SCALAR")


def _depends(node: Node, ctes: set[str]) -> bool:
    for inner, _, _ in _walk(node["subquery"]):
        if inner.get("type") == "BASE_TABLE" and not inner.get("schema_name") and inner["table_name"].lower() in ctes:
            return True
        if str(inner.get("function_name", "")).lower() in _VOLATILE or inner.get("class") == "PARAMETER":
            return True
    return False


def _bounded(node: Node, newest: MaxStep | None) -> Iterator[Node]:
    return iter(()) if newest is None else newest.bounded(node)


def _text(connection: duckdb.DuckDBPyConnection, node: Node) -> str:
    statement = {"error": False, "statements": [{"node": node}]}
    return _one(connection, "SELECT json_deserialize_sql(?)", json.dumps(statement))


def _value(connection: duckdb.DuckDBPyConnection, node: Node) -> tuple[int, str | None, str]:
    """How many rows a query of one column has, and if it is one its value and type."""
    text = _text(connection, node)
    result = connection.execute(f"SELECT count(*), any_value(v)::VARCHAR, any_value(typeof(v)) FROM ({text}) t(v)")
    count, value, kind = result.fetchall()[0]
    return int(count), value, str(kind)


def _constant(connection: duckdb.DuckDBPyConnection, node: Node, newest: MaxStep | None) -> Node | None:
    """The subquery's value as a node of the tree, None if it does not stand alone or is not one value."""
    query = node["subquery"]["node"]
    try:
        found = (_value(connection, each) for each in _bounded(query, newest))
        known = next((each for each in found if each[1] is not None), None)
        count, value, kind = known or _value(connection, query)
        if count != 1:
            return None
        literal = "NULL" if value is None else "'" + value.replace("'", "''") + "'"
        expression = f"SELECT CAST({literal} AS {kind}) AS x"
        made = json.loads(_one(connection, "SELECT json_serialize_sql(?)", expression))
    except duckdb.Error:  # correlated: does not bind alone; or it fails, which the whole query shall say
        return None
    constant = made["statements"][0]["node"]["select_list"][0]
    constant["alias"] = node.get("alias", "")
    return constant


def _one(connection: duckdb.DuckDBPyConnection, sql: str, *parameters: str) -> str:
    return str(connection.execute(sql, list(parameters)).fetchall()[0][0])
