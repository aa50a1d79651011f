"""A played device, and the taps on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from naps import Clock, napping  # noqa: E402
from played_cuda import PlayedCuda, played_cuda  # noqa: E402
from tapped import Taps, tapped  # noqa: E402


@pytest.fixture
def played() -> Iterator[PlayedCuda]:
    clock = Clock()
    with napping(clock), played_cuda(clock) as played:
        yield played


@pytest.fixture
def taps(played: PlayedCuda) -> Iterator[Taps]:
    with tapped() as taps:
        yield taps
