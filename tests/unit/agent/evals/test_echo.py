"""The echo of a large value is cut before it is made; of a small one it is what repr() gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from probe.agent.evals import echo as of_echo
from probe.agent.evals.echo import echo

KEYS = some.integers() | some.text(max_size=9) | some.booleans() | some.none() | some.floats()
VALUES = some.recursive(
    KEYS | some.binary(max_size=9),
    lambda inner: some.lists(inner) | some.lists(inner).map(tuple) | some.dictionaries(KEYS, inner) | some.sets(KEYS),
)


@given(VALUES)
def test_in_pieces_it_is_what_repr_gives(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_echo, "_QUICK", -1)
        assert echo(value) == repr(value)


def test_a_value_that_holds_itself_is_shown_as_repr_shows_it() -> None:
    one: list[Any] = [1]
    one += [one, {"a": one}]
    assert echo(one) == repr(one)


class Endless(dict[int, int]):
    def __repr__(self) -> str:
        return "its own"


@pytest.mark.parametrize(
    ("value", "begins", "length"),
    [
        (list(range(1_000_000)), "[0, 1, 2, ", "1,000,000"),
        ({"a": list(range(1_000_000))}, "{'a': [0, 1, 2, ", "1"),
        ("x" * 20_000_000, "'xxx", "20,000,000"),
    ],
)
def test_a_large_value_is_cut_before_its_repr_is_made(value: Any, begins: str, length: str) -> None:
    text = echo(value)
    assert len(text) < of_echo.MOST_CHARACTERS + 100
    assert text.startswith(begins) and text.endswith(f" … (cut; its length is {length})")


def test_a_class_of_the_job_makes_its_own() -> None:
    assert echo([Endless({1: 1}), *range(200_000)]).startswith("[its own, 0, 1")
