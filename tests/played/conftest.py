"""Jobs on the played runtime."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import ForkServer
from played import Play, Played, environment_of

from target import PYTHON, Start

HERE = Path(__file__).parent
PLAYED = environment_of(sys.executable)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts jobs on the played runtime."""
    server = ForkServer(PYTHON, env=PLAYED)
    yield server
    server.close()


@pytest.fixture
def play(start: Start, tmp_path: Path) -> Iterator[Play]:
    """play("training.py", "ddp", "100", ranks=2, **environment): a job of jobs/ on devices of its own."""
    made: list[Played] = []

    def play(script: str, *args: str, ranks: int = 1, ready: str = "ready", **settings: str) -> Played:
        folder = tmp_path / f"played{len(made)}"
        folder.mkdir()
        world = dict.fromkeys(("PLAYED_WORLD", "PLAYED_LOG", "TORCHINDUCTOR_CACHE_DIR"), str(folder))
        env = {**PLAYED, "PLAYED_DEVICES": str(max(2, ranks)), **world, **settings}
        made.append(Played(start(HERE / "jobs" / script, *args, ranks=ranks, ready=ready, env=env), folder))
        return made[-1]

    yield play
