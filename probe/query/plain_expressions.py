"""Expressions of SQL whose value follows from their row alone, the same on every host, at a bounded cost.

Used by probe.query.decomposition, where a query is taken apart and where a part of one is taken on.  Invariant: only
what is listed here passes, and of each node only fields that are known here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from .statement import Node

_FUNCTIONS = {
    "+", "-", "*", "/", "//", "%", "abs", "round", "floor", "ceil", "ceiling", "sqrt", "ln", "log", "log2", "log10",
    "greatest", "least", "nullif", "lower", "upper", "length", "starts_with", "prefix", "suffix", "contains",
    "~~", "!~~", "~~*", "!~~*", "substring", "substr", "date_trunc", "date_part", "epoch", "epoch_ms",
}  # fmt: skip
_OPERATORS = {
    "COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE",
}  # fmt: skip
_TYPES = {
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "DATE",
    "TIMESTAMP",
}  # fmt: skip
_INNER = {  # class -> the fields that hold expressions
    "COMPARISON": ("left", "right"), "CONJUNCTION": ("children",), "BETWEEN": ("input", "lower", "upper"),
    "OPERATOR": ("children",), "CASE": ("case_checks", "else_expr"), "CAST": ("child",), "CONSTANT": (),
    "FUNCTION": ("arguments",), "COLUMN_REF": (),
}  # fmt: skip
_PLACES = ("query_location", "query_location_length")
AGGREGATES = {"sum": 1, "min": 1, "max": 1, "avg": 1, "count": 1, "count_star": 0}  # with so many arguments


class NotPlain(Exception):
    """Something that is not listed."""


class Plain:
    """columns: of the table, in lower case; names: by which it may be called; aliases: what else stands for an
    expression.  normal() gives equal expressions equal trees, without names and places."""

    def __init__(self, columns: Collection[str], names: Collection[str], aliases: Mapping[str, Node]) -> None:
        self._columns, self._names, self.aliases = columns, names, aliases

    def normal(self, node: Node, aggregates: bool = False) -> Node:
        """aggregates: those that can be taken apart may be in it.  Raises NotPlain."""
        kind = node.get("class")
        if kind not in _INNER:
            raise NotPlain(kind)
        if kind == "COLUMN_REF":
            return self._column(node)
        within = False if is_aggregate(node) else aggregates
        made = {name: value for name, value in node.items() if name not in _PLACES} | {"alias": ""}
        for name in _INNER[kind]:
            made[name] = self._inside(node[name], within)
        if kind == "FUNCTION":
            self._check_function(node, made, aggregates)
        elif (kind == "OPERATOR" and node["type"] not in _OPERATORS) or (kind == "CAST" and not _is_plain_cast(node)):
            raise NotPlain(node["type"])
        return made

    def _inside(self, value: Any, aggregates: bool) -> Any:
        """A field that holds expressions: one, a list, arguments or the branches of CASE."""
        if isinstance(value, list):
            return [self._inside(each, aggregates) for each in value]
        if value is None or "class" in value:
            return value and self.normal(value, aggregates)
        if value.get("name"):  # of an argument
            raise NotPlain("named arguments")
        return {name: self._inside(each, aggregates) if isinstance(each, dict) else each
                for name, each in value.items()}  # fmt: skip

    def _column(self, node: Node) -> Node:
        *qualifiers, name = (each.lower() for each in node["column_names"])
        if not qualifiers and name not in self._columns and name in self.aliases:
            return self.aliases[name]
        if name not in self._columns or (qualifiers and ".".join(qualifiers) not in self._names):
            raise NotPlain(name)
        return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}

    def _check_function(self, node: Node, made: Node, aggregates: bool) -> None:
        name, is_plain = node["function_name"].lower(), not node["order_bys"]["orders"] and not node["distinct"]
        if node["schema"] or node["catalog"] or node["export_state"] or not is_plain:
            raise NotPlain(name)
        if is_aggregate(node):
            if not aggregates or AGGREGATES[name] != len(node["arguments"]):
                raise NotPlain(name)
            made["filter"] = node["filter"] and self.normal(node["filter"])
        elif name not in _FUNCTIONS or node["filter"]:
            raise NotPlain(name)


def is_aggregate(node: Node) -> bool:
    """Whether it is one that can be taken apart, as far as its name says."""
    return node.get("class") == "FUNCTION" and node["function_name"].lower() in AGGREGATES


def has_aggregates(node: Node) -> bool:
    """Of a normal tree."""
    if isinstance(node, list):
        return any(map(has_aggregates, node))
    return isinstance(node, dict) and (is_aggregate(node) or any(map(has_aggregates, node.values())))


def key_of(node: Node) -> str:
    """The same for equal normal trees."""
    return json.dumps(node, sort_keys=True)


def _is_plain_cast(node: Node) -> bool:
    said = node["type_expr"]
    constant = all(each.get("class") == "CONSTANT" for each in said["children"])
    return said["type_name"].upper() in _TYPES and constant and not said["schema"] and not said["catalog"]
