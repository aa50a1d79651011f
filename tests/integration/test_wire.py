"""The agent's answers at its own socket, read with pyarrow alone: no reader code of ours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from raw_client import RawClient

from probe import protocol as wire
from probe.host import agent_memory
from target import Probe, Start, Target


@pytest.fixture(scope="module")
def target(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Target:
    made = start_once("witness.py", str(tmp_path_factory.mktemp("witness") / "state"))
    probe("attach", made.pid)
    return made


@pytest.fixture
def client(target: Target) -> Iterator[RawClient]:
    made = connected(target)
    yield made
    made.close()


def connected(target: Target) -> RawClient:
    facts = agent_memory.facts(target.pid)
    assert facts is not None
    made = RawClient(str(facts.endpoint))
    assert made.hello()["role"] == wire.CONTROL
    return made


def message_of(slots: int, rows: int) -> tuple[bytes, bytes]:
    """(schema message, header of a record batch) of `rows` rows of so many 8-byte slots, as pyarrow writes them."""
    values = pa.array(np.zeros(rows * slots, dtype="<i8"))
    batch = pa.record_batch([pa.FixedSizeListArray.from_arrays(values, slots)], names=["row"])
    whole = batch.serialize().to_pybytes()
    return batch.schema.serialize().to_pybytes(), whole[: 8 + int.from_bytes(whole[4:8], "little")]


def patches(slots: int) -> list[list[int]]:
    """Where the header of a batch of n rows holds n times something."""
    (_, small), (_, large) = message_of(slots, 8), message_of(slots, 8 * 1009)
    found = []
    for at in range(0, len(small) - 7, 8):
        one, many = (int.from_bytes(header[at : at + 8], "little") for header in (small, large))
        if one and many == one * 1009:
            found.append([at, one // 8])
    return found


def test_pyarrow_reads_a_chunk_without_conversion(client: RawClient) -> None:
    client.ask(b"1", "snapshot")
    at = client.answer()[0]
    slots = at["facts"]["streams"]["spans"]["slots"]
    schema, template = message_of(len(slots), 8)
    client.ask(
        b"2", "scan", template,
        stream="spans", first=1, last=at["streams"]["spans"], credit=64, patch=patches(len(slots)),
    )  # fmt: skip
    stream, total = schema, 0
    while True:
        header, payload = client.answer()
        if header["kind"] != "rows":
            break
        total += header["rows"]
        stream += b"".join(payload)
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert header == {"kind": "end", "rows": total} and table.num_rows == total == at["streams"]["spans"]
    rows = table.column("row").combine_chunks().values.to_numpy().reshape(-1, len(slots))
    assert rows[:, -1].tolist() == list(range(1, total + 1))
    assert (rows[:, slots.index("end_ns")] > rows[:, slots.index("start_ns")]).all()


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"not json", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"kind": "dance"}', "unknown request 'dance'"),
        (b'{"kind": "hello", "protocol": 99}', "not 99"),
        (b'{"kind": "scan", "stream": "nothing"}', "no stream 'nothing'"),
        (b'{"kind": "scan", "stream": "spans"}', "bad request"),
        (b'{"kind": "go", "of": "7"}', "not armed"),
    ],
)
def test_a_bad_request_is_answered_and_the_agent_goes_on(client: RawClient, header: bytes, says: str) -> None:
    client.send([b"x", header])
    told, _ = client.answer()
    assert told["kind"] == "error" and says in told["message"]
    client.ask(b"y", "hello", protocol=wire.PROTOCOL, version="0", by="test")
    assert client.answer()[0]["kind"] == "welcome"


def test_a_client_that_does_not_read_blocks_no_other(target: Target, client: RawClient) -> None:
    slots = agent_memory.facts(target.pid).streams["spans"].slots
    _, template = message_of(len(slots), 8)
    for number in range(30):
        client.ask(
            str(number).encode(), "scan", template,
            stream="spans", first=1, last=1 << 40, credit=1 << 20, patch=patches(len(slots)),
        )  # fmt: skip
    other = connected(target)
    for _ in range(20):
        assert other.hello()["kind"] == "welcome"
    other.close()
