"""When the rows of operations end whose works are polled."""

from __future__ import annotations

from mmap import mmap
from struct import pack_into, unpack_from
from types import SimpleNamespace

import pytest

from probe.agent.taps.collectives.works import Works
from probe.streams import COLLECTIVES, STREAMS

ROW, AT = 7, {name: 8 * place for place, name in enumerate(STREAMS[COLLECTIVES])}


@pytest.mark.parametrize(
    ("completed", "failed", "done_ns"),
    [(True, False, 5000), (False, False, 0), (True, True, 0)],
    ids=["ended", "only put on a stream", "raised"],
)
def test_an_operation_without_a_future_ends_with_a_wait_after_which_it_is_completed(
    completed: bool, failed: bool, done_ns: int
) -> None:
    """As of MPI and UCC: the next poll may be a second later."""
    buffer = mmap(-1, 4096)
    pack_into("<q", buffer, AT["seq"], ROW)
    works, work = Works(buffer), SimpleNamespace(is_completed=lambda: completed)
    works.poll_later(0, ROW, work, ends_in_wait=False, blocking=False)
    assert not works.waited(work, 5000, failed)  # the wait has a row of its own
    assert unpack_from("<q", buffer, AT["done_ns"])[0] == done_ns


def test_a_work_that_cannot_be_asked_raises_nothing_into_the_wait() -> None:
    works, work = Works(mmap(-1, 4096)), SimpleNamespace()
    works.poll_later(0, ROW, work, ends_in_wait=False, blocking=False)
    assert not works.waited(work, 5000, False)
