"""Operators, functions, aggregates and windows of DuckDB in the words of Daft's SQL.

Used by probe.record.fleet.words.  Invariant: as there.
"""

from __future__ import annotations

from typing import Protocol

from .said import BOOLEAN, DECIMAL, DOUBLE, INTEGER, NUMBERS, TEXT, TIME, WIDE, Node, Said, refused

AGGREGATES = ("count_star", "count", "sum", "avg", "min", "max", "bool_and", "bool_or")
_LIKE = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE"}
_SCALAR: dict[str, tuple[tuple[str, ...], str]] = {  # name -> what it takes, what it gives
    "abs": ((DOUBLE,), DOUBLE), "round": ((DOUBLE, INTEGER), DOUBLE), "floor": ((DOUBLE,), DOUBLE),
    "ceil": ((DOUBLE,), DOUBLE), "lower": ((TEXT,), TEXT), "upper": ((TEXT,), TEXT),
    "contains": ((TEXT, TEXT), BOOLEAN), "starts_with": ((TEXT, TEXT), BOOLEAN), "date_trunc": ((TEXT, TIME), TIME),
}  # fmt: skip
_PARTS = {"'second'", "'minute'", "'hour'", "'day'"}
_NEAREST = {
    "median": "Sort and number the rows in a subquery.", "||": "Select the parts.",
    "stddev": "Compare avg, min and max.", "list": "Select the rows.",
}  # fmt: skip
_RANKING = {"row_number", "rank", "dense_rank"}
_STARTS = {"UNBOUNDED_PRECEDING": "UNBOUNDED PRECEDING", "EXPR_PRECEDING_ROWS": "{} PRECEDING",
           "CURRENT_ROW_ROWS": "CURRENT ROW"}  # fmt: skip
_ENDS = {"UNBOUNDED_FOLLOWING": "UNBOUNDED FOLLOWING", "EXPR_FOLLOWING_ROWS": "{} FOLLOWING",
         "CURRENT_ROW_ROWS": "CURRENT ROW"}  # fmt: skip
_CASTS = "DECIMAL(38, 0)"  # as wide as DuckDB's HUGEINT, in which it sums whole numbers; Daft's BIGINT would wrap


class Words(Protocol):
    """Writes what stands inside, probe.record.fleet.words.Words."""

    def expression(self, node: Node) -> Said: ...

    def of_kind(self, node: Node, *kinds: str) -> Said: ...

    def condition(self, node: Node) -> str: ...


def function(words: Words, node: Node) -> Said:
    """An operator, a function or an aggregate.  Raises QueryError."""
    name, nodes = node["function_name"].lower(), [each["expression"] for each in node["arguments"]]
    if node.get("order_bys", {}).get("orders"):
        raise refused(f"ORDER BY in {name}()")
    if name in AGGREGATES:
        return _aggregate(words, name, nodes, node["filter"], node["distinct"])
    if node["distinct"] or node["filter"]:
        raise refused(f"{name}() with DISTINCT or FILTER")
    if name in _LIKE:
        return _like(words, name, nodes)
    if name in ("+", "-", "*", "/", "%", "//"):
        return _arithmetic(name, [words.of_kind(each, *NUMBERS) for each in nodes], nodes)
    if name in _SCALAR:
        return _scalar(words, name, nodes)
    shown = f"{name}()" if name.isidentifier() else f"operator {name}"
    raise refused(shown, next((way for start, way in _NEAREST.items() if name.startswith(start)), ""))


def _scalar(words: Words, name: str, nodes: list[Node]) -> Said:
    takes, gives = _SCALAR[name]
    said = [words.of_kind(each, kind) for each, kind in zip(nodes, takes, strict=False)]
    if name == "date_trunc" and said[0].text not in _PARTS:
        raise refused(f"date_trunc({said[0].text}, …)", f"It has {', '.join(sorted(_PARTS))}.")
    if name in ("round", "contains", "starts_with") and any(each["class"] != "CONSTANT" for each in nodes[1:]):
        raise refused(f"{name}() but by a constant")
    if name == "round" and any(each.text.startswith("-") for each in said[1:]):
        raise refused("round() to less than 0 digits", "Divide, round and multiply.")
    return Said(f"{name}({', '.join(each.text for each in said)})", gives)


def _like(words: Words, name: str, nodes: list[Node]) -> Said:
    text, pattern = (words.of_kind(each, TEXT).text for each in nodes)
    if nodes[1]["class"] != "CONSTANT" or "\\" in pattern:
        raise refused("LIKE but with a constant pattern without backslashes", "Use contains() or starts_with().")
    return Said(f"({text} {_LIKE[name]} {pattern})", BOOLEAN)


def _arithmetic(name: str, said: list[Said], nodes: list[Node]) -> Said:
    if len(said) == 1:
        if said[0].kind not in (INTEGER, DOUBLE):
            raise refused(f"{name} before {said[0].kind}")
        return Said(f"({name}{said[0].text})", said[0].kind)
    kinds = {each.kind for each in said}
    if name in ("%", "//"):
        if kinds != {INTEGER} or not nodes[1].get("literal") or said[1].text == "0":
            raise refused(f"{name} but of whole numbers by a constant other than 0", "Cast and divide: floor(x / y).")
        return Said(f"({said[0].text} {name} {said[1].text})", INTEGER)
    if name == "/":
        return Said(f"({_as_double(said[0])} / {_as_double(said[1])})", DOUBLE)
    if DOUBLE in kinds:
        return Said(f"({_as_double(said[0])} {name} {_as_double(said[1])})", DOUBLE)
    if kinds != {INTEGER}:
        raise refused(
            f"{name} of exact numbers of {' and '.join(sorted(kinds))}",
            "Write 15e-1 for 1.5, or cast: CAST(x AS DOUBLE).",
        )
    if name == "*":
        return Said(f"(CAST({said[0].text} AS DECIMAL(19, 0)) * CAST({said[1].text} AS DECIMAL(19, 0)))", WIDE)
    return Said(f"({said[0].text} {name} {said[1].text})", INTEGER)


def _as_double(said: Said) -> str:
    return said.text if said.kind == DOUBLE else f"CAST({said.text} AS DOUBLE)"


def _aggregate(words: Words, name: str, nodes: list[Node], where: Node, distinct: bool) -> Said:
    """FILTER becomes CASE: all of these skip NULL."""
    if distinct and (name != "count" or where):
        raise refused(f"{name}(DISTINCT …){' with FILTER' * bool(where)}", "Select DISTINCT in a subquery.")
    said = Said("1", INTEGER) if name == "count_star" else words.expression(nodes[0])
    if len(nodes) > 1:
        raise refused(f"{name}() of several values", "Concatenate nothing: count them in a subquery.")
    text = said.text
    if where is not None:
        text = f"CASE WHEN COALESCE({words.condition(where)}, FALSE) THEN {text} ELSE NULL END"
    if name in ("count", "count_star"):
        if distinct and said.kind == DOUBLE and not said.is_column:
            raise refused(
                "COUNT(DISTINCT …) of computed floating-point numbers", "Round them in a subquery and GROUP BY."
            )
        inner = "*" if name == "count_star" and where is None else f"{'DISTINCT ' * distinct}{text}"
        return Said(f"CAST(COUNT({inner}) AS BIGINT)", INTEGER)
    if name in ("min", "max") and said.kind == DOUBLE and not said.is_column:
        return Said(_extreme(name, text), DOUBLE)
    return _value(name, Said(text, said.kind))


def _extreme(name: str, text: str) -> str:
    """Of computed numbers, with NaN (of 0 / 0) above all others, as DuckDB has it.  Recorded ones are never NaN."""
    if name == "max":
        return f"CASE WHEN COALESCE(bool_or(is_nan({text})), FALSE) THEN CAST('NaN' AS DOUBLE) ELSE max({text}) END"
    return f"COALESCE(min(CASE WHEN is_nan({text}) THEN NULL ELSE {text} END), max({text}))"


def _value(name: str, said: Said) -> Said:
    """The text of an aggregate over values of a kind that DuckDB and Daft sum alike."""
    text, kind = said.text, said.kind
    if name.startswith("bool") and kind == BOOLEAN:
        return Said(f"{name}({text})", BOOLEAN)
    if name in ("min", "max") and kind in (*NUMBERS - {DECIMAL}, TEXT, TIME):
        return Said(f"{name}({text})", kind)
    if name == "avg" and kind in (INTEGER, DOUBLE, WIDE):
        return Said(f"avg({_as_double(said)})", DOUBLE)
    if name == "sum" and kind in (INTEGER, WIDE):
        return Said(f"sum(CAST({text} AS {_CASTS}))", WIDE)
    if name == "sum" and kind == DOUBLE:
        return Said(f"sum({text})", DOUBLE)
    instead = "SUM(CASE WHEN x THEN 1 ELSE 0 END)." if kind == BOOLEAN else "Cast it: CAST(x AS DOUBLE)."
    raise refused(f"{name}() of {kind or 'such values'}", instead)


def window(words: Words, node: Node) -> Said:
    """OVER, with all of its frame said."""
    name, nodes = node["function_name"].lower(), [each["expression"] for each in node["arguments"]]
    if any(node.get(each) for each in ("filter_expr", "distinct", "ignore_nulls", "has_ignore_nulls", "arg_orders")):
        raise refused("OVER with FILTER, DISTINCT or IGNORE NULLS", "Use CASE, or filter in a subquery.")
    if not node["partitions"]:
        raise refused("OVER without PARTITION BY", "Partition by something, such as rank.")
    if node["exclude_clause"] != "NO_OTHER":
        raise refused("EXCLUDE in OVER")
    parts = ", ".join(words.expression(each).text for each in node["partitions"])
    orders = ", ".join(_sorted(words, each) for each in node["orders"])
    over = f"PARTITION BY {parts}{f' ORDER BY {orders}' if orders else ''}"
    if name in _RANKING:
        return Said(f"CAST({name}() OVER ({over}) AS BIGINT)", INTEGER)
    if name in ("lag", "lead"):
        return _shifted(words, name, nodes, over)
    if name not in ("sum", "avg", "min", "max", "count"):
        raise refused(f"{name}() OVER", "Use row_number(), lag(), lead(), sum, avg, min or max.")
    return _over(words, name, nodes, f"{over}{_frame(node)}", bool(orders))


def _sorted(words: Words, order: Node) -> str:
    nulls = order["null_order"].replace("ORDER_DEFAULT", "NULLS LAST")
    return f"{words.expression(order['expression']).text} {'DESC' if order['type'] == 'DESCENDING' else 'ASC'} {nulls}"


def _shifted(words: Words, name: str, nodes: list[Node], over: str) -> Said:
    if len(nodes) > 2 or any(each.get("literal", {}).get("kind") != "INTEGER" for each in nodes[1:]):
        raise refused(f"{name}() with a default, or by anything but a number", "Use COALESCE.")
    said = [words.expression(each) for each in nodes]
    if len(said) > 1 and int(said[1].text) < 1:
        raise refused(f"{name}() by less than 1")
    return Said(f"{name}({said[0].text}, {said[1].text if said[1:] else '1'}) OVER ({over})", said[0].kind)


def _over(words: Words, name: str, nodes: list[Node], over: str, is_framed: bool) -> Said:
    if name == "count":
        if is_framed or not nodes:
            raise refused("COUNT(*) OVER, or COUNT with ORDER BY", "COUNT(step) OVER (PARTITION BY …), or SUM(1e0).")
        return Said(f"CAST(COUNT({words.expression(nodes[0]).text}) OVER ({over}) AS BIGINT)", INTEGER)
    value = words.expression(nodes[0])
    if value.kind == INTEGER and name == "sum" and is_framed:
        raise refused("SUM of whole numbers with ORDER BY in OVER", "SUM(CAST(x AS DOUBLE)) OVER (…).")
    said = _value(name, value)
    return Said(f"{said.text} OVER ({over})", said.kind)


def _frame(node: Node) -> str:
    """Daft takes the default frame, of equal rows, for one of single rows; so it has to be said."""
    if not node["orders"] and (node["start"], node["end"]) == ("UNBOUNDED_PRECEDING", "CURRENT_ROW_RANGE"):
        return ""
    if node["start"] not in _STARTS or node["end"] not in _ENDS or not node["orders"]:
        raise refused("aggregate over a frame of equal rows (RANGE, the default)",
                      "Say ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW.")  # fmt: skip
    return f" ROWS BETWEEN {_bound(_STARTS, node, 'start')} AND {_bound(_ENDS, node, 'end')}"


def _bound(words: dict[str, str], node: Node, side: str) -> str:
    expression = node[f"{side}_expr"]
    literal = (expression or {}).get("literal", {"kind": "INTEGER", "text": ""})
    if literal["kind"] != "INTEGER" or (expression and expression["class"] != "CONSTANT"):
        raise refused("frame but of so many rows", "ROWS BETWEEN 9 PRECEDING AND CURRENT ROW.")
    return words[node[side]].format(literal["text"])
