"""`SELECT MAX(step) - 10 FROM …` out of the newest steps: where they have a row, no earlier row can change the answer.

Called by probe.query.subquery_folding with the syntax tree of a query.  Invariant: only a query that returns nothing
but the largest step of one table is bounded, so a result that is not NULL is the result without the bound.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from .statement import Node

_STEPS = (32, 4096)  # looked at before all of them are; where one block of ten in many is sampled, the newest lies back
_ARITHMETIC = {"+", "-", "*", "/", "//"}
_PLAIN = ("group_expressions", "group_sets", "having", "sample", "qualify", "modifiers")


@dataclass(frozen=True)
class MaxStep:
    """last: the newest step that every rank has completed; tables: names whose rows have steps, with schema."""

    last: int
    tables: frozenset[str]

    def bounded(self, node: Node) -> Iterator[Node]:
        """The same query over more and more of the newest steps; nothing for any other kind of query."""
        if not self._asks_for_largest_step(node):
            return
        for steps in _STEPS:
            made = copy.deepcopy(node)
            bound = _at_least(self.last - steps)
            before = made["where_clause"]
            made["where_clause"] = bound if before is None else _both(before, bound)
            yield made

    def _asks_for_largest_step(self, node: Node) -> bool:
        if node.get("type") != "SELECT_NODE" or any(node.get(part) for part in _PLAIN) or node["cte_map"]["map"]:
            return False
        table, chosen = node["from_table"], node["select_list"]
        name = f"{table.get('schema_name') or 'python'}.{table.get('table_name')}".lower()
        plain = table.get("type") == "BASE_TABLE" and not table.get("sample") and not table.get("at_clause")
        return bool(plain and name in self.tables and len(chosen) == 1 and _is_largest_step(chosen[0]))


def _is_largest_step(expression: Node) -> bool:
    """MAX(step), or that and a constant."""
    if expression.get("class") != "FUNCTION" or expression.get("filter"):
        return False
    arguments = [each["expression"] for each in expression["arguments"]]
    if expression["function_name"].lower() == "max":
        return len(arguments) == 1 and _is_step(arguments[0])
    constants = [each for each in arguments if each.get("class") == "CONSTANT"]
    others = [each for each in arguments if each not in constants]
    return expression["function_name"] in _ARITHMETIC and len(others) == 1 and _is_largest_step(others[0])


def _is_step(expression: Node) -> bool:
    return bool(expression.get("class") == "COLUMN_REF" and expression["column_names"][-1].lower() == "step")


def _at_least(step: int) -> Node:
    place = {"alias": "", "query_location": 0}
    column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": ["step"], **place}
    literal = {"kind": "INTEGER", "text": str(step)}
    constant = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "literal": literal, **place}
    kind = "COMPARE_GREATERTHANOREQUALTO"
    return {"class": "COMPARISON", "type": kind, "left": column, "right": constant, **place}


def _both(one: Node, other: Node) -> Node:
    parts = {"class": "CONJUNCTION", "type": "CONJUNCTION_AND", "children": [one, other]}
    return {**parts, "alias": "", "query_location": 0}
