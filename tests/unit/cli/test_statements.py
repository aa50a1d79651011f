"""Where a statement ends, by DuckDB's own tokenizer, and which statements are refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from probe.cli.shell.statements import check, is_complete, split, statement_at, tokens
from probe.errors import QueryError


@pytest.mark.parametrize(
    ("text", "complete", "statements"),
    [
        ("SELECT 1;", True, ["SELECT 1"]),
        ("SELECT 1", False, ["SELECT 1"]),
        ("SELECT 1; SELECT 2", False, ["SELECT 1", "SELECT 2"]),
        ("SELECT 1;\n-- that was it", True, ["SELECT 1"]),
        ("SELECT ';", False, ["SELECT ';"]),
        ("SELECT ';' AS \"a;b\", $$;$$;", True, ["SELECT ';' AS \"a;b\", $$;$$"]),
        ("SELECT 1 -- not yet;", False, ["SELECT 1 -- not yet;"]),
        ("SELECT /* ; */ 1;", True, ["SELECT /* ; */ 1"]),
        ("SELECT 'é;';select 2;;", True, ["SELECT 'é;'", "select 2"]),
        ("SELEC 1; SELECT 2;", True, ["SELEC 1", "SELECT 2"]),
        ("/* begun", False, ["/* begun"]),
        ("-- nothing\n;", True, []),
        (" \n", True, []),
    ],
)
def test_a_semicolon_ends_a_statement_but_in_strings_and_comments(
    text: str, complete: bool, statements: list[str]
) -> None:
    assert (is_complete(text), split(text)) == (complete, statements)


PIECES = st.sampled_from(
    [
        "SELECT 1",
        "SELECT 'a;b'",
        'SELECT "x;y"',
        "SELECT 'ü' -- ;\n",
        "SELECT /* ; */ 2",
        "SELECT $$ ; $$",
        "SELEC '😀'",
    ]
)


@given(st.lists(PIECES))
def test_statements_that_were_joined_are_split_again(pieces: list[str]) -> None:
    assert split("; ".join([*pieces, ""])) == [piece.strip() for piece in pieces]


@example("$?")
@given(st.text(st.characters(codec=None)))
def test_any_text_has_tokens_in_order(text: str) -> None:
    """Lone surrogates too: that is how bytes that are no text arrive."""
    found = tokens(text)
    assert [token.end for token in found[:-1]] == [token.start for token in found[1:]]
    assert all(0 <= token.start < token.end <= len(text) for token in found)
    split(text)
    is_complete(text)


def test_the_statement_at_a_position_is_found() -> None:
    text = "SELECT 1; SELECT ';2'; SELECT 3"
    assert [text[slice(*statement_at(text, place))] for place in (0, 8, 12, 30)] == [
        "SELECT 1", "SELECT 1", " SELECT ';2'", " SELECT 3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TABLE mine AS SELECT 1", "CREATE"),
        ("-- mine\ncreate view mine as select 1", "CREATE"),
        ("WITH a AS (SELECT 1) INSERT INTO mine SELECT * FROM a", "INSERT"),
        ("SET threads = 1", "SET"),
        ("USE python", "SET"),
        ("MERGE INTO a USING b ON a.x = b.x WHEN MATCHED THEN DELETE", "MERGE INTO"),
    ],
)
def test_a_statement_without_visible_effect_is_refused(statement: str, what: str) -> None:
    with pytest.raises(QueryError, match=f"^{what} has no effect: each query sees a fresh snapshot"):
        check(statement)


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1", "FROM python.stack", "WITH a AS (SELECT 1) FROM a", "DESCRIBE python.stack", "SHOW TABLES",
     "PIVOT range(3) ON range", "COPY (SELECT 1) TO 'one.csv'", "EXPLAIN SELECT 1", "SUMMARIZE probe.tables", "SELEC",
     "ATTACH 'one.db' AS one; CREATE TABLE one.a AS SELECT 1"],
)  # fmt: skip
def test_a_statement_with_a_result_or_an_error_of_its_own_is_passed_on(statement: str) -> None:
    check(statement)
