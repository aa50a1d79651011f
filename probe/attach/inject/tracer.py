"""A short-lived child that does the tracing, so that the kernel detaches whatever becomes of the command.

Called by `delivery`.  The child holds back the signals of the terminal while a thread stands, keeps no file
of its parent open, and answers one JSON object through a pipe.  It ends within its deadline; killing it at
any moment leaves the target as it was.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import time
import traceback
from dataclasses import asdict
from typing import Any, NoReturn

from ...errors import AttachError
from .. import refusals
from ..withdrawal import ENDING, Withdrawal, Withdrawn
from .plant import Planted, plant
from .target import Target

GRACE_SECONDS = 2.0  # after its deadline: a call may just have begun
FAREWELL_SECONDS = 0.5  # for letting the thread go in order, once nobody waits for the answer
_HELD_BACK = {*ENDING, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGPIPE}
LAST_DESCRIPTOR = 1 << 20
HASTE = -20


def plant_from_child(target: Target, text: bytes, deadline: float, withdrawal: Withdrawal) -> Planted:
    """`plant`, in a process of its own; deadline: monotonic.  Raises AttachError, or Withdrawn."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run(target, text, deadline, writer)
    os.close(writer)
    try:
        answer = _read(reader, deadline + GRACE_SECONDS, withdrawal)
    finally:
        os.close(reader)
        _end(child)
    return _understand(target.pid, answer)


def _run(target: Target, text: bytes, deadline: float, writer: int) -> NoReturn:
    """The child: never returns into its parent's frames."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        gc.disable()
        with contextlib.suppress(OSError):  # where we may: a thread of the job stands while we wait for a core
            os.setpriority(os.PRIO_PROCESS, 0, HASTE)
        _close_all_but(writer, target.memory.descriptor)
        os.write(writer, json.dumps(_answer(target, text, deadline)).encode())
    finally:
        os._exit(0)


def _answer(target: Target, text: bytes, deadline: float) -> dict[str, Any]:
    try:
        return {"planted": asdict(plant(target, text, deadline))}
    except AttachError as error:
        return {"error": [error.message, error.hint, error.code]}
    except Withdrawn:
        return {}
    except (FileNotFoundError, ProcessLookupError):
        ended = refusals.ended(target.pid)
        return {"error": [ended.message, ended.hint, ended.code]}
    except Exception:  # told to the process that asked, which is to exit with it
        return {"defect": traceback.format_exc()}


def _close_all_but(*kept: int) -> None:
    start = 3  # what goes to the terminal stays
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, LAST_DESCRIPTOR)


def _read(reader: int, deadline: float, withdrawal: Withdrawal) -> bytes:
    """What the child wrote before it ended, or before the deadline."""
    answer = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while withdrawal.poll(poll, deadline):
        part = os.read(reader, 65536)
        if not part:
            break
        answer += part
    return answer


def _end(child: int) -> None:
    """Usually it has ended already; else ask, then kill."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + FAREWELL_SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.0005)


def _understand(pid: int, answer: bytes) -> Planted:
    content = json.loads(answer) if answer else {}
    if "planted" in content:
        return Planted(**content["planted"])
    if "error" in content:
        message, hint, code = content["error"]
        raise AttachError(message, hint, code)
    detail = content.get("defect", "the tracing process was killed").strip().splitlines()[-1]
    raise AttachError(f"Tracing process {pid} failed: {detail}.", f"Try again: probe attach {pid}", "tracing-failed")
