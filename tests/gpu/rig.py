"""What the checks of first_ten_minutes.py share: jobs of their own, the command, and how a check is declared."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from target import Start, Target, starting

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
TRAINING = ROOT / "tests" / "played" / "jobs" / "training.py"
COMMAND = (sys.executable, "-c", "from probe.cli import main; main()")


@dataclass
class Found:
    """What a check saw.  holds: whether that is what was expected; None: it is a figure, not a test."""

    holds: bool | None
    lines: list[str]


@dataclass
class Rig:
    """One check's jobs, which end with it."""

    folder: Path
    start: Start
    devices: int

    def job(self, script: Path, *args: object, ranks: int = 1, ready: str = "ready", **env: str) -> Target:
        several = ranks if ranks > 1 else 0
        env = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=self.folder), **env}
        return self.start(script, *map(str, args), ranks=several, ready=ready, env=env)

    def probe(self, *words: object, timeout: float = 60, status: int | None = 0) -> str:
        """What the command prints on stdout.  Raises if it ends with another status (None: any)."""
        command = [*COMMAND, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False)
        if status is not None and done.returncode != status:
            raise RuntimeError(f"probe {' '.join(map(str, words))}: status {done.returncode}: {done.stderr[-600:]}")
        return done.stdout

    def rows(self, pid: int, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.probe(pid, "query", "--open", "--format", "json", sql))
        return found


@dataclass(frozen=True)
class Check:
    """expected: what it sees where all is well; otherwise: what it means if not."""

    name: str
    expected: str
    otherwise: str
    run: Callable[[Rig], Found]
    alone: bool


CHECKS: list[Check] = []


def check(expected: str, otherwise: str, alone: bool = False) -> Callable[[Callable[[Rig], Found]], None]:
    """Declares a check, in order of risk.  alone: nothing else may use the device meanwhile."""

    def declare(run: Callable[[Rig], Found]) -> None:
        CHECKS.append(Check(run.__name__, expected, otherwise, run, alone))

    return declare


@dataclass
class Timed:
    """Answers of the command, and how long each took."""

    rig: Rig
    lines: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __call__(self, *words: object) -> str:
        start = time.monotonic()
        try:
            answer = self.rig.probe(*words)
        except RuntimeError as error:
            answer = str(error)
        self.seconds.append(time.monotonic() - start)
        said = "attach" if words[0] == "attach" else words[1]
        self.lines.append(f"{said}: {self.seconds[-1]:.2f} s")
        return answer


@contextmanager
def rig(folder: Path, devices: int) -> Iterator[Rig]:
    folder.mkdir(parents=True)
    with starting(folder, None) as start:
        yield Rig(folder, start, devices)


def printed(command: Sequence[object], seconds: float) -> tuple[int, list[str]]:
    """The exit status and the lines of a command; 124 if it took longer."""
    done = subprocess.run(
        ["timeout", str(seconds), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=ROOT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def descriptors(pid: int) -> list[str]:
    """What the open descriptors of a process point to."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return sorted(found)
