"""What `probe memory --diff` says of memory that is not listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from probe.cli.entry import run
from probe.memory.rank_memory import RankMemory

NONE: dict[str, int] = {}


def looked_at(rank: int, then: Mapping[str, int], now: Mapping[str, int]) -> RankMemory:
    before = RankMemory(rank, 4, True, (), (0.1,), then, ())
    return RankMemory(rank, 7, True, (), (0.1,), now, (), before)


@pytest.mark.parametrize(
    ("unlisted", "said"),
    [
        (
            [({"cpu": 5_000_000}, {"cpu": 6_000_000}), ({"cpu": 1_000_000}, {"cpu": 3_000_000})],
            "Since the last look, 3 steps ago, what is not listed on cpu has grown by 3.0 MB.",
        ),
        (
            [({"cpu": 5_000_000}, {"cpu": 6_000_000}), (NONE, {"cpu": 9_000_000}), ({"cpu": 9_000_000}, NONE)],
            "Since the last look, 3 steps ago, what is not listed on cpu of rank 0 has grown by 1.0 MB.",
        ),
        ([(NONE, NONE), ({"cpu": 2}, NONE)], "The last look was 3 steps ago."),
    ],
)
def test_growth_is_of_ranks_where_both_looks_know_it(
    unlisted: list[tuple[dict[str, int], dict[str, int]]], said: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ranks = [looked_at(rank, *each) for rank, each in enumerate(unlisted)]

    @contextmanager
    def connected(endpoint: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(memory=lambda wait: ranks, unreached=())

    monkeypatch.setattr("probe.cli.verbs.insight.memory.connected", connected)
    assert run(["4242", "memory", "--diff"]) == 0
    assert said in capfd.readouterr().err.splitlines()
