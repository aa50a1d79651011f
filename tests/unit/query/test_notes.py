"""What is told beside the rows of a query when ranks end just then."""

from __future__ import annotations

from typing import Any

import pytest
from history import rank_at
from listed_source import EndingSource

from probe.query.result import Coverage, notes_of
from probe.snapshot.snapshot import Snapshot
from probe.streams import SAMPLED, SPANS, STEPS
from probe.tables.python.torch_trace import TABLE


@pytest.mark.parametrize(("stream", "of"), [(STEPS, "rank 0"), (SPANS, "rank 1")])
def test_a_rank_that_ends_is_no_error(stream: str, of: str) -> None:
    tables: dict[Any, Any] = {}
    for number in (0, 1):
        rank = rank_at(number, 10**9)
        rank.log.evals = {1: {}}  # of which the mean step is without: their spans are fetched
        flags = [SAMPLED] + [0 if number else SAMPLED] * 2 + [0]
        tables[rank] = {STEPS: [[at, at, at, 7, 0, 0, 7, flags[at], at + 1] for at in range(4)]}
    job = Snapshot([EndingSource(tables, stream=stream)])
    (note,) = notes_of(job, Coverage.of(job, 0.0), [TABLE], "4242")
    assert note.code == "unsampled" and ("on rank 1, 2 on rank 0" in note.text) == (of == "rank 1")
