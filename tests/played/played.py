"""A job on the played runtime (runtime/README.md), and what was done against the runtime's rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from target import Target

OURS = "<probe>"


@dataclass(frozen=True)
class Broken:
    """A rule that was broken, or a context that was made: by which thread, in which Python frames."""

    rule: str
    call: str
    what: str
    pid: int
    tid: int
    thread: str
    stack: list[str]

    @property
    def is_ours(self) -> bool:
        """The agent's thread, or a hook of ours that a thread of the job runs."""
        return any(OURS in frame for frame in self.stack)


def environment_of(python: str) -> dict[str, str]:
    """Of jobs on the played runtime, whose libraries make puts beside this interpreter."""
    libraries = Path(python).parent.parent / "played"
    preload = str(libraries / "libplayed.so")
    return {"LD_PRELOAD": preload, "LD_LIBRARY_PATH": str(libraries), "TORCH_CUDA_NO_WARN": "1"}


class Final(NamedTuple):
    """The last words of a rank; losses: a hash of them all."""

    rank: int
    losses: str
    peak_bytes: int


@dataclass
class Played:
    """A running job on the played runtime."""

    target: Target
    folder: Path

    def broken(self) -> list[Broken]:
        lines = [line for path in sorted(self.folder.glob("rules.*")) for line in path.read_text().splitlines()]
        return [Broken(**json.loads(line)) for line in lines]

    def pids(self) -> list[int]:
        """Of its ranks."""
        return [int(line.split()[1]) for line in self.target.output.splitlines() if line.startswith("ready ")]

    def final(self, ranks: int, timeout: float = 120) -> list[Final]:
        output = self.target.wait_for("final", times=ranks, timeout=timeout)
        found = [line.split()[1:] for line in output.splitlines() if line.startswith("final")]
        return sorted(Final(int(rank), losses, int(peak)) for rank, losses, peak in found)


Play = Callable[..., Played]
