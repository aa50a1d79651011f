"""What a kernel writes of an operation's arguments, for the schemas of several versions of torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from probe.agent.storage.rows import Stream
from probe.agent.taps.collectives.kernel import Kernels
from probe.agent.taps.collectives.operations import described
from probe.streams import ASYNC_OP, ASYNC_UNKNOWN, COLLECTIVES, STREAMS

pytest.importorskip("torch")

FLAGS_AT = 8 * STREAMS[COLLECTIVES].index("flags")
ON_DEVICE = SimpleNamespace(id=1, size=2, futures=False, timed=False, number=lambda process_group: 5)


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream(COLLECTIVES, STREAMS[COLLECTIVES], 1 << 16)
    yield made
    made.close()


def flags_of(stream: Stream, name: str, arguments: str, given: list[Any], returns: int = 1) -> int:
    """Of the row of a call with these arguments."""
    named = [SimpleNamespace(name=argument) for argument in arguments.split()]
    operation = described(SimpleNamespace(name=f"c10d::{name}", arguments=named, returns=[None] * returns))
    assert operation is not None
    works = SimpleNamespace(**dict.fromkeys(("raised", "poll_later", "done"), lambda *_: None), callback=lambda: None)
    parts: list[Any] = [
        SimpleNamespace(of=lambda process_group, tensors: ON_DEVICE),
        SimpleNamespace(size_of=lambda tensors: (4, 1)),
        SimpleNamespace(of=lambda native: 1, of_native=lambda name: 2),
        works,
        SimpleNamespace(begin=None, issued=None),
    ]
    same = SimpleNamespace(unbox=lambda boxed: boxed)
    kernels = Kernels(stream, *parts, SimpleNamespace(ProcessGroup=same, Work=same))
    recorder: Any = SimpleNamespace(recording=True, current_eval=lambda thread: None)
    kernels.kernel(recorder, operation, 3, lambda *_: None, 0)(0, *given)
    return int.from_bytes(stream.buffer[FLAGS_AT : FLAGS_AT + 8], "little")


@pytest.mark.parametrize(
    ("name", "arguments", "given", "returns", "flags"),
    [
        ("reduce_", "tensors process_group reduce_op async_op timeout", [[], None, None, False], 1, 0),
        ("reduce_", "tensors process_group reduce_op async_op timeout", [[], None, None], 1, ASYNC_OP),
        ("reduce_", "tensors process_group reduce_op timeout", [[], None, None, 9], 1, ASYNC_UNKNOWN),  # before 2.8
        ("send", "tensors process_group dst tag", [[], None, 1, 0], 1, ASYNC_UNKNOWN),
        ("monitored_barrier_", "tensor process_group device_ids timeout", [[], None, [], 9], 0, 0),
    ],
)
def test_a_row_says_whether_its_caller_waits_at_once_or_that_this_is_unknown(
    stream: Stream, name: str, arguments: str, given: list[Any], returns: int, flags: int
) -> None:
    assert flags_of(stream, name, arguments, given, returns) == flags
