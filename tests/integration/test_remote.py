"""Asking the server from other hosts: who gets in by which key, who does not, and what each is told."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from held_port import held_port
from raw_client import RawClient
from until import until

from probe import keys
from probe import protocol as wire
from probe.host import agent_memory
from probe.host.facts import Facts
from target import PROBE, PYTHON, Probe, Start, Target

KINDS_OF_CONTROL = sorted(wire.OF_CONTROL)
NOBODY = 65534
DISTINCT = "SELECT COUNT(DISTINCT rank) AS n FROM probe.agents"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """job.key, reader.key (a part of it) and other.key."""
    made = tmp_path_factory.mktemp("keys")
    keys.create(str(made / "job.key"))
    keys.create(str(made / "other.key"))
    keys.share(str(made / "job.key"), str(made / "reader.key"))
    return made


@pytest.fixture(scope="module")
def plain(start_once: Start) -> Target:
    return start_once("plain.py")


@pytest.fixture
def port(plain: Target, probe: Probe, folder: Path) -> Iterator[int]:
    """Of the server beside `plain`; its key is job.key."""
    line = probe("attach", "--listen", "127.0.0.1", "--key", folder / "job.key", plain.pid).stdout
    made = int(line.strip().rpartition(":")[2])
    assert line.strip().endswith(f", at tcp://127.0.0.1:{made}") and facts(plain).tcp == f"tcp://127.0.0.1:{made}"
    yield made
    probe(plain.pid, "detach", status=None)


def facts(target: Target) -> Facts:
    found = agent_memory.facts(target.pid)
    assert found is not None
    return found


def sockets(pid: int) -> int:
    """How many descriptors of the process are sockets."""
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += stat.S_ISSOCK(os.stat(f"/proc/{pid}/fd/{name}").st_mode)
        except OSError:  # closed meanwhile
            continue
    return found


# ---- keys


def test_the_key_allows_queries_and_evals(port: int, plain: Target, probe: Probe, folder: Path) -> None:
    at = f"tcp://127.0.0.1:{port}"
    assert probe(at, "eval", "--key", folder / "job.key", "--now", "os.getpid()").stdout == f"{plain.pid}\n"
    listed = json.loads(probe("list", "--format", "json", plain.pid).stdout)
    assert [row["listens"] for row in listed] == [at]
    assert probe(at, "detach", "--key", folder / "job.key").stdout == f"detached  rank 0  pid {plain.pid}\n"
    assert agent_memory.facts(plain.pid) is None


def test_the_key_may_come_from_the_environment(port: int, folder: Path, plain: Target) -> None:
    command = [str(PROBE), f"tcp://127.0.0.1:{port}", "stack"]
    done = subprocess.run(
        command, env={**os.environ, "PROBE_KEY": str(folder / "reader.key")}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "plain.py" in done.stdout


def test_a_read_only_key_allows_queries(port: int, probe: Probe, folder: Path) -> None:
    at, key = f"tcp://127.0.0.1:{port}", folder / "reader.key"
    assert json.loads(probe(at, "query", "--key", key, "--format", "json", DISTINCT).stdout) == [{"n": 1}]
    assert "plain.py" in probe(at, "stack", "--key", key).stdout
    assert "Verdict" in probe(at, "hang", "--key", key).stdout


@pytest.mark.parametrize("words", [["eval", "--now", "1"], ["set", "sample=1"], ["detach"]])
def test_a_read_only_key_cannot_change_the_job(
    port: int, probe: Probe, folder: Path, plain: Target, words: list[str]
) -> None:
    done = probe(f"tcp://127.0.0.1:{port}", *words, "--key", folder / "reader.key", status=7)
    assert f"[read-only] Rank 0 (pid {plain.pid}): this key may read, not control: no {words[0]}." in done.stderr
    assert done.stdout == "" and agent_memory.facts(plain.pid) is not None


@pytest.fixture
def dealer(folder: Path) -> Iterator[Callable[..., Any]]:
    """A client of one's own: dealer(port, {option: value})."""
    context = zmq.Context()

    def dealer(port: int, options: dict[int, Any]) -> Any:
        made = context.socket(zmq.DEALER)
        made.linger, made.rcvtimeo = 0, 5000
        for option, value in options.items():
            made.setsockopt(option, value)
        made.connect(f"tcp://127.0.0.1:{port}")
        return made

    yield dealer
    context.destroy(0)


def curve(path: Path, role: str = "control") -> dict[int, bytes]:
    key = json.loads(path.read_text())
    return {
        zmq.CURVE_SERVERKEY: key["server"]["public"].encode(),
        zmq.CURVE_PUBLICKEY: key[role]["public"].encode(),
        zmq.CURVE_SECRETKEY: key[role]["secret"].encode(),
    }


@pytest.mark.parametrize("kind", KINDS_OF_CONTROL)
def test_the_agent_itself_refuses_what_a_read_only_key_forbids(
    port: int, dealer: Callable[..., Any], folder: Path, kind: str, plain: Target
) -> None:
    asked, agent = dealer(port, curve(folder / "reader.key", "read")), str(facts(plain).id).encode()
    fields = {"base": 5, "source": "group_seq", "settings": {"sample": 1}, "code": "1", "where": "now", "of": "1",
              "served": {"server": "ipc:///nowhere", "tcp": None}}  # fmt: skip
    for hello in range(2):  # also after it has said that it may
        asked.send_multipart([b"1", agent, json.dumps({"kind": kind, **fields}).encode()])
        header = json.loads(asked.recv_multipart()[2])
        assert header["code"] == "read-only" and kind in header["message"]
        if not hello:
            asked.send_multipart([b"2", agent, wire.encode(wire.HELLO, protocol=wire.PROTOCOL, role=wire.CONTROL)])
            assert json.loads(asked.recv_multipart()[2])["role"] == "read"


@pytest.mark.parametrize("how", ["nothing", "password", "the server's own pair", "a pair of one's own"])
def test_a_client_without_a_key_gets_no_answer(
    port: int, dealer: Callable[..., Any], folder: Path, how: str, probe: Probe, plain: Target
) -> None:
    public, secret = zmq.curve_keypair()
    options = {
        "nothing": {},
        "password": {zmq.PLAIN_USERNAME: b"control", zmq.PLAIN_PASSWORD: b"control"},
        "the server's own pair": curve(folder / "job.key", "server"),
        "a pair of one's own": curve(folder / "job.key") | {zmq.CURVE_PUBLICKEY: public, zmq.CURVE_SECRETKEY: secret},
    }[how]
    asked = dealer(port, options)
    asked.send_multipart([b"1", str(facts(plain).id).encode(), b'{"kind": "detach"}'])
    asked.rcvtimeo = 1000
    with pytest.raises(zmq.Again):
        asked.recv_multipart()
    assert probe(plain.pid, "eval", "--now", "1").stdout == "1\n"


def test_a_missing_key_and_a_wrong_key_have_different_errors(
    port: int, probe: Probe, folder: Path, plain: Target
) -> None:
    at = f"tcp://127.0.0.1:{port}"
    without = probe(at, "query", "--timeout", "600", "SELECT 1", status=3, timeout=30)
    assert f"[no-key] {at} asks for a key." in without.stderr
    other = probe(at, "query", "--timeout", "600", "--key", folder / "other.key", "SELECT 1", status=3, timeout=30)
    assert f"[key-refused] {at} does not accept the key {folder / 'other.key'}." in other.stderr
    made = json.loads((folder / "job.key").read_text())
    public, secret = zmq.curve_keypair()
    mixed = folder / "mixed.key"
    mixed.touch(0o600)
    mixed.write_text(json.dumps({**made, "control": {"public": public.decode(), "secret": secret.decode()}}))
    known = probe(at, "query", "--timeout", "600", "--key", mixed, "SELECT 1", status=3, timeout=30)
    assert "[key-refused]" in known.stderr


def test_a_key_file_that_others_may_read_is_not_used(port: int, probe: Probe, folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    key.write_bytes((folder / "job.key").read_bytes())
    key.chmod(0o640)
    done = probe(f"tcp://127.0.0.1:{port}", "stack", "--key", key, status=2)
    assert f"[key-file] {key} has mode 0640: others may have read this key. Run: chmod 600 {key}" in done.stderr


# ---- listening


@pytest.mark.parametrize("place", ["0.0.0.0", "127.0.0.1", "127.0.0.1:29600"])
def test_listening_needs_a_key(plain: Target, probe: Probe, place: str) -> None:
    done = probe("attach", "--listen", place, plain.pid, status=2)
    assert f"[needs-key] --listen {place} needs a key" in done.stderr and agent_memory.facts(plain.pid) is None


def test_a_read_only_key_is_not_enough_to_listen(plain: Target, probe: Probe, folder: Path) -> None:
    done = probe("attach", "--listen", "127.0.0.1", "--key", folder / "reader.key", plain.pid, status=2)
    assert "[key-file]" in done.stderr and "is a key for readers" in done.stderr


def test_a_port_in_use_is_reported_and_nothing_stays(plain: Target, probe: Probe, folder: Path) -> None:
    before = sockets(plain.pid)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        words = ("attach", "--listen", f"127.0.0.1:{number}", "--key", folder / "job.key", plain.pid)
        said = f"[port-in-use] The job's server cannot listen at 127.0.0.1:{number}: Address already in use."
        assert said in probe(*words, status=4).stderr
        assert agent_memory.facts(plain.pid) is None and sockets(plain.pid) == before
        probe("attach", plain.pid)
        assert said in probe(*words, status=4).stderr
    assert probe(plain.pid, "eval", "--now", "1").stdout == "1\n"  # the agent that was there is as it was
    assert probe(*words).stdout.endswith(f"at tcp://127.0.0.1:{number}\n")
    assert probe(plain.pid, "detach").stdout == f"detached  rank 0  pid {plain.pid}\n"
    until(lambda: sockets(plain.pid) == before)


def test_listening_at_an_address_of_another_machine_is_refused(plain: Target, probe: Probe, folder: Path) -> None:
    done = probe("attach", "--listen", "192.0.2.1", "--key", folder / "job.key", plain.pid, status=4)
    assert "[cannot-listen]" in done.stderr and "Cannot assign requested address" in done.stderr
    assert agent_memory.facts(plain.pid) is None
    done = probe("attach", "--listen", "no-such-host.invalid", "--key", folder / "job.key", plain.pid, status=2)
    assert "Cannot listen at no-such-host.invalid" in done.stderr


def test_a_server_that_listens_keeps_its_port_and_its_key(port: int, plain: Target, probe: Probe, folder: Path) -> None:
    words = ("attach", "--listen", "127.0.0.1", "--key")
    assert probe(*words, folder / "job.key", plain.pid).stdout.endswith(f"at tcp://127.0.0.1:{port}\n")
    done = probe(*words, folder / "other.key", plain.pid, status=4)
    assert f"[other-key] Process {plain.pid} is served at tcp://127.0.0.1:{port} with another key." in done.stderr


def test_a_job_that_is_attached_can_begin_to_listen(plain: Target, probe: Probe, folder: Path) -> None:
    probe("attach", plain.pid)
    line = probe("attach", "--listen", "[::1]", "--key", folder / "job.key", plain.pid).stdout
    assert line.startswith("already") and "at tcp://[::1]:" in line
    at = facts(plain).tcp
    assert probe(at, "eval", "--key", folder / "job.key", "--now", "1").stdout == "1\n"
    probe(plain.pid, "detach")


# ---- who else comes to the port


@pytest.mark.long
@pytest.mark.parametrize("connections", [50, 1000])
def test_connections_without_a_handshake_take_nothing_of_the_job_and_block_nobody(
    port: int, plain: Target, probe: Probe, folder: Path, connections: int
) -> None:
    before = sockets(plain.pid)
    scanners = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(connections)]
    try:
        at = ("eval", "--key", folder / "job.key", "--now", "1")
        assert probe(f"tcp://127.0.0.1:{port}", *at).stdout == "1\n"
        assert sockets(plain.pid) <= before + 1  # the server's own for that client
        for scanner in scanners:  # dropped, for none has begun a handshake
            scanner.settimeout(60)
            while scanner.recv(64):
                pass
    finally:
        for scanner in scanners:
            scanner.close()
    assert probe(f"tcp://127.0.0.1:{port}", *at).stdout == "1\n"


def test_a_silent_client_is_dropped_after_a_while(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.settimeout(60)
        said = b""
        while part := silent.recv(64):
            said += part
    assert said == b"\xff" + bytes(7) + b"\x01\x7f"


def test_a_browser_is_turned_away(port: int, probe: Probe, folder: Path) -> None:
    with socket.create_connection(("127.0.0.1", port)) as browser:
        browser.settimeout(60)
        browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 10000)
        try:
            while browser.recv(64):
                pass
        except ConnectionResetError:
            pass
    assert probe(f"tcp://127.0.0.1:{port}", "eval", "--key", folder / "job.key", "--now", "1").stdout == "1\n"


# ---- what is no agent


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts another server; its port."""
    made: list[Target] = []

    def other(code: str) -> int:
        made.append(Target((PYTHON, "-uc", code), tmp_path / f"other-{len(made)}", {}))
        return int(made[-1].wait_for("\n").split()[0])

    yield other
    for each in made:
        each.end()


SILENT = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); time.sleep(600)"
HTTP = """
import http.server
class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
print(server.server_port)
server.serve_forever()
"""
CLOSES = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1])
while True: server.accept()[0].close()
"""
ZMQ = """
import time, zmq
socket = zmq.Context().socket(zmq.ROUTER)
print(socket.bind_to_random_port("tcp://127.0.0.1"))
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (SILENT, 8, "[silent] {at} does not answer within 1 s."),
        (HTTP, 3, "[not-an-agent] What listens at {at} is no agent: it says "),
        (CLOSES, 3, "[not-an-agent] What listens at {at} is no agent: it closes the connection."),
        (
            ZMQ,
            3,
            "[not-an-agent] What listens at {at} is no agent: it speaks ZeroMQ, but not with the keys of an agent.",
        ),
    ],
    ids=["silent", "http", "closes", "zmq without keys"],
)
@pytest.mark.parametrize("form", ["tcp", "job"])
def test_a_server_that_is_not_an_agent_is_reported_as_such(
    other: Callable[[str], int], probe: Probe, folder: Path, code: str, status: int, said: str, form: str
) -> None:
    place = f"127.0.0.1:{other(code)}"
    words = ("query", "--key", folder / "job.key", "--timeout", "1" if code == SILENT else "20", "SELECT 1")
    done = probe(f"{form}://{place}", *words, status=status, timeout=30)
    assert said.format(at=f"tcp://{place}") in done.stderr


def test_an_address_where_nothing_listens_is_reported(probe: Probe, folder: Path, tmp_path: Path) -> None:
    key = ("--key", folder / "job.key")
    with held_port() as free:
        done = probe(f"tcp://127.0.0.1:{free}", "query", *key, "--timeout", "600", "SELECT 1", status=3, timeout=30)
    assert f"[unreachable] Nothing listens at tcp://127.0.0.1:{free}: Connection refused." in done.stderr
    done = probe("tcp://no-such-host.invalid:1", "query", *key, "SELECT 1", status=3)
    assert "[no-such-host] The host no-such-host.invalid has no address: " in done.stderr
    done = probe(f"ipc://{tmp_path}/none", "query", "SELECT 1", status=3)
    assert f"[unreachable] {tmp_path}/none cannot be reached: No such file or directory." in done.stderr
    (tmp_path / "file").touch()
    assert "[not-an-agent]" in probe(f"ipc://{tmp_path}/file", "query", "SELECT 1", status=3).stderr
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    done = probe(f"ipc://{tmp_path}/left", "query", "SELECT 1", status=3)
    assert "[unreachable]" in done.stderr and "its agent has ended" in done.stderr


def test_an_agent_that_ends_during_a_request_is_reported_as_gone(start: Start, probe: Probe, folder: Path) -> None:
    plain = start("plain.py")
    probe("attach", "--listen", "127.0.0.1", "--key", folder / "job.key", plain.pid)
    place = facts(plain).tcp
    asked = subprocess.Popen(
        [str(PROBE), place, "eval", "--key", str(folder / "job.key"), "--now", "print('in'); time.sleep(600)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert asked.stdout is not None
    if asked.stdout.readline() != "in\n":
        pytest.fail(asked.communicate(timeout=60)[1])
    plain.process.kill()
    _, told = asked.communicate(timeout=60)
    assert asked.returncode == 8 and "[gone]" in told and "ended" in told


# ---- this machine


AS_NOBODY = f"""
import os, sys
import probe.connection, probe.cli.verbs.data.eval
from probe.cli.entry import run
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(run([sys.argv[1], "eval", "--now", "1"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_refused_at_the_socket_file(plain: Target, probe: Probe) -> None:
    probe("attach", plain.pid)
    try:
        path = facts(plain).endpoint
        for endpoint, said in ((path, "Permission denied"), (str(plain.pid), "belongs to user 0")):
            # what is imported has been before, for that user may not be able to read this Python
            done = subprocess.run([PYTHON, "-c", AS_NOBODY, endpoint], capture_output=True, text=True, timeout=60)
            assert done.returncode == 3 and said in done.stderr
    finally:
        probe(plain.pid, "detach")


def test_the_path_of_an_agents_socket_is_an_endpoint(plain: Target, probe: Probe) -> None:
    probe("attach", plain.pid)
    path = facts(plain).endpoint
    assert probe(path, "eval", "--now", "os.getpid()").stdout == f"{plain.pid}\n"
    pid = probe(path, "query", "--format", "csv", "SELECT pid FROM probe.agents").stdout
    assert pid == f"pid\n{plain.pid}\n"
    probe(path, "detach")


def test_a_name_stands_for_every_rank_of_the_attach(start: Start, probe: Probe) -> None:
    torchrun = start("loop.py", "--sleep", "0.02", ranks=2)
    name, other = f"exp-{torchrun.pid}", f"other-{torchrun.pid}"
    probe("attach", "--name", name, torchrun.pid)
    assert probe(name, "eval", "print('here')").stdout == "ranks 0-1:\nhere\n"
    assert probe("query", name, "--format", "csv", DISTINCT).stdout == "n\n2\n"
    assert probe(f"-t {name}", "query", "--format", "csv", DISTINCT).stdout == "n\n2\n"
    rows = json.loads(probe("list", "--format", "json", torchrun.pid).stdout)
    assert [row["name"] for row in rows if row["rank"] is not None] == [name, name]
    said = probe(other, "query", "SELECT 1", status=3).stderr
    assert f"{other!r} is no endpoint" in said and re.search(f"Names: .*{name}", said)
    renamed = probe("attach", "--name", other, torchrun.pid).stdout
    assert renamed.count("already ") == renamed.count(f"its name is {other} now") == 2
    assert probe(other, "query", "--format", "csv", DISTINCT).stdout == "n\n2\n"
    assert "is no endpoint" in probe(name, "query", "SELECT 1", status=3).stderr


@pytest.mark.parametrize("name", ["query", "4242", "a:b", "a/b", "a,b", "a b", "-a", "key", ""])
def test_a_name_that_could_mean_something_else_is_refused(plain: Target, probe: Probe, name: str) -> None:
    done = probe("attach", f"--name={name}", plain.pid, status=2)
    assert f"{name!r} cannot be a name" in done.stderr and agent_memory.facts(plain.pid) is None


def test_a_list_of_endpoints_counts_each_agent_once(port: int, plain: Target, probe: Probe, folder: Path) -> None:
    place = f"tcp://127.0.0.1:{port}"
    three = f"{plain.pid},{facts(plain).endpoint},{place}"
    done = probe(
        three, "query", "--key", folder / "reader.key", "--format", "csv", "SELECT COUNT(*) AS n FROM probe.agents"
    )
    assert done.stdout == "n\n1\n"


def test_ranks_of_different_jobs_cannot_be_queried_together(plain: Target, start: Start, probe: Probe) -> None:
    second = start("plain.py")
    for target in (plain, second):
        probe("attach", target.pid)
    done = probe(f"{plain.pid},{second.pid}", "query", "SELECT 1", status=3)
    assert "[rank-twice]" in done.stderr and f"Rank 0 (pid {plain.pid}) and Rank 0 (pid {second.pid})" in done.stderr
    probe(plain.pid, "detach")


# ---- what is left


def test_a_forked_child_does_not_keep_the_agents_socket(plain: Target, probe: Probe) -> None:
    code = """
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
child
"""
    before = sockets(plain.pid)
    probe("attach", plain.pid)
    client = RawClient(str(facts(plain).endpoint), timeout_s=30)
    client.hello()
    child = int(probe(plain.pid, "eval", "--now", code).stdout)
    try:
        until(lambda: sockets(child) == before)
        probe(plain.pid, "detach")
        with pytest.raises(EOFError):  # for nobody holds the other end any more
            client.receive()
        assert before == sockets(child) == sockets(plain.pid)
    finally:
        client.close()
        os.kill(child, 9)


def test_detach_closes_the_port(plain: Target, probe: Probe, folder: Path) -> None:
    before, tasks = sockets(plain.pid), len(os.listdir(f"/proc/{plain.pid}/task"))
    probe("attach", "--listen", "127.0.0.1", "--key", folder / "job.key", plain.pid)
    number = int(str(facts(plain).tcp).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", number)):
        probe(plain.pid, "detach")
        until(lambda: sockets(plain.pid) == before)
        until(lambda: len(os.listdir(f"/proc/{plain.pid}/task")) == tasks)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", number))
