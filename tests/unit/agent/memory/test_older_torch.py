"""torch 2.1 has another name for the class below Tensor, and tells no address without the data."""

from __future__ import annotations

import pytest

from probe import protocol as wire
from probe.agent.memory.storages import Storages
from probe.agent.trace.held import size_reader

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "TensorBase")
    monkeypatch.delattr(torch._C, "_data_address")


def test_storages_are_found() -> None:
    storages, tensor = Storages(True, set()), torch.zeros(3, 4)
    row = storages.claim(tensor, wire.VARIABLE, tensor)
    assert row is not None and (row.key, row.bytes, row.shape) == (tensor.data_ptr(), 48, [3, 4])
    assert storages.claim(tensor[1:], wire.VARIABLE, tensor) is None  # it is the same one
    assert storages.claim(torch.zeros(2, device="meta"), wire.VARIABLE, tensor) is None


def test_the_size_of_an_argument_is_read() -> None:
    assert size_reader()(torch.zeros(3, 4)) == 12
