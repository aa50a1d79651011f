"""Which processes are one job, and how `probe list` shows them to people and to programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from probe.cli.listing import Job, jobs_of
from probe.cli.output.table import render
from probe.cli.verbs.job.list import COLUMNS, to_filter, to_read
from probe.host.facts import Facts
from probe.host.processes import Process

SPAWN = "python -c from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7) --multiprocessing-fork"
THEN_NS = 1_790_000_000_123_456_000  # 2026-09-21T14:13:20.123456Z


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as context:
        context.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def process(
    pid: int, ppid: int, command: str, rank: int | None = None, torch: bool = True, world: int | None = None,
    by: Sequence[str] = ("0", "run"), name: str = "",
) -> Process:  # fmt: skip
    world = world or (2 if rank is not None else None)
    launched = tuple(by) if rank is not None else ("", "")
    return Process(pid, ppid, 0, 1, rank, world, None, None, command, True, torch, name, launched)


def torchrun(pid: int, ranks: int = 2) -> list[Process]:
    program = process(pid, 1, "/usr/bin/python3 /usr/bin/torchrun --nproc-per-node 2 train.py")
    return [program, *(process(pid + 1 + rank, pid, "python -u train.py", rank) for rank in range(ranks))]


def shown(jobs: Sequence[Job]) -> list[tuple[object, ...]]:
    return [(job.pid, [each.rank for each in job.ranks], job.has_torch) for job in jobs]


def test_a_launcher_and_its_ranks_are_one_job_and_workers_are_left_out() -> None:
    found = [
        *torchrun(10),
        process(30, 11, "python -u train.py", rank=0),  # forked
        process(31, 11, "python -c from multiprocessing.resource_tracker import main", torch=False),
        process(32, 11, SPAWN, rank=0, name="pt_data_worker"),
        process(33, 11, "python build.py", rank=0),  # it has inherited the RANK of its parent
    ]
    assert shown(jobs_of(found, {})) == [(10, [0, 1], True)]


def test_jobs_with_torch_come_first_and_others_by_pid() -> None:
    found = [process(5, 1, "python serve.py", torch=False), process(7, 1, "python other.py"), *torchrun(10)]
    assert [job.pid for job in jobs_of(found, {})] == [7, 10, 5]
    assert [job.pid for job in jobs_of(found, {5: Facts()})] == [5, 7, 10]


def test_ranks_below_a_launcher_that_is_not_python_are_one_job() -> None:
    found = [process(20 + rank, 9, "python train.py", rank, world=16) for rank in (8, 9)]
    (job,) = jobs_of(found, {})
    assert (job.pid, job.command, [each.rank for each in job.ranks]) == (9, "python train.py", [8, 9])


def test_a_rank_whose_launcher_cannot_be_seen_and_has_no_peers_stands_for_itself() -> None:
    assert shown(jobs_of([process(20, 9, "python train.py", 0, world=1)], {})) == [(20, [0], True)]


def test_a_scheduler_gives_its_rank_to_the_launcher_too() -> None:
    launcher = process(10, 1, "python torchrun train.py", rank=0, world=1, by=("", ""))
    assert shown(jobs_of([launcher, *torchrun(10)[1:]], {})) == [(10, [0, 1], True)]


def test_two_jobs_of_one_shell_are_two_lines() -> None:
    found = [process(20 + place, 9, "python train.py", rank) for place, rank in enumerate((0, 1, 0, 1))]
    assert [job.pid for job in jobs_of(found, {})] == [20, 21, 22, 23]


def test_spawned_ranks_are_one_job_but_an_attached_process_has_spawned_workers() -> None:
    found = [process(10, 1, "python train.py"), process(11, 10, SPAWN), process(12, 10, SPAWN)]
    rows = to_read(jobs_of(found, {}), {}).rows
    assert rows == [(10, "2 spawned", "no", "train.py")]
    found.append(process(13, 10, SPAWN, torch=False))  # which it still imports
    assert shown(jobs_of(found, {10: Facts(rank=0)})) == [(10, [0], True)]
    ranks = {11: Facts(rank=0, world_size=2), 12: Facts(rank=1, world_size=2)}
    assert shown(jobs_of(found, ranks)) == [(10, [0, 1], True)]


@pytest.mark.parametrize(
    ("attached", "told"),
    [((), "no"), ((0,), "1 of 2"), ((0, 1), "Sep 21 23:13")],
)
def test_people_read_a_line_per_job_in_local_time(attached: Sequence[int], told: str, tokyo: None) -> None:
    facts = {11 + rank: Facts(rank=rank, attached_wall_ns=THEN_NS, name="exp7") for rank in attached}
    read = to_read(jobs_of(torchrun(10), facts), {})
    names = ["pid", "ranks", "attached", *(["name"] if attached else []), "command"]
    assert list(read.names) == names
    row = (10, "0-1", told, *(["exp7"] if attached else []), "train.py")
    assert read.rows == [row]


def test_today_has_no_date() -> None:
    now = time.time()
    (row,) = to_read(jobs_of([process(7, 1, "x")], {7: Facts(attached_wall_ns=int(now * 1e9))}), {}).rows
    assert row[1] == time.strftime("%H:%M:%S", time.localtime(int(now)))


def test_programs_read_a_row_per_process_in_utc(tokyo: None) -> None:
    facts = {11: Facts(rank=0, attached_wall_ns=THEN_NS, name="exp7")}
    records = to_filter(jobs_of(torchrun(10, ranks=1), facts), {50: "ipc:///tmp/s/server"})
    assert [dict(zip(COLUMNS, row, strict=True)) for row in records.rows][1:] == [
        {"pid": 11, "rank": 0, "job": 10, "torch": True, "attached": "2026-09-21T14:13:20.123456Z", "name": "exp7",
         "listens": None, "command": "python -u train.py"},
        {"pid": 50, "rank": None, "job": None, "torch": False, "attached": None, "name": None,
         "listens": "ipc:///tmp/s/server", "command": "probe server"},
    ]  # fmt: skip
    assert records.arrow().column("pid").to_pylist() == [10, 11, 50]


def test_a_job_fits_into_a_line_of_80_columns_whatever_it_is_called() -> None:
    tcp = {"tcp": {"host": "node1.cluster.example.org", "port": 29600, "public": ""}}
    one = Facts(rank=0, attached_wall_ns=THEN_NS, name="a-name-that-is-long", served=tcp)
    found = [
        process(4_000_000 + rank, 3_999_999, "python train.py --lr 0.1 --epochs 20", 2 * rank) for rank in range(9)
    ]
    read = to_read(jobs_of(found, {each.pid: one._replace(rank=each.rank) for each in found}), {})
    header, _, *lines = render(read, 80)
    assert len(lines) == 1 and max(map(len, (header, *lines))) <= 80
    assert [name in header for name in ("name", "listens", "command")] == [True] * 3


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("/opt/bin/python3.11 -u /home/me/train.py --lr 0.1 --data /a/b", "train.py --lr 0.1 --data /a/b"),
        ("/usr/bin/python3 /usr/bin/torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 2 train.py"),
        ("/usr/bin/python -X importtime -bu -W error train.py", "train.py"),
        ("/usr/bin/python -m torch.distributed.run train.py", "python -m torch.distributed.run train.py"),
        ("/usr/bin/python -u -c import torch", "python -u -c import torch"),
        ("/opt/app/server --port 1", "server --port 1"),
        ("", ""),
    ],
)
def test_a_command_is_shown_without_its_interpreter_and_folder(command: str, short: str) -> None:
    (job,) = jobs_of([process(7, 1, command)], {})
    assert job.shortened == short
