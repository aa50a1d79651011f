"""The server beside a job: what it leaves in the training (nothing), its life and its end, and who asks it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from until import stop, until

from probe import connect, keys
from probe.host import agent_memory
from probe.host.facts import Facts
from probe.host.processes import read_stat
from target import PROBE, Probe, Start, Target, descendants, links

NAME, KEEPER = "probe-server", "probe-keeper"
COUNT = "SELECT COUNT(DISTINCT rank) AS n FROM probe.agents"


def facts(pid: int) -> Facts:
    found = agent_memory.facts(pid)
    assert found is not None
    return found


def processes(name: str, endpoint: str) -> list[int]:
    """The server or keeper of this endpoint."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if read_stat(pid).name == name and read_stat(pid).state != "Z" and endpoint in command:
                found.append(pid)
        except OSError:
            continue
    return found


def endpoint_of(pid: int) -> str:
    return str(facts(pid).server)


def server_of(pid: int) -> int:
    return int(until(lambda: processes(NAME, endpoint_of(pid)))[0])


@pytest.fixture
def job(start: Start, probe: Probe) -> Target:
    made = start("plain.py")
    probe("attach", made.pid)
    return made


def inside(pid: int) -> tuple[set[str], int, list[str]]:
    """What the kernel sees of a process: libraries of ours, threads, descriptors."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {each for each in ("zmq", "sodium") if each in maps}, len(os.listdir(f"/proc/{pid}/task")), links(pid)


def test_the_target_gets_one_thread_a_few_descriptors_and_nothing_foreign(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.02")
    _, threads, descriptors = inside(job.pid)
    probe("attach", job.pid)
    probe(job.pid, "query", "SELECT COUNT(*) FROM python.torch_trace")
    assert probe(job.pid, "eval", "print('zmq' in __import__('sys').modules)").stdout == "False\n"
    probe(job.pid, "hang")
    libraries, now, opened = inside(job.pid)
    assert (libraries, now) == (set(), threads + 1)
    assert len(opened) <= len(descriptors) + 16 and sum("memfd:probe-" in each for each in opened) == 8
    probe(job.pid, "detach")
    until(lambda: inside(job.pid)[1:] == (threads, descriptors), why=lambda: inside(job.pid))


# ---- its life


def test_it_ends_with_its_last_agent_and_leaves_nothing(job: Target, probe: Probe) -> None:
    server, endpoint = server_of(job.pid), endpoint_of(job.pid)
    assert processes(KEEPER, endpoint)
    probe(job.pid, "detach")
    assert server not in processes(NAME, endpoint)
    until(lambda: not processes(KEEPER, endpoint))
    assert not Path(endpoint.removeprefix("ipc://")).parent.exists()


def test_it_ends_when_the_job_is_killed(job: Target) -> None:
    server_of(job.pid)
    endpoint = endpoint_of(job.pid)
    job.process.kill()
    job.process.wait()
    until(lambda: not processes(NAME, endpoint) and not processes(KEEPER, endpoint))
    assert not Path(endpoint.removeprefix("ipc://")).parent.exists()


def test_it_starts_again_when_it_dies(job: Target, probe: Probe) -> None:
    first, endpoint = server_of(job.pid), endpoint_of(job.pid)
    for _ in range(3):
        os.kill(server_of(job.pid), signal.SIGKILL)
        assert probe(endpoint, "eval", "--now", "1+1").stdout == "2\n"
    assert first not in processes(NAME, endpoint)


def test_a_request_under_way_is_told_to_ask_again(job: Target, probe: Probe) -> None:
    asked = subprocess.Popen(
        [str(PROBE), endpoint_of(job.pid), "eval", "--now", "print('in'); time.sleep(600)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert asked.stdout is not None and asked.stdout.readline() == "in\n"
    os.kill(server_of(job.pid), signal.SIGKILL)
    _, told = asked.communicate(timeout=60)
    assert asked.returncode == 8 and "[server-restarted]" in told and "Run the command again." in told


def test_the_next_command_starts_it_where_it_is_gone_altogether(job: Target, probe: Probe) -> None:
    endpoint, server = endpoint_of(job.pid), server_of(job.pid)
    for pid in (*processes(KEEPER, endpoint), server):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes(NAME, endpoint))
    assert probe(job.pid, "eval", "--now", "1+1").stdout == "2\n"  # by the agent itself
    assert endpoint_of(job.pid) != endpoint
    server_of(job.pid)
    assert probe(endpoint_of(job.pid), "eval", "--now", "1+1").stdout == "2\n"


def test_a_job_whose_temporary_folders_are_cleaned_is_asked_and_left_as_ever(job: Target, probe: Probe) -> None:
    endpoint = endpoint_of(job.pid)
    folders = [Path(str(url).removeprefix("ipc://")).parent for url in (facts(job.pid).endpoint, endpoint)]
    for folder in folders:
        shutil.rmtree(folder)
    told = probe(job.pid, "set", status=None)
    assert told.returncode == 0 or "has lost its socket, and makes a new one: run the command again" in told.stderr
    until(folders[0].exists)
    assert probe(job.pid, "eval", "--now", "1+1").stdout == "2\n"
    assert probe(job.pid, "query", "--format", "csv", COUNT).stdout == "n\n1\n"
    folders.append(Path(endpoint_of(job.pid).removeprefix("ipc://")).parent)
    probe(job.pid, "detach")
    until(lambda: not processes(NAME, endpoint) and not processes(KEEPER, endpoint), 30)
    assert not [folder for folder in folders if folder.exists()]


def test_the_port_is_there_again_too(start: Start, probe: Probe, tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    keys.create(str(key))
    job = start("plain.py")
    probe("attach", "--listen", "127.0.0.1", "--key", key, job.pid)
    endpoint, place, server = endpoint_of(job.pid), facts(job.pid).tcp, server_of(job.pid)
    for pid in (*processes(KEEPER, endpoint), server):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes(NAME, endpoint))
    probe(job.pid, "eval", "--now", "1")
    assert facts(job.pid).tcp == place
    assert probe(str(place), "eval", "--key", key, "--now", "1+1").stdout == "2\n"


def test_a_job_can_do_without(start: Start, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    job = start("plain.py")
    monkeypatch.setenv("PROBE_NO_SERVER", "1")
    probe("attach", job.pid)
    assert facts(job.pid).server is None
    assert probe(job.pid, "query", "--format", "csv", COUNT).stdout == "n\n1\n"
    assert facts(job.pid).server is None
    monkeypatch.delenv("PROBE_NO_SERVER")
    probe(job.pid, "query", COUNT)
    server_of(job.pid)


def test_a_server_that_does_not_answer_is_passed_by(job: Target, probe: Probe) -> None:
    server, endpoint = server_of(job.pid), endpoint_of(job.pid)
    stop(server)
    try:
        assert probe(job.pid, "eval", "--now", "1+1").stdout == "2\n"
        said = probe(endpoint, "query", "--timeout", "1", "SELECT 1", status=8).stderr
        assert f"[silent] {endpoint} does not answer." in said
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_server_that_stalls_does_not_make_a_job_look_hung(job: Target) -> None:
    server, _ = server_of(job.pid), endpoint_of(job.pid)
    with connect(str(job.pid), timeout=1.0) as connection:
        stop(server)
        try:
            report = connection.hang(look_s=0.3)  # while the attach is young
        finally:
            os.kill(server, signal.SIGCONT)
    assert (report.code, report.hung) == ("unknown", False) and "is blocked in <module>" in report.verdict, report


def test_it_gives_up_what_it_does_not_need(job: Target) -> None:
    for name in (NAME, KEEPER):
        (pid,) = until(lambda name=name: processes(name, endpoint_of(job.pid)))
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max core file size +1 +1 ", limits)
        opened = {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)}
        assert opened == {"/dev/null"} and os.getsid(pid) != os.getsid(0)


def test_nothing_of_the_command_stays_with_it(start: Start, tmp_path: Path) -> None:
    job = start("plain.py")
    with (tmp_path / "lock").open("w") as lock:  # as of a shell that holds one
        command = [PROBE, "attach", str(job.pid)]
        subprocess.run(command, pass_fds=[lock.fileno()], cwd=tmp_path, check=True, capture_output=True)
    for name in (NAME, KEEPER):
        (pid,) = until(lambda name=name: processes(name, endpoint_of(job.pid)))
        until(lambda pid=pid: os.readlink(f"/proc/{pid}/cwd") == "/")
        until(lambda pid=pid: not [each for each in inside(pid)[2] if "lock" in each])


def test_all_ranks_have_one(start: Start, probe: Probe) -> None:
    torchrun = start("loop.py", "--sleep", "0.02", ranks=2)
    probe("attach", torchrun.pid)
    ranks = [pid for pid in descendants(torchrun.pid) if agent_memory.facts(pid) is not None]
    (endpoint,) = {endpoint_of(pid) for pid in ranks}
    assert probe(endpoint, "eval", "print('here')").stdout == "ranks 0-1:\nhere\n"
    probe(ranks[0], "detach")
    assert probe(endpoint, "query", "--format", "csv", COUNT).stdout == "n\n1\n"
    probe("attach", torchrun.pid)
    assert {endpoint_of(pid) for pid in ranks} == {endpoint}
    assert probe(endpoint, "query", "--format", "csv", COUNT).stdout == "n\n2\n"


# ---- serve


def test_serve_makes_a_job_listen(job: Target, probe: Probe, tmp_path: Path) -> None:
    key, old = tmp_path / "job.key", endpoint_of(job.pid)
    keys.create(str(key))
    said = probe(job.pid, "serve", "--listen", "127.0.0.1", "--key", key).stderr
    place = re.search(r"tcp://\S+", said)
    assert place and probe(place[0], "eval", "--key", key, "--now", "1+1").stdout == "2\n"
    until(lambda: not processes(NAME, old) and not processes(KEEPER, old))


def test_a_server_in_the_foreground_ends_with_its_command(job: Target, probe: Probe) -> None:
    served = subprocess.Popen([str(PROBE), str(job.pid), "serve", "--foreground"], stderr=subprocess.PIPE, text=True)
    assert served.stderr is not None
    endpoint = re.search(r"ipc://\S+", served.stderr.readline())
    try:
        assert endpoint and probe(endpoint[0], "eval", "--now", "1+1").stdout == "2\n"
        served.send_signal(signal.SIGINT)
        assert served.wait(10) == 0 and not Path(endpoint[0].removeprefix("ipc://")).exists()
        assert probe(job.pid, "eval", "--now", "1+1").stdout == "2\n"
    finally:
        served.kill()
        served.communicate()


def test_a_server_of_a_read_only_key_can_do_no_more(start: Start, probe: Probe, tmp_path: Path) -> None:
    key = tmp_path / "read.key"
    probe("key", "create", "--read-only", key)
    job = start("plain.py")
    probe("attach", "--listen", "127.0.0.1", "--key", key, job.pid)
    for asked in ((endpoint_of(job.pid),), (str(facts(job.pid).tcp), "--key", key)):
        assert probe(asked[0], "query", *asked[1:], "--format", "csv", COUNT).stdout == "n\n1\n"
        assert "[read-only]" in probe(asked[0], "eval", *asked[1:], "--now", "1", status=7).stderr
    assert probe(job.pid, "eval", "--now", "1+1").stdout == "2\n"  # by the agent itself


# ---- who asks it


@contextmanager
def counted(endpoint: str) -> Iterator[list[int]]:
    """Put a proxy in front of the server; the number of bytes of each connection from clients."""
    path = Path(endpoint.removeprefix("ipc://"))
    path.rename(path.with_name("behind"))
    sent: list[int] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def forward(client: socket.socket, place: int) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(str(path.with_name("behind")))
            other = {client: server, server: client}
            while data := (ready := select.select(list(other), [], [])[0][0]).recv(65536):
                sent[place] += len(data) if ready is client else 0
                other[ready].sendall(data)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            sent.append(0)
            threading.Thread(target=forward, args=(client, len(sent) - 1), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        with contextlib.suppress(FileNotFoundError):  # the server has ended
            path.with_name("behind").rename(path)
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize("form", ["pid", "name", "ipc"])
def test_every_verb_asks_the_server(start: Start, probe: Probe, form: str) -> None:
    job = start("loop.py", "--sleep", "0.02")
    probe("attach", "--name", f"served-{job.pid}", job.pid)
    endpoint = endpoint_of(job.pid)
    asked = {"pid": str(job.pid), "name": f"served-{job.pid}", "ipc": endpoint}[form]
    with counted(endpoint) as sent:
        for words in (
            ("query", "SELECT COUNT(*) FROM python.torch_trace"), ("eval", "1"), ("eval", "--now", "1"), ("stack",),
            ("hang",), ("set",), ("set", "sample=1"), ("detach",),
        ):  # fmt: skip
            sent.clear()
            probe(asked, *words)
            assert max(sent) > 100, words
        until(lambda: not processes(NAME, endpoint))


def test_a_listing_shows_it(job: Target, probe: Probe) -> None:
    probe(job.pid, "query", "SELECT 1")
    listed = json.loads(probe("list", "--all", "--json").stdout)
    assert not [row for row in listed if "probe.cli.answers" in row["command"]]
    server = server_of(job.pid)
    (row,) = [row for row in listed if row["pid"] == server]
    assert row["listens"] == endpoint_of(job.pid) and row["command"] == "probe server"
    assert not {row["pid"] for row in listed} & set(processes(KEEPER, endpoint_of(job.pid)))
