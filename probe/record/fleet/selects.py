"""DuckDB's SELECT in the words of Daft's SQL: what both answer alike.  Whatever else there is, is refused by name.

Called by probe.record.fleet.fleet.  Invariant: only clauses that are known here are written, so nothing passes unread;
every column has a name of its own (c7) and every table (t3), because Daft takes an alias for a column of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...tables.declaration import Table
from .said import KINDS, Node, Said, Scope, Visible, refused
from .words import Words, is_same

_JOINS = {"INNER": "JOIN", "LEFT": "LEFT JOIN", "RIGHT": "RIGHT JOIN", "OUTER": "FULL JOIN"}
_ELSEWHERE = {  # in the tree -> what it is, and the nearest way
    "qualify": ("QUALIFY", "Put the window into a subquery and use WHERE outside it."),
    "sample": ("USING SAMPLE", "Filter by step: WHERE step % 10 = 0."),
}


@dataclass(frozen=True)
class Selected:
    """A SELECT as text, and what it returns: a visible name and the column that has it, in order."""

    text: str
    columns: tuple[tuple[str, Said], ...]


@dataclass
class Selects:
    """tables: by name in lower case, python.step_trace and step_trace; read: those that the SQL names, by the name that
    Daft has of them; columns: of a table beside the declared ones."""

    tables: Mapping[str, Table]
    with_job: bool
    read: dict[str, Table] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def name(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    def written(self, node: Node, ctes: Mapping[str, Node], outer: Scope | None = None) -> Selected:
        """Raises QueryError for what Daft lacks or answers otherwise."""
        known = {**ctes}
        for entry in node["cte_map"]["map"]:
            known[entry["key"].lower()] = (entry["value"], {**known})
        if node["type"] == "SET_OPERATION_NODE":
            return self._set_operation(node, known)
        if node["type"] != "SELECT_NODE":
            raise refused(node["type"].replace("_NODE", "").replace("_", " "))
        return _Select(self, node, known, outer).written()

    def _set_operation(self, node: Node, ctes: Mapping[str, Node]) -> Selected:
        word = f"{node['setop_type']}{' ALL' * bool(node['setop_all'])}"
        if word not in ("UNION", "UNION ALL", "INTERSECT"):
            raise refused(word, "Use NOT EXISTS with a condition on the keys.")
        parts = [self.written(child, ctes) for child in node["children"]]
        first = parts[0].columns
        if any([a.kind for _, a in part.columns] != [a.kind for _, a in first] for part in parts):
            raise refused(f"{word} of columns of different types", "Cast them: CAST(x AS DOUBLE).")
        names = [self.name("c") for _ in first]
        texts = [self._renamed(part, names) for part in parts]
        columns = [(name, Said(f'"{new}"', said.kind)) for (name, said), new in zip(first, names, strict=True)]
        return self.ordered(f" {word} ".join(texts), columns, node["modifiers"])

    def _renamed(self, part: Selected, names: Sequence[str]) -> str:
        pairs = ", ".join(f"{said.text} AS {new}" for (_, said), new in zip(part.columns, names, strict=True))
        return f"SELECT {pairs} FROM ({part.text}) AS {self.name('t')}"

    def ordered(self, text: str, columns: Sequence[tuple[str, Said]], modifiers: Sequence[Node]) -> Selected:
        """Sorted by columns of the result alone, and cut; a SELECT around it."""
        if modifiers:
            orders = [each for modifier in modifiers for each in modifier.get("orders", ())]
            tail = _tail([_result_order(each, columns) for each in _all(orders, len(columns))], modifiers)
            text = f"SELECT {', '.join(said.text for _, said in columns)} FROM ({text}) AS {self.name('t')}{tail}"
        return Selected(text, tuple(columns))


class _Select:
    """One SELECT without set operations."""

    def __init__(self, selects: Selects, node: Node, ctes: Mapping[str, Node], outer: Scope | None) -> None:
        self._selects, self._node, self._ctes, self._outer = selects, node, ctes, outer
        self._scope, self._words = Scope([]), Words(Scope([]), self._subquery)

    def written(self) -> Selected:
        for clause, (what, instead) in _ELSEWHERE.items():
            if self._node.get(clause):
                raise refused(what, instead)
        source = self._from(self._node["from_table"])
        self._words = Words(self._scope, self._subquery, self._outer)
        where = self._where()
        items = self._items()
        keys = self._keys(items)
        rest = f"FROM {source}{where}"
        return self._finished(items, self._words, rest) if keys is None else self._grouped(items, keys, rest)

    def _grouped(self, items: Sequence[tuple[str, Node]], keys: Sequence[Node], rest: str) -> Selected:
        """Groups inside, whose columns are the keys and the aggregates; expressions of these outside."""
        named = [(key, self._words.expression(key), self._selects.name("c")) for key in keys]
        words = self._words.over_groups([(key, Said(f'"{name}"', said.kind)) for key, said, name in named],
                                        lambda: self._selects.name("c"))  # fmt: skip
        having = self._node["having"] and words.condition(self._node["having"])
        finished = self._finished(items, words, "\0")
        inside = [f'{said.text} AS "{name}"' for _, said, name in named]
        inside += [f'{text} AS "{name}"' for name, text in words.aggregates.items()]
        grouped = f"SELECT {', '.join(inside) or '1'} {rest}"
        if named:
            grouped += f" GROUP BY {', '.join(said.text for _, said, _ in named)}"
        around = f"FROM ({grouped}) AS {self._selects.name('t')}{f' WHERE {having}' if having else ''}"
        return Selected(finished.text.replace("\0", around), finished.columns)

    def _finished(self, items: Sequence[tuple[str, Node]], words: Words, rest: str) -> Selected:
        """With what is selected, and sorted."""
        said = [(name, words.expression(node)) for name, node in items]
        names = [self._selects.name("c") for _ in items]
        chosen = ", ".join(f'{each.text} AS "{name}"' for (_, each), name in zip(said, names, strict=True))
        columns = [(name, Said(f'"{new}"', each.kind)) for (name, each), new in zip(said, names, strict=True)]
        modifiers = self._node["modifiers"]
        distinct = [each for each in modifiers if each["type"] == "DISTINCT_MODIFIER"]
        if any(each.get("distinct_on_targets") for each in distinct):
            raise refused("DISTINCT ON", "Number the rows with row_number() in a subquery.")
        if distinct or words.has_windows:  # which Daft would make after it has sorted
            others = [each for each in modifiers if each not in distinct]
            return self._selects.ordered(f"SELECT {'DISTINCT ' * bool(distinct)}{chosen} {rest}", columns, others)
        orders = [each for modifier in modifiers for each in modifier.get("orders", ())]
        sorting = [self._order(each, items, columns, words) for each in _all(orders, len(columns))]
        return Selected(f"SELECT {chosen} {rest}{_tail(sorting, modifiers)}", tuple(columns))

    def _order(self, order: Node, items: Sequence[tuple[str, Node]], columns: Any, words: Words) -> str:
        node = order["expression"]
        for (_, item), (_, said) in zip(items, columns, strict=True):
            if is_same(item, node):
                return _direction(order, said.text)
        if _position(node) or _alias(node) in [name for name, _ in columns]:
            return _result_order(order, columns)
        if node["class"] == "CONSTANT":
            raise refused("ORDER BY a constant")
        return _direction(order, words.expression(node).text)

    def _where(self) -> str:
        return f" WHERE {self._words.filter(self._node['where_clause'])}" if self._node["where_clause"] else ""

    def _items(self) -> list[tuple[str, Node]]:
        """The name that each has in DuckDB, and its expression; a star is all columns."""
        found = list[tuple[str, Node]]()
        for node in self._node["select_list"]:
            if node["class"] == "STAR":
                found += [(name, {"class": "WRITTEN", "said": said}) for name, said in self._scope.star(node)]
            else:
                found.append(((node["alias"] or _alias(node)).lower(), node))
        return found

    def _keys(self, items: Sequence[tuple[str, Node]]) -> list[Node] | None:
        """What it groups by; None if it does not group."""
        if len(self._node.get("group_sets") or []) > 1:
            raise refused("ROLLUP, CUBE or GROUPING SETS", "Join several GROUP BYs by UNION ALL.")
        if self._node["aggregate_handling"] == "FORCE_AGGREGATES":
            return [node for _, node in items if not self._words.aggregates_in(node)]
        keys = [self._key(node, items) for node in self._node["group_expressions"]]
        grouped = keys or self._node["having"] or any(self._words.aggregates_in(node) for _, node in items)
        return keys if grouped else None

    def _key(self, node: Node, items: Sequence[tuple[str, Node]]) -> Node:
        """A number, or an alias that no column has, stands for what is selected."""
        if place := _position(node):
            return items[place - 1][1]
        name = _alias(node)
        if node["class"] == "COLUMN_REF" and not self._scope.has(name):
            return next((each for alias, each in items if alias == name), node)
        return node

    def _subquery(self, node: Node, outer: Scope | None) -> Selected:
        return self._selects.written(node, self._ctes, outer)

    def _from(self, node: Node) -> str:
        """The text, while its columns come into scope."""
        if node.get("sample"):
            raise refused("TABLESAMPLE", _ELSEWHERE["sample"][1])
        if node["type"] == "JOIN":
            return self._join(node)
        if node["type"] == "BASE_TABLE":
            return self._table(node)
        if node["type"] == "SUBQUERY":
            return self._derived(self._selects.written(node["subquery"]["node"], self._ctes), node, node["alias"])
        if node["type"] == "EMPTY":
            raise refused("a SELECT without a table")
        raise refused({"TABLE_FUNCTION": "a table function"}.get(node["type"], node["type"].replace("_", " ")))

    def _table(self, node: Node) -> str:
        name = node["table_name"].lower()
        alias = node["alias"] or name
        if not node["schema_name"] and name in self._ctes:
            entry, ctes = self._ctes[name]
            inner = self._selects.written(entry["query_node"], ctes)
            return self._derived(inner, {"column_name_alias": entry["aliases"]}, alias)
        table = self._selects.tables.get(name)
        if table is None or node.get("column_name_alias") or node.get("at_clause"):
            raise refused(f"the table {name}" if table is None else "new names for a table's columns")
        given = table.name.replace(".", "__")
        self._selects.read[given] = table
        new = self._selects.name("t")
        declared = [(each.name, KINDS.get(each.type, "")) for each in table.columns]
        if self._selects.with_job and table.derive_catalogue is None:
            declared.append(("job", KINDS["VARCHAR"]))
        named = [(name, f"{new}_{name}", kind) for name, kind in declared]
        self._scope.add(
            Visible(alias.lower(), {name: Said(f"{new}.{column}", kind, True) for name, column, kind in named})
        )
        chosen = ", ".join(f'"{name}" AS {column}' for name, column, _ in named)
        return f"(SELECT {chosen} FROM {given}) AS {new}"

    def _derived(self, inner: Selected, node: Node, alias: str) -> str:
        new = self._selects.name("t")
        given = [name.lower() for name in node.get("column_name_alias") or ()]
        names = [*given, *(name for name, _ in inner.columns[len(given) :])]
        if len({*names}) < len(names):
            raise refused("two columns of one name in a subquery", "Give them different names.")
        columns = {name: Said(f"{new}.{said.text}", said.kind)
                   for name, (_, said) in zip(names, inner.columns, strict=True)}  # fmt: skip
        self._scope.add(Visible(alias.lower(), columns))
        return f"({inner.text}) AS {new}"

    def _join(self, node: Node) -> str:
        kind = _JOINS.get(node["join_type"])
        if kind is None or node["ref_type"] not in ("REGULAR", "CROSS"):
            word = node["ref_type"] if node["ref_type"] not in ("REGULAR", "CROSS") else node["join_type"]
            raise refused(f"{word} JOIN", "Use EXISTS, or JOIN ON equal columns.")
        left = self._from(node["left"])
        before = len(self._scope.tables)
        right = self._from(node["right"])
        if node["ref_type"] == "CROSS":
            return self._implicit(node, left, right)
        conditions = self._scope.using(node["using_columns"], before, node["join_type"])
        words = Words(self._scope, self._subquery)
        conditions += [words.equal(each) for each in words.conjuncts(node["condition"])]
        return f"{left} {kind} {right} ON {' AND '.join(conditions)}"

    def _implicit(self, node: Node, left: str, right: str) -> str:
        """A comma: WHERE has to join it."""
        if not node["is_implicit"]:
            raise refused("CROSS JOIN", "Join ON equal columns.")
        return f"{left}, {right}"


def _all(orders: Sequence[Node], columns: int) -> list[Node]:
    """ORDER BY ALL as one order for each column."""
    found = list[Node]()
    for order in orders:
        is_all = order["expression"]["class"] == "STAR"
        places = [{"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": str(n + 1)}} for n in range(columns)]
        found += [{**order, "expression": place} for place in places] if is_all else [order]
    return found


def _result_order(order: Node, columns: Sequence[tuple[str, Said]]) -> str:
    node = order["expression"]
    if place := _position(node):
        return _direction(order, columns[place - 1][1].text)
    found = [said.text for name, said in columns if name == _alias(node)]
    if len(found) != 1:
        raise refused("ORDER BY something that is not selected", "Select it, too.")
    return _direction(order, found[0])


def _direction(order: Node, text: str) -> str:
    """Written out: the defaults of the two differ."""
    nulls = order["null_order"].replace("ORDER_DEFAULT", "NULLS LAST")
    return f"{text} {'DESC' if order['type'] == 'DESCENDING' else 'ASC'} {nulls}"


def _tail(orders: Sequence[str], modifiers: Sequence[Node]) -> str:
    text = f" ORDER BY {', '.join(orders)}" if orders else ""
    for each in modifiers:
        if each["type"] == "LIMIT_MODIFIER":
            for word in ("limit", "offset"):
                if (value := each[word]) is not None:
                    if value["class"] != "CONSTANT" or each["limit_type"] != "ROW_COUNT":
                        raise refused(f"{word.upper()} by anything but a number")
                    text += f" {word.upper()} {int(value['literal']['text'])}"
        elif each["type"] not in ("ORDER_MODIFIER", "DISTINCT_MODIFIER"):
            raise refused(each["type"].replace("_MODIFIER", ""))
    return text


def _position(node: Node) -> int:
    """The number of a column that it stands for; 0 if it does not."""
    literal = node.get("literal") or {}
    return int(literal["text"]) if literal.get("kind") == "INTEGER" else 0


def _alias(node: Node) -> str:
    return str(node["column_names"][-1]).lower() if node["class"] == "COLUMN_REF" else ""
