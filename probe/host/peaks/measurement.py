"""Peaks of this machine, measured once while it is idle and kept for this user.

Called by the verb `doctor` with --peak.  Invariant: a machine that does something else is not measured, for its peaks
would come out too low, and every share of them too high.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import OutputError, UsageError
from ...version import __version__
from ..nvml import read_nvml
from .known import Peak, cpu_name

_PROGRAM = Path(__file__).with_name("program.py")
_MOST_BUSY_PCT = 10.0
_LOOK_S = 1.0
_SECONDS = 1.0  # for each figure


def measure(threads: int = 0, seconds: float = _SECONDS, busy_pct: float | None = None) -> dict[str, Peak]:
    """Of the CPU with so many threads (0: as many as torch takes), and of each CUDA device, by name.

    busy_pct: what the machine does already, None to look.  Raises UsageError.  Takes some ten seconds a processor.
    """
    if find_spec("torch") is None:
        hint = "Install it there, or this command where the job's torch is: pip install torch"
        raise UsageError("torch is not installed beside this command.", hint, "needs-package")
    _require_idle(_busy_pct() if busy_pct is None else busy_pct)
    command = [sys.executable, str(_PROGRAM), str(threads), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it was ended"])[-1]
        raise OutputError(f"The peaks could not be measured: {last}")
    return _peaks(json.loads(done.stdout.splitlines()[-1]))


def _peaks(told: Mapping[str, Any]) -> dict[str, Peak]:
    source = f"probe doctor --peak, {time.strftime('%Y-%m-%d')}, torch {told['torch']}, probe {__version__}"
    cpu = cpu_name(cpu_model(), told["threads"])
    return {each["name"] or cpu: Peak(each["flops_s"], each["bytes_s"], source) for each in told["processors"]}


def cpu_model() -> str:
    """As an agent tells it of its machine (agent/capture/profiler.py)."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip()[:100] for line in lines if line.startswith("model name")), "")


def _require_idle(busy_pct: float) -> None:
    others = sum(len(device.pids or ()) for device in read_nvml().devices)
    if busy_pct > _MOST_BUSY_PCT or others:
        what = f"processes have {others} contexts on its devices" if others else f"its cores are {busy_pct:.0f} % busy"
        raise UsageError(
            f"This machine is not idle: {what}.", "Measure when nothing runs: probe doctor --peak", "not-idle"
        )


def _busy_pct() -> float:
    """Of all cores, in the next second."""
    before = _ticks()
    time.sleep(_LOOK_S)
    total, idle = (new - old for new, old in zip(_ticks(), before, strict=True))
    return 100 * (1 - idle / total) if total else 0.0


def _ticks() -> tuple[int, int]:
    """All that have passed, and those in which a core was idle or waited for storage."""
    with open("/proc/stat") as file:
        ticks = [int(each) for each in file.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]
