"""A job of two ranks over gloo, each a process of its own, run to its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGETS = Path(__file__).parent / "targets"


def run_ranks(target: str, out: Path, *arguments: str, timeout: float = 100) -> list[dict[str, Any]]:
    """What each rank of tests/targets/<target> has written about what it saw."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(TARGETS / target), str(out), *arguments]
    ranks = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        errors = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    assert errors == ["", ""]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]
