"""The C and C++ frames of a process's threads, as pystack reads them: it stops the process for that.

Called by probe.diagnose.hang for ranks that stand still.  pystack is run in a process of its own, for it may crash on
a process whose memory it does not understand.  Invariant: the process goes on afterwards, whatever ended pystack.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from .processes import is_stopped

_TIMEOUT_S = 30.0
# debuginfod would ask servers for debug information
_READER = """import sys; sys.path[:] = {!r}
import json
from pystack.engine import NativeReportingMode, get_process_threads
found = {{}}
for thread in get_process_threads({}, stop_process=True, native_mode=NativeReportingMode.ALL):
    found[thread.tid] = [[frame.symbol, frame.library] for frame in thread.native_frames]
print(json.dumps(found))
"""
_EVALUATES = ("_PyEval_EvalFrame", "PyEval_EvalFrame", "_TAIL_CALL_")
_CALLING = (
    "_Py",
    "Py",
    "call_",
    "cfunction_",
    "do_call",
    "method_vectorcall",
    "object_vacall",
    "slot_tp_call",
    "type_call",
)
_SYSTEM = ("libc.so", "libc-", "libpthread", "libstdc++", "linux-vdso", "[vdso]", "ld-linux")


@dataclass(frozen=True)
class NativeFrame:
    """A C or C++ function, without its arguments.  library: its file's name.

    Example: `[str(frame) for frame in job.native_stacks()[0]]`
    """

    function: str
    library: str

    def __str__(self) -> str:
        return f"{self.function} ({self.library})"

    @property
    def is_of_system(self) -> bool:
        """Whether it is of the C or C++ library: the wait itself, and not who waits."""
        return self.library.startswith(_SYSTEM)


def can_read_native_frames() -> bool:
    """Whether pystack is installed."""
    return importlib.util.find_spec("pystack") is not None


def native_frames(pid: int) -> dict[int, list[NativeFrame]]:
    """By the kernel's id of each thread its frames below Python, innermost first; {} where they cannot be read.

    Cost: the process stands for 0.3 to 1.5 s.
    """
    if is_stopped(pid):
        return {}
    command = [sys.executable, "-I", "-S", "-c", _READER.format(sys.path, pid)]
    environment = {name: value for name, value in os.environ.items() if name != "DEBUGINFOD_URLS"}
    reader = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    )
    try:
        out, _ = reader.communicate(timeout=_TIMEOUT_S)
    except BaseException as error:
        reader.kill()
        reader.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return {}
    finally:
        if reader.returncode and is_stopped(pid):  # a tracer that dies leaves the process stopped
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
    with contextlib.suppress(ValueError):
        return {int(tid): below_python(frames) for tid, frames in json.loads(out).items()}
    return {}


def below_python(frames: list[list[str]]) -> list[NativeFrame]:
    """What the innermost Python function has called, without the interpreter's own way to call it.

    frames: (symbol, library), outermost first, as pystack has them.
    """
    found = []
    for symbol, library in reversed(frames):
        if symbol.startswith(_EVALUATES):
            break
        found.append(NativeFrame(function_of(symbol) or "?", os.path.basename(library)))
    while len(found) > 1 and found[-1].function.startswith(_CALLING):
        found.pop()
    return found


def function_of(symbol: str) -> str:
    """`c10d::Work::wait` of `c10d::Work::wait(std::chrono::duration<long>)`: without arguments, template or not."""
    text = symbol.removesuffix(" (inlined)").partition("@")[0]
    text = text.replace("(anonymous namespace)", "{anonymous}").replace("operator()", "operator{}")
    kept, depth = [], 0
    for letter in text:
        depth += letter in "<("
        if not depth:
            kept.append(letter)
        depth -= letter in ">)" and depth > 0
    return "".join(kept).strip()
