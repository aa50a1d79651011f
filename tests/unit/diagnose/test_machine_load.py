"""What hosts and devices are at, in lines, out of samples that were written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from listed_source import listed

from probe.derive.partition import Partition
from probe.diagnose.hang import looks
from probe.diagnose.hang.looks import machines_told
from probe.host.facts import Facts
from probe.snapshot.log import Log
from probe.snapshot.source import Rank
from probe.tables.declaration import Table


def told(monkeypatch: pytest.MonkeyPatch, ranks: list[tuple[str, list[float | None], list[list[float | None]]]]) -> Any:
    """ranks: host, its busy cores second by second, and of each second its devices' load."""
    raws = [Rank(number, Facts(rank=number, host=host), {}, Log()) for number, (host, _, _) in enumerate(ranks)]

    def host(part: Partition) -> Any:
        busy = np.array(ranks[part.rank.rank][1], float)
        return {"host_cpu_pct": busy, "host_memory_used_pct": busy / 2, "start_ns": np.arange(len(busy))}

    def devices(part: Partition) -> Any:
        seconds = ranks[part.rank.rank][2]
        rows = [(second, load) for second, loads in enumerate(seconds) for load in loads]
        return {
            "start_ns": np.array([second for second, _ in rows], np.int64),
            "device": np.array([str(place) for place, _ in enumerate(rows)]),
            "gpu_util_pct": np.array([load for _, load in rows], float),
        }

    for name, derive in (("PROCESS", host), ("GPU", devices)):
        real: Table = getattr(looks, name)
        monkeypatch.setattr(looks, name, Table(real.name, real.doc, real.columns, derive=derive))

    return machines_told(listed({raw: {} for raw in raws}))


def test_a_host_is_reported_once_by_its_newest_second(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: Any = [("a", [90.0, 10.0], []), ("a", [90.0, 20.0], []), ("b", [], []), ("b", [60.0], [])]
    assert told(monkeypatch, ranks) == [
        "host a: 10 % of its cores busy, 5 % of its memory used",
        "host b: 60 % of its cores busy, 30 % of its memory used",
    ]


def test_ranks_with_equally_busy_devices_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: Any = [("a", [], [[0.0, 0.0], [100.0, 100.0]]), ("a", [], [[100.0]]), ("a", [], [[100.0], [0.0]])]
    assert told(monkeypatch, ranks) == ["devices 100 % busy on ranks 0-1, 0 % busy on rank 2"]


def test_a_host_that_nobody_sampled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, [("a", [], [])]) == []
