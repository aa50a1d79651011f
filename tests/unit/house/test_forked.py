"""The fork server of the tests tells how each process ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from forked import COMMAND, ForkServer

from target import PROBE

HIGHEST = int(Path("/proc/sys/kernel/pid_max").read_text())


def test_a_process_with_the_number_of_an_earlier_one_has_its_own_status() -> None:
    server = ForkServer(sys.executable, COMMAND)
    try:
        server._statuses.update(dict.fromkeys(range(HIGHEST + 1), 0))
        done = server.run([sys.executable, str(PROBE), "no-such-verb"], os.environ, "", 60)
        assert done.returncode == 2, done.stderr
    finally:
        server.close()
