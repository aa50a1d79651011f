"""What an agent finds out before it leaves its record, and what it says where it cannot."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from held_port import held_port

from probe.agent.serve import peers
from probe.agent.serve.peers import Peers, Unknown, address_towards, open_store, place_of_store


@pytest.mark.parametrize(
    ("store", "host"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("127.0.1.1", "127.0.1.1")],
)
def test_on_the_stores_own_host_its_name_is_the_hosts(store: str, host: str) -> None:
    assert address_towards((store, 29500, "")) == host


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A process group whose store is what the test makes of it."""
    for variable in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    made = SimpleNamespace(store=SimpleNamespace(), size=4)
    c10d = SimpleNamespace(_get_default_store=lambda: made.store)
    distributed = SimpleNamespace(distributed_c10d=c10d, get_world_size=lambda: made.size)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(peers, "is_distributed", lambda: True)
    return made


def test_the_environment_says_where_the_store_is(job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert place_of_store() == ("node1", 29500, "probe/29500/4")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run7")
    assert place_of_store() == ("node1", 29500, "probe/run7/4")


def test_else_the_jobs_store_does_under_all_its_prefixes(job: SimpleNamespace) -> None:
    tcp = SimpleNamespace(host="node2", port=4711)
    job.store = SimpleNamespace(underlying_store=SimpleNamespace(underlying_store=tcp))
    assert place_of_store() == ("node2", 4711, "probe/4711/4")


def test_a_store_of_another_kind_is_said_to_be_one(job: SimpleNamespace) -> None:
    with pytest.raises(Unknown, match="no TCPStore"):
        place_of_store()


def test_a_store_that_is_gone_is_told_before_torch_waits_for_it(job: SimpleNamespace) -> None:
    # the job here has no TCPStore that could be made
    with held_port() as free, pytest.raises(ConnectionRefusedError):
        open_store(("127.0.0.1", free, ""))


@pytest.mark.parametrize(
    ("address", "other_network", "host"),
    [("0.0.0.0", False, "127.0.0.1"), ("0.0.0.0", True, "node1"), ("10.0.0.1", False, "node1")],
)
def test_a_record_has_the_address_here_only_where_the_server_is(address: str, other_network: bool, host: str) -> None:
    server: Any = SimpleNamespace(handlers={})
    port = {"host": "node1", "address": address, "port": 29600, "other_network": other_network}
    record = Peers(server, "id")._record(("127.0.0.1", 29500, ""), 0, port)
    assert record["endpoint"] == f"tcp://{host}:29600"
