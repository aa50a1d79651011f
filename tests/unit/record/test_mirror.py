"""Rows that are mirrored while they are recorded: what counts of a mirror is what the memory held at its moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_agent import FakeAgent

from probe.host import agent_memory
from probe.record import lock
from probe.record.archive import Archive
from probe.record.mirror import Mirror, place
from probe.record.mirrored import Mirrored, take_over, take_over_what_is_left
from probe.record.sources import HeldMemory
from probe.snapshot.memory_source import MemorySource
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank
from probe.streams import COLLECTIVES, LOADS, MARKS, SPANS, STEPS

MS = 1_000_000


@pytest.fixture
def mine(agent: Callable[..., FakeAgent]) -> FakeAgent:
    made = agent()
    made.name_modules()
    made.train(20, unit=MS)
    made.publish()
    return made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job=x").mkdir()
    return tmp_path / "job=x"


@pytest.fixture
def held(mine: FakeAgent) -> Iterator[dict[str, HeldMemory]]:
    facts = agent_memory.facts(os.getpid())
    assert facts is not None
    memory = HeldMemory(os.getpid(), facts)
    yield {mine.facts["id"]: memory}
    memory.close()


def begun(
    job: Path, held: dict[str, HeldMemory], begin: Callable[[Rank, str], int | None] = lambda rank, stream: None
) -> Mirror:
    mirror = Mirror(job)
    mirror.begin(held, dict.fromkeys(held, rank_now()), begin)
    return mirror


def rank_now() -> Rank:
    return Snapshot([MemorySource(os.getpid())]).ranks[0]


def mirrored(job: Path, mine: FakeAgent) -> Rank:
    return Snapshot([Mirrored(place(job) / mine.facts["id"])]).ranks[0]


def test_a_mirror_holds_the_rows_the_log_and_the_moment_of_the_last_flush(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    mirror = begun(job, held)
    mine.train(5, start=20_000 * MS, unit=MS)
    mine.log.string("said later")
    mine.publish()
    before = rank_now()
    mirror.copy()
    then = rank_now()
    for stream in (SPANS, MARKS, STEPS, LOADS):
        then.rows(stream)
    mine.train(5, start=25_000 * MS, unit=MS)
    seen = mirrored(job, mine)
    for stream in (SPANS, MARKS, STEPS, LOADS):
        assert np.array_equal(seen.rows(stream).table, then.rows(stream).table)
    assert seen.log.strings == then.log.strings and seen.log.modules == then.log.modules
    assert before.now_ns <= seen.now_ns <= then.now_ns and seen.facts.id == mine.facts["id"]


def test_a_row_that_is_written_late_and_an_operation_that_ends_later_are_taken(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    buffer, offset, seq = mine.streams[COLLECTIVES].append(1, 2, 0, 1, 1, 0, -1, 64, 0, 1, 7, 0)
    late, number = mine.streams[LOADS].claim()
    mine.load(3, 4)
    mirror = begun(job, held)
    assert mirrored(job, mine).rows(COLLECTIVES)["done_ns"].tolist() == [0]
    assert mirrored(job, mine).rows(LOADS)["seq"].tolist() == [number + 1]
    mine.streams[COLLECTIVES].pack_into(buffer, offset, 1, 2, 9, 1, 1, 0, -1, 64, 0, 1, 7, 0, seq)
    mine.streams[LOADS].pack_into(mine.streams[LOADS].buffer, late, 1, 2, 1004, -1, -1, 7, 0, number)
    mirror.copy()
    assert mirrored(job, mine).rows(COLLECTIVES)["done_ns"].tolist() == [9]
    assert mirrored(job, mine).rows(LOADS)["seq"].tolist() == [number, number + 1]


def test_what_was_copied_after_the_moment_does_not_count(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    begun(job, held)
    before = len(mirrored(job, mine).rows(SPANS))
    with (place(job) / mine.facts["id"] / SPANS).open("ab") as file:  # the recorder was killed between two streams
        file.write(np.array([1, 2, 3, 4, 5, before + 1], "<i8").tobytes() + b"torn")
    assert len(mirrored(job, mine).rows(SPANS)) == before


def test_once_tables_are_written_a_mirror_begins_anew_at_the_next_window(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    begun(job, held, lambda rank, stream: 15_000 * MS if stream in (SPANS, MARKS, STEPS) else None)
    seen = mirrored(job, mine)
    assert 5 <= len(seen.rows(STEPS)) <= 7 and seen.rows(STEPS)["count"][-1] == 19
    assert seen.rows(SPANS)["seq"][-1] == 80 and seen.rows(SPANS)["seq"][0] > 50


def test_a_mirror_is_full_before_the_ring_overwrites_what_it_has_not_read(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    mirror = begun(job, held)
    assert mirror.covers(held) and not mirror.covers({**held, "other": held[mine.facts["id"]]})
    for at in range(mine.streams[LOADS].capacity // 4 + 1):
        mine.load(at, at + 1)
    mirror.copy()
    assert not mirror.covers(held)


def test_a_mirror_that_is_left_is_taken_over_once_and_only_if_nobody_records(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    begun(job, held)
    recorder = lock.take(job)
    assert take_over_what_is_left([job]) == [] and place(job).exists()
    os.close(recorder)
    assert take_over_what_is_left([job]) == [] and not place(job).exists()
    files, skipped = Archive(job).files("python.step_trace")
    assert sum(each.rows for each in files) == 20 and not skipped
    take_over(job)
    assert len(Archive(job).files("python.step_trace")[0]) == len(files)


def test_half_a_mirror_and_a_foreign_one_are_removed_and_nothing_is_taken_of_them(
    job: Path, mine: FakeAgent, held: dict[str, HeldMemory]
) -> None:
    for harm in ("{}", '["a"]', "nonsense"):
        begun(job, held)
        (place(job) / "agents.json").write_text(harm)
        take_over(job)
        assert not place(job).exists() and not Archive(job).files("python.step_trace")[0]
