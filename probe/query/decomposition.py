"""A query taken apart: what each host can work out of its own ranks, and what makes the answer out of these parts.

Asked by probe.query.database on both sides.  Invariant: what is not surely the same as over all ranks at once is not
taken apart: anything but one SELECT from one table `of_each_rank`, with WHERE, GROUP BY, HAVING, ORDER BY and LIMIT of
plain expressions and with sum, count, min, max and avg.  DuckDB's parser reads and writes the SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..tables.declaration import Table
from .plain_expressions import NotPlain, Plain, has_aggregates, is_aggregate, key_of
from .statement import Node, Statement, text_of, tree_of

PARTS = "probe_parts"  # what the merging query reads
OURS = "probe_"  # how names of columns of parts begin
_ELSEWHERE = ("sample", "qualify")
_OF_TABLE = ("sample", "at_clause", "column_name_alias", "catalog_name")
_OF_STAR = ("relation_name", "exclude_list", "replace_list", "expr", "qualified_exclude_list", "rename_list")
_MERGED = {  # from columns of parts; avg from its sum and count
    "sum": "sum({0})", "min": "min({0})", "max": "max({0})",
    "count": "CAST(sum({0}) AS BIGINT)", "count_star": "CAST(sum({0}) AS BIGINT)",
    "avg": "CAST(sum({0}) AS DOUBLE) / sum({1})",
}  # fmt: skip
_PARTIAL = {"avg": ("sum", "count")}


@dataclass(frozen=True)
class Decomposition:
    """table: the one that is read.  partial: the SQL for each host; merged(): for what the hosts answered."""

    table: Table
    partial: str
    _statement: Statement
    _merging: Node

    def merged(self, columns: Iterable[str]) -> str:
        """The SQL over PARTS, whose result has columns of these names."""
        chosen = zip(self._merging["select_list"], columns, strict=True)
        tree = {**self._merging, "select_list": [{**node, "alias": name} for node, name in chosen]}
        return text_of(self._statement.connection, tree)


def decomposed(statement: Statement, tables: Iterable[Table]) -> Decomposition | None:
    """None for a query that is not taken apart.  Nothing is executed but DuckDB's parser."""
    node = statement.tree
    table = None if node is None else _table_of(node, tables)
    if table is None:
        return None
    try:
        return _Taking(statement, node, table).apart()
    except NotPlain:
        return None


def _table_of(node: Node, tables: Iterable[Table]) -> Table | None:
    """The one table of a SELECT, if its rows are of each rank alone."""
    source = node.get("from_table") or {}
    if node["type"] != "SELECT_NODE" or node["cte_map"]["map"] or any(node.get(each) for each in _ELSEWHERE):
        return None
    if source.get("type") != "BASE_TABLE" or any(source.get(each) for each in _OF_TABLE):
        return None
    schema, name = source["schema_name"].lower(), source["table_name"].lower()
    found = [table for table in tables if table.short_name == name and schema in ("", table.schema)]
    return found[0] if len(found) == 1 and found[0].of_each_rank else None


class _Taking:
    """One SELECT being taken apart."""

    def __init__(self, statement: Statement, node: Node, table: Table) -> None:
        self._statement, self._node, self._table = statement, node, table
        self._columns = {column.name.lower() for column in table.columns}
        alias = node["from_table"]["alias"].lower()
        names = {alias} if alias else {table.short_name, table.name}
        self._plain, self._row = Plain(self._columns, names, {}), Plain(self._columns, names, {})
        self._keys: dict[str, str] = {}  # of a key's tree -> its column of parts
        self._partial: dict[str, tuple[Node, str]] = {}  # likewise of an aggregate, with its tree
        self._texts: dict[str, str] = {}  # of an aggregate's tree -> how it is merged
        self._trees: dict[str, Node] = {}

    def apart(self) -> Decomposition:
        """Raises NotPlain."""
        items = [self._item(node) for node in self._node["select_list"]]
        keys = self._group(items)
        where = self._node["where_clause"] and self._row.normal(self._node["where_clause"])
        having = self._node["having"] and self._plain.normal(self._node["having"], aggregates=True)
        modifiers = [self._modifier(each) for each in self._node["modifiers"]]
        if keys and any(each["type"] == "LIMIT_MODIFIER" for each in modifiers) and len(modifiers) < 2:
            raise NotPlain("LIMIT without ORDER BY")
        for each in (items, having, modifiers):
            self._collect(each)
        if not self._keys and not self._partial:
            raise NotPlain("neither groups nor aggregates")
        self._trees = self._parsed()
        merging = {
            **self._node, "from_table": _table_node(PARTS), "where_clause": None, **self._grouping(self._keys.values()),
            "select_list": self._merged(items), "having": self._merged(having), "modifiers": self._merged(modifiers),
        }  # fmt: skip
        return Decomposition(self._table, self._partial_sql(keys, where), self._statement, merging)

    def _item(self, node: Node) -> Node:
        """What is selected; its alias stands for it from here on."""
        made, alias = self._plain.normal(node, aggregates=True), (node.get("alias") or "").lower()
        if alias in self._columns and made.get("column_names") != [alias]:
            raise NotPlain("an alias that is a column's name, too")
        if alias in self._plain.aliases:
            raise NotPlain("an alias that means two things")
        self._plain.aliases = {**self._plain.aliases, **({alias: made} if alias else {})}
        return made

    def _group(self, items: list[Node]) -> list[Node]:
        """The keys, each once."""
        node = self._node
        if node["aggregate_handling"] == "FORCE_AGGREGATES":  # GROUP BY ALL
            keys = [each for each in items if not has_aggregates(each)]
        elif node["group_sets"] in ([], [[*range(len(node["group_expressions"]))]]):
            keys = [self._key(each, items) for each in node["group_expressions"]]
        else:
            raise NotPlain("several groupings")
        if any(each["class"] == "CONSTANT" or has_aggregates(each) for each in keys):
            raise NotPlain("a group of another kind")
        for key in keys:
            self._keys.setdefault(key_of(key), f"{OURS}key{len(self._keys)}")
        return list({key_of(key): key for key in keys}.values())

    def _key(self, node: Node, items: list[Node]) -> Node:
        if node["class"] != "CONSTANT":
            return self._plain.normal(node, aggregates=True)
        place = _position(node)
        if not 0 < place <= len(items):
            raise NotPlain("a group of a constant")
        return items[place - 1]

    def _modifier(self, modifier: Node) -> Node:
        if modifier["type"] == "LIMIT_MODIFIER":
            if any((modifier[each] or {}).get("class", "CONSTANT") != "CONSTANT" for each in ("limit", "offset")):
                raise NotPlain("a limit that is worked out")
            return modifier
        if modifier["type"] != "ORDER_MODIFIER":
            raise NotPlain(modifier["type"])
        return {**modifier, "orders": [made for each in modifier["orders"] for made in self._orders(each)]}

    def _orders(self, order: Node) -> list[Node]:
        """A number stays as it is: the merging query selects the same.  ALL is written out."""
        node = order["expression"]
        if node["class"] == "STAR" and not any(node[each] for each in _OF_STAR):
            places = range(1, len(self._node["select_list"]) + 1)
            return [{**order, "expression": _number_node(place)} for place in places]
        if node["class"] == "CONSTANT":
            if not _position(node):
                raise NotPlain("ORDER BY a constant")
            return [order]
        return [{**order, "expression": self._plain.normal(node, aggregates=True)}]

    def _collect(self, node: Any) -> None:
        """Have a column of parts for whatever an aggregate is merged from."""
        if isinstance(node, list):
            for each in node:
                self._collect(each)
        elif isinstance(node, dict) and is_aggregate(node):
            name = node["function_name"].lower()
            names = [self._part({**node, "function_name": part}) for part in _PARTIAL.get(name, (name,))]
            self._texts[key_of(node)] = _MERGED[name].format(*names)
        elif isinstance(node, dict):
            self._collect(list(node.values()))

    def _part(self, node: Node) -> str:
        node = {**node, "qualified_name": {"path": [node["function_name"]]}}
        return self._partial.setdefault(key_of(node), (node, f"{OURS}part{len(self._partial)}"))[1]

    def _parsed(self) -> dict[str, Node]:
        """What stands in the merging query for each aggregate and key."""
        texts = self._texts | self._keys
        tree = tree_of(self._statement.connection, f"SELECT {', '.join(texts.values())}")
        return dict(zip(texts, tree["select_list"] if tree else (), strict=True))

    def _merged(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._merged(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "class" in node and (found := self._trees.get(key_of(node))) is not None:
            return found
        if node.get("class") == "COLUMN_REF":
            raise NotPlain("a column that is not grouped by")
        return {name: self._merged(value) for name, value in node.items()}

    def _partial_sql(self, keys: list[Node], where: Node) -> str:
        named = [*zip(keys, self._keys.values(), strict=True), *self._partial.values()]
        source = {**_table_node(self._table.short_name), "schema_name": self._table.schema}
        source["qualified_name"] = {"path": [self._table.schema, self._table.short_name]}
        tree = {
            **self._node, "from_table": source, "where_clause": where, "having": None, "modifiers": [],
            "select_list": [{**node, "alias": name} for node, name in named], **self._grouping(keys),
        }  # fmt: skip
        return text_of(self._statement.connection, tree)

    def _grouping(self, keys: Iterable[Any]) -> dict[str, Any]:
        made = [_column_node(each) if isinstance(each, str) else each for each in keys]
        sets = [[*range(len(made))]] if made else []
        return {"group_expressions": made, "group_sets": sets, "aggregate_handling": "STANDARD_HANDLING"}


def _position(node: Node) -> int:
    """The number that a constant is; 0 for any other."""
    literal = node.get("literal") or {}
    return int(literal["text"]) if literal.get("kind") == "INTEGER" and str(literal["text"]).isdigit() else 0


def _number_node(number: int) -> Node:
    literal = {"kind": "INTEGER", "text": str(number)}
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": literal}


def _column_node(name: str) -> Node:
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}


def _table_node(name: str) -> Node:
    return {
        "type": "BASE_TABLE", "alias": "", "sample": None, "schema_name": "", "table_name": name, "at_clause": None,
        "column_name_alias": [], "catalog_name": "", "qualified_name": {"path": [name]},
    }  # fmt: skip
