"""Two hosts on one machine: network namespaces with a cable between them, in which ranks of one gloo job train."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import ForkServer

from target import PROBE, PYTHON, TARGETS, Target

STORE_PORT = 29500


@dataclass(frozen=True)
class Host:
    """One namespace; address: on the cable.  server: starts its ranks."""

    name: str
    address: str
    server: ForkServer

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command begins with that is to run there."""
        return ("ip", "netns", "exec", self.name)

    @property
    def alone(self) -> tuple[str, ...]:
        """Likewise, without seeing other processes."""
        return (*self.inside, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

    def rank(self, number: int, store: str, output: Path) -> Target:
        """A rank of two that trains there, and has made a step."""
        env = {
            "RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": store, "MASTER_PORT": str(STORE_PORT),
            "GLOO_SOCKET_IFNAME": "cable",
        }  # fmt: skip
        return Target((*self.inside, PYTHON, str(TARGETS / "loop.py"), "--sleep", "0.02"), output, env, self.server)

    def probe(self, *words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """The command as run on this host, which sees no process but its own."""
        asked = self.start(*words)
        try:
            out, err = asked.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            asked.kill()
            raise
        assert asked.returncode == status, f"exit {asked.returncode}: {out}{err}"
        return subprocess.CompletedProcess(asked.args, asked.returncode, out, err)

    def attach(self, *words: str | int | Path) -> None:
        """`probe attach`, which has to see the ranks; its server listens on this host."""
        subprocess.run([*self.inside, str(PROBE), "attach", *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Likewise, without waiting for its end."""
        command = [*self.alone, str(PROBE), *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def cut(self) -> None:
        """Its end of the cable is pulled out."""
        subprocess.run([*self.inside, "ip", "link", "set", "cable", "down"], check=True)


def ip(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *words], capture_output=True)


@contextmanager
def two_hosts(server: ForkServer) -> Iterator[tuple[Host, Host]]:
    """Skips where namespaces may not be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("only root may make network namespaces, with ip and unshare")
    hosts = tuple(Host(f"probe-{os.getpid()}-{end}", f"10.213.7.{end}", server) for end in (1, 2))
    try:
        for host in hosts:
            if ip("netns", "add", host.name).returncode:
                pytest.skip("this machine does not let root make network namespaces")
        first, second = hosts
        made = ip("link", "add", "cable", "netns", first.name, "type", "veth", "peer", "cable", "netns", second.name)
        if made.returncode:
            pytest.skip(f"this machine has no veth: {made.stderr.decode().strip()}")
        for host in hosts:
            for words in (
                ("link", "set", "lo", "up"), ("addr", "add", f"{host.address}/24", "dev", "cable"),
                ("link", "set", "cable", "up"),
            ):  # fmt: skip
                subprocess.run([*host.inside, "ip", *words], check=True)
        yield first, second
    finally:
        for host in hosts:
            ip("netns", "del", host.name)
