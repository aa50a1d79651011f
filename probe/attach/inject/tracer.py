"""A short-lived child that does the tracing, so that the kernel detaches whatever becomes of the command.

Called by `delivery`.  The child blocks the terminal's signals while a thread stands, keeps no file of its parent open,
and answers with one JSON object through a pipe.  It ends within its deadline; killing it at any moment leaves the
target as it was.
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
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NoReturn

from ...errors import AttachError
from ..deferred_signals import ENDING, DeferredSignals, SignalPending
from ..refusals import refusal
from .injection import Injected, inject
from .target import Target

GRACE_SECONDS = 2.0  # after its deadline: a call may just have begun
FAREWELL_SECONDS = 0.5  # for letting the thread go in order, once nobody waits for the answer
_BLOCKED = {*ENDING, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGPIPE}
LAST_DESCRIPTOR = 1 << 20
HASTE = -20


@contextlib.contextmanager
def injected_from_child(target: Target, text: bytes, deadline: float, signals: DeferredSignals) -> Iterator[Injected]:
    """`inject`, in a process of its own, which has ended when the block has; deadline: monotonic.

    Raises AttachError or SignalPending.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run(target, text, deadline, writer)
    os.close(writer)
    try:
        answer = _read(reader, deadline + GRACE_SECONDS, signals)
        yield _injected(target, answer)
    finally:
        os.close(reader)
        _end(child)


def _injected(target: Target, answer: bytes) -> Injected:
    content = json.loads(answer) if answer else {}
    if "injected" in content:
        return Injected(**content["injected"])
    if "error" in content:
        raise AttachError(*content["error"])
    detail = content.get("defect", "the tracing process was killed").strip().splitlines()[-1]
    raise refusal("tracing-failed", target.pid, why=detail)


def _run(target: Target, text: bytes, deadline: float, writer: int) -> NoReturn:
    """The child: never returns into its parent's frames."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        gc.disable()
        with contextlib.suppress(OSError):  # if we may: a thread of the job stands while we wait for a core
            os.setpriority(os.PRIO_PROCESS, 0, HASTE)
        start = 3  # what goes to the terminal stays open
        for descriptor in sorted((writer, target.memory.descriptor)):
            os.closerange(start, descriptor)
            start = descriptor + 1
        os.closerange(start, LAST_DESCRIPTOR)
        os.write(writer, json.dumps(_answer(target, text, deadline)).encode())
        os.close(writer)  # now: it takes the kernel a millisecond to end this process
    finally:
        os._exit(0)


def _answer(target: Target, text: bytes, deadline: float) -> dict[str, Any]:
    try:
        return {"injected": asdict(inject(target, text, deadline))}
    except AttachError as error:
        refused = error
    except SignalPending:
        return {}
    except (FileNotFoundError, ProcessLookupError):
        refused = refusal("target-ended", target.pid)
    except Exception:  # reported to the parent, which exits with it
        return {"defect": traceback.format_exc()}
    return {"error": [refused.message, refused.hint, refused.code]}


def _read(reader: int, deadline: float, signals: DeferredSignals) -> bytes:
    """What the child wrote before it ended, or before the deadline."""
    answer = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while signals.poll(poll, deadline) and (part := os.read(reader, 65536)):
        answer += part
    return answer


def _end(child: int) -> None:
    """Usually it has ended already; otherwise ask, then kill."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + FAREWELL_SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.0005)
