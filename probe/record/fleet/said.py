"""What expressions, columns and scopes are while SQL is written anew, and how a refusal reads.

Invariant: nothing of Daft's SQL is written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import QueryError

Node = Any  # of DuckDB's JSON syntax tree
INTEGER, DOUBLE, DECIMAL, WIDE, TEXT, BOOLEAN, TIME, NULL = (
    "integer", "double", "decimal", "wide", "text", "boolean", "time", "null"
)  # fmt: skip
KINDS = {
    "INTEGER": INTEGER,
    "BIGINT": INTEGER,
    "DOUBLE": DOUBLE,
    "VARCHAR": TEXT,
    "BOOLEAN": BOOLEAN,
    "TIMESTAMP": TIME,
}
NUMBERS = {INTEGER, DOUBLE, DECIMAL, WIDE}


def refused(what: str, instead: str = "") -> QueryError:
    """instead: the nearest way."""
    where = "Or on one machine: probe DIR query." if instead else "Ask on one machine: probe DIR query."
    return QueryError(
        f"fleet does not answer {what}: Daft lacks it, or answers it otherwise.",
        f"{instead} {where}".strip(),
        "fleet-sql",
    )


@dataclass(frozen=True)
class Said:
    """An expression in Daft's SQL; kind: of its values, "" for lists and what is not known; is_column: of a table."""

    text: str
    kind: str = ""
    is_column: bool = False


@dataclass(frozen=True)
class Visible:
    """What stands in FROM under one alias."""

    alias: str
    columns: Mapping[str, Said]


@dataclass
class Scope:
    """The columns that a SELECT can name.  merged: those of USING, which need no alias."""

    tables: list[Visible]
    merged: dict[str, Said] = field(default_factory=dict)

    def add(self, table: Visible) -> None:
        self.tables.append(table)

    def has(self, name: str) -> bool:
        return name in self.merged or any(name in table.columns for table in self.tables)

    def column(self, names: Sequence[str]) -> Said | None:
        *before, name = [each.lower() for each in names]
        if not before and name in self.merged:
            return self.merged[name]
        found = (each.columns.get(name) for each in self.tables if not before or each.alias == before[-1])
        return next((each for each in found if each is not None), None)

    def star(self, node: Node) -> list[tuple[str, Said]]:
        """The columns of `*` or `t.*`, by name."""
        if any(node.get(key) for key in ("columns", "expr", "replace_list", "rename_list", "qualified_exclude_list")):
            raise refused("COLUMNS, REPLACE or RENAME", "Name the columns.")
        alias, left_out = (
            node.get("relation_name", "").lower(),
            {name.lower() for name in node.get("exclude_list") or ()},
        )
        if self.merged:
            raise refused("* over JOIN USING", "Name the columns.")
        return [(name, said) for table in self.tables if alias in ("", table.alias)
                for name, said in table.columns.items() if name not in left_out]  # fmt: skip

    def using(self, names: Sequence[str], before: int, kind: str) -> list[str]:
        """The conditions of JOIN USING; the tables from number `before` on are its right side."""
        left, right = Scope(self.tables[:before], self.merged), Scope(self.tables[before:])
        conditions = []
        for name in (each.lower() for each in names):
            here, there = left.column([name]), right.column([name])
            if here is None or there is None:
                raise refused("this JOIN USING", "Use ON.")
            conditions.append(joined(here, there))
            both = Said(f"COALESCE({here.text}, {there.text})", here.kind)
            self.merged[name] = {"RIGHT": there, "OUTER": both}.get(kind, here)
        return conditions


def joined(left: Said, right: Said) -> str:
    if left.kind != right.kind or left.kind not in (INTEGER, TEXT, BOOLEAN, TIME):
        raise refused(
            "JOIN on floating-point numbers or different types", "Join on rank, step, names or whole numbers."
        )
    return f"{left.text} = {right.text}"
