"""The fork server of the tests tells how each process ended, and what tests start ends with them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from forked import COMMAND, ForkServer
from targets.launcher import FIRST_PORT, environments
from until import until

from target import PROBE, TARGETS, Target


class Earlier(dict[int, int]):
    """The statuses of a run in which every number was used, by a process that exited with 0."""

    def __init__(self) -> None:
        super().__init__()
        self._used_again = set[int]()

    def __contains__(self, pid: object) -> bool:
        return super().__contains__(pid) or pid not in self._used_again

    def __missing__(self, pid: int) -> int:
        return 0

    def pop(self, pid: int, *default: int | None) -> int | None:  # type: ignore[override]
        self._used_again.add(pid)
        return super().pop(pid, *default)  # type: ignore[arg-type]


def test_a_process_with_the_number_of_an_earlier_one_has_its_own_status() -> None:
    server = ForkServer(sys.executable, COMMAND)
    try:
        server._statuses = Earlier()
        done = server.run([sys.executable, str(PROBE), "no-such-verb"], os.environ, "", 60)
        assert done.returncode == 2, done.stderr
    finally:
        server.close()


def test_a_target_that_ends_while_it_is_ended_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target((sys.executable, str(TARGETS / "plain.py")), tmp_path / "output", {})
    target.wait_for("ready")
    os.kill(target.pid, signal.SIGKILL)
    target.process.wait()
    until(lambda: not Path(f"/proc/{target.pid}").exists())
    monkeypatch.setattr(Target, "alive", True)  # as it was found a moment ago
    target.end()


def test_the_port_of_a_job_is_given_to_nobody_else() -> None:
    """As those are that the kernel chooses, before a rank listens there."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ranks = environments(2)
    (port,) = {int(each["MASTER_PORT"]) for each in ranks}
    assert (port < first or first <= FIRST_PORT) and [each["RANK"] for each in ranks] == ["0", "1"]
