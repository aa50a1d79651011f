"""Files that replace each other: a kill at any operation on files loses no row that was written, and doubles none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded import plant

from probe.record import folder as folder_module
from probe.record import written as written_module
from probe.record.archive import Archive
from probe.record.folder import LEVELS, listing, merge, tidy
from probe.record.retention import Keep, retain
from probe.record.stored import NO_RANK, OPEN, ROWS, STATE, About, Names, stored_schema
from probe.record.written import Written
from probe.tables import TABLES

(STEPS,) = (table for table in TABLES if table.name == "python.step_trace")
OPERATIONS = ("rename", "unlink", "fsync", "mkdir")
FLUSHES = 8
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Killed(BaseException):
    """Nothing of the process runs any more."""


@pytest.fixture
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files make one of the next level."""
    for module in (folder_module, written_module):
        monkeypatch.setattr(module, "TOGETHER", (2, 2, 2, 2, 2))


def rows_of(*steps: int) -> list[Any]:
    schema = stored_schema(STEPS)
    return [pa.Table.from_pylist([dict.fromkeys(schema.names) | {"step": step} for step in steps], schema)]


def steps_in(folder: Path) -> list[int]:
    files = listing(str(folder)).files
    return sorted(row["step"] for each in files for row in pq.ParquetFile(each.path).read(["step"]).to_pylist())


def record(folder: Path) -> None:
    """A step a flush, and an open row behind it, as a recorder does that finds out how far the files reach."""
    of = Written(folder, STEPS, Names())
    for step in range(of.upto("a") or 0, FLUSHES):
        of.reached("a", step + 1)
        of.add(ROWS, ["a"], rows_of(step))
        if step % 3 == 0:
            of.add(OPEN, ["a"], rows_of(1000 + step))
        of.merge()


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Whether the work came to its n-th operation on files, before which it was killed."""
    left = [number]

    def patched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*words, **options)

        return call

    with monkeypatch.context() as patching:
        for name in OPERATIONS:
            patching.setattr(os, name, patched(getattr(os, name)))
        with suppress(Killed):
            work()
    return left[0] < 0


def test_a_kill_at_any_operation_loses_and_doubles_nothing(
    memory: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        folder = memory / str(number)
        was_killed = killed_at(number, monkeypatch, lambda: record(folder))  # noqa: B023  # called at once
        seen = [step for step in steps_in(folder) if step < 1000]
        assert seen == list(range(len(seen))), (number, seen)
        again = killed_at(number // 2, monkeypatch, lambda: record(folder))  # noqa: B023
        seen = [step for step in steps_in(folder) if step < 1000]
        assert seen == list(range(len(seen))), (number, seen, again)
        record(folder)
        assert [step for step in steps_in(folder) if step < 1000] == list(range(FLUSHES)), number
        assert len([step for step in steps_in(folder) if step >= 1000]) <= 1
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        if not was_killed:
            break
    assert number > 30


@pytest.mark.parametrize("most_kept", [1, 0])
def test_few_files_remain_of_many_flushes(memory: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int) -> None:
    monkeypatch.setattr(written_module, "_MOST_KEPT", most_kept)
    folder = memory / "many"
    of = Written(folder, STEPS, Names())
    for step in range(8 * 10 * 2 + 5):
        of.reached("a", step + 1)
        of.add(ROWS, ["a"], rows_of(step))
        of.merge()
    assert sorted(each.kind for each in listing(str(folder)).files) == ["m2", "m2", *[ROWS] * 5]
    assert steps_in(folder) == list(range(8 * 10 * 2 + 5)) and len(os.listdir(folder)) == 7
    assert Written(folder, STEPS, Names()).upto("a") == 165


def test_few_files_remain_of_large_and_small_flushes_and_each_row_once(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_module, "_MOST_KEPT", 1)
    of = Written(memory / "mixed", STEPS, Names())
    for flush in range(160):
        of.reached("a", 2 * flush + 2)
        of.add(ROWS, ["a"], rows_of(2 * flush, 2 * flush + 1) if flush % 3 else rows_of(2 * flush))
        of.merge()
    assert steps_in(memory / "mixed") == [step for step in range(320) if step % 6 != 1]
    assert len(os.listdir(memory / "mixed")) < 20


def test_a_file_is_not_merged_while_what_it_replaces_is_still_there(
    memory: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [plant(memory, STEPS.name, [{"step": step}], kind=ROWS).name for step in (1, 2)]
    path = plant(memory, STEPS.name, [{"step": 1}, {"step": 2}], kind=LEVELS[1], about=About(replaces=tuple(names)))
    plant(memory, STEPS.name, [{"step": 3}], kind=LEVELS[1])

    def refuse(*_: object) -> None:
        raise PermissionError(1, "not yours")

    with monkeypatch.context() as patching:
        patching.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            merge(path.parent, Names().next)
    assert steps_in(path.parent) == [1, 2, 3]
    tidy(path.parent)
    assert merge(path.parent, Names().next) and steps_in(path.parent) == [1, 2, 3]


def test_hosts_that_write_into_one_folder_merge_only_what_is_theirs(memory: Path, few: None) -> None:
    folder = memory / f"rank={NO_RANK}"
    here, there, third = (Written(folder, STEPS, Names()) for _ in range(3))

    def add(of: Written, agent: str, step: int) -> None:
        of.reached(agent, step + 1)
        of.add(ROWS, [agent], rows_of(step))
        of.merge()

    for step, (of, agent) in enumerate(
        [(here, "a"), (third, "c"), *[(there, "b")] * 8, *[(here, "a"), (third, "c")] * 4]
    ):
        add(of, agent, step)
    assert steps_in(folder) == list(range(18))
    assert Written(folder, STEPS, Names()).upto("b") == 10


def test_a_state_replaces_the_state_before_it_also_of_a_recorder_before(memory: Path) -> None:
    for step in (1, 2, 3):
        of = Written(memory / "state", STEPS, Names())
        of.reached("a", 0)
        of.add(STATE, ["a"], rows_of(step))
    assert steps_in(memory / "state") == [3] and len(os.listdir(memory / "state")) == 1


def test_a_state_replaces_those_of_agents_that_are_gone_within_a_recording_and_in_the_next(memory: Path) -> None:
    for agents in (("a", "b"), ("c",)):
        of = Written(memory / "state", STEPS, Names())
        for agent in agents:
            of.reached(agent, 0)
            of.add(STATE, [agent], rows_of(ord(agent)))
            assert steps_in(memory / "state") == [ord(agent)]
    assert len(os.listdir(memory / "state")) == 1


def test_retention_removes_the_oldest_files_but_never_the_newest_of_a_folder(memory: Path) -> None:
    paths = [plant(memory, STEPS.name, [{"step": step}], rank) for step in range(4) for rank in (0, 1)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (path.stat().st_mtime - 86_400 * age,) * 2)
    assert retain(Archive(memory), Keep()) == []
    assert len(retain(Archive(memory), Keep(days=5.5))) == 2
    size = sum(path.stat().st_size for path in paths if path.exists())
    assert retain(Archive(memory), Keep(bytes=size - 1)) == [str(paths[2])]
    retain(Archive(memory), Keep(bytes=1))
    assert [path for path in paths if path.exists()] == paths[-2:]
