"""The SQL of a query, examined in one place: the words in it, and DuckDB's own syntax tree.

Asked by everything in this room that has to know what a query is about.  Invariant: DuckDB alone parses SQL.  What is
decided by words (which views to make, whether to write comments) may be decided too generously, never too sparingly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

import duckdb

from ..tables.declaration import Table

Node = Any  # of DuckDB's JSON syntax tree
_ABOUT_ALL_TABLES = ("information_schema", "duckdb_", "pg_", "pragma", "show", "describe")  # beginnings of words
_ABOUT_COMMENTS = {"duckdb_columns", "duckdb_views", "information_schema", "pg_description"}  # DESCRIBE shows none
_ABOUT_SETTINGS = {"current_setting", "duckdb_settings"}
_VOLATILE = {"random", "uuid", "gen_random_uuid", "nextval", "setseed", "now", "current_timestamp", "clock_timestamp"}
_ARITHMETIC = {"+", "-", "*", "/", "//"}
_CLAUSES = ("group_expressions", "group_sets", "having", "sample", "qualify", "modifiers")


class Statement:
    """One text, which may hold several statements, or none."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        self.connection, self.sql = connection, sql
        self._words = re.findall(r"\w+", sql.lower())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but comments.  Raises duckdb.ParserException."""
        return not self.connection.extract_statements(self.sql)

    def names(self, table: Table) -> bool:
        """Whether it may read this table."""
        return table.short_name in self._words

    def says(self, word: str) -> bool:
        """Whether this word, in lower case, is somewhere in it."""
        return word in self._words

    @property
    def reads_catalogue(self) -> bool:
        """Whether it may be about every table that there is."""
        return any(word.startswith(_ABOUT_ALL_TABLES) for word in self._words)

    @property
    def reads_comments(self) -> bool:
        return not _ABOUT_COMMENTS.isdisjoint(self._words)

    @property
    def is_about_tables_alone(self) -> bool:
        """Whether it is a single SELECT, and shows no settings of DuckDB."""
        return self.tree is not None and _ABOUT_SETTINGS.isdisjoint(self._words)

    def may_fold(self, max_step: bool) -> bool:
        """Whether it may have subqueries, or (max_step) ask for a maximum itself."""
        return self._words.count("select") > 1 or (max_step and "max" in self._words)

    @cached_property
    def tree(self) -> Node | None:
        """The syntax tree, of a single SELECT; some 0.3 ms."""
        return tree_of(self.connection, self.sql)

    def scalar_subqueries(self) -> list[tuple[Node, Node, Any]]:
        """Those that stand alone, each with the node and the key that hold it, inner ones first: they read no common
        table expression and call nothing volatile.  Correlated ones are among them: only DuckDB can tell."""
        nodes = list(_walk(self.tree))
        maps = [node["cte_map"] for node, _, _ in nodes if isinstance(node.get("cte_map"), dict)]
        ctes = {entry["key"].lower() for each in maps for entry in each.get("map", [])}
        return [
            (node, parent, key)
            for node, parent, key in nodes
            if node.get("class") == "SUBQUERY" and node.get("subquery_type") == "SCALAR" and not _depends(node, ctes)
        ]


def _walk(node: Node, parent: Node = None, key: Any = None) -> Iterator[tuple[Node, Node, Any]]:
    """Every object of the tree with its place, inner ones first."""
    if isinstance(node, dict):
        for name, value in list(node.items()):
            yield from _walk(value, node, name)
        yield node, parent, key
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _walk(value, node, place)


def _depends(node: Node, ctes: set[str]) -> bool:
    for inner, _, _ in _walk(node["subquery"]):
        if inner.get("type") == "BASE_TABLE" and not inner.get("schema_name") and inner["table_name"].lower() in ctes:
            return True
        if str(inner.get("function_name", "")).lower() in _VOLATILE or inner.get("class") == "PARAMETER":
            return True
    return False


def returns_only_max_step(node: Node, tables: Collection[str]) -> bool:
    """Whether a query returns nothing but MAX(step), or that and a constant, of one of these tables."""
    if node.get("type") != "SELECT_NODE" or any(node.get(clause) for clause in _CLAUSES) or node["cte_map"]["map"]:
        return False
    table, chosen = node["from_table"], node["select_list"]
    if table.get("type") != "BASE_TABLE" or table.get("sample") or table.get("at_clause"):
        return False
    name = f"{table.get('schema_name') or 'python'}.{table.get('table_name')}".lower()
    return name in tables and len(chosen) == 1 and _is_max_step(chosen[0])


def _is_max_step(expression: Node) -> bool:
    if expression.get("class") != "FUNCTION" or expression.get("filter"):
        return False
    arguments = [each["expression"] for each in expression["arguments"]]
    if expression["function_name"].lower() == "max":
        columns = [each["column_names"][-1].lower() for each in arguments if each.get("class") == "COLUMN_REF"]
        return len(arguments) == 1 and columns == ["step"]
    others = [each for each in arguments if each.get("class") != "CONSTANT"]
    return expression["function_name"] in _ARITHMETIC and len(others) == 1 and _is_max_step(others[0])


def tree_of(connection: duckdb.DuckDBPyConnection, sql: str) -> Node | None:
    """The syntax tree of a single SELECT; None for anything else."""
    told = json.loads(connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])
    return None if told.get("error") or len(told["statements"]) != 1 else told["statements"][0]["node"]


def text_of(connection: duckdb.DuckDBPyConnection, tree: Node) -> str:
    """The SQL of a tree."""
    told = json.dumps({"error": False, "statements": [{"node": tree}]})
    return str(connection.execute("SELECT json_deserialize_sql(?)", [told]).fetchall()[0][0])
