"""What `import probe` offers is complete, sorted and documented."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import probe
from probe import errors

NAMES = [name for name in probe.__all__ if inspect.isclass(value := getattr(probe, name)) or inspect.isfunction(value)]
CALLS = {name: getattr(probe, name) for name in NAMES if inspect.isfunction(getattr(probe, name))}
CALLS |= {
    f"Connection.{name}": member
    for name, member in inspect.getmembers(probe.Connection, inspect.isfunction)
    if not name.startswith("_")
}


def test_the_names_are_sorted_and_each_of_them_exists() -> None:
    assert list(probe.__all__) == sorted(set(probe.__all__)) and set(probe.__all__) <= set(dir(probe))
    assert [name for name in probe.__all__ if getattr(probe, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = probe.nothing


def test_every_error_and_everything_that_a_connection_returns_is_exported() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert kinds <= set(probe.__all__)
    assert {name for call in CALLS.values() for name in returned(call)} <= set(probe.__all__)


def returned(call: Callable[..., Any]) -> Iterator[str]:
    """The names of our own classes in what a call returns; threads of stacks are described with stacks()."""
    said = str(inspect.signature(call).return_annotation)
    return (word for word in re.findall(r"\w+", said) if word[0].isupper() and word not in ("None", "Any", "Thread"))


@pytest.mark.parametrize("name", NAMES)
def test_a_class_or_function_has_a_docstring_of_its_own_with_an_example(name: str) -> None:
    kind = getattr(probe, name)
    assert kind.__doc__ and not kind.__doc__.startswith(f"{name}(")  # what dataclass writes by itself
    is_plain_error = inspect.isclass(kind) and issubclass(kind, probe.ProbeError) and kind is not probe.ProbeError
    assert is_plain_error or "Example" in kind.__doc__


@pytest.mark.parametrize("name", CALLS)
def test_a_call_says_what_it_raises_and_costs_and_shows_an_example(name: str) -> None:
    assert [word for word in ("Raises ", "Cost: ", "Example: ") if word not in (CALLS[name].__doc__ or "")] == []
