"""The folder of a server's socket, as root makes it for the job's user; what its processes get of the environment."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from until import until

from probe.agent.facts import served_by
from probe.host.facts_shape import SERVED
from probe.host.processes import descendants, environment, namespace
from probe.serve import launch
from probe.serve.handover import spawn
from probe.serve.jobs import JobServers
from probe.serve.launch import Prepared
from probe.shapes import compiled

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_the_folder_is_its_users_once_nothing_is_left_to_do_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = list[int]()

    def watched(call: Callable[..., None]) -> Callable[..., None]:
        def seen(path: str, *arguments: int, **more: Any) -> None:
            owners.append(os.fstat(more["dir_fd"]).st_uid)  # whose it is may put anything in place of the socket
            call(path, *arguments, **more)

        return seen

    monkeypatch.setattr(os, "chmod", watched(os.chmod))
    monkeypatch.setattr(os, "chown", watched(os.chown))
    with Prepared(os.getpid(), NOBODY, NOBODY) as prepared:
        socket = Path(prepared.endpoint.removeprefix("ipc://"))
        assert owners == [0, 0]
        assert {each.stat().st_uid for each in (socket, socket.parent)} == {NOBODY}
        assert [stat.S_IMODE(each.stat().st_mode) for each in (socket, socket.parent)] == [0o600, 0o700]
    assert not socket.parent.exists()


def test_keeper_and_server_get_the_folders_of_libraries_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which those count that mean the same wherever one is."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib::lib:/opt/more;lib")
    started = list[int]()
    monkeypatch.setattr(launch, "spawn", lambda *of: started.append(spawn(*of)) or started[-1])
    with Prepared(os.getpid(), os.geteuid(), os.getegid()) as prepared:
        prepared.start()
    (keeper,) = started
    try:
        until(lambda: len(descendants(keeper)) > 1)
        for pid in descendants(keeper)[:2]:
            until(lambda pid=pid: environment(pid) == {"LD_LIBRARY_PATH": "/opt/python/lib:/opt/more", "": ""})
    finally:
        os.kill(keeper, signal.SIGTERM)
        os.waitpid(keeper, 0)


def test_a_python_that_cannot_start_sessions_starts_processes_that_do_it_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = os.posix_spawn

    def refusing(*arguments: Any, **how: Any) -> int:
        """As where Python was built for glibc before 2.26."""
        if how.get("setsid"):
            raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
        return usual(*arguments, **how)

    monkeypatch.setattr(os, "posix_spawn", refusing)
    for name in ("memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(launch, "spawn", lambda *of: started.append(spawn(*of)) or started[-1])
    started = list[int]()
    with Prepared(os.getpid(), os.geteuid(), os.getegid()) as prepared:
        prepared.start()
    (keeper,) = started
    try:
        assert os.getsid(keeper) == keeper
    finally:
        os.kill(keeper, signal.SIGTERM)
        os.waitpid(keeper, 0)


def test_a_server_whose_python_does_not_start_is_told_and_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = JobServers()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with servers.of(os.getpid()) as served:
        assert served is not None
    assert not os.path.exists(os.path.dirname(served["server"].removeprefix("ipc://")))
    assert "/bin/false ends at once where LD_LIBRARY_PATH is all of its environment." in servers.why_none
    assert f"probe {os.getpid()} serve --foreground" in servers.why_none
    with servers.of(os.getpid()) as again:
        assert again is None


def test_an_agent_is_told_whether_the_port_is_in_its_network() -> None:
    apart = ("unshare", "--user", "--map-root-user", "--net")
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let its users make namespaces")
    listen = {"host": "here", "address": "127.0.0.1", "port": 0, "public": "x", "key_file": "/nowhere"}
    with subprocess.Popen([*apart, "sleep", "60"]) as contained:
        until(lambda: namespace(contained.pid, "net") != namespace(os.getpid(), "net"))
        for pid, is_apart in ((os.getpid(), False), (contained.pid, True)):
            with Prepared(pid, os.geteuid(), os.getegid(), listen) as prepared:
                told = served_by(prepared.served)
                assert told["tcp"]["other_network"] is is_apart
                assert not compiled(SERVED)(told, "served")
        contained.kill()
