"""The table format, character by character."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from probe.cli.output.result import Records
from probe.cli.output.table import cell, cut, render, text_width


def lines(names: list[str], *rows: list[Any], width: int | None = None, wrap_last: bool = False) -> list[str]:
    return list(render(Records(names, rows, wrap_last), width))


def test_numbers_are_aligned_right_and_text_left() -> None:
    assert lines(["module", "count"], ["h.0", 7], ["lm_head", 1200]) == [
        "module   count",
        "-------  -----",
        "h.0          7",
        "lm_head   1200",
    ]


def test_a_table_without_rows_shows_its_columns() -> None:
    assert lines(["module", "count"]) == ["module  count", "------  -----"]


def test_null_and_booleans_are_words() -> None:
    assert lines(["a", "b"], [None, True]) == ["a     b", "----  ----", "NULL  true"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0"),
        (3.0, "3.0"),
        (0.1 + 0.2, "0.3"),
        (0.00123456789, "0.00123457"),
        (1.23456789e-7, "1.23457e-07"),
        (-12.5, "-12.5"),
        (123456.789, "123456.8"),
        (98765432109.0, "98765432109.0"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Decimal("1.50"), "1.5"),
        (Decimal("170141183460469231731687303715884105727"), "170141183460469231731687303715884105727"),
        (12345678901234567, "12345678901234567"),
    ],
)
def test_numbers_have_six_significant_digits_and_none_made_up(value: Any, shown: str) -> None:
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.00638859, 0.0006279321, 0.00006763], ["0.006389", "0.000628", "6.76e-05"]),
        ([0.0006279321, 0.00006763, None], ["0.0006279", "0.0000676", "NULL"]),
        ([165.159, 2.00124, 0.0, -33.0], ["165.2", "2.00", "0.0", "-33.0"]),
        ([41.9467, 2.00124, 7.5], ["41.95", "2.00", "7.50"]),
        ([987654.3, 0.3, float("nan")], ["987654", "0.300", "nan"]),
        ([810.0, 3.0], ["810.0", "3.0"]),
        ([1.5e-9, 2e-12], ["1.5e-09", "2e-12"]),
        ([Decimal("1.50"), 12345678], ["1.500", "12345678"]),
    ],
)
def test_numbers_in_a_terminal_have_three_or_four_digits_and_no_other_unit(values: Any, shown: list[str]) -> None:
    assert [line.strip() for line in lines(["duration"], *([value] for value in values), width=80)[2:]] == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two\nlines", "two\\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ([0, 1, None], "[0, 1, NULL]"),
        ({"a": [0.5]}, "{a: [0.5]}"),
        (b"\x00\xff", "00ff"),
    ],
)
def test_a_cell_is_one_line_that_cannot_move_the_cursor(value: Any, shown: str) -> None:
    assert cell(value) == shown


def test_a_terminal_gets_no_line_wider_than_itself() -> None:
    shown = lines(["module", "code", "count"], ["transformer.h.0", "x" * 200, 123456], width=60)
    assert max(map(len, shown)) == 60
    assert shown[2].startswith("transformer.h.0  xx") and shown[2].endswith("x…  123456")


def test_a_row_that_cannot_fit_is_shown_one_column_a_line() -> None:
    assert lines(["module", "code"], ["h.0", "x" * 99], ["h.1", "y"], width=20) == [
        "-- row 1 ---",
        "module  h.0",
        "code    xxxxxxxxxxx…",
        "-- row 2 ---",
        "module  h.1",
        "code    y",
    ]


def test_nothing_is_cut_in_a_pipe() -> None:
    assert lines(["code"], ["x" * 500])[2] == "x" * 500


def test_wide_characters_keep_the_columns_straight() -> None:
    shown = lines(["text", "n"], ["批次", 1], ["ab", 2])
    assert shown[2:] == ["批次  1", "ab    2"]
    assert text_width("e\u0301") == 1
    assert cut("批次加载", 5) == "批次…"


def test_documentation_is_wrapped_instead_of_cut() -> None:
    assert lines(["column", "meaning"], ["step", "one two three four five " * 2], width=36, wrap_last=True)[2:] == [
        "step    one two three four five one",
        "        two three four five",
    ]
