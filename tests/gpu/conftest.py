"""Tests for a machine with a CUDA device: `make gpu`.  Elsewhere every one of them is skipped."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def device() -> str:
    """The device's name, as torch has it."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.cuda.init()
    return "cuda:0"


@pytest.fixture(autouse=True)
def left_as_found() -> None:
    """Not checked here: CUDA's libraries open descriptors and start threads when they are first used."""
