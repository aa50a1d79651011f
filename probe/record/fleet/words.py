"""DuckDB's expressions in the words of Daft's SQL, each with the kind of its values.

Used by probe.record.fleet.selects.  Invariant: what is written has the same value in both, NULL, NaN and large numbers
included; tests/fleet compares them.  What Daft 0.7.26 answers otherwise is refused, or written in other words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .functions import AGGREGATES, function, window
from .said import BOOLEAN, DECIMAL, DOUBLE, INTEGER, NULL, NUMBERS, TEXT, TIME, Node, Said, Scope, joined, refused

_COMPARED = {"COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<", "COMPARE_GREATERTHAN": ">",
             "COMPARE_LESSTHANOREQUALTO": "<=", "COMPARE_GREATERTHANOREQUALTO": ">="}  # fmt: skip
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
_EXACT = 2**53  # whole numbers below have one double each, and two of them add up to a BIGINT


class Words:
    """Writes expressions over a scope.  select: writes a subquery; outer: the scope around an EXISTS."""

    def __init__(self, scope: Scope, select: Callable[[Node, Scope | None], Any], outer: Scope | None = None) -> None:
        self._scope, self._select, self._outer = scope, select, outer
        self._groups: list[tuple[str, Said]] | None = None  # the text of each key, and the column that has it
        self._inside: Words | None = None
        self._name: Callable[[], str] = str
        self.aggregates: dict[str, str] = {}
        self.has_windows = False

    def over_groups(self, keys: Sequence[tuple[Node, Said]], name: Callable[[], str]) -> Words:
        """For what stands outside the groups: keys and aggregates are columns, which `aggregates` collects."""
        words = Words(self._scope, self._select)
        words._groups = [(self.expression(key).text, said) for key, said in keys]
        words._inside, words._name = self, name
        return words

    def expression(self, node: Node) -> Said:
        """Raises QueryError for what Daft lacks."""
        if node["class"] == "WRITTEN":
            return self._grouped(node["said"]) if self._groups is not None else node["said"]
        if self._inside is not None and (found := self._of_group(node)) is not None:
            return found
        write = getattr(self, f"_{node['class'].lower()}", None)
        if write is None:
            raise refused(node["class"].replace("_", " "))
        said: Said = write(node)
        return said

    def _of_group(self, node: Node) -> Said | None:
        assert self._inside is not None
        if node["class"] == "FUNCTION" and node["function_name"] in AGGREGATES:
            said = self._inside.expression(node)
            known = {text: name for name, text in self.aggregates.items()}
            name = known.get(said.text) or self._name()
            self.aggregates[name] = said.text
            return Said(f'"{name}"', said.kind)
        if node["class"] in ("WINDOW", "CONSTANT") or self.aggregates_in(node):
            return None
        text = self._inside.expression(node).text
        return next((said for each, said in self._groups or () if each == text), None)

    def _grouped(self, said: Said) -> Said:
        found = [column for text, column in self._groups or () if text == said.text]
        if not found:
            raise refused("* beside GROUP BY", "Name the columns.")
        return found[0]

    def aggregates_in(self, node: Node) -> bool:
        return any(each.get("class") == "FUNCTION" and each.get("function_name") in AGGREGATES for each in walk(node))

    def condition(self, node: Node) -> str:
        return self.of_kind(node, BOOLEAN).text

    def conjuncts(self, node: Node | None) -> list[Node]:
        if node is None:
            return []
        if node["class"] == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
            return [each for child in node["children"] for each in self.conjuncts(child)]
        return [node]

    def equal(self, node: Node) -> str:
        """A condition of ON."""
        if node["class"] != "COMPARISON" or node["type"] != "COMPARE_EQUAL":
            raise refused(
                "JOIN but on equal columns", "Join ON a.x = b.x, and put other conditions into WHERE or a subquery."
            )
        if {node["left"]["class"], node["right"]["class"]} != {"COLUMN_REF"}:
            raise refused("JOIN but on columns", "Compute what to join on in a subquery.")
        return joined(self.expression(node["left"]), self.expression(node["right"]))

    def filter(self, node: Node) -> str:
        """A condition of WHERE, in which subqueries may stand."""
        return " AND ".join(self._filter(each) for each in self.conjuncts(node))

    def _filter(self, node: Node) -> str:
        is_not = node["class"] == "OPERATOR" and node["type"] == "OPERATOR_NOT"
        inner = node["children"][0] if is_not else node
        if inner["class"] == "SUBQUERY" and inner["subquery_type"] == "EXISTS":
            return f"{'NOT ' * is_not}EXISTS ({self._select(inner['subquery']['node'], self._scope).text})"
        if inner["class"] == "SUBQUERY" and inner["subquery_type"] == "ANY" and not is_not:
            return self._any(inner)
        if self._outer is not None and node["class"] == "COMPARISON" and self._is_outer(node):
            return self._correlated(node)
        return self.condition(node)

    def _any(self, node: Node) -> str:
        if node["comparison_type"] != "COMPARE_EQUAL":
            raise refused("ANY or ALL", "Compare with (SELECT MIN(x) …) or MAX.")
        left, inner = self.expression(node["child"]), self._select(node["subquery"]["node"], None)
        joined(left, inner.columns[0][1])
        return f"{left.text} IN ({inner.text})"

    def _is_outer(self, node: Node) -> bool:
        sides = (node["left"], node["right"])
        return any(each["class"] == "COLUMN_REF" and self._scope.column(each["column_names"]) is None for each in sides)

    def _correlated(self, node: Node) -> str:
        assert self._outer is not None
        if node["type"] != "COMPARE_EQUAL":
            raise refused("EXISTS on anything but equal columns", "Join the tables.")
        names = [each.get("column_names") or [""] for each in (node["left"], node["right"])]
        sides = [self._scope.column(each) or self._outer.column(each) for each in names]
        if None in sides:
            raise refused("EXISTS on anything but equal columns", "Join the tables.")
        return joined(*[each for each in sides if each is not None])

    def of_kind(self, node: Node, *kinds: str) -> Said:
        said = self.expression(node)
        if said.kind not in (*kinds, NULL):
            raise refused(
                f"{said.kind or 'such a value'} where it takes {' or '.join(kinds)}", "Cast it: CAST(x AS DOUBLE)."
            )
        return said

    # one method for each class of DuckDB's tree

    def _column_ref(self, node: Node) -> Said:
        if self._groups is not None:
            raise refused("an alias beside the expression that it names", "Repeat the expression, or use a subquery.")
        said = self._scope.column(node["column_names"])
        if said is None:
            what = (
                f"{'.'.join(node['column_names'])} here: an alias beside what it names, or a column of the outer query"
            )
            raise refused(what, "Repeat the expression, or use a subquery or a JOIN.")
        return said

    def _constant(self, node: Node) -> Said:
        kind, text = node["literal"]["kind"], node["literal"].get("text", "")
        if kind == "INTEGER":
            if abs(int(text)) > _EXACT:
                raise refused("whole number beyond 2^53", "Write it with a point.")
            return Said(text, INTEGER)
        if kind == "NUMERIC":
            return Said(text, DOUBLE if "e" in text.lower() else DECIMAL)
        if kind == "STRING":
            return Said("'" + text.replace("'", "''") + "'", TEXT)
        if kind in ("BOOLEAN", "NULL_LITERAL"):
            return Said(text or "NULL", BOOLEAN if text else NULL)
        raise refused(f"literal of type {kind}")

    def _comparison(self, node: Node) -> Said:
        if node["type"] not in _COMPARED:
            raise refused("IS DISTINCT FROM", "Use = and IS NULL.")
        return Said(f"({self._compared(_COMPARED[node['type']], node['left'], node['right'])})", BOOLEAN)

    def _compared(self, operator: str, *nodes: Node) -> str:
        left, right = self._alike([self.expression(each) for each in nodes])
        return f"{left.text} {operator} {right.text}"

    def _alike(self, said: Sequence[Said]) -> list[Said]:
        """Values to compare.  Texts that are compared with times become times."""
        kinds = {each.kind for each in said} - {NULL}
        if kinds == {TEXT, TIME}:
            return [_moment(each) if each.kind == TEXT else each for each in said]
        if not (kinds <= NUMBERS or (len(kinds) == 1 and kinds <= {TEXT, BOOLEAN, TIME})):
            raise refused(
                f"comparison of {' with '.join(sorted(kind or 'lists' for kind in kinds))}", "Cast one of them."
            )
        return list(said)

    def _between(self, node: Node) -> Said:
        value, lower, upper = self._alike([self.expression(node[each]) for each in ("input", "lower", "upper")])
        return Said(f"({value.text} >= {lower.text} AND {value.text} <= {upper.text})", BOOLEAN)

    def _conjunction(self, node: Node) -> Said:
        word = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
        return Said(f"({word.join(self.condition(each) for each in node['children'])})", BOOLEAN)

    def _operator(self, node: Node) -> Said:
        kind, children = node["type"], node["children"]
        if kind == "OPERATOR_NOT":
            return Said(f"(NOT {self.condition(children[0])})", BOOLEAN)
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return Said(f"({self.expression(children[0]).text} {kind[9:].replace('_', ' ')})", BOOLEAN)
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            said = self._alike([self.expression(each) for each in children])
            if any(each.kind == NULL for each in said):
                raise refused("NULL in IN", "Use IS NULL.")
            listed = ", ".join(each.text for each in said[1:])
            return Said(f"({said[0].text} {kind[8:].replace('_', ' ')} ({listed}))", BOOLEAN)
        if kind == "OPERATOR_COALESCE":
            said = [self.expression(each) for each in children]
            return Said(f"COALESCE({', '.join(each.text for each in said)})", one_kind(said))
        raise refused(kind.replace("OPERATOR_", "").replace("_", " "))

    def _case(self, node: Node) -> Said:
        """A condition that is NULL does not hold; Daft would return NULL."""
        checks = [
            (self.condition(each["when_expr"]), self.expression(each["then_expr"])) for each in node["case_checks"]
        ]
        other = self.expression(node["else_expr"])
        kind = one_kind([*(said for _, said in checks), other])
        whens = " ".join(f"WHEN COALESCE({condition}, FALSE) THEN {said.text}" for condition, said in checks)
        return Said(f"CASE {whens} ELSE {other.text} END", kind)

    def _cast(self, node: Node) -> Said:
        wanted, child = node["type_expr"]["type_name"].upper(), self.expression(node["child"])
        if node["try_cast"]:
            raise refused("TRY_CAST")
        if wanted == "TIMESTAMP" and node["child"]["class"] == "CONSTANT":
            return _moment(child)
        if wanted == "DOUBLE" and child.kind in NUMBERS:
            return Said(f"CAST({child.text} AS DOUBLE)", DOUBLE)
        if wanted == "BIGINT" and child.kind in (INTEGER, BOOLEAN):
            return Said(f"CAST({child.text} AS BIGINT)", INTEGER)
        raise refused(f"CAST of {child.kind or 'this'} AS {wanted}", "CAST(x AS DOUBLE) it has.")

    def _subquery(self, node: Node) -> Said:
        if node["subquery_type"] != "SCALAR":
            raise refused("IN or EXISTS with a subquery but as a condition of WHERE", "NOT IN: use NOT EXISTS.")
        inner = self._select(node["subquery"]["node"], None)
        return Said(f"({inner.text})", inner.columns[0][1].kind)

    def _function(self, node: Node) -> Said:
        return function(self, node)

    def _window(self, node: Node) -> Said:
        self.has_windows = True
        return window(self, node)


def _moment(said: Said) -> Said:
    if not _MOMENT.fullmatch(said.text.strip("'")):
        raise refused(f"time {said.text}", "Write it as '2026-01-31 12:30:00'.")
    return Said(f"CAST({said.text} AS TIMESTAMP)", TIME)


def one_kind(said: Sequence[Said]) -> str:
    kinds = {each.kind for each in said} - {NULL}
    if kinds == {DOUBLE, DECIMAL} or kinds == {DOUBLE, INTEGER}:
        return DOUBLE
    if len(kinds) != 1:
        raise refused("CASE or COALESCE of different types", "Cast them: CAST(x AS DOUBLE).")
    return kinds.pop()


def walk(node: Node) -> Iterator[Node]:
    """Every object of an expression, without subqueries."""
    if isinstance(node, dict):
        yield node
        for name, value in node.items():
            if name not in ("subquery", "said"):
                yield from walk(value)
    elif isinstance(node, list):
        for each in node:
            yield from walk(each)


def is_same(one: Node, other: Node) -> bool:
    """Whether two expressions are the same words."""
    return bool(_plain(one) == _plain(other))


def _plain(node: Node) -> Node:
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items() if name != "alias" and "location" not in name}
    return [_plain(each) for each in node] if isinstance(node, list) else node
