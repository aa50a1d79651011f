"""job://: one agent of a job over several hosts tells where all the others are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from forked import ForkServer
from held_port import held_port
from two_hosts import STORE_PORT, Host, two_hosts
from until import stop, until

from probe import keys
from probe.host import agent_memory
from probe.host.facts import NO_FACTS
from target import ATTACHED, PROBE, PYTHON, TARGETS, Probe, Start, Target, descendants

RANKS = "SELECT rank, state, why, pid FROM probe.agents ORDER BY rank"
SHARED = """
    SELECT count(*) AS shared, count(*) FILTER (steps > 1) AS apart
    FROM (SELECT group_seq, count(DISTINCT step) AS steps FROM python.nccl_trace
          WHERE operation_type = 'all_reduce' GROUP BY group_seq HAVING count(DISTINCT rank) = 2)
"""


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys") / "job.key"
    keys.create(str(made))
    return made


@pytest.fixture
def hosts(fork_server: ForkServer) -> Iterator[tuple[Host, Host]]:
    with two_hosts(fork_server) as made:
        yield made


def published(pid: int) -> None:
    """Returns once the agent has left its record."""
    until(lambda: (agent_memory.facts(pid) or NO_FACTS).peers == "on", 60)


def port(pid: int) -> int:
    return int(str((agent_memory.facts(pid) or NO_FACTS).tcp).rpartition(":")[2])


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def asked_for_parts(host: Host, job: str, key: Path) -> str:
    """The ranks in the result of a query whose rows no host has to send, and those that each host has summed up."""
    code = """import sys, probe; from probe.query import hosts; hosts.WORTH_BYTES = 0
with probe.connect(sys.argv[1], key=sys.argv[2]) as job:
    result = job.query("SELECT rank, count(*) FROM python.torch_trace GROUP BY 1 ORDER BY 1")
    print(result.column("rank").to_pylist(), [each.ranks for each in result.cost.hosts], *result.cost.declined)"""
    return subprocess.check_output([*host.alone, PYTHON, "-c", code, job, str(key)], text=True).strip()


def test_ranks_on_two_hosts_find_each_other(hosts: tuple[Host, Host], probe: Probe, key: Path, tmp_path: Path) -> None:
    outputs: list[str] = []
    reader_key = tmp_path / "reader.key"
    keys.share(str(key), str(reader_key))
    ranks = [host.rank(number, hosts[0].address, tmp_path / f"rank-{number}.txt") for number, host in enumerate(hosts)]
    try:
        for number, rank in enumerate(ranks):
            outputs.append(rank.wait_for("ready"))
            listening = ("--listen", hosts[number].address if number else "0.0.0.0", "--key", key)
            hosts[number].attach(*listening, rank.pid)  # "ip netns exec" becomes the rank
            published(rank.pid)
        job = f"job://{hosts[0].address}:{port(ranks[0].pid)}"
        on_second = hosts[1].probe(job, "query", "--key", reader_key, "--format", "json", RANKS)
        assert [(row["rank"], row["state"]) for row in rows(on_second.stdout)] == [(0, "answers"), (1, "answers")]

        def operations() -> dict[str, int] | None:
            (row,) = rows(hosts[0].probe(job, "query", "--key", reader_key, "--format", "json", SHARED).stdout)
            return row if row["shared"] else None

        assert until(operations, 60)["apart"] == 0  # for who may only read, too, steps are one for the whole job
        done = hosts[1].probe(job, "eval", "--key", key, "print(dist.get_world_size())")
        assert done.stdout == "ranks 0-1:\n2\n"
        assert "Not hung" in hosts[1].probe(job, "hang", "--key", reader_key).stdout
        profiled = hosts[1].probe(job, "profile", "--key", key, "--seconds", "1", "--format", "csv")
        assert "Looked at ranks 0-1 for " in profiled.stderr and ",main,loop.py," in profiled.stdout
        assert asked_for_parts(hosts[1], job, key) == "[0, 1] [(0,), (1,)]"
        from_the_other = f"job://{hosts[1].address}:{port(ranks[1].pid)}"
        detached = hosts[0].probe(from_the_other, "detach", "--key", key).stdout
        assert re.findall(r"detached  rank (\d)", detached) == ["0", "1"]
        assert [agent_memory.facts(rank.pid) for rank in ranks] == [None, None]
        assert [rank.output for rank in ranks] == outputs and all(rank.alive for rank in ranks)
    finally:
        for rank in ranks:
            rank.end()


def test_an_unreachable_rank_is_reported_with_the_reason(
    hosts: tuple[Host, Host], probe: Probe, key: Path, tmp_path: Path
) -> None:
    ranks = [host.rank(number, hosts[0].address, tmp_path / f"rank-{number}.txt") for number, host in enumerate(hosts)]
    try:
        for rank in ranks:
            rank.wait_for("ready")
        hosts[0].attach("--listen", hosts[0].address, "--key", key, ranks[0].pid)
        published(ranks[0].pid)
        job = f"job://{hosts[0].address}:{port(ranks[0].pid)}"
        asked = ("query", "--key", key, "--format", "json", "--timeout", "5", RANKS)
        done = hosts[1].probe(job, *asked)
        assert [row["state"] for row in rows(done.stdout)] == ["answers", "silent"]
        assert "Rank 1 has published no address" in rows(done.stdout)[1]["why"]
        assert re.search(r"answered 1/2 ranks in .* s, silent: 1", done.stderr)
        stacks = hosts[1].probe(job, "stack", "--key", key, status=8)
        assert "loop.py" in stacks.stdout and "pid 0" not in stacks.stderr
        assert "Rank 1 has published no address" in stacks.stderr
        hang = hosts[1].probe(job, "hang", "--key", key)
        assert "rank 1" in hang.stdout and "pid 0" not in hang.stdout
        hosts[1].attach("--listen", hosts[1].address, "--key", key, ranks[1].pid)
        published(ranks[1].pid)
        assert [row["state"] for row in rows(hosts[1].probe(job, *asked).stdout)] == ["answers", "answers"]
        stop(ranks[1].pid)
        stopped = hosts[1].probe(job, *asked)
        os.kill(ranks[1].pid, 18)
        row = rows(stopped.stdout)[1]
        assert (row["state"], row["pid"]) == ("silent", ranks[1].pid)
        assert f"pid {ranks[1].pid}) does not answer" in row["why"] and os.uname().nodename in row["why"]
    finally:
        for rank in ranks:
            rank.end()


@pytest.fixture(scope="module")
def job(start_once: Start) -> Target:
    return start_once("loop.py", "--sleep", "0.05", ranks=2, torchrun=True)


@pytest.fixture
def torchrun(job: Target, probe: Probe) -> Iterator[Target]:
    """A job without an agent, and without a record of one."""
    yield job
    probe(job.pid, "detach", status=None)
    made, names = store_of(job)
    for name in names:
        made.delete_key(name)


def ranks_of(torchrun: Target) -> list[int]:
    """Their pids, by rank."""
    known = {pid: facts for pid in descendants(torchrun.pid) if (facts := agent_memory.facts(pid)) is not None}
    return sorted(known, key=lambda pid: known[pid].rank or 0)


def store_of(torchrun: Target) -> tuple[Any, list[str]]:
    """The job's own, and the names of what its ranks leave in it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    rank = next(pid for pid in descendants(torchrun.pid) if b"\0RANK=" in environ(pid))
    said = dict(entry.split("=", 1) for entry in environ(rank).decode().split("\0") if "=" in entry)
    patience = timedelta(seconds=20)
    place = said["MASTER_ADDR"], int(said["MASTER_PORT"])
    made = TCPStore(*place, is_master=False, wait_for_workers=False, timeout=patience)
    return made, [f"probe/{said['TORCHELASTIC_RUN_ID']}/2/{rank}" for rank in range(2)]


def environ(pid: int) -> bytes:
    return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


def test_ranks_of_one_host_have_one_port_and_leave_no_record(torchrun: Target, probe: Probe, key: Path) -> None:
    made, names = store_of(torchrun)
    with held_port() as free:
        probe("attach", "--listen", f"127.0.0.1:{free}", "--key", key, torchrun.pid)
    pids = ranks_of(torchrun)
    assert [port(pid) for pid in pids] == [free, free]
    for pid in pids:
        published(pid)
    for form in ("tcp", "job"):
        assert probe(f"{form}://127.0.0.1:{free}", "eval", "--key", key, "print(1)").stdout == "ranks 0-1:\n1\n"
    assert [json.loads(made.get(name))["pid"] for name in names] == pids
    made.set(names[1], json.dumps({"id": "of another"}))  # a rank that came after it, say
    probe(torchrun.pid, "detach")
    assert [made.check([name]) for name in names] == [False, True]


@pytest.mark.parametrize("now", ["nothing", "another"])
def test_a_record_left_behind_belongs_to_a_rank_that_ended(torchrun: Target, probe: Probe, key: Path, now: str) -> None:
    made, names = store_of(torchrun)
    probe("attach", torchrun.pid)
    first, second = ranks_of(torchrun)
    probe("attach", "--listen", "127.0.0.1", "--key", key, first)
    published(first)
    with held_port() as free:
        left = f"tcp://127.0.0.1:{free if now == 'nothing' else port(first)}"
        served = {"server": "", "tcp": None}
        record = {"rank": 1, "endpoint": left, "served": served, "host": "far", "pid": second, "id": "old"}
        made.set(names[1], json.dumps(record))
        words = ("query", "--key", key, "--format", "json", "--timeout", "60", RANKS)
        found = rows(probe(f"job://127.0.0.1:{port(first)}", *words, timeout=30).stdout)
    assert [(row["rank"], row["state"]) for row in found] == [(0, "answers"), (1, "silent")]
    why = f", or is out of reach: nothing listens at {left}" if now == "nothing" else ""
    assert found[1]["why"] == f"Rank 1 (far, pid {second}) has ended{why}."


def test_an_agent_that_knows_no_other_rank_says_why(start: Start, probe: Probe, key: Path) -> None:
    plain = start("plain.py")
    probe("attach", "--listen", "127.0.0.1", "--key", key, plain.pid)
    done = probe(f"job://127.0.0.1:{port(plain.pid)}", "query", "--key", key, "SELECT 1", status=3)
    assert "[no-peers] Rank 0: knows no other rank: the job has no process group." in done.stderr
    assert "tcp://HOST:PORT,tcp://HOST:PORT" in done.stderr
    until(lambda: (agent_memory.facts(plain.pid) or NO_FACTS).peers == "off: the job has no process group", 60)


def test_a_store_that_is_gone_is_reported(hosts: tuple[Host, Host], probe: Probe, key: Path, tmp_path: Path) -> None:
    """The cable is cut to who comes anew to the store; what is connected goes on."""
    ranks = [host.rank(number, hosts[0].address, tmp_path / f"rank-{number}.txt") for number, host in enumerate(hosts)]
    try:
        for rank in ranks:
            rank.wait_for("ready")
        hosts[1].attach("--listen", hosts[1].address, "--key", key, ranks[1].pid)
        published(ranks[1].pid)
        job = f"job://{hosts[1].address}:{port(ranks[1].pid)}"
        cut = (*hosts[1].inside, "ip", "route", "add", "unreachable", f"{hosts[0].address}/32", "table", "local")
        if subprocess.run(cut, capture_output=True).returncode:
            pytest.skip("this machine has no unreachable routes")
        done = hosts[1].probe(job, "query", "--key", key, "SELECT 1", status=3)
        place = f"{hosts[0].address}:{STORE_PORT}"
        assert f"[no-peers] Rank 1: knows no other rank: the store at {place}: No route to host." in done.stderr
    finally:
        for rank in ranks:
            rank.end()


def test_a_broken_connection_ends_the_wait_for_a_snippet(
    hosts: tuple[Host, Host], probe: Probe, key: Path, tmp_path: Path
) -> None:
    plain = Target((*hosts[0].inside, PYTHON, str(TARGETS / "plain.py")), tmp_path / "plain.txt", {}, hosts[0].server)
    try:
        plain.wait_for("ready")
        hosts[0].attach("--listen", hosts[0].address, "--key", key, plain.pid)
        place = f"tcp://{hosts[0].address}:{port(plain.pid)}"
        asked = hosts[1].start(place, "eval", "--key", key, "--now", "print('in'); time.sleep(600)")
        try:
            assert asked.stdout is not None and asked.stdout.readline() == "in\n"
            hosts[0].cut()
            _, told = asked.communicate(timeout=60)
        finally:
            asked.kill()
        assert asked.returncode == 8
        assert f"[silent] Rank 0 ({os.uname().nodename}, pid {plain.pid}) is out of reach" in told
    finally:
        plain.end()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root may make namespaces")
def test_all_ranks_of_a_full_host_are_seen_from_elsewhere(
    start: Start, probe: Probe, key: Path, tmp_path: Path
) -> None:
    """Whoever asks from there has a scan on each of them at the same time."""
    (tmp_path / "rank.py").write_text("import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)")
    job = start(tmp_path / "rank.py", ranks=6)
    probe("attach", "--listen", "127.0.0.1", "--key", key, job.pid)
    elsewhere = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", str(PROBE))
    endpoint = f"tcp://127.0.0.1:{port(min(descendants(job.pid)))}"
    sql = "SELECT count(DISTINCT rank) AS ranks FROM host.process_trace"
    for _ in range(3):  # the first time, the agents send their rows themselves
        asked = (*elsewhere, endpoint, "query", "--key", str(key), "--format", "json", "--min-ranks", "6", sql)
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        assert told.returncode == 0 and "answered 6/6 ranks" in told.stderr, told.stderr
        assert rows(told.stdout)[0]["ranks"] == 6


def test_the_pid_of_a_launcher_means_all_its_ranks(torchrun: Target, probe: Probe) -> None:
    lines = probe("attach", torchrun.pid).stdout
    assert [match[1] for match in ATTACHED.finditer(lines)] == ["0", "1"]
    assert set(map(int, re.findall(r"pid (\d+)", lines))) <= set(descendants(torchrun.pid))
    thread = max(map(int, os.listdir(f"/proc/{torchrun.pid}/task")))
    assert f"[is-thread] {thread} is a thread of process {torchrun.pid}." in probe("attach", thread, status=4).stderr
    done = probe(torchrun.pid, "eval", "print('loss', loss.item() < 1e9)")
    assert done.stdout == "ranks 0-1:\nloss True\n"
    only = probe(torchrun.pid, "eval", "--rank", "1", "rank")
    assert only.stdout == "1\n"
    listed = json.loads(probe("list", "--format", "json").stdout)
    ranks = {row["rank"]: row for row in listed if row["job"] == torchrun.pid}
    assert set(ranks) == {0, 1} and all(row["attached"] for row in ranks.values())
