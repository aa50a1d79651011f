"""The agent's socket when the system runs short: nothing is lost, nobody is dropped, and the thread does not spin."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient

from probe.agent.serve.connections import Connection, Connections
from probe.agent.serve.listening import Listener


class Short:
    """A socket of which these calls fail, as long as `lacks` says so."""

    def __init__(self, socket: Any, lacks: dict[str, int]) -> None:
        self._socket, self.lacks, self.calls = socket, lacks, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def _failing(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        if name in self.lacks:
            raise OSError(self.lacks[name], os.strerror(self.lacks[name]))
        return getattr(self._socket, name)(*arguments)

    def recv(self, *arguments: Any) -> Any:
        return self._failing("recv", *arguments)

    def sendmsg(self, *arguments: Any) -> Any:
        return self._failing("sendmsg", *arguments)

    def _accept(self) -> Any:
        return self._failing("_accept")


@pytest.fixture
def taken() -> list[list[bytes]]:
    return []


@pytest.fixture
def connections(short_folder: Path, taken: list[list[bytes]]) -> Iterator[Connections]:
    made = Connections(Listener(f"{short_folder}/s"), {os.getuid()}, lambda client, message: taken.append(message))
    yield made
    made.close(0)


@pytest.fixture
def one(connections: Connections, short_folder: Path) -> Iterator[tuple[RawClient, Connection, Short]]:
    client = RawClient(f"{short_folder}/s")
    connections.wait(1000)
    (connection,) = connections._clients.values()
    connection.socket = short = Short(connection.socket, {})
    yield client, connection, short
    client.close()


@pytest.mark.parametrize("lack", [errno.ENOBUFS, errno.ENOMEM])
def test_a_reply_waits_for_memory(
    connections: Connections, one: tuple[RawClient, Connection, Short], lack: int
) -> None:
    client, connection, short = one
    short.lacks["sendmsg"] = lack
    assert connections.send(connection, [b"1", b"hello"])
    for _ in range(20):
        connections.wait(0)
    assert short.calls == 1  # it does not spin
    connections.maintain()
    assert short.calls == 2 and connection.is_open
    short.lacks.clear()
    connections.maintain()
    assert client.receive() == [b"1", b"hello"]


def test_an_unread_reply_is_copied_before_its_memory_changes_and_not_again_with_each_later_one(
    connections: Connections, one: tuple[RawClient, Connection, Short]
) -> None:
    client, connection, short = one
    short.lacks["sendmsg"] = errno.ENOBUFS
    written = bytearray(b"old")
    connections.send(connection, [b"1", memoryview(written)])
    written[:] = b"new"
    unsent = connection.unsent
    connections.send(connection, [b"2", b"later"])
    assert connection.unsent is unsent
    short.lacks.clear()
    connections.maintain()
    assert client.receive() == [b"1", b"old"] and client.receive() == [b"2", b"later"]


def test_a_request_waits_for_memory(
    connections: Connections, one: tuple[RawClient, Connection, Short], taken: list[list[bytes]]
) -> None:
    client, connection, short = one
    short.lacks["recv"] = errno.ENOMEM
    client.send([b"1", b"hello"])
    for _ in range(20):
        connections.wait(0)
    assert (short.calls, taken) == (1, []) and connection.is_open
    short.lacks.clear()
    connections.maintain()
    connections.wait(1000)
    assert taken == [[b"1", b"hello"]]


@pytest.mark.parametrize("lack", [errno.ENOBUFS, errno.ENOMEM, errno.ENFILE])
def test_a_connection_that_cannot_be_accepted_waits(
    connections: Connections, short_folder: Path, lack: int, taken: list[list[bytes]]
) -> None:
    connections.listener.socket = short = Short(connections.listener.socket, {"_accept": lack})
    client = RawClient(f"{short_folder}/s")
    client.send([b"1", b"hello"])
    for _ in range(20):
        connections.wait(0)
    assert short.calls == 2 and os.strerror(lack) in connections.trouble
    short.lacks.clear()
    connections.maintain()
    for _ in range(3):
        connections.wait(100)
    assert taken == [[b"1", b"hello"]] and not connections.trouble
    client.close()


def test_a_removed_path_is_made_again_for_this_user_alone(tmp_path: Path, taken: list[list[bytes]]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    connections = Connections(Listener(f"{folder}/s"), {os.geteuid()}, lambda client, message: taken.append(message))
    before = len(os.listdir("/proc/self/fd"))
    shutil.rmtree(folder)
    connections.maintain()
    client = RawClient(f"{folder}/s")
    client.send([b"1", b"hello"])
    for _ in range(3):
        connections.wait(100)
    assert taken == [[b"1", b"hello"]] and folder.stat().st_mode & 0o777 == 0o700
    client.close()
    connections.wait(100)
    assert len(os.listdir("/proc/self/fd")) == before
    connections.listener.remove()
    connections.maintain()
    connections.close(0)
    assert not folder.exists()


def test_a_folder_that_others_may_enter_gets_no_socket(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    connections = Connections(Listener(f"{folder}/s"), {os.geteuid()}, lambda client, message: None)
    shutil.rmtree(folder)
    folder.mkdir()
    folder.chmod(0o777)
    connections.maintain()
    assert not list(folder.iterdir())
    connections.close(0)


def test_numbers_that_the_job_uses_again_are_neither_read_nor_written_to_nor_closed(
    short_folder: Path, taken: list[list[bytes]]
) -> None:
    before = descriptors()
    connections = Connections(
        Listener(f"{short_folder}/s"), {os.getuid()}, lambda client, message: taken.append(message)
    )
    client = RawClient(f"{short_folder}/s")
    for _ in range(2):
        connections.wait(100)
    ours = descriptors() - before - {client.socket.fileno()}
    assert len(ours) == 4  # the listener, a client, and two eventfds
    mine, others = socket.socketpair()
    others.sendall(b"of the job")
    with mine, others:
        for number in ours:  # os.closerange(3, 256), and sockets that the job then opens
            os.dup2(mine.fileno(), number)
        connections.wake()
        for _ in range(3):
            connections.wait(0)
        connections.maintain()
        again = RawClient(f"{short_folder}/s")  # there is a listener again
        again.send([b"1", b"hello"])
        for _ in range(3):
            connections.wait(100)
        assert taken == [[b"1", b"hello"]]
        connections.close(0.0)
        assert mine.recv(100) == b"of the job"
        others.setblocking(False)
        with pytest.raises(BlockingIOError):
            others.recv(100)
        for number in ours:
            assert os.path.samestat(os.fstat(number), os.fstat(mine.fileno()))
            os.close(number)
    for each in (client, again):
        each.close()


def test_it_serves_without_a_spare_descriptor_and_gets_one_later(
    short_folder: Path, taken: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(descriptor: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr(os, "dup", short)
        before = descriptors()
        listener = Listener(f"{short_folder}/s")
        connections = Connections(listener, {os.getuid()}, lambda client, message: taken.append(message))
        assert len(descriptors() - before) == 2  # the listener and an eventfd
    connections.maintain()
    assert len(descriptors() - before) == 3
    connections.close(0.0)


def descriptors() -> set[int]:
    return {number for number in map(int, os.listdir("/proc/self/fd")) if is_open(number)}


def is_open(number: int) -> bool:
    with suppress(OSError):
        return os.fstat(number) is not None
    return False
