"""Which pairs of Python and torch `probe.agents` reports as tested."""

from __future__ import annotations

import pytest

from probe.version import is_tested


@pytest.mark.parametrize(
    ("python", "torch", "tested"),
    [
        ("3.11.7", "2.13.0+cpu", True),
        ("3.12.1", "2.5.1+cu124", True),
        ("3.13.0", "2.15.0", True),
        ("3.12.1", "2.13.0", False),  # each is tested, but not with the other
        ("3.11.7", "2.13.1", False),
        ("3.1.1", "2.13.0", False),
    ],
)
def test_python_and_torch_are_tested_only_as_a_pair_and_in_any_build(python: str, torch: str, tested: bool) -> None:
    assert is_tested(python, torch) is tested
